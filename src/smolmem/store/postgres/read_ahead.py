"""Results that were asked for in advance: many queries in one message.

Inside a transaction, while other writers wait, a result is used as long as the transaction changes none of the tables
that its query reads. Outside, a thread begins a series of reads, such as those of one search: what it asked for is sent
with its next query, and a query that it makes again is answered from memory. A series ends with the next one, with a
transaction of this process, and after a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from smolmem.store.postgres.connection import Result
from smolmem.store.postgres.statements import Statement

SERIES_SECONDS = 1.0

Query = tuple[str, Mapping[str, Any]]
"""The name of a statement and its values."""
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


class Series:
    """The reads of each thread, and their results."""

    def __init__(self) -> None:
        self._thread = threading.local()
        self._transactions = 0

    def begin(self, asked: Iterable[Query]) -> None:
        """A series begins; if nothing is asked for, only the last one ends."""
        waiting = {_key(*query): query for query in asked}
        self._thread.waiting, self._thread.found, self._thread.of = waiting, {}, self._transactions
        self._thread.until = time.monotonic() + SERIES_SECONDS if waiting else 0.0

    def end_all(self) -> None:
        """This process writes."""
        self._transactions += 1

    def results(
        self, name: str, each: Sequence[Mapping[str, Any]], read: Callable[[Sequence[Query]], list[Result]]
    ) -> list[Result]:
        """The results of a query for several sets of values; `read` asks the server."""
        mine = self._thread
        if getattr(mine, "until", 0.0) < time.monotonic() or mine.of != self._transactions:
            return read([(name, values) for values in each])
        keys = [_key(name, values) for values in each]
        wanted = {key: (name, values) for key, values in zip(keys, each, strict=True) if key not in mine.found}
        if wanted:
            wanted |= mine.waiting
            mine.waiting = {}
            mine.found.update(zip(wanted, read(list(wanted.values())), strict=True))
        return [mine.found[key] for key in keys]


def _key(name: str, values: Mapping[str, Any]) -> _Key:
    return name, frozenset(values.items())
