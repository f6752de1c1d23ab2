"""Other ways from a stored run: into another agent, into a branch, into a corrected past.

A fork is two rows: a session that begins as another was at some event, and a run of it. Nothing is copied.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from smolagents import CodeAgent

from smolmem.errors import BadValue, CannotResume
from smolmem.record import codec, writer
from smolmem.record.recorder import Recorder
from smolmem.record.session import shown
from smolmem.record.values import Batch, Change, Run, RunRow, SessionRow, Step, when
from smolmem.run import interpreter
from smolmem.run.interpreter import Restored
from smolmem.store.journal import Journal

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Revision:
    """One version of a step: when it was written, and the step as it was then."""

    at: datetime
    event: int
    _load: Callable[[], Any]

    def to_smolagents(self) -> Any:
        """The live smolagents object."""
        return self._load()


@dataclass(frozen=True)
class Diff:
    """Where two runs part: so many steps in common, then these."""

    common: int
    left: list[Step]
    right: list[Step]

    def __bool__(self) -> bool:
        return bool(self.left or self.right)

    def __rich__(self) -> RenderableType:
        from smolmem.record import show

        return show.diff(self.common, self.left, self.right)


def restore(recorder: Recorder, journal: Journal, run: Run, at: int | None) -> Restored:
    """Puts a stored run's steps, state and variables into an agent, of its own kind or another."""
    agent = recorder.agent
    loaded = journal.session(run.session, run.id, journal.event_at(run, at))
    steps = [entry.step for entry in loaded.session.entries]
    loaded.session.close()
    agent.memory.reset()
    agent.memory.steps = [*steps, *agent.memory.steps]  # what stands on every list comes last
    if isinstance(agent, CodeAgent):
        agent.python_executor.send_tools({**agent.tools, **agent.managed_agents})
        return interpreter.restore(agent, loaded.past, loaded.kept)
    restored = interpreter.restore(agent, [], loaded.kept)
    left = sorted((loaded.kept or {}).get("variables", {}))
    return Restored(f"{type(agent).__name__} has no interpreter; its state is restored", left) if left else restored


def fork(journal: Journal, run: Run, at: int | None) -> Run:
    """A new run that shares another's past up to a step: two rows, no copies."""
    if at is None:
        _refuse_cut(journal, run)
    origin, row, newest = journal.end_of(run, journal.event_at(run, at))
    now = time.time()
    session: SessionRow = {
        **origin,
        "id": secrets.token_hex(8),
        "began": now,
        "fork_of": run.session,
        "fork_at": newest,
    }
    forked: RunRow = {
        **row,
        "id": secrets.token_hex(8),
        "session": session["id"],
        "status": "interrupted",
        "began": now,
        "ended": now,
        "parent": None,
        "parent_step": None,
        "fork_of": run.id,
        "answer": None,
        "failure": None,
        "writer": writer.me(),
    }
    journal.save(Batch(session, new_session=True, runs=[forked]))
    return journal.run(forked["id"])


def _refuse_cut(journal: Journal, run: Run) -> None:
    loaded = journal.session(run.session, run.id)
    loaded.session.close()
    if any(call.kind == "tool" for call in journal.calls(run.id, loaded.done)):
        raise CannotResume(
            f"run {run.id[:8]} was cut inside a step that had called tools: resume it, or fork it at a step (at=…)."
        )


def edit(journal: Journal, step: Step, changes: dict[str, Any]) -> Step:
    """Writes a new revision of a stored step; the earlier ones stay.

    Raises:
        BadValue: the step has no such field.
        CannotResume: a living process works on its run.
    """
    if journal.run(step.run).status == "running":
        raise CannotResume(f"run {step.run[:8]} is going on: edit agent.memory.steps where it runs.")
    live = step.to_smolagents()
    unknown = sorted(set(changes) - set(vars(live)))
    if unknown:
        raise BadValue(f"a {step.kind} step has no {', '.join(unknown)}; it has {', '.join(vars(live))}.")
    before = codec.encode(live).key
    vars(live).update(changes)
    encoded = codec.encode(live)
    if encoded.key == before:
        return step
    sent = None if encoded.sent is None else journal.number(encoded.sent)
    rendered, _ = shown(live)
    session = journal.session_row(step.session)
    change = Change("revise", step.run, time.time(), None, step.id, encoded, codec.facts(live), rendered, sent)
    journal.save(Batch(session, new_session=False, changes=[change]))
    facts: dict[str, Any] = {name: value for name, value in codec.facts(live).items() if name != "tools"}
    return replace(step, **facts, revision=step.revision + 1, _load=lambda: live)


def history(journal: Journal, step: Step) -> list[Revision]:
    """Every version of a step, the oldest first."""
    return [
        Revision(when(event["at"]), event["id"], lambda event=event: journal.step_of(event))  # type: ignore[misc]
        for event in journal.step_events(step)
        if event["record"] is not None
    ]


def diff(left: Run, right: Run) -> Diff:
    """Where two runs part, by what was done in them; when it was done does not count."""
    ours, theirs = left.steps, right.steps
    common = 0
    for mine, yours in zip(ours, theirs, strict=False):
        if _done(mine) != _done(yours):
            break
        common += 1
    return Diff(common, ours[common:], theirs[common:])


def _done(step: Step) -> tuple[Any, ...]:
    return step.kind, step.number, step.text, step.error, step.tools
