"""Results that a transaction asked for in advance: many queries in one message, while other writers wait.

A result is used as long as the transaction changes none of the tables that its query reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smolmem.store.postgres.connection import Result
from smolmem.store.postgres.statements import Statement

_Key = tuple[str, frozenset[tuple[str, Any]]]


class ReadAhead:
    """The results of one transaction that were not dropped yet."""

    def __init__(self) -> None:
        self._found: dict[_Key, tuple[Statement, Result]] = {}

    def put(self, name: str, values: Mapping[str, Any], statement: Statement, found: Result) -> None:
        """Keeps the result of a query."""
        self._found[_key(name, values)] = statement, found

    def take(self, name: str, values: Mapping[str, Any]) -> Result | None:
        """The result of a query, if it is known; numbers of a sequence are given once."""
        if not self._found:
            return None
        statement, found = self._found.get(key := _key(name, values), (None, None))
        if statement is not None and statement.takes_numbers:
            del self._found[key]
        return found

    def drop(self, change: Statement) -> None:
        """Drops the results that a statement may change."""
        if self._found:
            self._found = {key: one for key, one in self._found.items() if not change.writes & one[0].reads}

    def clear(self) -> None:
        """The transaction is over."""
        self._found.clear()


def _key(name: str, values: Mapping[str, Any]) -> _Key:
    return name, frozenset(values.items())
