"""The named statements as the PostgreSQL driver takes them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from smolmem.store.base import migrations, statements

PREPARED = {
    *("add_call", "add_event", "add_new_contents", "add_pending", "add_prompt", "add_step", "assume_contents"),
    *("assume_no_other_writer", "end_call"),
}
"""What every step sends: the server parses and plans these once for each connection."""
_PARAMETER = re.compile(r"('(?:[^']|'')*')|--[^\n]*|(?<!:):([a-z_]\w*)|%")
_NAMED = re.compile(r"%(?:\((\w+)\)s|%)")
LOCK = "SELECT format FROM store WHERE id = 1 FOR UPDATE"
"""The lock that every writing transaction takes first."""
IDS = 16
"""Ids that come with each transaction."""
NEW_IDS = f"SELECT nextval('ids') FROM generate_series(1, {IDS})"  # noqa: S608


class Statement(NamedTuple):
    """A named statement; `parameters` are those of one that is prepared."""

    name: str
    text: str
    parameters: tuple[str, ...]
    has_result: bool
    takes_id: bool
    changes: bool
    takes_numbers: bool
    reads: frozenset[str]
    writes: frozenset[str]


def array_of(values: Iterable[int | bytes | str]) -> str:
    """Numbers, ids, and bytes as hexadecimal digits, as the text of an array: the driver's own arrays take longer."""
    return "{" + ",".join(value.hex() if isinstance(value, bytes) else str(value) for value in values) + "}"


@cache
def prepared_statements() -> dict[str, Statement]:
    """All statements, by name."""
    return {name: _statement(name, text) for name, text in statements("postgres").items()}


@cache
def preparations() -> dict[str, str]:
    """What prepares a statement, by name."""
    constants = {"take_lock": LOCK, "take_ids": NEW_IDS}
    return {name: f"PREPARE {name} AS {text}" for name, text in constants.items()} | {
        one.name: f"PREPARE {one.name} AS {_numbered(one)}" for one in prepared_statements().values() if one.parameters
    }


def _numbered(statement: Statement) -> str:
    """A statement with numbers for parameters."""
    numbers = {name: f"${place}" for place, name in enumerate(statement.parameters, 1)}
    return _NAMED.sub(lambda found: numbers[found[1]] if found[1] else "%", statement.text)


def _statement(name: str, text: str) -> Statement:
    plain = with_parameters(text).strip().rstrip(";")
    changes = re.match(r"(WITH [^;]*\)\s*)?(INSERT|UPDATE|DELETE)\b", plain) is not None
    has_result = not changes or "RETURNING" in plain.rpartition(")")[2]
    reads = _tables().intersection(re.findall(r"\w+", plain))
    writes = frozenset(re.findall(r"\b(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)", plain))
    parameters = tuple(dict.fromkeys(filter(None, _NAMED.findall(plain)))) if name in PREPARED else ()
    return Statement(name, plain, parameters, has_result, ":new_id" in text, changes, "nextval" in plain, reads, writes)


@cache
def _tables() -> frozenset[str]:
    """The names of all tables. A column of the same name counts as well: then a query is made once more than needed."""
    return frozenset(re.findall(r"CREATE TABLE (\w+)", "\n".join(migrations("postgres"))))


def with_parameters(text: str) -> str:
    """A statement with the driver's spelling of parameters, without comments."""

    def spelled(found: re.Match[str]) -> str:
        if found[1]:
            return found[1].replace("%", "%%")
        return f"%({found[2]})s" if found[2] else "%%" if found[0] == "%" else ""

    return _PARAMETER.sub(spelled, text)
