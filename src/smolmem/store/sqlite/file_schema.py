"""The schema of a SQLite file: migrations, and the comparison with the expected schema."""

from __future__ import annotations

import time
from contextlib import closing
from functools import cache

import apsw

from smolmem.store.base import migrations, script
from smolmem.store.packed_text import add_functions


def migrate(connection: apsw.Connection, latest: int) -> None:
    """Brings the schema up to date in one transaction: all of it, or nothing. A new file gets it from one script.

    Data for the rollback of a statement is kept in memory, not in temporary files.
    """
    before = connection.pragma("temp_store")
    connection.pragma("temp_store", "MEMORY")
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statements in _scripts(connection.pragma("user_version"), latest):
            connection.execute(statements)
        connection.pragma("user_version", latest)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    finally:
        connection.pragma("temp_store", before)


def _scripts(version: int, wanted: int) -> list[str]:
    """The scripts that bring a file from one version to another one."""
    every = migrations("sqlite")
    return every[version:wanted] if version or wanted < len(every) else [script("sqlite", "schema")]


def schema(connection: apsw.Connection) -> frozenset[tuple[str, str, str]]:
    """The schema of a database."""
    found = connection.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_schema")
    return frozenset((str(kind), str(name), str(sql)) for kind, name, sql in found)


@cache
def expected_schema(version: int) -> frozenset[tuple[str, str, str]]:
    """The schema that our scripts create in an empty database."""
    with closing(apsw.Connection(":memory:")) as scratch:
        add_functions(scratch)
        for statements in _scripts(0, version):
            scratch.execute(statements)
        return schema(scratch)


def problems(connection: apsw.Connection) -> list[str]:
    """What SQLite's own checks find: at most twenty of each kind."""
    integrity = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
    rows = connection.execute("PRAGMA foreign_key_check")
    dangling = [f"{row[0]} row {row[1]} refers to a missing {row[2]}" for row in rows]
    return [problem for problem in integrity if problem != "ok"] + dangling[:20]


def set_wal(connection: apsw.Connection, patience: float) -> None:
    """Turns WAL mode on; with several processes at it for the first time, SQLite may say "locked" without waiting."""
    deadline = time.monotonic() + patience
    while True:
        try:
            connection.pragma("journal_mode", "WAL")
            return
        except (apsw.BusyError, apsw.LockedError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
