"""A user's SELECT over one scope, run by a PostgreSQL server.

The statement is checked first (`select_check.py`). It then runs in a transaction that can only read, with a time limit,
through a cursor, from which only so many rows are fetched. The three views are part of the statement, with the scope as
a value in them: no setting can change it. Where `smolmem roles` was run, and the URL of the store names a scope, the
statement runs as a role that may read nothing but the columns of the views, below row-level security.
"""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any

from psycopg import errors, sql

from smolmem.core.arguments import scope_filter
from smolmem.core.errors import InvalidArgument
from smolmem.store.base import Limits, Row, script
from smolmem.store.postgres.connection import Link, Result, time_limit
from smolmem.store.postgres.select_check import CheckedSelect, check
from smolmem.store.postgres.statements import with_parameters

READER = "smolmem_reader"
"""The role that may only read what the views show."""
PORTION = 100
"""Rows that are fetched with one message."""
_BEGIN = ("BEGIN READ ONLY", "SET LOCAL search_path = pg_catalog", "SET LOCAL standard_conforming_strings = on")
_SCHEMAS = "SELECT nspname FROM pg_namespace"
_MAY_BE_READER = """SELECT 1 FROM pg_roles
WHERE rolname = %(reader)s AND pg_has_role(oid, 'MEMBER') AND has_schema_privilege(oid, %(schema)s, 'USAGE')"""


def select(link: Link, bounds: list[str], scope: str, statement: str, limits: Limits) -> list[Row]:
    """The rows of a SELECT over the `runs`, `steps` and `notes` of a scope.

    Args:
        link: a connection that is in no transaction.
        bounds: what tells row-level security the scope of the connection.
        scope: one scope, `acme/*` or `*`.
        statement: the SELECT.
        limits: how much it may return, and how long it may take.

    Raises:
        InvalidArgument: it is not a SELECT over those, or it takes too long.
    """
    try:
        return _rows(link, bounds, scope, statement, limits)
    finally:
        link.roll_back()


def _rows(link: Link, bounds: list[str], scope: str, statement: str, limits: Limits) -> list[Row]:
    asked = {"reader": READER, "schema": link.address.schema}
    before = [*_BEGIN, *bounds, *time_limit(limits.seconds), link.filled(_MAY_BE_READER, asked), _SCHEMAS]
    *_, reader, schemas = link.send(before, "read")
    checked = check(statement, {row[0] for row in schemas.rows}, any_length=limits.any_function)
    whole = _with_views(link, scope, checked)
    if reader.rows and bounds:
        link.send([f"SET LOCAL ROLE {READER}"], "read")
    deadline = time.monotonic() + limits.seconds
    found, size = list[Row](), 0
    try:
        link.run_alone(f"DECLARE found NO SCROLL CURSOR FOR {whole}")
        while len(found) < limits.rows and size <= limits.bytes and time.monotonic() < deadline:
            result = link.run_alone(f"FETCH {min(PORTION, limits.rows - len(found))} FROM found")
            if not result.rows:
                break
            found += (plain := _plain(result, checked.labels))
            size += sum(len(value) for row in plain for value in row.values() if isinstance(value, str))
    except errors.QueryCanceled as error:
        raise InvalidArgument(
            f"the SELECT was stopped: it took longer than {limits.seconds:g} s. Ask for less."
        ) from error
    except errors.Error as error:
        said = link.address.clean(error.diag.message_primary or str(error))
        raise InvalidArgument(
            f"this SELECT cannot be run ({said}): the tables are notes, runs, steps, to read only, in PostgreSQL's SQL."
        ) from error
    return found


def _with_views(link: Link, scope: str, checked: CheckedSelect) -> str:
    """A SELECT that begins with the views of a scope."""
    views = with_parameters(script("postgres", "views")).strip()
    views = views.replace("{schema}", sql.Identifier(link.address.schema).as_string(None))
    filled = link.filled(views, {**scope_filter(scope), "texts": checked.needs_texts})
    if checked.opening == "SELECT":
        return f"{filled}\n{checked.text}"
    return f"{checked.opening}{filled.removeprefix('WITH')},\n{checked.text}"


def _plain(result: Result, labels: list[str] | None) -> list[Row]:
    """Rows with the values and names that SQLite gives."""
    given = labels if labels is not None and len(labels) == len(result.names) else [""] * len(result.names)
    names = [label or name for label, name in zip(given, result.names, strict=True)]
    return [{name: _value(value) for name, value in zip(names, row, strict=True)} for row in result.rows]


def _value(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Decimal):
        return int(value) if value.is_finite() and value.as_tuple().exponent == 0 else float(value)
    return value if value is None or isinstance(value, (int, float, str)) else str(value)
