"""Records a live agent in the store.

The sections follow a step to disk, top to bottom:

    agent.run()              `run` is wrapped: an active run begins, and ends with a status      (runs)
    memory.steps.append(x)   the observed list reports the change                                 (list changes)
    Session.compare          finds the difference to the saved list
    Journal.save             writes the difference in one transaction                             (saving)
    Session.accept           remembers it as saved

The list of steps is the only place that sees every step: no callback fires for a task, and callbacks fire before the
append. `compat` lists everything that smolmem patches on an agent.

What must stay true: recording never changes what the agent does. Every entry point uses `guard`. Failed writes are
counted, logged once and retried with the next change; while they keep failing, with a later one (`failures`).
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, NamedTuple

from smolagents import MultiStepAgent
from smolagents.memory import ActionStep, FinalAnswerStep, TaskStep

from smolmem.agents import compat, ledger
from smolmem.agents.active_runs import ActiveRun, ActiveRuns
from smolmem.agents.failures import Failures, described
from smolmem.agents.ledger import Fenced, Ledger, declared
from smolmem.agents.observing import observed_list, observed_models
from smolmem.agents.prompting.prompt_renderer import PromptRenderer, RecorderState
from smolmem.agents.restoring.known_classes import classes_of
from smolmem.agents.session import Care, Session, Surroundings
from smolmem.agents.variables import Variables
from smolmem.core.encoding import codec
from smolmem.core.errors import TakenOver
from smolmem.core.injected import Injected, Injections
from smolmem.core.rows import RunRow, SessionRow, Status, StoredSession
from smolmem.core.text import storable
from smolmem.store.journal import Journal

log = logging.getLogger("smolmem")


class _UnsavedList(NamedTuple):
    """A list that was reset before all of it could be saved."""

    session: Session
    steps: Sequence[Any]
    system: Any


class Recorder:
    """Records one agent."""

    def __init__(
        self, agent: MultiStepAgent, journal: Journal, scope: str, *, strict: bool, failures: Failures
    ) -> None:
        compat.check()
        self.agent = agent
        self.scope = scope
        self.strict = strict
        self.runs = ActiveRuns(agent, scope, lambda: journal.writer, journal.redactor.text, journal.encode)
        self.injections = Injections()
        self.patches = compat.Patches()
        """All patches of the agent; other parts of smolmem add theirs."""
        self.attachments: Any = None
        """Set by `Memory`: the agent's access to recall, its rules and its traces."""
        self.on_run_end: Callable[[], None] = lambda: None
        self.continuations: dict[tuple[str | None, str], list[Callable[[], Any]]] = {}
        """Interrupted runs of this managed agent by parent and task: they continue when the parent calls it again."""
        self._journal = journal
        self._failures = failures
        self._lock = threading.RLock()
        self._one_call = threading.RLock()
        self._paused = False
        self._list_is_lost = False  # whether another process records the run of the steps on the list
        self._edits_saved = False  # whether only the agent can have touched a step since the last comparison
        self._model: Any = None
        self._memory = agent.memory
        self._unsaved_lists: list[_UnsavedList] = []
        self._session = self._new_session()
        self._variables = Variables(journal.encode)
        self.ledger = Ledger(journal, self.runs.turn, failures.count, strict=strict)
        state = RecorderState(
            lambda: self._session,
            self.save_edits,
            lambda: self.changed(appended=True),
            self._fresh_run,
            lambda: self.runs.is_working,
            self.guard,
        )
        self.prompts = PromptRenderer(agent, journal, state)
        self.ledger.outgoing = self.prompts.chain.outgoing
        self.ledger.declared = lambda name, attribute: declared(agent, name, attribute)
        self.ledger.classes = lambda: classes_of(agent)
        self._attach()
        _recorders.add(self)

    def _attach(self) -> None:
        agent = self.agent
        self._observe_memory()
        self.original_run = self.patches.run(agent, self._wrapped_run)
        self.patches.rendering(agent, self.prompts.wrap)
        self.patches.tool_calls(agent, self.runs.calling(self.ledger.tool))
        self.follow_agent()
        if not compat.holds("memory"):
            self.changed()

    def follow_agent(self) -> None:
        """Records the model and the memory that the agent has now: both can be replaced at any time."""
        agent = self.agent
        if agent.model is not self._model:
            self._model = agent.model
            self.patches.model(agent.model, observed_models.observe, observed_models.unobserve)
        else:  # a method may have been set on the model itself
            observed_models.observe(agent.model)
        if compat.holds("memory") and not observed_list.reports_to(agent.memory, self):
            self.resetting()
            self._observe_memory()

    def _observe_memory(self) -> None:
        self._memory = self.agent.memory
        self.patches.memory(
            self.agent,
            lambda memory: observed_list.observe(memory, self),
            lambda memory: observed_list.unobserve(memory, self),
        )

    def release(self) -> None:
        """Saves unsaved steps, interrupts active runs and undoes all patches of the agent."""
        self.runs.leave()
        self.flush()
        self._session.close()
        self.patches.close()

    @property
    def session(self) -> Session:
        """The list that is being recorded."""
        return self._session

    # --- runs ------------------------------------------------------------------------------------------------------

    def _wrapped_run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        named = compat.run_arguments(original)

        @wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            given, caller = named(*args, **kwargs), self.runs.caller()
            active = ActiveRun(
                self.runs, caller, str(given.get("task", "")), given.get("max_steps") or self.agent.max_steps
            )
            self._leave_erased_session(keeps_list=given.get("reset") is False)
            alone = caller is not None and not given.get("stream") and not caller.is_called_by(self.runs)
            with self._one_call if alone else nullcontext():
                return self._run(active, lambda: original(*args, **kwargs), stream=bool(given.get("stream")))

        vars(run)["recorder"] = self
        return run

    def _run(self, active: ActiveRun, run: Callable[[], Any], *, stream: bool) -> Any:
        """One run. Calls of one managed agent come one after the other: they share its memory (smolagents #1781)."""
        with self.guard():
            self.follow_agent()
        if waiting := self.continuations.get((active.parent.run if active.parent else None, active.task)):
            return waiting.pop(0)()
        self.drop_expired_injections()
        self._journal.redactor.refresh()
        try:
            with self.working_on(active):
                result = run()
        except BaseException as error:
            self.end(active, error=error)
            raise
        if stream:
            return self.follow(active, result)
        self.end(active, answer=compat.answer_of(result))
        return result

    def follow(self, active: ActiveRun, events: Generator[Any, None, None]) -> Generator[Any, None, None]:
        """The events of a streamed run; it ends as the original ends, also when its consumer stops early."""
        following = self._follow(active, events)
        next(following)  # started, so that closing it is noticed even if no event was asked for
        return following

    def _follow(self, active: ActiveRun, events: Generator[Any, None, None]) -> Generator[Any, None, None]:
        answer = None
        try:
            yield None
            while True:
                with self.working_on(active):
                    try:
                        event = next(events)
                    except StopIteration:
                        break
                if isinstance(event, FinalAnswerStep):
                    answer = event.output
                self._edits_saved = False
                yield event
        except GeneratorExit as left:
            try:
                with self.working_on(active):
                    events.close()
            finally:
                self.end(active, error=left)
            raise
        except BaseException as error:
            self.end(active, error=error)
            raise
        self.end(active, answer=answer)

    @contextmanager
    def working_on(self, active: ActiveRun) -> Iterator[None]:
        """Marks this thread as working on a run: its steps and calls belong to that run.

        Raises:
            TakenOver: if another process has taken the run over.
        """
        token = ledger.current.set(self.ledger)
        try:
            with self.runs.working_on(active):
                yield
        except Fenced as fenced:
            self._lose(active)
            raise fenced.error from None
        finally:
            ledger.current.reset(token)

    def _lose(self, active: ActiveRun | None = None) -> None:
        """Another process has taken the session over: the next task, or the next list, begins another session."""
        with self._lock:
            if active is not None:
                active.run = None
            self._journal.leave(self.runs.forget_all())
            self._session.close()
            self._session = self._new_session()
            self._list_is_lost = True
            self.prompts.forget_last()

    def _leave_erased_session(self, *, keeps_list: bool) -> None:
        """Empties the list if another process has erased steps of it: a run that keeps it would store them again."""
        with self.guard(), self._lock:
            if keeps_list and not self.is_active and not self._session.is_stored_in(self._journal):
                self._lose()
                self.agent.memory.reset()
                log.warning("smolmem: another process erased or continued steps of this agent: its memory is emptied.")

    def end(self, active: ActiveRun, *, answer: Any = None, error: BaseException | None = None) -> None:
        """Ends a run with its answer or its error."""
        with self.guard(quiet=error is not None), self._lock:
            result: tuple[str, codec.Encoded] | None = None
            if error is None:
                result = "answer", self._journal.encode(answer)
            elif not isinstance(error, GeneratorExit):
                result = "failure", self._journal.encode(described(error))
            if self.runs.end(active, self._status(error), result):
                self._save("fields")
        try:
            self.on_run_end()
        except Exception as failure:  # steps can be indexed later
            log.info("smolmem could not index recorded steps: %s", failure)

    def _status(self, error: BaseException | None) -> Status:
        if error is None:
            return "max_steps" if compat.reached_max_steps(self.agent) else "finished"
        stopped = isinstance(error, (KeyboardInterrupt, GeneratorExit)) or compat.was_interrupted(self.agent)
        return "interrupted" if stopped else "failed"

    def _fresh_run(self) -> str | None:
        """The run that is being worked on, if it has not acted yet."""
        turn = self.runs.turn()
        if turn is None:
            return None
        acted = any(entry.run == turn.run and codec.kind_of(entry.step) == "action" for entry in self._session.entries)
        return None if acted else turn.run

    def managed(self) -> list[Recorder]:
        """The recorders of the agents that this one manages."""
        return [found for helper in self.agent.managed_agents.values() if (found := recorder_of(helper)) is not None]

    # --- list changes ----------------------------------------------------------------------------------------------

    def adding(self, step: Any) -> None:
        """A step is about to be appended: notes its run before any other thread can see the step on the list."""
        if self._paused:
            return
        with self.guard(), self._lock:
            self._list_is_lost &= not isinstance(step, TaskStep)
            if self.runs.of_this_thread() is not None:
                self.injections.take_waiting()
            if not self._list_is_lost and not self.injections.is_waiting(step):
                self._session.runs[id(step)] = self._run_of(step)

    def changed(self, *, appended: bool = False) -> None:
        """The list may have changed: saves the difference to the saved list."""
        if self._paused:
            return
        with self.guard(), self._lock:
            self._session.in_order &= appended
            self._save("glance")
            self._edits_saved = True

    def changed_by_others(self) -> None:
        """Another agent that shares this list changed it: it is compared as a whole next time."""
        self._session.in_order = self._edits_saved = False

    def save_edits(self) -> None:
        """Saves changes since the last comparison that were not made by the agent."""
        with self.guard():
            self.follow_agent()
        if not self._edits_saved:
            self.changed()

    @property
    def is_working_here(self) -> bool:
        """Whether this thread works on a run of the agent."""
        return self.runs.of_this_thread() is not None

    @property
    def is_active(self) -> bool:
        """Whether a run of the agent is in progress."""
        return self.runs.is_active

    def resetting(self) -> None:
        """The list is about to be emptied: the steps that follow belong to a new session."""
        with self.guard(), self._lock:
            self.runs.end_manual()
            memory, steps = self._memory, list(self.injections.without_waiting(self._memory.steps))
            if steps or len(self._session):
                if memory is self.agent.memory:
                    self.changed()
                is_saved = [entry.step for entry in self._session.entries] == steps and self.runs.are_saved
                if not self._list_is_lost and not is_saved:
                    self._unsaved_lists.append(_UnsavedList(self._session, steps, memory.system_prompt))
                self._session.close()
                self._session = self._new_session()
            self._list_is_lost = False
            self.injections.take_waiting()

    def reset_done(self) -> None:
        """A new list begins, with the standing injections."""
        for step in self.injections.for_new_list():
            self.put(step)

    def put(self, step: Injected) -> None:
        """Appends an injected step; while no run is active, it belongs to the next run."""
        if self.runs.of_this_thread() is None and not self.runs.is_working:
            self.injections.wait(step)
        self.agent.memory.steps.append(step)

    def drop_expired_injections(self) -> None:
        """Takes expired injections off the list, and withdraws injections of erased text."""
        with self.guard():
            self.injections.drop_erased(self._journal.has_all)
        for position in self.injections.expired_positions(self.agent.memory.steps):
            del self.agent.memory.steps[position]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Changes to the list in this context are not recorded: the steps are stored already."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def adopt(self, stored: StoredSession, run: RunRow) -> None:
        """Continues a stored session and one of its runs: puts the steps onto the agent's list."""
        self._session.close()
        self._session, self._list_is_lost = Session.load(stored, self._journal.prompt), False
        self.runs.adopt(run, stored.turns)
        self.prompts.forget_last()
        with self.paused():
            self.agent.memory.steps = [entry.step for entry in stored.entries]

    def abandon(self, run: str) -> None:
        """Leaves a run that was to be resumed interrupted."""
        self.runs.set_status(run, "interrupted")
        self.changed()

    def _run_of(self, step: Any) -> str:
        return self.runs.run_of(step, self._session.row["id"])

    def _new_session(self) -> Session:
        self.runs.new_session()
        row: SessionRow = {
            "id": secrets.token_hex(8),
            "scope": self.scope,
            "agent": storable(compat.agent_name(self.agent)),
            "began": time.time(),
            "fork_of": None,
            "fork_at": None,
        }
        return Session(row)

    # --- saving ----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Saves everything, including edits deep inside a step.

        Raises:
            StoreError: if it cannot be saved.
        """
        with self._lock:
            self._save("inside")

    def _save(self, care: Care) -> None:
        memory = self.agent.memory
        recorded = not self._list_is_lost and (not compat.holds("memory") or observed_list.reports_to(memory, self))
        steps = self.injections.without_waiting(memory.steps)
        if recorded:
            self._session.assign_runs(steps, self._run_of)
        if care == "glance" and self._failures.is_waiting and not self.strict:
            return
        while self._unsaved_lists:
            self._save_list(self._unsaved_lists[0], care)
            del self._unsaved_lists[0]
        if recorded:
            self._save_list(_UnsavedList(self._session, steps, memory.system_prompt), care)
        self._failures.recovered()

    def _save_list(self, unsaved: _UnsavedList, care: Care) -> None:
        session = unsaved.session
        self._resolve_doubt(session)
        surroundings = Surroundings(self._journal.number, self.prompts.recognised, self._snapshot, self._journal.encode)
        drafts = session.compare(unsaved.steps, unsaved.system, surroundings, time.time(), care)
        if not drafts and self.runs.are_saved:
            return
        rows, results = self.runs.unsaved()
        session.find_fork(self._journal)
        session.in_doubt = drafts
        changes = [draft.change for draft in drafts]
        saved = self._journal.save(session.batch(rows, results, changes))
        session.accept(drafts, saved, self._journal.stored)
        session.in_doubt = None
        for change in changes:
            self._variables.saved(() if change.variables is None else change.variables.blobs)
        self.runs.saved()

    def _resolve_doubt(self, session: Session) -> None:
        """Asks the store whether the last batch was saved: an error or Ctrl-C may come just after the commit."""
        if session.in_doubt is not None:
            if found := self._journal.saved(session.row["id"], session.saved_events):
                session.accept(session.in_doubt, found, self._journal.stored)
            session.in_doubt = None

    def _snapshot(self, step: Any) -> codec.Encoded | None:
        acts = isinstance(step, (TaskStep, ActionStep))
        return self._variables.snapshot(self.agent, getattr(step, "code_action", None)) if acts else None

    @contextmanager
    def guard(self, *, quiet: bool = False) -> Iterator[None]:
        """Counts an error and continues; raises it when strict, unless `quiet`: another error is being raised.

        Raises:
            TakenOver: if another process has taken the run over; inside `agent.run()`, as `Fenced`.
        """
        try:
            yield
        except TakenOver as error:
            if self.runs.of_this_thread() is not None:
                raise Fenced(error) from error
            if not self.is_active:  # the thread that works on the run must be refused, too
                self._lose()
            if not quiet:
                raise
        except Exception as error:
            self._failures.count(error)
            if self.strict and not quiet:
                raise


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _after_fork() -> None:
    """A forked child gets new locks and a session of its own, which begins with what was saved of the parent's."""
    for recorder in list(_recorders):
        recorder._lock, recorder._one_call = threading.RLock(), threading.RLock()
        recorder._session = recorder._session.forked(recorder._new_session().row)
        recorder._unsaved_lists, recorder._list_is_lost = [], True
        recorder.runs.forget_all()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


def recorder_of(agent: Any) -> Recorder | None:
    """The recorder of an agent, if it is attached."""
    recorder = getattr(vars(agent).get("run"), "recorder", None)
    return recorder if isinstance(recorder, Recorder) else None
