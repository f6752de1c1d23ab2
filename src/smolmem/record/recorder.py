"""From a living agent to batches of changes: nothing in smolagents is patched, and nothing is missed.

The list of steps is the only place that sees every step: no callback fires for a task, and callbacks fire before the
append. So the list reports each change, the recorder compares it with what it saved last, and saves the difference.

Two methods are wrapped on the agent itself: `run`, to know where a run begins and how it ends, and
`write_memory_to_messages`, to know which saved messages a prompt consists of without reading it all again.

What must stay true: recording never changes what the agent does. Every way in goes through `guard`.
"""

from __future__ import annotations

import inspect
import logging
import secrets
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import version
from typing import Any

from smolagents import MultiStepAgent
from smolagents.agents import RunResult
from smolagents.memory import ActionStep, FinalAnswerStep, TaskStep
from smolagents.utils import AgentMaxStepsError

from smolmem.record import codec, ledger, steplist, variables, writer
from smolmem.record.codec import Encoded
from smolmem.record.failures import Failures
from smolmem.record.injected import Injected
from smolmem.record.mind import Mind
from smolmem.record.session import Care, Session
from smolmem.record.sink import Held, Sink
from smolmem.record.standing import Standing
from smolmem.record.values import Batch, RunRow, SessionRow, Status

log = logging.getLogger("smolmem")

_SMOLAGENTS = version("smolagents")
_current: ContextVar[Call | None] = ContextVar("smolmem_call", default=None)


@dataclass(eq=False)
class Call:
    """One `agent.run()` while it goes on; `run` is known once its task is on the list."""

    recorder: Recorder
    parent: Call | None
    task: str
    max_steps: int | None
    run: str | None = None
    number: int | None = None
    """The number of the step it is in, where the agent itself does not know it yet."""


class Recorder:
    """Records one agent."""

    def __init__(self, agent: MultiStepAgent, sink: Sink, scope: str, *, strict: bool, failures: Failures) -> None:
        self.agent = agent
        self.scope = scope
        self.strict = strict
        self.parents: weakref.WeakSet[Recorder] = weakref.WeakSet()
        self._sink = sink
        self._failures = failures
        self._lock = threading.RLock()
        self._calls: list[Call] = []
        self._working = threading.local()
        self._runs: dict[str, RunRow] = {}
        self._unsaved_runs: set[str] = set()
        self._results: dict[tuple[str, str], Encoded] = {}
        self._by_hand: str | None = None
        self._last_run: str | None = None
        self._settled = False  # whether nobody but the agent can have touched a step since the last comparison
        self._behind: list[tuple[Session, list[Any], Any]] = []
        self._session = self._new_session()
        self._turns: dict[str, int] = {}
        self.ledger = ledger.Ledger(sink, self.here, self._failures.count)
        self.mind = Mind(self, sink.reminders, sink.traces)
        self.ledger.outgoing = self.mind.lens.outgoing
        self.after_run: Callable[[], None] = lambda: None
        self.standing = Standing()
        self.held: list[Held] = []
        """What else was given to the agent, and is taken back when it is let go."""
        self.quiet = False
        self.next_call: Call | None = None
        self.going_on: dict[str, list[Callable[[], Any]]] = {}
        self._own = {name: vars(agent).get(name) for name in ("run", "write_memory_to_messages")}
        steplist.listen(agent.memory, self)
        agent.run = self._wrap_run(agent.run)
        agent.write_memory_to_messages = self.mind.wrap(agent.write_memory_to_messages)
        self._unwatch = [ledger.watch_model(agent.model), ledger.watch_calls(agent, self.ledger)]

    def release(self) -> None:
        """Gives the agent back as it was."""
        while self.held:
            self.held.pop().release()
        self._end_by_hand()
        self.flush()
        self._session.close(fill=True)
        steplist.unlisten(self.agent.memory)
        for undo in self._unwatch:
            undo()
        for name, own in self._own.items():
            if own is None:
                delattr(self.agent, name)
            else:
                setattr(self.agent, name, own)

    # --- run boundaries --------------------------------------------------------------------------------------------

    def _wrap_run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        takes = inspect.signature(original)

        @wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            given = takes.bind_partial(*args, **kwargs).arguments
            task = str(given.get("task", ""))
            if self.going_on.get(task):
                return self.going_on[task].pop(0)()
            for place in self.standing.over(self.agent.memory.steps):
                del self.agent.memory.steps[place]
            call, self.next_call = self.next_call, None
            call = call or Call(self, self._caller(), task, given.get("max_steps") or self.agent.max_steps)
            try:
                with self.during(call):
                    result = original(*args, **kwargs)
            except BaseException as error:
                self._ended(call, error=error)
                raise
            if isinstance(result, Generator):
                following = self._follow(call, result)
                next(following)  # begun, so that closing it is noticed even if nobody asks for an event
                return following
            self._ended(call, answer=result.output if isinstance(result, RunResult) else result)
            return result

        return run

    def _follow(self, call: Call, events: Generator[Any, None, None]) -> Generator[Any, None, None]:
        """A streamed run, event by event; ends as the original ends, also when its consumer walks away."""
        answer = None
        try:
            yield None
            while True:
                with self.during(call):
                    try:
                        event = next(events)
                    except StopIteration:
                        break
                if isinstance(event, FinalAnswerStep):
                    answer = event.output
                self._settled = False
                yield event
        except GeneratorExit as walked_away:
            try:
                with self.during(call):
                    events.close()
            finally:
                self._ended(call, error=walked_away)
            raise
        except BaseException as error:
            self._ended(call, error=error)
            raise
        self._ended(call, answer=answer)

    @contextmanager
    def during(self, call: Call) -> Iterator[None]:
        """Marks this thread as working for a call, and the call as going on."""
        before, self._working.call = self._call(), call
        token, asking = _current.set(call), ledger.current.set(self.ledger)
        if call not in self._calls:
            self._calls.append(call)
        try:
            yield
        finally:
            ledger.current.reset(asking)
            _current.reset(token)
            self._working.call = before

    def _call(self) -> Call | None:
        return getattr(self._working, "call", None)

    def run_at_work(self) -> str | None:
        """The run that is being worked on, by the agent or by hand."""
        here = self.here()
        return self._by_hand if here is None else here[0]

    def here(self) -> tuple[str, int] | None:
        """The run that is being worked on, and how many steps it has; a code agent's tools ask from another thread."""
        call = self._call() or (self._calls[-1] if self._calls else None)
        return None if call is None or call.run is None else (call.run, self._turns.get(call.run, 0))

    @property
    def session(self) -> Session:
        """The list that is being recorded."""
        return self._session

    @property
    def working(self) -> bool:
        """Whether a run goes on, or a person drives one step by step."""
        return bool(self._calls) or self._by_hand is not None

    def fresh(self) -> str | None:
        """The run that is being worked on, if it has not acted yet."""
        run, _ = self.here() or (None, 0)
        acted = any(entry.run == run and codec.kind_of(entry.step) == "action" for entry in self._session.entries)
        return None if acted else run

    def _state(self, step: Any) -> Encoded | None:
        return variables.snapshot(self.agent) if isinstance(step, (TaskStep, ActionStep)) else None

    def _caller(self) -> Call | None:
        """The call this one is made from. A code agent runs its tools in a thread that knows nothing of its caller."""
        around = _current.get()
        if around is not None and around.recorder is not self:
            return around
        going_on = [call for parent in self.parents for call in parent._calls]
        return going_on[-1] if going_on else None

    def _ended(self, call: Call, *, answer: Any = None, error: BaseException | None = None) -> None:
        self._end(call, answer, error)
        try:
            self.after_run()
        except Exception as failure:  # what is recorded can be read another time
            log.info("smolmem could not read what was recorded: %s", failure)

    def _end(self, call: Call, answer: Any, error: BaseException | None) -> None:
        with self.guard(quiet=error is not None), self._lock:
            if call in self._calls:
                self._calls.remove(call)
            if call.run is None:
                return
            if error is None:
                self._results[call.run, "answer"] = codec.encode(answer)
            elif not isinstance(error, GeneratorExit):
                self._results[call.run, "failure"] = _failure(error)
            self._settle(call.run, self._status(error))
            self._save_all("fields")

    def pause(self) -> None:
        """Interrupts the run that goes on, and those it was called by."""
        self.agent.interrupt()
        for parent in self.parents:
            if parent._calls:
                parent.pause()

    def helpers(self) -> list[Recorder]:
        """The recorders of the agents that this one manages."""
        found = (steplist.listener_of(helper.memory) for helper in self.agent.managed_agents.values())
        return [listener for listener in found if isinstance(listener, Recorder)]

    def abandon(self, run: str) -> None:
        """A run that was to go on is left as it was."""
        self._settle(run, "interrupted")
        self.sync()

    def finish(self, call: Call, answer: Any) -> None:
        """A run that was cut after its last step has its answer."""
        self._ended(call, answer=answer)

    def _settle(self, run: str, status: Status) -> None:
        self._runs[run] = {**self._runs[run], "status": status, "ended": time.time()}
        self._unsaved_runs.add(run)

    def _status(self, error: BaseException | None) -> Status:
        if error is None:
            steps = self.agent.memory.steps
            reached = isinstance(getattr(steps[-1], "error", None), AgentMaxStepsError) if steps else False
            return "max_steps" if reached else "finished"
        stopped = isinstance(error, (KeyboardInterrupt, GeneratorExit)) or getattr(
            self.agent, "interrupt_switch", False
        )
        return "interrupted" if stopped else "failed"

    def _end_by_hand(self) -> None:
        """A run that a person drove step by step is over when the next one begins."""
        if self._by_hand is not None:
            self._settle(self._by_hand, "finished")
            self._by_hand = None

    # --- which run, which session ----------------------------------------------------------------------------------

    def _run_of(self, step: Any) -> str:
        """The run a new step belongs to; a task opens one, whether `agent.run()` or a person put it on the list."""
        run = self._run_for(step)
        self._turns[run] = self._turns.get(run, 0) + 1
        return run

    def _run_for(self, step: Any) -> str:
        call = self._call()
        if call is not None and call.run is None and isinstance(step, (TaskStep, Injected)):
            self._end_by_hand()
            call.run = self._last_run = self._open(step, call)
        if call is not None and call.run is not None:
            return call.run
        if self._last_run is None or isinstance(step, TaskStep):
            self._end_by_hand()
            self._by_hand = self._last_run = self._open(step, None)
        return self._last_run

    def _open(self, step: Any, call: Call | None) -> str:
        parent = None if call is None else call.parent
        model = getattr(self.agent, "model", None)
        given = str(getattr(step, "task", "(steps put on the list by hand)")) if call is None else call.task
        run: RunRow = {
            "id": secrets.token_hex(8),
            "session": self._session.row["id"],
            "scope": self.scope,
            "agent": self._name(),
            "agent_type": type(self.agent).__name__,
            "title": codec.plain(given)[:200],
            "status": "running",
            "began": time.time(),
            "ended": None,
            "parent": None if parent is None else parent.run,
            "parent_step": None if parent is None else parent.number or parent.recorder.agent.step_number,
            "fork_of": None,
            "model": codec.plain(str(getattr(model, "model_id", None) or type(model).__name__)),
            "smolagents": _SMOLAGENTS,
            "max_steps": None if call is None else call.max_steps,
            "steps": 0,
            "errors": 0,
            "input_tokens": 0,
            "output_tokens": 0,
            "answer": None,
            "failure": None,
            "writer": writer.me(),
        }
        self._runs[run["id"]] = run
        self._unsaved_runs.add(run["id"])
        return run["id"]

    def _name(self) -> str:
        return codec.plain(str(self.agent.name or type(self.agent).__name__))

    def _new_session(self) -> Session:
        self._last_run = None
        began: SessionRow = {
            "id": secrets.token_hex(8),
            "scope": self.scope,
            "agent": self._name(),
            "began": time.time(),
            "fork_of": None,
            "fork_at": None,
        }
        return Session(began)

    def new_session(self) -> None:
        """The list is about to be emptied: what follows belongs to a new one."""
        with self.guard(), self._lock:
            self._end_by_hand()
            steps = list(self.standing.without(self.agent.memory.steps))
            if steps or self._session.entries:
                self.sync()
                if [entry.step for entry in self._session.entries] != steps or self._unsaved_runs:
                    self._behind.append((self._session, steps, self.agent.memory.system_prompt))
                self._session.close()
                self._session = self._new_session()
            self.standing.take()

    def begun(self) -> None:
        """A new list begins, with what stands on every one."""
        for step in self.standing.anew():
            self.put(step)

    def put(self, step: Injected) -> None:
        """Puts a step on the list; while nobody works, it belongs to the run that comes next."""
        if self._call() is None and not self.working:
            self.standing.waiting.append(step)
        self.agent.memory.steps.append(step)

    def adopt(self, session: Session, run: RunRow, turns: int) -> None:
        """Takes over a stored session, whose steps are about to be put on the list, and a run of it."""
        self._session.close()
        self._session, self._last_run = session, run["id"]
        self.mind.forget()
        self._runs[run["id"]], self._turns[run["id"]] = run, turns

    # --- comparing and saving --------------------------------------------------------------------------------------

    def adding(self, step: Any) -> None:
        """Notes the run that a step belongs to before any other thread can see it on the list."""
        if self.quiet:
            return
        with self.guard(), self._lock:
            if self._call() is not None:
                self.standing.take()
            if not self.standing.waits(step):
                self._session.runs[id(step)] = self._run_of(step)

    def settle(self) -> None:
        """Saves what may have been changed since the last comparison by others than the agent."""
        if not self._settled:
            self.sync()

    def sync(self, *, appended: bool = False) -> None:
        """Saves whatever differs from what was saved last; on failure, counts it and leaves it for the next time."""
        if self.quiet:
            return
        with self.guard(), self._lock:
            self._session.in_order &= appended
            self._save_all("glance")
            self._settled = True

    def flush(self) -> None:
        """Saves everything, also what was changed deep inside a step.

        Raises:
            StoreError: it cannot be saved.
        """
        with self._lock:
            self._save_all("inside")

    def _save_all(self, care: Care) -> None:
        memory = self.agent.memory
        steps = self.standing.without(memory.steps)
        if steplist.listener_of(memory) is self:
            self._session.claim(steps, self._run_of)
        while self._behind:
            self._save(*self._behind[0], care)
            del self._behind[0]
        if steplist.listener_of(memory) is self:
            self._save(self._session, steps, memory.system_prompt, care)
        self._failures.recovered()

    def _save(self, session: Session, steps: Sequence[Any], system: Any, care: Care) -> None:
        self._make_sure(session)
        drafts = session.compare(steps, system, self._sink.number, self.mind.recognise, self._state, time.time(), care)
        if not drafts and not self._unsaved_runs:
            return
        runs = [self._runs[run] for run in self._unsaved_runs]
        results = [(run, column, encoded) for (run, column), encoded in self._results.items()]
        changes = [draft.change for draft in drafts]
        session.unsure = drafts
        saved = self._sink.save(Batch(session.row, not session.events, runs, results, changes))
        session.accept(drafts, saved, self._sink.stored)
        session.unsure = None
        self._unsaved_runs.clear()
        self._results.clear()

    def _make_sure(self, session: Session) -> None:
        """An error, or Ctrl-C, may come just after a batch was saved: what is on disk decides, lest it be doubled."""
        if session.unsure is not None:
            found = self._sink.saved(session.row["id"], session.events)
            if found:
                session.accept(session.unsure, found, self._sink.stored)
            session.unsure = None

    # --- never in the way ------------------------------------------------------------------------------------------

    @contextmanager
    def guard(self, *, quiet: bool = False) -> Iterator[None]:
        """Counts what goes wrong and goes on; `quiet` also when strict, where another error is on its way."""
        try:
            yield
        except Exception as error:
            self._failures.count(error)
            if self.strict and not quiet:
                raise


def _failure(error: BaseException) -> Encoded:
    told = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return codec.encode({"type": type(error).__name__, "message": str(error), "traceback": told})
