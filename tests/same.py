"""Whether two values are the same, looking inside what `==` cannot compare."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import PIL.Image
from smolagents.memory import ToolCall

from smolmem.core.encoding.placeholders import Placeholder, safe_text, type_name


def same(made: Any, given: Any, seen: frozenset[tuple[int, int]] = frozenset()) -> bool:
    """Equal, or a mark that says what the value was."""
    here = (id(made), id(given))
    if made is given or here in seen:
        return True
    seen |= {here}
    if isinstance(made, Placeholder):
        return marks(made, given)
    if isinstance(given, PIL.Image.Image) and type(given).__name__ != "AgentImage":
        return (made.mode, made.size, made.tobytes(), made.getpalette()) == (
            *(given.mode, given.size, given.tobytes(), given.getpalette()),
        )
    if isinstance(given, np.ndarray | np.generic):
        return made.dtype == given.dtype and made.shape == given.shape and same(made.tolist(), given.tolist(), seen)
    if type(given).__module__.startswith("pandas"):
        return type(made) is type(given) and (
            made is given or (made.equals(given) if hasattr(made, "equals") else made == given)
        )
    if isinstance(given, BaseException):
        return (
            str(made) == safe_text(str, given)
            and type(made).__name__ == type(given).__name__
            and same(made.__cause__, given.__cause__, seen)
        )
    if isinstance(given, float | complex | decimal.Decimal) and type(made) is type(given):
        return repr(made) == repr(given)
    if isinstance(given, ToolCall):
        return isinstance(made, ToolCall) and fields(made, given, seen)
    if isinstance(given, list | tuple):
        return (
            isinstance(made, list | tuple)
            and len(made) == len(given)
            and all(map(same, made, given, [seen] * len(made)))
        )
    if isinstance(given, dict):
        pairs = zip(made.items(), given.items(), strict=True)
        return all(same(a, c, seen) and same(b, d, seen) for (a, b), (c, d) in pairs)
    if hasattr(given, "__dict__") and type(made).__name__ == type(given).__name__ and not isinstance(given, str):
        return fields(made, given, seen)
    return bool(made == given)


def fields(made: Any, given: Any, seen: frozenset[tuple[int, int]]) -> bool:
    if type(given).__name__ == "AgentImage":
        return same(made.to_raw(), given.to_raw(), seen)
    return vars(made).keys() == vars(given).keys() and all(same(vars(made)[k], v, seen) for k, v in vars(given).items())


def marks(made: Placeholder, given: Any) -> bool:
    """A mark names the type it stands for and shows what the original showed."""
    if made._described["type"] == "smolmem.cycle":
        return True
    return made._described["type"] == type_name(given) and str(made) == safe_text(str, given)
