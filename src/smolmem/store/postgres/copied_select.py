"""A user's SELECT over one scope of a server: the rows of the scope are copied into a SQLite database in memory.

On a server, a SELECT can call any function that its user may call, and change who the user is while it runs. SQLite's
sandbox allows nothing but three views, and agents write the same SQL for both stores. Only the tables that a statement
names are copied, page by page, and texts only if it names them; rows and time are limited.
"""

from __future__ import annotations

import re
import time
from contextlib import closing

import apsw

from smolmem.core.arguments import scope_filter
from smolmem.core.errors import InvalidArgument
from smolmem.store.base import Limits, Row, Store
from smolmem.store.sqlite.sandboxed_select import select_from

PAGE = 1_000
"""Rows that are copied with one message."""
TEXT = 20_000
"""Characters of a text that a SELECT sees."""
MAX_TEXT = 200_000_000
"""Characters of all texts that are copied."""
_TABLES = {"run": "runs|steps", "step": "steps", "note": "notes", "forgotten": "runs|steps|notes"}
"""The tables behind the views, and the views that read each of them."""
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


def select(store: Store, scope: str, statement: str, limits: Limits) -> list[Row]:
    """The rows of a SELECT over the `runs`, `steps` and `notes` of a scope.

    Raises:
        InvalidArgument: it is not a SELECT over those, it takes too long, or the scope is too large.
    """
    deadline = time.monotonic() + 10 * limits.seconds
    names_text = re.search(r"\btext\b|\*(?!\s*\))", statement, re.IGNORECASE) is not None
    with closing(apsw.Connection(":memory:")) as copy:
        for table, readers in _TABLES.items():
            columns = ", ".join(_COLUMNS[table])
            copy.execute(f"CREATE TABLE {table} ({columns})")
            if re.search(rf"\b({readers})\b", statement, re.IGNORECASE):
                asked = {**scope_filter(scope), "characters": TEXT if names_text else 0, "limit": PAGE}
                _copy_rows(store, copy, table, asked, limits.copied, deadline)
        return select_from(copy, scope, statement, limits)


def _copy_rows(store: Store, copy: apsw.Connection, table: str, asked: Row, most: int, deadline: float) -> None:
    columns, last, count, size = _COLUMNS[table], 0, 0, 0
    added = f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})"  # noqa: S608  of names above
    while rows := store.rows(f"copy_{table}", {**asked, "after": last}):
        last, count = rows[-1]["place"], count + len(rows)
        size += sum(len(row.get("text", "")) for row in rows)
        if count > most or size > MAX_TEXT or time.monotonic() > deadline:
            raise InvalidArgument(
                f"the scope {asked['scope'] or '*'!r} has too many {table}s for a SELECT on a server (more than "
                f"{count - len(rows):,}): name a smaller scope, or use the filters of runs(), steps() and notes()."
            )
        with copy:
            copy.executemany(added, [tuple(row[name] for name in columns) for row in rows])
