"""What users pass in, checked once, with errors that say what is wanted."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, TypedDict

from smolmem.errors import BadValue
from smolmem.record.codec import plain

Time = datetime | float | str


def scope_of(value: Any) -> str:
    """A scope."""
    if not isinstance(value, str) or not value or value != value.strip("/ ") or "*" in value or not value.isprintable():
        raise BadValue(f"a scope is a path such as 'acme/alice', not {value!r}.")
    return value


class Scopes(TypedDict):
    """A scope and what lies below it, as queries take them; both None for all."""

    scope: str | None
    below: str | None


def scopes(value: str) -> Scopes:
    """A scope, `acme/*` for it and all below, or `*` for all."""
    if value == "*":
        return Scopes(scope=None, below=None)
    if isinstance(value, str) and value.endswith("/*"):
        return Scopes(scope=scope_of(value[:-2]), below=value[:-1])
    return Scopes(scope=scope_of(value), below=None)


def text_of(value: Any, name: str) -> str | None:
    """A text that every database takes."""
    if value is None or isinstance(value, str):
        return None if value is None else plain(value)
    raise BadValue(f"{name} is a text, not {value!r}.")


def one_of(value: str | None, words: tuple[str, ...]) -> str | None:
    """One of some words."""
    if value is not None and value not in words:
        raise BadValue(f"{value!r} is not one of {', '.join(words)}.")
    return value


def count_of(value: Any, name: str = "limit") -> int:
    """How many."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise BadValue(f"{name} is a count, not {value!r}.")
    return value


def time_of(value: Any) -> float | None:
    """A point in time, as seconds."""
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    try:
        moment = datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else value
        return (moment if moment.tzinfo else moment.astimezone()).astimezone(timezone.utc).timestamp()
    except (AttributeError, TypeError, ValueError, OverflowError, OSError) as error:
        raise BadValue(
            f"{value!r} is not a time: give a datetime, a timestamp, or text such as '2025-03-31T12:00'."
        ) from error


def end_of(value: Time | timedelta | None) -> float | None:
    """When something is over: a time, or how long from now."""
    if isinstance(value, timedelta):
        return (datetime.now(timezone.utc) + value).timestamp()
    return time_of(value)
