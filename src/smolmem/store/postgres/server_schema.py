"""Creates and migrates the tables of a store on PostgreSQL."""

from __future__ import annotations

import psycopg
from psycopg import errors

from smolmem.core.errors import TooNew
from smolmem.store.base import TRIES, migrations, pause
from smolmem.store.postgres.connection import Link, schema_name
from smolmem.store.postgres.server_errors import CONFLICTS, explained

LOCK = "SELECT format FROM store WHERE id = 1 FOR UPDATE"
"""The lock that every writing transaction takes first."""
_FIRST = """CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS store (id bigint PRIMARY KEY CHECK (id = 1), format bigint NOT NULL);
INSERT INTO store (id, format) VALUES (1, 0) ON CONFLICT (id) DO NOTHING"""


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
        _migrate(link, latest)


def _format(link: Link) -> int:
    """The format of the store; 0 if there is none yet."""
    try:
        row = link.live().execute("SELECT format FROM store WHERE id = 1").fetchone()
    except errors.UndefinedTable:
        return 0
    except psycopg.Error as error:
        raise explained(error, link.address, "opened") from error
    return int(row[0]) if row else 0


def _migrate(link: Link, latest: int) -> None:
    """Brings the tables up to date; several processes may be at it."""
    for tries in range(1, TRIES + 1):
        connection = link.live()
        try:
            connection.execute(_FIRST.format(schema=schema_name(link.address, connection)))
            with connection.transaction():
                row = connection.execute(LOCK).fetchone()
                for script in migrations("postgres")[int(row[0]) if row else 0 :]:
                    connection.execute(script)
                connection.execute("UPDATE store SET format = %s WHERE id = 1", (latest,))
            return
        except psycopg.Error as error:
            racing = isinstance(error, (errors.UniqueViolation, errors.DuplicateTable))
            if tries == TRIES or not (racing or error.sqlstate in CONFLICTS):
                raise explained(error, link.address, "created") from error
            pause(tries)
