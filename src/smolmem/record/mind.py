"""What goes through an agent's mind: its steps as a prompt, with what it is reminded of, seen through its views.

A reminder is not a step: the list of steps stays the user's. It is a message of its own behind the task, from the
user's side, never part of the system prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Protocol

from smolagents import MultiStepAgent
from smolagents.memory import TaskStep

from smolmem.record.codec import Encoded
from smolmem.record.prompt import CutSink, Lens, Part, Shown, flat, parts_of, taken_over
from smolmem.record.session import Entry, Session


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


class Owner(Protocol):
    """The recorder whose agent's mind this is."""

    agent: Any

    @property
    def session(self) -> Session:
        """The list that is being recorded."""
        ...

    def settle(self) -> None:
        """Saves what may have been changed by others than the agent."""
        ...

    def fresh(self) -> str | None:
        """The run that is being worked on, if it has not acted yet."""
        ...

    @property
    def working(self) -> bool:
        """Whether a run goes on: otherwise somebody only wants to see the messages."""
        ...

    def guard(self) -> Any:
        """Counts what goes wrong, and goes on."""
        ...


Remind = Callable[[Entry], "Reminder | None"]


class Mind:
    """Reminders and views of one agent."""

    def __init__(self, owner: Owner, reminders: ReminderSink, cuts: CutSink) -> None:
        self.remind: Remind | None = None
        self.lens = Lens(owner.agent, cuts)
        self._owner = owner
        self._sink = reminders
        self._known: dict[int, Reminder | None] = {}
        self._original: Callable[..., list[Any]] = list
        self._rendered: tuple[list[Any], Sequence[int | Encoded]] | None = None

    def wrap(self, original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """`write_memory_to_messages`, with reminders, through views.

        Notes which saved messages a prompt consists of, so that it need not be compared word by word.
        """
        self.lens.views, original = taken_over(original)
        self._original = original
        stock = getattr(original, "__func__", None) is MultiStepAgent.write_memory_to_messages

        @wraps(original)
        def render(*args: Any, **kwargs: Any) -> list[Any]:
            self._owner.settle()
            messages = original(*args, **kwargs)
            due: list[tuple[Entry, Reminder]] = []
            with self._owner.guard():
                due = self._due()
            if due or self.lens.hides:
                summary = bool(args[0] if args else kwargs.get("summary_mode", False))
                lens = self.lens if self._owner.working else self.lens.trial()
                parts = lens.through(_put(self.parts(messages, summary=summary), due), self.session_id)
                messages = flat(parts)
                self._rendered = (messages, [self.lens.encoded(part) for part in parts])
                return list(messages)
            known = self._owner.session.parts(len(messages)) if stock and not args and not kwargs else None
            self._rendered = None if known is None else (list(messages), known)
            if self._owner.working:
                self.lens.sent = messages
            return messages

        vars(render)["lens"] = self.lens
        return render

    def unseen(self) -> list[Part]:
        """The next prompt before any view; nothing is recalled for it that was not before."""
        known = [(entry, reminder) for entry in self._owner.session.entries if (reminder := self._known.get(entry.id))]
        return _put(self.parts(self._original(), summary=False), known)

    def parts(self, messages: list[Any], *, summary: bool) -> list[Part]:
        """A rendered prompt, taken apart."""
        memory, session = self._owner.agent.memory, self._owner.session
        saved = {id(entry.step): entry for entry in session.entries}
        if session.system is not None:
            saved[id(session.system.step)] = session.system
        shown = [_shown(step, saved.get(id(step))) for step in (memory.system_prompt, *memory.steps)]
        return parts_of(messages, shown, summary=summary)

    def recognise(self, messages: Sequence[Any]) -> Sequence[int | Encoded] | None:
        """The parts of a prompt, if it is the one that was rendered last."""
        if self._rendered is None or self._rendered[0] != messages:
            return None
        return self._rendered[1]

    def forget(self) -> None:
        """Another list takes the place of the one that was rendered."""
        self._rendered = None

    @property
    def session_id(self) -> str:
        """The list that is shown."""
        return self._owner.session.row["id"]

    def _due(self) -> list[tuple[Entry, Reminder]]:
        tasks = [entry for entry in self._owner.session.entries if isinstance(entry.step, TaskStep)]
        return [(entry, reminder) for entry in tasks if (reminder := self._of(entry)) is not None]

    def _of(self, entry: Entry) -> Reminder | None:
        if entry.id not in self._known:
            found = self._sink.of(entry.id)
            if found is None and self.remind is not None and entry.run == self._owner.fresh():
                found = self.remind(entry)
            self._known[entry.id] = found
        return self._known[entry.id]


def _shown(step: Any, entry: Entry | None) -> Shown:
    return Shown(step) if entry is None else Shown(step, entry.id, True, entry.shown, entry.messages)


def _put(parts: list[Part], due: list[tuple[Entry, Reminder]]) -> list[Part]:
    """A prompt with each task's reminder behind it."""
    put, left = list[Part](), list(due)
    for part in parts:
        put.append(part)
        for entry, reminder in left[:1]:
            found = part.id == entry.id if part.recorded else part.messages[-1:] == entry.step.to_messages()[-1:]
            if found:
                put.append(Part(reminder.messages, "reminder", entry.step, part.id, part.recorded, reminder.content))
                del left[0]
    return put
