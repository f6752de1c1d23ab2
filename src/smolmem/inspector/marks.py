"""What happened to a run besides its steps: kills, resumes, forks, edits, trims, alerts and recalls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smolmem.core.values import Run
from smolmem.inspector import formatting
from smolmem.memory import Memory

if TYPE_CHECKING:
    from smolmem.inspector.page_data import StepSummary

Interval = tuple[float, float]
"""The beginning and the end of something that was done."""
Lines = Sequence[tuple[Sequence[Interval], "StepSummary | None"]]
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


def _kills_and_alerts(memory: Memory, run: Run, lines: Lines, steps: Sequence[StepSummary]) -> list[Mark]:
    marks: list[Mark] = []
    for alert in memory.alerts(scope="*", run=run.id):
        at = alert.at.timestamp()
        if alert.rule == "takeover":
            marks += _kill_and_resume(run, lines, at, alert.reason)
            continue
        step = next((each for each in steps if each.kind == "action" and each.number == alert.number), None)
        actions = f" → {', '.join(alert.actions)}" if alert.actions else ""
        text = f"The rule {alert.rule} fired: {alert.reason}{actions}."
        marks.append(Mark("alert", at if step is None else step.at, text, None if step is None else step.id))
    return marks


def _kill_and_resume(run: Run, lines: Lines, resumed: float, reason: str) -> list[Mark]:
    """A process was killed after the last thing that it recorded, and another one resumed the run."""
    killed = max((time for time in _times(lines) if time < resumed), default=run.began.timestamp())
    inside = next((step for intervals, step in lines if _contains(intervals, killed, resumed) and step), None)
    where = "" if inside is None or inside.number is None else f", in the middle of step {inside.number}"
    later = formatting.seconds(resumed - killed)
    return [
        Mark("killed", killed, f"The process was killed here{where}. The run was resumed {later} later."),
        Mark("resumed", resumed, f"The run was resumed: {reason}."),
    ]


def _times(lines: Lines) -> Iterator[float]:
    return (time for intervals, _ in lines for interval in intervals for time in interval)


def _contains(intervals: Sequence[Interval], killed: float, resumed: float) -> bool:
    """Whether something began before a kill and ended after the run was resumed."""
    return any(began <= killed for began, _ in intervals) and any(ended >= resumed for _, ended in intervals)


def _end(run: Run, lines: Lines) -> list[Mark]:
    last = max(_times(lines), default=run.began.timestamp())
    if run.status == "interrupted" and run.step_count:
        if run.ended is None:
            return [Mark("killed", last, "The process was killed here. The run can be resumed.")]
        return [Mark("interrupted", last, "The run was interrupted here. The run can be resumed.")]
    if run.status == "failed":
        at = last if run.ended is None else max(last, run.ended.timestamp())
        return [Mark("failed", at, f"The run failed here: {run.failure}. The run can be resumed.")]
    return []


def _forks(memory: Memory, run: Run, steps: Sequence[StepSummary]) -> list[Mark]:
    marks: list[Mark] = []
    if run.fork_of is not None:
        shared = [step.at for step in steps if step.run != run.id]
        text = f"Forked from run {run.fork_of[:8]} here. Both runs share the steps above."
        marks.append(Mark("forked", max(shared, default=run.began.timestamp()), text, href=f"/runs/{run.fork_of}"))
    for row in memory._journal.store.rows("fork_points", {"run": run.id}):
        before = [step for step in steps if step.at <= row["at"]]
        text = f"Run {row['id'][:8]} is a fork that begins here."
        marks.append(Mark("fork", row["at"], text, before[-1].id if before else None, f"/runs/{row['id']}"))
    return marks


def _edits(memory: Memory, run: Run, steps: Sequence[StepSummary]) -> list[Mark]:
    """Changes of steps: a revision during the run is part of recording, a later one is an edit."""
    known = {step.id: step for step in steps}
    ended = run.ended.timestamp() if run.ended is not None and run.status != "running" else None
    marks: list[Mark] = []
    for row in memory._journal.store.rows("step_changes", {"session": run.session, "run": run.id}):
        step = known.get(row["step"])
        if step is None or (row["act"] == "revise" and (ended is None or row["at"] <= ended)):
            continue
        kind, verb = ("edited", "edited") if row["act"] == "revise" else ("removed", "removed from the agent's memory")
        marks.append(Mark(kind, step.at, f"This step was {verb} at {formatting.clock(row['at'])}.", step.id))
    return marks


def _trims(memory: Memory, run: Run, steps: Sequence[StepSummary]) -> list[Mark]:
    began, ended = run.began.timestamp(), None if run.ended is None else run.ended.timestamp()
    marks: list[Mark] = []
    for trim in memory._journal.trims.of(run.session):
        if began <= trim.at and (ended is None or trim.at <= ended):
            step = next((each for each in steps if each.at >= trim.at), None)
            text = f"{trim.view} trimmed the prompt from {trim.before:,} to {trim.after:,} tokens."
            marks.append(Mark("trimmed", trim.at, text, None if step is None else step.id))
    return marks


def _recalls(memory: Memory, run: Run, steps: Sequence[StepSummary]) -> list[Mark]:
    marks: list[Mark] = []
    for row in memory._journal.store.rows("run_recalled", {"run": run.id}):
        step = next((each for each in steps if each.at >= row["at"]), None)
        text = f"Memories were recalled for: {formatting.one_line(row['query'], 100)}"
        marks.append(Mark("recalled", row["at"], text, row["step"] or (None if step is None else step.id)))
    return marks
