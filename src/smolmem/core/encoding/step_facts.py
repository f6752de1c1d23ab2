"""What the `step` table says of a step: the columns that it can be found by."""

from __future__ import annotations

import json
import math
from typing import Any, TypedDict

from smolagents import memory

from smolmem.core.encoding.codec import Encoded, decode, kind_of
from smolmem.core.encoding.placeholders import safe_text
from smolmem.core.text import storable


class Facts(TypedDict):
    """The columns a step can be found by."""

    kind: str
    number: int | None
    seconds: float | None
    error: str | None
    tools: str
    input_tokens: int | None
    output_tokens: int | None
    text: str


def stored_facts(step: Any, encoded: Encoded) -> Facts:
    """The facts of a step as it is stored."""
    return facts(decode(encoded.record, encoded.blobs.__getitem__) if encoded.redacted else step)


def facts(step: Any) -> Facts:
    """The columns a step can be found by; derived from the step alone, so that they can be verified."""
    tokens, timing = getattr(step, "token_usage", None), getattr(step, "timing", None)
    error, calls = getattr(step, "error", None), getattr(step, "tool_calls", None)
    number = getattr(step, "step_number", None)
    names = [call.name for call in calls if isinstance(call, memory.ToolCall)] if isinstance(calls, list) else []
    return {
        "kind": kind_of(step),
        "number": number if _is_count(number) else None,
        "seconds": _seconds(timing),
        "error": None if error is None else type(error).__name__,
        "tools": json.dumps([_words(name) for name in names]),
        "input_tokens": _tokens(tokens, "input_tokens"),
        "output_tokens": _tokens(tokens, "output_tokens"),
        "text": "" if isinstance(step, memory.SystemPromptStep) else storable(_text(step)),
    }


def _text(step: Any) -> str:
    """The text of a step: task, plan, model output, observations, error."""
    if not isinstance(step, memory.MemoryStep):
        return safe_text(str, step)
    named = ("task", "plan", "model_output", "observations", "error")
    said = (getattr(step, name, None) for name in named)
    return "\n\n".join(text for text in (_words(item) for item in said if item is not None) if text)


def _words(value: Any) -> str:
    return str.__str__(value) if isinstance(value, str) else safe_text(str, value)


def _is_count(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _tokens(usage: Any, name: str) -> int | None:
    count = getattr(usage, name, None)
    return count if _is_count(count) else None


def _seconds(timing: Any) -> float | None:
    start, end = getattr(timing, "start_time", None), getattr(timing, "end_time", None)
    if not isinstance(start, (int, float)) or not isinstance(end, (int, float)):
        return None
    took = float(end) - float(start)
    return took if math.isfinite(took) else None
