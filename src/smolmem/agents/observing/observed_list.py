"""A list of steps, and the memory that holds it, that report every change.

An agent's memory becomes an `ObservedMemory` in place: references to it stay valid, and a memory class of the user's
own keeps its methods.
"""

from __future__ import annotations

import copyreg
from collections.abc import Hashable, Iterable
from functools import cache, wraps
from typing import Any, cast

from smolagents import AgentMemory

Listener = Any
"""The `StepRecorder` of an agent; its module imports this one."""


class Listeners:
    """The listeners of one memory: one for each agent that uses it. The agent that makes a change is notified.

    A list that was kept from before its agent was detached has none.
    """

    def __init__(self) -> None:
        self.all: list[Listener] = []

    @property
    def working(self) -> list[Listener]:
        """The listener of the agent that works now, else the one that came last; empty if there is none."""
        here = [listener for listener in self.all if listener.is_working_here]
        active = [listener for listener in self.all if listener.is_active]
        return (here or active or self.all)[-1:]

    def adding(self, step: Any) -> None:
        """This thread is about to append a step."""
        for listener in self.working:
            listener.adding(step)

    def changed(self, *, appended: bool = False) -> None:
        """The list may have changed; `appended`: only by steps at its end."""
        working = self.working
        for listener in self.all:
            if listener not in working:
                listener.changed_by_others()
        for listener in working:
            listener.changed(appended=appended)

    def resetting(self) -> None:
        """The list is about to be emptied by a reset."""
        for listener in list(self.all):
            listener.resetting()

    def reset_done(self) -> None:
        """The list was emptied by a reset."""
        for listener in self.working:
            listener.reset_done()


def _reporting(name: str) -> Any:
    original = getattr(list, name)

    @wraps(original)
    def method(self: ObservedList, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        self.listeners.changed(appended=name in ("extend", "__iadd__"))
        return result

    return method


class ObservedList(list[Any]):
    """A list that reports each change; copies and pickles of it are ordinary lists."""

    def __init__(self, values: Iterable[Any], listeners: Listeners) -> None:
        super().__init__(values)
        self.listeners = listeners

    def append(self, step: Any) -> None:
        """Appends a step, which belongs to the run that this thread works on."""
        self.listeners.adding(step)
        super().append(step)
        self.listeners.changed(appended=True)

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
    """An `AgentMemory` that reports every change; copies and pickles of it are of its own class."""

    listeners: Listeners

    @property
    def steps(self) -> list[Any]:
        """The live list."""
        steps: list[Any] = self.__dict__["steps"]
        return steps

    @steps.setter
    def steps(self, values: Iterable[Any]) -> None:
        self.__dict__["steps"] = ObservedList(values, self.listeners)
        self.listeners.changed()

    def reset(self) -> None:
        """A new list begins; the old one stays in the record."""
        self.listeners.resetting()
        super().reset()
        self.listeners.reset_done()

    def __reduce_ex__(self, protocol: Any) -> Any:
        state = {name: value for name, value in vars(self).items() if name not in _OURS}
        state["steps"] = list(self.steps)
        return copyreg._reconstructor, (self.__dict__["_original_class"], object, None), state  # type: ignore[attr-defined]


_OURS = ("listeners", "_original_class")


@cache
def _observed(cls: Any) -> type[ObservedMemory]:
    return ObservedMemory if cls is AgentMemory else type(cls.__name__, (ObservedMemory, cls), {})


def observe(memory: AgentMemory, listener: Listener) -> None:
    """Makes a memory report to `listener`, beginning with its current steps."""
    if isinstance(memory, ObservedMemory):  # another agent has this memory, too
        memory.listeners.all.append(listener)
        listener.changed()
        return
    steps, cls, listeners = memory.steps, type(memory), Listeners()
    listeners.all.append(listener)
    memory.__class__ = _observed(cast(Hashable, cls))
    memory.__dict__.update(listeners=listeners, _original_class=cls)
    memory.steps = steps


def unobserve(memory: AgentMemory, listener: Listener) -> None:
    """Makes a memory no longer report to `listener`; with the last one, it gets its own class and list back."""
    if not reports_to(memory, listener):
        return
    memory.listeners.all.remove(listener)
    if memory.listeners.all:
        return
    steps = list(memory.steps)
    del memory.__dict__["listeners"]
    memory.__class__ = memory.__dict__.pop("_original_class")
    memory.steps = steps


def reports_to(memory: AgentMemory, listener: Listener) -> bool:
    """Whether a memory reports to a listener."""
    return isinstance(memory, ObservedMemory) and listener in memory.listeners.all
