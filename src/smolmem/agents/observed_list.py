"""A list of steps, and the memory that holds it, that report every change.

An agent's memory becomes an `ObservedMemory` in place: whoever holds it keeps holding it, and a memory class of the
user's own keeps its methods.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import cache, wraps
from typing import Any, Protocol, cast

from smolagents import AgentMemory


class Listener(Protocol):
    """What is told of changes to a list."""

    def adding(self, step: Any) -> None:
        """This thread is about to append a step."""
        ...

    def changed(self, *, appended: bool = False) -> None:
        """The list may have changed; `appended`: only by steps at its end."""
        ...

    def resetting(self) -> None:
        """The list is about to be emptied by a reset."""
        ...

    def reset_done(self) -> None:
        """The list was emptied by a reset."""
        ...


def _reporting(name: str) -> Any:
    original = getattr(list, name)

    @wraps(original)
    def method(self: ObservedList, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        self.listener.changed(appended=name in ("extend", "__iadd__"))
        return result

    return method


class ObservedList(list[Any]):
    """A list that tells its listener after each change; copies and pickles of it are ordinary lists."""

    def __init__(self, values: Iterable[Any], listener: Listener) -> None:
        super().__init__(values)
        self.listener = listener

    def append(self, step: Any) -> None:
        """Appends a step, which belongs to the run that this thread works on."""
        self.listener.adding(step)
        super().append(step)
        self.listener.changed(appended=True)

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


class ObservedMemory(AgentMemory):  # type: ignore[misc]
    """An `AgentMemory` whose listener is told of every change."""

    listener: Listener

    @property
    def steps(self) -> list[Any]:
        """The live list."""
        steps: list[Any] = self.__dict__["steps"]
        return steps

    @steps.setter
    def steps(self, values: Iterable[Any]) -> None:
        self.__dict__["steps"] = ObservedList(values, self.listener)
        self.listener.changed()

    def reset(self) -> None:
        """A new list begins; the old one stays in the record."""
        self.listener.resetting()
        super().reset()
        self.listener.reset_done()


@cache
def _observed(cls: Any) -> type[ObservedMemory]:
    return ObservedMemory if cls is AgentMemory else type(cls.__name__, (ObservedMemory, cls), {})


def observe(memory: AgentMemory, listener: Listener) -> None:
    """Makes a memory report to `listener`, beginning with what it holds."""
    steps, cls = memory.steps, type(memory)
    memory.__class__ = _observed(cast(Hashable, cls))
    memory.__dict__.update(listener=listener, _original_class=cls)
    memory.steps = steps


def unobserve(memory: AgentMemory) -> None:
    """Gives a memory its own class and an ordinary list back."""
    steps = list(memory.steps)
    del memory.__dict__["listener"]
    memory.__class__ = memory.__dict__.pop("_original_class")
    memory.steps = steps


def listener_of(memory: AgentMemory) -> Listener | None:
    """What a memory reports to."""
    return memory.listener if isinstance(memory, ObservedMemory) else None
