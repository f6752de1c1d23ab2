"""Compares a live list with its saved state: finds the changes, and remembers them once they are saved.

Steps are compared by identity. The changes of a failed write are found again by the next comparison; a step that has
not changed since is not encoded again. The cost of a comparison does not depend on the length of the list, unless
something other than an append was done to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import PIL.Image

from smolmem.agents.observing import observed_steps
from smolmem.agents.prompting.step_messages import StepMessages
from smolmem.agents.session import Draft, Entry, Fields, Session
from smolmem.agents.variables import Variables
from smolmem.core import prompts
from smolmem.core.encoding import codec, step_facts
from smolmem.core.encoding.codec import MODEL_INPUT, Encoded
from smolmem.core.injected import Injected
from smolmem.core.prompts import Part
from smolmem.core.rows import Act, Change, Saved, SharedPrompt
from smolmem.store.journal import Journal

Care = Literal["glance", "fields", "inside"]
"""How closely to look for edits of saved steps. Set fields are always noticed. `glance` looks into the lists of a few
steps, `fields` into all lists and at what a model is shown of each step, and `inside` compares everything."""

_TAKEN_OFF = 8
"""How many removed steps can come back as the steps that they were."""
_GLANCE = 8
"""How many older steps are checked at each event, in turn, for lists edited in place."""


class ListChanges:
    """The changes that turn the saved list of a session into the live list."""

    def __init__(self, session: Session, journal: Journal, variables: Variables) -> None:
        self.session = session
        self.drafts: list[Draft] = []
        self._journal = journal
        self._variables = variables
        self._began = time.time()
        self._last_edit = observed_steps.latest_edit()

    def find(self, steps: Sequence[Any], system: Any, care: Care) -> list[Draft]:
        """Finds the changes that turn the saved list into `steps`, and the saved system prompt into `system`."""
        session = self.session
        if care == "inside":
            session.unsaved = {}
        start, stop = (len(session), 0) if session.in_order else _common(session.entries, steps)
        gone = session.slice(start, len(session) - stop)
        drafts = [self._removed(entry, start + i) for i, entry in reversed(list(enumerate(gone)))]
        moved = {id(entry.step): entry for entry in [*session.taken_off, *gone]}
        for position in range(start, len(steps) - stop):
            drafts.append(self._inserted(steps[position], position, moved, last=not stop))
        for entry in self._perhaps_edited(care):
            if entry not in gone and (draft := self._revised(entry, entry.step)) is not None:
                drafts.append(draft)
        if drafts or len(session):
            drafts = self._system_changes(system, drafts) + drafts
        self.drafts = drafts
        return drafts

    def draft_new(self, steps: Sequence[Any]) -> None:
        """Encodes new steps that are saved later: while their prompts and variables are known, and once."""
        session = self.session
        for position, step in enumerate(steps):
            if id(step) in session.runs and id(step) not in session.unsaved:
                self._inserted(step, position, {}, last=True)

    def _perhaps_edited(self, care: Care) -> Iterable[Entry]:
        session = self.session
        if care == "inside":
            return session.entries
        if care == "fields" or session.unobservable or observed_steps.edited_since(session.accepted_at):
            looked_at = session.entries
        else:
            looked_at = session.slice(session.glance_from, session.glance_from + _GLANCE)
        suspects, session.suspects = session.suspects, []
        if care == "fields":
            suspects = [entry for entry in looked_at if not _looks_the_same(entry)]
        suspects = [entry for entry in suspects if entry is not session.system]  # see `_system_changes`
        return [*suspects, *(entry for entry in looked_at if entry not in suspects and not _is_same(entry))]

    def _removed(self, entry: Entry, position: int) -> Draft:
        return Draft(Change("remove", entry.run, self._began, position, entry.id), entry, entry.step)

    def _inserted(self, step: Any, position: int, moved: dict[int, Entry], *, last: bool) -> Draft:
        session, entry = self.session, moved.pop(id(step), None)
        if entry is not None:
            change = Change("insert", entry.run, self._began, position, entry.id, prompt=entry.prompt, last=last)
            return Draft(change, entry, step)
        known = session.unsaved.get(id(step))
        if known is not None and known.fields.are_of(step):  # an attempt to save it failed
            return replace(known, change=known.change._replace(position=position, last=last))
        draft = self._written("insert", step, session.run_of(step), position=position, last=last)
        draft.fields = Fields.of(step)
        session.unsaved[id(step)] = draft
        return draft

    def _revised(self, entry: Entry, step: Any) -> Draft | None:
        if entry.sketch is not None and self._has_prompt(entry, step) and codec.sketch(step) == entry.sketch:
            entry.step, entry.fields = step, Fields.of(step)
            return None
        draft = self._written("revise", step, entry.run, entry=entry)
        if draft.key == entry.key and draft.change.prompt == entry.prompt:
            entry.step, entry.fields = step, Fields.of(step)
            return None
        return draft

    def _has_prompt(self, entry: Entry, step: Any) -> bool:
        sent = vars(step).get(MODEL_INPUT)
        return (None if sent is None else self._journal.number(sent)) == entry.prompt

    def _system_changes(self, system: Any, drafts: list[Draft]) -> list[Draft]:
        saved = self.session.system
        if saved is None:
            return [self._written("insert", system, drafts[0].change.run)]
        if saved.step is system and _is_same(saved):
            return []
        draft = self._revised(saved, system)
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
        encode = self._journal.encode
        encoded, messages = encode(step), StepMessages.of(step)
        parts, prompt = self._prompt(codec.kind_of(step), encoded)
        change = Change(
            act=act,
            run=run,
            at=self._began,
            position=position,
            step=None if entry is None else entry.id,
            encoded=encoded,
            facts=step_facts.stored_facts(step, encoded),
            rendered=prompts.encoded_messages(messages.messages, step, encoded, encode),
            prompt=prompt,
            last=last,
            variables=self._variables.after(step) if entry is None else None,
            sources=step.sources if entry is None and isinstance(step, Injected) else (),
        )
        return Draft(change, entry, step, encoded.key, parts, messages)

    def _prompt(self, kind: str, encoded: Encoded) -> tuple[Sequence[Part], SharedPrompt | int | None]:
        """The prompt of a step: its parts, if it is a new one, and how it is stored."""
        messages = encoded.model_input
        if messages is None:
            return (), None
        stored = self._journal.number(messages)
        if stored is not None:
            return (), stored
        session = self.session
        known = session.parts_sent(messages)
        parts = session.parts_of(kind, messages, self._journal.encode) if known is None else known
        shared = [part if isinstance(part, int) else session.shared(part) for part in parts]
        return shared, prompts.share(shared, len(messages), session.prompts.values())

    # --- once the changes are saved --------------------------------------------------------------------------------

    def accept(self, saved: Sequence[Saved]) -> None:
        """Remembers that the changes are saved, with the ids they were given."""
        session, before, appended = self.session, len(self.session), True
        for draft, ids in zip(self.drafts, saved, strict=True):
            act = draft.change.act
            appended &= act == "insert" and draft.change.last
            moved = act == "remove" or draft.change.encoded is None
            session.timeline.apply(act, ids.step, draft.change.position, None if moved else self._entry(draft, ids))
        self._take_off()
        session.count_tasks(before if appended else 0)
        session.in_order = True
        session.saved_events += len(self.drafts)
        done = {id(draft.step) for draft in self.drafts}
        session.runs = {key: run for key, run in session.runs.items() if key not in done}
        session.unsaved, session.unsaved_parts, session.unsaved_shown = {}, {}, {}
        session.accepted_at = self._last_edit
        session.glance_from = (session.glance_from + _GLANCE) % max(len(session), 1)

    def _take_off(self) -> None:
        """Keeps the last removed steps: swapping two steps removes one, and puts it back with the next change."""
        session = self.session
        removed = [draft.entry for draft in self.drafts if draft.change.act == "remove" and draft.entry is not None]
        put_back = {draft.change.step for draft in self.drafts if draft.change.act == "insert"}
        if removed or put_back & {entry.id for entry in session.taken_off}:
            taken_off = [entry for entry in [*session.taken_off, *removed] if entry.id not in put_back]
            session.taken_off = taken_off[-_TAKEN_OFF:]
            session.drop_removed()

    def _entry(self, draft: Draft, ids: Saved) -> Entry:
        session, change, step = self.session, draft.change, draft.step
        if isinstance(change.prompt, SharedPrompt) and ids.prompt is not None:
            vars(step)[MODEL_INPUT] = self._journal.stored(ids.prompt, change.prompt.size)
            vars(step)[MODEL_INPUT].of_live_step = True
            keep = len(draft.prompt) - len(ids.suffix)
            new = zip(draft.prompt[keep:], ids.suffix, strict=True)
            session.part_ids.update((part.key, number) for part, number in new if isinstance(part, Encoded))
            known = draft.prompt[: change.prompt.keep]
            between = draft.prompt[change.prompt.keep : keep]  # parts that the prompt saved before it has, too
            saved = (part if isinstance(part, int) else session.part_ids[part.key] for part in between)
            session.prompts[codec.kind_of(step)] = (ids.prompt, [*known, *saved, *ids.suffix])
        fields = Fields.of(step)
        has_pictures = any(isinstance(item, PIL.Image.Image) for _, then in fields.lists for item in then)
        sketch = codec.sketch(step) if has_pictures else None
        ids_of = (ids.step, change.run, draft.key, ids.prompt, ids.rendered)
        return session.observed(Entry(step, *ids_of, draft.messages, fields, sketch))


def _common(entries: Sequence[Entry], steps: Sequence[Any]) -> tuple[int, int]:
    """How many steps at the beginning, and then at the end, are where they were."""
    least, start, stop = min(len(entries), len(steps)), 0, 0
    while start < least and entries[start].step is steps[start]:
        start += 1
    while stop < least - start and entries[-1 - stop].step is steps[-1 - stop]:
        stop += 1
    return start, stop


def _is_same(entry: Entry) -> bool:
    return entry.fields.are_of(entry.step)


def _looks_the_same(entry: Entry) -> bool:
    return entry.messages.look_like(prompts.rendered_messages(entry.step))
