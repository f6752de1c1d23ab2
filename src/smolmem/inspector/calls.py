"""The calls of models, tools and agents that the ledger recorded for runs, with their times."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from smolmem.core.values import Run
from smolmem.inspector.page_data import StepSummary
from smolmem.memory import Memory
from smolmem.store.passage_rows import json_list


@dataclass(frozen=True)
class Span:
    """A call of the model, a tool or an agent; `ended` is None if it is unknown whether the call happened."""

    kind: str
    name: str
    began: float
    ended: float | None
    failed: bool

    @property
    def seconds(self) -> float:
        """How long the call took."""
        return 0.0 if self.ended is None else max(0.0, self.ended - self.began)


def run_spans(memory: Memory, runs: Sequence[Run]) -> dict[str, list[Span]]:
    """The calls of each run, in order."""
    rows = memory._journal.store.rows("call_times", {"runs": json_list(run.id for run in runs)})
    spans: dict[str, list[Span]] = {}
    for row in rows:
        values: dict[str, Any] = {name: row[name] for name in ("kind", "name", "began", "ended")}
        spans.setdefault(row["run"], []).append(Span(**values, failed=bool(row["failed"])))
    return spans


def with_agents(spans: Iterable[Span], called: Iterable[Run]) -> list[Span]:
    """The calls, with those of managed agents as calls of agents: an agent's time is that of its own run."""
    agents = {run.agent for run in called}
    return [replace(span, kind="agent") if span.kind == "tool" and span.name in agents else span for span in spans]


def assigned(steps: Iterable[StepSummary], spans: Iterable[Span]) -> tuple[dict[int, list[Span]], list[Span]]:
    """The calls of each step: a step is recorded when it is done, so its calls began before; and the calls left."""
    worked = sorted((step.at, step.id) for step in steps if step.kind in ("action", "planning"))
    by_step: dict[int, list[Span]] = {}
    left: list[Span] = []
    for span in spans:
        index = bisect_left(worked, (span.began, 0))
        (by_step.setdefault(worked[index][1], []) if index < len(worked) else left).append(span)
    return by_step, left
