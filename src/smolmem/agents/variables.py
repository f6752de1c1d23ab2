"""A snapshot of an agent's variables: its `state`, and what its code has assigned.

A snapshot is taken after each step, for runs whose code does not give the same values when it is run again. Functions,
classes and modules are not part of it: the recorded code makes them again.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from smolmem.agents import compat
from smolmem.core.codec import Encoded

LARGE = 5_000_000
"""Values of more bytes, or of more items than a hundredth of this, are left out and named."""

_CODE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)


def snapshot(agent: Any, encode: Callable[[Any], Encoded]) -> Encoded | None:
    """The variables of an agent, encoded; None if it has none."""
    local = compat.interpreter_of(agent)
    names = {} if local is None else visible(local.variables)
    if not names and not agent.state:
        return None
    large = sorted(name for name, value in names.items() if _is_large(value))
    kept = {name: value for name, value in names.items() if name not in large}
    return encode({"variables": kept, "state": dict(agent.state), "large": large})


def visible(state: dict[str, Any]) -> dict[str, Any]:
    """What the agent's code has assigned, without functions, classes and modules."""
    return {
        name: value for name, value in state.items() if not name.startswith("_") and not issubclass(type(value), _CODE)
    }


def _is_large(value: Any) -> bool:
    try:
        size = getattr(value, "nbytes", None)
        if size is None and hasattr(value, "memory_usage"):
            size = 8 * getattr(value, "size", 0)
        if isinstance(size, int):
            return size > LARGE
        return isinstance(value, (list, dict, set, tuple, str, bytes)) and len(value) > LARGE // 100
    except Exception:  # an object of any class: the codec decides
        return False
