"""The methods of `Run`, `Step` and `Note`: each is a few lines that call the package that does the work.

A value that comes from a `Memory` holds a reference to these operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from smolagents import MultiStepAgent

from smolmem.agents.ledger import Unknown
from smolmem.agents.recorder import Recorder, recorder_of
from smolmem.core.arguments import ScopeFilter, check_choice, check_count, check_tags
from smolmem.core.display import draw
from smolmem.core.errors import CannotResume, InvalidArgument
from smolmem.core.values import Diff, Event, Note, Revision, Run, Step
from smolmem.queries import Lookup, Value
from smolmem.recall.engine import RecallEngine
from smolmem.store import forks
from smolmem.store.journal import Journal

if TYPE_CHECKING:  # imported by the methods that need them: most programs need few
    from smolmem.agents.rerun import Rerun
    from smolmem.agents.restoring.interpreter import Restored
    from smolmem.agents.resume import Resumed
    from smolmem.policies.transcript import Messages


class Operations(Lookup):
    """The operations of one `Memory`; `attach` records an agent in a scope, and returns its recorder."""

    def __init__(
        self,
        journal: Journal,
        recall: RecallEngine,
        attach: Callable[[MultiStepAgent, str | None], Recorder],
        bounds: ScopeFilter,
    ) -> None:
        super().__init__(journal, bounds)
        self._recall = recall
        self._attach = attach

    def bind(self, value: Value) -> Value:
        """Gives a value, and the steps of a run, their operations."""
        if isinstance(value, Run):
            load = value._load_steps
            return replace(value, _operations=self, _load_steps=lambda: self.bind_all(load()))
        bound = copy(value)  # quicker than `replace`, and lists have many steps
        object.__setattr__(bound, "_operations", self)
        return bound

    # --- continuing a run ------------------------------------------------------------------------------------------

    def start_resume(
        self, run: Run, agent: MultiStepAgent, unknown: Unknown, *, trust: bool, placeholders: bool
    ) -> Resumed:
        """Makes an agent ready to continue a run."""
        from smolmem.agents.resume import Resumption

        _refuse_imported(run, "resume", trust=trust)
        check_choice(unknown, ("raise", "rerun", "skip"), "unknown")
        recorder = self._attach(agent, run.scope)
        if run.scope != recorder.scope:
            raise CannotResume(
                f"run {run.id[:8]} is of the scope {run.scope!r}, and this agent is attached with "
                f"{recorder.scope!r}: detach it first."
            )
        return Resumption(
            recorder=recorder,
            journal=self._journal,
            run=run,
            recorder_of=lambda managed: self._attach(managed, recorder.scope),
            unknown=unknown,
            placeholders=placeholders,
        ).start()

    def resume(self, run: Run, agent: MultiStepAgent, unknown: Unknown, *, trust: bool, placeholders: bool) -> Any:
        """See `Run.resume`."""
        from smolmem.agents.resume import drain

        return drain(self.start_resume(run, agent, unknown, trust=trust, placeholders=placeholders))

    def restore(self, run: Run, agent: MultiStepAgent, step: int | None, *, trust: bool) -> Restored:
        """See `Run.restore`."""
        from smolmem.agents.resume import restore

        _refuse_imported(run, "restore", trust=trust)
        return restore(self._attach(agent, None), self._journal, run, step)

    def rerun(self, run: Run, agent: MultiStepAgent, *, trust: bool) -> Rerun:
        """See `Run.rerun`."""
        from smolmem.agents.rerun import rerun

        _refuse_imported(run, "rerun", trust=trust)
        if recorder_of(agent) is not None:
            raise InvalidArgument("rerun() takes an agent that is not attached: make a new one, or detach it first.")
        task = next((step for step in run.steps if step.kind == "task"), None)
        if task is None:
            raise CannotResume(f"run {run.id[:8]} has no task any more: it was erased, or taken off the list.")
        began = self._journal.step_events(task)[0]["id"]
        secrets = self._journal.redactor.learn()
        variables = self._journal.session(run.session, run.id, until=began, secrets=secrets).variables()
        agent.state.update((variables or {}).get("state", {}))
        return rerun(agent, run, self._journal.calls(run.id, secrets), self._journal)

    # --- reading and changing a run --------------------------------------------------------------------------------

    def replay(self, run: Run, *, detailed: bool, prices: tuple[float, float] | None, console: Any) -> None:
        """See `Run.replay`."""
        draw("replay", run, console or Console(), detailed=detailed, prices=prices)

    def tag(self, run: Run, *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Run:
        """See `Run.tag` and `Run.untag`."""
        known = self.run(run.id).tags
        added, removed = check_tags(add), check_tags(remove, known)
        if added:
            check_tags((*known, *added), known)
        return self.bind(self._journal.tag(run.id, added, removed))

    def fork(self, run: Run, step: int | None) -> Run:
        """See `Run.fork`."""
        return self.bind(forks.fork(self._journal, run, step))

    def diff(self, run: Run, other: Run | str) -> Diff:
        """See `Run.diff`."""
        return forks.diff(run, self.run(other))

    def to_messages(self, run: Run, tokens: int | None) -> Messages:
        """See `Run.to_messages`."""
        from smolmem.policies.transcript import to_messages

        return to_messages(run.steps, None if tokens is None else check_count(tokens, "tokens"))

    def distill(self, run: Run, model: Any) -> list[Note]:
        """See `Run.distill`."""
        from smolmem.recall.distill import distill

        recalled = self._journal.reminders.lines_recalled_in(run.id)
        return self.bind_all(distill(self._recall.notes, run, model, recalled))

    def events(self, run: Run) -> list[Event]:
        """See `Run.events`."""
        return self._journal.events(run)

    def as_of(self, run: Run, event: int) -> list[Any]:
        """See `Run.as_of`."""
        return [entry.step for entry in self._journal.session(run.session, run.id, until=event).entries]

    # --- steps and notes -------------------------------------------------------------------------------------------

    def edit(self, step: Step, changes: dict[str, Any]) -> Step:
        """See `Step.edit`."""
        return self.bind(forks.edit(self._journal, step, changes))

    def step_history(self, step: Step) -> list[Revision]:
        """See `Step.history`."""
        return forks.revisions(self._journal, step)

    def note_history(self, note: Note) -> list[Note]:
        """See `Note.history`."""
        return self.bind_all(self._recall.notes.history(note))


def _refuse_imported(run: Run, act: str, *, trust: bool) -> None:
    """Refuses to run the code of an imported run, unless the user trusts it."""
    if run.imported and not trust:
        raise CannotResume(
            f"run {run.id[:8]} was imported, and {act}() would run its recorded code in this process: if you trust "
            f"its source, call {act}(…, trust=True)."
        )
