"""Writes runs that another tool recorded to a store: all of them, or none.

Readers of files make `ForeignRun`s: smolagents steps, and known calls. A run's id is a hash of its source, so a run
that is imported again is recognised and left unchanged. Imported runs have the origin `import` and low trust.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from smolagents import utils
from smolagents.memory import SystemPromptStep
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import AgentLogger, LogLevel

from smolmem.core import prompts
from smolmem.core.encoding import step_facts
from smolmem.core.encoding.codec import Encoded
from smolmem.core.errors import SmolmemError
from smolmem.core.rows import NO_RESULT, Change, RunRow, SessionRow, SharedPrompt, Status
from smolmem.core.smolagents_texts import managed_task
from smolmem.core.text import storable
from smolmem.core.values import Failure, is_time
from smolmem.store.base import Progress, Row
from smolmem.store.contents import with_hash
from smolmem.store.journal import Journal
from smolmem.store.writer import IMPORTED
from smolmem.transfer.load import Imported

_ERRORS = {name: getattr(utils, name) for name in dir(utils) if name.startswith("Agent") and name.endswith("Error")}
_ROLES = {role.value: role for role in MessageRole} | {
    "tool": MessageRole.TOOL_RESPONSE,
    "function": MessageRole.TOOL_RESPONSE,
    "human": MessageRole.USER,
    "ai": MessageRole.ASSISTANT,
    "model": MessageRole.ASSISTANT,
    "developer": MessageRole.SYSTEM,
}
_QUIET = AgentLogger(level=LogLevel.OFF)


class Unreadable(SmolmemError):
    """A file that cannot be imported; nothing was imported."""


@dataclass(frozen=True)
class ForeignCall:
    """A call of a tool, or an answer of a model: `turn` is how many steps the run had when it was made."""

    turn: int
    name: str
    arguments: Any
    outcome: Any
    began: float
    ended: float | None
    failed: bool = False
    kind: Literal["model", "tool"] = "tool"


@dataclass(frozen=True)
class ForeignRun:
    """A run of another tool; `key` and `session` identify it there."""

    key: str
    session: str
    agent: str
    agent_type: str
    steps: Sequence[Any]
    status: Status
    began: float
    ended: float | None
    answer: Any = None
    failure: Failure | None = None
    parent: str | None = None
    parent_step: int | None = None
    model: str | None = None
    max_steps: int | None = None
    tags: Sequence[str] = ()
    system: str | None = None
    calls: Sequence[ForeignCall] = field(default=())

    @property
    def task(self) -> str:
        """The task, or a word for it."""
        return next((step.task for step in self.steps if hasattr(step, "task")), "(imported)")


def write_runs(
    journal: Journal, source: str, runs: Sequence[ForeignRun], scope: str, progress: Progress | None
) -> Imported:
    """Writes runs to a scope, in one transaction; a run that the store has already is not changed."""

    def write() -> _Writing:
        writing = _Writing(journal, scope)
        for number, run in enumerate(runs):
            writing.put(run)
            if progress is not None:
                progress(number + 1, len(runs))
        return writing

    done = journal.store.transact(write)
    return Imported(source, dict(done.added), dict(done.skipped), 0)


class _Writing:
    """One import."""

    def __init__(self, journal: Journal, scope: str) -> None:
        # with its own caches: a rollback leaves nothing behind
        self._journal = Journal(journal.store, journal.redactor)
        self._scope = scope
        self.added: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self._ends: dict[str, int] = {}
        self._parts: dict[str, int] = {}
        self._prompt: tuple[int, list[int]] = (0, [])

    def put(self, run: ForeignRun) -> None:
        """Writes one run."""
        row = self._row(run)
        if self._journal.store.rows("run_row", {"id": row["id"]}):
            self.skipped["run"] += 1
            return
        session = self._session(run, row)
        self._put_run(row)
        if run.system is not None:
            self._step(session, row["id"], SystemPromptStep(run.system), None, run.began)
        for step in run.steps:
            end = getattr(getattr(step, "timing", None), "end_time", None)
            at = float(end) if isinstance(end, (int, float)) else run.began
            self._step(session, row["id"], step, self._ends[session], _time(at))
            self._ends[session] += 1
            self.added["step"] += 1
        for call in run.calls:
            self._call(row["id"], call)
        results = {"answer": run.answer, "failure": None if run.failure is None else vars(run.failure)}
        kept = {name: self._keep(value) for name, value in results.items() if value is not None}
        self._put_run({**row, **kept, **self._journal.run_counts(row["id"])})
        self.added["run"] += 1

    def _row(self, run: ForeignRun) -> RunRow:
        clean = self._journal.redactor.text
        return {
            "id": self._id("run", run.key),
            "session": self._id("session", run.session),
            "scope": self._scope,
            "agent": clean(storable(run.agent))[:200] or "agent",
            "agent_type": storable(run.agent_type)[:200],
            "title": clean(storable(run.task if run.parent is None else managed_task(run.task)))[:200],
            "status": run.status,
            "began": _time(run.began),
            "ended": None if run.ended is None else _time(run.ended),
            "parent": None if run.parent is None else self._id("run", run.parent),
            "parent_step": run.parent_step,
            "fork_of": None,
            "model": None if run.model is None else clean(storable(run.model))[:200],
            "smolagents": "imported",
            "max_steps": run.max_steps,
            "writer": IMPORTED,
            **NO_RESULT,
            "tags": json.dumps([clean(storable(tag))[:100] for tag in run.tags]),
        }

    def _id(self, what: str, key: str) -> str:
        text = f"{what} {self._scope} {key}".encode("utf-8", "replace")
        return hashlib.blake2b(text, digest_size=8).hexdigest()

    def _put_run(self, row: RunRow | Row) -> None:
        self._journal.store.do("put_run", with_hash("run", row))

    def _session(self, run: ForeignRun, row: RunRow) -> str:
        session = row["session"]
        if session in self._ends:
            return session
        if self._journal.store.rows("session_row", {"id": session}):
            self._ends[session] = len(self._journal.timeline(self._journal.session_row(session)).steps)
            return session
        made: SessionRow = {
            "id": session,
            "scope": self._scope,
            "agent": row["agent"],
            "began": run.began,
            "fork_of": None,
            "fork_at": None,
        }
        self._journal.add("session", made)
        self.added["session"] += 1
        self._ends[session] = 0
        return session

    def _step(self, session: str, run: str, step: Any, position: int | None, at: float) -> None:
        encoded = self._journal.encode(step)
        rendered = prompts.encoded_messages(prompts.rendered_messages(step), step, encoded, self._journal.encode)
        prompt = self._shared(encoded)
        change = Change(
            act="insert",
            run=run,
            at=at,
            position=position,
            encoded=encoded,
            facts=step_facts.stored_facts(step, encoded),
            rendered=rendered,
            prompt=prompt,
        )
        saved = self._journal.apply(session, change)
        if prompt is not None and saved.prompt is not None:
            new = zip(prompt.suffix, saved.suffix, strict=True)
            self._parts.update((part.key, number) for part, number in new if isinstance(part, Encoded))
            self._prompt = saved.prompt, [*self._prompt[1][: prompt.keep], *saved.suffix]

    def _shared(self, encoded: Encoded) -> SharedPrompt | None:
        """The prompt of a step as the beginning of the prompt before, and the rest."""
        if not encoded.model_input:
            return None
        encoded_messages = [self._journal.encode([message]) for message in encoded.model_input]
        parts = [self._parts.get(part.key, part) for part in encoded_messages]
        return prompts.share(parts, len(parts), [self._prompt] if self._prompt[0] else [])

    def _call(self, run: str, call: ForeignCall) -> None:
        row = {
            "run": run,
            "turn": call.turn,
            "kind": call.kind,
            "name": storable(call.name)[:200],
            "arguments": self._keep(call.arguments),
            "began": _time(call.began),
            "ended": None if call.ended is None else _time(call.ended),
            "failed": int(call.failed),
            "outcome": None if call.ended is None else self._keep(call.outcome),
            "web": None,
        }
        self._journal.add("call", row)
        self.added["call"] += 1

    def _keep(self, value: Any) -> int:
        return self._journal.keep(self._journal.encode(value))


def _time(seconds: float) -> float:
    if not is_time(seconds):
        raise Unreadable(f"a time is out of range: {seconds}. Nothing was imported.")
    return seconds


# --- for the readers of files -----------------------------------------------------------------------------------------


def role_of(word: Any) -> MessageRole:
    """The role that a word names, in any spelling; a user's for an unknown word."""
    plain = str(word).rpartition(".")[2].lower().replace("_", "-")
    return _ROLES.get(plain, MessageRole.USER)


def tool_call(name: str, arguments: Any, id: str) -> ChatMessageToolCall:
    """A call that a model asks for; arguments may be JSON text."""
    given = parse_json(arguments) if isinstance(arguments, str) else arguments
    function = ChatMessageToolCallFunction(arguments=arguments if given is None else given, name=name)
    return ChatMessageToolCall(function, id, "function")


def agent_error(name: str, message: str) -> Exception:
    """An error of smolagents by the name of its class; nothing is logged."""
    return _ERRORS.get(name, utils.AgentError)(message, _QUIET)  # type: ignore[no-any-return]


def parse_json(text: Any) -> Any:
    """The value of a JSON text; None if it is not JSON."""
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
