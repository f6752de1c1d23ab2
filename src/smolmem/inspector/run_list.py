"""The list of runs: filters and order come from the address, and runs of one session are grouped."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smolmem.core.arguments import scope_filter, to_timestamp
from smolmem.core.errors import InvalidArgument
from smolmem.core.rows import STATUSES
from smolmem.core.totals import Totals, run_totals, summed
from smolmem.core.values import Run
from smolmem.inspector import parameters
from smolmem.memory import Memory
from smolmem.store.passage_rows import json_list

RUNS_PER_PAGE = 50
SPARKLINE_BARS = 48
ORDERS = {
    "newest": "newest first",
    "oldest": "oldest first",
    "duration": "longest first",
    "tokens": "most tokens first",
    "steps": "most steps first",
    "errors": "most failed steps first",
}
PERIODS = {"1h": "last hour", "24h": "last 24 hours", "7d": "last 7 days", "30d": "last 30 days"}
TEXT_FILTERS = ("agent", "model", "tool", "tag", "status", "text", "session")


@dataclass(frozen=True)
class RunSummary:
    """A run in the list: the bars of its sparkline, the runs that it called, and the totals of all of them."""

    run: Run
    bars: list[tuple[float, bool]]
    called: list[RunSummary] = field(default_factory=list)
    resumed: int = 0
    """How often another process took the run over."""
    alerts: int = 0
    """How often a rule fired."""

    @property
    def totals(self) -> Totals:
        """The run with the runs that it called."""
        return run_totals(self.run) + summed(child.totals for child in self.called)


@dataclass(frozen=True)
class Group:
    """Runs of one session that follow each other in the list."""

    session: str
    runs: list[RunSummary]

    @property
    def totals(self) -> Totals:
        """All runs of the group."""
        return summed(run.totals for run in self.runs)


@dataclass(frozen=True)
class RunList:
    """One page of runs, and the address of the next page."""

    groups: list[Group]
    next_page: dict[str, str] | None
    filtered: bool

    @property
    def has_managed(self) -> bool:
        """Whether a run of the page called managed agents."""
        return any(run.called for group in self.groups for run in group.runs)

    @property
    def totals(self) -> Totals:
        """All runs of the page."""
        return summed(group.totals for group in self.groups)


def list_runs(memory: Memory, query: Mapping[str, str]) -> RunList:
    """The page of runs that an address asks for."""
    given = {name: query[name] for name in TEXT_FILTERS if query.get(name)}
    order, page = query.get("sort") or "newest", parameters.number(query.get("page"), "page") or 0
    if order not in ORDERS:
        raise InvalidArgument(f"runs cannot be sorted by {order[:40]!r}: choose one of {', '.join(ORDERS)}.")
    if given.get("status", STATUSES[0]) not in STATUSES:
        raise InvalidArgument(f"there is no status {given['status'][:40]!r}: choose one of {', '.join(STATUSES)}.")
    in_managed = any(name in given for name in ("agent", "model", "tool"))
    found = memory._journal.find_runs(
        order,
        **given,
        **scope_filter(query.get("scope") or "*"),
        since=since(query.get("since")),
        until=parameters.timestamp(query.get("until")),
        roots=None if in_managed else 1,
        limit=RUNS_PER_PAGE,
        skip=page * RUNS_PER_PAGE,
    )
    following = _next_page(memory, query, order, found, page)
    filtered = bool(given or any(query.get(name) for name in ("scope", "until", "since", "page")))
    return RunList(_groups(_summaries(memory, memory._operations.bind_all(found)), order), following, filtered)


def since(text: str | None) -> float | None:
    """The beginning of a period such as `7d`, or of a date, as a timestamp; None for an empty text."""
    if not text:
        return None
    period = re.fullmatch(r"([0-9]{1,4})([hd])", text)
    if period is not None:
        return time.time() - int(period[1]) * (3_600 if period[2] == "h" else 86_400)
    return to_timestamp(text)


def _next_page(
    memory: Memory, query: Mapping[str, str], order: str, found: Sequence[Run], page: int
) -> dict[str, str] | None:
    if len(found) < RUNS_PER_PAGE:
        return None
    if order != "newest":
        return {**parameters.next_page(query, None), "page": str(page + 1)}
    return parameters.next_page(query, memory._journal.run_row(found[-1].id)["began"])  # unrounded


def _summaries(memory: Memory, found: Sequence[Run]) -> list[RunSummary]:
    listed = {run.id for run in found}
    found_below = (run for runs in memory.called_by(found).values() for run in runs)
    below = list({run.id: run for run in found_below if run.id not in listed}.values())
    called: dict[str, list[Run]] = {}
    for child in below:
        called.setdefault(str(child.parent), []).append(child)
    bars = _sparkline_bars(memory, [*found, *below])
    ids = json_list(run.id for run in (*found, *below))
    alerts = {row.pop("run"): row for row in map(dict, memory._journal.store.rows("alert_counts", {"runs": ids}))}

    def summary(run: Run) -> RunSummary:
        children = [summary(child) for child in called.get(run.id, ())]
        return RunSummary(run, bars.get(run.id, []), children, **alerts.get(run.id, {}))

    return [summary(run) for run in found]


def _groups(runs: Sequence[RunSummary], order: str) -> list[Group]:
    """Runs of one session as a group; sorted by anything but time, each run stands alone."""
    groups: list[Group] = []
    for run in runs:
        if order == "newest" and groups and groups[-1].session == run.run.session:
            groups[-1].runs.append(run)
        else:
            groups.append(Group(run.run.session, [run]))
    return groups


def _sparkline_bars(memory: Memory, runs: Sequence[Run]) -> dict[str, list[tuple[float, bool]]]:
    """The duration of each step, and whether the step failed; one bar covers several steps of a long run."""
    bars: dict[str, list[tuple[float, bool]]] = {}
    values: dict[str, Any] = {"runs": json_list(run.id for run in runs), "bars": SPARKLINE_BARS}
    for row in memory._journal.store.rows("sparks", values):
        bars.setdefault(row["run"], []).append((max(0.0, row["seconds"] or 0.0), bool(row["failed"])))
    return bars


def choices(memory: Memory, *queries: str) -> dict[str, dict[str, str]]:
    """What a page can be filtered by, such as `agents`: the values that each query gives, and how they are labelled."""
    store = memory._journal.store
    return {query: {value: value for row in store.rows(query, {}) for value in row.values()} for query in queries}
