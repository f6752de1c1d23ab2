"""Checks on reading that no index hides a row.

A damaged or outdated index page hides rows without an error: SQLite finds no entry and returns fewer rows. So the rows
found through one index are compared with rows found another way: the steps of a run with the events that inserted
them, the events of a session with its steps, runs and calls with their tables.

Both sides of a comparison are read by one statement, because other processes write meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from smolmem.core.errors import NotFound
from smolmem.core.rows import RunRow, SessionRow
from smolmem.store.base import Row
from smolmem.store.contents import Contents


class Links(Contents):
    """Checks the counts and links of rows."""

    def check_runs(self) -> None:
        """Raises `Damaged` if runs are missing from the indexes that find them by time and by id."""
        found = self.store.rows("run_links", {})[0]
        if not found["runs"] == found["by_time"] == found["by_id"]:
            raise self.damaged(f"{found['runs']} runs are stored, but an index of them is damaged")

    def check_notes(self) -> None:
        """Raises `Damaged` if an index hides notes, or rows that supersede or forget them."""
        found = self.store.rows("note_links", {})[0]
        for name, by in (("notes", "id"), ("superseding", "past"), ("forgotten", "target")):
            if found[name] != found[f"{name}_by_{by}"]:
                raise self.damaged(f"{found['notes']} notes are stored, but an index of them is damaged")

    def check_steps(self, run: str, session: str) -> None:
        """Raises `Damaged` if steps of a run are missing from an index, or are fewer than when the run ended."""
        found = self.store.rows("step_links", {"run": run, "session": session})[0]
        if found["steps"] != found["inserted"]:
            raise self.damaged(f"run {run[:8]} has {found['inserted']} steps, but {found['steps']} are found")
        if found["actions"] < found["counted"]:
            raise self.damaged(f"run {run[:8]} did {found['counted']} steps, but {found['actions']} are found")

    def check_events(self, session: str) -> None:
        """Raises `Damaged` if events of a session are missing from an index: they must account for its steps."""
        found = self.store.rows("session_links", {"session": session})[0]
        by_events = found["inserted"], found["revised"], found["listed"]
        if by_events != (found["steps"], found["revisions"], found["places"]):
            raise self.damaged(f"the events of session {session[:8]} do not account for its steps")

    def call_counts(self, runs: Iterable[str]) -> dict[str, int]:
        """How many calls each run has made, counted without an index; runs without calls are left out."""
        rows = self.store.rows("call_counts", {"runs": json.dumps(list(runs))})
        return {row["run"]: row["calls"] for row in rows}

    # --- forks -----------------------------------------------------------------------------------------------------

    def session_lineage(self, session: SessionRow) -> Iterator[SessionRow]:
        """A session, the session it is a fork of, and so on.

        Raises:
            Damaged: a session is a fork of itself.
        """
        return self._lineage("session", session, self.session_row)

    def run_lineage(self, run: RunRow) -> Iterator[RunRow]:
        """A run, the run it is a fork of, and so on.

        Raises:
            Damaged: a run is a fork of itself.
        """
        return self._lineage("run", run, self.run_row)

    def _lineage(self, what: str, first: Any, read: Callable[[str], Any]) -> Iterator[Any]:
        seen: set[str] = set()
        at = first
        while at["id"] not in seen:
            seen.add(at["id"])
            yield at
            if at["fork_of"] is None:
                return
            at = read(at["fork_of"])
        raise self.damaged(f"{what} {at['id'][:8]} is a fork of itself")

    def session_row(self, session: str) -> SessionRow:
        """The row of a session.

        Raises:
            NotFound: if the session was erased.
        """
        found = self.store.rows("session_row", {"id": session})
        if found:
            return cast(SessionRow, self._without_hash("session", found[0]))
        if self.store.do("session_is_used", {"id": session}):
            raise self.damaged(f"session {session[:8]} is missing")
        raise NotFound(f"session {session[:8]} is no longer in {self.store.url}: its runs were erased.")

    def run_row(self, run: str) -> RunRow:
        """The row of a run.

        Raises:
            NotFound: if the run was erased.
        """
        found = self.store.rows("run_row", {"id": run})
        if found:
            return cast(RunRow, self._without_hash("run", found[0]))
        self.check_runs()
        raise NotFound(f"run {run[:8]} is no longer in {self.store.url}: it was erased.")

    def _without_hash(self, table: str, row: Row) -> Row:
        return {name: value for name, value in self.sealed(table, row).items() if name != "hash"}
