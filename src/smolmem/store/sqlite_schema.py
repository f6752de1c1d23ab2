"""The schema of a SQLite file: what our scripts make, and what is found."""

from __future__ import annotations

from functools import cache

import apsw

from smolmem.store.base import migrations
from smolmem.store.packed_text import add_functions


def migrate(connection: apsw.Connection, latest: int) -> None:
    """Brings the schema up to date in one transaction: all of it, or nothing.

    What a statement could have to undo is kept in memory, not in the system's folder of temporary files.
    """
    before = connection.pragma("temp_store")
    connection.pragma("temp_store", "MEMORY")
    connection.execute("BEGIN IMMEDIATE")
    try:
        for number in range(connection.pragma("user_version"), latest):
            connection.execute(migrations("sqlite")[number])
            connection.pragma("user_version", number + 1)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    finally:
        connection.pragma("temp_store", before)


def schema(connection: apsw.Connection) -> frozenset[tuple[str, str, str]]:
    """What a database consists of."""
    found = connection.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_schema")
    return frozenset((str(kind), str(name), str(sql)) for kind, name, sql in found)


@cache
def expected_schema(version: int) -> frozenset[tuple[str, str, str]]:
    """What our scripts make of an empty database."""
    scratch = apsw.Connection(":memory:")
    add_functions(scratch)
    try:
        for script in migrations("sqlite")[:version]:
            scratch.execute(script)
        return schema(scratch)
    finally:
        scratch.close()
