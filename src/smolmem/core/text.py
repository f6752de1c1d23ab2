"""Text that is safe to print and store, and the short forms in which values are shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

BIDI_AND_C1 = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""DEL, the C1 control characters, and the Unicode characters that reorder or break lines."""
_CONTROL = re.compile(f"[\x00-\x08\x0b-\x1f{BIDI_AND_C1}]")
"""These, and the control characters of ASCII except tab and line feed."""
_UNSTORABLE = re.compile("[\ud800-\udfff\0]")


def sanitize(text: str) -> str:
    """Text that a terminal cannot obey: control characters become visible symbols such as `␛`."""
    return _CONTROL.sub(lambda found: chr(0x2400 + ord(found[0])) if ord(found[0]) < 0x20 else "\ufffd", text)


def storable(text: str) -> str:
    """Text that every database accepts: lone surrogates and NUL, which models do write, become U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def one_line(text: str, length: int) -> str:
    """The beginning of a text as one sanitized line of at most `length` characters."""
    line = " ".join(sanitize(text[: 4 * length]).split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def byte_size(size: float) -> str:
    """A number of bytes in the largest fitting unit: `812 bytes`, `4.2 kB`, `118 MB`."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


def duration(seconds: float | None) -> str:
    """A duration in the largest fitting unit: `40 ms`, `2.5 s`, `3 min 20 s`, `1.7 h`; empty if it is unknown."""
    if seconds is None:
        return ""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes / 60:,.1f} h"


def counted(count: int, noun: str) -> str:
    """A number of things: `1 step`, `2,000 steps`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def message_content(message: Any) -> Any:
    """The content of a chat message; a step class of the user's own may write messages as dicts."""
    return message.get("content") if isinstance(message, dict) else getattr(message, "content", message)


def message_role(message: Any) -> str:
    """The role of a chat message, as text."""
    role = message.get("role", "message") if isinstance(message, dict) else getattr(message, "role", "message")
    return str(getattr(role, "value", role))


def message_texts(message: Any) -> list[str]:
    """The texts of a chat message, one for each part; a part that is not text is named in brackets.

    Only text is turned into text: `str()` of an agent's image would write a file.
    """
    content = message_content(message)
    if not isinstance(content, list):
        return [] if content is None else [_text_or_name(content)]
    parts = (part if isinstance(part, dict) else {"text": part} for part in content)
    return [_text_or_name(part["text"]) if part.get("text") is not None else f"[{part.get('type')}]" for part in parts]


def _text_or_name(value: Any) -> str:
    plain = isinstance(value, (str, int, float))
    return str(value) if plain else f"[{type(value).__name__}]"


def message_text(message: Any) -> str:
    """The text of a chat message."""
    return "\n".join(message_texts(message))


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Places in a text, each from its start to before its end, in order and with touching ones joined."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
