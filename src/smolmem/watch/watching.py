"""Rules on an agent that is attached: they see earlier runs, and what they do is recorded."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from smolagents.memory import ActionStep, FinalAnswerStep, PlanningStep

from smolmem.errors import BadValue, Damaged
from smolmem.record.recorder import Recorder
from smolmem.store.journal import Journal
from smolmem.watch.judges import Seen, written
from smolmem.watch.rule import Watch

FURTHER = 5
"""How many times a rule's window is looked through for steps that it is about."""
MOST = 2_000


class Watching:
    """The rules of one agent."""

    def __init__(self, recorder: Recorder, journal: Journal) -> None:
        self._recorder = recorder
        self._journal = journal
        self._rules: dict[Watch, list[type]] = {}
        """The rules, and the kinds of steps that they were registered for here."""

    def set(self, rules: Sequence[Watch]) -> None:
        """These rules watch the agent, and no others that were attached before."""
        if not isinstance(rules, Sequence) or not all(isinstance(rule, Watch) for rule in rules):
            raise BadValue(f"watch takes a list of rules such as [Watch('error')], not {rules!r}.")
        for rule in [rule for rule in self._rules if rule not in rules]:
            self._drop(rule)
        for rule in rules:
            if rule not in self._rules:
                self._rules[rule] = self._add(rule)

    def release(self) -> None:
        """The agent is not watched any more."""
        self.set([])

    def _add(self, rule: Watch) -> list[type]:
        agent = self._recorder.agent
        following = rule.following(agent)
        following.tie(weakref.ref(self._recorder), self._journal.traces.add_alert)
        following.past(self._past(rule))
        added = [cls for cls in _classes(rule) if rule not in agent.step_callbacks._callbacks.get(cls, ())]
        for cls in added:
            agent.step_callbacks.register(cls, rule)
        return added

    def _drop(self, rule: Watch) -> None:
        agent = self._recorder.agent
        rule.unfollow(agent)
        for cls in self._rules.pop(rule):
            callbacks = agent.step_callbacks._callbacks.get(cls, [])
            callbacks[:] = [callback for callback in callbacks if callback is not rule]

    def _past(self, rule: Watch) -> Iterator[Seen]:
        """What this agent did in earlier runs, as far as the rule looks back."""
        agent = self._recorder.agent
        wanted: dict[str, Any] = {"scope": self._recorder.scope, "agent": agent.name or type(agent).__name__}
        since = None if rule.hours is None else time.time() - rule.hours * 3600
        found = self._journal.find_steps(**wanted, since=since, limit=min(MOST, rule.window * FURTHER))
        notes = written(self._journal.traces.alerts(scope=wanted["scope"], limit=MOST))
        seen = []
        for step in found:
            try:
                live = step.to_smolagents()
            except Damaged:
                continue
            if rule.about(live):
                seen.append(Seen(live, step.run, step.at.timestamp(), notes))
        return reversed(seen[: rule.window])


def _classes(rule: Watch) -> list[type]:
    planning = [PlanningStep] if "planning" in rule.kinds else []
    return [ActionStep, *planning, *([FinalAnswerStep] if rule.patience is not None else [])]
