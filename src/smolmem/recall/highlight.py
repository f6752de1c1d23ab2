"""Where the words of a question stand in a text."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WORD = re.compile(r"[^\W_]+")
MAX_MARKS = 50


def marks(text: str, words: Iterable[str]) -> tuple[tuple[int, int], ...]:
    """The places of words in a text, also in other grammatical forms: as pairs of start and end."""
    stems = tuple(_stem(word) for word in words)
    found = (match.span() for match in _WORD.finditer(text) if match[0].lower().startswith(stems))
    return tuple(span for span, _ in zip(found, range(MAX_MARKS), strict=False)) if stems else ()


def among(words: Iterable[str], said: Iterable[str]) -> list[str]:
    """Those of some words of which a form was said."""
    forms = [form.lower() for form in said]
    return [word for word in words if any(form.startswith(_stem(word)) for form in forms)]


def _stem(word: str) -> str:
    """The beginning that the forms of a word share, roughly."""
    plain = word.rstrip("*")
    return plain if len(plain) <= 4 else plain[: max(4, len(plain) - 3)]
