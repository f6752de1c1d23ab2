"""The errors of the PostgreSQL driver as errors of smolmem: what happened, where, what to do next."""

from __future__ import annotations

import re

import psycopg
from psycopg import errors

from smolmem.core.errors import Busy, NotAStore, StoreError, Undone, Unwritable
from smolmem.store.postgres.address import Address

CONFLICTS = ("40001", "40P01")
"""A transaction that must run again: it conflicts with another one, or each of two waits for the other."""
ASSUMPTIONS = ("22012", "23503", "23505")
"""A division by zero, with which statements check assumptions; a row that is missing; a row that is there already."""
_RECOVERING = ("57P01", "57P02", "57P03", "25P03", "57P05")
"""The server ends a connection, or does not take one yet."""


class Conflict(Undone):
    """The server undid a transaction because of another one."""


class WrongAssumption(StoreError):
    """A statement that checks an assumption failed, or a row is there already."""


class ConnectionLost(Undone):
    """The server cannot be reached, or the connection to it broke."""


class Unsent(Exception):
    """The connection broke before COMMIT was sent: nothing of the transaction is stored."""

    def __init__(self, error: ConnectionLost) -> None:
        super().__init__(str(error))
        self.error = error


class MustWait(Exception):
    """A transaction needs an answer of the server, and cannot be sent without waiting."""


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


_REFUSED: tuple[tuple[str, type[StoreError], str], ...] = (
    (
        r"no encryption",
        Unwritable,
        "the server refuses a connection without TLS ({}). Add sslmode=require to the URL; if the server refuses that, "
        "too, its pg_hba.conf has no entry for this user and host.",
    ),
    (
        r"does not support SSL",
        Unwritable,
        "the URL asks for TLS, and the server has none. Turn it on there, or change sslmode in the URL.",
    ),
    (r"certificate", Unwritable, "TLS fails ({}). Check sslmode, sslrootcert and sslcert in the URL."),
    (
        r"password|authentication|pg_hba.conf",
        Unwritable,
        "the server refuses the user or the password ({}). Check the URL, ~/.pgpass and PGPASSWORD.",
    ),
    (
        r"database .*does not exist",
        NotAStore,
        "there is no such database. Create it (createdb), or give the name of another one.",
    ),
    (
        r"role .*does not exist",
        Unwritable,
        "the server knows no such user ({}). Create the role, or give another one.",
    ),
    (
        r"permission denied",
        Unwritable,
        "{}. Grant the rights to this user; docs/postgres.md has a script for roles.",
    ),
    (
        r"too many (clients|connections)|remaining connection slots",
        ConnectionLost,
        "all connections of the server are in use ({}). Raise max_connections, or end some workers.",
    ),
    (r"invalid response|unexpected response", NotAStore, "no PostgreSQL server answers there. Check host and port."),
    (r"invalid .*(option|parameter|value|port number)", NotAStore, "{}. Correct the URL."),
    (r"", ConnectionLost, "{}. Check the address, and that the server is up and reachable."),
)
"""What libpq says when a connection cannot be made, and what to do. It tells it in words only."""


def refused(error: psycopg.Error, address: Address) -> StoreError:
    """Why a connection could not be made."""
    detail = re.sub(
        r"connection to server .*? failed: |FATAL: +|connection is bad: | Is the server running.*",
        "",
        address.clean(str(error)),
    )
    kind, told = next((kind, told) for words, kind, told in _REFUSED if re.search(words, detail))
    return kind(f"{address.shown} cannot be opened: {told.format(detail)}")
