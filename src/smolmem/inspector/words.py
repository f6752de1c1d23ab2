"""How values are written on a page: numbers, times, code. Text of anybody's passes through here or is escaped."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import PIL.Image
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from smolmem.core.text import sanitize
from smolmem.core.wire import safe_text

LONG = 20_000
"""Characters of a text that are shown at once."""
_PYTHON = PythonLexer(stripnl=False)
_FORMAT = HtmlFormatter(nowrap=True)


def number(value: Any) -> str:
    """Digits in groups."""
    return f"{value:,}" if isinstance(value, (int, float)) else ""


def seconds(value: Any) -> str:
    """How long something took."""
    if not isinstance(value, (int, float)):
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
    return Markup(highlight(sanitize(text[:LONG]), _PYTHON, _FORMAT))  # noqa: S704  Pygments escapes what it writes


def text(value: Any) -> str:
    """Any value as text that does nothing."""
    if isinstance(value, str):
        return sanitize(value)
    try:
        return sanitize(json.dumps(value, indent=1, ensure_ascii=False, default=described))
    except Exception:  # what is stored can be anything: in a ring, or a number of a million digits
        return sanitize(safe_text(described, value))


def described(value: Any) -> str:
    """A value in words; a picture is not asked, it would save itself."""
    if isinstance(value, PIL.Image.Image):
        return f"(a picture of {value.width:,} × {value.height:,} pixels)"
    return str(value)


def python(value: str) -> str:
    """A text as Python writes it."""
    return repr(value)


def short(value: Any, length: int = 160) -> str:
    """The beginning, in a line."""
    line = " ".join(text(value)[: length * 4].split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def said(message: Any) -> str:
    """A message as text."""
    content = getattr(message, "content", message)
    if not isinstance(content, list):
        return text(content if content is not None else "")
    parts = (item if isinstance(item, dict) else {"text": item} for item in content)
    return "\n".join(text(item.get("text", f"({item.get('type')})")) for item in parts)


def role(message: Any) -> str:
    """Who a message is from."""
    given = getattr(message, "role", "message")
    return short(getattr(given, "value", given), 20)


FILTERS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (number, seconds, time, ago, code, text, short, said, role, python)
}
