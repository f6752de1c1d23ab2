"""Records the list of steps of one agent.

    memory.steps.append(x)    the observed list reports the change         (list changes)
    ListChanges.find           finds the difference to the saved list       (saving)
    Journal.save              writes the difference in one transaction
    ListChanges.accept         remembers it as saved

The list is the only place that sees every step: no callback fires for a task, and callbacks fire before the append.

What must stay true: recording never changes what the agent does. Every entry point uses `guard`. Failed writes are
counted, logged once and retried with the next change; while they keep failing, with a later one (`failures`).
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from smolagents.memory import TaskStep

from smolmem.agents import compat
from smolmem.agents.active_runs import ActiveRun, ActiveRuns
from smolmem.agents.failures import Failures
from smolmem.agents.ledger import Fenced
from smolmem.agents.list_changes import Care, ListChanges
from smolmem.agents.observing import observed_list
from smolmem.agents.session import Session
from smolmem.agents.variables import Variables
from smolmem.core.encoding import codec
from smolmem.core.encoding.codec import Encoded
from smolmem.core.errors import TakenOver
from smolmem.core.injected import Injected, Injections
from smolmem.core.rows import RunRow, SessionRow, Status, StoredSession
from smolmem.core.text import storable
from smolmem.store.journal import Journal

log = logging.getLogger("smolmem")


def tell(listeners: Iterable[Callable[[], None]]) -> None:
    """Calls listeners; what is recorded can be indexed and sent later, if one of them fails."""
    for listener in listeners:
        try:
            listener()
        except Exception as failure:
            log.info("smolmem could not index or send recorded steps: %s", failure)


class _LiveList(NamedTuple):
    """A list of steps and the session that it is saved in."""

    session: Session
    steps: Sequence[Any]
    system: Any


class StepRecorder:
    """Records the steps of one agent, and the rows of its runs with them."""

    def __init__(self, agent: Any, journal: Journal, runs: ActiveRuns, failures: Failures, *, strict: bool) -> None:
        self.agent = agent
        self.runs = runs
        self.injections = Injections()
        self.on_saved: list[Callable[[], None]] = []
        """Called when changes of the list are saved."""
        self._journal = journal
        self._failures = failures
        self._strict = strict
        self._lock = threading.RLock()
        self._memory = agent.memory
        self._variables = Variables(agent, journal.encode)
        self.touched = self._variables.touched
        self._paused = False
        self._is_lost = False  # whether another process records the run of the steps on the list
        self._edits_saved = False  # whether nobody but the agent can have edited a step since the last comparison
        self._unsaved_lists: list[_LiveList] = []  # lists that were reset before all of them could be saved
        self._in_doubt: ListChanges | None = None  # of the last batch, while it is unknown whether it was saved
        self.session = self._new_session()

    def observe_memory(self, patches: compat.Patches) -> None:
        """Observes the memory of the agent until the patches are undone."""
        patches.memory(self._observe, self._unobserve)

    def _observe(self) -> None:
        self._memory = self.agent.memory
        observed_list.observe(self._memory, self)

    def _unobserve(self) -> None:
        observed_list.unobserve(self._memory, self)

    def follow_memory(self) -> None:
        """Observes the memory that the agent has now, if it was replaced; what others use of the old one is theirs."""
        memory = self.agent.memory
        if compat.holds("memory") and hasattr(memory, "steps") and not observed_list.reports_to(memory, self):
            self.resetting()
            self._unobserve()
            self._observe()

    # --- list changes ----------------------------------------------------------------------------------------------

    def adding(self, step: Any) -> None:
        """A step is about to be appended: notes its run before any other thread can see the step on the list."""
        if self._paused:
            return
        with self.guard(), self._lock:
            self._is_lost &= not isinstance(step, TaskStep)
            if self.is_working_here:
                self.injections.take_waiting()
            if not self._is_lost and not self.injections.is_waiting(step):
                self.session.runs[id(step)] = self._run_of(step)

    def changed(self, *, appended: bool = False) -> None:
        """The list may have changed: saves the difference to the saved list."""
        if self._paused:
            return
        with self.guard(), self._lock:
            self.session.in_order &= appended
            self._save("glance")
            self._edits_saved = True

    def changed_by_others(self) -> None:
        """Another agent that shares this list changed it: it is compared as a whole next time."""
        self.session.in_order = self._edits_saved = False

    def may_be_edited(self) -> None:
        """The caller of a streamed run gets control, and can edit any step."""
        self._edits_saved = False

    def save_edits(self) -> None:
        """Saves changes since the last comparison that were not made by the agent."""
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

    def fresh_run(self) -> str | None:
        """The run that is being worked on, if it has not acted yet."""
        turn = self.runs.turn()
        if turn is None:
            return None
        acted = any(entry.run == turn.run and codec.kind_of(entry.step) == "action" for entry in self.session.entries)
        return None if acted else turn.run

    def resetting(self) -> None:
        """The list is about to be emptied: the steps that follow belong to a new session."""
        with self.guard(), self._lock:
            self.runs.end_manual()
            memory, steps = self._memory, list(self.injections.without_waiting(self._memory.steps))
            if steps or len(self.session):
                if memory is self.agent.memory:
                    self.changed()
                else:  # other agents that share the memory may have appended steps since
                    self.session.assign_runs(steps, self._run_of)
                is_saved = [entry.step for entry in self.session.entries] == steps and self.runs.are_saved
                if not self._is_lost and not is_saved:
                    self._unsaved_lists.append(_LiveList(self.session, steps, memory.system_prompt))
                self._begin(self._new_session())
            self._is_lost = False
            self.injections.take_waiting()

    def reset_done(self) -> None:
        """A new list begins, with the standing injections."""
        for step in self.injections.for_new_list():
            self.put(step)

    def put(self, step: Injected) -> None:
        """Appends an injected step; while no run is active, it belongs to the next run."""
        if not self.is_working_here and not self.runs.is_working:
            self.injections.wait(step)
        self.agent.memory.steps.append(step)

    def drop_expired_injections(self) -> None:
        """Takes expired injections off the list, and withdraws injections of erased text."""
        with self.guard():
            self.injections.drop_erased(self._journal.has_all)
        for position in self.injections.expired_positions(self.agent.memory.steps):
            del self.agent.memory.steps[position]

    def _run_of(self, step: Any) -> str:
        return self.runs.run_of(step, self.session.row["id"])

    # --- sessions --------------------------------------------------------------------------------------------------

    def _new_session(self) -> Session:
        self.runs.new_session()
        row: SessionRow = {
            "id": secrets.token_hex(8),
            "scope": self.runs.scope,
            "agent": storable(compat.agent_name(self.agent)),
            "began": time.time(),
            "fork_of": None,
            "fork_at": None,
        }
        return Session(row)

    def _begin(self, session: Session) -> None:
        self.session.close()
        self.session = session

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
        self._begin(Session.load(stored, self._journal.prompt))
        self._is_lost = False
        self.runs.adopt(run, stored.turns)
        with self.paused():
            self.agent.memory.steps = [entry.step for entry in stored.entries]

    def lose(self, active: ActiveRun | None = None) -> None:
        """Another process has taken the session over: the next task, or the next list, begins another session."""
        with self._lock:
            if active is not None:
                active.run = None
            self._journal.leave(self.runs.forget_all())
            self._begin(self._new_session())
            self._is_lost, self._in_doubt = True, None

    def leave_erased_session(self) -> None:
        """Empties the list if another process has erased steps of it: a run that keeps it would store them again."""
        with self.guard(), self._lock:
            if not self.is_active and not self.session.is_stored_in(self._journal):
                self.lose()
                self.agent.memory.reset()
                log.warning("smolmem: another process erased or continued steps of this agent: its memory is emptied.")

    def after_fork(self) -> None:
        """A forked child gets a new lock and a session of its own, which begins with what the parent had saved."""
        self._lock = threading.RLock()
        self.session = self.session.forked(self._new_session().row)
        self._unsaved_lists, self._in_doubt, self._is_lost = [], None, True
        self._paused = False  # the thread that resumes a run is in the parent
        self.runs.forget_all()

    # --- saving ----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Saves everything, including edits deep inside a step.

        Raises:
            StoreError: if it cannot be saved.
        """
        with self._lock:
            self._save("inside")

    def end_run(self, active: ActiveRun, status: Status, result: tuple[str, Encoded] | None) -> None:
        """Ends a run with its status, and its answer or failure."""
        with self._lock:
            if self.runs.end(active, status, result):
                self._save("fields")

    def abandon(self, run: str) -> None:
        """Leaves a run that was to be resumed interrupted."""
        self.runs.set_status(run, "interrupted")
        self.changed()

    def leave(self) -> None:
        """Saves unsaved steps and interrupts active runs: the agent is recorded no longer."""
        self.runs.leave()
        self.flush()
        self.session.close()

    def _save(self, care: Care) -> None:
        memory = self.agent.memory
        recorded = not self._is_lost and (not compat.holds("memory") or observed_list.reports_to(memory, self))
        steps = self.injections.without_waiting(memory.steps)
        if recorded:
            self.session.assign_runs(steps, self._run_of)
        if care == "glance" and self._failures.is_waiting and not self._strict:
            if recorded:
                ListChanges(self.session, self._journal, self._variables).draft_new(steps)
            return
        while self._unsaved_lists:
            self._save_list(self._unsaved_lists[0], care)
            del self._unsaved_lists[0]
        if recorded:
            self._save_list(_LiveList(self.session, steps, memory.system_prompt), care)
        self._failures.recovered()

    def _save_list(self, live: _LiveList, care: Care) -> None:
        self._resolve_doubt()
        session = live.session
        found = ListChanges(session, self._journal, self._variables)
        drafts = found.find(live.steps, live.system, care)
        if not drafts and self.runs.are_saved:
            return
        rows, results = self.runs.unsaved()
        session.find_fork(self._journal)
        self._in_doubt = found
        changes = self._variables.to_save([draft.change for draft in drafts])
        found.accept(self._journal.save(session.batch(rows, results, changes)))
        self._in_doubt = None
        if any(change.variables is not None for change in changes):
            self._variables.saved()
        self.runs.saved()
        tell(self.on_saved)

    def _resolve_doubt(self) -> None:
        """Asks the store whether the last batch was saved: an error or Ctrl-C may come just after the commit."""
        if self._in_doubt is not None:
            session = self._in_doubt.session
            if saved := self._journal.saved(session.row["id"], session.saved_events):
                self._in_doubt.accept(saved)
            self._in_doubt = None

    @contextmanager
    def guard(self, *, quiet: bool = False) -> Iterator[None]:
        """Counts an error and continues; raises it when strict, unless `quiet`: another error is being raised.

        Raises:
            TakenOver: if another process has taken the run over; inside `agent.run()`, as `Fenced`.
        """
        try:
            yield
        except TakenOver as error:
            if self.is_working_here:
                raise Fenced(error) from error
            if not self.is_active:  # the thread that works on the run must be refused, too
                self.lose()
            if not quiet:
                raise
        except Exception as error:
            self._failures.count(error)
            if self._strict and not quiet:
                raise
