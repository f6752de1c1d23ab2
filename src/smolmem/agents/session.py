"""One list of steps, from one reset to the next, as it is saved.

`ListChanges` compares it with the live list, and remembers what was saved since.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from smolmem.agents.observing import observed_steps
from smolmem.agents.prompting import step_messages
from smolmem.agents.prompting.step_messages import StepMessages
from smolmem.core.encoding import codec
from smolmem.core.encoding.codec import MODEL_INPUT, Encoded, original_class
from smolmem.core.errors import NotFound
from smolmem.core.prompts import Part
from smolmem.core.rows import Batch, Change, RunRow, SessionRow, StoredEntry, StoredSession
from smolmem.core.timeline import Timeline
from smolmem.store.journal import Journal

_OUTPUT = "action_output"


@dataclass(slots=True)
class Fields:
    """The class and the fields of a step when it was saved: the very objects, because equal ones can differ."""

    step_class: Any = None
    values: dict[str, Any] = field(default_factory=dict)
    lists: list[tuple[list[Any], list[Any]]] = field(default_factory=list)
    """Its lists, and what was in them: they are edited in place."""

    @classmethod
    def of(cls, step: Any) -> Fields:
        """The fields of a step as they are now.

        The output of a step is often a variable of the agent: a list that later steps append to is no edit of it.
        """
        values = dict(getattr(step, "__dict__", {}))
        lists = [(item, list(item)) for name, item in values.items() if type(item) is list and name != _OUTPUT]
        return cls(original_class(step), values, lists)

    def are_of(self, step: Any) -> bool:
        """Whether a step still has these fields."""
        now = getattr(step, "__dict__", {})
        return (
            original_class(step) is self.step_class
            and now.keys() == self.values.keys()
            and all(map(operator.is_, now.values(), self.values.values()))
            and all(len(item) == len(then) and all(map(operator.is_, item, then)) for item, then in self.lists)
        )


@dataclass(eq=False)
class Entry:
    """A saved step: its ids, its fields when it was saved, and the messages that it is shown to a model as."""

    step: Any
    id: int
    run: str
    key: str
    prompt: int | None
    rendered: int | None
    messages: StepMessages
    fields: Fields
    sketch: str | None = None
    """Of a step with pictures, which take long to pack: what it was when it was saved, with hashes of their pixels."""


@dataclass
class Draft:
    """A change on its way to the store, with the data that is needed once it is saved."""

    change: Change
    entry: Entry | None
    step: Any
    key: str = ""
    prompt: Sequence[Part] = ()
    messages: StepMessages = field(default_factory=StepMessages)
    fields: Fields = field(default_factory=Fields)
    """The fields of a new step when it was encoded."""


@dataclass
class Session:
    """The saved state of one list of steps."""

    row: SessionRow
    saved_events: int = 0
    runs: dict[int, str] = field(default_factory=dict)
    """The run of each step that is not saved yet, by the step's id()."""
    in_order: bool = False
    """Whether the list is the saved list, perhaps with more steps at its end."""
    shared_events: int = 0
    """How many events it shares with the session that a forked process continues; see `forked`."""
    timeline: Timeline[Entry] = field(default_factory=Timeline)
    prompts: dict[str, tuple[int, Sequence[Part]]] = field(default_factory=dict)
    """The last stored prompt of each kind of step, and its parts."""
    part_ids: dict[str, int] = field(default_factory=dict)
    """The stored parts of prompts, by hash."""
    unsaved: dict[int, Draft] = field(default_factory=dict)
    """The drafts of new steps whose write failed, by the step's id()."""
    unsaved_parts: dict[str, Encoded] = field(default_factory=dict)
    """The parts of the prompts of such steps, by hash."""
    unsaved_shown: dict[int, tuple[Any, StepMessages, list[Encoded]]] = field(default_factory=dict)
    """Steps that cannot be saved, by id(), the messages that the last prompt showed of them, and these encoded."""
    tasks: list[Entry] = field(default_factory=list)
    """The saved steps that are tasks, in order."""
    taken_off: list[Entry] = field(default_factory=list)
    """The steps that were removed last: they come back where the list is sorted or two steps change places."""
    suspects: list[Entry] = field(default_factory=list)
    """The steps that the last prompt shows otherwise than they were saved; they are to be saved again."""
    sent: tuple[list[Any], Sequence[Part]] | None = None
    """The last rendered prompt and its parts, so that it need not be compared word by word."""
    compared: dict[str, list[tuple[StepMessages, Part]]] = field(default_factory=dict)
    """The messages of the last prompt of each kind of step that was compared word by word, and their parts."""
    asked: tuple[list[Any], Sequence[Part]] | None = None
    """The last prompt that a model was given; callbacks can render others, and edit those."""
    accepted_at: int = 0
    """The last edit of any step when the list was saved; see `observed_steps`."""
    glance_from: int = 0
    """The position where the next glance at older steps begins."""
    unobservable: bool = False
    """Whether the class of a step does not allow to notice its edits."""

    @property
    def entries(self) -> list[Entry]:
        """The saved steps, in order."""
        return self.slice(0, None)

    def slice(self, start: int, stop: int | None) -> list[Entry]:
        """The saved steps at some positions."""
        return [self.timeline.latest[step] for step in self.timeline.steps[start:stop]]

    @property
    def system(self) -> Entry | None:
        """The saved system prompt."""
        return None if self.timeline.system is None else self.timeline.latest[self.timeline.system]

    def __len__(self) -> int:
        return len(self.timeline.steps)

    def assign_runs(self, steps: Sequence[Any], run_of: Callable[[Any], str]) -> None:
        """Notes which run each new step belongs to, while that is known; saving it may take long."""
        saved = () if self.in_order else {id(entry.step) for entry in [*self.entries, *self.taken_off]}
        for step in steps[len(self) :] if self.in_order else steps:
            if id(step) not in saved and id(step) not in self.runs:
                self.runs[id(step)] = run_of(step)

    def run_of(self, step: Any) -> str:
        """The run of a step that is not saved yet, or that is on the list a second time."""
        known = self.runs.get(id(step))
        return known or next(entry.run for entry in self.entries if entry.step is step)

    # --- prompts ---------------------------------------------------------------------------------------------------

    def render(
        self, system: Any, steps: Sequence[Any], encode: Callable[[Any], Encoded]
    ) -> tuple[list[Any], list[Part]]:
        """The messages of all steps, and the parts of a prompt that they are.

        Setting a field is noticed, but not an edit of the object in it, such as a tool call. A step that does not look
        as it was saved is found here, for each prompt.
        """
        saved = {id(entry.step): entry for entry in self.entries}
        if self.system is not None:
            saved[id(self.system.step)] = self.system
        messages, parts, used, self.suspects = list[Any](), list[Part](), list[StepMessages](), []
        keeps = step_messages.are_made_as_known()
        for step in (system, *steps):
            entry = saved.get(id(step))
            unchanged = entry.messages.for_prompt(step) if keeps and entry is not None else None
            shown = step.to_messages() if unchanged is None else unchanged
            messages += shown
            if entry is None:
                parts += self._unsaved_parts(step, shown, encode)
            elif unchanged is not None:
                used.append(entry.messages)
            elif not entry.messages.look_like(shown):
                self.suspects.append(entry)
                parts.append(encode(shown))
                continue
            if entry is not None and shown:
                parts.append(encode(shown) if entry.rendered is None else entry.rendered)
        if step_messages.restore_edited(used):
            return self.render(system, steps, encode)
        return messages, parts

    def _unsaved_parts(self, step: Any, shown: list[Any], encode: Callable[[Any], Encoded]) -> list[Encoded]:
        known = self.unsaved_shown.get(id(step))
        if known is None or not known[1].look_like(shown):
            known = step, StepMessages.keeping(shown), [encode(message) for message in shown]
            self.unsaved_shown[id(step)] = known
        return known[2]

    def asking(self, messages: Sequence[Any]) -> None:
        """A model is about to be given a prompt."""
        self.asked = self.sent if self.sent is not None and _are_these(messages, self.sent[0]) else None

    def parts_sent(self, messages: Sequence[Any]) -> Sequence[Part] | None:
        """The parts of a prompt, if it is the last one that a model was given."""
        return None if self.asked is None or not _are_these(messages, self.asked[0]) else self.asked[1]

    def parts_of(self, kind: str, messages: Sequence[Any], encode: Callable[[Any], Encoded]) -> list[Part]:
        """The parts of any other prompt; only messages that the last one for this kind of step lacks are encoded."""
        before, after = self.compared.get(kind, []), list[tuple[StepMessages, Part]]()
        for place, message in enumerate(messages):
            if place < len(before) and before[place][0].look_like([message]):
                known, part = before[place]
                after.append((known, part if isinstance(part, int) else self.part_ids.get(part.key, part)))
            else:
                after.append((StepMessages.keeping([message]), encode(message)))
        self.compared[kind] = after
        return [part for _, part in after]

    def shared(self, part: Encoded) -> Part:
        """A part that is stored, or waits to be: prompts of steps that cannot be saved repeat each other, too."""
        return self.part_ids.get(part.key) or self.unsaved_parts.setdefault(part.key, part)

    # --- saving ----------------------------------------------------------------------------------------------------

    def batch(
        self, runs: Sequence[RunRow], results: Sequence[tuple[str, str, Encoded]], changes: list[Change]
    ) -> Batch:
        """What is to be saved."""
        return Batch(self.row, not self.saved_events, runs, results, changes, self.shared_events)

    def observed(self, entry: Entry) -> Entry:
        """A saved step whose edits are noticed from now on."""
        self.unobservable |= not observed_steps.observe(entry.step)
        return entry

    def drop_removed(self) -> None:
        """Forgets steps that are not on the list any more, unless they may come back."""
        kept = {*self.timeline.steps, self.timeline.system, *(entry.id for entry in self.taken_off)}
        self.timeline.latest = {step: entry for step, entry in self.timeline.latest.items() if step in kept}

    def count_tasks(self, start: int) -> None:
        """Notes the tasks behind a position, so that they need not be gathered for every prompt."""
        kept = self.tasks if start else []
        self.tasks = [*kept, *(entry for entry in self.slice(start, None) if codec.kind_of(entry.step) == "task")]

    # --- loading, forking, leaving ---------------------------------------------------------------------------------

    @classmethod
    def load(cls, stored: StoredSession, parts: Callable[[int], list[int]]) -> Session:
        """The session that another process saved; `parts` reads the parts of a prompt."""
        session = cls(stored.row, saved_events=stored.events, in_order=True)
        for position, entry in enumerate(stored.entries):
            session.timeline.apply("insert", entry.id, position, session._loaded(entry))
        if stored.system is not None:
            session.timeline.apply("insert", stored.system.id, None, session._loaded(stored.system))
        for entry in reversed(stored.entries):
            kind = codec.kind_of(entry.step)
            if entry.prompt is not None and kind not in session.prompts:
                session.prompts[kind] = (entry.prompt, parts(entry.prompt))
        session.accepted_at = observed_steps.latest_edit()
        session.count_tasks(0)
        return session

    def _loaded(self, stored: StoredEntry) -> Entry:
        step, messages = stored.step, StepMessages.of(stored.step)
        if stored.prompt is not None and MODEL_INPUT in vars(step):
            vars(step)[MODEL_INPUT].of_live_step = True
        return self.observed(
            Entry(step, stored.id, stored.run, stored.key, stored.prompt, stored.rendered, messages, Fields.of(step))
        )

    def forked(self, row: SessionRow) -> Session:
        """The session of a forked process, which may continue the list: what was saved of it is shared."""
        of, at, shared = self.row["fork_of"], self.row["fork_at"], self.shared_events
        if self.saved_events:
            of, at, shared = self.row["id"], None, self.saved_events
        row = {**row, "fork_of": of, "fork_at": at}
        return replace(
            self, row=row, shared_events=shared, saved_events=0, runs={}, unsaved={}, unsaved_parts={}, unsaved_shown={}
        )

    def find_fork(self, journal: Journal) -> bool:
        """Looks up the event at which it forked; false if another process has erased some of what is shared."""
        if self.row["fork_of"] is not None and self.row["fork_at"] is None:
            self.row["fork_at"] = journal.event_number(self.row["fork_of"], self.shared_events)
            if not self._is_listed_in(journal):  # events that came later took the place of erased ones
                self.row["fork_at"] = None
        return self.row["fork_of"] is None or self.row["fork_at"] is not None

    def is_stored_in(self, journal: Journal) -> bool:
        """Whether all that was saved is still in the store: another process can have erased some of it."""
        has_own = self.find_fork(journal) and journal.has_events(self.row["id"], self.saved_events)
        return has_own and (self.row["fork_of"] is None or self._is_listed_in(journal))

    def _is_listed_in(self, journal: Journal) -> bool:
        """Whether the store has the same list, with what is shared."""
        try:
            return journal.timeline(self.row).steps == self.timeline.steps
        except NotFound:
            return False

    def close(self) -> None:
        """Restores the classes of the steps; their prompts stay on disk until they are used."""
        for entry in self.entries if self.system is None else [self.system, *self.entries]:
            observed_steps.unobserve(entry.step)


def _are_these(messages: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(messages) == len(others) and all(map(operator.is_, messages, others))
