"""How values are drawn, without knowing who draws them.

A value such as a run looks up its drawing here when `rich` asks for it; the `render` package registers the drawings
when it is imported, which is when the first value is drawn. So the values stay free of terminals, imports go one way,
and a program that draws nothing does not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Draw = TypeVar("Draw", bound=Callable[..., Any])

_drawings: dict[str, Callable[..., Any]] = {}
load: Callable[[], object] = object
"""Imports all drawings; the package sets it."""


def draws(name: str) -> Callable[[Draw], Draw]:
    """Registers a function as the drawing of values of the class `name`, or of the output called `name`."""

    def register(function: Draw) -> Draw:
        _drawings[name] = function
        return function

    return register


def draw(name: str, *values: Any, **options: Any) -> Any:
    """Draws with the registered function; without one, the first value's `repr`."""
    if name not in _drawings:
        load()
    drawing = _drawings.get(name)
    return repr(values[0]) if drawing is None else drawing(*values, **options)


class Drawable:
    """A value that `rich` can print."""

    __slots__ = ()

    def __rich__(self) -> Any:
        return draw(type(self).__name__, self)


class Result(Drawable):
    """What an operation returns about itself: `print` shows what the command line prints."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(draw("text", self))
