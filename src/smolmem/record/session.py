"""One list of steps, from one reset to the next: what is saved of it, and what is not yet.

The list is compared with what was saved last, by identity, and the difference becomes changes. Nothing here is
altered until a batch is saved: a write that failed is simply found again by the next comparison. What a
comparison costs does not depend on how long the list is, unless something other than an append was done to it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from smolmem.record import codec, edits
from smolmem.record.codec import SENT, Encoded
from smolmem.record.values import Act, Change, Saved, Sent, SessionRow

Care = Literal["glance", "fields", "inside"]
"""Set fields are noticed anyway, and a few lists looked into; `fields`: every list; `inside`: all there is."""

_GLANCE = 8
"""How many older steps are looked at, in turn, at each event, for lists edited in place inside them."""


@dataclass(eq=False)
class Entry:
    """A step that is saved: its ids, how its fields looked then, and the messages it is shown to a model as."""

    step: Any
    id: int
    run: str
    key: str
    sent: int | None
    shown: int | None
    messages: int
    seen: dict[str, Any]


@dataclass
class Draft:
    """A change on its way to the store, with what is needed to take it over once it is saved."""

    change: Change
    entry: Entry | None
    step: Any
    key: str = ""
    prompt: Sequence[int | Encoded] = ()
    messages: int = 0


@dataclass
class Session:
    """What is saved of one list of steps."""

    row: SessionRow
    events: int = 0
    """How many of its events are saved."""
    unsure: Sequence[Draft] | None = None
    """What was handed over last, if it is not known whether it was saved."""
    entries: list[Entry] = field(default_factory=list)
    system: Entry | None = None
    runs: dict[int, str] = field(default_factory=dict)
    """The run of each step that is not saved yet, by the step's id()."""
    in_order: bool = False
    """Whether the list is what is saved, and perhaps more at its end."""
    _prompts: dict[str, tuple[int, Sequence[int | Encoded]]] = field(default_factory=dict)
    _parts: dict[str, int] = field(default_factory=dict)
    _shown: list[int] = field(default_factory=list)
    _messages: int = 0
    _moment: int = 0
    _looked: int = 0
    _glance: int = 0
    _restless: bool = False

    # --- comparing -------------------------------------------------------------------------------------------------

    def claim(self, steps: Sequence[Any], run_of: Callable[[Any], str]) -> None:
        """Notes which run each new step belongs to, while that is known; it may take long until it can be saved."""
        saved = () if self.in_order else {id(entry.step) for entry in self.entries}
        for step in steps[len(self.entries) :] if self.in_order else steps:
            if id(step) not in saved and id(step) not in self.runs:
                self.runs[id(step)] = run_of(step)

    def compare(
        self,
        steps: Sequence[Any],
        system: Any,
        stored: Callable[[Sequence[Any]], int | None],
        known: Callable[[Sequence[Any]], Sequence[int | Encoded] | None],
        state: Callable[[Any], Encoded | None],
        now: float,
        care: Care = "glance",
    ) -> list[Draft]:
        """The changes that turn what is saved into what is there.

        Args:
            steps: the list as it is now.
            system: the system prompt as it is now.
            stored: the number of a prompt that is stored already.
            known: the parts of a prompt that was rendered from saved steps, if it is one.
            state: the agent's variables after a new step, if it has any.
            now: the time of these changes.
            care: how closely to look for edits of saved steps.
        """
        self._stored, self._known, self._state = stored, known, state
        self._now, self._looked = now, edits.latest()
        start, stop = (len(self.entries), 0) if self.in_order else _common(self.entries, steps)
        gone = self.entries[start : len(self.entries) - stop]
        drafts = [self._removed(entry, start + i) for i, entry in reversed(list(enumerate(gone)))]
        moved = {id(entry.step): entry for entry in gone}
        for place in range(start, len(steps) - stop):
            drafts.append(self._inserted(steps[place], place, moved, last=not stop))
        for entry in self.entries if care == "inside" else self._edited(care):
            if entry not in gone and (draft := self._revised(entry, entry.step)) is not None:
                drafts.append(draft)
        if drafts or self.entries:
            drafts = self._system(system, drafts) + drafts
        return drafts

    def _edited(self, care: Care) -> list[Entry]:
        """Entries whose fields are not what was saved."""
        if care == "fields" or self._restless or edits.since(self._moment):
            return [entry for entry in self.entries if not _same(entry)]
        glance = self.entries[self._glance : self._glance + _GLANCE]
        return [entry for entry in glance if not _same(entry)]

    def _removed(self, entry: Entry, place: int) -> Draft:
        return Draft(Change("remove", entry.run, self._now, place, entry.id), entry, entry.step)

    def _inserted(self, step: Any, place: int, moved: dict[int, Entry], *, last: bool) -> Draft:
        entry = moved.pop(id(step), None)
        if entry is not None:
            return Draft(
                Change("insert", entry.run, self._now, place, entry.id, sent=entry.sent, last=last), entry, step
            )
        return self._written("insert", step, self.runs[id(step)], place=place, last=last)

    def _revised(self, entry: Entry, step: Any) -> Draft | None:
        draft = self._written("revise", step, entry.run, entry=entry)
        if draft.key == entry.key and draft.change.sent == entry.sent:
            entry.step, entry.seen = step, look(step)
            return None
        return draft

    def _system(self, system: Any, drafts: list[Draft]) -> list[Draft]:
        if self.system is None:
            return [self._written("insert", system, drafts[0].change.run)]
        if self.system.step is system and _same(self.system):
            return []
        draft = self._revised(self.system, system)
        return [] if draft is None else [draft]

    def _written(
        self, act: Act, step: Any, run: str, *, place: int | None = None, entry: Entry | None = None, last: bool = True
    ) -> Draft:
        encoded = codec.encode(step)
        prompt: Sequence[int | Encoded] = ()
        sent: Sent | int | None = None
        if encoded.sent is not None:
            sent = self._stored(encoded.sent)
            if sent is None:
                prompt = self._prompt(encoded.sent)
                sent = self._shorten(prompt, len(encoded.sent))
        rendered, messages = shown(step)
        number = None if entry is None else entry.id
        state = self._state(step) if entry is None else None
        change = Change(act, run, self._now, place, number, encoded, codec.facts(step), rendered, sent, last, state)
        return Draft(change, entry, step, encoded.key, prompt, messages)

    # --- prompts ---------------------------------------------------------------------------------------------------

    def parts(self, messages: int) -> list[int] | None:
        """What a prompt rendered from all entries consists of; None if it does not have that many messages."""
        system = [] if self.system is None or self.system.shown is None else [self.system.shown]
        own = 0 if self.system is None else self.system.messages
        return [*system, *self._shown] if own + self._messages == messages else None

    def _prompt(self, messages: Sequence[Any]) -> Sequence[int | Encoded]:
        known = self._known(messages)
        parts = [codec.encode(message) for message in messages] if known is None else known
        return [part if isinstance(part, int) else self._parts.get(part.key, part) for part in parts]

    def _shorten(self, prompt: Sequence[int | Encoded], size: int) -> Sent:
        """A prompt as the longest beginning it shares with an earlier one, and the rest."""
        parent, keep = None, 0
        for number, earlier in self._prompts.values():
            shared = _shared(earlier, prompt)
            if shared > keep:
                parent, keep = number, shared
        return Sent(parent, keep, prompt[keep:], size)

    # --- taking over what was saved --------------------------------------------------------------------------------

    def accept(self, drafts: Sequence[Draft], saved: Sequence[Saved], stored: Callable[[int, int], Any]) -> None:
        """All of it is on disk: remember it as it is there."""
        before, appended, done = len(self.entries), True, {id(draft.step) for draft in drafts}
        for draft, ids in zip(drafts, saved, strict=True):
            appended &= draft.change.act == "insert" and draft.change.last
            if draft.change.act == "remove":
                del self.entries[draft.change.place or 0]
            else:
                self._put(self._entry(draft, ids, stored), draft.change)
        self._count(before if appended else 0)
        self.in_order = True
        self.events += len(drafts)
        self.runs = {key: run for key, run in self.runs.items() if key not in done}
        self._moment = self._looked
        self._glance = (self._glance + _GLANCE) % max(len(self.entries), 1)

    def _count(self, start: int) -> None:
        """Keeps what a prompt of all entries consists of, so that it need not be gathered at every step."""
        if start == 0:
            self._shown, self._messages = [], 0
        for entry in self.entries[start:]:
            self._messages += entry.messages
            if entry.shown is not None:
                self._shown.append(entry.shown)

    def _entry(self, draft: Draft, ids: Saved, stored: Callable[[int, int], Any]) -> Entry:
        change, step, before = draft.change, draft.step, draft.entry
        if isinstance(change.sent, Sent) and ids.sent is not None:
            vars(step)[SENT] = stored(ids.sent, change.sent.size)
            self._prompts[codec.kind_of(step)] = (ids.sent, [*draft.prompt[: change.sent.keep], *ids.suffix])
            new = zip(draft.prompt[change.sent.keep :], ids.suffix, strict=True)
            self._parts.update((part.key, number) for part, number in new if isinstance(part, Encoded))
        if before is not None and change.encoded is None:
            return before
        entry = Entry(step, ids.step, change.run, draft.key, ids.sent, ids.shown, draft.messages, look(step))
        if not edits.notice(step):
            self._restless = True
        return entry

    def _put(self, entry: Entry, change: Change) -> None:
        if change.act == "insert" and change.place is not None:
            self.entries.insert(change.place, entry)
        elif self.system is None or self.system.id == entry.id:
            self.system = entry
        else:
            place = next(i for i, old in enumerate(self.entries) if old.id == entry.id)
            self.entries[place] = entry

    def load(
        self, entries: Sequence[Entry], system: Entry | None, events: int, parts: Callable[[int], list[int]]
    ) -> None:
        """Takes over what another process saved; `parts` reads what a prompt consists of."""
        self.entries, self.system, self.events, self.in_order = list(entries), system, events, True
        for entry in entries:
            edits.notice(entry.step)
        for entry in reversed(entries):
            kind = codec.kind_of(entry.step)
            if entry.sent is not None and kind not in self._prompts:
                self._prompts[kind] = (entry.sent, parts(entry.sent))
        self._moment = edits.latest()
        self._count(0)

    def close(self, *, fill: bool = False) -> None:
        """The list is given up: its steps become what they were; `fill`: with their model input in RAM again."""
        for entry in self.entries if self.system is None else [self.system, *self.entries]:
            edits.let_go(entry.step)
            if fill and entry.sent is not None and SENT in vars(entry.step):
                vars(entry.step)[SENT] = list(vars(entry.step)[SENT])


def _common(entries: Sequence[Entry], steps: Sequence[Any]) -> tuple[int, int]:
    """How many steps at the beginning, and then at the end, are where they were."""
    least, start, stop = min(len(entries), len(steps)), 0, 0
    while start < least and entries[start].step is steps[start]:
        start += 1
    while stop < least - start and entries[-1 - stop].step is steps[-1 - stop]:
        stop += 1
    return start, stop


def look(step: Any) -> dict[str, Any]:
    """A step's fields as they are now; lists are copied, they are what people edit in place."""
    own = getattr(step, "__dict__", {})
    return {name: list(item) if type(item) is list else item for name, item in own.items()}


def _same(entry: Entry) -> bool:
    own = getattr(entry.step, "__dict__", {})
    with suppress(Exception):  # an array has no truth value
        if own == entry.seen:
            return True
    return own.keys() == entry.seen.keys() and all(_same_field(item, entry.seen[name]) for name, item in own.items())


def _same_field(now: Any, then: Any) -> bool:
    if now is then:
        return True
    return type(now) is list and type(then) is list and len(now) == len(then) and all(map(operator.is_, now, then))


def _shared(earlier: Sequence[int | Encoded], prompt: Sequence[int | Encoded]) -> int:
    if prompt[: len(earlier)] == earlier:
        return len(earlier)
    pairs = enumerate(zip(earlier, prompt, strict=False))
    return next((place for place, (then, now) in pairs if then != now), min(len(earlier), len(prompt)))


def shown(step: Any) -> tuple[Encoded | None, int]:
    """A step as the messages a model is shown, and how many; none where it cannot be shown."""
    try:
        messages = step.to_messages()
        return (codec.encode(messages), len(messages)) if messages else (None, 0)
    except Exception:
        return None, 0
