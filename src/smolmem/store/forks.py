"""Forks, edits and differences of stored runs.

A fork is two rows: a session that begins as another was after some event, and a run of it. Nothing is copied. An edit
is a new revision of a step; the earlier ones stay.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import Any

from smolmem.core.encoding import step_facts
from smolmem.core.errors import CannotResume, InvalidArgument
from smolmem.core.prompts import common_length, encoded_messages, rendered_messages
from smolmem.core.rows import Batch, Change, RunRow, SessionRow
from smolmem.core.values import Diff, Revision, Run, Step, when
from smolmem.store.journal import Journal
from smolmem.store.writer import IMPORTED


def fork(journal: Journal, run: Run, step: int | None) -> Run:
    """A new run that shares another's past up to a step number; the fork of an imported run is imported, too."""
    if step is None:
        _refuse_interrupted(journal, run)
    origin = journal.session_row(run.session)
    now = time.time()
    session: SessionRow = {
        **origin,
        "id": secrets.token_hex(8),
        "began": now,
        "fork_of": run.session,
        "fork_at": journal.last_event(origin, journal.event_after_step(run, step)),
    }
    forked: RunRow = {
        **journal.run_row(run.id),
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
        "writer": IMPORTED if run.imported else journal.writer,
    }
    journal.save(Batch(session, new_session=True, runs=[forked]))
    return journal.run(forked["id"])


def _refuse_interrupted(journal: Journal, run: Run) -> None:
    stored = journal.session(run.session, run.id)
    if any(call.kind == "tool" for call in stored.calls if call.turn >= stored.done):
        raise CannotResume(
            f"run {run.id[:8]} was interrupted inside a step that had called tools: resume it, or fork it at a step "
            "(step=…)."
        )


def edit(journal: Journal, step: Step, changes: dict[str, Any]) -> Step:
    """Writes a new revision of a stored step.

    Raises:
        InvalidArgument: if the step has no such field.
        CannotResume: if a living process works on the run.
    """
    if journal.run(step.run).status == "running":
        raise CannotResume(f"run {step.run[:8]} is running: edit agent.memory.steps in the process that runs it.")
    live = step.to_smolagents()
    unknown = sorted(set(changes) - set(vars(live)))
    if unknown:
        fields = ", ".join(vars(live))
        raise InvalidArgument(f"{step.kind} steps have no {', '.join(unknown)}: the fields are {fields}.")
    before = journal.encode(live).key
    vars(live).update(changes)
    encoded = journal.encode(live)
    if encoded.key == before:
        return step
    prompt = None if encoded.model_input is None else journal.number(encoded.model_input)
    facts = step_facts.stored_facts(live, encoded)
    change = Change(
        "revise",
        step.run,
        time.time(),
        None,
        step.id,
        encoded,
        facts,
        encoded_messages(rendered_messages(live), live, encoded, journal.encode),
        prompt,
    )
    journal.save(Batch(journal.session_row(step.session), new_session=False, changes=[change]))
    columns: dict[str, Any] = {name: value for name, value in facts.items() if name != "tools"}
    return replace(step, **columns, revision=step.revision + 1, _load=lambda: live)


def revisions(journal: Journal, step: Step) -> list[Revision]:
    """Every revision of a step, the oldest first."""
    return [
        Revision(when(event["at"]), event["id"], lambda event=event: journal.step_of(event))  # type: ignore[misc]
        for event in journal.step_events(step)
        if event["record"] is not None
    ]


def diff(left: Run, right: Run) -> Diff:
    """How the steps of two runs differ; times do not count."""
    ours, theirs = left.steps, right.steps
    common = common_length([_done(step) for step in ours], [_done(step) for step in theirs])
    return Diff(common, ours[common:], theirs[common:])


def _done(step: Step) -> tuple[Any, ...]:
    return step.kind, step.number, step.text, step.error, step.tools
