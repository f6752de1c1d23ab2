"""`Memory`: the front of the house. Each method is a few lines into the packages that do the work."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast, overload

from rich.console import Console
from smolagents import MultiStepAgent

from smolmem.arguments import Time, count_of, end_of, one_of, scope_of, scopes, text_of
from smolmem.errors import BadValue, CannotResume, NotFound
from smolmem.recall.agent import Access
from smolmem.recall.recall import Given, Recall
from smolmem.recall.values import Note
from smolmem.record import steplist
from smolmem.record.failures import Failures
from smolmem.record.recorder import Recorder
from smolmem.record.values import Alert, Run, Step
from smolmem.remembering import Remembering
from smolmem.run.fork import Diff, Revision, diff, edit, fork, history, restore
from smolmem.run.handover import TOKENS, Injection, Messages, inject, to_messages
from smolmem.run.interpreter import Restored
from smolmem.run.preview import Preview, look, preview
from smolmem.run.replay import Prices, Rerun, replay, rerun
from smolmem.run.resume import Resumed, Unknown, drain, resume
from smolmem.run.stepwise import Stepwise, stepwise
from smolmem.store.base import Durability, Progress, open_store
from smolmem.store.doctor import Diagnosis, examine
from smolmem.store.journal import Journal
from smolmem.store.loading import Imported, load
from smolmem.store.transfer import Exported, export
from smolmem.store.upkeep import Report, Stats, stats, verify
from smolmem.watch.backtest import Backtest, backtest
from smolmem.watch.judges import written
from smolmem.watch.rule import Watch
from smolmem.watch.watching import Watching

Agent = TypeVar("Agent", bound=MultiStepAgent)


class Memory(Remembering):
    """Everything your agents did, in one file.

    Usable from many threads and processes at once, and as a context manager.

    Args:
        url: the path of a SQLite file; it is created if it is not there.
        scope: whose memory this is, a path such as `acme/alice`; nothing is read across scopes unless asked for.
        durability: `full` survives a power cut; `normal` only a killed process, and is quicker on slow disks.
        strict: raise when a step cannot be written, instead of going on and trying again.
        embedder: what recall by meaning uses: `local`, a small model that is fetched if it is not here; a
            `smolmem.recall.embed.Server` such as Ollama; a function from texts to vectors; `off` for words alone. By
            default the local model if it is here, and words alone if not.

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
        embedder: Given = None,
    ) -> None:
        if durability not in ("full", "normal"):
            raise BadValue(f"durability is 'full' or 'normal', not {durability!r}.")
        self.scope = scope_of(scope)
        self.strict = strict
        self._store = open_store(url, durability)
        self._journal = Journal(self._store)
        self._recall = Recall(self._journal, embedder)
        self._failures = Failures()
        self._recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()

    # --- recording -------------------------------------------------------------------------------------------------

    def attach(
        self,
        agent: Agent,
        *,
        scope: str | None = None,
        recall: int | None = None,
        views: Sequence[Any] | None = None,
        watch: Sequence[Watch] | None = None,
        tools: bool = False,
    ) -> Agent:
        """Makes an agent's memory durable, and that of the agents it manages; returns the agent.

        From now on every step is on disk before the next one begins. What the agent has done before is recorded too.

        Args:
            agent: the agent.
            scope: another scope than this memory's.
            recall: at each task, remind the agent of so many relevant memories, as one quoted message; 0 for no more.
            views: what its model is shown of its memory, from `smolmem.views`, in order; the record keeps everything.
            watch: rules over its steps; those of earlier runs count too.
            tools: give the agent the tools `recall_memory`, `remember` and `forget`, and a code agent also `memory`
                in its code.

        Raises:
            BadValue: the agent is attached to another `Memory`, or with another scope; or a view cannot work.
        """
        reminders = None if recall is None else count_of(recall, "recall")
        recorder = self._attach(agent, self.scope if scope is None else scope_of(scope))
        if scope not in (None, recorder.scope):
            raise BadValue(f"this agent is attached with the scope {recorder.scope!r}: detach it first.")
        access, watching = self._hands(recorder)
        if views is not None:
            look(recorder, views)
        if watch is not None:
            watching.set(watch)
        if reminders is not None:
            access.remind(reminders)
        if tools:
            access.give_tools()
        return agent

    def _hands(self, recorder: Recorder) -> tuple[Access, Watching]:
        if not recorder.held:
            recorder.held = [Access(recorder, self._recall, self._journal, diff), Watching(recorder, self._journal)]
        access, watching = recorder.held
        return cast(Access, access), cast(Watching, watching)

    def _attach(self, agent: MultiStepAgent, scope: str) -> Recorder:
        if not isinstance(agent, MultiStepAgent):
            raise BadValue(f"attach() takes a smolagents agent, not {type(agent).__name__}.")
        recorder = self._recorder(agent)
        if recorder is None:
            recorder = Recorder(agent, self._journal, scope, strict=self.strict, failures=self._failures)
            recorder.after_run = self._recall.read
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
            self._release(recorder)
            for managed in agent.managed_agents.values():
                if isinstance(managed, MultiStepAgent):
                    self.detach(managed)
        return agent

    def _release(self, recorder: Recorder) -> None:
        recorder.release()
        self._recorders.discard(recorder)

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
        one_of(unknown, ("raise", "rerun", "skip"))
        recorder = self._attach(agent, self.scope if run is None else self.run(run).scope)
        chosen = self.run(run) if run is not None else self._unfinished(recorder)
        if chosen.scope != recorder.scope:
            raise CannotResume(
                f"run {chosen.id[:8]} is of the scope {chosen.scope!r}, and this agent is attached with "
                f"{recorder.scope!r}: detach it first."
            )
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

    @overload
    def history(self, of: Step | int) -> list[Revision]: ...
    @overload
    def history(self, of: Note | str) -> list[Note]: ...
    def history(self, of: Step | int | Note | str) -> list[Revision] | list[Note]:
        """Every version of a step, or of a note, the oldest first."""
        if isinstance(of, (Note, str)):
            return self._recall.notes.history(self.note(of.id if isinstance(of, Note) else of))
        return history(self._journal, self.step(of) if isinstance(of, int) else of)

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

    # --- what the model is shown, what is watched --------------------------------------------------------------------

    def preview(self, agent: MultiStepAgent, task: str | None = None) -> Preview:
        """What the agent's model would be sent next, and what its views cut; nothing is sent, asked or written.

        Args:
            agent: the agent, which is attached.
            task: preview the first prompt of `agent.run(task)` instead of the next one in its memory; without what it
                would be reminded of.
        """
        recorder = self._recorder(agent)
        if recorder is None:
            raise BadValue("preview() takes an agent that is attached: memory.attach(agent, views=[…]) comes first.")
        return preview(recorder, text_of(task, "task"))

    def inject(
        self,
        agent: MultiStepAgent,
        what: Any,
        *,
        title: str | None = None,
        expires: Time | timedelta | None = None,
        tokens: int = TOKENS,
    ) -> Injection:
        """Puts something before an agent's eyes, with its origin: now, and at the beginning of each run until detached.

        Args:
            agent: the agent.
            what: a text, a smolagents step, a note, what `recall` found, a run, another agent (what is in its memory),
                or a list of these.
            title: what it is: `known issue`, `baseline`, `maintenance`.
            expires: until when: a time, or a timedelta from now.
            tokens: how much of a run, or of an agent's memory, is shown at most.

        Returns:
            The injection; `withdraw()` takes it back.
        """
        until = end_of(expires)
        return inject(self._attach(agent, self.scope), what, text_of(title, "title"), until, count_of(tokens, "tokens"))

    def to_messages(self, run: str, tokens: int | None = None) -> Messages:
        """A run as smolagents messages, for another agent to read; `str()` of them is a transcript.

        Args:
            run: its id or the beginning of it.
            tokens: fit into so many: the task and the newest steps stay.
        """
        return to_messages(self.run(run).steps, None if tokens is None else count_of(tokens, "tokens"))

    def alerts(
        self, *, scope: str | None = None, run: str | None = None, rule: str | None = None, limit: int = 100
    ) -> list[Alert]:
        """When rules fired, the newest first."""
        wanted = {"run": None if run is None else self.run(run).id, "rule": text_of(rule, "rule")}
        return self._journal.traces.alerts(**self._scoped(scope), **wanted, limit=count_of(limit))

    def backtest(
        self,
        rule: Watch,
        *,
        scope: str | None = None,
        agent: str | None = None,
        run: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        limit: int = 10_000,
    ) -> Backtest:
        """When a rule would have fired, on the newest `limit` recorded steps; nothing is done about it."""
        found = self.steps(scope=scope, agent=agent, run=run, since=since, until=until, limit=limit)
        notes = written(self.alerts(scope=scope, limit=limit))
        return backtest(rule, [step for step in reversed(found) if step.kind in rule.kinds], notes)

    # --- upkeep ----------------------------------------------------------------------------------------------------

    def verify(self) -> Report:
        """Proves that what is stored is what was written, or names what is not."""
        return verify(self._journal)

    def stats(self) -> Stats:
        """How much is stored, and writes that failed since this `Memory` was opened."""
        return stats(self._journal, self._failures.total)

    def doctor(self) -> Diagnosis:
        """What is wrong, or could be better, with the file, its surroundings and how it is used; changes nothing."""
        return examine(self._journal)

    def export(
        self, path: str | os.PathLike[str], *, scope: str | None = None, progress: Progress | None = None
    ) -> Exported:
        """Writes everything, or one scope, in an open form: JSON lines, and pictures as files.

        Args:
            path: a new folder, or a new file that ends in `.zip`.
            scope: only this scope; `acme/*` for all below `acme` too.
            progress: told, now and then, how much is done and how much there is.
        """
        self.flush()
        return export(self._journal, path, **scopes("*" if scope is None else scope), progress=progress)

    def load(
        self, path: str | os.PathLike[str], *, scope: str | None = None, progress: Progress | None = None
    ) -> Imported:
        """Reads what `export` wrote, all of it or nothing; runs and notes that are here already are left as they are.

        Args:
            path: the folder or the `.zip`.
            scope: put everything under this scope.
            progress: told, now and then, how much is done and how much there is.

        Raises:
            StoreError: it is not what `export` writes; the message says where and what to do.
        """
        return load(self._journal, path, scope=None if scope is None else scope_of(scope), progress=progress)

    def backup(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Copies the whole file, while others may go on writing; the copy is complete or not there."""
        self.flush()
        self._store.backup(path, progress)

    def close(self) -> None:
        """Writes what is left and lets go of the file; agents that are attached go on unrecorded.

        Raises:
            StoreError: what is left cannot be written.
        """
        try:
            for recorder in list(self._recorders):
                self._release(recorder)
        finally:
            self._store.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Memory({self._store.url!r}, scope={self.scope!r})"
