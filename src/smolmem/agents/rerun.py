"""Reruns a recorded run: an agent with another model or prompt works on the same task.

Tools return the results of the recorded run and are never called. The result names the first step that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from smolagents import ActionStep, MultiStepAgent

from smolmem.agents import compat
from smolmem.agents.restoring.known_classes import classes_of
from smolmem.agents.stepwise import stepwise
from smolmem.agents.tools import MEMORY_TOOLS, give_memory_tools
from smolmem.core.encoding import codec
from smolmem.core.encoding.codec import Encoded
from smolmem.core.encoding.instances import NotRestored
from smolmem.core.rows import RecordedCall
from smolmem.core.values import Run
from smolmem.store.journal import Journal

_COMPARED = {
    "code_action": "its code differs",
    "tool_calls": "its tool calls differ",
    "observations": "its observations differ",
}
"""The fields that two steps are compared by, each with the reason that it gives."""


class _Unrecorded(BaseException):
    """The agent makes a tool call that was not recorded, so there is no result to return."""


class _RecordedResults:
    """Returns the recorded results of calls, in any order."""

    def __init__(self, agent: MultiStepAgent, calls: list[RecordedCall], encode: Callable[[Any], Encoded]) -> None:
        self._agent = agent
        self._encode = encode
        self._left = [call for call in calls if call.kind == "tool" and call.ended]

    def tool(self, name: str, arguments: Any, act: Any, passed: Iterable[Any] = ()) -> Any:
        """The recorded result of a call. Only `final_answer`, which has no effect, is called itself."""
        key = self._encode(arguments).key
        for call in self._left:
            if call.name == name and call.is_of(key, self._encode):
                self._left.remove(call)
                return self._result_of(call, passed)
        if name == "final_answer":
            return act()
        raise _Unrecorded(f"it calls {name} with {arguments!r}")

    def _result_of(self, call: RecordedCall, passed: Iterable[Any]) -> Any:
        try:
            return call.loaded(classes_of(self._agent)).replay(passed)
        except NotRestored as what:
            raise _Unrecorded(f"the result of {call.name} could not be stored: {what}") from None


@dataclass
class Rerun:
    """How a rerun went: true if every step was the same as in the recorded run."""

    answer: Any = None
    diverged: int | None = None
    reason: str = ""
    steps: list[Any] = field(default_factory=list, repr=False)

    def __bool__(self) -> bool:
        return self.diverged is None


def rerun(agent: MultiStepAgent, run: Run, calls: list[RecordedCall], journal: Journal) -> Rerun:
    """Lets an agent work on a run's task with recorded tool results, up to the first step that differs."""
    recorded, result = _RecordedResults(agent, calls, journal.encode), Rerun()
    with compat.Patches() as patches:
        patches.tool_calls(agent, recorded.tool)
        if any(call.name.partition(".")[0] in MEMORY_TOOLS for call in calls):
            give_memory_tools(
                patches, agent, None, lambda name: lambda *args, **given: recorded.tool(name, [list(args), given], None)
            )
        _play(agent, run, result, journal)
    return result


def _play(agent: MultiStepAgent, run: Run, result: Rerun, journal: Journal) -> None:
    before = [step.to_smolagents() for step in run.steps if step.kind == "action"]
    task = next(step.to_smolagents() for step in run.steps if step.kind == "task")
    playing = stepwise(agent, journal.redactor.known.text(task.task), images=task.task_images)
    try:
        for step in playing:
            if isinstance(step, ActionStep) and not codec.is_interrupted(step):
                result.steps.append(step)
                _compare(result, step, before, journal)
                if not result:
                    break
        result.answer = playing.answer
    except _Unrecorded as why:
        result.diverged, result.reason = len(result.steps) + 1, str(why)
    finally:
        playing.close()
    if result and len(result.steps) < len(before):
        result.diverged, result.reason = len(result.steps) + 1, "it ends where the recorded run continued"


def _compare(result: Rerun, step: ActionStep, before: list[Any], journal: Journal) -> None:
    number = len(result.steps)
    if number > len(before):
        result.diverged, result.reason = number, "it continues where the recorded run had ended"
        return
    for name, reason in _COMPARED.items():
        now, then = getattr(step, name), getattr(before[number - 1], name)
        if now != then and journal.encode(now).key != journal.encode(then).key:
            result.diverged, result.reason = number, reason
            return
