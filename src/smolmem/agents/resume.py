"""Resumes a killed run.

The steps of `Resumption.start`, and the sections of this file, top to bottom:

    claim      this process becomes the writer of the run, so that no other process can resume it
    load       the list, the code, the variables, and the calls of the step that was interrupted
    check      the agent and its tools are the right ones, this process has the secrets that were not stored, and no
               call has an unknown outcome; otherwise the run is released
    put back   the steps go onto the agent's list
    continue   if the last step gave the answer, the run ends with it;
               if all steps are used up, the agent answers from its memory;
               otherwise the run continues with the same step numbers, budget, planning interval and variables: the
               model's recorded answer is used, and calls that ended return their recorded results

Managed agents that were interrupted continue when the step that called them calls them again.

`restore` is the shorter way for an agent of another kind: it loads and puts back, and the user continues.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from smolagents import ActionStep, CodeAgent
from smolagents.memory import FinalAnswerStep, PlanningStep, TaskStep
from smolagents.utils import AgentMaxStepsError

from smolmem.agents import compat
from smolmem.agents.active_runs import ActiveRun
from smolmem.agents.ledger import Diverged, Unknown, declared
from smolmem.agents.recorder import Recorder
from smolmem.agents.restoring import interpreter
from smolmem.agents.restoring.interpreter import Restored
from smolmem.agents.restoring.known_classes import classes_of
from smolmem.agents.restoring.missing_secrets import check_secrets
from smolmem.agents.restoring.rehearsal import OutsideEffect, Rehearsal, before_code
from smolmem.core.encoding import codec
from smolmem.core.encoding.instances import NotRestored
from smolmem.core.errors import CannotResume, UnknownOutcome
from smolmem.core.injected import Injected
from smolmem.core.rows import RecordedCall, RunRow, StoredSession
from smolmem.core.values import Run
from smolmem.store.journal import Journal

log = logging.getLogger("smolmem")


@dataclass(frozen=True)
class Resumed:
    """A run that is ready to continue: its events, or its answer if it had one already."""

    events: Iterator[Any] | None
    answer: Any = None


@dataclass(frozen=True)
class Resumption:
    """One attempt to resume a run.

    Args:
        recorder: the recorder of the agent.
        journal: where the run is stored.
        run: the run.
        recorder_of: finds the recorder of a managed agent.
        unknown: how to handle calls that were interrupted.
        placeholders: whether to resume without secrets that this process lacks.
    """

    recorder: Recorder
    journal: Journal
    run: Run
    recorder_of: Callable[[Any], Recorder]
    unknown: Unknown
    placeholders: bool = False

    def start(self) -> Resumed:
        """Makes the agent ready to continue the run.

        Raises:
            CannotResume: if the run is finished, another agent's, or another process works on it.
            UnknownOutcome: if it is unknown whether a tool was called.
        """
        self._check_agent()
        before, row = self.journal.claim(self.run.id)
        secrets = self.journal.redactor.learn()
        try:
            stored = self.journal.session(self.run.session, self.run.id, secrets=secrets)
            self._check_task(stored)
            self._check_tools(stored.calls)
            check_secrets(self.journal, self.run, stored, secrets, refuse=not self.placeholders)
            if self.unknown == "raise":
                self._refuse_unknown(stored)
        except BaseException:
            self.journal.release(before)
            raise
        waiting = self.recorder.steps.injections.take_waiting()
        self.recorder.steps.adopt(stored, row)
        steps = self.recorder.agent.memory.steps
        compat.restore_monitor(self.recorder.agent, steps)
        answer = _recorded_answer(steps, stored.calls, stored.turns)
        if answer is not None:
            restored = interpreter.restore_all(self.recorder.agent, stored)  # for later tasks with reset=False
            self.log("had its answer already", restored)
            return Resumed(None, self._finish(row, answer[0]))
        return Resumed(self._prepare(row, stored, waiting))

    # --- check -----------------------------------------------------------------------------------------------------

    def _check_agent(self) -> None:
        agent, run = self.recorder.agent, self.run
        if run.agent_type != type(agent).__name__:
            raise CannotResume(
                f"run {run.id[:8]} is of a {run.agent_type}, and this agent is a {type(agent).__name__}: give an "
                "agent of the same class, or use run.restore(agent)."
            )
        if run.agent != compat.agent_name(agent):
            raise CannotResume(
                f"run {run.id[:8]} is of the agent {run.agent!r}, and this agent is {compat.agent_name(agent)!r}: give "
                "the agent the same name, or use run.restore(agent)."
            )

    def _check_task(self, stored: StoredSession) -> None:
        if not any(isinstance(entry.step, TaskStep) for entry in stored.entries):
            raise CannotResume(f"run {self.run.id[:8]} has no task any more: it was erased, or taken off the list.")

    def _check_tools(self, calls: Sequence[RecordedCall]) -> None:
        agent = self.recorder.agent
        local = compat.interpreter_of(agent)
        known = {*agent.tools, *agent.managed_agents, *(local.functions if local else ())}
        called = {call.name for call in calls if call.kind == "tool"}
        lacking = sorted(name for name in called if name.partition(".")[0] not in known)
        if lacking:
            raise CannotResume(
                f"run {self.run.id[:8]} has called {', '.join(lacking)}, which this agent does not have: give it the "
                "same tools, or restore() the run and continue with a new task."
            )

    def _refuse_unknown(self, stored: StoredSession) -> None:
        """Refuses interrupted calls before anything is done: all of them, because `unknown` decides about all."""
        found = list(self._unknown_calls(self.recorder.agent, self.run, stored))
        if found:
            which = "them" if len(found) > 1 else "it"
            raise UnknownOutcome(
                f"{' '.join(found)} Find out, then resume(agent, unknown='rerun') to call {which} again or "
                "unknown='skip' to continue without; a tool with safe_to_repeat = True is always called again."
            )

    def _unknown_calls(self, agent: Any, run: Run, stored: StoredSession) -> Iterator[str]:
        """A sentence about each interrupted call, also in the runs of managed agents."""
        for child in self.journal.called_by([run.id]):
            if child.agent in agent.managed_agents and child.status != "finished":
                helper = agent.managed_agents[child.agent]
                yield from self._unknown_calls(helper, child, self.journal.session(child.session, child.id))
        for call in stored.calls:
            repeatable = call.kind != "tool" or declared(agent, call.name, "safe_to_repeat")
            why = None if repeatable or call.turn < stored.done else _why_unknown(agent, call)
            if why is not None:
                yield f"run {run.id[:8]} was interrupted {why}"

    # --- continue --------------------------------------------------------------------------------------------------

    def _finish(self, row: RunRow, output: Any) -> Any:
        answer = compat.typed_answer(output)
        active = ActiveRun(self.recorder.runs, None, row["title"], row["max_steps"], row["id"])
        self.recorder.end(active, answer=answer)
        return answer

    def _prepare(self, row: RunRow, stored: StoredSession, waiting: list[Injected]) -> Iterator[Any]:
        agent = self.recorder.agent
        if codec.is_interrupted(agent.memory.steps[-1]):  # a model or tool call failed: the step is repeated
            agent.memory.steps.pop()
        begun = [call._replace(turn=stored.turns) for call in stored.calls if call.turn >= stored.done]
        self._expect_children(begun)
        in_order = isinstance(agent, CodeAgent)
        self.recorder.ledger.expect(begun, in_order=in_order, unknown=self.unknown)
        if not begun:  # otherwise the interrupted step is finished before new injections
            self.recorder.steps.drop_expired_injections()
            agent.memory.steps.extend(waiting)
            waiting = []
        events = _Continuation(self, row, stored, begun, waiting).events()
        next(events)  # started, so that closing it is noticed even if no event was asked for
        return events

    def _expect_children(self, begun: Sequence[RecordedCall]) -> None:
        """Managed agents that were interrupted continue when the step calls them again."""
        agent = self.recorder.agent
        number, ended = _next_number(agent.memory.steps), [call for call in begun if call.ended]
        for child in self.journal.called_by([self.run.id]):
            helper = agent.managed_agents.get(child.agent)
            if helper is None or child.parent_step != number:
                continue
            task = self.journal.redactor.known.text(child.task)
            done = next((call for call in ended if _is_call_of(call, child.agent, task)), None)
            if done is not None:  # the ledger has the result of this one
                ended.remove(done)
                continue
            recorder = self.recorder_of(helper)
            continuations = recorder.continuations.setdefault((self.run.id, task), [])
            continuations.append(partial(self._continue_child, recorder, child))

    def _continue_child(self, recorder: Recorder, child: Run) -> Any:
        if child.status == "finished":
            return child.answer
        return drain(replace(self, recorder=recorder, run=child).start())

    def log(self, what: str, restored: Restored) -> None:
        """Logs how a run is resumed, and which variables it has again."""
        level = logging.WARNING if restored.corrected or not restored.is_complete else logging.INFO
        log.log(level, "run %s %s; %s", self.run.id[:8], what, restored)


class _Continuation:
    """A run that continues at the step in which it was interrupted, or behind its last one."""

    def __init__(
        self,
        resumption: Resumption,
        row: RunRow,
        stored: StoredSession,
        begun: Sequence[RecordedCall],
        waiting: list[Injected],
    ) -> None:
        """Changes nothing yet.

        Args:
            resumption: what the run is resumed with.
            row: the run.
            stored: its session.
            begun: the calls of the step that was interrupted.
            waiting: new injections that follow that step.
        """
        self._resumption = resumption
        self._recorder = resumption.recorder
        self._agent = agent = resumption.recorder.agent
        self._row = row
        self._stored = stored
        self._begun = begun
        self._waiting = waiting
        steps = agent.memory.steps
        self._task = next(step for step in reversed(steps) if isinstance(step, TaskStep))
        self._number, self._most = _next_number(steps), row["max_steps"] or agent.max_steps
        self._active = ActiveRun(self._recorder.runs, None, self._task.task, self._most, row["id"], self._number)

    def events(self) -> Iterator[Any]:
        """The events of the run; the first one is None, and says only that the iterator has started."""
        try:
            yield None
        except GeneratorExit:
            self._recorder.steps.abandon(self._row["id"])
            raise
        if self._number > self._most:
            yield from self._last_words()
            return
        try:
            yield from self._steps()
        except OutsideEffect as why:
            self._agent.memory.steps.pop()
            raise UnknownOutcome(
                f"run {self._row['id'][:8]} was interrupted in step {self._number}, whose code may have had an effect "
                f"outside: {why}. Find out, then resume(agent, unknown='rerun') to run the code again where it is "
                "unknown how far it came, or unknown='skip' to continue with another step; what is known to have "
                "happened is never repeated."
            ) from None
        except Diverged as why:
            self._agent.memory.steps.pop()
            raise CannotResume(
                f"run {self._row['id'][:8]}: step {self._number} was interrupted and does not go the same way again: "
                f"{why}. Its earlier steps are unchanged; restore() them into an agent to continue from there."
            ) from None

    def _steps(self) -> Iterator[Any]:
        agent, active, recorder = self._agent, self._active, self._recorder
        planned = isinstance(_last_recorded(agent.memory.steps), PlanningStep)
        with compat.continued_numbering(agent, self._number, planned=planned, corrected=self._has_begun):
            with recorder.steps.paused(), recorder.working_on(active):
                events = compat.start_without_task(recorder.original_run, agent, self._task, self._most)
            restored = self._restore_variables()
            with before_code(agent, partial(self._rehearse, restored)):
                yield from recorder.follow(active, events)

    def _has_begun(self) -> None:
        """The interrupted step is done again: what waited for that goes on."""
        self._active.step_number = None
        for helper in self._recorder.managed():
            for own in [key for key in helper.continuations if key[0] == self._row["id"]]:
                del helper.continuations[own]
        self._agent.memory.steps.extend(self._waiting)

    def _rehearse(self, restored: Restored, code: str) -> None:
        if self._recorder.ledger.is_replaying:
            Rehearsal(self._agent, self._begun, self._stored, restored, self._resumption.unknown).check(code)

    def _restore_variables(self) -> Restored:
        restored = interpreter.restore(self._agent, self._stored.code, self._stored.variables)
        self._resumption.log(f"is resumed at step {self._number}", restored)
        last, answered = _last_recorded(self._agent.memory.steps), any(call.kind == "model" for call in self._begun)
        if not restored.is_complete and not answered and isinstance(last, ActionStep):  # a recorded answer is final
            gone = f"; these variables are gone: {', '.join(restored.missing)}" if restored.missing else ""
            described = ", ".join(restored.partial)
            note = f"[The process was restarted{gone}"
            note += f"; these hold placeholders instead of some objects: {described}]" if described else "]"
            last.observations = f"{last.observations}\n{note}" if last.observations else note
        return restored

    def _last_words(self) -> Iterator[Any]:
        """All steps are used up, and the process died before the agent's final answer."""
        with self._recorder.working_on(self._active):
            step = compat.last_words(self._agent, self._task.task, self._number, time.time)
            yield step
        answer = compat.typed_answer(step.action_output)
        self._recorder.end(self._active, answer=answer)
        yield FinalAnswerStep(answer)


def restore(recorder: Recorder, journal: Journal, run: Run, step: int | None) -> Restored:
    """Puts a run, up to a step number, into the recorder's agent; names the variables that could not be restored."""
    agent = recorder.agent
    until, secrets = journal.event_after_step(run, step), journal.redactor.learn()
    stored = journal.session(run.session, run.id, until, secrets)
    agent.memory.reset()
    agent.memory.steps = [*(entry.step for entry in stored.entries), *agent.memory.steps]  # injections come last
    restored = interpreter.restore_all(agent, stored)
    left = sorted((stored.variables() or {}).get("variables", {}))
    if left and not hasattr(agent, "python_executor"):
        return Restored(f"{type(agent).__name__} has no interpreter; its state is restored", left)
    return restored


def drain(resumed: Resumed) -> Any:
    """Continues to the end and returns the answer."""
    answer = resumed.answer
    for event in resumed.events or ():
        if isinstance(event, FinalAnswerStep):
            answer = event.output
    return answer


def _why_unknown(agent: Any, call: RecordedCall) -> str | None:
    """Why it is unknown how a call ended; None if that is known."""
    called = f"called {call.name} with {call.arguments()!r}"
    if not call.ended:
        return f"while it {called}: it is unknown whether that happened."
    try:
        call.loaded(classes_of(agent))
    except NotRestored as what:
        return f"after it {called}: that happened, but its result could not be stored ({what})."
    return None


def _is_call_of(call: RecordedCall, agent: str, task: str) -> bool:
    """Whether a call of a managed agent is the one that made a run: its task is part of the run's task."""
    given = call.arguments()
    if isinstance(given, list) and len(given) == 2 and isinstance(given[1], dict):  # positional and named, from code
        positional, given = given
        given = given if "task" in given or not positional else {"task": positional[0]}
    asked = given.get("task") if isinstance(given, dict) else given
    return call.name == agent and (not isinstance(asked, str) or asked in task)


def _recorded_answer(steps: Sequence[Any], calls: Sequence[RecordedCall], turns: int) -> tuple[Any] | None:
    """The answer of a run that was killed after its last step."""
    last = steps[-1] if steps else None
    if not isinstance(last, ActionStep) or not (last.is_final_answer or isinstance(last.error, AgentMaxStepsError)):
        return None
    if last.action_output is not None:
        return (last.action_output,)
    said = [call for call in calls if call.turn == turns - 1 and call.name == "final_answer" and call.ended]
    return (said[-1].result if said else None,)


def _next_number(steps: Sequence[Any]) -> int:
    """The number of the next action of this run: steps count from 1 after each task."""
    number = 1
    for step in steps:
        if isinstance(step, TaskStep):
            number = 1
        elif isinstance(step, ActionStep) and not isinstance(step, Injected):
            number = step.step_number + 1
    return number


def _last_recorded(steps: Sequence[Any]) -> Any:
    return next(step for step in reversed(steps) if not isinstance(step, Injected))
