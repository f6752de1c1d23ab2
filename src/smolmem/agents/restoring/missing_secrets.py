"""Finds secrets that a run needs, that were not stored, and that this process does not have.

The task, the agent's own words, code and calls, and its variables must be exact for a run to continue. A secret that is
only in an observation, such as the sample key of a web page, is read by the model and used by no code: it is logged,
and its placeholder stays.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from smolmem.core.errors import CannotResume
from smolmem.core.redaction import Known, Secret
from smolmem.core.rows import StoredSession
from smolmem.core.values import Run
from smolmem.store.journal import Journal

log = logging.getLogger("smolmem")

_READ_ONLY = {"observations", "error", "system_prompt"}
"""The fields of a step that only a model reads."""


def check_secrets(journal: Journal, run: Run, stored: StoredSession, known: Known, *, refuse: bool) -> None:
    """Checks for missing secrets, also in unfinished runs of managed agents.

    Raises:
        CannotResume: if the run needs a missing secret, and `refuse` is true.
    """
    needed: dict[Secret, list[str]] = {}
    for secret, place, matters in _missing(journal, run, stored, known):
        if matters and refuse:
            needed.setdefault(secret, []).append(place)
        else:
            log.warning("smolmem: run %s: the secret %s (%s) is a placeholder.", run.id[:8], secret, place)
    if needed:
        listed = "; ".join(f"{secret} ({', '.join(dict.fromkeys(places))})" for secret, places in needed.items())
        first = next(iter(needed)).fingerprint
        raise CannotResume(
            f"run {run.id[:8]} needs secrets that were not stored and that this process does not have: {listed}. Set "
            f"the environment variables that held them, or open Memory(…, secrets={{{first!r}: value}}); "
            "resume(agent, placeholders=True) continues without them."
        )


def _missing(journal: Journal, run: Run, stored: StoredSession, known: Known) -> Iterator[tuple[Secret, str, bool]]:
    for entry in stored.entries:
        found = {} if entry.lacking is None else journal.missing_secrets(entry.lacking, known)
        for field, secrets in found.items():
            matters = field not in _READ_ONLY
            yield from ((secret, f"{_name(entry.step)}, {field.replace('_', ' ')}", matters) for secret in secrets)
    if stored.snapshot is not None:
        for kind, secrets in journal.missing_variables(stored.snapshot, known).items():
            yield from ((secret, kind, True) for secret in secrets)
    for call in (call for call in stored.calls if call.turn >= stored.done):
        for content in call.contents if call.kind == "tool" else call.contents[1:]:  # a prompt is only read
            found = {} if content is None else journal.missing_secrets(content, known)
            what = f"the interrupted call of {call.name}" if call.kind == "tool" else "the model's last answer"
            yield from ((secret, what, True) for secrets in found.values() for secret in secrets)
    for child in journal.called_by([run.id]):
        if child.status != "finished":
            yield from _missing(journal, child, journal.session(child.session, child.id), known)


def _name(step: Any) -> str:
    number = getattr(step, "step_number", None)
    return "the task" if hasattr(step, "task") else "a plan" if number is None else f"step {number}"
