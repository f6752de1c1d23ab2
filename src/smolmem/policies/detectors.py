"""Detectors decide when a rule fires: a detector has the state of one rule for one agent, and sees each step once."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from functools import cached_property
from statistics import median
from typing import Any, Protocol

from smolmem.core.text import one_line
from smolmem.core.values import Alert

ALERT = "[ALERT]"
"""Begins a line that a rule has written into a step."""
LONGEST = 100_000
"""Characters of a step that a pattern is searched in."""


def alert_lines(alerts: Iterable[Alert]) -> frozenset[str]:
    """The lines that rules have written into steps."""
    return frozenset(f"{ALERT} {alert}" for alert in alerts)


def calls_of(step: Any) -> list[tuple[str, Any]]:
    """The calls of a step: names and arguments. Where a call failed, smolagents keeps only the model's message."""
    calls = [(call.name, call.arguments) for call in getattr(step, "tool_calls", None) or ()]
    asked = getattr(getattr(step, "model_output_message", None), "tool_calls", None) or ()
    return calls or [(call.function.name, call.function.arguments) for call in asked]


class SeenStep:
    """A step as rules see it."""

    def __init__(self, step: Any, run: Hashable, notes: Collection[str] = ()) -> None:
        """A step of a run; `notes` are lines that rules have written into it."""
        self.step, self.run, self._notes = step, run, notes
        self._seen_at = time.time()
        """The time of a step that has no timing."""

    @property
    def at(self) -> float:
        """When the step ended."""
        return self._time("end_time")

    def _time(self, name: str) -> float:
        time = getattr(getattr(self.step, "timing", None), name, None)
        return self._seen_at if time is None else time

    @property
    def failed(self) -> bool:
        """Whether the step has an error."""
        return getattr(self.step, "error", None) is not None

    @property
    def error(self) -> str:
        """The class and message of the error; empty if there is none."""
        return f"{type(self.step.error).__name__}: {self.step.error}" if self.failed else ""

    @property
    def text(self) -> str:
        """Plan, observations and error, without lines that rules have written there."""
        parts = (getattr(self.step, name, None) for name in ("plan", "observations", "error"))
        text = "\n".join(str(part) for part in parts if part is not None)[:LONGEST]
        if not self._notes or ALERT not in text:
            return text
        return "\n".join(line for line in text.splitlines() if line not in self._notes)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """The calls of the step; for a code agent, its code."""
        code = getattr(self.step, "code_action", None)
        if code:
            return [("code", str(code))]
        return [(name, _as_text(arguments)) for name, arguments in calls_of(self.step)]

    @property
    def seconds(self) -> float:
        """How long it took."""
        return max(0.0, float(self.at) - float(self._time("start_time")))

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens in and out."""
        used = getattr(self.step, "token_usage", None)
        return (0, 0) if used is None else (used.input_tokens or 0, used.output_tokens or 0)


class RecordedStep(SeenStep):
    """A recorded step, which is decoded only if a rule asks for more than the columns of its row.

    Args:
        row: a row of `rule_steps`.
        load: decodes the record of a row.
        notes: lines that rules have written into steps.
    """

    def __init__(self, row: dict[str, Any], load: Callable[[dict[str, Any]], Any], notes: Collection[str]) -> None:
        self.row, self.run = row, row["run"]
        self._load = load
        self._seen_at, self._notes = row["at"], notes

    @cached_property
    def step(self) -> Any:
        """The step of smolagents.

        Raises:
            Damaged: if the record is damaged.
        """
        return self._load(self.row)

    @property
    def failed(self) -> bool:
        """Whether the step has an error."""
        return self.row["error"] is not None

    @property
    def seconds(self) -> float:
        """How long it took."""
        seconds = self.row["seconds"]
        return super().seconds if seconds is None else max(0.0, seconds)

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens in and out."""
        used = self.row["input_tokens"], self.row["output_tokens"]
        return super().tokens if None in used else used


def _as_text(arguments: Any) -> str:
    try:
        return json.dumps(arguments, sort_keys=True, default=str)
    except (TypeError, ValueError):
        return str(arguments)


class Detector(Protocol):
    """The state of one rule for one agent."""

    def see(self, seen: SeenStep) -> tuple[bool, str | None]:
        """Whether a step counts, and the reason if the rule fires."""
        ...


class Repeated:
    """Counts steps with the same key within a window.

    A step counts if its key is True, or if the window has the key already; a step whose key is None does not count.
    """

    def __init__(self, key: Callable[[SeenStep], Hashable], window: int, threshold: int) -> None:
        self._key = key
        self._threshold = threshold
        self._keys: deque[Hashable] = deque(maxlen=window)
        self._open: set[Hashable] = set()

    def see(self, seen: SeenStep) -> tuple[bool, str | None]:
        """Fires when a key occurs often enough, and not again before it occurs less often."""
        key = self._key(seen)
        self._keys.append(key)
        self._open = {old for old in self._open if self._keys.count(old) >= self._threshold}
        times = self._keys.count(key)
        if key is None or key in self._open or times < self._threshold:
            return key is True or (key is not None and times > 1), None
        self._open.add(key)
        of = f"{times} of the last {len(self._keys)} steps"
        text = "; ".join(f"{name}({given})" for name, given in key) if isinstance(key, tuple) else str(key)
        return True, f"{of} match" if key is True else f"{of}: {one_line(text, 160)}"


class Drift:
    """Compares the durations of the newest steps with those before."""

    def __init__(self, factor: float, window: int, threshold: int) -> None:
        self._factor = factor
        self._newest: deque[float] = deque(maxlen=threshold)
        self._before: deque[float] = deque(maxlen=window)
        self._slow = False

    def see(self, seen: SeenStep) -> tuple[bool, str | None]:
        """Fires when the newest steps become slow, and not again before they are as quick as before."""
        if len(self._newest) == self._newest.maxlen and not self._slow:
            self._before.append(self._newest[0])
        self._newest.append(seen.seconds)
        if len(self._before) < 3 or len(self._newest) < (self._newest.maxlen or 1):
            return False, None
        now, usual = median(self._newest), max(median(self._before), 0.001)
        was, self._slow = self._slow, now > self._factor * usual
        if was or not self._slow:
            return self._slow, None
        return True, f"steps take {now:.2f} s, and took {usual:.2f} s before"


class Ceiling:
    """Adds up tokens or cost, in one run or in the last hours."""

    def __init__(self, limit: float, prices: tuple[float, float], hours: float | None) -> None:
        self._limit, self._prices, self._hours = limit, prices, hours
        self._used: deque[tuple[float, float]] = deque()
        self._total = 0.0
        self._run: Hashable = None
        self._over = False

    def see(self, seen: SeenStep) -> tuple[bool, str | None]:
        """Fires when the limit is reached."""
        if self._hours is None and seen.run != self._run:
            self._total = 0.0
        self._run = seen.run
        tokens = seen.tokens
        cost = (tokens[0] * self._prices[0] + tokens[1] * self._prices[1]) / 1e6
        self._total += cost
        if self._hours is not None:
            self._used.append((seen.at, cost))
            while self._used[0][0] < seen.at - self._hours * 3600:
                self._total -= self._used.popleft()[1]
        was, self._over = self._over, self._total >= self._limit
        if was or not self._over:
            return self._over, None
        within = "in this run" if self._hours is None else f"in the last {self._hours:g} hours"
        return True, f"{self._total:,.10g} used {within}, the limit is {self._limit:,.10g}"


class Gap:
    """Measures the time between two steps of a run."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.reported = False
        """Whether the current silence was reported already."""
        self._last: tuple[Hashable, float] | None = None

    def see(self, seen: SeenStep) -> tuple[bool, str | None]:
        """Fires for a silence that was not reported while it lasted."""
        last, self._last = self._last, (seen.run, seen.at)
        reported, self.reported = self.reported, False
        silent = seen.at - last[1] if last is not None and last[0] == seen.run else 0.0
        if silent < self.seconds:
            return False, None
        return True, None if reported else self.why(silent)

    def why(self, silent: float) -> str:
        """The reason of the alert."""
        return f"no step for {silent:,.0f} seconds"
