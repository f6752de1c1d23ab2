"""A row never refers to something that is missing without being noticed: the store refuses it, or `verify` names it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from scripted import code, code_agent

from smolmem import Memory
from smolmem.store.sqlite.sqlite_store import SqliteStore

SQL = Path(__file__).parent.parent / "src" / "smolmem" / "store" / "sql"
ROWS = """
INSERT INTO cut (session, view, last, parts, before, after, text, at, hash)
    SELECT session, 'view', id, 1, 2, 1, '', 0, hash FROM step LIMIT 1;
INSERT INTO alert (scope, agent, run, rule, reason, at, acts, hash)
    SELECT scope, agent, id, '', '', 0, '[]', hash FROM run;
INSERT INTO recalled (run, step, at, query, found, hash) SELECT run, id, 0, '', '[]', hash FROM step LIMIT 1;
INSERT INTO exposure (session, step, at, hash) SELECT session, id, 0, hash FROM step LIMIT 1;
INSERT INTO vector (passage, scope, model, facts, numbers) SELECT id, scope, 'm', hash, hash FROM passage LIMIT 1;
INSERT INTO pending (step) SELECT id FROM step LIMIT 1
"""
"""A row of each table that the work of `filled` leaves empty."""


def relations() -> list[tuple[str, str, str]]:
    """Every table and column of the schema that refers to another table, and that table."""
    with apsw.Connection(":memory:") as connection:
        connection.execute((SQL / "sqlite" / "schema.sql").read_text())
        tables = [name for (name,) in connection.execute("SELECT name FROM pragma_table_list WHERE type = 'table'")]
        return [
            (table, column, other)
            for table in sorted(tables)
            for _, _, other, column, *_ in connection.execute(f"PRAGMA foreign_key_list({table})")
        ]


def filled(memory: Memory) -> None:
    """At least one row in each table."""
    memory.attach(code_agent(code("print(1)"), code("final_answer(2)"))).run("Count")
    memory.remember("it counts")
    memory.index()


@pytest.mark.parametrize("which", ["SQLite", "PostgreSQL"])
def test_a_row_that_refers_to_nothing_is_refused_or_named(
    which: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = str(tmp_path / "agent.db") if which == "SQLite" else request.getfixturevalue("pg_url")
    refused, everything = set(), relations()
    assert len(everything) > 30
    with Memory(url, strict=True, embedder="off") as memory:
        filled(memory)
        store: Any = memory._store
        live = store._live() if isinstance(store, SqliteStore) else store._link.live()
        live.execute(ROWS)
        assert store.check() == []
        for table, column, other in everything:
            missing = "'gone'" if other in ("session", "run", "note") else "-7"
            one = f"id = (SELECT max(id) FROM {table})"
            (before,) = live.execute(f"SELECT {column} FROM {table} WHERE {one}")
            try:
                live.execute(f"UPDATE {table} SET {column} = {missing} WHERE {one}")
            except psycopg.errors.ForeignKeyViolation:
                refused.add((table, column))
                continue
            assert any(re.search(rf"^{table} .* refers to a missing {other}", said) for said in store.check()), (
                table,
                column,
            )
            assert not memory.verify()
            value = "NULL" if before[0] is None else repr(before[0])
            live.execute(f"UPDATE {table} SET {column} = {value} WHERE {one}")
        assert store.check() == []
    assert ({("event", "run"), ("step", "run"), ("run", "session"), ("call", "run")} <= refused) == (which != "SQLite")
