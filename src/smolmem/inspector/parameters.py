"""Values from requests: numbers, times, rules and forms, checked before anything else sees them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from smolmem.core.errors import InvalidArgument, NotFound, SmolmemError
from smolmem.policies.watch import Watch

MAX_FORM_BYTES = 2_000_000
RULES = ("pattern", "failures", "same_error", "loop", "slow")
"""The rules that the Patterns page can test."""


def number(text: str | None, name: str, error: type[SmolmemError] = NotFound) -> int | None:
    """A non-negative number; None for an empty text.

    Raises:
        NotFound: if the number is too large to exist.
        SmolmemError: of the class `error`, if the text is not a number.
    """
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        is_number = re.fullmatch(r"[0-9]+", text)
        raise (NotFound if is_number else error)(f"there is no {name} {text[:40]!r}.")
    return int(text)


def step_id(request: Request) -> int:
    """The id of a step in the path."""
    return number(request.path_params["step"], "step") or 0


def timestamp(text: str | None) -> float | None:
    """A Unix timestamp; None for an empty text."""
    try:
        value = float(text) if text else None
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise InvalidArgument(f"{str(text)[:40]!r} is not a time.")
    return value


def next_page(query: Mapping[str, str], until: float | None) -> dict[str, str]:
    """The query of the next page: the same filters, on runs that began before `until`."""
    filters = {name: value for name, value in query.items() if name not in ("until", "page", "fragment") and value}
    return filters | ({} if until is None else {"until": repr(until)})


def rule(query: Mapping[str, str]) -> Watch:
    """The rule that the form of the Patterns page describes.

    Raises:
        InvalidArgument: if there is no such rule.
    """
    try:
        window, threshold = int(query.get("window") or 10), int(query.get("threshold") or 3)
    except ValueError:
        raise InvalidArgument("window and threshold must be numbers.") from None
    options: dict[str, Any] = {"window": window, "threshold": threshold, "tool": query.get("tool") or None}
    if query["rule"] == "pattern":
        return Watch(query.get("pattern", ""), **options)
    constructors: dict[str, Callable[..., Watch]] = {name: getattr(Watch, name) for name in RULES[1:]}
    if query["rule"] not in constructors:
        raise InvalidArgument(f"there is no rule {query['rule']!r}.")
    return constructors[query["rule"]](**options)


async def form(request: Request) -> dict[str, str]:
    """The fields of a form of the inspector's own pages; every other kind of body is refused."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise HTTPException(415)
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_FORM_BYTES:
                raise HTTPException(413)
    except ClientDisconnect:  # nobody reads the answer; the server would log a traceback
        raise HTTPException(400) from None
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=20))
    except ValueError:
        raise HTTPException(400) from None
