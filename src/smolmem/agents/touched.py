"""Which variables the code of a step may have changed.

Code changes what it names, and what that can reach. A container reaches the objects inside it. Anything can be reached
from a function, from an object that a record can only describe, and from a variable that no snapshot holds. A tool or
an imported library can keep the objects that it was given, and change them whenever any tool is called: tools can share
what they keep.
"""

from __future__ import annotations

import ast
import difflib
import sys
import types
from collections.abc import Callable, Collection, Iterable
from typing import Any

from smolmem.agents import compat
from smolmem.core.encoding.chunks import ATOMS

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)
CODE = (types.ModuleType, *_FUNCTIONS)
"""Types of the variables that are no data: the recorded code makes them again."""

_KEEPS_NOTHING = sys.stdlib_module_names | {"numpy", "pandas", "PIL", "scipy"}
"""Libraries whose functions do not keep the objects that they are given."""


class Touched:
    """Finds what the code of one agent may have changed."""

    def __init__(self) -> None:
        self._given: set[str] = set()  # variables that a tool or library may hold an object of
        self._was_given = False
        self._defined: set[str] = set()
        self._unheld: set[str] = set()  # variables with objects that the snapshot does not hold

    def calling(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function that makes calls of tools, and notices whether objects pass between the tools and the code."""

        def called(name: str, arguments: Any, act: Callable[[], Any], values: Collection[Any] = ()) -> Any:
            self._notice(values)
            result = call(name, arguments, act, values)
            self._notice([result])
            return result

        return called

    def _notice(self, values: Collection[Any]) -> None:
        self._was_given |= not ATOMS.issuperset(map(type, values))

    def by(
        self, code: str | None, local: compat.Interpreter, held: Collection[str], described: set[str]
    ) -> set[str] | None:
        """The variables that code may have changed; None if it may have changed any.

        Args:
            code: the code of the step.
            local: the interpreter that has run it.
            held: the variables that the snapshot holds.
            described: variables of the snapshot before that hold an object which a record can only describe.
        """
        defined, unheld = self._defined, self._unheld
        self._defined = set(local.variables)
        self._unheld = {name for name, value in local.variables.items() if name not in held and _is_data(value)}
        named = None if code is None else _named(code, local, defined)
        if named is None or named & (described | unheld | self._unheld) or _names_function(named, local):
            self._take_given(local.variables)
            return None
        tools = {name for name in named & local.tools.keys() if not compat.is_builtin(name) and name != "final_answer"}
        libraries = {name for name in named if _may_keep(local.variables.get(name))}
        self._was_given |= bool(libraries or tools & local.functions.keys())
        self._take_given(named)
        return named | self._given if tools or libraries else named

    def _take_given(self, names: Iterable[str]) -> None:
        if self._was_given:
            self._given.update(names)
            self._was_given = False


def _named(code: str, local: compat.Interpreter, defined: set[str]) -> set[str] | None:
    """The variables that code names; None if it cannot be parsed.

    The interpreter takes a name that is not defined for a defined one that looks like it.
    """
    try:
        nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
    except (SyntaxError, ValueError):
        return None
    named, all_names = {node.id for node in nodes}, [*defined.union(local.variables)]
    for name in {node.id for node in nodes if isinstance(node.ctx, ast.Load)} - defined - local.tools.keys():
        named.update(difflib.get_close_matches(name, all_names, n=len(all_names)))
    return named


def _names_function(named: set[str], local: compat.Interpreter) -> bool:
    return any(local.defines(name) or isinstance(local.variables.get(name), _FUNCTIONS) for name in named)


def _is_data(value: Any) -> bool:
    return type(value) not in ATOMS and not issubclass(type(value), CODE)


def _may_keep(value: Any) -> bool:
    return isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] not in _KEEPS_NOTHING
