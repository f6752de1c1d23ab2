"""Rules over recorded steps: a backtest of one rule, and a watcher of everything that a store records.

A rule sees recorded steps as it would have seen them live, the steps of each agent apart. It reports alerts and does
not act. The watcher reads the store a few times a second. Readers and writers of a store do not block each other, so
the agents that write do not become slower.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from smolmem.core.arguments import scope_filter
from smolmem.core.display import Drawable
from smolmem.core.values import Alert, Run, Step, when
from smolmem.policies.detectors import Detector, Gap, SeenStep, alert_lines
from smolmem.policies.watch import Watch
from smolmem.store.journal import Journal

log = logging.getLogger("smolmem")

SHOW_PROGRESS = 1_000
"""Steps that are tried without a progress bar."""
WINDOWS = 5
"""How many times a rule's window is searched for steps that the rule applies to."""
MAX_STEPS = 2_000
_FIRST_LIMIT = 64


def seen_by(rule: Watch, step: Step, lines: Collection[str]) -> SeenStep | None:
    """A recorded step as a rule sees it; None if the rule does not apply to it.

    Args:
        rule: the rule.
        step: the step.
        lines: lines that rules have written into steps; they do not count.

    Raises:
        Damaged: if the step is damaged.
    """
    live = step.to_smolagents()
    return SeenStep(live, step.run, step.at.timestamp(), lines) if rule.applies_to(live) else None


class _Detectors:
    """The detectors of one rule, one for each agent."""

    def __init__(self, rule: Watch) -> None:
        self.rule = rule
        self._detectors: dict[tuple[str, str], Detector] = {}

    def of(self, owner: Step | Run) -> Detector:
        key = (owner.scope, owner.agent)
        if key not in self._detectors:
            self._detectors[key] = self.rule.detector()
        return self._detectors[key]


# --- a backtest -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backtest(Drawable):
    """When a rule would have fired; true if it would."""

    rule: str
    alerts: list[Alert]
    steps: int
    runs: int
    counted: list[bool] = field(repr=False)
    fired: list[bool] = field(repr=False)
    """For each step the rule applies to, whether it counts, and whether the rule fires there."""
    skipped: int = 0
    """Steps that are damaged, or that the rule failed on."""

    def __bool__(self) -> bool:
        return bool(self.alerts)


def backtest(rule: Watch, steps: Sequence[Step], lines: Collection[str]) -> Backtest:
    """Shows a rule recorded steps, the oldest first; `lines` are those that rules have written into the steps."""
    detectors = _Detectors(rule)
    alerts, counted, fired, skipped = list[Alert](), list[bool](), list[bool](), 0
    for step in _with_progress(steps, rule.name):
        try:
            seen = seen_by(rule, step, lines)
            if seen is None:
                continue
            counts, reason = detectors.of(step).see(seen)
        except Exception as error:  # a damaged step, a test that raises, a pattern that takes forever
            log.info("smolmem: the rule %r failed on step %d: %s", rule.name, step.id, error)
            skipped += 1
            continue
        counted.append(counts)
        fired.append(reason is not None)
        if reason is not None:
            alerts.append(Alert(rule.name, reason, step.agent, step.run, step.number, when(seen.at)))
    return Backtest(rule.name, alerts, len(counted), len({step.run for step in steps}), counted, fired, skipped)


def _with_progress(steps: Sequence[Step], name: str) -> Iterator[Step]:
    from rich.console import Console
    from rich.progress import track

    yield from track(
        steps,
        f"trying {name}",
        console=Console(file=sys.stderr),
        transient=True,
        disable=len(steps) < SHOW_PROGRESS or not sys.stderr.isatty(),
    )


# --- a watcher --------------------------------------------------------------------------------------------------------


class StoreWatcher:
    """Rules over the steps that are recorded after the watcher was made; earlier steps fill the rules' windows.

    Args:
        journal: the journal of the store.
        rules: the rules.
        scope: one scope, `acme/*` for a scope and all scopes in it, or `*` for all scopes.
        agent: only steps of the agent with this name.
    """

    def __init__(self, journal: Journal, rules: Sequence[Watch], *, scope: str = "*", agent: str | None = None) -> None:
        self._journal = journal
        self._rules = [_Detectors(rule) for rule in rules]
        self._scope = scope_filter(scope)
        self._filters: dict[str, Any] = {**self._scope, "agent": agent}
        self._reported: set[tuple[Watch, str, float]] = set()
        window = max(rule.window for rule in rules)
        earlier = journal.find_steps(**self._filters, limit=min(MAX_STEPS, WINDOWS * window))
        self._last = earlier[0].id if earlier else 0
        self._detect(earlier)

    def alerts(self) -> list[Alert]:
        """The rules that fired since the last call."""
        return self._detect(self._new_steps()) + self._silences()

    def _new_steps(self) -> list[Step]:
        """The steps that were recorded since the last call, the newest first."""
        limit = _FIRST_LIMIT
        while True:
            found = self._journal.find_steps(**self._filters, limit=limit)
            new = [step for step in found if step.id > self._last]
            if len(new) < limit:
                break
            limit *= 4
        self._last = new[0].id if new else self._last
        return new

    def _detect(self, newest_first: Sequence[Step]) -> list[Alert]:
        if not newest_first:
            return []
        lines = alert_lines(self._journal.alerts.find(**self._scope, limit=MAX_STEPS))
        alerts = []
        for step in reversed(newest_first):
            for detectors in self._rules:
                reason = _reason(detectors, step, lines)
                if reason is not None:
                    alerts.append(Alert(detectors.rule.name, reason, step.agent, step.run, step.number, step.at))
        return alerts

    def _silences(self) -> list[Alert]:
        """Active runs without a step for longer than a rule allows; each silence is reported once."""
        if all(detectors.rule.silent_seconds is None for detectors in self._rules):
            return []
        alerts = []
        for run in self._journal.find_runs(**self._filters, status="running", limit=MAX_STEPS):
            newest = self._journal.find_steps(run=run.id, limit=1)
            last = (newest[0].at if newest else run.began).timestamp()
            for detectors in self._rules:
                reason = self._silence(detectors, run, last)
                if reason is not None:
                    number = newest[0].number if newest else None
                    alerts.append(Alert(detectors.rule.name, reason, run.agent, run.id, number, when(time.time())))
        return alerts

    def _silence(self, detectors: _Detectors, run: Run, last: float) -> str | None:
        silent, key = time.time() - last, (detectors.rule, run.id, last)
        detector = detectors.of(run)
        if not isinstance(detector, Gap) or silent <= detector.seconds or key in self._reported:
            return None
        self._reported.add(key)
        detector.reported = True
        return detector.why(silent)


def _reason(detectors: _Detectors, step: Step, lines: Collection[str]) -> str | None:
    try:
        seen = seen_by(detectors.rule, step, lines)
        return None if seen is None else detectors.of(step).see(seen)[1]
    except Exception as error:  # a damaged step, a test that raises, a pattern that takes too long
        log.warning("smolmem: the rule %r failed on step %d: %s", detectors.rule.name, step.id, error)
        return None
