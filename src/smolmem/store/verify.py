"""Verification (is everything stored as it was written?) and statistics (how much is stored?)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from smolmem.core.display import Result
from smolmem.core.encoding import step_facts
from smolmem.core.errors import REPAIR, Damaged, SmolmemError, StoreError, Undone
from smolmem.core.timeline import Misplaced, Timeline
from smolmem.core.values import Alert
from smolmem.store.base import Row, Store, in_snapshot
from smolmem.store.contents import seal
from smolmem.store.erasure.erase import erased_events
from smolmem.store.journal import Journal
from smolmem.store.records import Records, apply_row

MAX_NAMED = 100
"""How many problems a report names; further ones, and repetitions, are only counted."""


@dataclass
class Report(Result):
    """The result of `verify`; true if there is no problem."""

    url: str
    checked: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    count: int = 0

    def __bool__(self) -> bool:
        return not self.count

    def add(self, problem: str) -> None:
        """Adds a problem."""
        self.count += 1
        if len(self.problems) < MAX_NAMED and problem not in self.problems:
            self.problems.append(problem)


@dataclass(frozen=True)
class Stats(Result):
    """How much is stored."""

    url: str
    runs: int
    sessions: int
    steps: int
    events: int
    prompts: int
    calls: int
    notes: int
    passages: int
    vectors: int
    pending: int
    """Steps and notes that are not indexed yet."""
    contents: int
    content_bytes: int
    bytes: int
    input_tokens: int
    output_tokens: int
    statuses: dict[str, int]
    failed_writes: int
    engine: str
    durability: str


def stats(journal: Journal, failed_writes: int) -> Stats:
    """Counts the rows and bytes of a store."""
    store = journal.store
    counted: dict[str, Any] = store.rows("counts", {})[0]
    statuses = {row["status"]: row["runs"] for row in store.rows("statuses", {})}
    engine: dict[str, Any] = dict(store.facts())
    return Stats(store.url, **counted, bytes=store.size(), statuses=statuses, failed_writes=failed_writes, **engine)


def verify(records: Records) -> Report:
    """Checks the engine's structures, every hash, and that the events lead to the steps as they stand.

    All rows are read in one state of the store: agents may be writing, and a step that is added between two queries
    would look like damage.

    Raises:
        StoreError: a server cannot be reached, so nothing is known.
    """
    first = Report(records.store.url)
    _look(records, first, _check_engine, _check_full_text)

    def look(store: Store) -> Report:
        found = replace(first, problems=list(first.problems), checked={})
        frozen = Records(store, records.redactor)
        _look(frozen, found, _check_contents, _check_seals, _check_links, _check_steps, _check_recall)
        return found

    try:
        return in_snapshot(records.store, look)
    except Undone:
        raise
    except StoreError as error:
        first.add(str(error))
        return first


def _look(records: Records, report: Report, *checks: Callable[[Records, Report], None]) -> None:
    for check in checks:
        with _reported(report, check.__name__.removeprefix("_check_")):
            check(records, report)


@contextmanager
def _reported(report: Report, what: str) -> Iterator[None]:
    """Reports an error as a problem, unless it tells nothing about the store."""
    try:
        yield
    except Undone:
        raise
    except StoreError as error:
        report.add(str(error))
    except Exception as error:  # a damaged row can hold anything
        report.add(f"{what}: {type(error).__name__}: {error}")


def _check_engine(records: Records, report: Report) -> None:
    for problem in records.store.check():
        report.add(problem)


def _check_full_text(records: Records, report: Report) -> None:
    """The engine compares the full-text index with itself, which it does only in a transaction that can write."""
    records.store.transact(lambda: records.store.do("check_document_words", {}), sync=False)


def _check_contents(records: Records, report: Report) -> None:
    for row in _pages(records, "contents_after", report, "contents"):
        try:
            records.checked([row], f"content {row['id']}")
        except Damaged as error:
            report.add(str(error))


def _check_seals(records: Records, report: Report) -> None:
    for table in ("session", "run"):
        _check_rows(records, report, table)
    for table in ("prompt", "call"):
        for row in _pages(records, f"{table}s_after", report, f"{table}s"):
            _check_seal(table, row, report)
    for row in records.store.rows("missing_parts", {}):
        report.add(f"prompt {row['prompt']}: content {row['content']} is missing")
    for row in records.store.rows("erased", {}):
        _check_seal("erased", row, report)
    _check_events(records, report)


def _check_links(records: Records, report: Report) -> None:
    """Every index must find all rows, and no run or session may be a fork of itself."""
    checks: list[Callable[[], None]] = [records.check_runs, records.check_notes]
    sessions, runs = records.store.rows("sessions", {}), records.store.rows("runs", {})
    checks += [partial(records.check_events, row["id"]) for row in sessions]
    checks += [partial(records.check_steps, row["id"], row["session"]) for row in runs]
    for check in checks:
        with _reported(report, "links"):
            check()
    for table, rows in (("session", sessions), ("run", runs)):
        for circle in _circles({row["id"]: row["fork_of"] for row in rows}):
            report.add(f"{table} {circle[:8]} is a fork of itself")


def _circles(origins: dict[str, str | None]) -> Iterator[str]:
    """One id of each circle of forks."""
    followed: dict[str | None, str] = {}
    for first in origins:
        at: str | None = first
        while at is not None and at not in followed:
            followed[at] = first
            at = origins.get(at)
        if at is not None and followed[at] == first:
            yield at


def _check_events(records: Records, report: Report) -> None:
    """No event may be missing, except erased events, which a receipt lists.

    Where numbers have gaps anyway, missing events are found by `check_events`.
    """
    erased = {number for first, last in erased_events(records) for number in range(first, last + 1)}
    last = 0
    for row in _pages(records, "events_after", report, "events"):
        _check_seal("event", row, report)
        is_next = records.store.numbers_have_gaps or row["id"] == last + 1
        if not is_next and not erased.issuperset(range(last + 1, row["id"])):
            report.add(f"events {last + 1} to {row['id'] - 1} are missing")
        last = row["id"]


def _check_recall(records: Records, report: Report) -> None:
    """Passages must be undamaged, and the full-text index must match them."""
    _check_rows(records, report, "note")
    words = {"recalled": "recalled", "forgotten": "forgotten", "cut": "trims"}
    for table in ("passage", "exposure", "recalled", "forgotten", "cut", "alert"):
        word = words.get(table, f"{table}s")
        for row in _pages(records, f"{table}_after", report, word):
            _check_seal(table, row, report)
    for row in records.store.rows("lost_passages", {}):
        report.add(f"passage {row['id']} is of a step or note that is missing")
    for row in records.store.rows("unindexed_passages", {}):
        report.add(f"passage {row['id']} is missing in the full-text index")


def _check_rows(records: Records, report: Report, table: str) -> None:
    rows = records.store.rows(f"{table}s", {})
    report.checked[f"{table}s"] = len(rows)
    for row in rows:
        _check_seal(table, row, report)


def _check_seal(table: str, row: Row, report: Report) -> None:
    if row["hash"] != seal(table, row):
        report.add(f"{table} {row['id']} is not what was written")


def _check_steps(records: Records, report: Report) -> None:
    """The columns of each step must match its record, and its position the events."""
    places = _positions(records, report)
    for row in _pages(records, "steps_after", report, "steps"):
        _check_seal("step", row, report)
        place, revision, record, prompt = places.pop(row["id"], (None, -1, None, None))
        if (row["place"], row["revision"], row["record"], row["prompt"]) != (place, revision, record, prompt):
            report.add(f"step {row['id']} does not stand where its events put it")
            continue
        with _reported(report, f"step {row['id']}"):
            facts = step_facts.facts(records.value(row["record"]))
            wrong = [name for name, value in facts.items() if row[name] != value]
            if wrong:
                report.add(f"step {row['id']}: {', '.join(wrong)} differ from its record")
    for step in places:
        report.add(f"step {step} is missing")


def _positions(records: Records, report: Report) -> dict[int, tuple[int | None, int, int | None, int | None]]:
    """The position, revision, record and prompt of each step, as all events lead to them."""
    timelines: dict[str, Timeline[Row]] = {}
    inserted: dict[str, set[int]] = {}
    sessions = {row["id"]: row for row in records.store.rows("sessions", {})}
    forks = [row for row in sessions.values() if row["fork_of"] is not None]
    forks.sort(key=lambda row: (row["fork_at"] or 0, row["began"]), reverse=True)

    def begin_forks(until: int) -> None:
        while forks and (forks[-1]["fork_at"] or 0) < until:
            fork = forks.pop()
            of, seen = fork["fork_of"], {fork["id"]}
            while of in sessions and of not in timelines and of not in seen:  # it begins later, or is empty
                seen.add(of)
                of = sessions[of]["fork_of"]
            timelines[fork["id"]] = timelines[of].fork() if of in timelines else Timeline()

    for event in _pages(records, "events_after"):
        begin_forks(event["id"])
        timeline = timelines.setdefault(event["session"], Timeline())
        try:
            apply_row(timeline, event)
        except Misplaced as error:
            report.add(f"event {event['id']} does not fit its list: {error}")
        if event["act"] == "insert" and event["record"] is not None:
            inserted.setdefault(event["session"], set()).add(event["step"])
    steps: dict[int, tuple[int | None, int, int | None, int | None]] = {}
    for of, timeline in timelines.items():
        positions = {step: position for position, step in enumerate(timeline.steps)}
        for step in inserted.get(of, ()):
            latest = timeline.latest[step]
            steps[step] = (positions.get(step), timeline.revisions[step], latest["record"], latest["prompt"])
    return steps


def _pages(records: Records, query: str, report: Report | None = None, word: str = "") -> Iterator[dict[str, Any]]:
    last, count = 0, 0
    while rows := records.store.rows(query, {"id": last}):
        for row in rows:
            if row["id"] <= last:
                raise Damaged(f"{records.store.url}: rows come out of order. {REPAIR}")
            last = row["id"]
            yield row
        count += len(rows)
    if report is not None:
        report.checked[word] = count


def mark_incomplete_runs(journal: Journal) -> list[Row]:
    """The runs that lost rows; each gets an alert, so that what is left of it can be read from then on."""
    found = list(_incomplete_runs(journal))
    reason, at = "rows of this run were lost: its steps are those that a repair could read", datetime.now(timezone.utc)

    def mark() -> None:
        for run in found:
            journal.alerts.add_within(Alert("repair", reason, run["agent"], run["id"], None, at), run["scope"])

    journal.store.transact(mark)
    return found


def _incomplete_runs(journal: Journal) -> Iterator[Row]:
    """The runs that lost steps, events, prompts or contents, and forks that lost what they are forks of."""
    for run in journal.store.rows("runs", {}):
        try:
            if run["fork_of"] is not None and journal.session_row(run["session"])["fork_of"] is None:
                yield run
                continue
            stored = journal.session(run["session"], run["id"])
            journal.check_steps(run["id"], run["session"])
            stored.variables()
            for entry in stored.entries:
                list(getattr(entry.step, "model_input_messages", None) or ())
        except SmolmemError:
            yield run
