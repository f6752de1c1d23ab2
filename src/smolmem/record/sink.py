"""What a recorder needs of the world: where its batches go, and what else its agent was given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from smolmem.record import ledger
from smolmem.record.mind import ReminderSink
from smolmem.record.prompt import CutSink
from smolmem.record.values import Batch, Saved


class Sink(ledger.CallSink, Protocol):
    """Where batches and calls go."""

    def save(self, batch: Batch) -> list[Saved]:
        """Saves all of a batch, or raises."""
        ...

    def saved(self, session: str, skip: int) -> list[Saved]:
        """What is saved of a session after its first `skip` events."""
        ...

    @property
    def reminders(self) -> ReminderSink:
        """What agents were reminded of."""
        ...

    @property
    def traces(self) -> CutSink:
        """What views cut."""
        ...

    def number(self, messages: Sequence[Any]) -> int | None:
        """The number of a prompt that `stored` gave."""
        ...

    def stored(self, prompt: int, size: int) -> Sequence[Any]:
        """What a model was sent, as a sequence that is read when it is looked at."""
        ...


class Held(Protocol):
    """Something that an agent was given."""

    def release(self) -> None:
        """Takes it back."""
        ...
