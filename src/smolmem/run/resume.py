"""A run that was cut goes on: same context, numbers, rhythm, budget and variables, and no tool is called twice.

smolagents has no way to go on without a new task. `run(stream=True)` puts its task on the list at once and starts
nothing yet, so the task can be taken off again; the first step is then given the number it should have had. While that
is done the recorder is quiet.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from smolagents import ActionStep, CodeAgent
from smolagents.agent_types import handle_agent_output_types
from smolagents.memory import FinalAnswerStep, PlanningStep, TaskStep
from smolagents.monitoring import Timing
from smolagents.utils import AgentMaxStepsError

from smolmem.errors import CannotResume, UnknownOutcome
from smolmem.record import codec
from smolmem.record.injected import Injected
from smolmem.record.ledger import Diverged
from smolmem.record.recorder import Call, Recorder
from smolmem.record.values import PastCall, Run, RunRow
from smolmem.run import interpreter
from smolmem.store.journal import Journal, Loaded

log = logging.getLogger("smolmem")

Unknown = Literal["raise", "rerun", "skip"]


@dataclass
class Resumed:
    """A run that is ready to go on: its events, or at once its answer."""

    events: Iterator[Any] | None
    answer: Any = None


def resume(
    recorder: Recorder, journal: Journal, run: Run, find: Callable[[Any], Recorder], unknown: Unknown
) -> Resumed:
    """Makes an agent ready to go on with a run.

    Args:
        recorder: the recorder of the agent.
        journal: where the run is stored.
        run: the run.
        find: the recorder of a managed agent.
        unknown: what to do about calls that were cut.

    Raises:
        CannotResume: it is finished, or another process works on it.
        UnknownOutcome: nobody knows whether a tool was called.
    """
    agent = recorder.agent
    _check_agent(agent, run)
    loaded = journal.session(run.session, run.id)
    calls = journal.calls(run.id, 0)
    _check_tools(agent, run, calls)
    if unknown == "raise":
        _refuse_unknown(agent, journal, run)
    row = journal.claim(run.id)
    steps = [entry.step for entry in loaded.session.entries]
    waiting = recorder.standing.take()
    recorder.adopt(loaded.session, row, loaded.turns)
    _put_back(recorder, agent, steps)
    done = _answer(steps, calls, loaded.turns)
    if done is not None:
        return Resumed(None, _finish(recorder, row, done))
    _drop_failed(agent)
    begun = [replace(call, turn=loaded.turns) for call in calls if call.turn >= loaded.done]
    _expect_children(agent, journal, run, begun, find, unknown)
    recorder.ledger.expect(begun, sequential=isinstance(agent, CodeAgent), skip=unknown == "skip")
    if not begun:  # what was injected meanwhile comes now; else the step that was cut is finished first, as it was
        agent.memory.steps.extend(waiting)
        waiting = []
    answered = any(call.kind == "model" for call in begun)
    events = _go_on(recorder, row, loaded, answered=answered, waiting=waiting)
    next(events)  # begun, so that closing it is noticed even if nobody asks for an event
    return Resumed(events)


def _check_agent(agent: Any, run: Run) -> None:
    name = agent.name or type(agent).__name__
    if run.agent_type != type(agent).__name__:
        raise CannotResume(
            f"run {run.id[:8]} is one of a {run.agent_type}, not of a {type(agent).__name__}; restore it there."
        )
    if run.agent != name:
        raise CannotResume(f"run {run.id[:8]} is one of the agent {run.agent!r}, not of {name!r}.")


def _check_tools(agent: Any, run: Run, calls: list[PastCall]) -> None:
    in_code = getattr(getattr(agent, "python_executor", None), "additional_functions", {})
    known = {*agent.tools, *agent.managed_agents, *in_code}
    lacking = sorted({call.name for call in calls if call.kind == "tool" and call.name.partition(".")[0] not in known})
    if lacking:
        raise CannotResume(
            f"run {run.id[:8]} has called {', '.join(lacking)}, which this agent does not have: give it the same "
            "tools, or restore() the run and go on with a new task."
        )


def _refuse_unknown(agent: Any, journal: Journal, run: Run) -> None:
    """Looks before anything is done, also at the runs of managed agents that were cut."""
    for child in journal.find_runs(parent=run.id, limit=1000):
        if child.agent in agent.managed_agents and child.status != "finished":
            _refuse_unknown(agent.managed_agents[child.agent], journal, child)
    loaded = journal.session(run.session, run.id)
    loaded.session.close()
    for call in journal.calls(run.id, loaded.done):
        tool = agent.tools.get(call.name)
        if call.ended or call.name in agent.managed_agents or getattr(tool, "safe_to_repeat", False):
            continue
        raise UnknownOutcome(
            f"run {run.id[:8]} was cut while it called {call.name} with {call.arguments()!r}: nobody knows whether "
            "that happened. Find out, then resume(agent, unknown='rerun') to call it again or unknown='skip' to go on "
            "without; a tool with safe_to_repeat = True is always called again."
        )


def _put_back(recorder: Recorder, agent: Any, steps: list[Any]) -> None:
    recorder.quiet = True
    try:
        agent.memory.steps = steps
    finally:
        recorder.quiet = False
    agent.monitor.reset()
    for step in steps:
        if isinstance(step, ActionStep) and not isinstance(step, Injected) and step.timing is not None:
            agent.monitor.step_durations.append(step.timing.duration)
            if step.token_usage is not None:
                agent.monitor.total_input_token_count += step.token_usage.input_tokens
                agent.monitor.total_output_token_count += step.token_usage.output_tokens


def _answer(steps: list[Any], calls: list[PastCall], turns: int) -> tuple[Any] | None:
    """The answer of a run that was cut after its last step."""
    last = steps[-1] if steps else None
    if not isinstance(last, ActionStep) or not (last.is_final_answer or isinstance(last.error, AgentMaxStepsError)):
        return None
    if last.action_output is not None:
        return (last.action_output,)
    said = [call for call in calls if call.turn == turns - 1 and call.name == "final_answer" and call.ended]
    return (said[-1].outcome() if said else None,)


def _finish(recorder: Recorder, row: RunRow, done: tuple[Any]) -> Any:
    answer = handle_agent_output_types(done[0])
    recorder.finish(Call(recorder, None, row["title"], row["max_steps"], row["id"]), answer)
    return answer


def _drop_failed(agent: Any) -> None:
    """A half step is on the list where a model failed or a tool was broken off; it is done anew, or finished."""
    if codec.is_cut(agent.memory.steps[-1]):
        agent.memory.steps.pop()


def _expect_children(
    agent: Any, journal: Journal, run: Run, begun: list[PastCall], find: Callable[[Any], Recorder], unknown: Unknown
) -> None:
    """Managed agents that were cut go on, when the step that called them does so again."""
    number, ended = _next_number(agent.memory.steps), Counter(call.name for call in begun if call.ended)
    for child in reversed(journal.find_runs(parent=run.id, limit=1000)):
        helper = agent.managed_agents.get(child.agent)
        if helper is None or child.parent_step != number:
            continue
        if ended[child.agent]:  # the ledger has the result of this one
            ended[child.agent] -= 1
            continue
        recorder = find(helper)
        go_on = partial(_child, recorder, journal, child, find, unknown)
        recorder.going_on.setdefault(child.task, []).append(go_on)


def _child(recorder: Recorder, journal: Journal, child: Run, find: Callable[[Any], Recorder], unknown: Unknown) -> Any:
    return child.answer if child.status == "finished" else drain(resume(recorder, journal, child, find, unknown))


def drain(resumed: Resumed) -> Any:
    """Goes on to the end and returns the answer."""
    answer = resumed.answer
    for event in resumed.events or ():
        if isinstance(event, FinalAnswerStep):
            answer = event.output
    return answer


def _next_number(steps: list[Any]) -> int:
    """The number that the next action of this run has: steps count from 1 after each task."""
    number = 1
    for step in steps:
        if isinstance(step, TaskStep):
            number = 1
        elif isinstance(step, ActionStep) and not isinstance(step, Injected):
            number = step.step_number + 1
    return number


def _go_on(
    recorder: Recorder, row: RunRow, loaded: Loaded, *, answered: bool, waiting: list[Injected]
) -> Iterator[Any]:
    agent = recorder.agent
    task = next(step for step in reversed(agent.memory.steps) if isinstance(step, TaskStep))
    number, most = _next_number(agent.memory.steps), row["max_steps"] or agent.max_steps
    try:
        yield None
    except GeneratorExit:
        recorder.abandon(row["id"])
        raise
    if number > most:
        yield from _last_words(recorder, row, task.task, number)
        return
    call = recorder.next_call = Call(recorder, None, task.task, most, row["id"], number)
    with _pretending(recorder, number, call, waiting):
        recorder.quiet = True
        try:
            events = agent.run(task.task, stream=True, reset=False, images=task.task_images, max_steps=most)
            agent.memory.steps.pop()
        finally:
            recorder.quiet = False
        restored = interpreter.restore(agent, loaded.past, loaded.kept)
        log.log(
            logging.WARNING if restored.missing else logging.INFO,
            "run %s goes on at step %d; %s",
            row["id"][:8],
            number,
            restored,
        )
        if restored.missing and not answered:  # an answer that was given is used as it is
            _tell(agent, restored.missing)
        try:
            yield from events
        except Diverged as why:
            agent.memory.steps.pop()
            raise CannotResume(
                f"run {row['id'][:8]}: step {number} was cut and does not go the same way again: {why}. "
                "Its earlier steps are as they were; restore() them into an agent to go on from there."
            ) from None


def _last_words(recorder: Recorder, row: RunRow, task: str, number: int) -> Iterator[Any]:
    """All steps are used up, and the process died before the agent could answer from what it has: it does now."""
    agent, call = recorder.agent, Call(recorder, None, task, row["max_steps"], row["id"])
    with recorder.during(call):
        began = time.time()
        said = agent.provide_final_answer(task)
        step = ActionStep(step_number=number, timing=Timing(began, time.time()), token_usage=said.token_usage)
        step.error, step.action_output = AgentMaxStepsError("Reached max steps.", agent.logger), said.content
        agent.step_callbacks.callback(step, agent=agent)
        agent.memory.steps.append(step)
        yield step
    yield FinalAnswerStep(_finish(recorder, row, (said.content,)))


def _tell(agent: Any, missing: list[str]) -> None:
    """One line for the agent, at the end of what it saw last."""
    last = _last_done(agent.memory.steps)
    if isinstance(last, ActionStep):
        told = f"[The process was restarted; these variables are gone: {', '.join(missing)}]"
        last.observations = f"{last.observations}\n{told}" if last.observations else told


def _last_done(steps: list[Any]) -> Any:
    return next(step for step in reversed(steps) if not isinstance(step, Injected))


@contextmanager
def _pretending(recorder: Recorder, number: int, call: Call, waiting: list[Injected]) -> Iterator[None]:
    """It begins to count at 1: until its first step is done, it is led to believe what makes the rest right."""
    agent = recorder.agent
    interval, budget = agent.planning_interval, agent.max_steps
    planned = isinstance(_last_done(agent.memory.steps), PlanningStep)
    due = interval is not None and (number == 1 or (number - 1) % interval == 0) and not planned
    agent.planning_interval = interval if due else None
    agent.max_steps = budget - number + 1
    first = [True]

    def correct(step: Any, agent: Any) -> None:
        if first and first.pop():
            step.step_number = agent.step_number = number
            call.number = None
            for helper in recorder.helpers():
                helper.going_on.clear()
            agent.memory.steps.extend(waiting)
            agent.planning_interval, agent.max_steps = interval, budget

    callbacks = agent.step_callbacks._callbacks.setdefault(ActionStep, [])
    callbacks.insert(0, correct)
    try:
        yield
    finally:
        callbacks.remove(correct)
        agent.planning_interval, agent.max_steps = interval, budget
