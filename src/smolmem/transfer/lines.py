"""The shape of each line of an export, checked before the line is used, and the numbers that lines refer to."""

from __future__ import annotations

import json
import math
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Any

from smolmem.core.rows import ORIGINS, STATUSES
from smolmem.core.text import one_line, storable
from smolmem.store.base import Row

FORMAT = "smolmem"
VERSION = 1

Check = Callable[[Any], Any]
_ID = re.compile(r"[0-9a-f]{1,64}")
_HASH = re.compile(r"[0-9a-f]{40}")
_EARLIEST, _LATEST = -62_135_596_800, 253_402_300_799  # the years 1 and 9999


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number")


_JSON = json.JSONDecoder(parse_constant=_refuse)


class Wrong(Exception):
    """A line that no export has; raised as `Damaged`, with its file and number."""


def shaped(line: bytes) -> tuple[str, Row]:
    """The type of a line and its checked fields; unknown fields are left out.

    Raises:
        Wrong: if a field is missing or has a wrong value.
    """
    try:
        row = _JSON.decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise Wrong(f"it is not JSON ({error})") from error
    kind = row.get("type") if isinstance(row, dict) else None
    if not isinstance(kind, str) or kind not in SHAPES:
        raise Wrong(f"it is of no known type ({str(kind)[:40]!r})")
    if kind == "content":
        return kind, _content(row)
    made: Row = {}
    for name, check in SHAPES[kind].items():
        try:
            made[name] = check(row.get(name))
        except (ValueError, TypeError, OverflowError) as error:
            raise Wrong(f"{name} of this {kind} cannot be {one_line(repr(row.get(name)), 60)}") from error
    return kind, made


def _content(row: Row) -> Row:
    given = [name for name in ("json", "text", "file") if name in row]
    if len(given) != 1 or not isinstance(row.get("hash"), str) or not _HASH.fullmatch(row["hash"]):
        raise Wrong("a content has a hash, and one of json, text, file")
    if given != ["json"] and not isinstance(row[given[0]], str):
        raise Wrong(f"{given[0]} of this content is not a text")
    return row


def _is(fine: bool, value: Any) -> Any:
    if not fine:
        raise ValueError
    return value


def _text(value: Any) -> Any:
    return _is(isinstance(value, str) and storable(value) == value, value)


def _id(value: Any) -> Any:
    return _is(isinstance(value, str) and _ID.fullmatch(value) is not None, value)


def _hash(value: Any) -> Any:
    return _is(isinstance(value, str) and _HASH.fullmatch(value) is not None, value)


def _integer(value: Any) -> Any:
    return _is(type(value) is int and -(1 << 62) < value < 1 << 62, value)


def _count(value: Any) -> Any:
    return _is(_integer(value) >= 0, value)


def _number(value: Any) -> Any:
    return _is(_integer(value) > 0, value)


def _time(value: Any) -> float:
    made = float(_is(type(value) in (int, float), value))
    return float(_is(math.isfinite(made) and _EARLIEST < made < _LATEST, made))


def _word(words: tuple[str, ...], value: Any) -> Any:
    return _is(isinstance(value, str) and value in words, value)


def _list(check: Check, value: Any) -> list[Any]:
    return [check(item) for item in _is(isinstance(value, list), value)]


def _maybe(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _source(value: Any) -> Any:
    return _text(value) if isinstance(value, str) else _count(value)


def _words(value: Any) -> list[Any]:
    return _list(_text, value)


def _said(value: Any) -> Any:
    return _is(bool(_text(value).strip()), value)


SHAPES: dict[str, dict[str, Check]] = {
    "header": {"format": _text, "version": _number, "scope": _maybe(_text)},
    "content": {},
    "session": {
        "id": _id,
        "scope": _text,
        "agent": _text,
        "began": _time,
        "fork_of": _maybe(_id),
        "fork_at": _maybe(_count),
    },
    "prompt": {
        "id": _number,
        "parent": _maybe(_number),
        "keep": _count,
        "size": _count,
        "suffix": partial(_list, _hash),
    },
    "event": {
        "id": _number,
        "session": _id,
        "run": _id,
        "at": _time,
        "act": partial(_word, ("insert", "remove", "revise")),
        "step": _number,
        "place": _maybe(_count),
        "record": _maybe(_hash),
        "shown": _maybe(_hash),
        "prompt": _maybe(_number),
        "state": _maybe(_hash),
    },
    "run": {
        "id": _id,
        "session": _id,
        "scope": _text,
        "agent": _text,
        "agent_type": _text,
        "title": _text,
        "status": partial(_word, STATUSES),
        "began": _time,
        "ended": _maybe(_time),
        "parent": _maybe(_id),
        "parent_step": _maybe(_integer),
        "fork_of": _maybe(_id),
        "model": _maybe(_text),
        "smolagents": _text,
        "max_steps": _maybe(_integer),
        "steps": _count,
        "errors": _count,
        "input_tokens": _integer,
        "output_tokens": _integer,
        "answer": _maybe(_hash),
        "failure": _maybe(_hash),
        "tags": lambda value: _words([] if value is None else value),  # not in exports of 0.1
    },
    "step": {"id": _number},
    "call": {
        "id": _number,
        "run": _id,
        "turn": _count,
        "kind": partial(_word, ("model", "tool")),
        "name": _text,
        "arguments": _hash,
        "began": _time,
        "ended": _maybe(_time),
        "failed": _count,
        "outcome": _maybe(_hash),
    },
    "recalled": {
        "id": _number,
        "run": _id,
        "step": _maybe(_number),
        "at": _time,
        "query": _text,
        "block": _maybe(_hash),
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
        "run": _maybe(_id),
        "number": _maybe(_integer),
        "rule": _text,
        "reason": _text,
        "at": _time,
        "acts": _words,
    },
    "note": {
        "id": _id,
        "scope": _text,
        "kind": _said,
        "text": _said,
        "tags": _words,
        "origin": partial(_word, ORIGINS),
        "run": _maybe(_id),
        "at": _time,
        "expires": _maybe(_time),
        "supersedes": _maybe(_id),
        "sources": partial(_list, _source),
    },
    "forgotten": {"id": _number, "what": partial(_word, ("note", "step", "run")), "target": _source, "at": _time},
    "end": {"lines": _count},
}
"""For each type of line, its fields and their checks."""


class Numbers:
    """Maps numbers of an export to numbers of this store, 0 for a line that is left out. They ascend: two arrays do."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._there, self._here = array("q"), array("q")

    def put(self, there: int, here: int) -> None:
        """Adds the next number of the export, and the number it has here."""
        if there < 1 or (self._there and there <= self._there[-1]):
            raise Wrong(f"{self._what} {there} comes twice, or out of order")
        self._there.append(there)
        self._here.append(here)

    def find(self, there: int) -> int | None:
        """The number in this store; None if the export did not mention it yet."""
        place = bisect_left(self._there, there)
        return self._here[place] if place < len(self._there) and self._there[place] == there else None

    def get(self, there: int) -> int:
        """The number in this store of a row that a line refers to."""
        found = self.find(there)
        if found is None:
            raise Wrong(f"it refers to {self._what} {there}, which did not come before")
        return found
