"""Erases for good: from the tables, the index, the vectors, other runs' prompts, the log and the free pages.

`erase` takes runs, steps and notes. With them go:

- the runs of managed agents that an erased run, or an erased step, called;
- notes that agents made from erased steps or notes, or wrote in an erased run. A user's note keeps its text and loses
  the source;
- quotations of all that in other runs: see `erased_contents`;
- snapshots of later runs that hold variables which erased steps have set: see `erased_variables`.

Forks of an erased run keep the steps that they share with it: see `erased_sessions`. An erased step leaves its run,
and the forks of its run. Where it was the task or the last step, the run's title or answer goes with it.

All rows go in one transaction. Then the file is rewritten without free pages and the write-ahead log is
emptied; if another process is reading, `finish` does that later. The table `erased` keeps a receipt: the time, the
kind, the number of rows, and which events are missing on purpose. It holds no erased text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from smolmem.core.display import Result
from smolmem.core.errors import Busy, CannotResume, Unwritable
from smolmem.core.values import when
from smolmem.store.base import Row
from smolmem.store.contents import seal, with_hash
from smolmem.store.erasure.erased_contents import Sweep
from smolmem.store.erasure.erased_sessions import Change, Sessions
from smolmem.store.erasure.erased_variables import snapshots_with_variables_of
from smolmem.store.journal import Journal
from smolmem.store.passage_rows import drop_passages, json_list
from smolmem.store.records import Records
from smolmem.store.writer import COPYING, describe

PLACEHOLDER = "[erased]"


@dataclass(frozen=True)
class Erased(Result):
    """The receipt of an erase: what was erased, and whether all of its bytes are off the disk."""

    at: datetime
    runs: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    """How many rows of each table were removed; `replaced` counts contents that became placeholders."""
    bytes_freed: int = 0
    finished: bool = True
    """False if another process was reading the file: erased bytes may be in the log or in free pages until `finish`."""
    dry_run: bool = False

    def __bool__(self) -> bool:
        return any(self.counts.values())


@dataclass
class Selection:
    """The rows to erase."""

    runs: set[str] = field(default_factory=set)
    steps: set[int] = field(default_factory=set)
    notes: set[str] = field(default_factory=set)
    alerts: set[int] = field(default_factory=set)
    snapshots: set[int] = field(default_factory=set)
    """Events that stay without their snapshot of variables, which may hold something that goes."""


class _DryRun(Exception):
    """Rolls the transaction of a dry run back; `found` is the receipt."""

    def __init__(self, found: dict[str, Any]) -> None:
        super().__init__()
        self.found = found


def select(journal: Journal, scope: str | None, below: str | None, before: float | None) -> Selection:
    """Everything of a scope; with `before`, only its runs that ended before that time."""
    of = {"scope": scope, "below": below}
    rows = journal.store.rows("erasable_runs", of | {"before": before})
    if before is not None:
        return Selection(runs={row["id"] for row in rows if not _is_running(journal, row)})
    notes = {row["id"] for row in journal.store.rows("erasable_notes", of)}
    alerts = {row["id"] for row in journal.store.rows("erasable_alerts", of)}
    return Selection(runs={row["id"] for row in rows}, notes=notes, alerts=alerts)


def sessions_of(journal: Journal, selection: Selection) -> set[str]:
    """The sessions that will lose something, without their forks.

    Raises:
        CannotResume: if a living process works on one of the runs.
    """
    chosen = _with_called(journal, selection)
    steps = journal.store.rows("steps_by_ids", {"ids": json_list(chosen.steps)})
    runs = journal.store.rows("runs_by_ids", {"ids": json_list(chosen.runs | {row["run"] for row in steps})})
    sessions = {row["session"] for row in (*runs, *steps)}
    _refuse_running(journal, sessions)
    return sessions


def _refuse_running(journal: Journal, sessions: Iterable[str]) -> None:
    """Refuses sessions that a run is in progress in: its process would append to a list that is no longer there."""
    for run in journal.store.rows("running_in_sessions", {"sessions": json_list(sessions)}):
        if _is_running(journal, run):
            raise CannotResume(
                f"run {run['id'][:8]} is running ({describe(run['writer'])}): nothing was erased. "
                "Stop the run, or erase it when it has ended."
            )


def erase(journal: Journal, selection: Selection, what: Iterable[str], *, dry_run: bool = False) -> Erased:
    """Erases runs, steps and notes, and everything made from them.

    Raises:
        CannotResume: if a living process works on one of the runs.
    """
    store = journal.store
    before = store.size()
    receipt = Erased(when(time.time()), dry_run=dry_run)
    if selection == Selection():
        return receipt
    store.do("secure_delete", {})
    try:
        receipt = replace(receipt, **store.transact(lambda: _apply(journal, selection, list(what), dry_run)))
    except _DryRun as tried:
        return replace(receipt, **tried.found)
    finally:
        journal.forget_cached()
    if not receipt:
        return receipt
    finished = finish(journal)
    return replace(receipt, finished=finished, bytes_freed=max(0, before - store.size()))


def _apply(journal: Journal, selection: Selection, what: list[str], dry_run: bool) -> dict[str, Any]:
    found = _Work(journal, selection).apply(what)
    if dry_run:
        raise _DryRun(found)
    journal.forget_cached()  # before the next transaction of another thread
    return found


def finish(journal: Journal) -> bool:
    """Rewrites the file without free pages and empties its log; false if another process reads, or no space is left."""
    store = journal.store
    try:
        store.do("compact", {})
        if store.do("empty_log", {}):
            return False
    except (Busy, Unwritable):
        return False

    def note_finished() -> None:
        for row in journal.unfinished_erases():
            store.do("finish_erased", {"id": row["id"], "hash": seal("erased", row | {"finished": 1})})

    store.transact(note_finished)
    return not store.do("empty_log", {})


def erased_events(records: Records) -> list[tuple[int, int]]:
    """The ranges of events that are missing on purpose."""
    return [(first, last) for row in records.store.rows("erased", {}) for first, last in json.loads(row["events"])]


def _is_running(journal: Journal, run: Row) -> bool:
    return run["status"] == "running" and run["writer"] != COPYING and not journal.is_gone(run["writer"])


def _with_called(journal: Journal, selection: Selection) -> Selection:
    """The selection, and the runs that it called."""
    store = journal.store
    runs, coming = set(selection.runs), set(selection.runs)
    single = store.rows("steps_by_ids", {"ids": json_list(selection.steps)})
    called = store.rows("children", {"runs": json_list({step["run"] for step in single})})
    numbers = {(step["run"], step["number"]) for step in single}
    coming |= {row["id"] for row in called if (row["parent"], row["parent_step"]) in numbers}
    while coming:
        runs |= coming
        coming = {row["id"] for row in store.rows("children", {"runs": json_list(coming)})} - runs
    return replace(selection, runs=runs)


class _Work:
    """One erase, inside its transaction."""

    def __init__(self, journal: Journal, selection: Selection) -> None:
        self._journal, self._store = journal, journal.store
        self._selection = selection
        self._sweep = Sweep(journal)
        self._counts: dict[str, int] = {}

    def apply(self, what: list[str]) -> dict[str, Any]:
        """Erases everything; returns the fields of the receipt."""
        chosen = _with_called(self._journal, self._selection)
        runs = self._by("runs_by_ids", chosen.runs)
        chosen.runs = {row["id"] for row in runs}  # another process may have erased some meanwhile
        chosen.notes = {row["id"] for row in self._by("notes_by_ids", chosen.notes)}
        chosen.steps = {row["id"] for row in self._by("steps_by_ids", chosen.steps)}
        chosen.steps |= {row["id"] for row in self._by("steps_by_runs", chosen.runs)}
        chosen.notes = self._with_derived(chosen)
        texts = [
            row["text"] for row in (*self._by("steps_by_ids", chosen.steps), *self._by("notes_by_ids", chosen.notes))
        ]
        alerts = {row["id"] for row in self._store.rows("alerts_of", _ids(runs=chosen.runs, steps=chosen.steps))}
        notes = self._by("notes_by_ids", chosen.notes)
        scopes = {row["scope"] for row in (*runs, *self._runs_of(chosen.steps), *notes)}
        last_steps = self._ends(chosen)
        copies = snapshots_with_variables_of(self._journal, self._by("steps_by_ids", chosen.steps))
        snapshots = self._erase_snapshots(chosen.snapshots | copies)
        change = Sessions(self._journal, chosen.runs, chosen.steps).apply()
        _refuse_running(self._journal, change.dead | change.lossy | change.touched)
        gone = sorted(chosen.steps - change.kept.keys())
        contents = snapshots | self._erase_rows(chosen, runs, gone, change, alerts | chosen.alerts)
        self._update_runs(gone, last_steps, contents)
        quoting = self._sweep.erase_quotes(gone, chosen.notes, scopes, texts)
        self._erase_contents(change, contents)
        self._index_again(change, quoting)
        self._counts |= {
            "contents": self._sweep.deleted,
            "replaced": self._sweep.replaced,
            "prompts": self._sweep.prompts,
        }
        counts = {name: count for name, count in self._counts.items() if count}
        if counts:
            self._store.do("compact_document_words", {})
            self._add_receipt(what, counts, change.events)
        ids = {"runs": tuple(row["id"] for row in runs), "steps": tuple(gone), "notes": tuple(sorted(chosen.notes))}
        return {**ids, "counts": counts}

    def _by(self, query: str, ids: Iterable[Any]) -> list[Row]:
        return self._store.rows(query, {"ids": json_list(ids)})

    def _runs_of(self, steps: Iterable[int]) -> list[Row]:
        return self._by("runs_by_ids", {row["run"] for row in self._by("steps_by_ids", steps)})

    def _erase(self, table: str, ids: Iterable[Any]) -> None:
        self._counts[table] = len(self._by(f"erase_{table}", ids))

    def _with_derived(self, chosen: Selection) -> set[str]:
        """The notes, and the notes that agents made from them, from erased steps, or in erased runs."""
        notes = set(chosen.notes)
        sources: set[Any] = {*chosen.steps, *notes}
        made = self._by("notes_by_runs", chosen.runs)
        while True:
            made += self._store.rows("notes_from", {"sources": json_list(sources)})
            sources = {row["id"] for row in made if row["origin"] != "user"} - notes
            if not sources:
                return notes
            notes |= sources
            made = []

    def _ends(self, chosen: Selection) -> dict[str, Row]:
        """The runs that stay and lose a step, each with whether it loses its task or its last step."""
        ends: dict[str, Row] = {}
        single = [row for row in self._by("steps_by_ids", chosen.steps) if row["run"] not in chosen.runs]
        for run in {row["run"] for row in single}:
            steps = [row for row in self._by("steps_by_runs", [run]) if row["kind"] != "system_prompt"]
            lost = {row["id"] for row in single}
            tasks = [row["id"] for row in steps if row["kind"] == "task"]
            last = max((row["id"] for row in steps if row["kind"] != "task"), default=0)
            ends[run] = {"task": tasks[:1] and tasks[0] in lost, "last": last in lost}
        return ends

    def _erase_rows(
        self, chosen: Selection, runs: list[Row], gone: list[int], change: Change, alerts: set[int]
    ) -> set[int]:
        """Deletes rows, and repairs notes that stay; returns the contents that the rows referred to."""
        contents = {event[column] for event in change.events for column in ("record", "shown", "state")}
        contents |= {call[column] for call in change.calls for column in ("arguments", "outcome")}
        contents |= {run[column] for run in runs for column in ("answer", "failure")}
        contents |= change.contents | self._erase_recalled(chosen, gone, change)
        sessions = change.dead | change.lossy | change.touched
        self._erase_passages(sessions, chosen.notes, gone)
        self._erase("events", (event["id"] for event in change.events))
        self._erase("calls", (call["id"] for call in change.calls))
        self._store.rows("erase_pending", _ids(steps=gone, notes=chosen.notes))
        forgotten = _ids(runs=chosen.runs, notes=chosen.notes, steps=gone)
        self._counts["forgotten"] = len(self._store.rows("erase_forgotten", forgotten))
        trims = _ids(sessions=change.dead | change.lossy)
        self._counts["trims"] = len(self._store.rows("erase_trims", trims))
        self._erase("alerts", alerts)
        self._repair_notes(chosen, gone)
        self._erase("notes", chosen.notes)
        self._erase("steps", gone)
        self._erase("runs", chosen.runs)
        self._store.do("erase_exposure", _ids(sessions=change.dead))
        self._erase("sessions", change.dead)
        return contents - {None}

    def _erase_snapshots(self, events: Iterable[int]) -> set[int]:
        """Takes the variables off events; returns the contents that held them."""
        rows = [row for row in self._by("events_by_ids", events) if row["state"] is not None]
        for row in rows:
            new = row | {"state": None}
            self._store.do("put_event", with_hash("event", new))
        return {row["state"] for row in rows}

    def _erase_passages(self, sessions: set[str], notes: set[str], gone: list[int]) -> None:
        """Drops the passages of whole sessions: passages of remaining steps may quote erased ones."""
        lost, rows = set(gone), self._store.rows("erasable_passages", _ids(sessions=sessions, notes=notes))
        drop_passages(self._store, rows)
        self._counts["passages"] = sum(row["step"] in lost or row["note"] is not None for row in rows)

    def _erase_recalled(self, chosen: Selection, gone: list[int], change: Change) -> set[int]:
        """Erases the reminders of erased runs; a reminder of a step that a fork keeps moves to the fork."""
        rows = {row["id"]: row for row in self._by("recalled_by_runs", chosen.runs)}
        rows |= {row["id"]: row for row in self._by("recalled_by_steps", gone)}
        for row in [row for row in rows.values() if row["step"] in change.kept]:
            new = row | {"run": change.kept[row["step"]]}
            self._store.do("put_recalled", with_hash("recalled", new))
            del rows[row["id"]]
        self._erase("recalled", rows)
        return {row["block"] for row in rows.values()}

    def _repair_notes(self, chosen: Selection, gone: list[int]) -> None:
        """Removes references to erased rows from other notes; a note that an erased note superseded stays hidden."""
        lost: set[Any] = {*gone, *chosen.notes}
        staying = {row["id"]: row for row in self._store.rows("notes_from", {"sources": json_list(lost)})}
        staying |= {row["id"]: row for row in self._by("notes_by_runs", chosen.runs)}
        staying |= {row["id"]: row for row in self._by("notes_superseding", chosen.notes)}
        for row in [row for row in staying.values() if row["id"] not in chosen.notes]:
            sources = json.dumps([source for source in json.loads(row["sources"]) if source not in lost])
            run = None if row["run"] in chosen.runs else row["run"]
            past = None if row["supersedes"] in chosen.notes else row["supersedes"]
            new = row | {"run": run, "supersedes": past, "sources": sources}
            self._store.do("put_note", with_hash("note", new))
        for row in self._by("notes_by_ids", chosen.notes):
            if row["supersedes"] is not None and row["supersedes"] not in chosen.notes:
                self._journal.add("forgotten", {"what": "note", "target": row["supersedes"], "at": time.time()})

    def _update_runs(self, gone: list[int], ends: dict[str, Row], contents: set[int]) -> None:
        """Updates the counts of runs that lost a step, and their title or answer if it came from that step."""
        for run in self._by("runs_by_ids", ends):
            row = run | ({"title": PLACEHOLDER} if ends[run["id"]]["task"] else {})
            if ends[run["id"]]["last"]:
                contents |= {run["answer"], run["failure"]} - {None}
                row |= {"answer": None, "failure": None}
            if run["status"] != "running":
                row |= self._journal.run_counts(run["id"])
            self._store.do("put_run_lineage", with_hash("run", row))

    def _erase_contents(self, change: Change, contents: set[int]) -> None:
        unclear = self._sweep.drop_prompts({event["prompt"] for event in change.events} - {None})
        lossy: dict[int, list[int]] = {}
        if change.lossy:
            events = self._by("events_by_sessions", change.lossy)
            lossy = self._sweep.chain(event["prompt"] for event in events if event["prompt"] is not None)
            shown = {event["shown"] for event in events if event["shown"] is not None}
            own = self._sweep.own_parts(shown)
            unclear |= {part for parts in lossy.values() for part in parts} - own
        self._sweep.drop_contents(contents, unclear, set(lossy))

    def _index_again(self, change: Change, quoting: set[str]) -> None:
        drop_passages(self._store, self._store.rows("erasable_passages", _ids(sessions=quoting, notes=())))
        self._store.do("index_sessions", {"sessions": json_list((change.touched | quoting) - change.dead)})

    def _add_receipt(self, what: list[str], counts: dict[str, int], events: list[Row]) -> None:
        ranges: list[list[int]] = []
        for number in sorted(event["id"] for event in events):
            if ranges and ranges[-1][1] == number - 1:
                ranges[-1][1] = number
            else:
                ranges.append([number, number])
        row = {"at": time.time(), "what": json.dumps(what), "counts": json.dumps(counts), "events": json.dumps(ranges)}
        self._journal.add("erased", row | {"finished": 0})


def _ids(**lists: Iterable[Any]) -> dict[str, str]:
    return {name: json_list(values) for name, values in lists.items()}
