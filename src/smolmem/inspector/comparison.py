"""Two runs side by side: their steps aligned, the differing words marked, and which runs are worth comparing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest

from smolmem.core.text import sanitize
from smolmem.core.totals import Totals, run_totals, summed
from smolmem.core.values import Run, Step
from smolmem.inspector.formatting import ago, title
from smolmem.memory import Memory

MAX_STEPS = 600
"""How many steps of a run are aligned at most."""
MAX_CHARACTERS = 6_000
"""How many characters of a step are compared at most."""
MAX_PAIRS = 400
"""Steps that differ are paired by similarity up to this number of possible pairs, else by order."""
COMPARED_CHARACTERS = 600
"""How many characters of two steps decide how similar they are."""
SUGGESTED = 12
NEWEST = 300
"""How many of the newest runs are searched for suggestions."""

Words = list[tuple[str, bool]]
"""A text in parts, and whether the other text has another part there."""


@dataclass(frozen=True)
class Side:
    """A step of one of the runs, in parts."""

    step: Step
    words: Words


@dataclass(frozen=True)
class Line:
    """Two aligned steps, or one step that the other run does not have; `equal` counts steps that are the same."""

    left: Side | None = None
    right: Side | None = None
    equal: int = 0


@dataclass(frozen=True)
class Comparison:
    """Two runs, their totals with the runs that they called, and their aligned steps."""

    runs: tuple[Run, Run]
    totals: tuple[Totals, Totals]
    lines: list[Line]
    is_cut: bool
    """Whether a run has more steps than are shown."""

    @property
    def differs(self) -> bool:
        """Whether any step differs."""
        return any(not line.equal for line in self.lines)

    @property
    def equal(self) -> int:
        """How many steps are the same."""
        return sum(line.equal for line in self.lines)


@dataclass(frozen=True)
class Suggestion:
    """Two runs that are worth comparing, and why."""

    left: Run
    right: Run
    reason: str


def choices(runs: Iterable[Run]) -> dict[str, str]:
    """The id of each run, and a line that says which run that is."""
    return {run.id: f"{title(run, 70)} · {run.agent} · {run.id[:8]} · {ago(run.began)}" for run in runs}


def compare(memory: Memory, left: Run, right: Run) -> Comparison:
    """Aligns the steps of two runs."""
    steps = (left.steps, right.steps)
    called = memory.called_by([left, right])
    totals = [summed(map(run_totals, (run, *called[run.id]))) for run in (left, right)]
    lines = _aligned(*(each[:MAX_STEPS] for each in steps))
    return Comparison((left, right), (totals[0], totals[1]), lines, max(map(len, steps)) > MAX_STEPS)


def _aligned(left: Sequence[Step], right: Sequence[Step]) -> list[Line]:
    matcher = SequenceMatcher(None, [_done(step) for step in left], [_done(step) for step in right], autojunk=False)
    lines: list[Line] = []
    for act, begin, end, other_begin, other_end in matcher.get_opcodes():
        if act == "equal":
            lines.append(Line(equal=end - begin))
        else:
            lines += [_line(*pair) for pair in _pairs(left[begin:end], right[other_begin:other_end])]
    return lines


def _pairs(left: Sequence[Step], right: Sequence[Step]) -> list[tuple[Step | None, Step | None]]:
    """Pairs each differing step with the most similar step of the other run; many steps are paired by order."""
    if not left or not right or len(left) * len(right) > MAX_PAIRS:
        return list(zip_longest(left, right))
    alike = [[_similarity(mine, yours) for yours in right] for mine in left]
    best = [[0.0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for row in reversed(range(len(left))):
        for column in reversed(range(len(right))):
            paired = best[row + 1][column + 1] + alike[row][column]
            best[row][column] = max(paired, best[row + 1][column], best[row][column + 1])
    pairs, row, column = list[tuple[Step | None, Step | None]](), 0, 0
    while row < len(left) and column < len(right):
        if best[row][column] == best[row + 1][column + 1] + alike[row][column]:
            pairs.append((left[row], right[column]))
            row, column = row + 1, column + 1
        elif best[row][column] == best[row + 1][column]:
            pairs.append((left[row], None))
            row += 1
        else:
            pairs.append((None, right[column]))
            column += 1
    return pairs + list(zip_longest(left[row:], right[column:]))


def _similarity(left: Step, right: Step) -> float:
    """How much two steps of one kind have in common, from 0 to 1; steps of different kinds have nothing."""
    if left.kind != right.kind:
        return 0.0
    mine, yours = (re.findall(r"\w+", step.text[:COMPARED_CHARACTERS]) for step in (left, right))
    return SequenceMatcher(None, mine, yours).ratio()


def _done(step: Step) -> tuple[str, str, str | None, tuple[str, ...]]:
    return step.kind, step.text, step.error, step.tools


def _line(left: Step | None, right: Step | None) -> Line:
    mine, yours = ("" if step is None else sanitize(step.text[:MAX_CHARACTERS]) for step in (left, right))
    words = compare_words(mine, yours) if left and right else ([(mine, False)], [(yours, False)])
    return Line(
        None if left is None else Side(left, words[0]),
        None if right is None else Side(right, words[1]),
    )


def compare_words(left: str, right: str) -> tuple[Words, Words]:
    """Two texts in parts, with the words that differ."""
    ours, theirs = (re.findall(r"\w+|\s+|[^\w\s]", text) for text in (left, right))
    mine, yours = list[tuple[str, bool]](), list[tuple[str, bool]]()
    for act, begin, end, other_begin, other_end in SequenceMatcher(None, ours, theirs, autojunk=True).get_opcodes():
        differs = act != "equal"
        mine += [("".join(ours[begin:end]), differs)] if end > begin else []
        yours += [("".join(theirs[other_begin:other_end]), differs)] if other_end > other_begin else []
    return mine, yours


def suggestions(memory: Memory, run: Run | None = None) -> list[Suggestion]:
    """Runs worth comparing: forks with their origin, and runs of one agent on the same task; of one run, if given."""
    newest = memory.runs(scope="*", limit=NEWEST, managed=False)
    forks = [each for each in newest if each.fork_of is not None][:SUGGESTED]
    pairs = [Suggestion(memory.run(str(fork.fork_of)), fork, "a run and its fork") for fork in forks if run is None]
    found = [*pairs, *_same_task(newest)] if run is None else _around(memory, run, newest)
    unique: dict[tuple[str, str], Suggestion] = {}
    for each in found:
        if each.left.id != each.right.id:
            unique.setdefault((each.left.id, each.right.id), each)
    return list(unique.values())[:SUGGESTED]


def _same_task(runs: Iterable[Run]) -> Iterable[Suggestion]:
    """The newest two runs of one agent on the same task."""
    last: dict[tuple[str, str], Run] = {}
    for run in runs:
        later = last.setdefault((run.agent, run.title), run)
        if later is not run and later.fork_of != run.id:
            yield Suggestion(run, later, "the same task, twice")


def _around(memory: Memory, run: Run, newest: Iterable[Run]) -> list[Suggestion]:
    origin = [Suggestion(memory.run(run.fork_of), run, "the run that this one was forked from")] if run.fork_of else []
    forks = [Suggestion(run, fork, "a fork of this run") for fork in memory._journal.forks_of(run.id)]
    same = [each for each in newest if each.agent == run.agent and each.id != run.id and each.fork_of is None]
    equal = [Suggestion(each, run, "the same task") for each in same if each.title == run.title]
    others = [Suggestion(each, run, "another task of the same agent") for each in same if each.title != run.title]
    return [*origin, *forks, *equal, *others]
