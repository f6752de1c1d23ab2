"""What the tables mean: batches in, runs and steps out. Written once, above every backend."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, cast

from smolmem.errors import CannotResume, NotFound
from smolmem.record import codec, wire
from smolmem.record.codec import Encoded
from smolmem.record.session import Entry, Session, look
from smolmem.record.values import (
    Batch,
    CallRow,
    Change,
    Event,
    Failure,
    PastCall,
    PastCode,
    Run,
    RunRow,
    Saved,
    Sent,
    SessionRow,
    Status,
    Step,
    when,
)
from smolmem.record.writer import is_dead, me
from smolmem.store.base import Row, Store
from smolmem.store.fold import Fold
from smolmem.store.records import Records, beginning, seal
from smolmem.store.reminders import Reminders
from smolmem.store.traces import Traces

_OPEN: Row = dict.fromkeys(
    ("scope", "below", "run", "agent", "status", "kind", "tool", "failed", "error", "since", "until", "text")
)


_OPEN_RUNS: Row = dict.fromkeys(
    ("scope", "below", "agent", "status", "since", "until", "text", "parent", "session", "roots")
)


def _count(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 62 else None


class Journal(Records):
    """The record of every run, in a store."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.reminders = Reminders(self)
        self.traces = Traces(self)

    # --- writing ---------------------------------------------------------------------------------------------------

    def save(self, batch: Batch) -> list[Saved]:
        """Writes a batch in one transaction and returns the ids of its changes, in order."""
        with self.store.write():
            if batch.new_session:
                self._add("session", batch.session)
            saved = [self._change(batch.session["id"], change) for change in batch.changes]
            results = {(run, column): self.keep(encoded) for run, column, encoded in batch.results}
            for run in batch.runs:
                given = {column: number for (of, column), number in results.items() if of == run["id"]}
                self._put_run({**run, **given})
        return saved

    def saved(self, session: str, skip: int) -> list[Saved]:
        """What became of a batch of which it is not known whether it was saved: the events after the first `skip`."""
        return [
            Saved(event["step"], event["shown"], event["prompt"], self._suffix(event["prompt"]))
            for event in self.store.rows("session_events", {"session": session, "skip": skip})
        ]

    def _suffix(self, prompt: int | None) -> tuple[int, ...]:
        return () if prompt is None else tuple(json.loads(self.prompt_row(prompt)["suffix"]))

    def begin_call(self, call: CallRow, arguments: Encoded, outcome: Encoded | None = None) -> int:
        """Writes down a call before it is made (or, with its outcome, a model's answer before it is acted on).

        An answer need not be synced: should a power cut take it, nothing that was synced was done with it yet.
        """
        with self.store.write(sync=outcome is None):
            given = {
                "arguments": self.keep(arguments),
                "outcome": None if outcome is None else self.keep(outcome),
            }
            return int(self._add("call", {**call, **given}))

    def end_call(self, number: int, call: CallRow, arguments: Encoded, outcome: Encoded) -> None:
        """Writes down how a call ended; should a power cut take that, the call is unknown, not forgotten."""
        with self.store.write(sync=False):
            row = {**call, "arguments": self.keep(arguments), "outcome": self.keep(outcome)}
            self.store.do("end_call", row | {"id": number, "hash": seal("call", row)})

    def calls(self, run: str, turn: int) -> list[PastCall]:
        """What a run's model answered and its tools did, from a turn on."""
        return [
            PastCall(
                **{name: row[name] for name in ("id", "turn", "kind", "name")},
                key=wire.fingerprint(self.content(row["arguments"])),
                ended=row["ended"] is not None,
                failed=bool(row["failed"]),
                arguments=partial(self.value, row["arguments"]),
                outcome=partial(self.value, row["outcome"]),
            )
            for row in (self.sealed("call", row) for row in self.store.rows("calls", {"run": run, "turn": turn}))
        ]

    def _put_run(self, run: Row) -> None:
        row = run if run["status"] == "running" else run | self._counts(run["id"])
        self.store.do("put_run", row | {"hash": seal("run", row)})

    def _counts(self, run: str) -> Row:
        return self.store.rows("run_counts", {"run": run})[0]

    def _add(self, table: str, row: Mapping[str, Any]) -> Any:
        return self.store.do(f"add_{table}", {**row, "hash": seal(table, row)})

    def _change(self, session: str, change: Change) -> Saved:
        record = None if change.encoded is None else self.keep(change.encoded)
        sent, suffix = self._sent(change.sent) if isinstance(change.sent, Sent) else (change.sent, ())
        shown = None if change.shown is None else self.keep(change.shown)
        state = None if change.state is None else self.keep(change.state)
        step = self._place(session, change, record, sent)
        if change.encoded is not None:
            self.store.do("to_read", {"step": step, "session": session})
        event = {"session": session, "run": change.run, "at": change.at, "act": change.act, "step": step}
        self._add(
            "event", event | {"place": change.place, "record": record, "shown": shown, "prompt": sent, "state": state}
        )
        return Saved(step, shown, sent, suffix)

    def _place(self, session: str, change: Change, record: int | None, sent: int | None) -> int:
        """Keeps `step` in line with the journal: where each step stands, and its latest revision."""
        here = {"session": session, "place": change.place}
        if change.act == "remove":
            self.store.do("place_step", {"id": change.step, "session": session, "place": None})
            self.store.do("shift_steps", here | {"by": -1})
        elif change.act == "insert" and not change.last:
            self.store.do("shift_steps", here | {"by": 1})
        if change.act == "insert" and change.step is None:
            row = {**(change.facts or {}), "session": session, "run": change.run, "at": change.at, "revision": 0}
            return int(self._add("step", row | {"place": change.place, "record": record, "prompt": sent}))
        step = cast(int, change.step)
        if change.act == "insert":
            self.store.do("place_step", {"id": step, **here})
        elif change.act == "revise":
            before = self.store.rows("step", {"id": step})[0]
            if before["session"] != session:
                return step  # it is shared with the run this one is a fork of, where it stays as it was
            row = before | (change.facts or {}) | {"record": record, "prompt": sent, "revision": before["revision"] + 1}
            self.store.do("revise_step", row | {"hash": seal("step", row)})
        return step

    def _sent(self, sent: Sent) -> tuple[int, tuple[int, ...]]:
        suffix = tuple(item if isinstance(item, int) else self.keep(item) for item in sent.suffix)
        row = {"parent": sent.parent, "keep": sent.keep, "size": sent.size, "suffix": json.dumps(suffix)}
        return int(self._add("prompt", row)), suffix

    def claim(self, run: str) -> RunRow:
        """Makes this process the writer of a run that nobody else writes.

        Raises:
            CannotResume: it is finished, or a living process writes it.
        """
        with self.store.write():
            row = self.sealed("run", self.store.rows("run_row", {"id": run})[0])
            if row["status"] == "finished":
                raise CannotResume(f"run {run[:8]} is finished: memory.run({run[:8]!r}).answer is its answer.")
            if row["status"] == "running" and not is_dead(row["writer"]):
                raise CannotResume(f"run {run[:8]} is in use by another process or thread ({row['writer']}).")
            row |= {"status": "running", "writer": me(), "ended": None, "answer": None, "failure": None}
            self._put_run(row)
        del row["hash"]
        return cast(RunRow, row)

    # --- reading ---------------------------------------------------------------------------------------------------

    def find_runs(self, **wanted: Any) -> list[Run]:
        """Runs, newest first; every filter is a parameter of `find_runs` in queries.sql, open if it is not given."""
        return [self._run(row) for row in self.store.rows("find_runs", _OPEN_RUNS | wanted | {"dead": self._dead()})]

    def called_by(self, runs: Iterable[str]) -> list[Run]:
        """The runs that others called, the oldest first."""
        return [self._run(row) for row in self.store.rows("children", {"runs": json.dumps(list(runs))})]

    def forks(self, run: str) -> list[Run]:
        """The forks of a run, the oldest first."""
        return [self._run(row) for row in self.store.rows("forks", {"run": run})]

    def run(self, prefix: str) -> Run:
        """The run whose id begins so.

        Raises:
            NotFound: none does, or several do.
        """
        wanted = beginning(prefix)
        found = [] if wanted is None else self.store.rows("runs_by_prefix", {"prefix": wanted})
        if not found:
            raise NotFound(f"no run {prefix!r} in {self.store.url}: `memory.runs(scope='*')` lists them all.")
        if len(found) > 1:
            fits = ", ".join(row["id"][:12] for row in found[:8])
            raise NotFound(f"run {prefix!r} in {self.store.url} could be any of {fits}: give more of its id.")
        return self._run(found[0])

    def find_steps(self, **wanted: Any) -> list[Step]:
        """Steps, newest first; every filter is a parameter of `find_steps` in queries.sql, open if it is not given."""
        return self._steps(self.store.rows("find_steps", _OPEN | wanted | {"dead": self._dead()}))

    def step(self, number: int) -> Step:
        """The step with this id.

        Raises:
            NotFound: there is none.
        """
        found = [] if _count(number) is None else self.store.rows("step", {"id": number})
        if not found:
            raise NotFound(f"no step {number!r} in {self.store.url}: `memory.steps()` lists the newest.")
        return self._steps(found)[0]

    def _dead(self) -> str:
        writers = (row["writer"] for row in self.store.rows("open_writers", {}))
        return json.dumps([writer for writer in writers if is_dead(writer)])

    def _run(self, row: Row) -> Run:
        self.sealed("run", row)
        status: Status = "interrupted" if row["status"] == "running" and is_dead(row["writer"]) else row["status"]
        if row["status"] == "running":
            row = row | self._counts(row["id"])
        same = (
            "id",
            "session",
            "scope",
            "agent",
            "agent_type",
            "title",
            "parent",
            "parent_step",
            "fork_of",
            "model",
            "smolagents",
            "max_steps",
            "input_tokens",
            "output_tokens",
        )
        return Run(
            **{name: row[name] for name in same},
            status=status,
            began=when(row["began"]),
            ended=None if row["ended"] is None else when(row["ended"]),
            step_count=row["steps"],
            error_count=row["errors"],
            _load_steps=lambda: self._run_steps(row),
            _load_answer=lambda: self.value(row["answer"]),
            _load_failure=lambda: None if row["failure"] is None else Failure(**self.value(row["failure"])),
        )

    def _steps(self, rows: Iterable[Row]) -> list[Step]:
        same = (
            "id",
            "run",
            "session",
            "scope",
            "agent",
            "kind",
            "number",
            "place",
            "seconds",
            "error",
            "input_tokens",
            "output_tokens",
            "revision",
            "text",
        )
        return [
            Step(
                **{name: row[name] for name in same},
                at=when(row["at"]),
                tools=tuple(json.loads(row["tools"])),
                _load=partial(self.step_of, row),
            )
            for row in (self.sealed("step", row) for row in rows)
        ]

    def session(self, session: str, run: str, until: int | None = None) -> Loaded:
        """A session's list as its events leave it, and what its code has done: all that a run needs to go on."""
        row = self.session_row(session)
        fold, past, kept = Fold(), list[PastCode](), None
        turns, done = dict[str, int](), dict[str, int]()
        calls = lru_cache(maxsize=None)(partial(self.calls, turn=0))
        for event in self._events(row, until):
            fold.apply(self.sealed("event", event), own=event["session"] == session)
            if not fold.is_new_step(event):
                continue
            of, turn = event["run"], turns.get(event["run"], 0)
            turns[of] = turn + 1
            kept = event["state"] if event["state"] is not None else kept
            step = self.value(event["record"])
            if codec.is_cut(step):
                continue  # what it did is finished by the step that comes in its place
            if getattr(step, "code_action", None):
                made = [call for call in calls(of) if done.get(of, 0) <= call.turn <= turn]
                past.append(PastCode(step.code_action, step.observations, step.error is not None, made))
            done[of] = turn + 1
        loaded = Session(row)
        system = None if fold.system is None else self._entry(fold.latest[fold.system])
        loaded.load([self._entry(fold.latest[step]) for step in fold.listed], system, fold.count, self.prompt)
        return Loaded(loaded, turns.get(run, 0), done.get(run, 0), past, self.value(kept))

    def session_row(self, session: str) -> SessionRow:
        """What is stored of a session itself."""
        row = self.sealed("session", self.store.rows("session_row", {"id": session})[0])
        return cast(SessionRow, {name: value for name, value in row.items() if name != "hash"})

    def _events(self, row: SessionRow, until: int | None = None) -> Iterator[Row]:
        """What happened to a session's list, beginning with what it has from the one it is a fork of."""
        if row["fork_of"] is not None:
            shared = row["fork_at"] if until is None else min(row["fork_at"] or 0, until)
            yield from self._events(self.session_row(row["fork_of"]), shared)
        for event in self.store.rows("session_events", {"session": row["id"], "skip": 0}):
            if until is None or event["id"] <= until:
                yield event

    def event_at(self, run: Run, at: int | None) -> int | None:
        """The last event before the step after step `at` of a run; None for the end.

        Raises:
            NotFound: the run has no such step.
        """
        if at is None:
            return None
        end: int | None = None  # of what the run has from each session of its lineage
        for session, of in self._lineage(run):
            step = self.store.rows("numbered_step", {"run": of, "number": _count(at)})[0]["step"]
            if step is not None:
                found = self.store.rows("inserted_after", {"session": session, "step": step})[0]["next"]
                return end if found is None else min(int(found) - 1, end or int(found))
            end = self.session_row(session)["fork_at"]
        raise NotFound(f"run {run.id[:8]} has no step {at!r}: it has {run.step_count}.")

    def _lineage(self, run: Run) -> Iterator[tuple[str, str]]:
        yield run.session, run.id
        if run.fork_of is not None:
            yield from self._lineage(self.run(run.fork_of))

    def end_of(self, run: Run, until: int | None) -> tuple[SessionRow, RunRow, int]:
        """What a fork is made from: a run's session and row, and the last event up to `until`."""
        session = self.session_row(run.session)
        row = self.sealed("run", self.store.rows("run_row", {"id": run.id})[0])
        del row["hash"]
        last = self.store.rows("last_event", {"session": run.session, "until": until})[0]["last"]
        return session, cast(RunRow, row), last if last is not None else min(session["fork_at"] or 0, until or 1 << 62)

    def events(self, run: Run) -> list[Event]:
        """What happened to the list while a run went on, in order."""
        rows = self.store.rows("session_events", {"session": run.session, "skip": 0})
        mine = [self.sealed("event", row) for row in rows if row["run"] == run.id]
        return [Event(row["id"], when(row["at"]), row["act"], row["step"], row["place"]) for row in mine]

    def step_events(self, step: Step) -> list[Row]:
        """Everything that happened to a step, as its session knows it."""
        events = self._events(self.session_row(step.session))
        return [self.sealed("event", event) for event in events if event["step"] == step.id]

    def _run_steps(self, row: Row) -> list[Step]:
        own = self._steps(self.store.rows("run_steps", {"run": row["id"]}))
        if row["fork_of"] is None:
            return own
        fold = Fold()
        for event in self._events(self.session_row(row["session"])):
            fold.apply(event)
        mine = {step.id for step in own}
        return (
            self._steps(self._inherited(fold, step, row["session"]) for step in fold.listed if step not in mine) + own
        )

    def _inherited(self, fold: Fold, step: int, session: str) -> Row:
        """A step that a fork has from another run, as it is in the fork."""
        row, latest = self.sealed("step", self.store.rows("step", {"id": step})[0]), fold.latest[step]
        if latest["record"] != row["record"]:
            row |= codec.facts(self.value(latest["record"]))
        row |= {
            "session": session,
            "record": latest["record"],
            "prompt": latest["prompt"],
            "revision": fold.revisions[step],
        }
        return row | {"hash": seal("step", row)}

    def _entry(self, row: Row) -> Entry:
        step = self.step_of({"record": row["record"], "prompt": row["prompt"]})
        key = wire.fingerprint(self.content(row["record"]))
        messages = 0 if row["shown"] is None else len(self.part(row["shown"]))
        return Entry(step, row["step"], row["run"], key, row["prompt"], row["shown"], messages, look(step))


@dataclass(frozen=True)
class Loaded:
    """A session as it was left: what is saved of it, its code and variables, and how far a run of it came.

    The run has had `turns` steps; calls from turn `done` on belong to a step that is not done.
    """

    session: Session
    turns: int
    done: int
    past: list[PastCode]
    kept: dict[str, Any] | None
