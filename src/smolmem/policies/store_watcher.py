"""Rules over everything that is recorded in a store, by whichever process. The rules report alerts and do not act.

The store is read a few times a second. Readers and writers of a store do not block each other, so the agents that
write do not become slower.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from smolmem.core.arguments import scope_filter
from smolmem.core.values import Alert, Run, Step, when
from smolmem.policies.attached_rules import MAX_STEPS, WINDOWS
from smolmem.policies.detectors import Detector, Gap, SeenStep, alert_lines
from smolmem.policies.watch import Watch
from smolmem.store.journal import Journal

log = logging.getLogger("smolmem")

_FIRST_LIMIT = 64


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
        self._rules = rules
        self._scope = scope_filter(scope)
        self._filters: dict[str, Any] = {**self._scope, "agent": agent}
        self._detectors: dict[tuple[Watch, str, str], Detector] = {}
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
            for rule in self._rules:
                reason = self._reason(rule, step, lines)
                if reason is not None:
                    alerts.append(Alert(rule.name, reason, step.agent, step.run, step.number, step.at))
        return alerts

    def _reason(self, rule: Watch, step: Step, lines: frozenset[str]) -> str | None:
        try:
            live = step.to_smolagents()
            if not rule.applies_to(live):
                return None
            return self._detector(rule, step).see(SeenStep(live, step.run, step.at.timestamp(), lines))[1]
        except Exception as error:  # a damaged step, a test that raises, a pattern that takes too long
            log.warning("smolmem: the rule %r failed on step %d: %s", rule.name, step.id, error)
            return None

    def _detector(self, rule: Watch, of: Step | Run) -> Detector:
        """The steps of each agent are counted apart."""
        key = (rule, of.scope, of.agent)
        if key not in self._detectors:
            self._detectors[key] = rule.detector()
        return self._detectors[key]

    def _silences(self) -> list[Alert]:
        """Active runs without a step for longer than a rule allows; each silence is reported once."""
        if all(rule.silent_seconds is None for rule in self._rules):
            return []
        alerts = []
        for run in self._journal.find_runs(**self._filters, status="running", limit=MAX_STEPS):
            newest = self._journal.find_steps(run=run.id, limit=1)
            last = (newest[0].at if newest else run.began).timestamp()
            for rule in self._rules:
                reason = self._silence(rule, run, last)
                if reason is not None:
                    number = newest[0].number if newest else None
                    alerts.append(Alert(rule.name, reason, run.agent, run.id, number, when(time.time())))
        return alerts

    def _silence(self, rule: Watch, run: Run, last: float) -> str | None:
        silent, key = time.time() - last, (rule, run.id, last)
        detector = self._detector(rule, run)
        if not isinstance(detector, Gap) or silent <= detector.seconds or key in self._reported:
            return None
        self._reported.add(key)
        detector.reported = True
        return detector.why(silent)
