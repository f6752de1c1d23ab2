"""What the model would be sent next, before it is: how many tokens, what each view cuts, what must be read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smolagents.memory import TaskStep

from smolmem.record.prompt import Part, Shown, flat, parts_of
from smolmem.record.recorder import Recorder
from smolmem.record.tokens import size

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Viewed:
    """What a view leaves: tokens after it, and how many of them it has cut."""

    name: str
    tokens: int
    cut: int


@dataclass(frozen=True)
class Preview:
    """A prompt that was not sent."""

    messages: list[Any]
    tokens: int
    whole: int
    """Without any view."""
    views: list[Viewed]
    read_again: int
    """Tokens behind what the prompt has in common with the one before."""

    def __rich__(self) -> RenderableType:
        from smolmem.record import show

        return show.preview(self)


def preview(recorder: Recorder, task: str | None) -> Preview:
    """The prompt that the agent's next call would send; with a task, that of the first call of `run(task)`."""
    mind = recorder.mind
    lens, before = mind.lens.trial(), mind.lens.sent
    shown = lens.each(mind.unseen(), mind.session_id) if task is None else lens.each(_first(recorder, task))
    counts = [lens.count(parts) for _, parts in shown]
    views = [Viewed(name, now, then - now) for (name, _), then, now in zip(shown[1:], counts, counts[1:], strict=False)]
    messages = flat(shown[-1][1])
    same = next(
        (place for place, (now, then) in enumerate(zip(messages, before, strict=False)) if now != then),
        min(len(messages), len(before)),
    )
    known = lens.tokens.count(size(messages[:same])) if same else 0
    return Preview(messages, counts[-1], counts[0], views, max(0, counts[-1] - known))


def look(recorder: Recorder, views: Sequence[Any]) -> None:
    """Puts views before an agent's memory, once each has seen the system prompt: what can never work is said at once.

    Raises:
        BadValue: a view cannot do with so little; the earlier ones stay.
    """
    trial = recorder.mind.lens.trial()
    trial.views = views
    trial.through(_parts([recorder.agent.memory.system_prompt]))
    recorder.mind.lens.views = views


def _first(recorder: Recorder, task: str) -> list[Part]:
    return _parts([recorder.agent.memory.system_prompt, *recorder.standing.anew(), TaskStep(task=task)])


def _parts(steps: list[Any]) -> list[Part]:
    messages = [message for step in steps for message in step.to_messages()]
    return parts_of(messages, [Shown(step) for step in steps], summary=False)
