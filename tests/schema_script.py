"""Makes `store/sql/sqlite/schema.sql` from the numbered scripts: `python tests/schema_script.py > …/schema.sql`."""

from __future__ import annotations

import apsw

from smolmem.store.base import migrations
from smolmem.store.packed_text import add_functions

HEAD = """-- The schema of a new file: what the numbered scripts leave in an empty one, which take four times as long.
-- Made by tests/schema_script.py. The numbered scripts explain the tables.
"""
TAIL = "INSERT INTO fingerprint_key (id, key) VALUES (1, randomblob(16));"


def migrated() -> apsw.Connection:
    """An empty database on which every numbered script has run."""
    connection = apsw.Connection(":memory:")
    add_functions(connection)
    for script in migrations("sqlite"):
        connection.execute(script)
    return connection


def schema_script() -> str:
    """The statements that make what is in a new file; SQLite and FTS5 make their own tables themselves."""
    found = migrated().execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid").fetchall()
    virtual = tuple(f"{name}_" for name, sql in found if sql.startswith("CREATE VIRTUAL"))
    made = [f"{sql};" for name, sql in found if not name.startswith(("sqlite_", *virtual)) or f"{name}_" in virtual]
    return "\n\n".join([HEAD.rstrip(), *made, TAIL]) + "\n"


if __name__ == "__main__":
    print(schema_script(), end="")
