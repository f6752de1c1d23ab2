"""The shape of each line of an export, checked before the line is used, and the numbers that lines refer to."""

from __future__ import annotations

import json
import math
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from smolmem.core.rows import ORIGINS, STATUSES
from smolmem.core.text import one_line, storable
from smolmem.store.base import Row

FORMAT = "smolmem"
VERSION = 1
LATE = 100_000
"""Larger numbers of the same table that may come before a number."""

Check = Callable[[Any], Any]
_ID = re.compile(r"[0-9a-f]{1,64}")
_HASH = re.compile(r"[0-9a-f]{40}")
_EARLIEST, _LATEST = -62_135_596_800, 253_402_300_799  # the years 1 and 9999


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a number")


_JSON = json.JSONDecoder(parse_constant=_refuse)


class InvalidLine(Exception):
    """A line that no export holds; reported as `Damaged`, with the file and the number of the line."""


def parse_line(line: bytes) -> tuple[str, Row]:
    """The type of a line and its checked fields; unknown fields are left out.

    Raises:
        InvalidLine: if a field is missing or has a wrong value.
    """
    try:
        row = _JSON.decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidLine(f"the line is not JSON ({error})") from error
    kind = row.get("type") if isinstance(row, dict) else None
    if not isinstance(kind, str) or kind not in SHAPES:
        raise InvalidLine(f"the type of the line is unknown ({str(kind)[:40]!r})")
    if kind == "content":
        return kind, _content(row)
    made: Row = {}
    for name, check in SHAPES[kind].items():
        try:
            made[name] = check(row.get(name))
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidLine(f"the {kind} has an invalid {name}: {one_line(repr(row.get(name)), 60)}") from error
    return kind, made


def _content(row: Row) -> Row:
    given = [name for name in ("json", "text", "file") if name in row]
    if len(given) != 1 or not isinstance(row.get("hash"), str) or not _HASH.fullmatch(row["hash"]):
        raise InvalidLine("a content has a hash and one of json, text, file")
    if given != ["json"] and not isinstance(row[given[0]], str):
        raise InvalidLine(f"the {given[0]} of a content is not a text")
    return row


def _checked(valid: bool, value: Any) -> Any:
    if not valid:
        raise ValueError
    return value


def _text(value: Any) -> Any:
    return _checked(isinstance(value, str) and storable(value) == value, value)


def _id(value: Any) -> Any:
    return _checked(isinstance(value, str) and _ID.fullmatch(value) is not None, value)


def _hash(value: Any) -> Any:
    return _checked(isinstance(value, str) and _HASH.fullmatch(value) is not None, value)


def _integer(value: Any) -> Any:
    return _checked(type(value) is int and -(1 << 62) < value < 1 << 62, value)


def _count(value: Any) -> Any:
    return _checked(_integer(value) >= 0, value)


def _number(value: Any) -> Any:
    return _checked(_integer(value) > 0, value)


def _flag(value: Any) -> Any:
    return _checked(type(value) is int and value in (0, 1), value)


def _time(value: Any) -> float:
    made = float(_checked(type(value) in (int, float), value))
    return float(_checked(math.isfinite(made) and _EARLIEST < made < _LATEST, made))


def _choice(choices: tuple[str, ...], value: Any) -> Any:
    return _checked(isinstance(value, str) and value in choices, value)


def _list(check: Check, value: Any) -> list[Any]:
    return [check(item) for item in _checked(isinstance(value, list), value)]


def _optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _source(value: Any) -> Any:
    return _text(value) if isinstance(value, str) else _count(value)


def _texts(value: Any) -> list[Any]:
    return _list(_text, value)


def _nonblank(value: Any) -> Any:
    return _checked(bool(_text(value).strip()), value)


SHAPES: dict[str, dict[str, Check]] = {
    "header": {"format": _text, "version": _number, "scope": _optional(_text)},
    "content": {},
    "session": {
        "id": _id,
        "scope": _text,
        "agent": _text,
        "began": _time,
        "fork_of": _optional(_id),
        "fork_at": _optional(_count),
    },
    "prompt": {
        "id": _number,
        "parent": _optional(_number),
        "keep": _count,
        "size": _count,
        "suffix": partial(_list, _hash),
    },
    "event": {
        "id": _number,
        "session": _id,
        "run": _id,
        "at": _time,
        "act": partial(_choice, ("insert", "remove", "revise")),
        "step": _number,
        "place": _optional(_count),
        "record": _optional(_hash),
        "shown": _optional(_hash),
        "prompt": _optional(_number),
        "state": _optional(_hash),
    },
    "run": {
        "id": _id,
        "session": _id,
        "scope": _text,
        "agent": _text,
        "agent_type": _text,
        "title": _text,
        "status": partial(_choice, STATUSES),
        "began": _time,
        "ended": _optional(_time),
        "parent": _optional(_id),
        "parent_step": _optional(_integer),
        "fork_of": _optional(_id),
        "model": _optional(_text),
        "smolagents": _text,
        "max_steps": _optional(_integer),
        "steps": _count,
        "errors": _count,
        "input_tokens": _integer,
        "output_tokens": _integer,
        "answer": _optional(_hash),
        "failure": _optional(_hash),
        "tags": lambda value: _texts([] if value is None else value),  # not in exports of 0.1
    },
    "step": {"id": _number},
    "call": {
        "id": _number,
        "run": _id,
        "turn": _count,
        "kind": partial(_choice, ("model", "tool")),
        "name": _text,
        "arguments": _hash,
        "began": _time,
        "ended": _optional(_time),
        "failed": _count,
        "outcome": _optional(_hash),
        "web": _optional(_flag),  # not in exports of 0.1
    },
    "recalled": {
        "id": _number,
        "run": _id,
        "step": _optional(_number),
        "at": _time,
        "query": _text,
        "block": _optional(_hash),
        "found": partial(_list, _source),
    },
    "cut": {
        "id": _number,
        "session": _id,
        "view": _text,
        "last": _number,
        "parts": _count,
        "before": _integer,
        "after": _integer,
        "text": _text,
        "at": _time,
    },
    "alert": {
        "id": _number,
        "scope": _text,
        "agent": _text,
        "run": _optional(_id),
        "number": _optional(_integer),
        "rule": _text,
        "reason": _text,
        "at": _time,
        "acts": _texts,
    },
    "note": {
        "id": _id,
        "scope": _text,
        "kind": _nonblank,
        "text": _nonblank,
        "tags": _texts,
        "origin": partial(_choice, ORIGINS),
        "run": _optional(_id),
        "at": _time,
        "expires": _optional(_time),
        "supersedes": _optional(_id),
        "sources": partial(_list, _source),
    },
    "forgotten": {"id": _number, "what": partial(_choice, ("note", "step", "run")), "target": _source, "at": _time},
    "end": {"lines": _count},
}
"""For each type of line, its fields and their checks."""


class Numbers:
    """Maps numbers of an export to numbers of this store; 0 for a line that is left out.

    Args:
        what: the table, for errors.
        earlier: numbers of lines that were loaded before.

    Numbers nearly ascend: workers of one server take theirs a moment before they use them.
    """

    def __init__(self, what: str, earlier: Mapping[int, int] | None = None) -> None:
        self._what, self._earlier = what, earlier or {}
        self._there, self._here = array("q"), array("q")

    def put(self, there: int, here: int) -> None:
        """Adds a number of the export, and the number it has here."""
        place = bisect_left(self._there, there)
        if there < 1 or len(self._there) - place > LATE or self.find(there) is not None:
            raise InvalidLine(f"{self._what} {there} comes twice or out of order")
        self._there.insert(place, there)
        self._here.insert(place, here)

    def items(self) -> Iterator[tuple[int, int]]:
        """All numbers that were added, each with the number it has here."""
        return zip(self._there, self._here, strict=True)

    def find(self, there: int) -> int | None:
        """The number in this store; None if the export did not mention it yet."""
        place = bisect_left(self._there, there)
        if place < len(self._there) and self._there[place] == there:
            return self._here[place]
        return self._earlier.get(there)

    def get(self, there: int) -> int:
        """The number in this store of a row that a line refers to."""
        found = self.find(there)
        if found is None:
            raise InvalidLine(f"the line refers to {self._what} {there}, which no earlier line holds")
        return found
