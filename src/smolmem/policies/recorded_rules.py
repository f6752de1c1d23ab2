"""Rules and the record: the rules of a recorded agent, a backtest of one rule, and a watcher of a whole store.

A rule of a recorded agent sees the steps of earlier runs, and its alerts are recorded. In a backtest or a watcher, a
rule sees recorded steps as it would have seen them live, the steps of each agent separately; it reports alerts and does
not act. The watcher reads the store a few times a second. Readers and writers of a store do not block each other, so
the agents that write do not become slower.
"""

from __future__ import annotations

import logging
import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from smolagents.memory import ActionStep, FinalAnswerStep, PlanningStep

from smolmem.agents.compat import Patches, agent_name
from smolmem.agents.recorder import Recorder
from smolmem.core.arguments import scope_filter
from smolmem.core.display import Result
from smolmem.core.errors import Damaged, InvalidArgument
from smolmem.core.values import Alert, Run, when
from smolmem.policies.detectors import Detector, Gap, RecordedStep, alert_lines
from smolmem.policies.watch import Watch
from smolmem.store.journal import Journal

log = logging.getLogger("smolmem")

SHOW_PROGRESS = 1_000
"""Steps that are tried without a progress bar."""
WINDOWS = 5
"""How many times a rule's window is searched for steps that the rule applies to."""
MAX_STEPS = 2_000
_FIRST_LIMIT = 64


def recorded_steps(journal: Journal, scope: Mapping[str, Any], *, limit: int, **filters: Any) -> list[RecordedStep]:
    """Recorded steps as rules see them, the newest first; takes the parameters of `rule_steps` in queries.sql."""
    notes = alert_lines(journal.alerts.find(**scope, limit=max(limit, MAX_STEPS)))
    return [RecordedStep(row, journal.step_of, notes) for row in journal.rule_steps(**scope, **filters, limit=limit)]


def applies(rule: Watch, seen: RecordedStep) -> bool:
    """Whether a rule applies to a recorded step.

    Raises:
        Damaged: if the rule has to read the step, and it is damaged.
    """
    return seen.row["kind"] in rule.kinds and (rule.tools is None or rule.applies_to(seen.step))


class Seen(NamedTuple):
    """What a rule made of a step, and the alert if it fired."""

    step: Literal["counts", "passes", "ignored", "failed"]
    alert: Alert | None = None


class _Detectors:
    """The detectors of one rule, one for each agent; an error of the rule is logged with `level`."""

    def __init__(self, rule: Watch, level: int) -> None:
        self.rule, self.level = rule, level
        self._detectors: dict[tuple[str, str], Detector] = {}

    def of(self, scope: str, agent: str) -> Detector:
        if (scope, agent) not in self._detectors:
            self._detectors[scope, agent] = self.rule.detector()
        return self._detectors[scope, agent]

    def see(self, seen: RecordedStep) -> Seen:
        """Shows the rule a step."""
        row = seen.row
        try:
            if not applies(self.rule, seen):
                return Seen("ignored")
            counts, reason = self.of(row["scope"], row["agent"]).see(seen)
        except Exception as error:  # a damaged step, a test that raises, a pattern that takes too long
            log.log(self.level, "smolmem: the rule %r failed on step %d: %s", self.rule.name, row["id"], error)
            return Seen("failed")
        alert = None
        if reason is not None:
            alert = Alert(self.rule.name, reason, row["agent"], row["run"], row["number"], when(seen.at))
        return Seen("counts" if counts else "passes", alert)


# --- a backtest -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backtest(Result):
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


def backtest(rule: Watch, steps: Sequence[RecordedStep]) -> Backtest:
    """Shows a rule recorded steps, the oldest first."""
    detectors = _Detectors(rule, logging.INFO)
    every = [detectors.see(step) for step in _with_progress(steps, rule.name)]
    seen = [each for each in every if each.step in ("counts", "passes")]
    return Backtest(
        rule.name,
        [each.alert for each in seen if each.alert is not None],
        steps=len(seen),
        runs=len({step.run for step in steps}),
        counted=[each.step == "counts" for each in seen],
        fired=[each.alert is not None for each in seen],
        skipped=sum(each.step == "failed" for each in every),
    )


def _with_progress(steps: Sequence[RecordedStep], name: str) -> Iterator[RecordedStep]:
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

    The steps can be those of one scope and one agent only.
    """

    def __init__(self, journal: Journal, rules: Sequence[Watch], *, scope: str = "*", agent: str | None = None) -> None:
        self._journal = journal
        self._rules = [_Detectors(rule, logging.WARNING) for rule in rules]
        self._scope = scope_filter(scope)
        self._agent = agent
        self._reported: set[tuple[Watch, str, float]] = set()
        window = max(rule.window for rule in rules)
        earlier = self._newest(min(MAX_STEPS, WINDOWS * window))
        self._last = earlier[0].row["id"] if earlier else 0
        self._detect(earlier)

    def alerts(self) -> list[Alert]:
        """The rules that fired since the last call."""
        return self._detect(self._new_steps()) + self._silences()

    def _newest(self, limit: int) -> list[RecordedStep]:
        return recorded_steps(self._journal, self._scope, agent=self._agent, limit=limit)

    def _new_steps(self) -> list[RecordedStep]:
        """The steps that were recorded since the last call, the newest first."""
        limit = _FIRST_LIMIT
        while True:
            new = [step for step in self._newest(limit) if step.row["id"] > self._last]
            if len(new) < limit:
                break
            limit *= 4
        self._last = new[0].row["id"] if new else self._last
        return new

    def _detect(self, newest_first: Sequence[RecordedStep]) -> list[Alert]:
        found = (detectors.see(step).alert for step in reversed(newest_first) for detectors in self._rules)
        return [alert for alert in found if alert is not None]

    def _silences(self) -> list[Alert]:
        """Active runs without a step for longer than a rule allows; each silence is reported once."""
        if all(detectors.rule.silent_seconds is None for detectors in self._rules):
            return []
        alerts = []
        for run in self._journal.find_runs(**self._scope, agent=self._agent, status="running", limit=MAX_STEPS):
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
        detector = detectors.of(run.scope, run.agent)
        if not isinstance(detector, Gap) or silent <= detector.seconds or key in self._reported:
            return None
        self._reported.add(key)
        detector.reported = True
        return detector.why(silent)


# --- the rules of a recorded agent ------------------------------------------------------------------------------------


class AttachedRules:
    """The rules of one agent."""

    def __init__(self, recorder: Recorder, journal: Journal) -> None:
        self._recorder = recorder
        self._journal = journal
        self._rules: dict[Watch, Patches] = {}
        recorder.patches.callback(self.set, [])

    def set(self, rules: Sequence[Watch]) -> None:
        """Attaches these rules, and detaches all others."""
        if not isinstance(rules, Sequence) or not all(isinstance(rule, Watch) for rule in rules):
            raise InvalidArgument(f"watch takes a list of rules such as [Watch('error')], not {rules!r}.")
        for rule in [rule for rule in self._rules if rule not in rules]:
            rule.forget(self._recorder.agent)
            self._rules.pop(rule).close()
        for rule in rules:
            if rule not in self._rules:
                self._rules[rule] = self._attach(rule)

    def _attach(self, rule: Watch) -> Patches:
        agent, patches = self._recorder.agent, Patches()
        runner = rule.runner(agent)
        runner.attach(weakref.ref(self._recorder), self._journal.alerts.add)
        runner.learn(self._earlier_steps(rule))
        also = {PlanningStep: "planning" in rule.kinds, FinalAnswerStep: rule.silent_seconds is not None}
        for cls in (ActionStep, *(cls for cls, watched in also.items() if watched)):
            patches.register(agent, cls, rule)
        return patches

    def _earlier_steps(self, rule: Watch) -> Iterator[RecordedStep]:
        """The steps of this agent in earlier runs that fit the rule's window."""
        found = recorded_steps(
            self._journal,
            {"scope": self._recorder.scope},
            agent=agent_name(self._recorder.agent),
            since=None if rule.hours is None else time.time() - rule.hours * 3600,
            limit=min(MAX_STEPS, rule.window * WINDOWS),
        )
        fitting = list[RecordedStep]()
        for step in found:
            with suppress(Damaged):
                fitting += [step] if applies(rule, step) else []
        return reversed(fitting[: rule.window])
