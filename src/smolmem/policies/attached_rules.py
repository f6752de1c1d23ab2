"""The rules of an agent that is recorded: they see earlier runs, and their alerts are recorded."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress

from smolagents.memory import ActionStep, FinalAnswerStep, PlanningStep

from smolmem.agents.compat import Patches, agent_name
from smolmem.agents.recorder import Recorder
from smolmem.core.errors import Damaged, InvalidArgument
from smolmem.policies.detectors import RecordedStep
from smolmem.policies.recorded_rules import MAX_STEPS, WINDOWS, applies, recorded_steps
from smolmem.policies.watch import Watch
from smolmem.store.journal import Journal


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
        for cls in _step_classes(rule):
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


def _step_classes(rule: Watch) -> list[type]:
    planning = [PlanningStep] if "planning" in rule.kinds else []
    return [ActionStep, *planning, *([FinalAnswerStep] if rule.silent_seconds is not None else [])]
