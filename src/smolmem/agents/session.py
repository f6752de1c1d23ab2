"""One list of steps, from one reset to the next: the saved state, and the difference to the live list.

`compare` finds the changes that turn the saved list into the list as it is now; steps are compared by identity.
`accept` remembers the changes once they are saved. The changes of a failed write are found again by the next
comparison; a step that has not changed since is not encoded again. The cost of a comparison does not depend on the
length of the list, unless something other than an append was done to it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

from smolmem.agents.observing import observed_steps
from smolmem.agents.prompting import step_messages
from smolmem.agents.prompting.step_messages import StepMessages
from smolmem.core import prompts
from smolmem.core.encoding import codec
from smolmem.core.encoding.codec import MODEL_INPUT, Encoded
from smolmem.core.errors import NotFound
from smolmem.core.injected import Injected
from smolmem.core.prompts import Part
from smolmem.core.rows import Act, Batch, Change, RunRow, Saved, SessionRow, SharedPrompt, StoredEntry, StoredSession
from smolmem.core.timeline import Timeline
from smolmem.store.journal import Journal

Care = Literal["glance", "fields", "inside"]
"""How closely to look for edits of saved steps. Set fields are always noticed. `glance` looks into the lists of a few
steps, `fields` into all lists and at what a model is shown of each step, and `inside` compares everything."""

_OUTPUT = "action_output"
_GLANCE = 8
"""How many older steps are checked at each event, in turn, for lists edited in place."""


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
    fields: dict[str, Any]


@dataclass
class Draft:
    """A change on its way to the store, with the data that `accept` needs once it is saved."""

    change: Change
    entry: Entry | None
    step: Any
    key: str = ""
    prompt: Sequence[Part] = ()
    messages: StepMessages = field(default_factory=StepMessages)
    fields: dict[str, Any] = field(default_factory=dict)
    """The fields of a new step when it was encoded."""


class Encode(Protocol):
    """Encodes a value; `made_from` is the record that the value was made from."""

    def __call__(self, value: Any, made_from: Encoded | None = None) -> Encoded:
        """See `Contents.encode`."""


class Surroundings(NamedTuple):
    """The functions that a comparison needs.

    Args:
        stored: the id of a prompt that is stored already.
        recognised: the parts of a prompt that was rendered from saved steps, if it is one.
        variables: the agent's variables after a new step, if it has any.
        encode: encodes a value.
    """

    stored: Callable[[Sequence[Any]], int | None]
    recognised: Callable[[Sequence[Any]], Sequence[Part] | None]
    variables: Callable[[Any], Encoded | None]
    encode: Encode


@dataclass
class Session:
    """The saved state of one list of steps."""

    row: SessionRow
    saved_events: int = 0
    in_doubt: Sequence[Draft] | None = None
    """The drafts of the last batch, while it is unknown whether it was saved."""
    runs: dict[int, str] = field(default_factory=dict)
    """The run of each step that is not saved yet, by the step's id()."""
    in_order: bool = False
    """Whether the list is the saved list, perhaps with more steps at its end."""
    shared_events: int = 0
    """How many events it shares with the session that a forked process continues; see `forked`."""
    _timeline: Timeline[Entry] = field(default_factory=Timeline)
    _prompts: dict[str, tuple[int, Sequence[Part]]] = field(default_factory=dict)
    _part_ids: dict[str, int] = field(default_factory=dict)
    _unsaved: dict[int, Draft] = field(default_factory=dict)
    _unsaved_parts: dict[str, Encoded] = field(default_factory=dict)
    _tasks: list[Entry] = field(default_factory=list)
    _suspects: list[Entry] = field(default_factory=list)
    _compared_at: int = 0
    _accepted_at: int = 0
    _glance_from: int = 0
    _unobservable: bool = False

    @property
    def entries(self) -> list[Entry]:
        """The saved steps, in order."""
        return self._slice(0, None)

    @property
    def tasks(self) -> list[Entry]:
        """The saved steps that are tasks, in order."""
        return self._tasks

    @property
    def system(self) -> Entry | None:
        """The saved system prompt."""
        return None if self._timeline.system is None else self._timeline.latest[self._timeline.system]

    def __len__(self) -> int:
        return len(self._timeline.steps)

    def _slice(self, start: int, stop: int | None) -> list[Entry]:
        return [self._timeline.latest[step] for step in self._timeline.steps[start:stop]]

    # --- comparing -------------------------------------------------------------------------------------------------

    def assign_runs(self, steps: Sequence[Any], run_of: Callable[[Any], str]) -> None:
        """Notes which run each new step belongs to, while that is known; saving it may take long."""
        saved = () if self.in_order else {id(entry.step) for entry in self.entries}
        for step in steps[len(self) :] if self.in_order else steps:
            if id(step) not in saved and id(step) not in self.runs:
                self.runs[id(step)] = run_of(step)

    def compare(
        self, steps: Sequence[Any], system: Any, surroundings: Surroundings, now: float, care: Care = "glance"
    ) -> list[Draft]:
        """The changes that turn the saved list into `steps`."""
        self._surroundings, self._now, self._compared_at = surroundings, now, observed_steps.latest_edit()
        if care == "inside":
            self._unsaved = {}
        start, stop = (len(self), 0) if self.in_order else _common(self.entries, steps)
        gone = self._slice(start, len(self) - stop)
        drafts = [self._removed(entry, start + i) for i, entry in reversed(list(enumerate(gone)))]
        moved = {id(entry.step): entry for entry in gone}
        for position in range(start, len(steps) - stop):
            drafts.append(self._inserted(steps[position], position, moved, last=not stop))
        for entry in self._perhaps_edited(care):
            if entry not in gone and (draft := self._revised(entry, entry.step)) is not None:
                drafts.append(draft)
        if drafts or len(self):
            drafts = self._system_changes(system, drafts) + drafts
        return drafts

    def _perhaps_edited(self, care: Care) -> Iterable[Entry]:
        if care == "inside":
            return self.entries
        if care == "fields" or self._unobservable or observed_steps.edited_since(self._accepted_at):
            looked_at = self.entries
        else:
            looked_at = self._slice(self._glance_from, self._glance_from + _GLANCE)
        suspects, self._suspects = self._suspects, []
        if care == "fields":
            suspects = [entry for entry in looked_at if not _shows_the_same(entry)]
        return [*suspects, *(entry for entry in looked_at if entry not in suspects and not _same(entry))]

    def _removed(self, entry: Entry, position: int) -> Draft:
        return Draft(Change("remove", entry.run, self._now, position, entry.id), entry, entry.step)

    def _inserted(self, step: Any, position: int, moved: dict[int, Entry], *, last: bool) -> Draft:
        entry = moved.pop(id(step), None)
        if entry is not None:
            change = Change("insert", entry.run, self._now, position, entry.id, prompt=entry.prompt, last=last)
            return Draft(change, entry, step)
        known = self._unsaved.get(id(step))
        if known is not None and _has_fields(step, known.fields):  # an attempt to save it failed
            return replace(known, change=known.change._replace(position=position, last=last))
        draft = self._written("insert", step, self.runs[id(step)], position=position, last=last)
        draft.fields = _fields(step)
        self._unsaved[id(step)] = draft
        return draft

    def _revised(self, entry: Entry, step: Any) -> Draft | None:
        draft = self._written("revise", step, entry.run, entry=entry)
        if draft.key == entry.key and draft.change.prompt == entry.prompt:
            entry.step, entry.fields = step, _fields(step)
            return None
        return draft

    def _system_changes(self, system: Any, drafts: list[Draft]) -> list[Draft]:
        if self.system is None:
            return [self._written("insert", system, drafts[0].change.run)]
        if self.system.step is system and _same(self.system):
            return []
        draft = self._revised(self.system, system)
        return [] if draft is None else [draft]

    def _written(
        self,
        act: Act,
        step: Any,
        run: str,
        *,
        position: int | None = None,
        entry: Entry | None = None,
        last: bool = True,
    ) -> Draft:
        encoded = self._surroundings.encode(step)
        parts: Sequence[Part] = ()
        prompt: SharedPrompt | int | None = None
        if encoded.model_input is not None:
            prompt = self._surroundings.stored(encoded.model_input)
            if prompt is None:
                parts = self._parts_of(encoded.model_input)
                prompt = prompts.share(parts, len(encoded.model_input), self._prompts.values())
        messages = StepMessages.of(step)
        variables = self._surroundings.variables(step) if entry is None else None
        change = Change(
            act=act,
            run=run,
            at=self._now,
            position=position,
            step=None if entry is None else entry.id,
            encoded=encoded,
            facts=codec.stored_facts(step, encoded),
            rendered=prompts.encoded_messages(messages.messages, step, encoded, self._surroundings.encode),
            prompt=prompt,
            last=last,
            variables=variables,
            sources=step.sources if entry is None and isinstance(step, Injected) else (),
        )
        return Draft(change, entry, step, encoded.key, parts, messages)

    # --- prompts ---------------------------------------------------------------------------------------------------

    def render(self, system: Any, steps: Sequence[Any], encode: Encode) -> tuple[list[Any], list[Part]]:
        """The messages of all steps, and the parts of a prompt that they are.

        Setting a field is noticed, but not an edit of the object in it, such as a tool call. A step that does not look
        as it was saved is found here, for each prompt.
        """
        saved = {id(entry.step): entry for entry in self.entries}
        if self.system is not None:
            saved[id(self.system.step)] = self.system
        messages, parts, self._suspects = list[Any](), list[Part](), []
        keeps = step_messages.are_made_as_known()
        for step in (system, *steps):
            entry = saved.get(id(step))
            unchanged = entry.messages.for_prompt(step) if keeps and entry is not None else None
            shown = step.to_messages() if unchanged is None else unchanged
            messages += shown
            if entry is None:
                parts += map(encode, shown)
            elif unchanged is None and not entry.messages.look_like(shown):
                self._suspects.append(entry)
                parts.append(encode(shown))
            elif shown:
                parts.append(encode(shown) if entry.rendered is None else entry.rendered)
        return messages, parts

    @property
    def has_suspects(self) -> bool:
        """Whether steps looked otherwise in the last prompt than when they were saved; they are to be saved again."""
        return bool(self._suspects)

    def _parts_of(self, messages: Sequence[Any]) -> Sequence[Part]:
        known = self._surroundings.recognised(messages)
        parts = [self._surroundings.encode(message) for message in messages] if known is None else known
        return [part if isinstance(part, int) else self._shared(part) for part in parts]

    def _shared(self, part: Encoded) -> Part:
        """A part that is stored, or waits to be: prompts of steps that cannot be saved repeat each other, too."""
        return self._part_ids.get(part.key) or self._unsaved_parts.setdefault(part.key, part)

    def batch(
        self, runs: Sequence[RunRow], results: Sequence[tuple[str, str, Encoded]], changes: list[Change]
    ) -> Batch:
        """What is to be saved."""
        return Batch(self.row, not self.saved_events, runs, results, changes, self.shared_events)

    # --- what was saved --------------------------------------------------------------------------------------------

    def accept(self, drafts: Sequence[Draft], saved: Sequence[Saved], stored: Callable[[int, int], Any]) -> None:
        """Remembers changes that are saved, with the ids they were given."""
        before, appended, removed = len(self), True, False
        for draft, ids in zip(drafts, saved, strict=True):
            act, removed = draft.change.act, removed or draft.change.act == "remove"
            appended &= act == "insert" and draft.change.last
            moved = act == "remove" or draft.change.encoded is None
            self._timeline.apply(
                act, ids.step, draft.change.position, None if moved else self._entry(draft, ids, stored)
            )
        if removed:
            kept = {*self._timeline.steps, self._timeline.system}
            self._timeline.latest = {step: entry for step, entry in self._timeline.latest.items() if step in kept}
        self._count(before if appended else 0)
        self.in_order = True
        self.saved_events += len(drafts)
        done = {id(draft.step) for draft in drafts}
        self.runs = {key: run for key, run in self.runs.items() if key not in done}
        self._unsaved, self._unsaved_parts = {}, {}
        self._accepted_at = self._compared_at
        self._glance_from = (self._glance_from + _GLANCE) % max(len(self), 1)

    def _entry(self, draft: Draft, ids: Saved, stored: Callable[[int, int], Any]) -> Entry:
        change, step = draft.change, draft.step
        if isinstance(change.prompt, SharedPrompt) and ids.prompt is not None:
            vars(step)[MODEL_INPUT] = stored(ids.prompt, change.prompt.size)
            vars(step)[MODEL_INPUT].of_live_step = True
            keep = change.prompt.keep
            self._prompts[codec.kind_of(step)] = (ids.prompt, [*draft.prompt[:keep], *ids.suffix])
            new = zip(draft.prompt[keep:], ids.suffix, strict=True)
            self._part_ids.update((part.key, number) for part, number in new if isinstance(part, Encoded))
        return self._observed(
            Entry(step, ids.step, change.run, draft.key, ids.prompt, ids.rendered, draft.messages, _fields(step))
        )

    def _observed(self, entry: Entry) -> Entry:
        if not observed_steps.observe(entry.step):
            self._unobservable = True
        return entry

    def _count(self, start: int) -> None:
        """Keeps the tasks of all entries, so that they need not be gathered at every step."""
        if start == 0:
            self._tasks = []
        self._tasks += [entry for entry in self._slice(start, None) if codec.kind_of(entry.step) == "task"]

    @classmethod
    def load(cls, stored: StoredSession, parts: Callable[[int], list[int]]) -> Session:
        """The session that another process saved; `parts` reads the parts of a prompt."""
        session = cls(stored.row, saved_events=stored.events, in_order=True)
        for position, entry in enumerate(stored.entries):
            session._timeline.apply("insert", entry.id, position, session._loaded(entry))
        if stored.system is not None:
            session._timeline.apply("insert", stored.system.id, None, session._loaded(stored.system))
        for entry in reversed(stored.entries):
            kind = codec.kind_of(entry.step)
            if entry.prompt is not None and kind not in session._prompts:
                session._prompts[kind] = (entry.prompt, parts(entry.prompt))
        session._accepted_at = observed_steps.latest_edit()
        session._count(0)
        return session

    def _loaded(self, stored: StoredEntry) -> Entry:
        step, messages = stored.step, StepMessages.of(stored.step)
        if stored.prompt is not None and MODEL_INPUT in vars(step):
            vars(step)[MODEL_INPUT].of_live_step = True
        return self._observed(
            Entry(step, stored.id, stored.run, stored.key, stored.prompt, stored.rendered, messages, _fields(step))
        )

    def forked(self, row: SessionRow) -> Session:
        """The session of a forked process, which may continue the list: what was saved of it is shared."""
        of, at, shared = self.row["fork_of"], self.row["fork_at"], self.shared_events
        if self.saved_events:
            of, at, shared = self.row["id"], None, self.saved_events
        fresh: Any = {"saved_events": 0, "in_doubt": None, "runs": {}, "_unsaved": {}, "_unsaved_parts": {}}
        return replace(self, row={**row, "fork_of": of, "fork_at": at}, shared_events=shared, **fresh)

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
            return journal.timeline(self.row).steps == self._timeline.steps
        except NotFound:
            return False

    def close(self) -> None:
        """Restores the classes of the steps; their prompts stay on disk until they are used."""
        for entry in self.entries if self.system is None else [self.system, *self.entries]:
            observed_steps.unobserve(entry.step)


def _common(entries: Sequence[Entry], steps: Sequence[Any]) -> tuple[int, int]:
    """How many steps at the beginning, and then at the end, are where they were."""
    least, start, stop = min(len(entries), len(steps)), 0, 0
    while start < least and entries[start].step is steps[start]:
        start += 1
    while stop < least - start and entries[-1 - stop].step is steps[-1 - stop]:
        stop += 1
    return start, stop


def _fields(step: Any) -> dict[str, Any]:
    """A step's fields as they are now; lists are copied, because they are edited in place.

    The output of a step is often a variable of the agent: a list that later steps append to is no edit of this step.
    """
    own = getattr(step, "__dict__", {})
    return {name: list(item) if type(item) is list and name != _OUTPUT else item for name, item in own.items()}


def _same(entry: Entry) -> bool:
    return _has_fields(entry.step, entry.fields)


def _has_fields(step: Any, fields: dict[str, Any]) -> bool:
    own = getattr(step, "__dict__", {})
    with suppress(Exception):  # an array has no truth value
        if own == fields:
            return True
    return own.keys() == fields.keys() and all(_same_field(item, fields[name]) for name, item in own.items())


def _shows_the_same(entry: Entry) -> bool:
    return entry.messages.look_like(prompts.rendered_messages(entry.step))


def _same_field(now: Any, then: Any) -> bool:
    if now is then:
        return True
    return type(now) is list and type(then) is list and len(now) == len(then) and all(map(operator.is_, now, then))
