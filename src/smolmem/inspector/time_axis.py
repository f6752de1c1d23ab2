"""A time axis without idle time: a run that was killed on Monday and resumed on Friday fills the page all the same."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

GAP_SHARE = 0.04
"""The width of a gap, as a share of the busy time."""
LONGEST_SHARE = 0.25
"""An idle time is a gap if it is longer than this share of the busy time,"""
SHORTEST_GAP = 2.0
"""and longer than so many seconds."""

Interval = tuple[float, float]
"""The beginning and the end of something that was done."""


@dataclass(frozen=True)
class Gap:
    """Idle time that the axis shortens."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long nothing happened."""
        return self.ended - self.began


@dataclass(frozen=True)
class TimeAxis:
    """Places of times between 0 and 100 percent."""

    times: Sequence[float]
    places: Sequence[float]
    gaps: Sequence[Gap] = ()

    def place(self, time: float) -> float:
        """The place of a time, in percent."""
        if not self.times:
            return 0.0
        index = min(max(bisect_right(self.times, time) - 1, 0), len(self.times) - 2)
        began, ended = self.times[index], self.times[index + 1]
        share = min(max((time - began) / (ended - began), 0.0), 1.0) if ended > began else 0.0
        return self.places[index] + share * (self.places[index + 1] - self.places[index])


def time_axis(intervals: Iterable[Interval]) -> TimeAxis:
    """The axis of some intervals, with long idle times shortened."""
    busy = _merged(intervals)
    if not busy:
        return TimeAxis((), ())
    total = max(sum(ended - began for began, ended in busy), 1e-6)
    times, lengths, gaps = [busy[0][0]], [0.0], list[Gap]()
    for (began, ended), before in zip(busy, [None, *busy], strict=False):
        if before is not None:
            idle = began - before[1]
            is_gap = idle > max(LONGEST_SHARE * total, SHORTEST_GAP)
            gaps += [Gap(before[1], began)] if is_gap else []
            times.append(began)
            lengths.append(lengths[-1] + (GAP_SHARE * total if is_gap else idle))
        times.append(ended)
        lengths.append(lengths[-1] + ended - began)
    width = max(lengths[-1], 1e-9)
    return TimeAxis(times, [100 * length / width for length in lengths], gaps)


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for began, ended in sorted((began, max(began, ended)) for began, ended in intervals):
        if merged and began <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], ended))
        else:
            merged.append((began, ended))
    return merged
