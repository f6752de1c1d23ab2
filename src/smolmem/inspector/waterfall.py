"""A run over time: its steps, the time of the model and of tools in each, and the runs that it called, as a tree.

The times come from the ledger of calls. A step of a run without a ledger, such as an imported run, has only its
duration. If a run calls very many runs, the steps of the first runs are listed; the totals include all runs.

The time axis shortens idle time: a run that was killed on Monday and resumed on Friday still fills the page.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from smolmem.core.prices import cost
from smolmem.core.totals import Totals, run_totals, summed
from smolmem.core.values import Run, when
from smolmem.inspector import formatting
from smolmem.inspector.page_data import StepSummary, outlines, step_summaries
from smolmem.memory import Memory
from smolmem.store.passage_rows import json_list

MAX_EXPANDED = 40
"""How many called runs have their steps listed at most."""
MIN_WIDTH = 0.25
"""The least width of a bar, in percent."""
GAP_SHARE = 0.04
"""The width of a gap, as a share of the busy time."""
LONGEST_SHARE, SHORTEST_GAP = 0.25, 2.0
"""An idle time is a gap if it is longer than this share of the busy time, and than this number of seconds."""


Interval = tuple[float, float]
"""The beginning and the end of something that was done."""
Lines = Sequence[tuple[Sequence[Interval], StepSummary | None]]
"""The intervals in which each line of a run was worked on, and its step."""

SYMBOLS = {
    "killed": ("✕", "process killed"),
    "resumed": ("↻", "run resumed"),
    "interrupted": ("■", "run interrupted"),
    "failed": ("✕", "run failed"),
    "forked": ("↱", "forked from another run"),
    "fork": ("↱", "a fork begins here"),
    "edited": ("✎", "step edited"),
    "removed": ("−", "step removed from the agent's memory"),
    "trimmed": ("✂", "prompt trimmed"),
    "alert": ("▲", "alert"),
    "recalled": ("◆", "memories recalled"),
}
"""The symbol of each kind of mark, and its meaning in the legend. Common fonts have all symbols."""
IN_LIST = ("killed", "resumed", "interrupted", "failed", "forked")
"""The marks that have a line of their own in the list of steps."""


@dataclass(frozen=True)
class Mark:
    """Something that happened to a run: what, when, at which step, and a sentence about it."""

    kind: str
    at: float
    text: str
    step: int | None = None
    href: str = ""

    @property
    def symbol(self) -> str:
        """One character for charts."""
        return SYMBOLS[self.kind][0]

    @property
    def label(self) -> str:
        """The meaning of the symbol."""
        return SYMBOLS[self.kind][1]


@dataclass(frozen=True)
class Span:
    """A call of the model, a tool or an agent; `ended` is None if it is unknown whether the call happened."""

    kind: str
    name: str
    began: float
    ended: float | None
    failed: bool

    @property
    def interval(self) -> Interval:
        """The beginning and the end; of a call without an end, the beginning."""
        return self.began, self.began if self.ended is None else self.ended

    @property
    def seconds(self) -> float:
        """How long the call took."""
        return max(0.0, self.interval[1] - self.began)

    @property
    def css_class(self) -> str:
        """How a chart colours the call."""
        return "unknown" if self.ended is None else f"{self.kind} bad" if self.failed else self.kind


@dataclass(frozen=True)
class Row:
    """One line of the waterfall: a step, a called run, a mark, or the calls of a step that was not finished."""

    kind: str
    run: Run
    depth: int = 0
    step: StepSummary | None = None
    mark: Mark | None = None
    totals: Totals = field(default_factory=Totals)
    spans: Sequence[Span] = ()
    intervals: Sequence[Interval] = ()
    """When the process worked on it; a step that was interrupted and resumed has idle time in between."""
    marks: Sequence[Mark] = ()
    """What happened at this step."""

    @property
    def began(self) -> float:
        """The beginning of the first interval."""
        return min((began for began, _ in self.intervals), default=0.0)

    @property
    def ended(self) -> float:
        """The end of the last interval."""
        return max((ended for _, ended in self.intervals), default=0.0)

    @property
    def seconds(self) -> float:
        """From the beginning to the end."""
        return max(0.0, self.ended - self.began)

    @property
    def css_class(self) -> str:
        """How a chart colours the row."""
        return "agents" if self.kind == "run" else "failed" if self.step is not None and self.step.error else "whole"


@dataclass(frozen=True)
class TimeAxis:
    """Places of times between 0 and 100 percent."""

    times: Sequence[float]
    places: Sequence[float]
    gaps: Sequence[Interval] = ()
    """Idle times that the axis shortens."""

    def place(self, time: float) -> float:
        """The place of a time, in percent."""
        if not self.times:
            return 0.0
        index = min(max(bisect_right(self.times, time) - 1, 0), len(self.times) - 2)
        began, ended = self.times[index], self.times[index + 1]
        share = min(max((time - began) / (ended - began), 0.0), 1.0) if ended > began else 0.0
        return self.places[index] + share * (self.places[index + 1] - self.places[index])

    def bar(self, began: float, ended: float) -> Interval:
        """Left and right of a bar, which is wide enough to be seen."""
        left = min(self.place(began), 100 - MIN_WIDTH)
        return left, max(self.place(ended), left + MIN_WIDTH)

    def bars(self, intervals: Iterable[Interval]) -> list[Interval]:
        """The bars of intervals; bars that overlap become one."""
        return merged(self.bar(*interval) for interval in intervals)


@dataclass(frozen=True)
class Waterfall:
    """The rows of a run, its time axis, its marks in order, and its totals with all runs that it called."""

    rows: list[Row]
    axis: TimeAxis
    marks: list[Mark]
    totals: Totals

    @property
    def steps(self) -> list[StepSummary]:
        """All listed steps, also those of called runs."""
        return [row.step for row in self.rows if row.step is not None]

    @property
    def down_times(self) -> Iterable[Interval]:
        """The times from each kill to the resume that follows it; the last kill may have none."""
        killed, resumed = ([mark.at for mark in self.marks if mark.kind == kind] for kind in ("killed", "resumed"))
        return zip(killed, resumed, strict=False)

    @property
    def lanes(self) -> dict[str, list[Interval]]:
        """When the model, the tools and the called agents worked."""
        spans = [span for row in self.rows if row.depth == 0 for span in row.spans]
        lanes = {kind: [span.interval for span in spans if span.kind == kind] for kind in ("model", "tool")}
        return lanes | {"agents": [(row.began, row.ended) for row in self.rows if row.kind == "run"]}


def waterfall(memory: Memory, run: Run) -> Waterfall:
    """The waterfall of a run."""
    tree = _Tree(memory, run)
    rows = tree.rows(run, 0)
    marks = run_marks(memory, run, [(row.intervals, row.step) for row in rows if row.depth == 0])
    listed = {row.run.id for row in rows if row.kind != "run"}
    timed = [row for row in rows if row.kind != "run" or row.run.id not in listed]  # a run's own rows have its times
    axis = time_axis(interval for row in timed for interval in row.intervals)
    model, tool = (sum(getattr(row.totals, name) for row in rows if row.step) for name in _SECONDS)
    totals = replace(tree.rolled_up(run), model_seconds=model, tool_seconds=tool)
    return Waterfall(_with_marks(rows, marks, run), axis, marks, totals)


_SECONDS = ("model_seconds", "tool_seconds")


class _Tree:
    """A run and the runs below it, with the rows of each."""

    def __init__(self, memory: Memory, run: Run) -> None:
        self._children: dict[str, list[Run]] = {}
        below = memory.called_by([run])[run.id]
        for child in below:
            self._children.setdefault(str(child.parent), []).append(child)
        listed = below[:MAX_EXPANDED]
        self._steps = outlines(memory, listed) | {run.id: step_summaries(memory, run)}
        self._spans = _run_spans(memory, [run, *listed])
        self._spans[run.id] = [*self._shared_spans(memory, run), *self._spans.get(run.id, ())]

    def _shared_spans(self, memory: Memory, run: Run) -> list[Span]:
        """The calls of shared steps: a fork has the calls that its origin made up to the last shared step."""
        last = {step.run: step.at for step in self._steps[run.id] if step.run != run.id}
        origins = _run_spans(memory, [memory.run(id) for id in last])
        return [span for id, at in last.items() for span in origins.get(id, ()) if span.began <= at]

    def rolled_up(self, run: Run) -> Totals:
        """The totals of a run with all runs below it."""
        return run_totals(run) + summed(self.rolled_up(child) for child in self._children.get(run.id, ()))

    def rows(self, run: Run, depth: int) -> list[Row]:
        """The rows of a run; each called run stands below the step that called it."""
        waiting = list(self._children.get(run.id, ()))
        steps, spans = self._steps.get(run.id, []), _with_agents(self._spans.get(run.id, []), waiting)
        by_step, unfinished = _assigned(steps, spans)
        rows: list[Row] = []
        for step in steps:
            rows.append(_step_row(run, step, by_step.get(step.id, []), depth))
            called = [child for child in waiting if step.kind == "action" and child.parent_step == step.number]
            waiting = [child for child in waiting if child not in called]
            rows += [row for child in called for row in self._run_rows(child, depth + 1)]
        if unfinished:
            rows.append(_row("unfinished", run, depth, unfinished, Totals()))
        return rows + [row for child in waiting for row in self._run_rows(child, depth + 1)]

    def _run_rows(self, run: Run, depth: int) -> list[Row]:
        began = run.began.timestamp()
        ended = began if run.ended is None else run.ended.timestamp()
        head = Row("run", run, depth, totals=self.rolled_up(run), intervals=[(began, ended)])
        return [head, *self.rows(run, depth + 1)]


# --- calls ----------------------------------------------------------------------------------------------------------


def _run_spans(memory: Memory, runs: Sequence[Run]) -> dict[str, list[Span]]:
    """The calls of each run, in order."""
    rows = memory._journal.store.rows("call_times", {"runs": json_list(run.id for run in runs)})
    spans: dict[str, list[Span]] = {}
    for row in rows:
        span = Span(row["kind"], row["name"], row["began"], row["ended"], failed=bool(row["failed"]))
        spans.setdefault(row["run"], []).append(span)
    return spans


def _with_agents(spans: Iterable[Span], called: Iterable[Run]) -> list[Span]:
    """The calls, with those of managed agents as calls of agents: an agent's time is that of its own run."""
    agents = {run.agent for run in called}
    return [replace(span, kind="agent") if span.kind == "tool" and span.name in agents else span for span in spans]


def _assigned(steps: Iterable[StepSummary], spans: Iterable[Span]) -> tuple[dict[int, list[Span]], list[Span]]:
    """The calls of each step: a step is recorded when it is done, so its calls began before; and the calls left."""
    worked = sorted((step.at, step.id) for step in steps if step.kind in ("action", "planning"))
    by_step: dict[int, list[Span]] = {}
    left: list[Span] = []
    for span in spans:
        index = bisect_left(worked, (span.began, 0))
        (by_step.setdefault(worked[index][1], []) if index < len(worked) else left).append(span)
    return by_step, left


# --- rows -----------------------------------------------------------------------------------------------------------


def _step_row(run: Run, step: StepSummary, spans: list[Span], depth: int) -> Row:
    dollars = cost(run.model or "", step.input_tokens, step.output_tokens)
    totals = Totals(step.input_tokens, step.output_tokens, dollars, steps=1)
    done = (step.at - max(0.0, step.seconds or 0.0), step.at)
    return replace(_row("step", run, depth, spans, totals, [done]), step=step)


def _row(kind: str, run: Run, depth: int, spans: list[Span], totals: Totals, intervals: Sequence[Interval] = ()) -> Row:
    model, tool = (sum(span.seconds for span in spans if span.kind == kind) for kind in ("model", "tool"))
    calls = [span.interval for span in spans if span.kind != "agent"]
    totals = replace(totals, model_seconds=model, tool_seconds=tool)
    return Row(kind, run, depth, totals=totals, spans=spans, intervals=[*calls, *intervals])


def _with_marks(rows: list[Row], marks: Sequence[Mark], run: Run) -> list[Row]:
    """The rows with marks: a mark of its own line stands before the first step that was done after it."""
    by_step: dict[int, list[Mark]] = {}
    for mark in marks:
        if mark.step is not None and mark.kind not in IN_LIST:
            by_step.setdefault(mark.step, []).append(mark)
    waiting = [mark for mark in marks if mark.kind in IN_LIST]
    made: list[Row] = []
    for row in rows:
        while waiting and row.depth == 0 and waiting[0].at < row.ended:
            made.append(Row("mark", run, mark=waiting.pop(0)))
        made.append(replace(row, marks=by_step.get(row.step.id, ())) if row.step is not None else row)
    return made + [Row("mark", run, mark=mark) for mark in waiting]


# --- the time axis ----------------------------------------------------------------------------------------------------


def time_axis(intervals: Iterable[Interval]) -> TimeAxis:
    """The axis of some intervals, with long idle times shortened."""
    busy = merged(intervals)
    if not busy:
        return TimeAxis((), ())
    total = max(sum(ended - began for began, ended in busy), 1e-6)
    times, lengths, gaps = [busy[0][0]], [0.0], list[Interval]()
    for (began, ended), before in zip(busy, [None, *busy], strict=False):
        if before is not None:
            idle = began - before[1]
            is_gap = idle > max(LONGEST_SHARE * total, SHORTEST_GAP)
            gaps += [(before[1], began)] if is_gap else []
            times.append(began)
            lengths.append(lengths[-1] + (GAP_SHARE * total if is_gap else idle))
        times.append(ended)
        lengths.append(lengths[-1] + ended - began)
    width = max(lengths[-1], 1e-9)
    return TimeAxis(times, [100 * length / width for length in lengths], gaps)


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals in order; those that overlap become one interval."""
    joined: list[Interval] = []
    for began, ended in sorted((began, max(began, ended)) for began, ended in intervals):
        if joined and began <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], ended))
        else:
            joined.append((began, ended))
    return joined


# --- marks: what happened to a run besides its steps ------------------------------------------------------------------


def run_marks(memory: Memory, run: Run, lines: Lines) -> list[Mark]:
    """All marks of a run, in the order of time."""
    steps = [step for _, step in lines if step is not None]
    marks = [
        *_kills_and_alerts(memory, run, lines, steps),
        *_end(run, lines),
        *_forks(memory, run, steps),
        *_edits(memory, run, steps),
        *_trims(memory, run, steps),
        *_recalls(memory, run, steps),
    ]
    return sorted(marks, key=lambda mark: mark.at)


def _kills_and_alerts(memory: Memory, run: Run, lines: Lines, steps: Sequence[StepSummary]) -> Iterator[Mark]:
    for alert in memory.alerts(scope="*", run=run.id):
        at = alert.at.timestamp()
        if alert.rule == "takeover":
            yield from _kill_and_resume(run, lines, at, alert.reason)
            continue
        at_step = [(each.at, each.id) for each in steps if each.kind == "action" and each.number == alert.number]
        actions = f" → {', '.join(alert.actions)}" if alert.actions else ""
        fired, step = at_step[0] if at_step else (at, None)
        yield Mark("alert", fired, f"The rule {alert.rule} fired: {alert.reason}{actions}.", step)


def _kill_and_resume(run: Run, lines: Lines, resumed: float, reason: str) -> Iterator[Mark]:
    """The marks of a takeover: a process was killed after its last record, and another process resumed the run."""
    killed = max((time for time in _times(lines) if time < resumed), default=run.began.timestamp())
    inside = next((step for intervals, step in lines if _contains(intervals, killed, resumed) and step), None)
    where = "" if inside is None or inside.number is None else f", in the middle of step {inside.number}"
    later = formatting.seconds(resumed - killed)
    yield Mark("killed", killed, f"The process was killed here{where}. The run was resumed {later} later.")
    yield Mark("resumed", resumed, f"The run was resumed: {reason}.")


def _times(lines: Lines) -> Iterator[float]:
    return (time for intervals, _ in lines for interval in intervals for time in interval)


def _contains(intervals: Sequence[Interval], killed: float, resumed: float) -> bool:
    """Whether something began before a kill and ended after the run was resumed."""
    return any(began <= killed for began, _ in intervals) and any(ended >= resumed for _, ended in intervals)


def _end(run: Run, lines: Lines) -> Iterator[Mark]:
    last = max(_times(lines), default=run.began.timestamp())
    if run.status == "interrupted" and run.step_count:
        kind, what = ("killed", "process was killed") if run.ended is None else ("interrupted", "run was interrupted")
        yield Mark(kind, last, f"The {what} here. The run can be resumed.")
    elif run.status == "failed":
        at = last if run.ended is None else max(last, run.ended.timestamp())
        yield Mark("failed", at, f"The run failed here: {run.failure}. The run can be resumed.")


def _forks(memory: Memory, run: Run, steps: Sequence[StepSummary]) -> Iterator[Mark]:
    if run.fork_of is not None:
        shared = [step.at for step in steps if step.run != run.id]
        text = f"Forked from run {run.fork_of[:8]} here. Both runs share the steps above."
        yield Mark("forked", max(shared, default=run.began.timestamp()), text, href=f"/runs/{run.fork_of}")
    for row in memory._journal.store.rows("fork_points", {"run": run.id}):
        before = [step.id for step in steps if step.at <= row["at"]]
        text = f"Run {row['id'][:8]} is a fork that begins here."
        yield Mark("fork", row["at"], text, before[-1] if before else None, f"/runs/{row['id']}")


def _edits(memory: Memory, run: Run, steps: Sequence[StepSummary]) -> Iterator[Mark]:
    """Changes of steps: a revision during the run is part of recording, a later one is an edit."""
    known = {step.id: step for step in steps}
    ended = run.ended.timestamp() if run.ended is not None and run.status != "running" else None
    for row in memory._journal.store.rows("step_changes", {"session": run.session, "run": run.id}):
        step = known.get(row["step"])
        if step is None or (row["act"] == "revise" and (ended is None or row["at"] <= ended)):
            continue
        kind, verb = ("edited", "edited") if row["act"] == "revise" else ("removed", "removed from the agent's memory")
        yield Mark(kind, step.at, f"This step was {verb} at {formatting.time(when(row['at']))}.", step.id)


def _trims(memory: Memory, run: Run, steps: Sequence[StepSummary]) -> Iterator[Mark]:
    began, ended = run.began.timestamp(), None if run.ended is None else run.ended.timestamp()
    for trim in memory._journal.trims.of(run.session):
        if began <= trim.at and (ended is None or trim.at <= ended):
            text = f"{trim.view} trimmed the prompt from {trim.before:,} to {trim.after:,} tokens."
            yield Mark("trimmed", trim.at, text, _step_at(steps, trim.at))


def _recalls(memory: Memory, run: Run, steps: Sequence[StepSummary]) -> Iterator[Mark]:
    for row in memory._journal.store.rows("run_recalled", {"run": run.id}):
        text = f"Memories were recalled for: {formatting.one_line(row['query'], 100)}"
        yield Mark("recalled", row["at"], text, row["step"] or _step_at(steps, row["at"]))


def _step_at(steps: Sequence[StepSummary], at: float) -> int | None:
    """The first step that was done after a time."""
    return next((step.id for step in steps if step.at >= at), None)
