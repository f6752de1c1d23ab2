"""An agent's variables, as far as they can be kept: its `state`, and what its code has assigned.

Taken after each step, so that a run can go on where running its code again would not give the same values. Functions,
classes and modules are not kept: the recorded code makes them anew.
"""

from __future__ import annotations

import types
from typing import Any

from smolmem.record import codec
from smolmem.record.codec import Encoded

LARGE = 5_000_000
"""Values of more bytes, or more items than a hundredth of this, are left out and named."""

_CODE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)


def snapshot(agent: Any) -> Encoded | None:
    """The variables of an agent; None if it has none."""
    executor = getattr(agent, "python_executor", None)
    known = getattr(executor, "state", None)
    names = visible(known) if isinstance(known, dict) else {}
    if not names and not agent.state:
        return None
    large = sorted(name for name, value in names.items() if _is_large(value))
    kept = {name: value for name, value in names.items() if name not in large}
    return codec.encode({"variables": kept, "state": dict(agent.state), "large": large})


def visible(state: dict[str, Any]) -> dict[str, Any]:
    """What the agent's code has assigned, without what makes code."""
    return {name: value for name, value in state.items() if not name.startswith("_") and not isinstance(value, _CODE)}


def _is_large(value: Any) -> bool:
    size = getattr(value, "nbytes", None)
    if size is None and hasattr(value, "memory_usage"):
        size = 8 * getattr(value, "size", 0)
    if isinstance(size, int):
        return size > LARGE
    return isinstance(value, (list, dict, set, tuple, str, bytes)) and len(value) > LARGE // 100
