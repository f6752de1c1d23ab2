"""The list and the memory that report what is done to them.

An agent's memory becomes a `RecordedMemory` in place: whoever holds it keeps holding it, and a memory class of the
user's own keeps its methods.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import cache, wraps
from typing import Any, Protocol, cast

from smolagents import AgentMemory


class Listener(Protocol):
    """Who wants to know."""

    def adding(self, step: Any) -> None:
        """This thread is about to append a step."""
        ...

    def sync(self, *, appended: bool = False) -> None:
        """The list may have changed; `appended`: by steps put at its end, and not otherwise."""
        ...

    def new_session(self) -> None:
        """The list is about to be emptied by a reset."""
        ...

    def begun(self) -> None:
        """The list has been emptied by a reset."""
        ...


def _reporting(name: str) -> Any:
    original = getattr(list, name)

    @wraps(original)
    def method(self: StepList, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        self.listener.sync(appended=name in ("extend", "__iadd__"))
        return result

    return method


class StepList(list[Any]):
    """A list that tells its listener after each change; copies and pickles of it are ordinary lists."""

    def __init__(self, values: Iterable[Any], listener: Listener) -> None:
        super().__init__(values)
        self.listener = listener

    def append(self, step: Any) -> None:
        """Appends a step, which belongs to the run that this thread works for."""
        self.listener.adding(step)
        super().append(step)
        self.listener.sync(appended=True)

    extend = _reporting("extend")
    insert = _reporting("insert")
    pop = _reporting("pop")
    remove = _reporting("remove")
    clear = _reporting("clear")
    sort = _reporting("sort")
    reverse = _reporting("reverse")
    __setitem__ = _reporting("__setitem__")
    __delitem__ = _reporting("__delitem__")
    __iadd__ = _reporting("__iadd__")
    __imul__ = _reporting("__imul__")

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        return list, (list(self),)


class RecordedMemory(AgentMemory):  # type: ignore[misc]
    """An `AgentMemory` whose listener hears of every change."""

    listener: Listener

    @property
    def steps(self) -> list[Any]:
        """The live list."""
        steps: list[Any] = self.__dict__["steps"]
        return steps

    @steps.setter
    def steps(self, values: Iterable[Any]) -> None:
        self.__dict__["steps"] = StepList(values, self.listener)
        self.listener.sync()

    def reset(self) -> None:
        """A new list begins; the old one stays in the record."""
        self.listener.new_session()
        super().reset()
        self.listener.begun()


@cache
def _recorded(cls: Any) -> type[RecordedMemory]:
    return RecordedMemory if cls is AgentMemory else type(cls.__name__, (RecordedMemory, cls), {})


def listen(memory: AgentMemory, listener: Listener) -> None:
    """Makes a memory report to `listener`, beginning with what it holds."""
    steps, cls = memory.steps, type(memory)
    memory.__class__ = _recorded(cast(Hashable, cls))
    memory.__dict__.update(listener=listener, _plain_class=cls)
    memory.steps = steps


def unlisten(memory: AgentMemory) -> None:
    """Makes a memory what it was, its steps in an ordinary list."""
    steps = list(memory.steps)
    del memory.__dict__["listener"]
    memory.__class__ = memory.__dict__.pop("_plain_class")
    memory.steps = steps


def listener_of(memory: AgentMemory) -> Listener | None:
    """Whom a memory reports to."""
    return memory.listener if isinstance(memory, RecordedMemory) else None
