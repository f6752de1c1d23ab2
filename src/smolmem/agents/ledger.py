"""The ledger: model answers and tool calls, recorded before and after they happen.

A step is saved when it is done, and a process can die inside it: after the model has answered, after a tool has sent
the money. So the model's answer is recorded before it is used, and each tool call when it begins and when it ends. When
the run is resumed in another process, the model is not asked again, a call that ended returns its recorded result, and
a call that was interrupted is reported to have an unknown outcome.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Literal, TypeVar

from smolagents.models import ChatMessageStreamDelta, ChatMessageToolCallStreamDelta, agglomerate_stream_deltas

from smolmem.agents.active_runs import ActiveRuns, Turn
from smolmem.agents.failures import Failures
from smolmem.agents.restoring.known_classes import classes_of
from smolmem.core.encoding import codec, wire
from smolmem.core.encoding.codec import Encoded
from smolmem.core.encoding.instances import NotRestored
from smolmem.core.encoding.mutations import Outcome, mutable_parts
from smolmem.core.errors import TakenOver
from smolmem.core.fork_lock import ForkLock
from smolmem.core.rows import CallRow, LoadedOutcome, RecordedCall
from smolmem.core.text import storable
from smolmem.store.journal import Journal, RunNotSaved

T = TypeVar("T")


Unknown = Literal["raise", "rerun", "skip"]
"""How to handle a call of unknown outcome."""


class Diverged(BaseException):
    """An interrupted step that is being finished calls something else than it did; no agent may catch this."""


class Fenced(BaseException):
    """Another process has taken the run over; no agent may catch this, or it would continue."""

    def __init__(self, error: TakenOver) -> None:
        super().__init__(str(error))
        self.error = error


def declared(agent: Any, name: str, attribute: str) -> bool | None:
    """An attribute that a tool or managed agent declares, such as `safe_to_repeat`; None if it declares none.

    A managed agent can always be called again, because its run continues; so can `final_answer`, which has no effect.
    """
    if attribute == "safe_to_repeat" and (name == "final_answer" or name in agent.managed_agents):
        return True
    said = getattr(agent.tools.get(name) or agent.managed_agents.get(name), attribute, None)
    return said if isinstance(said, bool) else None


class Ledger:
    """The model and tool calls of one agent."""

    def __init__(
        self,
        agent: Any,
        journal: Journal,
        runs: ActiveRuns,
        asking: Callable[[Sequence[Any]], None],
        outgoing: Callable[[Any], Any],
        failures: Failures,
        *,
        strict: bool,
    ) -> None:
        """Records nothing yet.

        Args:
            agent: the agent.
            journal: where calls are recorded.
            runs: the runs of the agent.
            asking: notes the messages that a model is about to be given.
            outgoing: the last change to the messages that a model is sent.
            failures: counts failed writes.
            strict: do not make a tool call whose beginning cannot be recorded.
        """
        self._agent = agent
        self._journal = journal
        self._runs = runs
        self._asking = asking
        self._outgoing = outgoing
        self._failures = failures
        self._strict = strict
        self._lock = ForkLock()
        self._recorded: list[RecordedCall] = []
        self._in_order = True
        self._unknown: Unknown = "raise"
        self._replayed: Turn | None = None

    def expect(self, recorded: Sequence[RecordedCall], *, in_order: bool, unknown: Unknown) -> None:
        """Takes the calls that an earlier process recorded of the turn that is to be finished.

        Args:
            recorded: the calls.
            in_order: whether they must be made in the same order again, as in code.
            unknown: whether a call of unknown outcome ends the run, is made again, or is skipped.
        """
        self._recorded, self._in_order, self._unknown = list(recorded), in_order, unknown

    # --- the model -------------------------------------------------------------------------------------------------

    def generate(self, original: Callable[..., Any], messages: Sequence[Any], args: Any, kwargs: Any) -> Any:
        """The model's answer: the recorded one, or a new one that is recorded before it is used."""
        question = self._question(messages)
        recorded = self._take_answer(question)
        if recorded is not None:
            return recorded.result
        began = time.time()
        with unrecorded():
            answer = original(self._outgoing(messages), *args, **kwargs)
        self._answered(question, began, answer)
        return answer

    def stream(self, original: Callable[..., Any], messages: Sequence[Any], args: Any, kwargs: Any) -> Iterator[Any]:
        """The same for an answer that is streamed."""
        question = self._question(messages)
        recorded = self._take_answer(question)
        if recorded is not None:
            yield from recorded.result
            return
        began, deltas = time.time(), []
        stream = iter(original(self._outgoing(messages), *args, **kwargs))
        while True:
            with unrecorded():
                delta = next(stream, None)
            if delta is None:
                break
            deltas.append(delta)
            yield delta
        self._answered(question, began, _as_one(deltas))

    def _question(self, messages: Sequence[Any]) -> Encoded:
        """What is enough to recognise a prompt: its length, and the hash of its last message as it is stored."""
        self._asking(messages)
        last = self._encoded(messages[-1]) if messages else None
        record = wire.dumps([len(messages), last and last.key])
        return Encoded(record, wire.fingerprint(record), {})

    @property
    def is_replaying(self) -> bool:
        """Whether the model's answer of this turn is one that an earlier process recorded, and may have acted on."""
        return self._replayed is not None and self._replayed == self._runs.turn()

    def _take_answer(self, question: Encoded) -> RecordedCall | None:
        recorded = self._take("model", "", question)
        if recorded is not None:
            self._replayed = self._runs.turn()
        return recorded

    def _answered(self, question: Encoded, began: float, answer: Any) -> None:
        row, encoded = self._row("model", "", began), self._encoded(answer)
        if row is not None and encoded is not None:
            self._try(lambda: self._journal.begin_call({**row, "ended": time.time()}, question, encoded))

    # --- tools -----------------------------------------------------------------------------------------------------

    def tool(self, name: str, arguments: Any, act: Callable[[], Any], values: Sequence[Any] = ()) -> Any:
        """A tool's result: the recorded one, or the result of `act`, recorded before and after.

        Args:
            name: the tool.
            arguments: the arguments, by which a recorded call is recognised.
            act: makes the call.
            values: the objects that the tool is given, and may change.
        """
        row, given = self._row("tool", name, time.time()), self._encoded(arguments)
        if row is None or given is None:
            return act()
        recorded = self._take("tool", name, given)
        outcome = self._recorded_outcome(recorded)
        if outcome is not None:
            return self._play_back(name, outcome, values)
        if recorded is not None and not declared(self._agent, name, "safe_to_repeat"):
            if self._unknown == "skip":
                skipped = f"(The outcome of this call of {name} is unknown: {_why_unknown(recorded)}.)"
                self._ended(recorded.id, row, given, skipped)  # the same result again, should this process die, too
                return skipped
            if self._unknown == "raise":
                raise Diverged(f"the outcome of {name} is unknown: {_why_unknown(recorded)}")
        number = recorded.id if recorded is not None else self._begin(row, given)
        changes, caller = _Changes(values), self._journal.writer
        try:
            result = act()
        except Exception as error:
            if self._journal.writer == caller:
                self._ended(number, {**row, "failed": 1}, given, changes.with_result(error))
            raise
        if self._journal.writer == caller:  # a child that was forked during the call returns, too
            self._ended(number, row, given, changes.with_result(result))
        return result

    def _recorded_outcome(self, recorded: RecordedCall | None) -> LoadedOutcome | None:
        """How a recorded call ended; None if it did not end, or its outcome could not be stored."""
        with suppress(NotRestored):
            return recorded.loaded(classes_of(self._agent)) if recorded is not None and recorded.ended else None
        return None

    def _play_back(self, name: str, outcome: LoadedOutcome, values: Sequence[Any]) -> Any:
        try:
            return outcome.replay(values)
        except NotRestored:
            raise Diverged(f"{name} is given other objects than it was, and had changed them") from None

    def _begin(self, row: CallRow, given: Encoded) -> int | None:
        """Records that a call begins.

        Raises:
            StoreError: if that cannot be recorded, and the memory is strict: then the call is not made.
            Fenced: if another process has taken the run over: then the call is not made.
        """
        may_repeat = declared(self._agent, row["name"], "safe_to_repeat")
        try:
            return self._journal.begin_call(row, given, sync=not may_repeat)
        except TakenOver as error:
            raise Fenced(error) from error
        except Exception as error:
            self._count(error)
            if self._strict:
                raise
            if not may_repeat:
                self._failures.warn_of_call(row["name"])
            return None

    def _ended(self, number: int | None, row: CallRow, given: Encoded, outcome: Any) -> None:
        """Records how a call ended; all of the call, if its beginning could not be recorded."""
        encoded = self._encoded(outcome)
        if encoded is None:
            return
        ended: CallRow = {**row, "ended": time.time()}
        if number is None:
            self._try(lambda: self._journal.begin_call(ended, given, encoded))
        else:
            self._try(lambda: self._journal.end_call(number, ended, given, encoded))

    # --- recorded calls --------------------------------------------------------------------------------------------

    def _row(self, kind: Literal["model", "tool"], name: str, began: float) -> CallRow | None:
        turn = self._runs.turn()
        if turn is None:
            return None
        web = declared(self._agent, name, "reads_web") if kind == "tool" else None
        return {
            "run": turn.run,
            "turn": turn.number,
            "kind": kind,
            "name": self._stored_name(name),
            "began": began,
            "ended": None,
            "failed": 0,
            "web": None if web is None else int(web),
        }

    def _stored_name(self, name: str) -> str:
        """A model can call a tool that does not exist, by any text, or by none."""
        return self._journal.redactor.text(storable(str(name)))

    def _take(self, kind: str, name: str, asked: Encoded) -> RecordedCall | None:
        """The recorded call that is being made again, once; calls of earlier turns are dropped."""
        if not self._recorded:
            return None
        turn = self._runs.turn()
        with self._lock:
            self._recorded = [call for call in self._recorded if turn is not None and call.turn >= turn.number]
            now = [call for call in self._recorded if turn and call.turn == turn.number and call.kind == kind]
            for call in now:
                if call.name == self._stored_name(name) and call.is_of(asked.key, self._journal.encode):
                    self._recorded.remove(call)
                    return call
            if now and kind == "tool" and self._in_order:
                raise Diverged(f"it calls {name} now, and called {now[0].name} with {now[0].arguments()!r} before")
        return None

    def _try(self, write: Callable[[], T]) -> T | None:
        try:
            return write()
        except TakenOver as error:
            raise Fenced(error) from error
        except Exception as error:
            self._count(error)
            return None

    def _count(self, error: Exception) -> None:
        if not isinstance(error, RunNotSaved):
            self._failures.count(error)

    def _encoded(self, value: Any) -> Encoded | None:
        return self._try(lambda: self._journal.encode(value))


class _Changes:
    """Notices changes that a call makes to its arguments."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._parts: list[Any] = []
        with suppress(Exception):  # values of any class may raise: the call is made anyway
            self._parts = mutable_parts(values)
        self._before = self._key()

    def _key(self) -> str:
        return codec.live_key(self._parts) if self._parts else ""

    def with_result(self, result: Any) -> Any:
        """The outcome of the call: its result, with the changed objects if there are any."""
        is_given = any(result is part for part in self._parts)
        return Outcome(result, self._parts) if is_given or self._key() != self._before else result


def _as_one(deltas: list[Any]) -> list[Any]:
    """A streamed answer as one delta: a secret in pieces would not be recognised, and many pieces take more space."""
    try:
        whole = agglomerate_stream_deltas(deltas)
        calls = [
            ChatMessageToolCallStreamDelta(number, call.id, call.type, call.function)
            for number, call in enumerate(whole.tool_calls)
        ]
        return [ChatMessageStreamDelta(whole.content, calls or None, whole.token_usage)]
    except Exception:  # deltas of another kind, which smolagents cannot join either
        return deltas


def _why_unknown(call: RecordedCall) -> str:
    return "its result could not be stored" if call.ended else "the process was stopped during it"


# --- models ----------------------------------------------------------------------------------------------------------

current: ContextVar[Ledger | None] = ContextVar("smolmem_ledger", default=None)
"""The ledger of the agent that this thread works for: one model may serve many agents."""


@contextmanager
def unrecorded() -> Iterator[None]:
    """Model calls in this context are not recorded: calls that a model or a view makes belong to no agent."""
    token = current.set(None)
    try:
        yield
    finally:
        current.reset(token)
