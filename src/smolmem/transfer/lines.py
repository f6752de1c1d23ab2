"""The lines of an export: the shape of each, checked before the line is used, and what lines refer to.

Lines refer to rows by number and to contents by hash. `Numbers` and `LoadedContents` find both in the store that the
export is loaded into.
"""

from __future__ import annotations

import json
import re
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any, cast

from smolmem.core.encoding import packing, wire
from smolmem.core.rows import ORIGINS, STATUSES
from smolmem.core.text import one_line, storable
from smolmem.core.values import is_time
from smolmem.store.base import Row, Store
from smolmem.transfer.archive import ExportReader, is_media

FORMAT = "smolmem"
VERSION = 1

Check = Callable[[Any], Any]
_ID = re.compile(r"[0-9a-f]{1,64}")
_HASH = re.compile(r"[0-9a-f]{40}")


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


# --- checks of single values: each returns the value, or raises ------------------------------------------------------


def _checked(valid: bool, value: Any) -> Any:
    if not valid:
        raise ValueError
    return value


def _text(value: Any) -> Any:
    return _checked(isinstance(value, str) and storable(value) == value, value)


def _integer(value: Any) -> Any:
    return _checked(type(value) is int and -(1 << 62) < value < 1 << 62, value)


def _time(value: Any) -> float:
    made = float(_checked(type(value) in (int, float), value))
    return float(_checked(is_time(made), made))


def _source(value: Any) -> Any:
    return _text(value) if isinstance(value, str) else _checked(_integer(value) >= 0, value)


def _matching(pattern: re.Pattern[str]) -> Check:
    return lambda value: _checked(isinstance(value, str) and pattern.fullmatch(value) is not None, value)


def _one_of(*choices: Any) -> Check:
    return lambda value: _checked(any(value == each and type(value) is type(each) for each in choices), value)


def _list(check: Check) -> Check:
    return lambda value: [check(item) for item in _checked(isinstance(value, list), value)]


_CHECKS: dict[str, Check] = {
    "id": _matching(_ID),
    "hash": _matching(_HASH),
    "text": _text,
    "nonblank": lambda value: _checked(bool(_text(value).strip()), value),
    "integer": _integer,
    "count": lambda value: _checked(_integer(value) >= 0, value),
    "number": lambda value: _checked(_integer(value) > 0, value),
    "flag": _one_of(0, 1),
    "time": _time,
    "source": _source,
    "texts": _list(_text),
    "hashes": _list(_matching(_HASH)),
    "sources": _list(_source),
    "tags": lambda value: [_text(item) for item in _checked(value is None or isinstance(value, list), value) or ()],
    "act": _one_of("insert", "remove", "revise"),
    "status": _one_of(*STATUSES),
    "origin": _one_of(*ORIGINS),
    "call": _one_of("model", "tool"),
    "what": _one_of("note", "step", "run"),
}
"""What a value may be, by the names that `_LINES` uses."""
_LINES = {
    "header": "format:text version:number scope:text?",
    "content": "",
    "session": "id:id scope:text agent:text began:time fork_of:id? fork_at:count?",
    "prompt": "id:number parent:number? keep:count size:count suffix:hashes",
    "event": "id:number session:id run:id at:time act:act step:number place:count? "
    "record:hash? shown:hash? prompt:number? state:hash?",
    "run": "id:id session:id scope:text agent:text agent_type:text title:text status:status began:time ended:time? "
    "parent:id? parent_step:integer? fork_of:id? model:text? smolagents:text max_steps:integer? steps:count "
    "errors:count input_tokens:integer output_tokens:integer answer:hash? failure:hash? tags:tags",
    "step": "id:number",
    "call": "id:number run:id turn:count kind:call name:text arguments:hash began:time ended:time? failed:count "
    "outcome:hash? web:flag?",
    "recalled": "id:number run:id step:number? at:time query:text block:hash? found:sources",
    "cut": "id:number session:id view:text last:number parts:count before:integer after:integer text:text at:time",
    "alert": "id:number scope:text agent:text run:id? number:integer? rule:text reason:text at:time acts:texts",
    "note": "id:id scope:text kind:nonblank text:nonblank tags:texts origin:origin run:id? at:time expires:time? "
    "supersedes:id? sources:sources",
    "forgotten": "id:number what:what target:source at:time",
    "end": "lines:count",
}
"""The fields of each type of line, and what each may be; `?` for a field that may be missing.

Exports of 0.1 have no `tags` of runs and no `web` of calls.
"""


def _check(what: str) -> Check:
    check = _CHECKS[what.removesuffix("?")]
    return (lambda value: None if value is None else check(value)) if what.endswith("?") else check


SHAPES: dict[str, dict[str, Check]] = {
    kind: {name: _check(what) for name, what in (field.split(":") for field in fields.split())}
    for kind, fields in _LINES.items()
}
"""For each type of line, its fields and their checks."""


class Numbers:
    """Maps numbers of an export to numbers of this store; 0 for a line that is left out.

    Args:
        what: the table, for errors.
        earlier: numbers of lines that were loaded before.
    """

    def __init__(self, what: str, earlier: Mapping[int, int] | None = None) -> None:
        self._what = what
        self.new: dict[int, int] = {}
        self._all = ChainMap(self.new, cast("dict[int, int]", earlier or {}))

    def put(self, there: int, here: int) -> None:
        """Adds a number of the export, and its number in this store."""
        if there < 1 or there in self._all:
            raise InvalidLine(f"{self._what} {there} comes twice")
        self.new[there] = here

    def find(self, there: int) -> int | None:
        """The number in this store; None if the export did not mention it yet."""
        return self._all.get(there)

    def get(self, there: int) -> int:
        """The number in this store of a row that a line refers to."""
        if there not in self._all:
            raise InvalidLine(f"the line refers to {self._what} {there}, which no earlier line holds")
        return self._all[there]


class LoadedContents:
    """Adds contents, and finds contents that lines refer to; `known` has the numbers of other contents, by hash."""

    def __init__(self, store: Store, export: ExportReader, known: Mapping[str, int]) -> None:
        self._store, self._export = store, export
        self._numbers = ChainMap({}, cast("dict[str, int]", known))

    def add(self, row: Row) -> bool:
        """Stores the content of a line; False if the store had it already."""
        key = bytes.fromhex(row["hash"])
        if row["hash"] in self._numbers or self._store.do("content_id", {"hash": key}) is not None:
            return False
        if "json" in row:
            data = wire.dumps(row["json"])
        elif "text" in row:
            data = row["text"].encode("utf-8", "surrogatepass")
        elif is_media(row["file"]) and row["file"].startswith(f"media/{row['hash']}."):
            data = self._export.media(row["file"])
        else:
            raise InvalidLine(f"the file of a content is media/<hash>.<extension>, not {row['file'][:80]!r}")
        if wire.fingerprint(data) != row["hash"]:
            raise InvalidLine(f"content {row['hash'][:12]} does not match its hash")
        added = self._store.do("add_content", {"hash": key, "bytes": packing.pack(data), "base": None})
        self._numbers[row["hash"]] = int(added)
        return True

    def number(self, key: str | None) -> int | None:
        """The number of a content in this store."""
        if key is None:
            return None
        found = self._numbers.get(key) or self._store.do("content_id", {"hash": bytes.fromhex(key)})
        if found is None:
            raise InvalidLine(f"the line refers to content {key[:12]}, which no earlier line holds")
        return int(found)

    def numbered(self, row: Row, *columns: str) -> Row:
        """A row with numbers instead of hashes in these columns."""
        return row | {column: self.number(row[column]) for column in columns}
