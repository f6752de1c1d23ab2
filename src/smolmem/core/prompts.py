"""Prompts, stored without repetition: the beginning of an earlier prompt, and the messages that are new.

Each prompt of a run repeats the whole conversation so far. Stored one by one they would grow with the square of the
run's length; stored as "the first `keep` parts of prompt `parent`, then `suffix`" they grow with its length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from smolmem.core.rows import SharedPrompt

if TYPE_CHECKING:
    from smolmem.core.encoding.codec import Encoded

Part: TypeAlias = "int | Encoded"
"""A part of a prompt: the id of stored content, or content that is not stored yet."""


class PromptLink(NamedTuple):
    """How a stored prompt is put together."""

    parent: int | None
    keep: int
    suffix: list[int]


def share(prompt: Sequence[Part], size: int, earlier: Iterable[tuple[int, Sequence[Part]]]) -> SharedPrompt:
    """A prompt as the longest beginning it shares with an earlier one, and the rest."""
    parent, keep = None, 0
    for number, parts in earlier:
        common = common_length(parts, prompt)
        if common > keep:
            parent, keep = number, common
    return SharedPrompt(parent, keep, prompt[keep:], size)


class BatchPrompts:
    """The prompts that one transaction saves: each can begin with the one before it, after the store had failed."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        """The parts that are saved, by hash."""
        self._last: tuple[int, int | None, int, tuple[int, ...]] = (0, None, -1, ())

    def shortened(self, parent: int | None, keep: int, suffix: tuple[int, ...]) -> PromptLink:
        """How a prompt is stored: by the prompt before it, if that shares more than an earlier one does."""
        number, last_parent, last_keep, last = self._last
        if (parent, keep) == (last_parent, last_keep) and suffix[: len(last)] == last:
            return PromptLink(number, keep + len(last), [*suffix[len(last) :]])
        return PromptLink(parent, keep, [*suffix])

    def add(self, number: int, parent: int | None, keep: int, suffix: tuple[int, ...]) -> None:
        """A prompt was saved."""
        self._last = number, parent, keep, suffix


def common_length(left: Sequence[Any], right: Sequence[Any]) -> int:
    """How many items two lists have in common at their beginning."""
    if right[: len(left)] == left:
        return len(left)
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(left), len(right)))


def expand(number: int, link: Callable[[int], PromptLink], known: tuple[int, list[int]]) -> list[int]:
    """The content ids of a stored prompt's parts, in order.

    Args:
        number: the prompt.
        link: reads how a stored prompt is put together.
        known: a prompt whose parts are known already.

    Raises:
        ValueError: if a prompt refers to a later one.
    """
    pieces: list[list[int]] = []
    keep: int | None = None
    at: int | None = number
    while at is not None and keep != 0:
        if at == known[0]:
            pieces.append(known[1] if keep is None else known[1][:keep])
            break
        parent, shared, suffix = link(at)
        if parent is not None and parent >= at:
            raise ValueError(f"prompt {at} comes before the prompt it begins with")
        pieces.append(suffix if keep is None else suffix[: max(0, keep - shared)])
        keep = shared if keep is None else min(keep, shared)
        at = parent
    return [part for piece in reversed(pieces) for part in piece]


def encoded_messages(
    messages: Sequence[Any], step: Any, record: Encoded, encode: Callable[[Any, Encoded | None], Encoded]
) -> Encoded | None:
    """The messages that a step is rendered to, encoded; None if there are none.

    smolagents makes them from the fields of the step; a step class of the user may show more than its record holds.
    """
    from smolmem.core.encoding.codec import KINDS, original_class  # only callers with live steps need smolagents

    return encode(messages, record if original_class(step) in KINDS else None) if messages else None


def rendered_messages(step: Any) -> list[Any]:
    """The messages that a step is rendered to; none if it cannot be rendered."""
    try:
        return list(step.to_messages())
    except Exception:  # a step that was made by hand may lack fields
        return []
