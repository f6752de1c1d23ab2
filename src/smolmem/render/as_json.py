"""JSON in which every control character is escaped, so that a terminal shows it and does not execute it."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from smolmem.core.text import BIDI_AND_C1

_ESCAPED = re.compile(f"[{BIDI_AND_C1}\ud800-\udfff]")


def as_json(value: Any, *, ascii_only: bool = False, indent: int | None = 2) -> str:
    """A value as one JSON document."""
    text = json.dumps(_finite(value), ensure_ascii=ascii_only, allow_nan=False, indent=indent)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _finite(value: Any) -> Any:
    """Replaces numbers that JSON does not have with their names: `"nan"`, `"inf"`."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
