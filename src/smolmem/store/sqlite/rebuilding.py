"""Repairs a file: copies every row that can be read into a new file, where all indexes are rebuilt.

`REINDEX` is not enough: it must read the pages of an index to free them, and fails where they are garbled. Tables are
read in the order of their own keys, so no index is used. Where a page of a table cannot be read, the copy continues
with the first row behind that page (`salvaging.py`), and the rows between are reported as lost.

A damaged index of contents lets a content be stored twice. Such a content is merged with the first one, and rows that
refer to it are sealed again.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from smolmem.core.encoding import packing
from smolmem.core.errors import Damaged, Unwritable
from smolmem.store.base import Progress, Row
from smolmem.store.chains import Chains
from smolmem.store.contents import seal
from smolmem.store.sqlite.driver_errors import explained
from smolmem.store.sqlite.encryption import Key, connect
from smolmem.store.sqlite.replacing import replace_file
from smolmem.store.sqlite.salvaging import Salvage
from smolmem.store.sqlite.sqlite_store import SqliteStore

_INDEX = ("passage", "vector", "pending")
"""Tables that the indexer rebuilds from steps and notes in the background."""
_WITHOUT_ROWID = ("session",)
_CONTENT_COLUMNS = {
    "event": ("record", "shown", "state"),
    "step": ("record",),
    "run": ("answer", "failure"),
    "call": ("arguments", "outcome"),
    "recalled": ("block",),
    "prompt": ("suffix",),
}


@dataclass(frozen=True)
class Rebuilt:
    """The result of a repair: the backup of the old file, and the rows and indexes of the new one."""

    backup: str
    rows: int
    indexes: int
    merged: int
    lost: tuple[str, ...] = ()
    """The rows that could not be read, by table and id: `step 12 to 19`."""


def rebuild(path: Path, key: Key | None, progress: Progress | None = None) -> Rebuilt:
    """Replaces a file by one with the same rows and new indexes; the old file is kept beside it.

    Raises:
        StoreError: the file cannot be opened, or another program has it open; the file is unchanged.
    """
    backup = path.with_name(f"{path.name}.before-repair-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
    _back_up(path, key, backup, progress)
    old = os.stat(path)
    copies: list[_Copy] = []

    def write(source: apsw.Connection, part: Path) -> None:
        copies.append(_Copy(source, part, key))
        try:
            copies[0].write()
        except Unwritable as error:
            raise Unwritable(f"{path} cannot be repaired, and was left as it is. {error}") from error

    try:
        replace_file(path, key, write)
    except BaseException as error:
        if os.path.samestat(old, os.stat(path)):  # the file itself is unchanged
            backup.unlink(missing_ok=True)
        if isinstance(error, apsw.Error):
            raise explained(error, f"{path} cannot be repaired, and was left as it is", path) from error
        raise
    return Rebuilt(str(backup), copies[0].rows, copies[0].indexes, len(copies[0].merged), copies[0].lost)


def _back_up(path: Path, key: Key | None, backup: Path, progress: Progress | None) -> None:
    """Keeps the old file. A page of an encrypted file that is damaged cannot be copied: the file gets a second name."""
    with closing(SqliteStore(str(path), key=key)) as store:
        try:
            store.backup(backup, progress)
        except Damaged:
            os.link(os.path.realpath(path), backup)


class _Copy:
    """Copies all rows of a store to an empty file."""

    def __init__(self, source: apsw.Connection, part: Path, key: Key | None) -> None:
        self._source, self._part, self._key = source, part, key
        self._chains = Chains(self._content_rows)
        self._salvage = Salvage(source)
        self.merged: dict[int, int] = {}
        self.rows = self.indexes = 0

    @property
    def lost(self) -> tuple[str, ...]:
        """The rows that could not be read or are garbled."""
        return tuple(self._salvage.lost)

    def write(self) -> None:
        """Writes and checks the new file, and leaves it in WAL mode."""
        SqliteStore(str(self._part), key=self._key).close()  # makes the schema
        with closing(connect(str(self._part), apsw.SQLITE_OPEN_READWRITE, self._key)) as target:
            target.execute("PRAGMA synchronous = OFF; PRAGMA temp_store = MEMORY; BEGIN IMMEDIATE")
            self._contents(target)
            for table in self._tables():
                self._table(target, table)
            self._sessions_of_runs(target)
            target.execute("INSERT OR IGNORE INTO fingerprint_key (id, key) VALUES (1, randomblob(16))")
            target.execute("INSERT INTO pending (step) SELECT id FROM step ORDER BY id")
            target.execute("INSERT INTO pending (note) SELECT id FROM note ORDER BY rowid")
            target.execute("COMMIT")
            problem = target.execute("PRAGMA integrity_check(1)").get
            if problem != "ok":
                raise Damaged(f"the new file is not whole ({problem}), and the old one was left: check the disk.")
            self.indexes = target.execute("SELECT count(*) FROM sqlite_schema WHERE type = 'index'").get

    def _sessions_of_runs(self, target: apsw.Connection) -> None:
        """Makes lost sessions again from their first runs, so that the steps of these runs can be read."""
        lost = (
            "SELECT session, scope, agent, began FROM run WHERE session NOT IN (SELECT id FROM session) "
            "GROUP BY session HAVING rowid = min(rowid)"
        )
        names = ("id", "scope", "agent", "began", "fork_of", "fork_at")
        for found in target.execute(lost).fetchall():
            row = dict(zip(names, (*found, None, None), strict=True))
            values = (*row.values(), seal("session", row))
            target.execute(f"INSERT INTO session ({', '.join(names)}, hash) VALUES (?, ?, ?, ?, ?, ?, ?)", values)  # noqa: S608
            self._salvage.lose("session", row["id"])

    def _tables(self) -> list[str]:
        """The tables to copy, without contents and the tables that the indexer rebuilds."""
        names = [row[1] for row in self._source.execute("PRAGMA main.table_list") if row[2] == "table"]
        return [name for name in names if name not in ("content", "sqlite_schema", *_INDEX)]

    def _contents(self, target: apsw.Connection) -> None:
        """Copies contents; of contents that are stored twice, the first."""
        add = "INSERT INTO content (id, hash, bytes, base) VALUES (?, ?, ?, ?) ON CONFLICT (hash) DO NOTHING"
        repacked: set[int] = set()
        for number, key, data, base in self._salvage.rows("content", ["id", "hash", "bytes", "base"]):
            if base in self.merged or base in repacked:  # its dictionary was merged or repacked
                data, base = self._unchained(number, data, base), None
                repacked.add(number)
            if not self._added(target, add, "content", (number, key, data, base)):
                continue
            if target.changes():
                self.rows += 1
            else:
                self.merged[number] = target.execute("SELECT id FROM content WHERE hash = ?", (key,)).get

    def _content_rows(self, number: int, until: int, most: int) -> list[Row]:
        found = self._source.execute("SELECT id, bytes, base FROM content WHERE id = ?", (number,)).fetchall()
        return [dict(zip(("id", "bytes", "base"), row, strict=True)) for row in found]

    def _unchained(self, number: int, packed: bytes, base: int | None) -> bytes:
        """A content packed without a dictionary; unchanged if it is damaged."""
        try:
            row = {"id": number, "bytes": packed, "base": base}
            return packing.pack(self._chains.unpack(row, packing.BLOB))
        except packing.Undecodable:
            return packed

    def _table(self, target: apsw.Connection, table: str) -> None:
        """Copies a table in the order of its own key. The names of tables and columns are those of our schema."""
        target.execute(f"DELETE FROM {table}")  # noqa: S608  what the scripts of the schema have put there
        columns = [row[1] for row in self._source.execute(f"PRAGMA table_info({table})")]
        if table not in _WITHOUT_ROWID:
            columns = ["rowid", *columns]
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        read = self._salvage.rows_by_text if table in _WITHOUT_ROWID else self._salvage.rows
        found = read(table, columns)
        add = f"INSERT INTO {table} ({names}) VALUES ({marks})"  # noqa: S608
        for values in self._rows(table, columns, found):
            self._added(target, add, table, values)

    def _added(self, target: apsw.Connection, add: str, table: str, values: tuple[Any, ...]) -> bool:
        """Adds a row, unless it is garbled."""
        try:
            target.execute(add, values)
        except (apsw.ConstraintError, apsw.MismatchError):
            self._salvage.lose(table, values[0])
            return False
        return True

    def _rows(self, table: str, columns: list[str], found: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        for values in found:
            self.rows += 1
            row = dict(zip(columns, values, strict=True))
            yield tuple(self._with_merged(table, row).values()) if self.merged else values

    def _with_merged(self, table: str, row: Row) -> Row:
        """A row whose references to merged contents are updated; a damaged row is copied unchanged."""
        columns = _CONTENT_COLUMNS.get(table)
        if columns is None or row["hash"] != _seal(table, row):
            return row
        new = row | {name: self._first(row[name]) for name in columns}
        return new | {"hash": _seal(table, new)}

    def _first(self, given: Any) -> Any:
        """The content ids of a column, a number or a JSON list, after the merge."""
        if isinstance(given, str):
            return json.dumps([self.merged.get(number, number) for number in json.loads(given)])
        return self.merged.get(given, given)


def _seal(table: str, row: Row) -> bytes:
    return seal(table, {name: value for name, value in row.items() if name != "rowid"})
