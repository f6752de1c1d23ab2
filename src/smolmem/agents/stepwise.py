"""Runs an agent one step at a time.

The step-by-step loop that smolagents documents works on no current release. This is `agent.run()` itself, with
planning, errors, checks, callbacks and max steps, as an iterator. Between two steps the caller may read and change the
memory, stop, or wait for days.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from smolagents import ActionStep, MultiStepAgent
from smolagents.memory import FinalAnswerStep, PlanningStep


class Stepwise:
    """The steps of a run as they are done; `answer` is set after the last step.

    An action is on the agent's list when it is returned. A plan is appended when the next step is requested.
    """

    def __init__(self, agent: MultiStepAgent, events: Iterator[Any], answer: Any = None) -> None:
        self.agent = agent
        self.answer = answer
        self._events = events
        self._last: Any = None

    def __iter__(self) -> Stepwise:
        return self

    def __next__(self) -> Any:
        for event in self._events:
            if isinstance(event, FinalAnswerStep):
                self.answer = event.output
            elif isinstance(event, (ActionStep, PlanningStep)):
                # when all steps are used up, smolagents returns the last action again instead of the final step
                step = self.agent.memory.steps[-1] if event is self._last else event
                self._last = event
                return step
        raise StopIteration

    def close(self) -> None:
        """Stops here; with a `Memory`, the run can be resumed later."""
        close = getattr(self._events, "close", None)
        if close is not None:
            close()


def stepwise(agent: MultiStepAgent, task: str, **options: Any) -> Stepwise:
    """Runs an agent one step at a time; needs no store.

    Args:
        agent: the agent, attached to a `Memory` or not.
        task: its task.
        options: options of `agent.run()`, except `stream`.
    """
    return Stepwise(agent, agent.run(task, stream=True, **options))
