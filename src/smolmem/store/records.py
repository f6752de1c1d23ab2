"""Reads the record: rows become runs, steps and sessions. Nothing here writes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Literal

from smolmem.core.arguments import EVERYWHERE, ScopeFilter, in_scope
from smolmem.core.encoding import wire
from smolmem.core.errors import Damaged, NotFound
from smolmem.core.redaction import Known, Redactor, may_lack_secrets
from smolmem.core.rows import RecordedCall, RecordedCode, SessionRow, Status, StoredEntry, StoredSession
from smolmem.core.text import counted
from smolmem.core.timeline import Misplaced, Timeline
from smolmem.core.values import Event, Failure, Run, Step, when
from smolmem.store.base import Row, Store, T
from smolmem.store.contents import id_prefix, seal, with_hash
from smolmem.store.leases import Leases
from smolmem.store.links import Links
from smolmem.store.writer import IMPORTED, is_dead, needs_no_lease

log = logging.getLogger("smolmem")

_STEP_FILTERS: Row = dict.fromkeys(
    ("scope", "below", "run", "agent", "status", "kind", "tool", "failed", "error", "since", "until", "text")
)
_RUN_FILTERS: Row = dict.fromkeys(
    (
        *("scope", "below", "agent", "model", "tool", "tag", "status", "since", "until", "text", "parent"),
        *("session", "roots"),
    )
)

_RUN_COLUMNS = (
    *("id", "session", "scope", "agent", "agent_type", "title", "parent", "parent_step", "fork_of", "model"),
    *("smolagents", "max_steps", "input_tokens", "output_tokens"),
)
_STEP_COLUMNS = (
    *("id", "run", "session", "scope", "agent", "kind", "number", "seconds", "error", "input_tokens"),
    *("output_tokens", "revision", "text"),
)


def _number(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 62 else None


class Records(Links):
    """Runs, steps, events and calls of a store, as values."""

    def __init__(self, store: Store, redactor: Redactor | None = None) -> None:
        super().__init__(store, redactor)
        self.leases = Leases(store)

    # --- runs ------------------------------------------------------------------------------------------------------

    def find_runs(self, order: str = "newest", *, skip: int = 0, **filters: Any) -> list[Run]:
        """Runs in an order: `newest`, or an order of `ranked_runs` in queries.sql, where `skip` leaves runs out.

        Each filter is a parameter of `find_runs` in queries.sql, and open if not given.
        """
        self.check_runs()
        name, values = "find_runs", _RUN_FILTERS | filters | {"gone": self.gone_writers()}
        if order != "newest":
            name, values = "ranked_runs", values | {"order": order, "skip": skip}
        return [self._run(row) for row in self.store.rows(name, values)]

    def latest_runs(self, scope: str, agent: str) -> list[Run]:
        """The runs of an agent in the order of their last write, independent of the clock."""
        rows = self.store.rows("latest_runs", {"scope": scope, "agent": agent})
        for row in rows:
            self.check_steps(row["id"], row["session"])
        return [self._run(row) for row in rows]

    def called_by(self, runs: Iterable[str]) -> list[Run]:
        """The runs that other runs called, the oldest first."""
        return [self._run(row) for row in self.store.rows("children", {"runs": json.dumps(list(runs))})]

    def forks_of(self, run: str) -> list[Run]:
        """The forks of a run, the oldest first."""
        return [self._run(row) for row in self.store.rows("forks", {"run": run})]

    def run(self, prefix: str, bounds: ScopeFilter = EVERYWHERE) -> Run:
        """The run within some scopes whose id begins with a prefix.

        Raises:
            NotFound: if none does, or several do.
        """
        found = self.runs_with_prefix(prefix, bounds)
        if not found:
            self.check_runs()
            raise NotFound(f"no run {prefix!r} in {self.store.url}: `memory.runs(scope='*')` lists them all.")
        if len(found) > 1:
            fits = ", ".join(row["id"][:12] for row in found[:8])
            raise NotFound(f"run {prefix!r} in {self.store.url} could be any of {fits}: give more of its id.")
        return self._run(found[0])

    def runs_with_prefix(self, prefix: Any, bounds: ScopeFilter) -> list[Row]:
        """The rows of up to nine runs within some scopes whose id begins with a prefix."""
        begins = id_prefix(prefix)
        return [] if begins is None else self.store.rows("runs_by_prefix", {"prefix": begins, **bounds})

    def gone_writers(self) -> str:
        """The writers of running runs that are known to be gone, as a JSON list."""
        writers = (row["writer"] for row in self.store.rows("open_writers", {}))
        return json.dumps([writer for writer in writers if self.is_gone(writer)])

    def is_gone(self, writer: str) -> bool:
        """Whether the writer of a run is known to be dead, or its lease has run out."""
        return is_dead(writer) or not (needs_no_lease(writer) or self.leases.holder(writer))

    def _run(self, row: Row) -> Run:
        self.sealed("run", row)
        status: Status = "interrupted" if row["status"] == "running" and self.is_gone(row["writer"]) else row["status"]
        if row["status"] == "running":
            row = row | self.run_counts(row["id"])
        return Run(
            **{name: row[name] for name in _RUN_COLUMNS},
            status=status,
            began=when(row["began"]),
            ended=None if row["ended"] is None else when(row["ended"]),
            imported=row["writer"] == IMPORTED,
            tags=self.tags(row),
            step_count=row["steps"],
            error_count=row["errors"],
            _load_steps=lambda: self._run_steps(row),
            _count_actions=lambda: self._count_actions(row["session"]),
            _load_answer=lambda: self._unless_erased("run", row["id"], lambda: self.value(row["answer"])),
            _load_failure=lambda: self._unless_erased("run", row["id"], lambda: self._failure(row["failure"])),
        )

    def tags(self, run: Mapping[str, Any]) -> tuple[str, ...]:
        """The tags of a run.

        Raises:
            Damaged: they are not a list of texts.
        """
        try:
            found = json.loads(run["tags"])
        except (TypeError, ValueError, RecursionError):
            found = None
        if not isinstance(found, list) or not all(isinstance(tag, str) for tag in found):
            raise self.damaged(f"the tags of run {run['id']} are not what was written")
        return tuple(found)

    def has_all(self, sources: Sequence[int | str]) -> bool:
        """Whether the store has all of these steps and notes."""
        steps = {source for source in sources if isinstance(source, int)}
        notes = {source for source in sources if isinstance(source, str)}
        found = [*self.store.rows("steps_by_ids", {"ids": json.dumps(sorted(steps))})] if steps else []
        found += self.store.rows("notes_by_ids", {"ids": json.dumps(sorted(notes))}) if notes else []
        return len(found) == len(steps) + len(notes)

    def run_counts(self, run: str) -> Row:
        """How many steps, errors and tokens a run has."""
        return self.store.rows("run_counts", {"run": run})[0]

    def _run_steps(self, row: Row) -> list[Step]:
        """The steps of a run; of a run that lost rows, those that were left after a repair."""
        try:
            return self._all_run_steps(row)
        except Damaged as error:
            if not self.store.do("was_repaired", {"run": row["id"]}):
                raise
            log.warning("smolmem returns the steps that a repair has left of run %s. %s", row["id"][:8], error)
        left = self.store.rows("run_steps", {"run": row["id"]})
        return self._steps(step for step in left if step["hash"] == seal("step", step))

    def _all_run_steps(self, row: Row) -> list[Step]:
        self.check_steps(row["id"], row["session"])
        own = self._steps(self.store.rows("run_steps", {"run": row["id"]}))
        if row["fork_of"] is None:
            return own
        timeline = self.timeline(self.session_row(row["session"]))
        mine = {step.id for step in own}
        inherited = (step for step in timeline.steps if step not in mine)
        return self._steps(self._inherited(timeline, step, row["session"]) for step in inherited) + own

    def _failure(self, number: int | None) -> Failure | None:
        return None if number is None else Failure(**self.value(number))

    def _unless_erased(self, kind: Literal["step", "run"], id: int | str, load: Callable[[], T]) -> T:
        """Content of a step or run that was read before: if it was erased since, the file is not damaged."""
        try:
            return load()
        except Damaged:
            if self.store.rows({"step": "step", "run": "run_row"}[kind], {"id": id}):
                raise
            raise NotFound(f"{kind} {str(id)[:8]} is no longer in {self.store.url}: it was erased.") from None

    def _inherited(self, timeline: Timeline[Row], step: int, session: str) -> Row:
        """A step that a fork shares with another run, with the revision of the fork."""
        found = self.store.rows("step", {"id": step})
        if not found:
            raise self.damaged(f"step {step} is missing")
        row, latest = self.sealed("step", found[0]), timeline.latest[step]
        if latest["record"] != row["record"]:
            from smolmem.core.encoding import step_facts

            row |= step_facts.facts(self.value(latest["record"]))
        row |= {
            "session": session,
            "record": latest["record"],
            "prompt": latest["prompt"],
            "revision": timeline.revisions[step],
        }
        return with_hash("step", row)

    # --- steps -----------------------------------------------------------------------------------------------------

    def find_steps(self, **filters: Any) -> list[Step]:
        """Steps, newest first; each filter is a parameter of `find_steps` in queries.sql, and open if not given."""
        gone = {"gone": self.gone_writers()}
        return self._steps(self.store.rows("find_steps", _STEP_FILTERS | filters | gone))

    def rule_steps(self, **filters: Any) -> list[Row]:
        """Rows of steps without their texts, and so without a check of their hash, newest first.

        Each filter is a parameter of `rule_steps` in queries.sql, and open if not given.
        """
        return [self._with_run(row) for row in self.store.rows("rule_steps", _STEP_FILTERS | filters)]

    def step(self, number: int, bounds: ScopeFilter = EVERYWHERE) -> Step:
        """The step with an id, if it is of a run within some scopes.

        Raises:
            NotFound: if there is none.
        """
        found = [] if _number(number) is None else self.store.rows("step", {"id": number})
        steps = self._steps(found)
        if not steps or not in_scope(steps[0].scope, bounds):
            raise NotFound(f"no step {number!r} in {self.store.url}: `memory.steps()` lists the newest.")
        return steps[0]

    def _steps(self, rows: Iterable[Row]) -> list[Step]:
        return [
            Step(
                **{name: row[name] for name in _STEP_COLUMNS},
                position=row["place"],
                at=when(row["at"]),
                tools=tuple(json.loads(row["tools"])),
                _load=partial(self._unless_erased, "step", row["id"], partial(self.step_of, row)),
            )
            for row in map(self._step_row, rows)
        ]

    def _step_row(self, row: Row) -> Row:
        return self.sealed("step", self._with_run(row))

    def _with_run(self, row: Row) -> Row:
        if row["scope"] is None:
            raise self.damaged(f"the run of step {row['id']} is missing")
        return row

    # --- events ----------------------------------------------------------------------------------------------------

    def events(self, run: Run) -> list[Event]:
        """Every change to the list during a run, in order."""
        mine = [row for row in self._own_events(run.session) if row["run"] == run.id]
        return [Event(row["id"], when(row["at"]), row["act"], row["step"], row["place"]) for row in mine]

    def step_events(self, step: Step) -> list[Row]:
        """Every event of a step, as its session knows it."""
        events = self.events_of(self.session_row(step.session))
        return [event for event in events if event["step"] == step.id]

    def _own_events(self, session: str) -> list[Row]:
        """The events of a session, without shared events."""
        self.check_events(session)
        rows = self.store.rows("session_events", {"session": session, "skip": 0})
        return [self.sealed("event", row) for row in rows]

    def events_of(self, row: SessionRow, until: int | None = None) -> Iterator[Row]:
        """The events of a session, beginning with the events shared with its origin."""
        for number, last in reversed(list(self._shared(row, until))):
            yield from (event for event in self._own_events(number) if last is None or event["id"] <= last)

    def _shared(self, row: SessionRow, until: int | None = None) -> Iterator[tuple[str, int | None]]:
        """A session and those that it is a fork of, each with the last event that belongs to the list."""
        for session in self.session_lineage(row):
            yield session["id"], until
            until = session["fork_at"] if until is None else min(session["fork_at"] or 0, until)

    def _count_actions(self, session: str) -> int:
        """How many actions the list of a session has, with those that it shares."""
        shared = [{"session": id, "until": until} for id, until in self._shared(self.session_row(session))]
        return sum(self.store.do("count_actions", each) for each in shared)

    def timeline(self, row: SessionRow, until: int | None = None) -> Timeline[Row]:
        """A session's list as its events leave it."""
        timeline: Timeline[Row] = Timeline()
        for event in self.events_of(row, until):
            self.apply_to(timeline, event)
        return timeline

    def apply_to(self, timeline: Timeline[Row], event: Row) -> None:
        """Applies an event to a timeline.

        Raises:
            Damaged: if the event does not fit the list.
        """
        try:
            apply_row(timeline, event)
        except Misplaced as error:
            raise self.damaged(f"event {event['id']} does not fit its list: {error}") from error

    def event_after_step(self, run: Run, number: int | None) -> int | None:
        """The last event before the step that follows step `number` of a run; None for the end of the run.

        Raises:
            NotFound: if the run has no such step.
        """
        if number is None:
            return None
        end: int | None = None  # the last event that the run shares with each session of its lineage
        for row in self.run_lineage(self.run_row(run.id)):
            self.check_steps(row["id"], row["session"])
            self.check_events(row["session"])
            step = self.store.rows("numbered_step", {"run": row["id"], "number": _number(number)})[0]["step"]
            if step is not None:
                found = self.store.rows("inserted_after", {"session": row["session"], "step": step})[0]["next"]
                return end if found is None else min(int(found) - 1, end or int(found))
            end = self.session_row(row["session"])["fork_at"]
        raise NotFound(f"run {run.id[:8]} has no step {number!r}: it has {counted(run.step_count, 'step')}.")

    def unfinished_erases(self) -> list[Row]:
        """Receipts of erases after which the file was not rewritten."""
        return [row for row in self.store.rows("erased", {}) if not row["finished"]]

    def last_event(self, session: SessionRow, until: int | None) -> int:
        """The last event of a session up to `until`, its own or a shared one."""
        for row in self.session_lineage(session):
            last = self.store.rows("last_event", {"session": row["id"], "until": until})[0]["last"]
            if last is not None:
                return int(last)
            if until is None or (row["fork_at"] or 0) <= until:
                return row["fork_at"] or 0
        return 0

    # --- what a resumed run needs ----------------------------------------------------------------------------------

    def calls(self, run: str, secrets: Known | None = None) -> list[RecordedCall]:
        """The model and tool calls of a run, with these secrets put back."""
        return list(chain.from_iterable(self.calls_by_turn(run, self.call_counts([run]), secrets).values()))

    def calls_by_turn(self, run: str, counts: dict[str, int], secrets: Known | None) -> dict[int, list[RecordedCall]]:
        """The calls of a run by turn; a call that is not found would be made again, so they are counted first."""
        rows = self.store.rows("calls", {"run": run})
        if len(rows) < counts.get(run, 0):
            raise self.damaged(f"run {run[:8]} has made {counts[run]} calls, but {len(rows)} are found")
        found: dict[int, list[RecordedCall]] = {}
        for call in self._recorded_calls(rows, secrets):
            found.setdefault(call.turn, []).append(call)
        return found

    def _recorded_calls(self, rows: Iterable[Row], secrets: Known | None) -> list[RecordedCall]:
        return [
            RecordedCall(
                **{name: row[name] for name in ("id", "turn", "kind", "name")},
                key=partial(self.content_key, row["arguments"]),
                ended=row["ended"] is not None,
                failed=bool(row["failed"]),
                arguments=partial(self.value, row["arguments"], secrets=secrets),
                outcome=partial(self.value, row["outcome"], secrets=secrets, whole=True),
                contents=(row["arguments"], row["outcome"]),
            )
            for row in (self.sealed("call", row) for row in rows)
        ]

    def session(self, session: str, run: str, until: int | None = None, secrets: Known | None = None) -> StoredSession:
        """A session's list as its events leave it, its code and variables, and how far a run came.

        Each record is decoded once, however many events refer to it, with these secrets put back.
        """
        return _SessionReader(self, secrets).read(session, run, until)


class _SessionReader:
    """Reads a session event by event."""

    def __init__(self, records: Records, secrets: Known | None) -> None:
        self._records = records
        self._secrets = secrets
        self._timeline = Timeline[Row]()
        self._decoded: dict[tuple[int, int | None], tuple[Any, bytes]] = {}
        self._counts: dict[str, int] = {}
        self._calls: dict[str, dict[int, list[RecordedCall]]] = {}
        self._turns: dict[str, int] = {}  # how many steps each run has had
        self._done: dict[str, int] = {}  # up to which turn its steps are done
        self._code: list[RecordedCode] = []
        self._variables: int | None = None

    def read(self, session: str, run: str, until: int | None) -> StoredSession:
        """The session, and how far one of its runs came; up to an event."""
        records, timeline = self._records, self._timeline
        row = records.session_row(session)
        events = list(records.events_of(row, until))
        self._counts = records.call_counts({run, *(event["run"] for event in events)})
        for event in events:
            records.apply_to(timeline, event)
            if adds_step(event):
                self._follow(event)
        return StoredSession(
            row=row,
            entries=[self._entry(step) for step in timeline.steps],
            system=None if timeline.system is None else self._entry(timeline.system),
            events=sum(event["session"] == session for event in events),
            turns=self._turns.get(run, 0),
            done=self._done.get(run, 0),
            code=self._code,
            variables=partial(records.variables, self._variables, secrets=self._secrets, whole=True),
            calls=list(chain.from_iterable(self._calls_of(run).values())),
            snapshot=self._variables,
        )

    def _follow(self, event: Row) -> None:
        """A step was added: counts it, and keeps its code and variables if it is done."""
        from smolmem.core.encoding import codec

        run, turn = event["run"], self._turns.get(event["run"], 0)
        self._turns[run] = turn + 1
        step, _ = self._step(event["record"], event["prompt"])
        if codec.is_interrupted(step):
            return  # the step that takes its place finishes what this one began, from the variables before it
        if event["state"] is not None:
            self._variables = event["state"]
        if getattr(step, "code_action", None):
            turns = range(self._done.get(run, 0), turn + 1)
            calls = [call for of_turn in turns for call in self._calls_of(run).get(of_turn, ())]
            self._code.append(RecordedCode(step.code_action, step.observations, step.error is not None, calls))
        self._done[run] = turn + 1

    def _entry(self, step: int) -> StoredEntry:
        latest = self._timeline.latest[step]
        live, record = self._step(latest["record"], latest["prompt"])
        lacking, key = latest["record"] if may_lack_secrets(record) else None, wire.fingerprint(record)
        return StoredEntry(live, step, latest["run"], key, latest["prompt"], latest["shown"], lacking)

    def _step(self, record: int, prompt: int | None) -> tuple[Any, bytes]:
        if (record, prompt) not in self._decoded:
            row = {"record": record, "prompt": prompt}
            self._decoded[record, prompt] = self._records.step_and_record(row, self._secrets)
        return self._decoded[record, prompt]

    def _calls_of(self, run: str) -> dict[int, list[RecordedCall]]:
        if run not in self._calls:
            self._calls[run] = self._records.calls_by_turn(run, self._counts, self._secrets)
        return self._calls[run]


def apply_row(timeline: Timeline[Row], event: Row) -> None:
    """Applies a row of `event` to a timeline.

    Raises:
        Misplaced: if the event does not fit the list.
    """
    content = event if event["record"] is not None else None
    timeline.apply(event["act"], event["step"], event["place"], content)


def adds_step(event: Row) -> bool:
    """Whether an event put a new step on the list."""
    return event["act"] == "insert" and event["record"] is not None and event["place"] is not None
