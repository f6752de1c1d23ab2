"""`Memory`: the front of the house. Each method is a few lines into the packages that do the work."""

from __future__ import annotations

import os
import weakref
from datetime import datetime, timezone
from functools import partial
from typing import Any, TypeVar

from rich.console import Console
from smolagents import MultiStepAgent

from smolmem.errors import BadValue, NotFound
from smolmem.record import steplist
from smolmem.record.recorder import Failures, Recorder
from smolmem.record.values import STATUSES, Event, Run, Step
from smolmem.run.fork import Diff, Revision, diff, edit, fork, history, restore
from smolmem.run.interpreter import Restored
from smolmem.run.replay import Prices, Rerun, replay, rerun
from smolmem.run.resume import Resumed, Unknown, drain, resume
from smolmem.run.stepwise import Stepwise, stepwise
from smolmem.store.base import Durability, open_store
from smolmem.store.journal import Journal
from smolmem.store.upkeep import Report, Stats, stats, verify

Agent = TypeVar("Agent", bound=MultiStepAgent)
Time = datetime | float | str


class Memory:
    """Everything your agents did, in one file.

    Usable from many threads and processes at once, and as a context manager.

    Args:
        url: the path of a SQLite file; it is created if it is not there.
        scope: whose memory this is, a path such as `acme/alice`; nothing is read across scopes unless asked for.
        durability: `full` survives a power cut; `normal` only a killed process, and is quicker on slow disks.
        strict: raise when a step cannot be written, instead of going on and trying again.

    Raises:
        StoreError: the file cannot be used; the message says why and what to do.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] = "smolmem.db",
        *,
        scope: str = "default",
        durability: Durability = "full",
        strict: bool = False,
    ) -> None:
        if durability not in ("full", "normal"):
            raise BadValue(f"durability is 'full' or 'normal', not {durability!r}.")
        self.scope = _checked_scope(scope)
        self.strict = strict
        self._store = open_store(url, durability)
        self._journal = Journal(self._store)
        self._failures = Failures()
        self._recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()

    # --- recording -------------------------------------------------------------------------------------------------

    def attach(self, agent: Agent, *, scope: str | None = None) -> Agent:
        """Makes an agent's memory durable, and that of the agents it manages; returns the agent.

        From now on every step is on disk before the next one begins. What the agent has done before is recorded too.

        Raises:
            BadValue: the agent is attached to another `Memory`.
        """
        self._attach(agent, self.scope if scope is None else _checked_scope(scope))
        return agent

    def _attach(self, agent: MultiStepAgent, scope: str) -> Recorder:
        if not isinstance(agent, MultiStepAgent):
            raise BadValue(f"attach() takes a smolagents agent, not {type(agent).__name__}.")
        recorder = self._recorder(agent)
        if recorder is None:
            recorder = Recorder(agent, self._journal, scope, strict=self.strict, failures=self._failures)
            self._recorders.add(recorder)
        for managed in agent.managed_agents.values():
            if isinstance(managed, MultiStepAgent):
                self._attach(managed, scope).parents.add(recorder)
        return recorder

    def _recorder(self, agent: MultiStepAgent) -> Recorder | None:
        listener = steplist.listener_of(agent.memory)
        if listener is None or listener in self._recorders:
            return listener if isinstance(listener, Recorder) else None
        raise BadValue("this agent is attached to another Memory: detach it there first.")

    def detach(self, agent: Agent) -> Agent:
        """Gives an agent, and those it manages, back as they were; what is recorded stays."""
        recorder = self._recorder(agent)
        if recorder is not None:
            recorder.release()
            self._recorders.discard(recorder)
            for managed in agent.managed_agents.values():
                if isinstance(managed, MultiStepAgent):
                    self.detach(managed)
        return agent

    def flush(self) -> None:
        """Writes everything that is not written yet, edits deep inside a step included.

        Raises:
            StoreError: it cannot be written.
        """
        for recorder in list(self._recorders):
            recorder.flush()

    # --- going on --------------------------------------------------------------------------------------------------

    def resume(self, agent: MultiStepAgent, run: str | None = None, *, unknown: Unknown = "raise") -> Any:
        """Goes on with a run that was cut, in this or another process, and returns its answer.

        The agent is to be made as it was, with the same tools. It goes on with the same context, step numbers, budget
        and variables. A step that was cut in the middle is finished, not repeated: the model is not asked again, and
        calls that ended give their recorded results.

        Args:
            agent: the agent.
            run: the run's id or the beginning of it; by default this agent's newest run that is not finished.
            unknown: what to do about a tool call that was cut: `raise`, `rerun` it, or `skip` it. A tool with
                `safe_to_repeat = True` is always called again.

        Raises:
            NotFound: there is nothing to go on with.
            CannotResume: the run is finished, in use elsewhere, or another agent's.
            UnknownOutcome: nobody knows whether a tool was called.
        """
        return drain(self._resume(agent, run, unknown))

    def _resume(self, agent: MultiStepAgent, run: str | None, unknown: Unknown) -> Resumed:
        _one_of(unknown, ("raise", "rerun", "skip"))
        recorder = self._attach(agent, self.scope)
        chosen = self.run(run) if run is not None else self._unfinished(recorder)
        return resume(recorder, self._journal, chosen, partial(self._attach, scope=recorder.scope), unknown)

    def stepwise(
        self, agent: MultiStepAgent, task: str | None = None, *, unknown: Unknown = "raise", **options: Any
    ) -> Stepwise:
        """Runs an agent one step at a time; without a task, goes on with its newest run that is not finished.

        Yields each step once it is done. Stop whenever you like; what is done is recorded, and the rest can wait.
        """
        self.attach(agent)
        if task is not None:
            return stepwise(agent, task, **options)
        resumed = self._resume(agent, None, unknown)
        return Stepwise(agent, iter(resumed.events or ()), resumed.answer)

    def restore(self, agent: MultiStepAgent, run: str, at: int | None = None) -> Restored:
        """Puts a stored run's steps, state and variables into an agent, up to step `at`; tells what did not come back.

        The agent may be of another kind or name; go on with `agent.run(task, reset=False)`.
        """
        return restore(self._attach(agent, self.scope), self._journal, self.run(run), at)

    def fork(self, run: str, at: int | None = None) -> Run:
        """A new run that shares another's past up to step `at`; `resume(agent, fork.id)` takes it from there.

        Raises:
            NotFound: there is no such run or step.
            CannotResume: the run was cut inside a step, and no step to fork from is given.
        """
        return fork(self._journal, self.run(run), at)

    def diff(self, left: str, right: str) -> Diff:
        """Where two runs part."""
        return diff(self.run(left), self.run(right))

    def edit(self, step: Step | int, **changes: Any) -> Step:
        """Changes fields of a stored step; the original stays in its history.

        Raises:
            BadValue: the step has no such field.
            CannotResume: its run is going on in a living process.
        """
        return edit(self._journal, self.step(step) if isinstance(step, int) else step, changes)

    def history(self, step: Step | int) -> list[Revision]:
        """Every version of a step, the oldest first."""
        return history(self._journal, self.step(step) if isinstance(step, int) else step)

    def replay(self, run: str, *, detailed: bool = False, prices: Prices | None = None, console: Any = None) -> None:
        """Prints a whole run in the terminal; runs nothing.

        Args:
            run: its id or the beginning of it.
            detailed: also what the model was sent for each step.
            prices: of a million input and output tokens, to show what each step cost.
            console: a rich console to print to.
        """
        replay(self.run(run), console or Console(), detailed=detailed, prices=prices)

    def rerun(self, agent: MultiStepAgent, run: str) -> Rerun:
        """Lets an agent, with another model or prompt, work on a run's task again with recorded tool results.

        No tool is called. The result is true if everything went the same way, and tells the first step that did
        not: `assert memory.rerun(agent, run)` is a test.
        """
        if self._recorder(agent) is not None:
            raise BadValue("rerun() takes an agent that is not attached: make a new one, or detach it first.")
        chosen = self.run(run)
        task = next(step for step in chosen.steps if step.kind == "task")
        began = self._journal.step_events(task)[0]["id"]
        loaded = self._journal.session(chosen.session, chosen.id, until=began)
        agent.state.update((loaded.kept or {}).get("state", {}))
        return rerun(agent, chosen, self._journal.calls(chosen.id, 0))

    def _unfinished(self, recorder: Recorder) -> Run:
        name = recorder.agent.name or type(recorder.agent).__name__
        for run in self.runs(scope=recorder.scope, agent=name):
            if run.status in ("interrupted", "failed") and run.parent is None:
                return run
        raise NotFound(f"no unfinished run of {name!r} in {self._store.url}: memory.runs() lists what there is.")

    # --- looking ---------------------------------------------------------------------------------------------------

    def runs(
        self,
        *,
        scope: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        text: str | None = None,
        parent: str | None = None,
        session: str | None = None,
        limit: int = 100,
    ) -> list[Run]:
        """Recorded runs, the newest first.

        Args:
            scope: another scope than this memory's; `acme/*` for all below `acme`, `*` for all.
            agent: the agent's name, or its class if it has none.
            status: `running`, `finished`, `failed`, `interrupted` (also: killed) or `max_steps`.
            since: only runs that began at this time or later: a datetime, a timestamp, or ISO text.
            until: only runs that began before.
            text: only runs whose task begins with a text that holds this.
            parent: only runs of managed agents that this run called.
            session: only runs that shared this context.
            limit: how many at most.
        """
        return self._journal.find_runs(
            **self._scoped(scope),
            agent=_text(agent, "agent"),
            status=_one_of(status, STATUSES),
            since=_time(since),
            until=_time(until),
            text=_text(text, "text"),
            parent=None if parent is None else self.run(parent).id,
            session=_text(session, "session"),
            limit=_limit(limit),
        )

    def run(self, id: str) -> Run:
        """One run, by its id or the beginning of it.

        Raises:
            NotFound: no run's id begins so, or several do.
        """
        return self._journal.run(id)

    def events(self, run: str) -> list[Event]:
        """What happened to the agent's list while a run went on, in order."""
        return self._journal.events(self.run(run))

    def as_of(self, run: str, event: int) -> list[Any]:
        """The agent's list as it was after an event, as live smolagents steps."""
        chosen = self.run(run)
        loaded = self._journal.session(chosen.session, chosen.id, until=event).session
        loaded.close()
        return [entry.step for entry in loaded.entries]

    def steps(
        self,
        *,
        scope: str | None = None,
        run: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        kind: str | None = None,
        tool: str | None = None,
        error: bool | str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        text: str | None = None,
        limit: int = 100,
    ) -> list[Step]:
        """Recorded steps, the newest first; steps that were taken off an agent's list are here too.

        Args:
            scope: as for `runs`; where a run is named, its own scope by default.
            run: only steps of this run (its id or the beginning of it).
            agent: only steps of the agent of this name.
            status: only steps of runs with this status.
            kind: `task`, `action`, `planning`, `system_prompt` or `other`.
            tool: only steps that call this tool.
            error: True for steps that went wrong, False for those that did not, or the name of an error's class.
            since: only steps from this time on.
            until: only steps before.
            text: only steps whose text holds this, in any case.
            limit: how many at most.
        """
        found = None if run is None else self.run(run)
        return self._journal.find_steps(
            **self._scoped(found.scope if found is not None and scope is None else scope),
            run=None if found is None else found.id,
            agent=_text(agent, "agent"),
            status=_one_of(status, STATUSES),
            kind=_text(kind, "kind"),
            tool=_text(tool, "tool"),
            failed=int(error) if isinstance(error, bool) else None,
            error=_text(error, "error") if not isinstance(error, bool) else None,
            since=_time(since),
            until=_time(until),
            text=_text(text, "text"),
            limit=_limit(limit),
        )

    def step(self, id: int) -> Step:
        """One step, by its id.

        Raises:
            NotFound: there is none.
        """
        return self._journal.step(id)

    def _scoped(self, scope: str | None) -> dict[str, str | None]:
        wanted = self.scope if scope is None else scope
        if wanted == "*":
            return {"scope": None, "below": None}
        if isinstance(wanted, str) and wanted.endswith("/*"):
            return {"scope": _checked_scope(wanted[:-2]), "below": wanted[:-1]}
        return {"scope": _checked_scope(wanted), "below": None}

    # --- upkeep ----------------------------------------------------------------------------------------------------

    def verify(self) -> Report:
        """Proves that what is stored is what was written, or names what is not."""
        return verify(self._journal)

    def stats(self) -> Stats:
        """How much is stored, and writes that failed since this `Memory` was opened."""
        return stats(self._journal, self._failures.total)

    def close(self) -> None:
        """Writes what is left and lets go of the file; agents that are attached go on unrecorded.

        Raises:
            StoreError: what is left cannot be written.
        """
        try:
            for recorder in list(self._recorders):
                recorder.release()
                self._recorders.discard(recorder)
        finally:
            self._store.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Memory({self._store.url!r}, scope={self.scope!r})"


def _checked_scope(scope: Any) -> str:
    if not isinstance(scope, str) or not scope or scope != scope.strip("/ ") or "*" in scope or not scope.isprintable():
        raise BadValue(f"a scope is a path such as 'acme/alice', not {scope!r}.")
    return scope


def _text(value: Any, name: str) -> str | None:
    if value is None or isinstance(value, str):
        from smolmem.record.codec import plain

        return None if value is None else plain(value)
    raise BadValue(f"{name} is a text, not {value!r}.")


def _one_of(value: str | None, words: tuple[str, ...]) -> str | None:
    if value is not None and value not in words:
        raise BadValue(f"{value!r} is not one of {', '.join(words)}.")
    return value


def _limit(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise BadValue(f"limit is a count, not {value!r}.")
    return value


def _time(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    try:
        moment = datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else value
        return (moment if moment.tzinfo else moment.astimezone()).astimezone(timezone.utc).timestamp()
    except (AttributeError, TypeError, ValueError, OverflowError, OSError) as error:
        raise BadValue(
            f"{value!r} is not a time: give a datetime, a timestamp, or text such as '2025-03-31T12:00'."
        ) from error
