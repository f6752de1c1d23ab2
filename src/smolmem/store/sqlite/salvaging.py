"""Reads the rows of a damaged table: where a page cannot be read, the rows behind that page still can.

A query in the order of the key stops at a damaged page. Asking for the keys behind it, one after the other, leads
SQLite past the page: each query descends from the root of the table. So all rows come back except those on damaged
pages, and those that only a damaged inner page leads to.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import apsw

_DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.IOError, UnicodeDecodeError)
_CLOSE = 20_000
"""Keys behind a damaged page that are asked for one by one; then the distance is doubled."""


class Salvage:
    """Reads tables of one file. The names of tables and columns are those of our schema."""

    def __init__(self, source: apsw.Connection) -> None:
        self._source = source
        self.lost: list[str] = []

    def lose(self, table: str, first: Any, last: Any = None) -> None:
        """Reports rows that are lost."""
        self.lost.append(f"{table} {first}" if last in (None, first) else f"{table} {first} to {last}")

    def rows(self, table: str, columns: list[str]) -> Iterator[tuple[Any, ...]]:
        """The rows that can be read, of a table whose first column is its number."""
        number = columns[0]
        read = f"SELECT {', '.join(columns)} FROM {table} NOT INDEXED WHERE {number} >= ? ORDER BY {number}"  # noqa: S608
        start: int | None = 0
        while start is not None:
            try:
                for row in self._source.execute(read, (start,)):
                    start = row[0] + 1
                    yield row
                return
            except _DAMAGE:
                start = self._behind(table, f"{read} LIMIT 1", start)

    def _behind(self, table: str, read: str, first: int) -> int | None:
        """The number of the first row behind a damaged page; none if no row is left."""
        found: int | None = None
        for start in chain(range(first, first + _CLOSE), (first + (1 << power) for power in range(17, 62))):
            try:
                found = next((row[0] for row in self._source.execute(read, (start,))), None)
                break
            except _DAMAGE:
                continue
        if found != first:
            self.lose(table, max(first, 1), "its end" if found is None else found - 1)
        return found

    def rows_by_text(self, table: str, columns: list[str]) -> Iterator[tuple[Any, ...]]:
        """The rows before the first damaged page and behind the last one, of a table whose first column is its key."""
        read = f"SELECT {', '.join(columns)} FROM {table} NOT INDEXED ORDER BY {columns[0]}"  # noqa: S608
        seen: set[Any] = set()
        for order in ("ASC", "DESC"):
            try:
                for row in self._source.execute(f"{read} {order}"):
                    if row[0] not in seen:
                        seen.add(row[0])
                        yield row
                return
            except _DAMAGE:
                continue
        self.lose(table, "rows whose number is not known")
