"""One connection to a PostgreSQL server: opened when it is used, and opened again after it broke.

Several statements are sent as one message (the simple protocol): that takes as long as sending one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
from psycopg import errors, sql

from smolmem.core.errors import StoreError, Unwritable
from smolmem.store.postgres_address import Address
from smolmem.store.postgres_errors import ConnectionLost, explained, refused

STARTING_SECONDS = 30.0
"""Seconds to wait for a server that answers, and says that it is starting or stopping."""
LOCK_SECONDS = 30
"""Seconds to wait for another writer."""
STATEMENT_SECONDS = 120
"""Seconds that one statement may take."""
IDLE_SECONDS = 60
"""Seconds after which the server ends the transaction of a machine that fell silent: others wait for its lock."""

_SETTINGS = (
    "SET search_path = {schema}, pg_catalog; "
    f"SET lock_timeout = '{LOCK_SECONDS}s'; SET statement_timeout = '{STATEMENT_SECONDS}s'; "
    f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'; SET client_min_messages = warning; "
    "SELECT current_setting('transaction_read_only'), current_setting('server_version')"
)


class Result(NamedTuple):
    """The columns and rows of a statement."""

    names: list[str]
    rows: list[tuple[Any, ...]]


class Link:
    """A connection to the server at an address; for one thread at a time."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.version = ""
        self.connected_at = 0.0
        self._connection: psycopg.Connection[Any] | None = None
        self._is_closed = False
        self.live()

    @property
    def is_open(self) -> bool:
        """Whether it was not closed; a broken connection is made anew when it is used."""
        return not self._is_closed

    @property
    def is_broken(self) -> bool:
        """Whether there is no connection now."""
        return self._connection is None or self._connection.closed

    def live(self) -> psycopg.Connection[Any]:
        """The connection, made anew if it is broken.

        Raises:
            StoreError: if it was closed, or cannot be made.
        """
        if self._is_closed:
            shown = self.address.shown
            raise StoreError(f"{shown} is closed: open it again with Memory({shown!r}).")
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
            self.connected_at = time.monotonic()
        return self._connection

    def _connect(self) -> psycopg.Connection[Any]:
        connection = self._reached()
        try:
            cursor = connection.execute(_SETTINGS.format(schema=schema_name(self.address, connection)))
            while cursor.nextset():
                pass
            read_only, self.version = cursor.fetchone() or ("", "")
        except psycopg.Error as error:
            connection.close()
            raise explained(error, self.address, "opened") from error
        if read_only == "on":
            connection.close()
            raise Unwritable(
                f"{self.address.shown} cannot be opened: the server only reads, as replicas do. "
                "Give the address of the primary server."
            )
        return connection

    def _reached(self) -> psycopg.Connection[Any]:
        """A new connection; waits for a server that is starting or stopping."""
        deadline = time.monotonic() + STARTING_SECONDS
        while True:
            try:
                return psycopg.connect(self.address.conninfo, autocommit=True, prepare_threshold=None)
            except psycopg.Error as error:
                if "the database system is" not in str(error) or time.monotonic() > deadline:
                    raise refused(error, self.address) from None  # the driver's error may hold the password
            time.sleep(0.1)

    def filled(self, text: str, values: Mapping[str, Any]) -> str:
        """A statement with its values, escaped for this connection."""
        connection = self.live()
        try:
            return psycopg.ClientCursor(connection).mogrify(text, values)
        except psycopg.Error as error:
            raise explained(error, self.address, "used") from error

    def send(self, texts: Sequence[str], done: str, seconds: float | None = None) -> list[Result]:
        """Sends statements as one message; returns the result of each.

        Raises:
            TimeoutError: if one took longer than `seconds`.
            StoreError: what the server says.
        """
        connection = self.live()
        try:
            cursor = connection.execute(";\n".join(texts))
            found = [_result(cursor)]
            while cursor.nextset():
                found.append(_result(cursor))
            return found
        except psycopg.Error as error:
            raise self._explained(error, done, seconds) from error

    def fetch_binary(self, text: str, done: str) -> Result:
        """The result of one statement, with numbers and bytes as they are: quicker for very many rows."""
        connection = self.live()
        try:
            return _result(connection.execute(text, binary=True))
        except psycopg.Error as error:
            raise self._explained(error, done, None) from error

    def _explained(self, error: psycopg.Error, done: str, seconds: float | None) -> Exception:
        if isinstance(error, errors.QueryCanceled) and seconds is not None:
            return TimeoutError(f"it took longer than {seconds:g} s")
        if self.is_broken:
            detail = self.address.clean(str(error))
            return ConnectionLost(f"{self.address.shown} cannot be {done}: the connection broke ({detail}).")
        return explained(error, self.address, done)

    def roll_back(self) -> None:
        """Undoes the transaction, if there is one."""
        if self._connection is not None and not self._connection.closed:
            with suppress(psycopg.Error):  # the connection broke, and the transaction with it
                self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Closes the connection for good."""
        self._is_closed = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def leave_to_parent(self) -> None:
        """In a forked child: the connection is the parent's, and the next use makes another one."""
        if self._connection is not None:
            _inherited.append(self._connection)
            self._connection = None


_inherited: list[Any] = []
"""Connections of the parent of this process: closing them would end the parent's."""


def schema_name(address: Address, connection: psycopg.Connection[Any]) -> str:
    """The schema as SQL names it."""
    return sql.Identifier(address.schema).as_string(connection)


def _result(cursor: psycopg.Cursor[Any]) -> Result:
    if cursor.description is None:
        return Result([], [])
    return Result([column.name for column in cursor.description], cursor.fetchall())
