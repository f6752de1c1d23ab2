"""Purge: finds a source and everything that may have been made from it.

Purging is by step: of a session that read the source, the steps from the source on go, because each of them was made
from a prompt that holds the source. Steps before it, and text of users, stay. From each purged step the search
continues: to later steps of its session and of its forks, to the runs that it called and the step that called its run,
to runs that recalled it, to later runs that used its variables, and to the notes that agents made from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from smolmem.core.arguments import ScopeFilter
from smolmem.core.display import Result
from smolmem.core.encoding import placeholders
from smolmem.core.errors import Damaged
from smolmem.core.rows import Origin
from smolmem.core.text import one_line
from smolmem.recall.passages import passages_of, web_tools
from smolmem.recall.provenance import Provenance
from smolmem.store.base import Row
from smolmem.store.contents import Contents
from smolmem.store.erasure.erase import Erased, Selection
from smolmem.store.passage_rows import json_list
from smolmem.store.writer import IMPORTED


@dataclass(frozen=True)
class Purgeable:
    """A step or note that a purge removes, and why."""

    kind: Literal["step", "note"]
    id: str
    why: str
    text: str


@dataclass(frozen=True)
class Purged(Result):
    """The result of a purge or its dry run: the sources, everything made from them, and the receipt."""

    sources: tuple[Purgeable, ...]
    derived: tuple[Purgeable, ...]
    receipt: Erased

    def __bool__(self) -> bool:
        return bool(self.sources)


@dataclass
class Plan:
    """The rows to purge."""

    sources: tuple[Purgeable, ...] = ()
    derived: tuple[Purgeable, ...] = ()
    selection: Selection = field(default_factory=Selection)


def find_derived(contents: Contents, scope: ScopeFilter, origin: Origin | None, url: str | None) -> Plan:
    """The sources of an origin that contain a text, and everything made from them; part of the caller's transaction."""
    search = _Derived(contents)
    for step in _source_steps(contents, scope, origin, url):
        search.add_step(step, f"from {origin or 'any origin'}")
    for note in contents.store.rows("notes_in_scope", {**scope}):
        if origin in (None, note["origin"]) and _holds(url, [note["text"]]):
            search.add_note(note, f"from {note['origin']}")
    count = len(search.found)
    search.follow()
    found = tuple(search.found)
    return Plan(found[:count], found[count:], search.selection())


def _source_steps(contents: Contents, scope: ScopeFilter, origin: Origin | None, url: str | None) -> Iterable[Row]:
    last = 0
    while rows := contents.store.rows("steps_in_scope", {**scope, "id": last}):
        last = rows[-1]["id"]
        for row in rows:
            if _is_source(contents, row, origin, url):
                yield row


def _is_source(contents: Contents, step: Row, origin: Origin | None, url: str | None) -> bool:
    try:
        live = contents.step_of(step)
    except Damaged:
        return False
    called = web_tools(contents.store.rows("tools_called_in_step", step))
    parts = passages_of(live, asked_by="agent" if step["parent"] else "user", called=called)
    origins = {"import"} if step["writer"] == IMPORTED else {part.origin for part in parts}
    if origin is not None and origin not in origins:
        return False
    if _holds(url, [step["text"], *(part.text for part in parts)]):
        return True
    return _holds(url, (_argument(contents, row) for row in contents.store.rows("calls_in_step", step)))


def _argument(contents: Contents, call: Row) -> str:
    """The arguments of a call as text: code can build an address from parts."""
    return placeholders.safe_text(str, contents.value(call["arguments"]))


def _holds(url: str | None, texts: Iterable[str]) -> bool:
    return url is None or any(url.casefold() in text.casefold() for text in texts)


class _Derived:
    """Collects steps and notes, and everything made from them."""

    def __init__(self, contents: Contents) -> None:
        self._contents, self._store = contents, contents.store
        self._provenance = Provenance(contents)
        self._provenance.catch_up_all()
        self._steps: dict[int, Row] = {}
        self._notes: dict[str, Row] = {}
        self._coming: list[Row] = []
        self.found: list[Purgeable] = []

    def add_step(self, step: Row, why: str) -> None:
        """Adds a step, unless it is known."""
        if step["id"] not in self._steps:
            self._steps[step["id"]] = step
            self._coming.append(step)
            self.found.append(Purgeable("step", str(step["id"]), why, one_line(step["text"], 80)))

    def add_note(self, note: Row, why: str) -> None:
        """Adds a note, unless it is known."""
        if note["id"] not in self._notes:
            self._notes[note["id"]] = note
            self._coming.append(note)
            self.found.append(Purgeable("note", note["id"], why, one_line(note["text"], 80)))

    def follow(self) -> None:
        """Adds everything made from what was added."""
        while self._coming:
            item = self._coming.pop(0)
            if "session" in item:
                self._follow_step(item)
            self._follow_recalls(item)
            self._add_notes(self._store.rows("made_from", {"source": item["id"]}))

    def selection(self) -> Selection:
        """The rows to erase: steps and notes, and whole runs without remaining steps."""
        runs = {step["run"] for step in self._steps.values()}
        rows = self._store.rows("steps_by_runs", {"ids": json_list(runs)})
        staying = {row["run"] for row in rows if row["id"] not in self._steps and row["kind"] != "system_prompt"}
        return Selection(
            runs=runs - staying, steps=set(self._steps), notes=set(self._notes), snapshots=self._snapshots(runs)
        )

    def _snapshots(self, runs: Iterable[str]) -> set[int]:
        """Snapshots of variables since the source: an agent keeps its variables from one run to the next."""
        found: set[int] = set()
        for run in runs:
            began = min(step["at"] - (step["seconds"] or 0.0) for step in self._steps.values() if step["run"] == run)
            found |= {row["id"] for row in self._store.rows("snapshots_since", {"run": run, "at": began})}
        return found

    def _follow_step(self, step: Row) -> None:
        number = f"step {step['id']}"
        self._add_session(step["session"], f"after {number} in its session", step=step["id"])
        for fork in self._store.rows("forked_after", {"session": step["session"], "step": step["id"]}):
            self._add_session(fork["id"], f"in a fork that shares {number}")
        for called in self._store.rows("called_in_step", {"run": step["run"], "number": step["number"]}):
            self.add_step(called, f"in a run that {number} called")
        for calling in self._store.rows("calling_steps", {"run": step["run"]}):
            self.add_step(calling, f"called the run of {number}")
        for later in self._store.rows("later_exposures", {name: step[name] for name in ("run", "session", "at")}):
            if self._provenance.uses_earlier_variables(later):
                self.add_step(later, f"uses variables of the run of {number}")
        since = step["at"] - (step["seconds"] or 0.0)
        self._add_notes(self._store.rows("made_in", {"run": step["run"], "since": since}))

    def _add_session(self, session: str, why: str, step: int = 0, since: float = 0.0) -> None:
        """Adds the steps of a session after a step or a time, without the tasks of users."""
        for row in self._store.rows("made_in_session", {"session": session, "step": step, "since": since}):
            self.add_step(row, why)

    def _follow_recalls(self, item: Row) -> None:
        scope = item.get("scope") or self._store.rows("run_row", {"id": item["run"]})[0]["scope"]
        asked = {"source": item["id"], "scope": scope, "since": item["at"]}
        for row in self._store.rows("recalls_of", asked):
            since = {"step": row["step"]} if row["step"] is not None else {"since": row["at"]}
            self._add_session(row["session"], f"in a run that recalled {item['id']}", **since)
            self._add_notes(self._store.rows("made_in", {"run": row["run"], "since": row["at"]}))

    def _add_notes(self, rows: Iterable[Row]) -> None:
        ids = json_list(row["id"] for row in rows)
        for note in self._store.rows("notes_by_ids", {"ids": ids}):
            self.add_note(note, "a note that was made of it")
