"""The runs of one agent in this process: which run a step belongs to, and which rows are not saved yet.

    agent.run() is called                  an `ActiveRun` begins; it has no id yet
    its task is on the list                the run is opened: it has an id and a row
    agent.run() returns, raises, is left   the run ends, with a status and an answer or a failure
    its row is saved                       nothing of it is kept here

A user can also append a task to the list and call `agent.step()` in a loop: such a run ends with the step that gave the
final answer, else when the next run begins.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from smolagents.memory import ActionStep, TaskStep

from smolmem.agents import compat
from smolmem.core.encoding.codec import Encoded
from smolmem.core.injected import Injected
from smolmem.core.rows import NO_RESULT, RunRow, Status
from smolmem.core.text import storable
from smolmem.store.journal import Journal


class Turn(NamedTuple):
    """Where a run is: the run, and how many steps it has."""

    run: str
    number: int


@dataclass(eq=False)
class ActiveRun:
    """One `agent.run()` in progress; `run` is known once its task is on the list."""

    runs: ActiveRuns
    parent: ActiveRun | None
    task: str
    max_steps: int | None
    run: str | None = None
    step_number: int | None = None
    """The number of the step it is in, where the agent itself does not know it yet."""

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that the user gave the agent that was called first."""
        return self.runs.tags if self.parent is None else self.parent.tags

    def is_called_by(self, runs: ActiveRuns) -> bool:
        """Whether this is a run of an agent, or was called by one, directly or through others."""
        return self.runs is runs or (self.parent is not None and self.parent.is_called_by(runs))


@dataclass(eq=False)
class _RecordedRun:
    """The row of a run, and what is not saved of it yet."""

    row: RunRow
    turns: int = 0
    """How many steps the run has had."""
    is_saved: bool = False
    results: dict[str, Encoded] = field(default_factory=dict)
    """Its answer or failure, while it is not saved."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and that is saved."""
        return self.is_saved and self.row["status"] != "running"


_current: ContextVar[ActiveRun | None] = ContextVar("smolmem_run", default=None)


class ActiveRuns:
    """The runs of one agent."""

    def __init__(self, agent: Any, scope: str, journal: Journal) -> None:
        self.agent = agent
        self.scope = scope
        self.tags: tuple[str, ...] = ()
        self._journal = journal
        self.parents: weakref.WeakSet[ActiveRuns] = weakref.WeakSet()
        self._active: list[ActiveRun] = []
        self._thread = threading.local()
        self._recorded: dict[str, _RecordedRun] = {}
        self._manual: str | None = None
        self._manual_answer: list[Any] = []  # the final answer of the step that is being made by hand, if it gave one
        self._latest: str | None = None

    # --- which run -------------------------------------------------------------------------------------------------

    @contextmanager
    def working_on(self, active: ActiveRun) -> Iterator[None]:
        """Marks this thread as working on a run, and the run as active."""
        before, self._thread.active = self.of_this_thread(), active
        token = _current.set(active)
        if active not in self._active:
            self._active.append(active)
        try:
            yield
        finally:
            _current.reset(token)
            self._thread.active = before

    def of_this_thread(self) -> ActiveRun | None:
        """The run that this thread works on."""
        return getattr(self._thread, "active", None)

    @property
    def is_active(self) -> bool:
        """Whether `agent.run()` is in progress."""
        return bool(self._active)

    @property
    def is_working(self) -> bool:
        """Whether `agent.run()` is in progress, or a user runs the agent step by step."""
        return self.is_active or self._manual is not None

    def _at_work(self) -> ActiveRun | None:
        """The run that is being worked on; a code agent's tools ask from a thread of their own."""
        return self.of_this_thread() or (self._active[-1] if self._active else None)

    def turn(self) -> Turn | None:
        """The run that is being worked on, and its turn."""
        active = self._at_work()
        recorded = None if active is None else self._open_run(active)
        return None if recorded is None else Turn(recorded.row["id"], recorded.turns)

    def _open_run(self, active: ActiveRun) -> _RecordedRun | None:
        """What is recorded of a run; None if it has not begun, is over, or is another process's."""
        recorded = self._recorded.get(active.run or "")
        return None if recorded is None or recorded.is_over else recorded

    def run_at_work(self) -> str | None:
        """The run that is being worked on, by the agent or by hand."""
        turn = self.turn()
        return self._manual if turn is None else turn.run

    def calling(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the function that calls tools: an agent that a tool calls is called by the run of this agent.

        A code agent runs its tools in another thread, which does not know that run.
        """

        def called(name: str, *args: Any) -> Any:
            token = _current.set(self._at_work() or _current.get())
            try:
                result = call(name, *args)
            finally:
                _current.reset(token)
            if name == "final_answer" and self._manual is not None and self._at_work() is None:
                self._manual_answer = [result]
            return result

        return called

    def caller(self) -> ActiveRun | None:
        """The run that calls this agent, if one does; where its call is not in the ledger, a run of its managers."""
        around = _current.get()
        if around is not None and around.runs is not self:
            return around
        active = [run for parent in self.parents for run in parent._active]
        return active[-1] if active else None

    def run_of(self, step: Any, session: str) -> str:
        """The run that a new step belongs to; a task opens a run, whether `agent.run()` or a user appended it."""
        run = self._find_or_open(step, session)
        if recorded := self._recorded.get(run):
            recorded.turns += 1
            if self._manual_answer and run == self._manual and isinstance(step, ActionStep):
                recorded.results["answer"] = self._journal.encode(self._manual_answer[0])
                self.end_manual()
        return run

    def _find_or_open(self, step: Any, session: str) -> str:
        active = self.of_this_thread()
        if active is not None and active.run is None and isinstance(step, (TaskStep, Injected)):
            self.end_manual()
            active.run = self._latest = self._open(step, active, session)
        if active is not None and active.run is not None:
            return active.run
        if self._latest is None or isinstance(step, TaskStep):
            self.end_manual()
            self._manual = self._latest = self._open(step, None, session)
        return self._latest

    # --- beginning and ending --------------------------------------------------------------------------------------

    def _open(self, step: Any, active: ActiveRun | None, session: str) -> str:
        parent = None if active is None else active.parent
        model, redacted = getattr(self.agent, "model", None), self._journal.redactor.text
        task = str(getattr(step, "task", "(steps put on the list by hand)")) if active is None else active.task
        title = task if parent is None else _task_of_manager(self.agent, task)
        run: RunRow = {
            "id": secrets.token_hex(8),
            "session": session,
            "scope": self.scope,
            "agent": storable(compat.agent_name(self.agent)),
            "agent_type": type(self.agent).__name__,
            "title": redacted(storable(title))[:200],
            "status": "running",
            "began": time.time(),
            "ended": None,
            "parent": None if parent is None else parent.run,
            "parent_step": None if parent is None else parent.step_number or parent.runs.agent.step_number,
            "fork_of": None,
            "model": redacted(storable(str(getattr(model, "model_id", None) or type(model).__name__))),
            "smolagents": compat.SMOLAGENTS,
            "max_steps": None if active is None else active.max_steps,
            "writer": self._journal.writer,
            **NO_RESULT,
            "tags": json.dumps([redacted(tag) for tag in (self.tags if active is None else active.tags)]),
        }
        self._recorded[run["id"]] = _RecordedRun(run)
        return run["id"]

    def adopt(self, row: RunRow, turns: int) -> None:
        """Takes over a stored run."""
        self._recorded[row["id"]], self._latest = _RecordedRun(row, turns, is_saved=True), row["id"]

    def new_session(self) -> None:
        """A new list begins: a step that no run put there belongs to a new run."""
        self._latest = None

    def end(self, active: ActiveRun, status: Status, result: tuple[str, Encoded] | None) -> bool:
        """Ends a run, with its answer or failure; false if it never began, or is another process's."""
        if active in self._active:
            self._active.remove(active)
        recorded = self._open_run(active)
        if recorded is None:
            return False
        recorded.results |= {} if result is None else dict([result])
        self.set_status(recorded.row["id"], status)
        return True

    def interrupt(self) -> None:
        """Interrupts the active run, and the runs that called it."""
        self.agent.interrupt()
        for parent in self.parents:
            if parent.is_active:
                parent.interrupt()

    def end_manual(self) -> None:
        """Ends a run that was driven by hand."""
        if self._manual is not None:
            self.set_status(self._manual, "finished")
            self._manual, self._manual_answer = None, []

    def leave(self) -> None:
        """The agent is recorded no longer: runs that are in progress are interrupted."""
        self.end_manual()
        for active in self._active:
            if recorded := self._open_run(active):
                self.set_status(recorded.row["id"], "interrupted")

    def set_status(self, run: str, status: Status) -> None:
        """Gives a run the status it ended with."""
        recorded = self._recorded[run]
        recorded.row, recorded.is_saved = {**recorded.row, "status": status, "ended": time.time()}, False

    def forget_all(self) -> list[str]:
        """Forgets all runs, and returns them: they are another process's, after a fork or a takeover."""
        forgotten = [run for run, recorded in self._recorded.items() if not recorded.is_over]
        self._active, self._recorded, self._thread = [], {}, threading.local()
        self._manual, self._manual_answer, self._latest = None, [], None
        return forgotten

    # --- saving ----------------------------------------------------------------------------------------------------

    @property
    def are_saved(self) -> bool:
        """Whether everything is saved."""
        return all(recorded.is_saved for recorded in self._recorded.values())

    def unsaved(self) -> tuple[list[RunRow], list[tuple[str, str, Encoded]]]:
        """The rows and results that are not saved yet."""
        found = [recorded for recorded in self._recorded.values() if not recorded.is_saved]
        results = [(each.row["id"], column, value) for each in found for column, value in each.results.items()]
        return [each.row for each in found], results

    def saved(self) -> None:
        """Everything is saved; runs that are over are dropped, but for the last one: more steps may belong to it."""
        for recorded in self._recorded.values():
            recorded.is_saved, recorded.results = True, {}
        self._recorded = {run: each for run, each in self._recorded.items() if not each.is_over or run == self._latest}


def _task_of_manager(agent: Any, task: str) -> str:
    """The task that a manager gave, without the template of the managed agent that smolagents puts around it."""
    templates = getattr(agent, "prompt_templates", None) or {}
    template = str((templates.get("managed_agent") or {}).get("task") or "")
    before, _, after = template.partition("{{task}}")
    head, tail = (part.replace("{{name}}", str(agent.name)).strip() for part in (before, after))
    inner = task.strip()
    if not head or not inner.startswith(head):
        return task
    end = inner.find(tail[:60], len(head)) if tail else -1
    return inner[len(head) : end if end >= 0 else None].strip() or task
