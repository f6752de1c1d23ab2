"""How values are written on a page: numbers, times, code. Text of anybody's passes through here or is escaped."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from smolmem.inert import inert

LONG = 20_000
"""Characters of a text that are shown at once."""
_PYTHON = PythonLexer(stripnl=False)
_FORMAT = HtmlFormatter(nowrap=True)


def number(value: int | None) -> str:
    """Digits in groups."""
    return "" if value is None else f"{value:,}"


def seconds(value: float | None) -> str:
    """How long something took."""
    if value is None:
        return ""
    if value >= 90:
        return f"{value / 60:.0f} min" if value < 5400 else f"{value / 3600:.1f} h"
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.0f} ms"


def time(value: datetime | None) -> str:
    """A time of this place, to the second."""
    return "" if value is None else f"{value.astimezone():%Y-%m-%d %H:%M:%S}"


def ago(value: datetime) -> str:
    """How long ago."""
    return f"{seconds((datetime.now(timezone.utc) - value).total_seconds())} ago"


def code(text: str) -> Markup:
    """Python, coloured by classes."""
    return Markup(highlight(inert(text[:LONG]), _PYTHON, _FORMAT))  # noqa: S704  Pygments escapes what it writes


def text(value: Any) -> str:
    """Any value as text that does nothing."""
    if isinstance(value, str):
        return inert(value)
    try:
        return inert(json.dumps(value, indent=1, ensure_ascii=False, default=str))
    except (TypeError, ValueError):
        return inert(str(value))


def short(value: Any, length: int = 160) -> str:
    """The beginning, in a line."""
    line = " ".join(text(value)[: length * 4].split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def said(message: Any) -> str:
    """A message as text."""
    content = (
        message.content if isinstance(message.content, list) else [{"type": "text", "text": message.content or ""}]
    )
    return inert("\n".join(str(item.get("text", f"({item.get('type')})")) for item in content))


def role(message: Any) -> str:
    """Who a message is from."""
    return str(getattr(message.role, "value", message.role))


FILTERS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (number, seconds, time, ago, code, text, short, said, role)
}
