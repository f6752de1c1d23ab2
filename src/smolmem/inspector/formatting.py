"""Template filters: how a page writes numbers, times, code and stored values.

Stored text can be hostile. Every filter returns sanitized text, which the templates escape, or markup from Pygments,
which escapes its input.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from itertools import islice
from typing import Any

import PIL.Image
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from smolmem.core import text as core_text
from smolmem.core.encoding.placeholders import safe_text
from smolmem.core.smolagents_texts import managed_task
from smolmem.core.text import sanitize
from smolmem.core.values import Excerpt, Run
from smolmem.recall.highlight import Highlighter

MAX_TEXT = 20_000
"""The most characters of one text that a page shows."""
MAX_PIECES = 100_000
"""The most items and brackets of a value that are written as text."""
_LEXER = PythonLexer(stripnl=False)
_FORMATTER = HtmlFormatter(nowrap=True)


def number(value: Any) -> str:
    """A number with its digits in groups: `12,345`."""
    return f"{value:,}" if isinstance(value, (int, float)) else ""


def seconds(value: Any) -> str:
    """A duration in the unit that fits: `40 ms`, `2.5 s`, `3 min`, `1.5 h`."""
    if not isinstance(value, (int, float)):
        return ""
    if value >= 90:
        return f"{value / 60:.0f} min" if value < 5400 else f"{value / 3600:.1f} h"
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.0f} ms"


def time(value: datetime | None) -> str:
    """A time in the local time zone, to the second."""
    return "" if value is None else f"{value.astimezone():%Y-%m-%d %H:%M:%S}"


def ago(value: datetime) -> str:
    """The time since a moment: `28 s ago`, `3 min ago`, `5 h ago`, `12 days ago`."""
    passed = max(0.0, (datetime.now(timezone.utc) - value).total_seconds())
    for limit, divisor, unit in ((90, 1, "s"), (5_400, 60, "min"), (172_800, 3_600, "h")):
        if passed < limit:
            return f"{passed / divisor:.0f} {unit} ago"
    return f"{passed / 86_400:.0f} days ago"


def short(value: int) -> str:
    """A large number in few characters: `850`, `12.3k`, `4.5M`."""
    for limit, divisor, unit in ((1_000, 1, ""), (1_000_000, 1_000, "k"), (10**18, 1_000_000, "M")):
        if value < limit:
            return f"{value / divisor:.1f}{unit}" if unit else str(value)
    return f"{value:.1e}"


def dollars(value: float | None) -> str:
    """An amount of money; small amounts with more digits; empty if no price is known."""
    if value is None:
        return ""
    return f"${value:,.2f}" if value >= 1 or value == 0 else f"${value:.4f}"


NO_TASK = "(no task)"
"""What a run with an empty task is called, so that there is a link to it."""


def title(run: Run, length: int = 110) -> str:
    """What a run is about, in one line; for a managed agent, the task that it was given."""
    return core_text.one_line(managed_task(run.title) if run.parent else run.title, length) or NO_TASK


STATUS_LABELS = {"max_steps": "out of steps", "forked": "fork, not started"}


def status(run: Run) -> str:
    """The status of a run, as a label."""
    return STATUS_LABELS.get(run.label, run.label)


def code(source: str) -> Markup:
    """Python with syntax highlighting, as spans with CSS classes."""
    return Markup(highlight(sanitize(source[:MAX_TEXT]), _LEXER, _FORMATTER))  # noqa: S704  Pygments escapes its input


def text(value: Any) -> str:
    """Any value as sanitized text."""
    if isinstance(value, str):
        return sanitize(value)
    if isinstance(value, Exception):
        return sanitize(safe_text(str, value))
    try:
        pieces = json.JSONEncoder(indent=1, ensure_ascii=False, default=_describe).iterencode(value)
        return sanitize("".join(islice(pieces, MAX_PIECES)))
    except Exception:  # a stored value can be a reference cycle, or a number with a million digits
        return sanitize(safe_text(_describe, value))


def _describe(value: Any) -> str:
    """A value that is not JSON, as text; `str` of a smolagents image would save a file."""
    if isinstance(value, PIL.Image.Image):
        size = f" of {value.width:,} × {value.height:,} pixels" if value.width else ""  # a wrapper has no size
        return f"(a picture{size})"
    return str(value)


def one_line(value: Any, length: int = 160) -> str:
    """The beginning of a value as one line of sanitized text."""
    return core_text.one_line(value if isinstance(value, str) else text(value), length)


def marked(excerpt: Excerpt, length: int) -> Markup:
    """The beginning of a passage in one line, with the words of the question marked."""
    start = max(0, min((mark[0] for mark in excerpt.marks), default=0) - length // 4)
    end = start + length
    inside = [(left - start, right - start) for left, right in excerpt.marks if start <= left and right <= end]
    line = _with_marks(sanitize(excerpt.text[start:end]).replace("\n", " "), inside)
    return Markup("").join(["…" if start else "", line, "…" if end < len(excerpt.text) else ""])


def with_marks(value: str, words: Sequence[str]) -> Markup:
    """A text with the words of a question marked."""
    return _with_marks(value, Highlighter(words).marks(value))


def _with_marks(value: str, marks: Iterable[tuple[int, int]]) -> Markup:
    parts, place = list[Markup](), 0
    for begin, end in marks:
        parts += [escape(value[place:begin]), Markup("<mark>{}</mark>").format(value[begin:end])]
        place = end
    return Markup("").join([*parts, escape(value[place:])])


ORIGINS = {
    "user": "from a user",
    "model": "from the model",
    "tool": "from a tool",
    "web": "from the web",
    "agent": "from another agent",
    "import": "from an import",
}
SIGNALS = {
    "lexical": "words",
    "semantic": "meaning",
    "neighbours": "steps beside it",
    "session": "same conversation",
    "time": "time asked for",
    "recency": "how recent",
    "reranker": "reranker",
    "alone": "on its own",
}


def message_text(message: Any) -> str:
    """The sanitized text of a chat message."""
    content = getattr(message, "content", message)
    parts = content if isinstance(content, list) else ["" if content is None else content]
    if all(isinstance(part.get("text", "") if isinstance(part, dict) else part, str) for part in parts):
        return sanitize(core_text.message_text(message))
    return text(content)  # the content of a stored message can be a value of any type


def message_role(message: Any) -> str:
    """The sanitized role of a chat message."""
    return core_text.one_line(core_text.message_role(message), 20)


_FUNCTIONS = (
    *(number, seconds, time, ago, short, dollars, title, status),
    *(with_marks, code, text, one_line, marked, message_text, message_role),
)
FILTERS: dict[str, Callable[..., Any]] = {
    **{each.__name__: each for each in _FUNCTIONS},
    "origin": lambda value: ORIGINS.get(value, value),
    "signal": lambda value: SIGNALS.get(value, value),
    "python_literal": repr,
}
"""The filters by the names that templates use."""
