"""The data classes that an agent's tools and code know, so that instances in their results can be rebuilt.

They are found where the live tools and variables refer to them: in the globals, closures and annotations of a tool's
functions, in the modules that these refer to, and among the variables. Nothing is imported, and no name that a file
says is looked up anywhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from smolmem.agents import compat
from smolmem.core.encoding import instances


def classes_of(agent: Any, of_tools: Mapping[str, type] | None = None) -> dict[str, type]:
    """The data classes of an agent, by their full names.

    Args:
        agent: the agent.
        of_tools: the classes of its tools, if they are known: many modules are looked at to find them.
    """
    found = dict(classes_of_tools(agent) if of_tools is None else of_tools)
    local = compat.interpreter_of(agent)
    _add([] if local is None else list(local.variables.values()), found)
    return found


def classes_of_tools(agent: Any) -> dict[str, type]:
    """The data classes that the tools of an agent refer to, by their full names."""
    found: dict[str, type] = {}
    functions = [function for tool in agent.tools.values() for function in _functions(tool.forward, set())]
    named = {id(function.__globals__): function.__globals__ for function in functions}  # tools often share a module
    values = [value for names in named.values() for value in names.values()]
    for function in functions:
        values += [*_closed_over(function), *function.__annotations__.values()]
    _add((*values, *_arguments(values), *_contents(values)), found)
    _add(_contents([sys.modules.get(cls.__module__) for cls in found.values()]), found)
    return found


def methods_of(classes: Iterable[type]) -> frozenset[CodeType]:
    """The code of the methods and properties of classes."""
    members = (member for cls in classes for base in cls.__mro__ for member in vars(base).values())
    functions = (_plain_function(member) for member in members)
    return frozenset(function.__code__ for function in functions if type(function) is FunctionType)


def _plain_function(member: Any) -> Any:
    if type(member) in (classmethod, staticmethod):
        return member.__func__
    return member.fget if type(member) is property else member


def _functions(value: Any, seen: set[int]) -> Iterator[FunctionType]:
    """A function, and the functions that it wraps or closes over."""
    if type(value) is MethodType:
        value = value.__func__
    if type(value) is not FunctionType or id(value) in seen:
        return
    seen.add(id(value))
    yield value
    for inner in [vars(value).get("__wrapped__"), *_closed_over(value)]:
        yield from _functions(inner, seen)


def _closed_over(function: FunctionType) -> list[Any]:
    return [_content(cell) for cell in function.__closure__ or ()]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _arguments(values: Iterable[Any]) -> Iterator[Any]:
    """The types inside generic types, such as `list[Order]`."""
    for value in values:
        arguments = getattr(value, "__args__", ()) if type(value).__module__ in ("types", "typing") else ()
        yield from arguments if isinstance(arguments, tuple) else ()


def _contents(values: Iterable[Any]) -> Iterator[Any]:
    """The contents of the modules among values."""
    modules = {id(value): value for value in values if type(value) is ModuleType}
    for module in modules.values():
        yield from list(vars(module).values())


def _add(values: Iterable[Any], found: dict[str, type]) -> None:
    """Adds the data classes among values; a class that is among them often is looked at once."""
    classes = {id(value): value for value in values if issubclass(type(value), type)}
    for cls in filter(instances.is_data, classes.values()):
        found.setdefault(f"{cls.__module__}.{cls.__qualname__}", cls)
