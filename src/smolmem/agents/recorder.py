"""Records a live agent in the store: its runs, and what belongs to them.

    agent.run()                  is wrapped: an active run begins, and ends with a status           (this file)
    memory.steps.append(step)    each step is saved before the next one begins                      (`step_recorder`)
    model and tools              each call is recorded before and after it happens                  (`ledger`)
    the prompt                   is made of the saved steps, seen through views, with reminders     (`prompting`)

`compat` lists everything that smolmem patches on an agent. Recording never changes what the agent does.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any

from smolagents import MultiStepAgent
from smolagents.memory import FinalAnswerStep

from smolmem.agents import compat, ledger
from smolmem.agents.active_runs import ActiveRun, ActiveRuns
from smolmem.agents.failures import Failures, described
from smolmem.agents.ledger import Fenced, Ledger
from smolmem.agents.observing import observed_models
from smolmem.agents.prompting.prompt_renderer import PromptRenderer
from smolmem.agents.step_recorder import StepRecorder, tell
from smolmem.core.rows import Status
from smolmem.store.journal import Journal


class Recorder:
    """Records one agent."""

    def __init__(
        self,
        agent: MultiStepAgent,
        journal: Journal,
        scope: str,
        *,
        strict: bool,
        failures: Failures,
    ) -> None:
        compat.check()
        self.agent = agent
        self.patches = compat.Patches()
        """All patches of the agent; other parts of smolmem add theirs."""
        self.runs = ActiveRuns(agent, scope, journal)
        self.steps = StepRecorder(agent, journal, self.runs, failures, strict=strict)
        self.prompts = PromptRenderer(agent, journal, self.steps, self.follow_agent)
        asking, outgoing = self.prompts.asking, self.prompts.chain.outgoing
        self.ledger = Ledger(agent, journal, self.runs, asking, outgoing, failures, strict=strict)
        self.attachments: Any = None
        """Set by `Memory`: the agent's access to recall, its rules and its traces."""
        self.continuations: dict[tuple[str | None, str], list[Callable[[], Any]]] = {}
        """Interrupted runs of this managed agent by parent and task: they continue when the parent calls it again."""
        self.on_run_end: list[Callable[[], None]] = []
        """Called when a run has ended."""
        self._journal = journal
        self._one_call = threading.RLock()
        self._model: Any = None
        self._attach()
        _recorders.add(self)

    def _attach(self) -> None:
        agent = self.agent
        self.steps.observe_memory(self.patches)
        self.original_run = self.patches.run(agent, self._wrapped_run)
        self.patches.rendering(agent, self.prompts.wrap)
        self.patches.tool_calls(agent, self.runs.calling(self.steps.touched.calling(self.ledger.tool)))
        self.follow_agent()
        if not compat.holds("memory"):
            self.steps.changed()

    def follow_agent(self) -> None:
        """Records the model and the memory that the agent has now: both can be replaced at any time."""
        model = self.agent.model
        if model is not self._model:
            self._model = model
            self.patches.model(model, observed_models.observe, observed_models.unobserve)
        else:  # a method may have been set on the model itself
            observed_models.observe(model)
        self.steps.follow_memory()

    def release(self) -> None:
        """Saves unsaved steps, interrupts active runs and undoes all patches of the agent."""
        self.steps.leave()
        self.patches.close()

    @property
    def scope(self) -> str:
        """The scope of its runs."""
        return self.runs.scope

    def managed(self) -> list[Recorder]:
        """The recorders of the agents that this one manages."""
        return [found for helper in self.agent.managed_agents.values() if (found := recorder_of(helper)) is not None]

    # --- a run -----------------------------------------------------------------------------------------------------

    def _wrapped_run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        named = compat.run_arguments(original)

        @wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            given, caller = named(*args, **kwargs), self.runs.caller()
            task, most = str(given.get("task", "")), given.get("max_steps") or self.agent.max_steps
            if given.get("reset") is False:
                self.steps.leave_erased_session()
            alone = caller is not None and not given.get("stream") and not caller.is_called_by(self.runs)
            with self._one_call if alone else nullcontext():
                active = ActiveRun(self.runs, caller, task, most)
                return self._run(active, lambda: original(*args, **kwargs), stream=bool(given.get("stream")))

        vars(run)["recorder"] = self
        return run

    def _run(self, active: ActiveRun, run: Callable[[], Any], *, stream: bool) -> Any:
        """One run. Calls of one managed agent come one after the other: they share its memory (smolagents #1781)."""
        with self.steps.guard():
            self.follow_agent()
            self.steps.save_edits()  # before this run begins: steps of other agents on the list are not of this run
        if waiting := self.continuations.get((active.parent.run if active.parent else None, active.task)):
            return waiting.pop(0)()
        self.steps.drop_expired_injections()
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
                self.steps.may_be_edited()
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
            self.steps.lose(active)
            raise fenced.error from None
        finally:
            ledger.current.reset(token)

    def end(self, active: ActiveRun, *, answer: Any = None, error: BaseException | None = None) -> None:
        """Ends a run with its answer or its error."""
        with self.steps.guard(quiet=error is not None):
            result = None
            if error is None:
                result = "answer", self._journal.encode(answer)
            elif not isinstance(error, GeneratorExit):
                result = "failure", self._journal.encode(described(error))
            self.steps.end_run(active, self._status(error), result)
        tell(self.on_run_end)

    def _status(self, error: BaseException | None) -> Status:
        if error is None:
            return "max_steps" if compat.reached_max_steps(self.agent) else "finished"
        stopped = isinstance(error, (KeyboardInterrupt, GeneratorExit)) or compat.was_interrupted(self.agent)
        return "interrupted" if stopped else "failed"

    def after_fork(self) -> None:
        """A forked child gets new locks and a session of its own."""
        self._one_call = threading.RLock()
        self.steps.after_fork()


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for recorder in list(_recorders):
        recorder.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork_in_child)


def recorder_of(agent: Any) -> Recorder | None:
    """The recorder of an agent, if it is attached."""
    recorder = getattr(vars(agent).get("run"), "recorder", None)
    return recorder if isinstance(recorder, Recorder) else None
