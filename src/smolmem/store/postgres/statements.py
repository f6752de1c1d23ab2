"""The named statements as the PostgreSQL driver takes them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from smolmem.store.base import migrations, statements

_PARAMETER = re.compile(r"('(?:[^']|'')*')|--[^\n]*|(?<!:):([a-z_]\w*)|%")


class Statement(NamedTuple):
    """A named statement."""

    text: str
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
    return {name: _prepared(text) for name, text in statements("postgres").items()}


def _prepared(text: str) -> Statement:
    plain = with_parameters(text).strip().rstrip(";")
    changes = re.match(r"(WITH [^;]*\)\s*)?(INSERT|UPDATE|DELETE)\b", plain) is not None
    has_result = not changes or "RETURNING" in plain.rpartition(")")[2]
    reads = _tables().intersection(re.findall(r"\w+", plain))
    writes = frozenset(re.findall(r"\b(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)", plain))
    return Statement(plain, has_result, ":new_id" in text, changes, "nextval" in plain, reads, writes)


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
