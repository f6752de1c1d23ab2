"""Connections to a PostgreSQL server: opened when they are used, and opened again after they broke.

Several statements are sent as one message (the simple protocol): that takes as long as sending one. Statements that
every step sends are prepared, by the message that has them first.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
from psycopg import errors, generators, pq, sql

from smolmem.core.errors import StoreError, Unwritable
from smolmem.store.base import Row
from smolmem.store.postgres.address import Address
from smolmem.store.postgres.server_errors import CONFLICTS, ConnectionLost, explained, refused
from smolmem.store.postgres.statements import Statement, preparations

STARTING_SECONDS = 30.0
"""Seconds to wait for a server that answers, and says that it is starting or stopping."""
LOCK_SECONDS = 30
"""Seconds to wait for another writer."""
STATEMENT_SECONDS = 120
"""Seconds that one statement may take."""
POOL = 4
"""Connections of a store besides the first one."""
IDLE_SECONDS = 60
"""Seconds after which the server ends the transaction of a machine that fell silent: others wait for its lock."""

_SETTINGS = (
    "SET search_path = {schema}, pg_catalog; "
    f"SET lock_timeout = '{LOCK_SECONDS}s'; SET statement_timeout = '{STATEMENT_SECONDS}s'; "
    f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'; SET client_min_messages = warning; "
    "SELECT current_setting('transaction_read_only'), current_setting('server_version')"
)

_STANDARD_STRINGS = b"standard_conforming_strings"


class Result(NamedTuple):
    """The columns and rows of a statement."""

    names: list[str]
    rows: list[tuple[Any, ...]]

    def as_dicts(self) -> list[Row]:
        """Rows as dicts. The order in which runs and notes were written is none of their columns in SQLite."""
        kept = [place for place, column in enumerate(self.names) if column != "rowid"]
        return [{self.names[place]: row[place] for place in kept} for row in self.rows]


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
            self._filling = psycopg.ClientCursor(self._connection)
            self._escaping = pq.Escaping(self._connection.pgconn)
            self._prepared: set[str] | None = set()  # None: not known, after a message failed
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
        self.live()
        try:
            return self._filling.mogrify(text, values)
        except psycopg.Error as error:
            raise explained(error, self.address, "used") from error

    def spoken(self, statement: Statement, values: Mapping[str, Any]) -> str:
        """The same for a named statement; one that is prepared is named."""
        connection = self.live().pgconn
        settings = connection.parameter_status(b"client_encoding"), connection.parameter_status(_STANDARD_STRINGS)
        if not statement.parameters or settings != (b"UTF8", b"on"):
            return self.filled(statement.text, values)
        given = [self._literal(values[name]) for name in statement.parameters]
        if "" in given:
            return self.filled(statement.text, values)
        return f"EXECUTE {statement.name}({','.join(given)})"

    def _literal(self, value: object) -> str:
        """A value as the driver writes it, in a third of the time; empty for a value that is left to the driver."""
        if value is None:
            return "NULL"
        if type(value) is int:
            return str(value)
        if type(value) is float and math.isfinite(value):
            return repr(value)
        if type(value) is bytes:
            return f"'\\x{value.hex()}'::bytea"
        if type(value) is str and "\0" not in value:
            with suppress(UnicodeEncodeError):
                return self._escaping.escape_literal(value.encode()).decode()
        return ""

    def _with_prepared(self, texts: Sequence[str]) -> tuple[list[str], int]:
        """Statements, after those that prepare what they name; and how many those are."""
        named = {text[8:].partition("(")[0] for text in texts if text.startswith("EXECUTE ")}
        if not named:
            return list(texts), 0
        before = [] if self._prepared is not None else ["DEALLOCATE ALL"]
        known = self._prepared or set()
        before += [preparations()[name] for name in sorted(named - known)]
        self._prepared = known | named if before else known
        return [*before, *texts], len(before)

    def scope_setting(self) -> list[str]:
        """The statement that tells row-level security the scope of a transaction, if the address has one."""
        if self.address.scope is None:
            return []
        return [self.filled("SELECT set_config('smolmem.scope', %(scope)s, true)", {"scope": self.address.scope})]

    def send(self, texts: Sequence[str], done: str, seconds: float | None = None) -> list[Result]:
        """Sends statements as one message; returns the result of each.

        Raises:
            TimeoutError: if one took longer than `seconds`.
            StoreError: what the server says.
        """
        connection = self.live()
        sent, before = self._with_prepared(texts)
        try:
            cursor = connection.execute(";\n".join(sent))
            found = [_result(cursor)]
            while cursor.nextset():
                found.append(_result(cursor))
            return found[before:]
        except psycopg.Error as error:
            self._prepared = None
            raise self._explained(error, done, seconds) from error

    def post(self, texts: Sequence[str], done: str) -> None:
        """Sends statements as one message without waiting for the results: `read_answer` does.

        When this returns, the system has the whole message, and delivers it though the process be killed.
        """
        connection = self.live()
        try:
            connection.pgconn.send_query(";\n".join(self._with_prepared(texts)[0]).encode())
            connection.wait(generators.send(connection.pgconn))
        except psycopg.Error as error:
            connection.close()
            raise self._explained(error, done, None) from error
        except BaseException:  # interrupted: the rest of the message must not follow
            connection.close()
            raise

    def read_answer(self, done: str) -> Exception | None:
        """Waits for the results of `post`; returns the error if there is one."""
        connection = self._connection
        if connection is None or connection.closed:
            return ConnectionLost(f"{self.address.shown} cannot be {done}: the connection broke.")
        try:
            results = connection.wait(generators.fetch_many(connection.pgconn))
            if results[-1].status == pq.ExecStatus.FATAL_ERROR:
                raise errors.error_from_result(results[-1])
        except psycopg.Error as error:
            self._prepared = None
            self.roll_back()
            return self._explained(error, done, None)
        except BaseException:  # interrupted: the answer may still come, and nobody reads it
            connection.close()
            raise
        return None

    def fetch_binary(self, text: str, done: str) -> Result:
        """The result of one statement, with numbers and bytes as they are: quicker for very many rows."""
        connection = self.live()
        try:
            return _result(connection.execute(text, binary=True))
        except psycopg.Error as error:
            raise self._explained(error, done, None) from error

    def run_alone(self, text: str) -> Result:
        """The result of one statement; the server refuses a text of several.

        Raises:
            psycopg.Error: what the server says.
            ConnectionLost: the connection broke.
            Conflict: another transaction was in the way.
        """
        try:
            return _result(self.live().execute(text, binary=True))
        except psycopg.Error as error:
            if self.is_broken or error.sqlstate in CONFLICTS:
                raise self._explained(error, "read", None) from error
            raise

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


class Pool:
    """Some more connections: for threads that read at the same time, and for messages that nobody waits for."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._links: list[Link] = []
        self._idle: list[Link] = []

    def take(self) -> Link | None:
        """A connection that nobody uses; None if there are too many, or the server takes no more."""
        with self._lock:
            if not self._idle and len(self._links) < POOL:
                with suppress(StoreError):
                    self._idle.append(Link(self._address))
                    self._links += self._idle
            with suppress(StoreError, IndexError):
                self._idle[-1].live()
                return self._idle.pop()
        return None

    def give_back(self, link: Link) -> None:
        """A connection is free again; a broken one is made anew when it is used."""
        with self._lock:
            self._idle.append(link)

    def close(self) -> None:
        """Closes all connections for good."""
        for link in self._links:
            link.close()

    def leave_to_parent(self) -> None:
        """In a forked child: the connections are the parent's."""
        for link in self._links:
            link.leave_to_parent()
        self._lock, self._links, self._idle = threading.Lock(), [], []


_inherited: list[Any] = []
"""Connections of the parent of this process: closing them would end the parent's."""


def schema_name(address: Address, connection: psycopg.Connection[Any]) -> str:
    """The schema as SQL names it."""
    return sql.Identifier(address.schema).as_string(connection)


def time_limit(seconds: float | None) -> list[str]:
    """What limits the time of each statement of a transaction."""
    return [] if seconds is None else [f"SET LOCAL statement_timeout = {max(1, int(seconds * 1000))}"]


def _result(cursor: psycopg.Cursor[Any]) -> Result:
    if cursor.description is None:
        return Result([], [])
    return Result([column.name for column in cursor.description], cursor.fetchall())
