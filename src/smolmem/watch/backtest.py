"""A rule tried on the past: when it would have fired, and a picture of it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from smolmem.record.values import Alert, Step, when
from smolmem.watch.judges import Judge, Seen
from smolmem.watch.rule import Watch

if TYPE_CHECKING:
    from rich.console import RenderableType

log = logging.getLogger("smolmem")

MANY = 1_000
"""Steps that are gone through without a progress bar."""


@dataclass(frozen=True)
class Backtest:
    """When a rule would have fired; true if it would."""

    rule: str
    alerts: list[Alert]
    steps: int
    runs: int
    counted: list[bool] = field(repr=False)
    fired: list[bool] = field(repr=False)
    """For each step the rule is about, whether it counts, and whether the rule fires there."""
    unread: int = 0
    """Steps that are damaged, or that the rule could not judge."""

    def __bool__(self) -> bool:
        return bool(self.alerts)

    def __rich__(self) -> RenderableType:
        from smolmem.record import show

        return show.backtest(self)


def backtest(rule: Watch, steps: Sequence[Step], notes: Collection[str]) -> Backtest:
    """Shows a rule steps of the past, oldest first, as it would have seen them: each agent's by themselves.

    Args:
        rule: the rule.
        steps: the steps.
        notes: lines that rules have written into them: they do not count.
    """
    judges: dict[tuple[str, str], Judge] = {}
    alerts, counted, fired, unread = list[Alert](), list[bool](), list[bool](), 0
    for step in _shown(steps, rule.name):
        try:
            live = step.to_smolagents()
            if not rule.about(live):
                continue
            whose = (step.scope, step.agent)
            if whose not in judges:
                judges[whose] = rule.judge()
            counts, reason = judges[whose].see(Seen(live, step.run, step.at.timestamp(), notes))
        except Exception as error:  # a damaged step, a test that raises, a pattern that takes forever
            log.info("smolmem: the rule %r cannot judge step %d: %s", rule.name, step.id, error)
            unread += 1
            continue
        counted.append(counts)
        fired.append(reason is not None)
        if reason is not None:
            at = getattr(getattr(live, "timing", None), "end_time", None) or step.at.timestamp()
            alerts.append(Alert(rule.name, reason, step.agent, step.run, step.number, when(at)))
    return Backtest(rule.name, alerts, len(counted), len({step.run for step in steps}), counted, fired, unread)


def _shown(steps: Sequence[Step], name: str) -> Iterator[Step]:
    yield from track(
        steps,
        f"trying {name}",
        console=Console(file=sys.stderr),
        transient=True,
        disable=len(steps) < MANY or not sys.stderr.isatty(),
    )
