"""The messages of a prompt, left on disk until they are used."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, overload

from smolmem.core.errors import StoreError

log = logging.getLogger("smolmem")


class StoredMessages(Sequence[Any]):
    """The messages that a model was sent, read from the store whenever they are used.

    Replaces the list on a recorded step, so that a long run holds its conversation in RAM once, not once per step.
    Equal to the list it replaces; copies and pickles become that list.
    """

    __slots__ = ("_size", "number", "of_live_step", "source")

    def __init__(self, source: Any, number: int, size: int | None = None) -> None:
        self.source = source
        self.number = number
        self.of_live_step = False
        """Whether an agent holds the step: then an unreadable store must not cost the agent's user an answer."""
        self._size = size

    def __len__(self) -> int:
        return len(self.copy()) if self._size is None else self._size

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.copy()[index]

    def __iter__(self) -> Any:
        return iter(self.copy())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StoredMessages) and (self.source, self.number) == (other.source, other.number):
            return True
        return isinstance(other, (list, StoredMessages)) and len(other) == len(self) and self.copy() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: list[Any]) -> list[Any]:
        return self.copy() + list(other)

    def __radd__(self, other: list[Any]) -> list[Any]:
        return list(other) + self.copy()

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        return list, (self.copy(),)

    def __repr__(self) -> str:
        return repr(self.copy())

    def copy(self) -> list[Any]:
        """The messages as an ordinary list."""
        try:
            messages: list[Any] = self.source.messages(self.number, self.of_live_step)
        except StoreError as error:
            if not self.of_live_step:
                raise
            from smolagents.models import ChatMessage, MessageRole

            log.warning("smolmem: a recorded prompt cannot be read: %s", error)
            text = f"(this message is stored and cannot be read: {error})"
            unread = ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": text}])
            return [unread] * (self._size or 1)
        return messages
