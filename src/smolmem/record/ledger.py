"""What a model answered and what tools did, written down before and after it happened.

A step is saved when it is done. A process can die inside it: after the model has answered, after a tool has sent the
money. So the answer is written before it is acted on, and each call when it starts and when it ends. When the run goes
on, in another process, the answer is not asked for again, a call that ended gives its recorded result, and a
call that was cut is known to be unknown.

Three doors are watched, on the instances of one agent, none of them on a tool: `model.generate` (and its stream),
the callables that a code agent's interpreter is given, and a tool-calling agent's `execute_tool_call`. Managed agents
pass through the same doors.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Protocol, TypeVar

from smolmem.record import codec
from smolmem.record.codec import Encoded
from smolmem.record.values import CallRow, PastCall

T = TypeVar("T")


class CallSink(Protocol):
    """Where calls are written down."""

    def begin_call(self, call: CallRow, arguments: Encoded, outcome: Encoded | None = None) -> int:
        """Writes down a call before it is made."""
        ...

    def end_call(self, number: int, call: CallRow, arguments: Encoded, outcome: Encoded) -> None:
        """Writes down how a call ended."""
        ...


class Diverged(BaseException):
    """A step that is being finished calls something else than it did before; no agent may swallow this."""


class Ledger:
    """The calls of one agent."""

    def __init__(
        self, sink: CallSink, here: Callable[[], tuple[str, int] | None], failed: Callable[[Exception], None]
    ) -> None:
        """Watches nothing yet.

        Args:
            sink: where calls are written down.
            here: the run and turn that is being worked on, if any.
            failed: what to do about a write that failed; the call itself goes on.
        """
        self.outgoing: Callable[[Any], Any] = lambda messages: messages
        """The last that is done to what a model is sent."""
        self._sink = sink
        self._here = here
        self._failed = failed
        self._lock = threading.Lock()
        self._past: list[PastCall] = []
        self._sequential = True
        self._skip = False

    def expect(self, past: Sequence[PastCall], *, sequential: bool, skip: bool) -> None:
        """What an earlier process wrote down of the turn that is to be finished.

        Args:
            past: its calls.
            sequential: whether they must come again in the same order, as in code.
            skip: whether a call of unknown outcome is left out; otherwise it is made again.
        """
        self._past, self._sequential, self._skip = list(past), sequential, skip

    # --- the model -------------------------------------------------------------------------------------------------

    def generate(self, original: Callable[..., Any], messages: Sequence[Any], args: Any, kwargs: Any) -> Any:
        """The model's answer: the recorded one, or a new one that is written down before it is used."""
        asked = self._encoded(_question(messages))
        past = self._take("model", "", asked)
        if past is not None:
            return past.outcome()
        began = time.time()
        with nobody():
            answer = original(self.outgoing(messages), *args, **kwargs)
        self._answered(asked, began, answer)
        return answer

    def stream(self, original: Callable[..., Any], messages: Sequence[Any], args: Any, kwargs: Any) -> Iterator[Any]:
        """The same for an answer that comes in pieces."""
        asked = self._encoded(_question(messages))
        past = self._take("model", "", asked)
        if past is not None:
            yield from past.outcome()
            return
        began, pieces = time.time(), []
        coming = iter(original(self.outgoing(messages), *args, **kwargs))
        while True:
            with nobody():
                piece = next(coming, None)
            if piece is None:
                break
            pieces.append(piece)
            yield piece
        self._answered(asked, began, pieces)

    def _answered(self, asked: Encoded | None, began: float, answer: Any) -> None:
        row, said = self._row("model", "", began), self._encoded(answer)
        if row is not None and asked is not None and said is not None:
            self._try(lambda: self._sink.begin_call({**row, "ended": time.time()}, asked, said))

    # --- tools -----------------------------------------------------------------------------------------------------

    def tool(self, name: str, arguments: Any, act: Callable[[], Any]) -> Any:
        """A tool's result: the recorded one, or that of `act`, written down before and after."""
        row, given = self._row("tool", name, time.time()), self._encoded(arguments)
        if row is None or given is None:
            return act()
        past = self._take("tool", name, given)
        if past is not None and past.ended:
            return past.again()
        if past is not None and self._skip:
            return f"(The outcome of this call of {name} is unknown: the process was stopped during it.)"
        number = past.id if past is not None else self._try(lambda: self._sink.begin_call(row, given))
        try:
            result = act()
        except Exception as error:
            self._end(number, {**row, "failed": 1}, given, error)
            raise
        self._end(number, row, given, result)
        return result

    def _end(self, number: int | None, row: CallRow, given: Encoded, outcome: Any) -> None:
        came = self._encoded(outcome)
        if number is not None and came is not None:
            self._try(lambda: self._sink.end_call(number, {**row, "ended": time.time()}, given, came))

    # --- the past --------------------------------------------------------------------------------------------------

    def _row(self, kind: Any, name: str, began: float) -> CallRow | None:
        here = self._here()
        if here is None:
            return None
        run, turn = here
        return {
            "run": run,
            "turn": turn,
            "kind": kind,
            "name": codec.plain(name),
            "began": began,
            "ended": None,
            "failed": 0,
        }

    def _take(self, kind: str, name: str, asked: Encoded | None) -> PastCall | None:
        """The next recorded call of this kind, once; what was recorded for other turns is past use."""
        if not self._past or asked is None:
            return None
        here = self._here()
        with self._lock:
            self._past = [past for past in self._past if here is not None and past.turn >= here[1]]
            now = [past for past in self._past if here is not None and past.turn == here[1] and past.kind == kind]
            for past in now:
                if (past.name, past.key) == (codec.plain(name), asked.key):
                    self._past.remove(past)
                    return past
            if now and kind == "tool" and self._sequential:
                raise Diverged(f"it calls {name} now, and called {now[0].name} with {now[0].arguments()!r} before")
        return None

    def _try(self, write: Callable[[], T]) -> T | None:
        try:
            return write()
        except Exception as error:
            self._failed(error)
            return None

    def _encoded(self, value: Any) -> Encoded | None:
        return self._try(lambda: codec.encode(value))


def _question(messages: Sequence[Any]) -> Any:
    """What is enough to know a prompt again: how long it was and how it ended."""
    return [len(messages), messages[-1] if messages else None]


# --- the doors -----------------------------------------------------------------------------------------------------

current: ContextVar[Ledger | None] = ContextVar("smolmem_ledger", default=None)
"""The ledger of the agent that this thread works for: one model may serve many agents."""


def watch_model(model: Any) -> Callable[[], None]:
    """Makes a model's answers pass through the ledger of whoever asks; returns what undoes it."""
    if not hasattr(model, "__dict__"):
        return lambda: None
    own = vars(model)
    watch = own.setdefault("_smolmem", {"users": 0, "own": {}})
    watch["users"] += 1
    if watch["users"] == 1:
        for name, pass_through in (("generate", Ledger.generate), ("generate_stream", Ledger.stream)):
            if hasattr(model, name):
                watch["own"][name] = own.get(name)
                own[name] = _Watched(getattr(model, name), pass_through)

    def undo() -> None:
        watch["users"] -= 1
        if not watch["users"]:
            own.pop("_smolmem", None)
            for name, before in watch["own"].items():
                own.pop(name, None)
                if before is not None:
                    own[name] = before

    return undo


class _Watched:
    """A method of a model that passes through a ledger, and in all else is the method itself."""

    __slots__ = ("_original", "_pass_through")

    def __init__(self, original: Callable[..., Any], pass_through: Callable[..., Any]) -> None:
        object.__setattr__(self, "_original", original)
        object.__setattr__(self, "_pass_through", pass_through)

    def __call__(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        ledger = current.get()
        if ledger is None:
            return self._original(messages, *args, **kwargs)
        return self._pass_through(ledger, self._original, messages, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._original, name, value)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._original)

    def __repr__(self) -> str:
        return repr(self._original)


@contextmanager
def nobody() -> Iterator[None]:
    """While a model works, what it asks of itself is nobody's call."""
    token = current.set(None)
    try:
        yield
    finally:
        current.reset(token)


def watch_calls(agent: Any, ledger: Ledger) -> Callable[[], None]:
    """Makes an agent's tool calls pass through its ledger; returns what undoes it."""
    executor = getattr(agent, "python_executor", None)
    if executor is not None and hasattr(executor, "static_tools"):
        return _wrap(executor, "send_tools", lambda send: lambda tools: send(_listed(tools, ledger)))
    if hasattr(agent, "execute_tool_call"):
        return _wrap(agent, "execute_tool_call", lambda execute: _executing(execute, ledger))
    return lambda: None


def _listed(tools: dict[str, Any], ledger: Ledger) -> dict[str, Any]:
    return {name: _called(name, tool, ledger) for name, tool in tools.items()}


def _called(name: str, tool: Any, ledger: Ledger) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return ledger.tool(name, [list(args), kwargs], lambda: tool(*args, **kwargs))

    call.__name__ = name
    return call


def _executing(execute: Callable[..., Any], ledger: Ledger) -> Callable[..., Any]:
    @wraps(execute)
    def call(tool_name: str, arguments: Any) -> Any:
        return ledger.tool(tool_name, arguments, lambda: execute(tool_name, arguments))

    return call


def _wrap(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Callable[[], None]:
    own = vars(owner).get(name)
    owner.__dict__[name] = wrap(getattr(owner, name))

    def undo() -> None:
        if own is None:
            owner.__dict__.pop(name, None)
        else:
            owner.__dict__[name] = own

    return undo
