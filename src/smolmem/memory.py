"""`Memory`: the public class. Each method is a few lines that call the packages that do the work."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from smolagents import MultiStepAgent

from smolmem.agents.compat import agent_name
from smolmem.agents.failures import Failures
from smolmem.agents.inject import Injection, inject
from smolmem.agents.ledger import Unknown
from smolmem.agents.live_trace import AttachedTrace, LiveTraces
from smolmem.agents.recorder import Recorder, recorder_of
from smolmem.agents.stepwise import Stepwise, stepwise
from smolmem.agents.tools import MemoryAccess
from smolmem.core.arguments import Time, check_count, check_scope, check_tags, check_text, scope_filter, to_deadline
from smolmem.core.errors import InvalidArgument, NotFound, SmolmemError, StoreError
from smolmem.core.redaction import SHORTEST, Redact, Redactor
from smolmem.core.values import Run
from smolmem.exchange import Exchange
from smolmem.operations import Operations
from smolmem.policies.recorded_rules import AttachedRules, Backtest, backtest, recorded_steps
from smolmem.policies.transcript import TOKENS, injectable
from smolmem.policies.watch import Watch
from smolmem.recall.engine import EmbedderChoice, RecallEngine
from smolmem.recalling import check_retention
from smolmem.store.base import Durability, Progress
from smolmem.store.contents import fingerprint_key
from smolmem.store.journal import Journal
from smolmem.store.opening import open_store
from smolmem.store.sqlite.encryption import KEY_VARIABLE

if TYPE_CHECKING:  # imported by the methods that need them: most programs need few
    from smolmem.agents.prompting.preview import Preview
    from smolmem.agents.resume import Resumed
    from smolmem.doctor import Diagnosis
    from smolmem.store.verify import Report, Stats

log = logging.getLogger("smolmem")

Agent = TypeVar("Agent", bound=MultiStepAgent)


class Memory(Exchange):
    """Everything your agents did, in one file.

    Usable from many threads and processes at once, and as a context manager.

    Args:
        url: the path of a SQLite file, created if it does not exist, or `postgresql://user@host/database`.
        scope: whose memory this is, a path such as `acme/alice`. It bounds everything that is done through this object:
            nothing outside is read, changed, forgotten or exported, by query or by id, unless a method is given another
            `scope`. `acme/*` covers `acme` and all scopes in it, `*` all scopes.
        durability: `full` survives a power cut; `normal` survives only a killed process, and is faster on slow disks.
        strict: raise when a step cannot be written, instead of continuing and retrying.
        embedder: what semantic recall uses: `local`, a small model that is fetched if it is not on this machine; an
            `EmbeddingServer` such as Ollama; a function from texts to vectors; `off` for words alone. By default the
            local model if it is on this machine, else words alone.
        vectors: where vectors are searched: by default an exact index that is built in. `faiss`, `chroma:///path`,
            `chroma+http://host:8000`, `qdrant:///path`, `lancedb:///path` or `milvus:///path` name another index, which
            is synchronized with the file. The environment variable `SMOLMEM_VECTORS` does so for the command line.
        retain: how long runs are kept, by scope: `{"acme/*": timedelta(days=90)}`. Older runs are erased when the
            memory is opened, and by `prune()`.
        redact: what is not stored. By default keys, tokens and passwords of well-known formats, and the values of
            environment variables that are named as secrets: a placeholder with a fingerprint is stored instead, and
            the live agent keeps the value. A regular expression, a function from a text to the secrets in it, or a list
            of these is used besides; False stores everything as it is.
        secrets: values that are never stored, by name. On `resume`, the values are restored from this mapping and from
            the environment.
        key: the key of an encrypted file, a passphrase or 32 bytes; by default the environment variable `SMOLMEM_KEY`.
            A new file is then encrypted. Needs the encrypting build of apsw.

    Raises:
        StoreError: if the file cannot be used; the message says why and what to do.
    """

    _operations: Operations

    def __init__(
        self,
        url: str | os.PathLike[str] = "smolmem.db",
        *,
        scope: str = "default",
        durability: Durability = "full",
        strict: bool = False,
        embedder: EmbedderChoice = None,
        vectors: str | None = None,
        retain: Mapping[str, timedelta] | None = None,
        key: str | bytes | None = None,
        redact: Redact = True,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        if durability not in ("full", "normal"):
            raise InvalidArgument(f"durability is 'full' or 'normal', not {durability!r}.")
        self._bounds = scope_filter(scope)
        self.scope = scope
        self.strict = strict
        self._retain = check_retention(retain or {})
        self._store = open_store(url, durability, key)
        try:
            named = {**_passphrase(key), **(secrets or {})}
            redactor = Redactor(fingerprint_key(self._store), redact, named, os.environ)
            self._journal = Journal(self._store, redactor)
            self._recall = RecallEngine(self._journal, embedder, vectors)
        except BaseException:
            self._store.close()
            raise
        self._operations = Operations(self._journal, self._recall, self._attach, self._bounds)
        self._live_traces = LiveTraces(self._journal)
        self._failures = Failures()
        self._recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()
        self._apply_retention()

    def _apply_retention(self) -> None:
        """Erases runs that are past their retention time; a failure does not keep the memory from opening."""
        try:
            if self._retain:
                self.prune()
            if self._journal.unfinished_erases():
                log.warning(
                    "smolmem: an erase of %s was not finished, and the file may still hold erased bytes: run "
                    "`smolmem erase --finish`.",
                    self._store.url,
                )
        except SmolmemError as error:
            log.warning("smolmem could not erase runs that are past their retention time. %s", error)

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
        trace: str | None = None,
        tags: Iterable[str] | None = None,
    ) -> Agent:
        """Records an agent, and the agents it manages, and returns the agent.

        From now on every step is on disk before the next one begins. Steps that the agent has already are recorded,
        too.

        Args:
            agent: the agent.
            scope: another scope than this memory's.
            recall: how many relevant memories the agent is reminded of at each task, in one quoted message; 0 for none.
            views: what its model is shown of the memory, from `smolmem.views`, in order; the record keeps everything.
            watch: rules over its steps; steps of earlier runs count, too.
            tools: give the agent the tools `recall_memory`, `remember` and `forget`, and a code agent also `memory`
                in its code.
            trace: send its runs, while they are recorded, to this collector of traces; see `trace()`. The agent never
                waits for the collector.
            tags: words to find its runs by, as in `memory.runs(tag="release-41")`; see also `Run.tag`.

        Raises:
            InvalidArgument: if the agent is attached to another `Memory` or scope, or a view cannot work.
        """
        reminders = None if recall is None else check_count(recall, "recall")
        recorder = self._attach(agent, None if scope is None else check_scope(scope))
        if scope not in (None, recorder.scope):
            raise InvalidArgument(f"this agent is attached with the scope {recorder.scope!r}: detach it first.")
        access, rules, traced = self._attachments(recorder)
        if views is not None:
            from smolmem.agents.prompting.preview import set_views

            set_views(recorder, views)
        if watch is not None:
            rules.set(watch)
        if reminders is not None:
            access.remind(reminders)
        if tools:
            access.give_tools()
        if trace is not None:
            traced.send_to(trace)
        if tags is not None:
            recorder.runs.tags = check_tags(tags)
        return agent

    def _attachments(self, recorder: Recorder) -> tuple[MemoryAccess, AttachedRules, AttachedTrace]:
        if recorder.attachments is None:
            access = MemoryAccess(recorder, self._recall, self._journal)
            rules = AttachedRules(recorder, self._journal)
            recorder.attachments = access, rules, AttachedTrace(recorder, self._live_traces)
        attachments: tuple[MemoryAccess, AttachedRules, AttachedTrace] = recorder.attachments
        return attachments

    def _attach(self, agent: MultiStepAgent, scope: str | None = None) -> Recorder:
        if not isinstance(agent, MultiStepAgent):
            raise InvalidArgument(f"a smolagents agent is needed, such as a CodeAgent, not {type(agent).__name__}.")
        recorder = self._recorder(agent)
        if recorder is None:
            recorder = Recorder(
                agent, self._journal, self._scope_to_write(scope), strict=self.strict, failures=self._failures
            )
            recorder.on_run_end.append(self._recall.recorded)
            self._recorders.add(recorder)
        for managed in agent.managed_agents.values():
            if isinstance(managed, MultiStepAgent):
                self._attach(managed, recorder.scope).runs.parents.add(recorder.runs)
        return recorder

    def _recorder(self, agent: MultiStepAgent) -> Recorder | None:
        recorder = recorder_of(agent)
        if recorder is None or recorder in self._recorders:
            return recorder
        raise InvalidArgument("this agent is attached to another Memory: detach it there first.")

    def detach(self, agent: Agent) -> Agent:
        """Stops recording an agent and the agents it manages, and undoes all patches; the record stays."""
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

    def _leave_sessions(self, sessions: Collection[str]) -> None:
        self.flush()
        for recorder in list(self._recorders):
            if recorder.steps.session.row["id"] in sessions:
                recorder.agent.memory.reset()

    def flush(self) -> None:
        """Writes everything that is not written yet, including edits deep inside a step.

        Raises:
            StoreError: if it cannot be written.
        """
        for recorder in list(self._recorders):
            recorder.steps.flush()

    # --- continuing ------------------------------------------------------------------------------------------------

    def resume(
        self,
        agent: MultiStepAgent,
        run: Run | str | None = None,
        *,
        unknown: Unknown = "raise",
        trust: bool = False,
        placeholders: bool = False,
    ) -> Any:
        """Continues a run that was interrupted, in this or another process, and returns its answer.

        Make the agent as it was, with the same tools. The run continues with the same context, step numbers, budget and
        variables. A step that was interrupted is finished, not repeated: the model is not asked again, and calls that
        ended return their recorded results.

        Args:
            agent: the agent.
            run: the run; by default this agent's newest run that is not finished and not imported.
            unknown: what to do about a tool call that was interrupted: `raise`, `rerun` it, or `skip` it. A tool with
                `safe_to_repeat = True` is always called again.
            trust: resume an imported run: its recorded code is run in this process.
            placeholders: resume although this process lacks secrets that were not stored: the agent sees placeholders.

        Raises:
            NotFound: if there is no such run.
            CannotResume: if the run is finished, in use elsewhere, another agent's, or needs a secret.
            UnknownOutcome: if it is unknown whether a tool was called.
        """
        from smolmem.agents.resume import drain

        return drain(self._resume(agent, run, unknown, trust=trust, placeholders=placeholders))

    def _resume(
        self,
        agent: MultiStepAgent,
        run: Run | str | None,
        unknown: Unknown,
        *,
        trust: bool = False,
        placeholders: bool = False,
    ) -> Resumed:
        chosen = self._newest_unfinished(agent) if run is None else self.run(run)
        return self._operations.start_resume(chosen, agent, unknown, trust=trust, placeholders=placeholders)

    def _newest_unfinished(self, agent: MultiStepAgent) -> Run:
        recorder, name = self._attach(agent), agent_name(agent)
        latest = [run for run in self._journal.latest_runs(recorder.scope, name) if run.parent is None]
        for run in latest:
            if run.status in ("interrupted", "failed") and not run.imported:
                return self._operations.bind(run)
        in_use = "".join(f" Note: {self._journal.in_use(run.id)}" for run in latest[:1] if run.status == "running")
        raise NotFound(f"no unfinished run of {name!r} in {self._store.url}: memory.runs() lists all runs.{in_use}")

    def stepwise(
        self, agent: MultiStepAgent, task: str | None = None, *, unknown: Unknown = "raise", **options: Any
    ) -> Stepwise:
        """Runs an agent one step at a time; without a task, continues its newest run that is not finished.

        Yields each step when it is done. Stop at any time: what is done is recorded, and the run can be continued
        later.
        """
        self.attach(agent)
        if task is not None:
            return stepwise(agent, task, **options)
        resumed = self._resume(agent, None, unknown)
        return Stepwise(agent, iter(resumed.events or ()), resumed.answer)

    # --- prompts and rules -----------------------------------------------------------------------------------------

    def preview(self, agent: MultiStepAgent, task: str | None = None) -> Preview:
        """What the agent's model would be sent next, and what its views trim; nothing is sent or written.

        Args:
            agent: an attached agent.
            task: preview the first prompt of `agent.run(task)` instead of the next one; without reminders.
        """
        from smolmem.agents.prompting.preview import preview

        recorder = self._recorder(agent)
        if recorder is None:
            raise InvalidArgument("preview() takes an attached agent: memory.attach(agent, views=[…]) comes first.")
        return preview(recorder, check_text(task, "task"))

    def inject(
        self,
        agent: MultiStepAgent,
        what: Any,
        *,
        title: str | None = None,
        expires: Time | timedelta | None = None,
        tokens: int = TOKENS,
    ) -> Injection:
        """Shows an agent a text, with its origin: now, and at the beginning of each run until it is detached.

        Args:
            agent: the agent.
            what: a text, a smolagents step, a note, a recollection, a run, another agent (what is in its memory), or a
                list of these.
            title: a title for the text, such as `known issue`, `baseline` or `maintenance`.
            expires: until when: a time, or a timedelta from now.
            tokens: how much of a run, or of an agent's memory, is shown at most.

        Returns:
            The injection; `withdraw()` takes it back.
        """
        until, budget = to_deadline(expires), check_count(tokens, "tokens")
        named = check_text(title, "title")
        recorder = self._attach(agent)
        text, about, origin, sources = injectable(what, budget, self._recorded_ids)
        return inject(recorder, text, named or about, origin, until, sources)

    def _recorded_ids(self, steps: Sequence[Any]) -> list[int]:
        """The ids of those of some live steps that attached agents have recorded."""
        known = {id(entry.step): entry.id for recorder in self._recorders for entry in recorder.steps.session.entries}
        return [known[id(step)] for step in steps if id(step) in known]

    def backtest(
        self,
        rule: Watch,
        *,
        scope: str | None = None,
        agent: str | None = None,
        run: Run | str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        limit: int = 10_000,
    ) -> Backtest:
        """When a rule would have fired on the newest `limit` recorded steps; the rule does not act."""
        scopes, filters = self._step_filters(scope, run, agent, since, until)
        found = recorded_steps(self._journal, scopes, **filters, limit=check_count(limit))
        return backtest(rule, [step for step in reversed(found) if step.row["kind"] in rule.kinds])

    # --- maintenance -----------------------------------------------------------------------------------------------

    def verify(self) -> Report:
        """Checks that everything is stored as it was written; the report names every difference."""
        from smolmem.store.verify import verify

        return verify(self._journal)

    def stats(self) -> Stats:
        """How much is stored, and how many writes failed since this `Memory` was opened."""
        from smolmem.store.verify import stats

        return stats(self._journal, self._failures.total)

    def doctor(self) -> Diagnosis:
        """Finds problems of the file, its environment and its use; changes nothing."""
        from smolmem.doctor import examine

        return examine(self._journal)

    def scoped(self, scope: str) -> Memory:
        """The same memory, bounded by another scope: one object for each user of one open file."""
        other = copy(self)
        other.scope, other._bounds = scope, scope_filter(scope)
        other._operations = Operations(self._journal, self._recall, other._attach, other._bounds)
        return other

    def backup(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Copies the whole file while agents continue to write; the copy is complete or does not exist.

        The copy of an encrypted file is encrypted with the same key.
        """
        self.flush()
        self._store.backup(path, progress)

    def close(self) -> None:
        """Writes what is left and closes the file; attached agents continue unrecorded.

        At the end of a `with` block, steps that cannot be written are logged instead, unless the memory is strict: the
        agent's answer must not be lost with them.

        Raises:
            StoreError: if something cannot be written; the file is closed nevertheless.
        """
        failed: StoreError | None = None
        try:
            for recorder in list(self._recorders):
                try:
                    self._release(recorder)
                except StoreError as error:
                    failed = failed or error
                    recorder.steps.session.close()
                    recorder.patches.close()
        finally:
            self._live_traces.close()
            self._recall.close()
            self._journal.close()
        if failed is not None:
            raise failed

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.close()
        except StoreError as error:
            if self.strict:
                raise
            log.warning("smolmem could not write the last steps before it was closed, and they are lost. %s", error)

    def __repr__(self) -> str:
        return f"Memory({self._store.url!r}, scope={self.scope!r})"


def _passphrase(key: str | bytes | None) -> dict[str, str]:
    """The key of the store as a named secret: an agent may print its environment."""
    given = os.environ.get(KEY_VARIABLE) if key is None else key
    return {KEY_VARIABLE: given} if isinstance(given, str) and len(given) >= SHORTEST else {}
