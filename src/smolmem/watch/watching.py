"""Rules on an agent that is attached: they see earlier runs, and what they do is recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from smolagents.memory import ActionStep, FinalAnswerStep, PlanningStep

from smolmem.errors import BadValue, Damaged
from smolmem.record.recorder import Recorder
from smolmem.store.journal import Journal
from smolmem.watch.judges import Seen
from smolmem.watch.rule import Watch

FURTHER = 5
"""How many times a rule's window is looked through for steps that it is about."""
MOST = 2_000


class Watching:
    """The rules of one agent."""

    def __init__(self, recorder: Recorder, journal: Journal) -> None:
        self._recorder = recorder
        self._journal = journal
        self._rules: list[Watch] = []

    def set(self, rules: list[Watch]) -> None:
        """These rules watch the agent, and no others that were attached before."""
        for rule in rules:
            if not isinstance(rule, Watch):
                raise BadValue(f"watch takes rules such as Watch('error'), not {rule!r}.")
        for rule in self._rules:
            if rule not in rules:
                self._drop(rule)
        for rule in rules:
            if rule not in self._rules:
                self._add(rule)
        self._rules = list(rules)

    def release(self) -> None:
        """The agent is not watched any more."""
        self.set([])

    def _add(self, rule: Watch) -> None:
        recorder = self._recorder
        following = rule.following(recorder.agent)
        following.run = lambda: (recorder.here() or (None,))[0]
        following.record = partial(self._journal.traces.add_alert, scope=recorder.scope)
        following.put = recorder.put
        following.past(self._past(rule))
        callbacks = recorder.agent.step_callbacks
        for cls in _classes(rule):
            if rule not in callbacks._callbacks.get(cls, ()):
                callbacks.register(cls, rule)

    def _drop(self, rule: Watch) -> None:
        rule.unfollow(self._recorder.agent)
        for callbacks in self._recorder.agent.step_callbacks._callbacks.values():
            callbacks[:] = [callback for callback in callbacks if callback is not rule]

    def _past(self, rule: Watch) -> Iterator[Seen]:
        """What this agent did in earlier runs, as far as the rule looks back."""
        agent = self._recorder.agent
        wanted: dict[str, Any] = {"scope": self._recorder.scope, "agent": agent.name or type(agent).__name__}
        since = None if rule.hours is None else time.time() - rule.hours * 3600
        found = self._journal.find_steps(**wanted, since=since, limit=min(MOST, rule.window * FURTHER))
        seen = []
        for step in found:
            try:
                live = step.to_smolagents()
            except Damaged:
                continue
            if rule.about(live):
                seen.append(Seen(live, step.run, step.at.timestamp()))
        return reversed(seen[: rule.window])


def _classes(rule: Watch) -> list[type]:
    planning = [PlanningStep] if "planning" in rule.kinds else []
    return [ActionStep, *planning, *([FinalAnswerStep] if rule.patience is not None else [])]
