"""Instances of classes that no codec knows: which attributes they have, and how they are rebuilt without their code.

Only classes that are data are rebuilt: enums, dataclasses, pydantic models, attrs classes and named tuples. An
instance is made with `__new__`, and its attributes are set as they were: no constructor, validator or setter runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from types import MemberDescriptorType
from typing import Any

_DATA = ("__dataclass_fields__", "__attrs_attrs__", "__pydantic_fields__")


class NotRestored(Exception):
    """A record only describes its value, or a part of it, so that the value cannot come back as it was."""


def attributes(value: object) -> dict[str, Any] | None:
    """The attributes of an object; None for a class, and for an object that has none or raises when it is asked."""
    if issubclass(type(value), type):
        return None
    try:
        own = value.__dict__
    except Exception:
        own = None
    slots = {name: slot for name, slot in _slots(type(value)).items() if _is_set(slot, value)}
    if type(own) is not dict:
        return {name: slot.__get__(value) for name, slot in slots.items()} or None
    return own if not slots else {**own, **{name: slot.__get__(value) for name, slot in slots.items()}}


def _slots(cls: type) -> dict[str, MemberDescriptorType]:
    """The slots of a class, its bases included: attributes that are not in `__dict__`."""
    of = [base for base in cls.__mro__ if "__slots__" in vars(base)]
    return {name: slot for base in of for name, slot in vars(base).items() if type(slot) is MemberDescriptorType}


def _is_set(slot: MemberDescriptorType, value: object) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


def is_data(cls: type) -> bool:
    """Whether the instances of a class are rebuilt."""
    return issubclass(cls, Enum) or is_named_tuple(cls) or has_fields(cls)


def is_named_tuple(cls: type) -> bool:
    """Whether a class is a named tuple."""
    return issubclass(cls, tuple) and "_fields" in vars(cls) and cls.__init__ is tuple.__init__


def has_fields(cls: type) -> bool:
    """Whether a class is a dataclass or a model."""
    return _fields(cls) is not None


def _fields(cls: type) -> set[str] | None:
    """The fields of a dataclass or model; None for a class that is neither."""
    for base in cls.__mro__:
        own = vars(base)
        for name in _DATA:
            if name in own:
                found = own[name]
                return set(found if isinstance(found, dict) else (field.name for field in found))
    return None


def member(cls: type, name: Any) -> Any:
    """The member of an enum; None if there is none."""
    return cls.__members__.get(name) if issubclass(cls, Enum) else None


def member_of_value(cls: type, value: Any) -> Any:
    """The member of an enum that has a value; None if there is none."""
    return cls._value2member_map_.get(value) if issubclass(cls, Enum) else None


def blank(cls: type, stored: Mapping[str, Any]) -> Any:
    """An instance without attributes; None if the class is not data, or has fields that are not stored."""
    fields = _fields(cls)
    if fields is None or not fields <= stored.keys():
        return None
    try:
        return object.__new__(cls)
    except TypeError:  # a class that is derived from a builtin
        return None


def fill(made: Any, stored: Mapping[str, Any], read: Callable[[Any], Any]) -> Any:
    """Sets the stored attributes of a blank instance."""
    slots = _slots(type(made))
    for name, item in stored.items():
        value = read(item)
        if name in slots:
            slots[name].__set__(made, value)
        else:
            made.__dict__[name] = value
    return made
