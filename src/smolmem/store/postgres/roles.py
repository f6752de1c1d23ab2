"""The role of agents, the role of their SELECTs, and row-level security: one scope for each connection."""

from __future__ import annotations

from contextlib import suppress

import psycopg
from psycopg import errors

from smolmem.core.errors import StoreError
from smolmem.store.base import script
from smolmem.store.postgres.address import parse
from smolmem.store.postgres.connection import Link, schema_name
from smolmem.store.postgres.server_errors import explained
from smolmem.store.postgres.server_select import READER

ROLE = "smolmem_agent"


def set_up_roles(url: str) -> str:
    """Creates the roles and the policies of a store; returns the role of agents. Doing it again changes nothing.

    Raises:
        StoreError: the user may not create roles, or does not own the tables.
    """
    address = parse(url)
    link = Link(address)
    try:
        connection = link.live()
        for role in (ROLE, READER):
            with suppress(errors.DuplicateObject):
                connection.execute(f"CREATE ROLE {role} NOLOGIN")
        with connection.transaction():
            connection.execute(script("postgres", "roles").replace("{schema}", schema_name(address, connection)))
    except psycopg.Error as error:
        raise _refused(error, explained(error, address, "given roles")) from error
    finally:
        link.close()
    return ROLE


def _refused(error: psycopg.Error, told: StoreError) -> StoreError:
    if isinstance(error, (errors.UndefinedTable, errors.InvalidSchemaName)):
        return StoreError(f"{told} Open the store once, which creates its tables.")
    return told
