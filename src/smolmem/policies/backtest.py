"""A rule tried on recorded steps: when it would have fired."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import track

from smolmem.core.display import Drawable
from smolmem.core.values import Alert, Step, when
from smolmem.policies.detectors import Detector, SeenStep
from smolmem.policies.watch import Watch

log = logging.getLogger("smolmem")

SHOW_PROGRESS = 1_000
"""Steps that are tried without a progress bar."""


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


def backtest(rule: Watch, steps: Sequence[Step], notes: Collection[str]) -> Backtest:
    """Shows a rule recorded steps, the oldest first, as it would have seen them: the steps of each agent apart.

    Args:
        rule: the rule.
        steps: the steps.
        notes: lines that rules have written into the steps; they do not count.
    """
    detectors: dict[tuple[str, str], Detector] = {}
    alerts, counted, fired, skipped = list[Alert](), list[bool](), list[bool](), 0
    for step in _with_progress(steps, rule.name):
        try:
            live = step.to_smolagents()
            if not rule.applies_to(live):
                continue
            owner = (step.scope, step.agent)
            if owner not in detectors:
                detectors[owner] = rule.detector()
            counts, reason = detectors[owner].see(SeenStep(live, step.run, step.at.timestamp(), notes))
        except Exception as error:  # a damaged step, a test that raises, a pattern that takes forever
            log.info("smolmem: the rule %r failed on step %d: %s", rule.name, step.id, error)
            skipped += 1
            continue
        counted.append(counts)
        fired.append(reason is not None)
        if reason is not None:
            at = getattr(getattr(live, "timing", None), "end_time", None) or step.at.timestamp()
            alerts.append(Alert(rule.name, reason, step.agent, step.run, step.number, when(at)))
    return Backtest(rule.name, alerts, len(counted), len({step.run for step in steps}), counted, fired, skipped)


def _with_progress(steps: Sequence[Step], name: str) -> Iterator[Step]:
    yield from track(
        steps,
        f"trying {name}",
        console=Console(file=sys.stderr),
        transient=True,
        disable=len(steps) < SHOW_PROGRESS or not sys.stderr.isatty(),
    )
