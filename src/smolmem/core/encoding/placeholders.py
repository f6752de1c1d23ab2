"""Placeholders: what stands for an object that cannot be stored."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

MAX_REPR = 10_000
"""Characters of a `repr` that are kept."""


class Placeholder:
    """Replaces an object that cannot be serialized: describes the object and has its attributes.

    Two placeholders are equal when they describe the same.
    """

    __slots__ = ("_described",)
    _described: dict[str, Any]

    def __repr__(self) -> str:
        return f"<placeholder for {self._described['type']}: {self._described['repr']}>"

    def __str__(self) -> str:
        return str(self._described.get("str", self._described["repr"]))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Placeholder)
            and self._described == other._described
            and own_attributes(self) == own_attributes(other)
        )

    def __hash__(self) -> int:
        return hash((self._described["type"], self._described["repr"]))


def own_attributes(placeholder: Placeholder) -> dict[str, Any] | None:
    """The attributes of the object that a placeholder stands for; None if they could not be stored."""
    return getattr(placeholder, "__dict__", None)


@lru_cache(maxsize=1024)
def named(base: Any, name: str, *, bare: bool = False) -> type:
    """A subclass of `base` under a stored type's name, so that prints look the same; `bare`: with no `__dict__`."""
    module, _, last = name.rpartition(".")
    shown = re.sub(r"\W", "_", last, flags=re.ASCII) or "object"
    return type(shown, (base,), {"__module__": module} | ({"__slots__": ()} if bare else {}))


_NAME_OF = type.__dict__["__qualname__"].__get__
"""The name of a class, whatever its metaclass does."""


def type_name(value: object) -> str:
    """The full name of a value's type, as stored in a placeholder."""
    cls = type(value)
    try:
        return f"{cls.__module__}.{cls.__qualname__}"
    except Exception:  # a metaclass may raise when its class is asked for its name
        return str(_NAME_OF(cls))


descriptions: dict[type, Callable[[Any], str]] = {}
"""How values are described whose own text is costly or has effects; see `pictures` and `agents.compat`."""


def safe_text(describe: Callable[[Any], str], value: object, longest: int = MAX_REPR) -> str:
    """`repr` or `str` of any object, also if the method raises."""
    try:
        own = next((descriptions[cls] for cls in type(value).__mro__ if cls in descriptions), describe)
        text = own(value)
    except Exception as error:
        text = f"<{type_name(value)} whose {describe.__name__} raises {type(error).__name__}>"
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text):,} characters)"


def make_placeholder(described: dict[str, Any], *, bare: bool = True) -> Placeholder:
    """A placeholder that prints under the stored type's name."""
    described = {key: str(text) for key, text in described.items() if key in ("type", "repr", "str", "member")}
    made: Placeholder = object.__new__(named(Placeholder, described["type"], bare=bare))
    made._described = described
    return made
