"""Runs, failures, tokens, cost and latency over time; the agents, models, tools and errors behind them.

The store adds up, so that the page costs the same however many steps there are: runs by period, agent and model; the
newest 20,000 calls by tool; the newest 1,000 failed steps by error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from smolmem.core.arguments import scope_filter
from smolmem.core.errors import InvalidArgument
from smolmem.core.prices import cost
from smolmem.inspector.formatting import one_line
from smolmem.memory import Memory

PERIODS = {"24h": "last 24 hours", "7d": "last 7 days", "30d": "last 30 days", "90d": "last 90 days", "all": "all time"}
PERIOD_LENGTHS = {"24h": timedelta(days=1)} | {f"{days}d": timedelta(days=days) for days in (7, 30, 90)}
WIDTHS = (*(timedelta(minutes=each) for each in (1, 5, 15, 60, 180, 360)), timedelta(days=1))
"""The widths of a bucket; the smallest one that needs no more than `MOST_BUCKETS` is used."""
FEWEST_BUCKETS, MOST_BUCKETS = 12, 60
TOP = 10


@dataclass(frozen=True)
class Figures:
    """Sums over runs."""

    runs: int = 0
    failed: int = 0
    interrupted: int = 0
    max_steps: int = 0
    steps: int = 0
    errors: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    dollars: float | None = None

    @property
    def tokens(self) -> int:
        """Input and output tokens."""
        return self.input_tokens + self.output_tokens

    @property
    def unfinished(self) -> int:
        """Runs that were interrupted or ran out of steps."""
        return self.interrupted + self.max_steps

    @property
    def seconds_per_step(self) -> float:
        """How long a step took on average."""
        return self.seconds / self.steps if self.steps else 0.0

    @property
    def without_problem(self) -> int:
        """Runs that neither failed nor are unfinished."""
        return self.runs - self.failed - self.unfinished

    def __add__(self, other: Figures) -> Figures:
        known = [each for each in (self.dollars, other.dollars) if each is not None]
        summed = {name: getattr(self, name) + getattr(other, name) for name in _SUMMED}
        return Figures(**summed, slowest=max(self.slowest, other.slowest), dollars=sum(known) if known else None)


_SUMMED = (
    *("runs", "failed", "interrupted", "max_steps", "steps", "errors"),
    *("input_tokens", "output_tokens", "seconds"),
)


@dataclass(frozen=True)
class Bucket:
    """A part of the time: its beginning, how a chart labels it, and its figures."""

    began: datetime
    label: str
    figures: Figures


@dataclass(frozen=True)
class ErrorKind:
    """Failures that say the same but for numbers."""

    error: str
    message: str
    count: int
    run: str
    step: int


@dataclass(frozen=True)
class Dashboard:
    """Everything that the page shows."""

    period: str
    buckets: list[Bucket]
    total: Figures
    agents: list[tuple[str, Figures]]
    models: list[tuple[str, Figures]]
    tools: list[dict[str, Any]]
    errors: list[ErrorKind]

    def columns(self, *names: str) -> list[list[float]]:
        """The figures with these names in each bucket: the parts of the columns of a chart."""
        return [[getattr(bucket.figures, name) or 0 for name in names] for bucket in self.buckets]


def dashboard(memory: Memory, query: Mapping[str, str]) -> Dashboard:
    """The dashboard of a period and a scope."""
    period = query.get("period") or "30d"
    if period not in PERIODS:
        raise InvalidArgument(f"there is no period {period[:40]!r}: choose one of {', '.join(PERIODS)}.")
    began, width, count = _buckets(memory, period, datetime.now().astimezone())
    bounds = {**scope_filter(query.get("scope") or "*"), "since": began.timestamp()}
    store, until = memory._journal.store, (began + width * count).timestamp()
    rows = [
        (row, _figures(row))
        for row in store.rows(
            "runs_over_time",
            bounds | {"until": until, "width": width.total_seconds(), "gone": memory._journal.gone_writers()},
        )
    ]
    by_bucket = _grouped(rows, lambda row: row["bucket"])
    buckets = [
        Bucket(
            at, f"{at:%b %d}" if width >= timedelta(days=1) else f"{at:%b %d %H:%M}", by_bucket.get(index, Figures())
        )
        for index, at in enumerate(began + width * index for index in range(count))
    ]
    return Dashboard(
        period,
        buckets,
        sum((figures for _, figures in rows), Figures()),
        _top(_grouped(rows, lambda row: row["agent"])),
        _top(_grouped(rows, lambda row: row["model"] or "unknown")),
        store.rows("tools_used", bounds),
        _errors(store.rows("recent_failures", bounds)),
    )


def _buckets(memory: Memory, period: str, now: datetime) -> tuple[datetime, timedelta, int]:
    """The beginning of the first bucket, the width of a bucket, and how many there are.

    The buckets begin with the first run if that is later than the period, so that a young memory fills the charts, too.
    """
    first = memory._journal.store.rows("first_run", {})[0]["began"]
    began = now if first is None else datetime.fromtimestamp(first).astimezone()
    if period != "all":
        began = max(began, now - PERIOD_LENGTHS[period])
    day, room = timedelta(days=1), MOST_BUCKETS - 1  # the last bucket ends after now
    width = next((each for each in WIDTHS if now - began <= each * room), day * -(-(now - began) // (day * room)))
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    end = midnight + (day if width >= day else width * ((now - midnight) // width + 1))
    count = max(FEWEST_BUCKETS, -(-(end - began) // width))
    return end - width * count, width, count


def _figures(row: Mapping[str, Any]) -> Figures:
    figures = Figures(**{name: row[name] for name in _SUMMED}, slowest=row["slowest"])
    return replace(figures, dollars=cost(row["model"], figures.input_tokens, figures.output_tokens))


def _grouped(rows: Iterable[tuple[Any, Figures]], key: Callable[[Any], Any]) -> dict[Any, Figures]:
    groups: dict[Any, Figures] = {}
    for row, figures in rows:
        groups[key(row)] = groups.get(key(row), Figures()) + figures
    return groups


def _top(groups: Mapping[str, Figures]) -> list[tuple[str, Figures]]:
    return sorted(groups.items(), key=lambda group: (-group[1].tokens, group[0]))[:TOP]


def _errors(rows: Iterable[Mapping[str, Any]]) -> list[ErrorKind]:
    """The most frequent errors; rows come newest first, so the first of a kind is the newest."""
    kinds: dict[tuple[str, str], ErrorKind] = {}
    for row in rows:
        last = row["text"].strip().rpartition("\n")[2]  # the message of an error ends the text of its step
        message = one_line(last.rpartition("due to: ")[2], 120)
        key = (row["error"], re.sub(r"\d+", "#", message))
        known = kinds.get(key, ErrorKind(row["error"], message, 0, row["run"], row["id"]))
        kinds[key] = replace(known, count=known.count + 1)
    return sorted(kinds.values(), key=lambda kind: -kind.count)[:TOP]
