"""A PostgreSQL server as a store: the same journal for agents on many machines.

What must stay true:
- Every writing transaction first locks the one row of `store`, as `BEGIN IMMEDIATE` does in SQLite. Ids are handed out
  while it is held, so their order is that of the commits: who has read up to an id has missed nothing.
- Statements without a result are kept back and sent with the next one that has a result, or with COMMIT: a network is
  slow, and one message of ten statements takes as long as one of one.
- A transaction that the server undid, or whose connection broke before COMMIT was sent, runs again. If the connection
  breaks during COMMIT, nobody knows the outcome: the error is raised, and the recorder looks what was saved.
- Values are escaped by libpq, and enter only as parameters.
- Nothing but the dialect that CockroachDB, YugabyteDB and Citus share: a test reads the statements.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import psycopg
from psycopg import errors, sql

from smolmem.core import faults
from smolmem.core.errors import Busy, StoreError, TooNew, Unwritable
from smolmem.store import fork_hooks, postgres_words
from smolmem.store.base import Durability, Progress, Row, T, migrations, statements
from smolmem.store.postgres_address import Address, parse
from smolmem.store.postgres_errors import CONFLICTS, Conflict, ConnectionLost, explained, refused

LOCK_SECONDS = 30
"""Seconds to wait for another writer."""
PATIENCE = 5.0
"""Seconds to wait for a server that went away; none while it stays away, so that an agent is not held up."""
TRIES = 20
"""How often a transaction that conflicts with others runs again."""
IDS = 4
"""Ids that a transaction gets with the lock."""

_SETTINGS = f"""
SET search_path = {{schema}}, pg_catalog;
SET lock_timeout = '{LOCK_SECONDS}s';
SET statement_timeout = '120s';
SET idle_in_transaction_session_timeout = '60s';
SET client_min_messages = warning;
SELECT current_setting('transaction_read_only'), current_setting('server_version')"""
_LOCK = "SELECT format FROM store WHERE id = 1 FOR UPDATE"
_NEW_IDS = f"SELECT nextval('ids') FROM generate_series(1, {IDS})"
_FIRST = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS store (id bigint PRIMARY KEY CHECK (id = 1), format bigint NOT NULL);
INSERT INTO store (id, format) VALUES (1, 0) ON CONFLICT (id) DO NOTHING"""


class _Statement(NamedTuple):
    """A named statement as the driver takes it."""

    text: str
    has_result: bool
    takes_id: bool


class _Result(NamedTuple):
    names: list[str]
    rows: list[tuple[Any, ...]]


class PostgresStore:
    """A `Store` on a server; usable from many threads, processes and machines."""

    def __init__(self, url: str, durability: Durability = "full") -> None:
        self._given = url
        self._address: Address = parse(url)
        self.durability = durability
        self._statements = {name: _prepared(text) for name, text in statements("postgres").items()}
        self.lock = threading.RLock()
        self._connection: psycopg.Connection[Any] | None = None
        self._closed = False
        self._waiting: list[str] = []
        self._in_transaction = False
        self._ids: list[int] = []
        self._ids_at: int | None = None
        self._patience = PATIENCE
        self.version = ""
        self._connect()
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise
        fork_hooks.stores.add(self)

    @property
    def url(self) -> str:
        """The URL without its password."""
        return self._address.shown

    @property
    def encrypted(self) -> bool:
        """The server decides how it stores; smolmem has no key."""
        return False

    @property
    def is_open(self) -> bool:
        """Whether the store is open; a broken connection is made anew when it is used."""
        return not self._closed

    @property
    def numbers_have_gaps(self) -> bool:
        """A sequence takes no number back."""
        return True

    def reopened(self) -> PostgresStore:
        """The same store through a connection of its own; see `Store.reopened`."""
        return PostgresStore(self._given, self.durability)

    # --- writing ---------------------------------------------------------------------------------------------------

    def transact(self, body: Callable[[], T], *, sync: bool = True) -> T:
        """One transaction; see `Store.transact`."""
        with self.lock:
            if self._in_transaction:
                raise StoreError("a transaction cannot begin inside another one.")
            deadline, tries = time.monotonic() + self._patience, 0
            while True:
                try:
                    done = self._attempt(body, sync=sync and self.durability == "full")
                except (Conflict, _Unsent) as error:
                    tries += 1
                    late = tries >= TRIES if isinstance(error, Conflict) else time.monotonic() > deadline
                    if late:
                        self._patience = 0.0 if isinstance(error, _Unsent) else self._patience
                        raise error.__cause__ or error if isinstance(error, _Unsent) else error
                    time.sleep(random.uniform(0, min(0.5, 0.005 * 2**tries)))
                else:
                    self._patience = PATIENCE
                    return done

    def _attempt(self, body: Callable[[], T], *, sync: bool) -> T:
        sent = False
        try:
            self._begin(sync=sync)
            faults.point("write.begun")
            done = body()
            faults.point("write.done")
            sent = True
            self._send("COMMIT", done="written")
            self._in_transaction = False
            faults.point("write.committed")
        except BaseException as error:
            self._roll_back()
            if isinstance(error, ConnectionLost) and not sent:
                raise _Unsent from error
            raise
        return done

    def _begin(self, *, sync: bool) -> None:
        self._live()
        self._in_transaction = True
        self._waiting = ["BEGIN", *([] if sync else ["SET LOCAL synchronous_commit = off"]), *self._bounds(), _LOCK]
        self._ids, self._ids_at = [], len(self._waiting)
        self._waiting.append(_NEW_IDS)

    def _roll_back(self) -> None:
        self._waiting, self._in_transaction, self._ids_at = [], False, None
        connection = self._connection
        if connection is not None and not connection.closed:
            with suppress(psycopg.Error):  # the connection is lost, and with it the transaction
                connection.execute("ROLLBACK")

    def _bounds(self) -> list[str]:
        """What row-level security compares scopes with, for one transaction."""
        scope = self._address.scope
        return [] if scope is None else [self._filled("SELECT set_config('smolmem.scope', %(scope)s, true)", {"scope": scope})]

    def _new_id(self) -> int:
        if not self._ids:
            if self._ids_at is not None:
                self._send("SELECT 1", done="written")
            else:
                self._ids = [int(row[0]) for row in self._send(_NEW_IDS, done="written").rows]
        return self._ids.pop(0)

    # --- statements ------------------------------------------------------------------------------------------------

    def do(self, name: str, values: Mapping[str, Any]) -> Any:
        """Runs a statement; see `Store.do`."""
        with self.lock:
            statement, values = self._statement(name, values)
            if self._in_transaction and statement.takes_id:
                number = self._new_id()
                self._waiting.append(self._filled(statement.text, {**values, "new_id": number}))
                return number
            if self._in_transaction and not statement.has_result:
                self._waiting.append(self._filled(statement.text, values))
                return None
            rows = self._run(statement, values, None, "used").rows
        return rows[0][0] if rows else None

    def rows(self, name: str, values: Mapping[str, Any], seconds: float | None = None) -> list[Row]:
        """All rows of a query; see `Store.rows`. The order in which runs and notes were written is no column of them."""
        with self.lock:
            statement, values = self._statement(name, values)
            found = self._run(statement, values, seconds, "read")
        kept = [place for place, column in enumerate(found.names) if column != "rowid"]
        return [{found.names[place]: row[place] for place in kept} for row in found.rows]

    def columns(self, name: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """All rows of a query by column; see `Store.columns`. Numbers and bytes come in binary."""
        with self.lock:
            statement, values = self._statement(name, values)
            found = self._run(statement, values, None, "read", binary=True)
        return list(zip(*found.rows, strict=True))

    def _statement(self, name: str, values: Mapping[str, Any]) -> tuple[_Statement, Mapping[str, Any]]:
        """A statement and its values; full text is said differently here."""
        if name in postgres_words.ADDS:
            values = postgres_words.row_values(name, values)
        elif name in postgres_words.FINDS or name in postgres_words.COUNTS:
            name = postgres_words.FINDS.get(name, name)
            values = postgres_words.query_values(values, self._terms_beginning_with)
        return self._statements[name], values

    def _terms_beginning_with(self, term: str) -> list[str]:
        found = self.rows("terms_from", {"first": term, "last": f"{term}\U0010ffff", "limit": 200})
        return [row["term"] for row in found]

    def _run(
        self, statement: _Statement, values: Mapping[str, Any], seconds: float | None, done: str, *, binary: bool = False
    ) -> _Result:
        """The result of one statement, in the transaction or by itself; once more if the connection was lost before."""
        text = self._filled(statement.text, values)
        around = [] if self._in_transaction else self._bounds()
        if seconds is not None:
            around.append(f"SET LOCAL statement_timeout = {int(seconds * 1000)}")
        if self._in_transaction or not around:
            self._waiting += around
            return self._send_again(text, seconds, done, binary)
        return self._alone(["BEGIN", *around], text, seconds, done)

    def _alone(self, before: list[str], text: str, seconds: float | None, done: str) -> _Result:
        self._waiting = before
        try:
            found = self._send_again(text, seconds, done, binary=False, after="COMMIT")
        except BaseException:
            self._roll_back()
            raise
        return found

    def _send_again(self, text: str, seconds: float | None, done: str, binary: bool, after: str = "") -> _Result:
        before = list(self._waiting)
        try:
            return self._send(text, done=done, seconds=seconds, binary=binary, after=after)
        except ConnectionLost:
            if self._in_transaction:
                raise
        self._waiting = before
        deadline = time.monotonic() + self._patience
        while True:
            try:
                found = self._send(text, done=done, seconds=seconds, binary=binary, after=after)
            except ConnectionLost:
                if time.monotonic() > deadline:
                    self._patience = 0.0
                    raise
                time.sleep(0.1)
            else:
                self._patience = PATIENCE
                return found

    def _send(self, text: str, *, done: str, seconds: float | None = None, binary: bool = False, after: str = "") -> _Result:
        """Sends what waits and a statement, as one message; returns the result of the statement."""
        waiting, ids_at = self._waiting, self._ids_at
        self._waiting, self._ids_at = [], None
        connection = self._live()
        try:
            if binary:
                if waiting:
                    connection.execute(";\n".join(waiting))
                cursor = psycopg.Cursor(connection)
                cursor.execute(text, binary=True)
                return _result(cursor)
            message = ";\n".join([*waiting, text, *([after] if after else [])])
            cursor = connection.execute(message)
            for place in range(len(waiting)):
                if place == ids_at:
                    self._ids = [int(row[0]) for row in cursor.fetchall()]
                cursor.nextset()
            return _result(cursor)
        except errors.QueryCanceled as error:
            if seconds is not None:
                raise TimeoutError(f"it took longer than {seconds:g} s") from error
            raise explained(error, self._address, done) from error
        except psycopg.Error as error:
            raise explained(error, self._address, done) from error

    def _filled(self, text: str, values: Mapping[str, Any]) -> str:
        """A statement with its values, escaped for this connection."""
        try:
            return psycopg.ClientCursor(self._live()).mogrify(text, values)
        except psycopg.Error as error:
            raise explained(error, self._address, "used") from error

    # --- the rest of a store ---------------------------------------------------------------------------------------

    def select(self, scope: str, statement: str) -> list[Row]:
        """Somebody's own SELECT; see `Store.select`."""
        raise NotImplementedError

    def check(self) -> list[str]:
        """PostgreSQL checks its pages and foreign keys itself."""
        return []

    def size(self) -> int:
        """Bytes of the tables and their indexes."""
        return int(self.do("store_bytes", {"schema": self._address.schema}))

    def facts(self) -> dict[str, str]:
        """The engine and how it is set."""
        return {"engine": f"PostgreSQL {self.version}", "durability": self.durability}

    def backup(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Refused: a server is not one file."""
        raise Unwritable(
            f"{self.url} is on a server, which has its own backups: run pg_dump --schema={self._address.schema}, or "
            "`smolmem copy` to a SQLite file, or `smolmem export`."
        )

    def close(self) -> None:
        """Closes the connection."""
        with self.lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def after_fork_in_child(self) -> None:
        """Leaves the connection to the parent; the next use opens one of this process."""
        self.lock = threading.RLock()
        self._waiting, self._in_transaction = [], False
        if self._connection is not None:
            _inherited.append(self._connection)
            self._connection = None

    # --- opening ---------------------------------------------------------------------------------------------------

    def _live(self) -> psycopg.Connection[Any]:
        if self._closed:
            raise StoreError(f"{self.url} is closed: open it again with Memory({self.url!r}).")
        if self._connection is None or self._connection.closed:
            if self._in_transaction and self._connection is not None:
                raise ConnectionLost(f"{self.url} cannot be used: the connection is lost.")
            self._connect()
        assert self._connection is not None
        return self._connection

    def _connect(self) -> None:
        try:
            connection = psycopg.connect(self._address.conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise refused(error, self._address) from None
        settings = _SETTINGS.format(schema=self._schema(connection))
        try:
            cursor = connection.execute(settings)
            while cursor.nextset():
                pass
            read_only, self.version = cursor.fetchone() or ("", "")
        except psycopg.Error as error:
            connection.close()
            raise explained(error, self._address, "opened") from error
        if read_only == "on":
            connection.close()
            raise Unwritable(
                f"{self.url} cannot be opened: the server only reads, as replicas do. Give the address of the primary."
            )
        self._connection = connection

    def _schema(self, connection: psycopg.Connection[Any]) -> str:
        return sql.Identifier(self._address.schema).as_string(connection)

    def _prepare(self) -> None:
        """Creates or migrates the tables; a store of a later release stays as it is."""
        latest, found = len(migrations("postgres")), self._format()
        if found > latest:
            raise TooNew(
                f"{self.url} was written by a later smolmem (format {found}, this one knows {latest}), "
                "and was left as it is: upgrade smolmem."
            )
        if found < latest:
            self._migrate(latest)

    def _format(self) -> int:
        """The format of the store; 0 if there is none yet."""
        try:
            row = self._live().execute("SELECT format FROM store WHERE id = 1").fetchone()
        except errors.UndefinedTable:
            return 0
        except psycopg.Error as error:
            raise explained(error, self._address, "opened") from error
        return int(row[0]) if row else 0

    def _migrate(self, latest: int) -> None:
        for left in reversed(range(TRIES)):
            connection = self._live()
            try:
                with self._creating(connection):
                    row = connection.execute(_LOCK).fetchone()
                    for script in migrations("postgres")[int(row[0]) if row else 0 :]:
                        connection.execute(script)
                    connection.execute("UPDATE store SET format = %s WHERE id = 1", (latest,))
                return
            except psycopg.Error as error:
                racing = isinstance(error, (errors.UniqueViolation, errors.DuplicateTable)) or error.sqlstate in CONFLICTS
                if not left or not racing:
                    raise explained(error, self._address, "created") from error
                time.sleep(random.uniform(0, 0.1))

    @contextmanager
    def _creating(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        connection.execute(_FIRST.format(schema=self._schema(connection)))
        with connection.transaction():
            yield


class _Unsent(Exception):
    """The connection was lost before COMMIT was sent: nothing of the transaction is there."""


_inherited: list[Any] = []
"""Connections of the parent of this process: closing them would end the parent's."""

_PARAMETER = re.compile(r"('(?:[^']|'')*')|--[^\n]*|(?<!:):([a-z_]\w*)|%")


def _prepared(text: str) -> _Statement:
    """A statement with the driver's spelling of parameters, without comments."""

    def spelled(found: re.Match[str]) -> str:
        if found[1]:
            return found[1].replace("%", "%%")
        return f"%({found[2]})s" if found[2] else "%%" if found[0] == "%" else ""

    plain = _PARAMETER.sub(spelled, text).strip().rstrip(";")
    begins = plain.split(None, 1)[0].upper()
    changes = begins in ("INSERT", "UPDATE", "DELETE") or bool(re.search(r"\)\s*(INSERT|UPDATE|DELETE)\b", plain))
    return _Statement(plain, not changes or "RETURNING" in plain.rpartition(")")[2], ":new_id" in text)


def _result(cursor: psycopg.Cursor[Any]) -> _Result:
    if cursor.description is None:
        return _Result([], [])
    return _Result([column.name for column in cursor.description], cursor.fetchall())
