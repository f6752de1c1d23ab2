"""Regular expressions of users, with a time limit: some take years on a short text."""

from __future__ import annotations

import re
from typing import Any

import regex

from smolmem.core.errors import InvalidArgument

PATIENCE = 0.1
"""Seconds that a pattern may take on one text."""

Pattern = Any
"""A compiled pattern of `regex`, which has a time limit and the syntax of `re`."""


def pattern_of(given: str | re.Pattern[str]) -> Pattern:
    """Compiles a pattern.

    Raises:
        InvalidArgument: if the pattern is not a valid regular expression.
    """
    text, flags = (given.pattern, given.flags) if isinstance(given, re.Pattern) else (given, 0)
    try:
        if not isinstance(text, str):
            raise TypeError("it is not a string")
        return regex.compile(text, flags)
    except (regex.error, TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{text!r} is not a regular expression: {error}.") from None


def found(pattern: Pattern, text: str) -> bool:
    """Whether a pattern matches somewhere in a text.

    Raises:
        TimeoutError: if matching takes too long.
    """
    return pattern.search(text, timeout=PATIENCE) is not None


def replaced(pattern: Pattern, by: str, text: str) -> str:
    """Replaces every match by the literal text `by`.

    Raises:
        TimeoutError: if matching takes too long.
    """
    made: str = pattern.sub(lambda _: by, text, timeout=PATIENCE)
    return made


def spans(pattern: Pattern, text: str) -> list[tuple[int, int]]:
    """Where a pattern matches; of a pattern with groups, where its first group does.

    Raises:
        TimeoutError: if matching takes too long.
    """
    group = 1 if pattern.groups else 0
    found = (match.span(group) for match in pattern.finditer(text, timeout=PATIENCE))
    return [(start, end) for start, end in found if start < end]
