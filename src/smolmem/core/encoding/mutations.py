"""Changes that a call makes to its arguments: recorded with its result, and applied again on playback.

A tool may fill the list that it is given. So the mutable values that a call can reach are collected before the call, in
reading order. If the call changes one, its outcome holds all of them as they are afterwards. Equal arguments have the
same mutable values in the same order, so each one of a later call gets the content of its counterpart, in place, and
everything that refers to it sees the change.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from smolmem.core.encoding import instances
from smolmem.core.encoding.instances import NotRestored

_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_SEQUENCES = (list, deque, bytearray)
_OPAQUE = ("pandas", "PIL")
"""Libraries whose mutable values cannot be overwritten in place."""


@dataclass
class Outcome:
    """The result of a call that changed its arguments, and the mutable values of its arguments after the call."""

    result: Any
    parts: list[Any]


def mutable_parts(values: Iterable[Any]) -> list[Any]:
    """The mutable values that can be reached from some values, in reading order."""
    found: dict[int, Any] = {}
    waiting = [iter(list(values))]
    while waiting:
        value = next(waiting[-1], waiting)
        if value is waiting:
            waiting.pop()
        elif id(value) not in found:
            inside = _inside(value)
            if type(value) is not tuple and inside is not None:
                found[id(value)] = value
            if inside:
                waiting.append(iter(inside))
    return list(found.values())


def _inside(value: Any) -> list[Any] | None:
    """The items of a mutable value or a tuple; None for any other value."""
    cls = type(value)
    if cls in (list, tuple, deque):
        return list(value)
    if cls in _MAPPINGS:
        return list(value.values())
    if cls in (set, bytearray) or _is_array(cls) or _is_opaque(cls):
        return []
    if instances.has_fields(cls):
        return list((instances.attributes(value) or {}).values())
    return None


def _is_array(cls: type) -> bool:
    return cls.__module__ == "numpy" and cls.__name__ == "ndarray"


def _is_opaque(cls: type) -> bool:
    return str(cls.__module__).partition(".")[0] in _OPAQUE


def can_be_applied(outcome: Any) -> bool:
    """Whether the changes of a recorded call can be made again."""
    return not isinstance(outcome, Outcome) or not any(_is_opaque(type(part)) for part in outcome.parts)


def applied(outcome: Outcome, values: Iterable[Any]) -> Any:
    """Makes the changes of a recorded call to the arguments of another one, and returns the recorded result.

    Raises:
        NotRestored: if the arguments do not have the same mutable values; then nothing is changed.
    """
    now = mutable_parts(values)
    if [_shape(part) for part in now] != [_shape(part) for part in outcome.parts] or not can_be_applied(outcome):
        raise NotRestored("other arguments")
    theirs = {id(then): part for then, part in zip(outcome.parts, now, strict=True)}
    done: set[int] = set()
    for then in outcome.parts:
        _replace_inside(then, theirs, done)
    for then, part in zip(outcome.parts, now, strict=True):
        _fill(part, then)
    return _replaced(outcome.result, theirs, done)


def _shape(part: Any) -> Any:
    """The properties that two values must share so that one can be overwritten with the other."""
    return (type(part), part.shape, part.dtype) if _is_array(type(part)) else type(part)


def _replaced(value: Any, theirs: dict[int, Any], done: set[int]) -> Any:
    """A recorded value in which each recorded argument is replaced by the live one."""
    if id(value) in theirs:
        return theirs[id(value)]
    if type(value) is tuple:
        return tuple(_replaced(item, theirs, done) for item in value)
    _replace_inside(value, theirs, done)
    return value


def _replace_inside(value: Any, theirs: dict[int, Any], done: set[int]) -> None:
    if id(value) in done:
        return
    done.add(id(value))
    if type(value) in (list, deque):
        for place, item in enumerate(value):
            value[place] = _replaced(item, theirs, done)
    elif type(value) in _MAPPINGS:
        for key, item in value.items():
            value[key] = _replaced(item, theirs, done)
    elif instances.has_fields(type(value)):
        own = instances.attributes(value) or {}
        instances.fill(value, own, lambda item: _replaced(item, theirs, done))


def _fill(part: Any, then: Any) -> None:
    """Gives a live value the content of a recorded one."""
    if type(part) in _SEQUENCES:
        part.clear()
        part.extend(then)
    elif type(part) in _MAPPINGS or type(part) is set:
        part.clear()
        part.update(then)
    elif _is_array(type(part)):
        part[...] = then
    else:
        instances.fill(part, instances.attributes(then) or {}, lambda item: item)
