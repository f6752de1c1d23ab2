"""Notices when a field of a recorded step is set.

Steps are edited in place long after they were recorded: the documented screenshot callback does so at every step.
Comparing every field of every step at every event would cost more the longer a run gets. Instead, a recorded step
becomes an instance of a subclass of its own class. The subclass has the same name, compares, copies and pickles as
the original class, and notes when a field is set.
"""

from __future__ import annotations

import copyreg
import itertools
from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, cast

from smolmem.core.encoding.codec import original_class

_clock = itertools.count(1)
_edited: dict[int, int] = {}  # id() of an observed step: when a field was set last
_latest = 0


class _Observed:
    """Mixed into a step's class."""

    _original_class: type

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        _note(self)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        _note(self)

    def __eq__(self, other: object) -> bool:
        if original_class(other) is not self._original_class:
            return NotImplemented
        return all(getattr(self, each.name) == getattr(other, each.name) for each in fields(self._original_class))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return copyreg._reconstructor, (self._original_class, object, None), vars(self)  # type: ignore[attr-defined]


def _note(step: object) -> None:
    global _latest
    _edited[id(step)] = _latest = next(_clock)


def _compares_fields(cls: Any) -> bool:
    """Whether a class compares as a dataclass does, which asks for exactly the same class."""
    return getattr(getattr(cls.__eq__, "__code__", None), "co_filename", "") == "<string>"


@cache
def _observing(cls: Any) -> type:
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    names |= {"__hash__": cls.__hash__} | ({} if _compares_fields(cls) else {"__eq__": cls.__eq__})
    return type(cls.__name__, (_Observed, cls), {**names, "_original_class": cls})


def observe(step: object) -> bool:
    """From now on, notes when a field of this step is set; false if its class does not allow that."""
    if isinstance(step, _Observed):
        return True
    if not is_dataclass(step):
        return False
    try:
        object.__setattr__(step, "__class__", _observing(cast(Hashable, type(step))))
    except TypeError:
        return False
    return True


def unobserve(step: object) -> None:
    """Gives a step its own class back."""
    if isinstance(step, _Observed):
        object.__setattr__(step, "__class__", step._original_class)
        _edited.pop(id(step), None)


def latest_edit() -> int:
    """The moment of the latest edit of any observed step."""
    return _latest


def edited_since(moment: int) -> bool:
    """Whether any observed step was edited after a moment."""
    return moment != _latest and any(when > moment for when in list(_edited.values()))
