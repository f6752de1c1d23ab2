"""Runs a SELECT of an agent or a user over some scopes of a SQLite file, and nothing else.

The connection can only read. It sees three views, and the engine refuses to prepare anything else: another table,
another file, a pragma, a function that could run for long. Tables are readable only through views with random names,
because the engine distinguishes a view from a reader's own `WITH notes AS …` only by name. Time and size are limited.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import apsw

from smolmem.core.arguments import scope_filter
from smolmem.core.errors import InvalidArgument
from smolmem.store.base import AGENT, Limits, Row, script
from smolmem.store.packed_text import add_functions
from smolmem.store.sqlite.encryption import Key, connect

_SCOPES = """INSERT INTO temp.mine
SELECT scope FROM (SELECT scope FROM main.run UNION SELECT scope FROM main.note)
WHERE :scope IS NULL OR scope = :scope OR substr(scope, 1, length(:below)) = :below"""
VIEWS = frozenset({"runs", "steps", "notes"})
_FUNCTIONS = frozenset(
    """abs avg coalesce count date datetime dense_rank first_value group_concat ifnull iif julianday
    lag last_value lead length like lower ltrim max min nullif rank round row_number rtrim strftime
    substr substring sum time total trim typeof unixepoch upper""".split()  # noqa: SIM905
)


@contextmanager
def time_limit(connection: apsw.Connection, seconds: float | None) -> Iterator[None]:
    """Stops statements of a connection after some seconds."""
    if seconds is None:
        yield
        return
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
    try:
        yield
    except apsw.InterruptError as error:
        raise TimeoutError(f"it took longer than {seconds:g} s") from error
    finally:
        connection.set_progress_handler(None)


def select(path: str, scope: str, statement: str, key: Key | None = None, limits: Limits = AGENT) -> list[Row]:
    """The rows of a SELECT over the `runs`, `steps` and `notes` of a scope; `acme/*` and `*` as for `Memory`.

    Raises:
        InvalidArgument: it is not a SELECT over those, or it takes too long.
    """
    with closing(connect(path, apsw.SQLITE_OPEN_READONLY, key)) as connection:
        connection.set_busy_timeout(5_000)
        return select_from(connection, scope, statement, limits)


def select_from(connection: apsw.Connection, scope: str, statement: str, limits: Limits = AGENT) -> list[Row]:
    """`select` through a connection that is used for nothing else."""
    try:
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        hidden = f"v{secrets.token_hex(16)}"
        add_functions(connection)
        connection.execute(script("sqlite", "views").replace("hidden", hidden))
        bounds: Row = {**scope_filter(scope)}
        connection.execute(_SCOPES, bounds)
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, limits.bytes)
        connection.limit(apsw.SQLITE_LIMIT_SQL_LENGTH, 20_000)
        connection.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 200)
        read_through = frozenset(f"{hidden}_{view}" for view in VIEWS)
        connection.authorizer = partial(_allowed, read_through, limits.any_function)
        with time_limit(connection, limits.seconds):
            return _rows(connection, statement, limits)
    except TimeoutError as late:
        raise InvalidArgument(f"the SELECT was stopped: {late}. Ask for less.") from late
    except apsw.Error as error:
        raise InvalidArgument(
            f"this SELECT cannot be run ({error}): the tables are {', '.join(sorted(VIEWS))}, to read only."
        ) from error


def _rows(connection: apsw.Connection, statement: str, limits: Limits) -> list[Row]:
    found: list[Row] = []
    size = 0
    cursor = connection.execute(statement)
    for row in cursor:
        names = [column[0] for column in cursor.get_description()]
        found.append(dict(zip(names, row, strict=True)))
        size += sum(len(value) for value in row if isinstance(value, (str, bytes)))
        if len(found) >= limits.rows or size > limits.bytes:
            break
    return found


def _allowed(
    hidden: frozenset[str],
    any_function: bool,
    action: int,
    one: str | None,
    two: str | None,
    database: str | None,
    through: str | None,
) -> int:
    """Whether the engine may prepare this: a read of one of our views, or through a hidden view."""
    fine: Any = False
    if action in (apsw.SQLITE_SELECT, apsw.SQLITE_RECURSIVE):
        fine = True
    elif action == apsw.SQLITE_READ:
        fine = through in hidden or (database == "temp" and (one in VIEWS or (one in hidden and through in VIEWS)))
    elif action == apsw.SQLITE_FUNCTION:
        fine = any_function or (two or "").lower() in _FUNCTIONS or (two == "plain" and through in hidden)
    return apsw.SQLITE_OK if fine else apsw.SQLITE_DENY
