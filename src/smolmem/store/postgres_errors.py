"""The errors of the PostgreSQL driver as errors of smolmem: what happened, where, what to do next."""

from __future__ import annotations

import psycopg
from psycopg import errors

from smolmem.core.errors import Busy, NotAStore, StoreError, Unwritable
from smolmem.store.postgres_address import Address

CONFLICTS = ("40001", "40P01")
"""A transaction that must run again: it conflicts with another one, or each of two waits for the other."""
ASSUMPTIONS = ("22012", "23503", "23505")
"""A division by zero, with which statements check assumptions; a row that is missing; a row that is there already."""
_RECOVERING = ("57P01", "57P02", "57P03", "25P03", "57P05")
"""The server ends a connection, or does not take one yet."""


class Conflict(StoreError):
    """The server undid a transaction because of another one: it can run again."""


class WrongAssumption(StoreError):
    """A statement that checks an assumption failed, or a row is there already."""


class ConnectionLost(StoreError):
    """The server cannot be reached, or the connection to it broke."""


def explained(error: psycopg.Error, address: Address, done: str) -> StoreError:
    """A driver's error as ours."""
    what, detail, state = f"{address.shown} cannot be {done}", address.clean(str(error)), error.sqlstate or ""
    if state in CONFLICTS:
        return Conflict(f"{what}: other transactions were in the way too often ({detail}). Try again.")
    if state in ASSUMPTIONS:
        return WrongAssumption(f"{what}: {detail}.")
    if state in ("55P03", "57014"):
        return Busy(f"{what}: another process has held it for too long ({detail}). Try again.")
    if state == "25006":
        return Unwritable(f"{what}: the server only reads, as replicas do. Give the address of the primary server.")
    if state == "42501" and "row-level security" in detail:
        named = f"this connection names {address.scope!r}" if address.scope else "this connection names none"
        return Unwritable(f"{what}: {detail}, and {named}. Give the scope in the URL: ?scope=acme/alice.")
    if state == "42501":
        return Unwritable(f"{what}: {detail}. Grant the rights to this user; docs/postgres.md has a script for roles.")
    if state in ("53100", "53200"):
        return Unwritable(f"{what}: the server has no space left ({detail}). What was written before is safe.")
    if (
        state.startswith("08")
        or state in _RECOVERING
        or isinstance(error, (errors.OperationalError, psycopg.InterfaceError))
    ):
        return ConnectionLost(
            f"{what}: {detail or 'the connection is lost'}. Check that the server is up and reachable."
        )
    return StoreError(f"{what}: {detail}.")


def refused(error: psycopg.Error, address: Address) -> StoreError:
    """Why a connection could not be made. libpq tells it in words only."""
    detail = address.clean(str(error))
    what = f"{address.shown} cannot be opened"
    if "password" in detail or "authentication" in detail or "no pg_hba.conf entry" in detail:
        return Unwritable(f"{what}: the server refuses the user or the password ({detail}). Check both in the URL.")
    if "database" in detail and "does not exist" in detail:
        return NotAStore(f"{what}: there is no such database. Create it (createdb), or give the name of another one.")
    if "role" in detail and "does not exist" in detail:
        return Unwritable(f"{what}: the server knows no such user ({detail}). Create the role, or give another one.")
    if "invalid" in detail and ("option" in detail or "parameter" in detail or "value" in detail):
        return NotAStore(f"{what}: {detail}. Correct the URL.")
    return ConnectionLost(f"{what}: {detail}. Check the address, and that the server is up and reachable.")
