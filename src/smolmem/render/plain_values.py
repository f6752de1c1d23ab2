"""Runs, steps and notes as plain data and as JSON, for `--json` and the inspector.

The names of fields are documented and do not change.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

from smolmem.core import prices
from smolmem.core.text import BIDI_AND_C1
from smolmem.core.values import Run, Step

_RUN = (
    *("id", "status", "agent", "agent_type", "title", "scope", "session", "began", "ended", "seconds"),
    *("step_count", "error_count", "input_tokens", "output_tokens", "parent", "parent_step", "fork_of", "model"),
    *("smolagents", "max_steps", "tags"),
)
_STEP = (
    *("id", "reference", "run", "session", "scope", "agent", "kind", "number", "position", "at", "seconds"),
    *("error", "tools", "input_tokens", "output_tokens", "revision", "removed", "text"),
)


def plain(value: Any) -> Any:
    """A value as JSON can hold it: times in ISO 8601, and text for values that JSON has no type for."""
    if isinstance(value, Run):
        cost = prices.cost(value.model or "", value.input_tokens, value.output_tokens)
        return {name: plain(getattr(value, name)) for name in _RUN} | {"cost": cost}
    if isinstance(value, Step):
        return {name: plain(getattr(value, name)) for name in _STEP}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, (str, bytes)):
        return [plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.name[0] != "_"}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    import PIL.Image  # takes a while, and most values are plain

    if isinstance(value, PIL.Image.Image):  # str() of a smolagents image writes a file
        return f"(a picture of {value.width} × {value.height} pixels)"
    return str(value)


def whole(run: Run) -> dict[str, Any]:
    """A run with its whole task, its answer or failure, and its steps."""
    failure = run.failure
    ended = {"task": run.task, "answer": plain(run.answer), "failure": None if failure is None else str(failure)}
    return {**plain(run), **ended, "steps": plain(run.steps)}


_ESCAPED = re.compile(f"[{BIDI_AND_C1}\ud800-\udfff]")


def as_json(value: Any, *, ascii_only: bool = False, indent: int | None = 2) -> str:
    """A value as one JSON document; control characters are escaped, so that a terminal shows them."""
    text = json.dumps(_finite(value), ensure_ascii=ascii_only, allow_nan=False, indent=indent)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _finite(value: Any) -> Any:
    """Replaces numbers that JSON does not have with their names: `"nan"`, `"inf"`."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
