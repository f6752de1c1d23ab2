"""What an agent is reminded of: put behind its task in every prompt, and nowhere else.

It is not a step: the list of steps stays the user's, and an agent plans as if nothing were there. It is a message of
its own, from the user's side, never part of the system prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from smolagents.memory import TaskStep

from smolmem.record.session import Entry


class Reminder(Protocol):
    """Messages that remind an agent, and the content they are kept as."""

    @property
    def content(self) -> int:
        """The number of the content."""
        ...

    @property
    def messages(self) -> list[Any]:
        """What the model is shown."""
        ...


class ReminderSink(Protocol):
    """Where reminders are kept."""

    def of(self, step: int) -> Reminder | None:
        """What was shown with a task."""
        ...


Remind = Callable[[Entry], "Reminder | None"]


class Mind:
    """The reminders of one agent."""

    def __init__(self, sink: ReminderSink) -> None:
        self.remind: Remind | None = None
        self._sink = sink
        self._known: dict[int, Reminder | None] = {}

    def put(
        self, messages: list[Any], parts: list[int] | None, entries: Sequence[Entry], fresh: Callable[[], str | None]
    ) -> tuple[list[Any], list[int] | None]:
        """A prompt with each task's reminder behind it; `fresh` tells the run that has not acted yet."""
        tasks = [(entry, self._of(entry, fresh)) for entry in entries if isinstance(entry.step, TaskStep)]
        if not any(reminder for _, reminder in tasks):
            return messages, parts
        at = place = 0
        for entry, reminder in tasks:
            own = entry.step.to_messages()[-1]
            at = next((at + i for i, message in enumerate(messages[at:], 1) if message == own), 0)
            if not at:
                return messages, None
            if parts is not None and entry.shown is not None:
                place = parts.index(entry.shown, place) + 1
            if reminder is not None:
                messages = messages[:at] + reminder.messages + messages[at:]
                at += len(reminder.messages)
                parts = None if parts is None else [*parts[:place], reminder.content, *parts[place:]]
        return messages, parts

    def _of(self, entry: Entry, fresh: Callable[[], str | None]) -> Reminder | None:
        if entry.id not in self._known:
            found = self._sink.of(entry.id)
            if found is None and self.remind is not None and entry.run == fresh():
                found = self.remind(entry)
            self._known[entry.id] = found
        return self._known[entry.id]
