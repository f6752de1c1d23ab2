"""Loads the lines of an export, one by one, into a store; part of the transaction of `load.py`.

A line may only refer to earlier lines. Seals, steps and counts are derived, not taken from the line.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from smolmem.core.arguments import check_scope
from smolmem.core.encoding import step_facts
from smolmem.core.errors import InvalidArgument, TooNew, Undone
from smolmem.core.timeline import Misplaced, Timeline
from smolmem.core.values import Failure
from smolmem.store.base import Progress, Row
from smolmem.store.contents import with_hash
from smolmem.store.journal import Journal
from smolmem.store.passage_rows import drop_passages
from smolmem.store.side_tables import quoted_lines
from smolmem.store.writer import COPYING, IMPORTED, RESTORED
from smolmem.transfer import archive
from smolmem.transfer.archive import ExportReader
from smolmem.transfer.incomplete import NOT_ENDED, CopiedPart, awaited_run, is_incomplete
from smolmem.transfer.lines import FORMAT, SHAPES, VERSION, InvalidLine, LoadedContents, Numbers, parse_line

WAITING = 10_000
"""Prompts that may wait for their event."""


@contextmanager
def _refused(why: str) -> Iterator[None]:
    """Refuses a line whose contents cannot be used, whatever they are. Errors of a server pass through."""
    try:
        yield
    except Undone:
        raise
    except Exception as error:
        raise InvalidLine(f"{why} ({error})") from error


class LineLoader:
    """One load: the lines so far, and their numbers in this store."""

    def __init__(
        self,
        journal: Journal,
        export: ExportReader,
        scope: str | None,
        *,
        keep: bool,
        copied: CopiedPart | None = None,
    ) -> None:
        self._keeps_origins = keep
        self._store, self._export, self._scope = journal.store, export, scope
        self._journal = Journal(journal.store, journal.redactor)  # with caches of its own, should all be undone
        self._exported_scope: str | None = None
        self._copied = copied or CopiedPart()
        self._contents = LoadedContents(journal.store, export, self._copied.contents)
        self.added: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.differing: set[str] = set()
        self._lines, self._ended = 0, False
        self._events, self.prompt_numbers = Numbers("event"), Numbers("prompt", self._copied.prompts)
        self.step_numbers = Numbers("step", self._copied.steps)
        self._lists: dict[str, Timeline[Row] | None] = {}  # of new and incomplete sessions; None: here, or left out
        self._waiting: dict[int, list[Row]] = {}  # forks, by the event they begin after
        self._parents: dict[str, str] = {}
        self._stored_events: dict[str, list[Row]] = {}
        self._matched: Counter[str] = Counter()
        self._next_prompts: dict[int, Row] = {}  # prompts of events that come later
        self._runs: dict[str, bool] = {}  # whether they are new
        self._named_runs: set[str] = set()
        self._awaited_runs: set[str] = set()  # their lines come later
        self._agents: dict[str, Row] = {}  # of sessions, with their scopes
        self.fork_events: dict[int, tuple[str, int]] = {}  # as in `CopiedPart.forks`
        self._children: dict[str, str] = {}  # runs of managed agents, and the runs that called them
        self._notes: set[str] = set()
        self._loaders: dict[str, Callable[[Row], None]] = {kind: getattr(self, f"_{kind}") for kind in SHAPES}

    def load_lines(self, progress: Progress | None) -> LineLoader:
        """Every line of the export."""
        for number, line in self._export.lines(progress):
            try:
                self._load_line(line)
            except (InvalidLine, InvalidArgument) as error:
                raise archive.damaged(self._export.path, f"line {number}: {str(error).rstrip('.')}") from error
        try:
            self._finish()
        except InvalidLine as error:
            raise archive.damaged(self._export.path, str(error)) from error
        return self

    def _load_line(self, line: bytes) -> None:
        if self._ended:
            raise InvalidLine("the line comes after the end line")
        kind, row = parse_line(line)
        if (kind == "header") != (self._lines == 0):
            raise InvalidLine("an export has one header, in its first line")
        self._loaders[kind](row)
        self._lines += 1

    def _finish(self) -> None:
        if not self._ended:
            raise InvalidLine("the end line is missing, so the export is incomplete")
        if self._waiting:
            raise InvalidLine(f"a fork begins after event {min(self._waiting)}, which is missing")
        for session, of in self._parents.items():
            if self._lists[session] is not None and not self._store.rows("session_row", {"id": of}):
                raise InvalidLine(f"session {session} is a fork of {of}, which is missing")
        for run in self._named_runs - self._runs.keys():
            if run in self._awaited_runs or not self._store.rows("run_row", {"id": run}):
                raise InvalidLine(f"run {run} is missing, and other lines refer to it")
        for child, parent in self._children.items():
            if not self._runs.get(parent):  # a run that was here before gets no new children: their answers are used
                row = {**self._journal.run_row(child), "parent": None, "parent_step": None}
                self._store.do("unlink_run", with_hash("run", row))

    def _header(self, row: Row) -> None:
        if row["format"] != FORMAT:
            raise InvalidLine(f"the first line is not that of an export: its format is {row['format'][:40]!r}")
        if row["version"] > VERSION:
            raise TooNew(
                f"{self._export.path} was made by a later smolmem (format {row['version']}, this one knows {VERSION}), "
                "and nothing was loaded: upgrade smolmem."
            )
        self._exported_scope = row["scope"]

    def _end(self, row: Row) -> None:
        if row["lines"] != self._lines:
            raise InvalidLine(f"{row['lines']:,} lines should precede the end line, and there are {self._lines:,}")
        self._ended = True

    def _add(self, table: str, row: Row) -> Any:
        self.added[table] += 1
        return self._store.do(f"add_{table}", with_hash(table, row))

    def _scope_here(self, scope: str) -> str:
        """The scope in this store for a scope of the file."""
        check_scope(scope)
        if self._scope is None:
            return scope
        if self._exported_scope is None:
            return f"{self._scope}/{scope}"
        if scope != self._exported_scope and not scope.startswith(f"{self._exported_scope}/"):
            raise InvalidLine(f"the scope {scope!r} is outside of the exported scope {self._exported_scope!r}")
        return self._scope + scope[len(self._exported_scope) :]

    # --- contents and prompts --------------------------------------------------------------------------------------

    def _content(self, row: Row) -> None:
        if self._contents.add(row):
            self.added["content"] += 1

    def _prompt(self, row: Row) -> None:
        if row["id"] in self._next_prompts:
            raise InvalidLine(f"prompt {row['id']} comes twice")
        self._next_prompts[row["id"]] = row
        if len(self._next_prompts) > WAITING:
            raise InvalidLine("too many prompts without an event")

    def _put_prompts(self, wanted: int | None, here: Row | None, *, new: bool) -> None:
        """Writes the prompt of an event and the prompts that it begins with; finds them if the event is stored already.

        Prompts of other events, which come later, may stand between them.
        """
        at, rows = wanted, list[Row]()
        while at in self._next_prompts:
            rows.append(self._next_prompts.pop(at))
            at = rows[-1]["parent"]
        stored = [0 if here is None else here["prompt"]]
        while not new and len(stored) < len(rows):
            stored.append(self._journal.prompt_row(stored[-1])["parent"] if stored[-1] else 0)
        for row in reversed(rows):
            self.prompt_numbers.put(row["id"], self._add_prompt(row) if new else stored.pop() or 0)

    def _add_prompt(self, row: Row) -> int:
        parent = None if row["parent"] is None else self.prompt_numbers.get(row["parent"])
        parts = 0
        if parent is not None:
            before = self._journal.prompt_row(parent)
            parts = before["keep"] + len(json.loads(before["suffix"]))
        if row["keep"] > parts:
            raise InvalidLine(f"prompt {row['id']} keeps more parts than its parent has")
        suffix = [self._contents.number(key) for key in row["suffix"]]
        prompt = {"parent": parent, "keep": row["keep"], "size": row["size"], "suffix": json.dumps(suffix)}
        return int(self._add("prompt", prompt))

    # --- sessions, events, steps -----------------------------------------------------------------------------------

    def _session(self, row: Row) -> None:
        session = row["id"]
        if session in self._lists or session in self._parents:
            raise InvalidLine(f"session {session} comes twice")
        row["scope"] = self._scope_here(row["scope"])
        self._agents[session] = {"scope": row["scope"], "agent": row["agent"]}
        if self._store.rows("session_row", {"id": session}):
            skip = self._copied.skip.get(session, 0)
            self._stored_events[session] = self._store.rows("session_events", {"session": session, "skip": skip})
            if self._keeps_origins and is_incomplete(self._store, session):
                self._lists[session] = self._journal.timeline(self._journal.session_row(session))
                self.added["session"] += self._copied.is_last
            else:
                self._lists[session] = None
                self.skipped["session"] += self._copied.is_last
        elif row["fork_of"] is None:
            self._lists[session] = Timeline()
            self._add("session", row | {"fork_at": None})
        elif not row["fork_at"]:
            self._lists[session] = Timeline()
            self._parents[session] = row["fork_of"]
            self._add("session", row | {"fork_at": 0})
        elif begun := self._copied.forks.get(row["fork_at"]):
            self._fork(row, *begun)
        else:
            self._parents[session] = row["fork_of"]
            self._waiting.setdefault(row["fork_at"], []).append(row)

    def _event(self, row: Row) -> None:
        timeline, session = self._list_of(row), row["session"]
        if timeline is None or self._matched[session] < len(self._stored_events.get(session, ())):
            self._match(row)
        else:
            self._put_prompts(row["prompt"], None, new=True)
            self._apply(row, timeline)
        if row["id"] in self._copied.forks:
            self.fork_events[row["id"]] = session, self._events.get(row["id"])
        for fork in self._waiting.pop(row["id"], ()):
            self._begin(fork, row)

    def _list_of(self, row: Row) -> Timeline[Row] | None:
        """The list of the session that a line belongs to; None if the store has it, or it is left out."""
        if row["session"] not in self._lists:
            raise InvalidLine(f"the line belongs to session {row['session']}, which no earlier line holds")
        return self._lists[row["session"]]

    def _match(self, row: Row) -> None:
        """Matches an event of a session that the store has already with the stored event at the same place."""
        session, place = row["session"], self._matched[row["session"]]
        self._matched[session] += 1
        events = self._stored_events.get(session, [])
        stored = events[place] if place < len(events) and session not in self.differing else None
        if stored is not None and (stored["act"], stored["at"], stored["place"]) != (
            row["act"],
            row["at"],
            row["place"],
        ):
            stored = None
        if stored is None and self._lists[session] is not None:
            raise InvalidLine(
                f"session {session} changed since a part of it was copied: erase its runs in the copy first"
            )
        if stored is None and session in self._stored_events:
            self.differing.add(session)
        self._put_prompts(row["prompt"], stored, new=False)
        self._events.put(row["id"], 0 if stored is None else stored["id"])
        if self.step_numbers.find(row["step"]) is None:
            self.step_numbers.put(row["step"], 0 if stored is None else stored["step"])

    def _begin(self, fork: Row, event: Row) -> None:
        """A fork's list begins as the list was after an event of its past."""
        origin, seen = fork["fork_of"], {fork["id"]}
        while origin != event["session"]:
            if origin in seen:
                raise InvalidLine(f"session {fork['id']} begins after an event that is not part of its past")
            seen.add(origin)
            known = self._store.rows("session_row", {"id": origin})
            origin = self._parents.get(origin) or (known[0]["fork_of"] if known else None) or origin
        self._fork(fork, event["session"], self._events.get(event["id"]))

    def _fork(self, fork: Row, of: str, at: int) -> None:
        """Writes a fork of what a session was after an event; leaves it out if the event is not here."""
        if at == 0:
            self._lists[fork["id"]] = None
            self.skipped["session"] += self._copied.is_last
            return
        self._lists[fork["id"]] = self._journal.timeline(self._journal.session_row(of), at)
        self._add("session", fork | {"fork_at": at})

    def _apply(self, row: Row, timeline: Timeline[Row]) -> None:
        """Applies an event to its list and writes it, as when it was recorded."""
        self._named_runs.add(row["run"])
        event = self._contents.numbered(row, "record", "shown", "state")
        del event["id"]
        event["prompt"] = None if row["prompt"] is None else self.prompt_numbers.get(row["prompt"])
        new = row["act"] == "insert" and self.step_numbers.find(row["step"]) is None
        if new and self._is_mine(row["run"]):
            raise InvalidLine(f"the step belongs to run {row['run']}, which the store had before")
        event["step"] = None if new else self.step_numbers.get(row["step"])
        facts: Row | None = None
        if event["record"] is not None:
            with _refused("the record is not a step"):
                facts = {**step_facts.facts(self._journal.value(event["record"]))}
        self._check_event(event, timeline, new=new)
        self._await_run(row["run"], row["session"], row["at"])
        last = event["place"] is None or event["place"] >= len(timeline.steps)
        event["step"] = self._journal.append(event, facts, last=last)
        self.added["event"] += 1
        timeline.apply(event["act"], event["step"], event["place"], None if event["record"] is None else event)
        timeline.latest.clear()  # only the order is needed
        timeline.revisions.clear()
        if new:
            self.step_numbers.put(row["step"], event["step"])
            self.added["step"] += 1
        written = 0
        if row["id"] in self._waiting or row["id"] in self._copied.forks:  # a fork begins after this event
            written = int(self._store.rows("last_event", {"session": event["session"], "until": None})[0]["last"])
        self._events.put(row["id"], written)

    def _await_run(self, run: str, session: str, at: float) -> None:
        """Writes a row for a run whose line comes later: rows refer to runs that are stored."""
        if run in self._awaited_runs or run in self._runs or self._store.rows("run_row", {"id": run}):
            return
        row = awaited_run(run, session, at) | self._agents[session]
        self._store.do("put_run", with_hash("run", row))
        self._awaited_runs.add(run)

    def _check_event(self, event: Row, timeline: Timeline[Row], *, new: bool) -> None:
        """Refuses an event that cannot have happened, before anything of it is written."""
        act, step, content = event["act"], event["step"], None if event["record"] is None else event
        if new and content is None:
            raise InvalidLine("a new step has no record")
        if not new and not step:
            raise InvalidLine("the event changes a step that is not loaded")
        if not new and (act == "revise") == (content is None):
            raise InvalidLine("a revision must have a record, and another change of a step must not")
        if act == "revise" and step not in (*timeline.steps, timeline.system):
            before = self._store.rows("step_row", {"id": step})[0]
            if before["session"] != event["session"]:
                raise InvalidLine("the event revises a step of another list")
        try:
            timeline.check(act, step, event["place"], has_content=content is not None)
        except Misplaced as error:
            raise InvalidLine(str(error)) from error

    def _step(self, row: Row) -> None:
        self.step_numbers.get(row["id"])

    # --- runs, and what was done around steps ----------------------------------------------------------------------

    def _run(self, row: Row) -> None:
        run, session = row["id"], row["session"]
        if run in self._runs:
            raise InvalidLine(f"run {run} comes twice")
        here, new = self._store.rows("run_row", {"id": run}), self._list_of(row) is not None
        if row["fork_of"] is not None and self._copied.is_last and not self._is_run(row["fork_of"]):
            raise InvalidLine(f"run {run} is a fork of {row['fork_of']}, which no earlier line holds")
        self._runs[run] = new
        if not new:
            self.skipped["run"] += self._copied.is_last
            if not here:
                self.differing.add(session)
            return
        is_awaited = run in self._awaited_runs
        self._awaited_runs.discard(run)
        if here and not is_awaited and (here[0]["writer"] != COPYING or here[0]["session"] != session):
            raise InvalidLine(f"run {run} is in another session of this store")
        row |= {"scope": self._scope_here(row["scope"]), "tags": json.dumps(row["tags"])}
        if self._copied.is_last:
            self._put_ended_run(row, again=bool(here))
        elif is_awaited or not here:
            self._put_run(row | NOT_ENDED, again=is_awaited)

    def _put_ended_run(self, row: Row, *, again: bool) -> None:
        run = row["id"]
        if row["parent"] is not None:
            self._await_run(row["parent"], row["session"], row["began"])
            self._named_runs.add(row["parent"])
            self._children[run] = row["parent"]
        if row["session"] not in self._parents and self._is_mine(row["fork_of"]):
            row["fork_of"] = None
        row["writer"] = RESTORED if self._keeps_origins else IMPORTED
        row = self._contents.numbered(row, "answer", "failure")
        if row["failure"] is not None:
            with _refused("the failure of the run is malformed"):
                Failure(**self._journal.value(row["failure"]))
        if row["status"] == "running":  # on the other machine, perhaps
            row |= {"status": "interrupted", **self._store.rows("run_counts", {"run": run})[0]}
        self._put_run(row, again=again)
        self.added["run"] += 1

    def _put_run(self, row: Row, *, again: bool) -> None:
        row = with_hash("run", row)
        self._store.do("put_run", row)
        if again:
            self._store.do("put_run_facts", row)

    def _is_run(self, run: str) -> bool:
        """Whether a run is in the store, or on an earlier line."""
        return run in self._runs or (run not in self._awaited_runs and bool(self._store.rows("run_row", {"id": run})))

    def _is_mine(self, run: str | None) -> bool:
        """Whether the store had a run before, and the run is no import: imported lines may not refer to it."""
        if self._keeps_origins or run is None or run in self._awaited_runs or self._runs.get(run):
            return False
        return any(row["writer"] != IMPORTED for row in self._store.rows("run_row", {"id": run}))

    def _is_my_note(self, note: Any) -> bool:
        """The same for a note."""
        if self._keeps_origins or not isinstance(note, str) or note in self._notes:
            return False
        return any(row["origin"] != "import" for row in self._store.rows("note_row", {"id": note}))

    def _is_new(self, run: str) -> bool:
        """Whether a run came with this file."""
        if run not in self._runs:
            raise InvalidLine(f"the line belongs to run {run}, which no earlier line holds")
        return self._runs[run]

    def _call(self, row: Row) -> None:
        if self._is_new(row["run"]):
            call = self._contents.numbered(row, "arguments", "outcome")
            del call["id"]
            self._add("call", call)

    def _recalled(self, row: Row) -> None:
        if not self._is_new(row["run"]):
            return
        found = [item if not item or isinstance(item, str) else self.step_numbers.get(item) for item in row["found"]]
        step = None if row["step"] is None else self.step_numbers.get(row["step"])
        found = [item for item in found if not self._is_my_note(item)]
        recalled = self._contents.numbered(row, "block") | {"step": step, "found": json.dumps(found)}
        del recalled["id"]
        with _refused("the reminder is not a list of messages"):
            quoted_lines(self._journal.part(recalled["block"]) if recalled["block"] is not None else [])
        self._add("recalled", recalled)

    def _cut(self, row: Row) -> None:
        if self._list_of(row) is not None:
            del row["id"]
            self._add("cut", row | {"last": self.step_numbers.get(row["last"])})

    def _alert(self, row: Row) -> None:
        row["scope"] = self._scope_here(row["scope"])
        del row["id"]
        known = self._store.do("same_alert", row) if row["run"] is None else not self._is_new(row["run"])
        if not known:
            self._add("alert", row | {"acts": json.dumps(row["acts"])})

    # --- notes -----------------------------------------------------------------------------------------------------

    def _note(self, row: Row) -> None:
        note = row["id"]
        if note in self._notes:
            raise InvalidLine(f"note {note} comes twice")
        if self._store.rows("note_row", {"id": note}):
            self.skipped["note"] += 1
            return
        if row["run"] is not None and not self._is_run(row["run"]):
            raise InvalidLine(f"the note was written in run {row['run']}, which no earlier line holds")
        if row["supersedes"] is not None and not self._store.rows("note_row", {"id": row["supersedes"]}):
            raise InvalidLine(f"the note supersedes note {row['supersedes']}, which no earlier line holds")
        if not self._keeps_origins:
            row["origin"] = "import"
            row["run"] = None if self._is_mine(row["run"]) else row["run"]
            if row["supersedes"] not in self._notes:  # an import never replaces a note that was here before
                row["supersedes"] = None
        sources = [item if isinstance(item, str) else self.step_numbers.get(item) for item in row["sources"]]
        row |= {"scope": self._scope_here(row["scope"]), "tags": json.dumps(row["tags"])}
        row["sources"] = json.dumps([item for item in sources if item and not self._is_my_note(item)])
        self._add("note", row)
        self._notes.add(note)
        self._store.do("add_pending_note", {"note": note})
        if row["supersedes"] is not None:
            drop_passages(self._store, self._store.rows("note_passages", {"note": row["supersedes"]}))

    def _forgotten(self, row: Row) -> None:
        """Forgets only rows that came with this file: rows that the store had before do not change."""
        del row["id"]
        what, target = row["what"], row["target"]
        if isinstance(target, int) != (what == "step"):
            raise InvalidLine(f"{target!r} is not a {what}")
        if what == "step":
            step = self.step_numbers.get(target)
            rows = self._store.rows("step_row", {"id": step})
            if not rows or self._lists.get(rows[0]["session"]) is None:
                return
            row["target"] = str(step)
        elif what == "run" and not self._is_new(target):
            return
        elif what == "note" and target not in self._notes:
            if not self._store.rows("note_row", {"id": target}):
                raise InvalidLine(f"note {target} is forgotten, and no earlier line holds it")
            return
        self._add("forgotten", row)
        if what == "note":
            drop_passages(self._store, self._store.rows("note_passages", {"note": target}))
