"""How an agent's memory becomes a prompt: its steps, the reminders behind their tasks, seen through its views.

A reminder is not a step: the list of steps stays the user's. It is a message of its own behind the task, with the
role of the user, never part of the system prompt.

`PromptRenderer` serves an agent that is recorded. `without_store` serves an agent that only has views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from smolmem.agents import compat
from smolmem.agents.prompting.prompt_parts import ListedStep, Part, messages_of, parts_of
from smolmem.agents.prompting.step_messages import renders_as_documented
from smolmem.agents.prompting.view_chain import View, ViewChain
from smolmem.agents.session import Entry
from smolmem.agents.step_recorder import StepRecorder
from smolmem.core.encoding.codec import Encoded
from smolmem.core.values import Reminder
from smolmem.store.journal import Journal

Remind = Callable[[Entry], "Reminder | None"]


class PromptRenderer:
    """Renders the prompts of one recorded agent."""

    def __init__(self, agent: Any, journal: Journal, steps: StepRecorder, follow_agent: Callable[[], None]) -> None:
        self.remind: Remind | None = None
        self.chain = ViewChain(agent, journal.trims)
        self._agent = agent
        self._journal = journal
        self._steps = steps
        self._follow_agent = follow_agent
        self._reminders: dict[int, Reminder | None] = {}
        self._original: Callable[..., list[Any]] = list

    @property
    def session_id(self) -> str:
        """The session that is rendered."""
        return self._steps.session.row["id"]

    def wrap(self, original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """`write_memory_to_messages`, with reminders and views.

        Notes which saved messages a prompt consists of, so that it need not be compared word by word.
        """
        self.chain.views, original = _views_before(original)
        self._original = original
        is_of_class = isinstance(original, compat.ClassMethod)

        @wraps(original)
        def render(*args: Any, **kwargs: Any) -> list[Any]:
            with self._steps.guard():
                self._follow_agent()
            self._steps.save_edits()
            messages: list[Any] | None = None
            known: Sequence[int | Encoded] | None = None
            due: list[tuple[Entry, Reminder]] = []
            with self._steps.guard():
                if is_of_class and not args and not kwargs and renders_as_documented(self._agent):
                    messages, known = self._messages_and_parts()
            if messages is None:
                messages = original(*args, **kwargs)
            with self._steps.guard():
                due = self._due()
            if due or self.chain.views:
                summary = bool(args[0] if args else kwargs.get("summary_mode", False))
                messages, known = self._shown(messages, due, summary=summary)
            elif self._steps.runs.is_working:
                self.chain.sent = messages
            is_wrapped = vars(self._agent).get("write_memory_to_messages") is not render  # by one who may edit it
            self._steps.session.sent = None if known is None or is_wrapped else (list(messages), known)
            return messages

        vars(render)["chain"] = self.chain
        return render

    def _messages_and_parts(self) -> tuple[list[Any], Sequence[int | Encoded]]:
        memory, session = self._agent.memory, self._steps.session
        rendered = session.render(memory.system_prompt, memory.steps, self._journal.encode)
        if session.suspects:
            self._steps.changed(appended=True)
            rendered = session.render(memory.system_prompt, memory.steps, self._journal.encode)
        return rendered

    def _shown(
        self, messages: list[Any], due: list[tuple[Entry, Reminder]], *, summary: bool
    ) -> tuple[list[Any], Sequence[int | Encoded]]:
        chain = self.chain if self._steps.runs.is_working else self.chain.preview()
        parts = chain.show(_with_reminders(self._parts(messages, summary=summary), due), self.session_id)
        return messages_of(parts), [self.chain.encoded(part, self._journal.encode) for part in parts]

    def asking(self, messages: Sequence[Any]) -> None:
        """A model is about to be given a prompt."""
        with self._steps.guard():
            self._steps.session.asking(messages)

    def parts_before_views(self) -> list[Part]:
        """The next prompt before any view; nothing new is recalled for it."""
        known = [(entry, found) for entry in self._steps.session.entries if (found := self._reminders.get(entry.id))]
        return _with_reminders(self._parts(self._original(), summary=False), known)

    def _parts(self, messages: list[Any], *, summary: bool) -> list[Part]:
        memory, session = self._agent.memory, self._steps.session
        saved = {id(entry.step): entry for entry in session.entries}
        if session.system is not None:
            saved[id(session.system.step)] = session.system
        listed = [_listed(step, saved.get(id(step))) for step in (memory.system_prompt, *memory.steps)]
        return parts_of(messages, listed, summary=summary)

    def _due(self) -> list[tuple[Entry, Reminder]]:
        tasks = self._steps.session.tasks
        return [(entry, reminder) for entry in tasks if (reminder := self._reminder(entry)) is not None]

    def _reminder(self, entry: Entry) -> Reminder | None:
        if entry.id not in self._reminders:
            found = self._journal.reminders.of(entry.id)
            if found is None and self.remind is not None and entry.run == self._steps.fresh_run():
                found = self.remind(entry)
            self._reminders[entry.id] = found
        return self._reminders[entry.id]


def _listed(step: Any, entry: Entry | None) -> ListedStep:
    return ListedStep(step) if entry is None else ListedStep(step, entry.id, True, entry.rendered, entry.messages)


def _with_reminders(parts: list[Part], due: list[tuple[Entry, Reminder]]) -> list[Part]:
    """A prompt with each task's reminder behind the task."""
    shown, left = list[Part](), list(due)
    for part in parts:
        shown.append(part)
        for entry, reminder in left[:1]:
            found = part.id == entry.id if part.recorded else part.messages[-1:] == entry.step.to_messages()[-1:]
            if found:
                shown.append(Part(reminder.messages, "reminder", entry.step, part.id, part.recorded, reminder.content))
                del left[0]
    return shown


# --- without a store -------------------------------------------------------------------------------------------------


def chain_of(agent: Any) -> ViewChain:
    """The view chain of an agent; one is put in place if it has none."""
    chain = getattr(agent.write_memory_to_messages, "chain", None)
    return chain if isinstance(chain, ViewChain) else without_store(agent)


def without_store(agent: Any) -> ViewChain:
    """Puts a view chain before the memory of an agent that is not recorded."""
    chain, numbers = ViewChain(agent), _StepNumbers()

    def wrap(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def render(summary_mode: bool = False) -> list[Any]:
            """The memory as messages, seen through the views."""
            messages = original(summary_mode=summary_mode)
            listed = [ListedStep(agent.memory.system_prompt), *numbers.of(agent.memory.steps)]
            parts = parts_of(messages, listed, summary=summary_mode)
            return messages_of(chain.show(parts, str(numbers.lists)))

        vars(render).update(chain=chain, original=original)
        return render

    compat.Patches().rendering(agent, wrap)
    return chain


def _views_before(render: Callable[..., list[Any]]) -> tuple[list[View], Callable[..., list[Any]]]:
    """The views that were put in place without a store, and how the memory is rendered without them."""
    chain, original = getattr(render, "chain", None), getattr(render, "original", render)
    return (chain.views if isinstance(chain, ViewChain) else []), original


class _StepNumbers:
    """Numbers the steps of a list in the order they come, for as long as it is the same list."""

    def __init__(self) -> None:
        self.lists = 0
        self._steps: dict[int, tuple[Any, int]] = {}  # by id(), which stays theirs while they are held here

    def of(self, steps: Sequence[Any]) -> list[ListedStep]:
        """The steps of a list, each with its number."""
        if not any(id(step) in self._steps for step in steps):
            self._steps, self.lists = {}, self.lists + 1
        for step in steps:
            self._steps.setdefault(id(step), (step, len(self._steps)))
        return [ListedStep(step, self._steps[id(step)][1]) for step in steps]
