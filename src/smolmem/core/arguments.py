"""Checks of arguments, with errors that say what is expected."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta, timezone
from typing import Any, TypedDict

from smolmem.core import clock
from smolmem.core.errors import InvalidArgument
from smolmem.core.text import storable
from smolmem.core.values import is_time

Time = datetime | float | str
"""A datetime, a timestamp, or ISO text."""


MAX_TAGS = 50
"""How many tags a note or a run can have."""


class ScopeFilter(TypedDict):
    """A scope and the beginning of the scopes in it, as queries take them; both None for all scopes."""

    scope: str | None
    below: str | None


def check_scope(value: Any) -> str:
    """A scope: a path such as `acme/alice`."""
    if not isinstance(value, str) or not value or value != value.strip("/ ") or "*" in value or not value.isprintable():
        raise InvalidArgument(f"a scope is a path such as 'acme/alice', not {value!r}.")
    return value


def scope_filter(value: str) -> ScopeFilter:
    """One scope, `acme/*` for a scope and all scopes in it, or `*` for all scopes."""
    if value == "*":
        return ScopeFilter(scope=None, below=None)
    if isinstance(value, str) and value.endswith("/*"):
        return ScopeFilter(scope=check_scope(value[:-2]), below=value[:-1])
    return ScopeFilter(scope=check_scope(value), below=None)


EVERYWHERE = ScopeFilter(scope=None, below=None)


def in_scope(scope: str, bounds: ScopeFilter) -> bool:
    """Whether a scope lies within bounds."""
    below = bounds["below"] is not None and scope.startswith(bounds["below"])
    return bounds["scope"] in (None, scope) or below


def check_text(value: Any, name: str) -> str | None:
    """A text that every database accepts, or None."""
    if value is None or isinstance(value, str):
        return None if value is None else storable(value)
    raise InvalidArgument(f"{name} is a text, not {value!r}.")


def check_word(value: Any, name: str) -> str:
    """A short word or a few words, such as a tag."""
    if not isinstance(value, str) or not value.strip() or len(value) > 100 or not value.isprintable():
        raise InvalidArgument(f"a {name} is a short word, not {value!r}.")
    return storable(value.strip())


def check_tags(tags: Iterable[str], known: Collection[str] = ()) -> tuple[str, ...]:
    """Tags, each once, and not more than a page or a table can show; known ones may have come with an import."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InvalidArgument(f"tags are a list of words such as ['deploy'], not {tags!r}.")
    found = tuple(dict.fromkeys(tag if tag in known else check_word(tag, "tag") for tag in tags))
    if len(found) > MAX_TAGS:
        raise InvalidArgument(f"a note or a run has at most {MAX_TAGS} tags, not {len(found):,}.")
    return found


def check_choice(value: Any, choices: Collection[str], name: str) -> str | None:
    """One of some words, or None."""
    if value is not None and value not in choices:
        raise InvalidArgument(f"{name} is one of {', '.join(choices)}, not {value!r}.")
    return None if value is None else str(value)


def check_count(value: Any, name: str = "limit") -> int:
    """A number that is not negative."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise InvalidArgument(f"{name} is a whole number, 0 or more, not {value!r}.")
    return value


def to_timestamp(value: Any) -> float | None:
    """A point in time, in seconds."""
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:  # NaN is no time
        return float(value)
    try:
        moment = datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else value
        return (moment if moment.tzinfo else moment.astimezone()).astimezone(timezone.utc).timestamp()
    except (AttributeError, TypeError, ValueError, OverflowError, OSError) as error:
        raise InvalidArgument(
            f"{value!r} is not a time: give a datetime, a timestamp, or text such as '2025-03-31T12:00'."
        ) from error


def to_deadline(value: Time | timedelta | None) -> float | None:
    """When something expires: a time, or a duration from now."""
    found = clock.now() + value.total_seconds() if isinstance(value, timedelta) else to_timestamp(value)
    if found is not None and not is_time(found):
        raise InvalidArgument(f"nothing can expire at {value!r}: give a time before the year 9000, or none for never.")
    return found
