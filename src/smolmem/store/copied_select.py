"""A user's SELECT over one scope of a server: the rows of the scope are copied into a SQLite database in memory.

On a server, a SELECT can call any function that its user may call, and change who the user is while it runs. SQLite's
sandbox allows nothing but three views, and agents write the same SQL for both stores. Only the tables that a statement
names are copied.
"""

from __future__ import annotations

import re
from contextlib import closing

import apsw

from smolmem.core.arguments import scope_filter
from smolmem.core.errors import InvalidArgument
from smolmem.store.base import Row, Store
from smolmem.store.sandboxed_select import select_from

MAX_ROWS = 20_000
"""Rows of a table that are copied for one SELECT."""
_TABLES = {"run": "runs|steps", "step": "steps", "note": "notes", "forgotten": "runs|steps|notes"}
"""The tables behind the views, and the views that read each of them."""


def select(store: Store, scope: str, statement: str) -> list[Row]:
    """The rows of a SELECT over the `runs`, `steps` and `notes` of a scope.

    Raises:
        InvalidArgument: it is not a SELECT over those, it takes too long, or the scope is too large.
    """
    with closing(apsw.Connection(":memory:")) as copy:
        for table, readers in _TABLES.items():
            wanted = re.search(rf"\b({readers})\b", statement, re.IGNORECASE) is not None
            _copy_table(store, copy, table, scope, MAX_ROWS + 1 if wanted else 0)
        return select_from(copy, scope, statement)


def _copy_table(store: Store, copy: apsw.Connection, table: str, scope: str, limit: int) -> None:
    rows = store.rows(f"copy_{table}", {**scope_filter(scope), "limit": limit})
    if len(rows) > MAX_ROWS:
        raise InvalidArgument(
            f"the scope {scope!r} has more than {MAX_ROWS:,} {table}s, too many for a SELECT on a server: "
            "use the filters of runs(), steps() and notes()."
        )
    columns = _COLUMNS[table]
    copy.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
    added = f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})"  # noqa: S608  of names above
    copy.executemany(added, [tuple(row[name] for name in columns) for row in rows])


_COLUMNS = {
    "run": (
        *("id", "scope", "agent", "agent_type", "title", "status", "began", "ended", "parent", "fork_of", "model"),
        *("steps", "errors", "input_tokens", "output_tokens", "tags"),
    ),
    "step": (
        *("id", "run", "kind", "number", "at", "seconds", "error", "tools", "input_tokens", "output_tokens", "text"),
    ),
    "note": ("id", "scope", "kind", "text", "tags", "origin", "run", "at", "expires", "supersedes"),
    "forgotten": ("what", "target"),
}
