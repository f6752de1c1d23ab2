"""Creates and migrates the tables of a store on PostgreSQL."""

from __future__ import annotations

import logging
import re

import psycopg
from psycopg import errors

from smolmem.core.errors import TooNew, Unwritable
from smolmem.store.base import TRIES, migrations, pause
from smolmem.store.postgres.connection import Link, schema_name
from smolmem.store.postgres.server_errors import CONFLICTS, explained
from smolmem.store.postgres.statements import LOCK

log = logging.getLogger("smolmem")

_FIRST = """CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS store (id bigint PRIMARY KEY CHECK (id = 1), format bigint NOT NULL);
INSERT INTO store (id, format) VALUES (1, 0) ON CONFLICT (id) DO NOTHING"""
_UNCHECKED = re.compile(r"ALTER TABLE (\w+) ADD CONSTRAINT (\w+) FOREIGN KEY \(\w+\) REFERENCES (\w+) .* NOT VALID")


def prepare(link: Link) -> None:
    """Creates or migrates the tables; a store of a later release stays as it is.

    Raises:
        TooNew: a later smolmem wrote the store.
    """
    latest, found = len(migrations("postgres")), _format(link)
    if found > latest:
        raise TooNew(
            f"{link.address.shown} was written by a later smolmem (format {found}, this one knows {latest}), "
            "and was left as it is: upgrade smolmem."
        )
    if found < latest:
        _migrate(link, found, latest)


def _format(link: Link) -> int:
    """The format of the store; 0 if there is none yet."""
    try:
        row = link.live().execute("SELECT format FROM store WHERE id = 1").fetchone()
    except errors.UndefinedTable:
        return 0
    except psycopg.Error as error:
        raise explained(error, link.address, "opened") from error
    return int(row[0]) if row else 0


def _migrate(link: Link, found: int, latest: int) -> None:
    """Brings the tables up to date; several processes may be at it."""
    for tries in range(1, TRIES + 1):
        connection = link.live()
        try:
            connection.execute(_FIRST.format(schema=schema_name(link.address, connection)))
            with connection.transaction():
                connection.execute("SET LOCAL statement_timeout = 0")  # a large table gets an index
                row = connection.execute(LOCK).fetchone()
                scripts = migrations("postgres")[int(row[0]) if row else 0 :]
                for script in scripts:
                    connection.execute(script)
                connection.execute("UPDATE store SET format = %s WHERE id = 1", (latest,))
            _check_links(link, scripts)
            return
        except psycopg.Error as error:
            if found and isinstance(error, errors.InsufficientPrivilege):
                raise Unwritable(
                    f"{link.address.shown} was written by an earlier smolmem (format {found}), and this user may not "
                    "upgrade it: open it once as the owner of its tables, for instance with `smolmem stats`."
                ) from error
            racing = isinstance(error, (errors.UniqueViolation, errors.DuplicateTable))
            if tries == TRIES or not (racing or error.sqlstate in CONFLICTS):
                raise explained(error, link.address, "created") from error
            pause(tries)


def _check_links(link: Link, scripts: list[str]) -> None:
    """Checks the rows that were there before a foreign key; those that violate it are reported, and stay.

    The check is left out where it would take long: `verify` makes it, too.
    """
    for table, name, missing in _UNCHECKED.findall("\n".join(scripts)):
        try:
            link.live().execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}")
        except (errors.LockNotAvailable, errors.QueryCanceled):
            continue
        except errors.ForeignKeyViolation as error:
            log.warning(
                "%s: the table %s has rows that refer to a %s that is missing (%s). They stay as they are, and no more "
                "can be added: `smolmem verify` names them.",
                link.address.shown, table, missing, error.diag.message_detail,
            )  # fmt: skip
