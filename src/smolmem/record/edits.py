"""Notices when a field of a recorded step is set.

Steps are edited in place long after they were recorded: the documented screenshot callback does so at every step. To
look at every field of every step at every event would cost more the longer a run gets. Instead, a recorded step
becomes an instance of a subclass of its own class that has the same name, is equal to what the original
is equal to, copies and pickles as the original, and notes when a field of it is set.
"""

from __future__ import annotations

import copyreg
import itertools
from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, cast

_clock = itertools.count(1)
_edits: dict[int, int] = {}  # id of a noticed step: when a field of it was set last
_latest = 0


class _Noticed:
    """Mixed into a step's class."""

    _plain: type

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        _note(self)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        _note(self)

    def __eq__(self, other: object) -> bool:
        if plain_class(other) is not self._plain:
            return NotImplemented
        return all(getattr(self, each.name) == getattr(other, each.name) for each in fields(self._plain))

    __hash__ = None  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return copyreg._reconstructor, (self._plain, object, None), vars(self)  # type: ignore[attr-defined]


def _note(step: object) -> None:
    global _latest
    _edits[id(step)] = _latest = next(_clock)


@cache
def _noticing(cls: Any) -> type:
    named = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__, "_plain": cls}
    return type(cls.__name__, (_Noticed, cls), named)


def plain_class(step: object) -> type:
    """The class a step has, or had before it was noticed."""
    cls = type(step)
    return cls._plain if issubclass(cls, _Noticed) else cls


def notice(step: object) -> bool:
    """From now on, notes when a field of this step is set; False if its class does not allow that."""
    if isinstance(step, _Noticed):
        return True
    if not is_dataclass(step):
        return False
    try:
        object.__setattr__(step, "__class__", _noticing(cast(Hashable, type(step))))
    except TypeError:
        return False
    return True


def let_go(step: object) -> None:
    """Makes a step what it was."""
    if isinstance(step, _Noticed):
        object.__setattr__(step, "__class__", step._plain)
        _edits.pop(id(step), None)


def latest() -> int:
    """The moment of the latest edit of any noticed step."""
    return _latest


def since(moment: int) -> set[int]:
    """The ids of steps that were edited after a moment."""
    return set() if moment == _latest else {step for step, when in list(_edits.items()) if when > moment}
