"""A PostgreSQL server as a store: the same journal for agents on many machines.

What must stay true:
- Every writing transaction first locks the one row of `store`, as `BEGIN IMMEDIATE` does in SQLite. Ids are handed out
  while it is held, so their order is that of the commits: who has read up to an id has missed nothing.
- Statements without a result are kept back and sent with the next one that has a result, or with COMMIT. A network is
  slow: what counts is how often a transaction waits for an answer.
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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import errors

from smolmem.core import faults
from smolmem.core.errors import StoreError, TooNew, Unwritable
from smolmem.store import copied_select, fork_hooks, postgres_words
from smolmem.store.base import Durability, Progress, Row, T, migrations, statements
from smolmem.store.postgres_address import Address, parse
from smolmem.store.postgres_connection import Link, Result, schema_name
from smolmem.store.postgres_errors import CONFLICTS, Conflict, ConnectionLost, explained

PATIENCE = 5.0
"""Seconds to wait for a server that went away; none while it stays away, so that an agent is not held up."""
TRIES = 20
"""How often a transaction that conflicts with others runs again."""
IDS = 4
"""Ids that a transaction gets with the lock."""

_LOCK = "SELECT format FROM store WHERE id = 1 FOR UPDATE"
_NEW_IDS = f"SELECT nextval('ids') FROM generate_series(1, {IDS})"  # noqa: S608
_FIRST = """CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS store (id bigint PRIMARY KEY CHECK (id = 1), format bigint NOT NULL);
INSERT INTO store (id, format) VALUES (1, 0) ON CONFLICT (id) DO NOTHING"""

Taker = Callable[[Result], None]


class _Unsent(Exception):
    """The connection broke before COMMIT was sent: nothing of the transaction is stored."""

    def __init__(self, error: ConnectionLost) -> None:
        super().__init__(str(error))
        self.error = error


class _Statement(NamedTuple):
    """A named statement as the driver takes it."""

    text: str
    has_result: bool
    takes_id: bool


class PostgresStore:
    """A `Store` on a server; usable from many threads, processes and machines."""

    def __init__(self, url: str, durability: Durability = "full") -> None:
        self._address: Address = parse(url)
        self.durability = durability
        self._statements = _prepared_statements()
        self.lock = threading.RLock()
        self._waiting: list[tuple[str, Taker | None]] = []
        self._is_writing = False
        self._is_reading = False  # in one snapshot
        self._ids: list[int] = []
        self._announced: dict[bytes, int] = {}
        self._patience = PATIENCE
        self._link = Link(self._address)
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
        """Whether the store is open."""
        return self._link.is_open

    @property
    def is_remote(self) -> bool:
        """Each answer of the server takes its time."""
        return True

    @property
    def numbers_have_gaps(self) -> bool:
        """A sequence takes no number back."""
        return True

    def reopened(self) -> PostgresStore:
        """The same store through a connection of its own; see `Store.reopened`."""
        return PostgresStore(self._address.url, self.durability)

    # --- writing ---------------------------------------------------------------------------------------------------

    def transact(self, body: Callable[[], T], *, sync: bool = True) -> T:
        """One transaction; see `Store.transact`."""
        with self.lock:
            if self._is_writing:
                raise StoreError("a transaction cannot begin inside another one.")
            deadline, tries = time.monotonic() + self._patience, 0
            while True:
                tries += 1
                try:
                    done = self._attempt(body, sync=sync and self.durability == "full")
                except Conflict:
                    if tries >= TRIES:
                        raise
                except _Unsent as unsent:
                    if time.monotonic() > deadline:
                        self._patience = 0.0
                        raise unsent.error from unsent.error.__cause__
                else:
                    self._patience = PATIENCE
                    return done
                time.sleep(random.uniform(0, min(0.5, 0.005 * 2**tries)))  # noqa: S311

    def _attempt(self, body: Callable[[], T], *, sync: bool) -> T:
        is_sent = False
        try:
            self._begin(sync=sync)
            faults.point("write.begun")
            done = body()
            faults.point("write.done")
            is_sent = True
            self._send("COMMIT", "written")
            self._is_writing = False
            faults.point("write.committed")
        except BaseException as error:
            self._roll_back()
            if isinstance(error, ConnectionLost) and not is_sent:
                raise _Unsent(error) from error
            raise
        return done

    def _begin(self, *, sync: bool) -> None:
        self._is_writing, self._ids, self._announced = True, [], {}
        durable = [] if sync else ["SET LOCAL synchronous_commit = off"]
        self._waiting = [(text, None) for text in ("BEGIN", *durable, *self._bounds(), _LOCK)]
        self._waiting.append((_NEW_IDS, self._take_ids))

    def _roll_back(self) -> None:
        self._waiting, self._is_writing = [], False
        self._link.roll_back()

    def _bounds(self) -> list[str]:
        """What row-level security compares scopes with, for one transaction."""
        if self._address.scope is None:
            return []
        scope = {"scope": self._address.scope}
        return [self._link.filled("SELECT set_config('smolmem.scope', %(scope)s, true)", scope)]

    def announce(self, contents: Mapping[bytes, bytes]) -> None:
        """Adds all contents that a transaction needs with its next message; see `Store.announce`."""
        if contents and self._is_writing:
            given = {"hashes": list(contents), "contents": list(contents.values())}
            self._waiting.append((self._link.filled(self._statements["add_contents"].text, given), self._take_contents))

    def _take_contents(self, found: Result) -> None:
        self._announced.update((bytes(key), int(number)) for key, number in found.rows)

    def _take_ids(self, found: Result) -> None:
        self._ids = [int(row[0]) for row in found.rows]

    def _new_id(self) -> int:
        if not self._ids and any(taker == self._take_ids for _, taker in self._waiting):
            self._send("SELECT 1", "written")
        if not self._ids:
            self._take_ids(self._send(_NEW_IDS, "written"))
        return self._ids.pop(0)

    # --- statements ------------------------------------------------------------------------------------------------

    def do(self, name: str, values: Mapping[str, Any]) -> Any:
        """Runs a statement; see `Store.do`."""
        with self.lock:
            statement, values = self._statement(name, values)
            if self._is_writing and name == "add_content" and self._announced.get(values["hash"]):
                return self._announced[values["hash"]]
            if self._is_writing and statement.takes_id:
                number = self._new_id()
                self._waiting.append((self._link.filled(statement.text, {**values, "new_id": number}), None))
                return number
            if self._is_writing and not statement.has_result:
                self._waiting.append((self._link.filled(statement.text, values), None))
                return None
            rows = self._run(statement, values, None, "used").rows
            self._is_reading = self._is_reading or name == "begin_reading"
        return rows[0][0] if rows else None

    def rows(self, name: str, values: Mapping[str, Any], seconds: float | None = None) -> list[Row]:
        """All rows of a query; see `Store.rows`."""
        with self.lock:
            statement, values = self._statement(name, values)
            return _as_dicts(self._run(statement, values, seconds, "read"))

    def rows_of_each(
        self, name: str, each: Sequence[Mapping[str, Any]], seconds: float | None = None
    ) -> list[list[Row]]:
        """The rows of a query for several sets of values, with one message; see `Store.rows_of_each`."""
        if self._is_writing or self._is_reading or not each:
            return [self.rows(name, values, seconds) for values in each]
        with self.lock:
            asked = [self._statement(name, values) for values in each]

            def read() -> list[Result]:
                texts = [self._link.filled(statement.text, values) for statement, values in asked]
                return self._send_alone(texts, [*self._bounds(), *_time_limit(seconds)], seconds, "read")

            return [_as_dicts(found) for found in self._again(read)]

    def columns(self, name: str, values: Mapping[str, Any], seconds: float | None = None) -> list[tuple[Any, ...]]:
        """All rows of a query by column; see `Store.columns`."""
        with self.lock:
            statement, values = self._statement(name, values)
            if self._is_writing or self._is_reading or self._address.scope or seconds:
                found = self._run(statement, values, seconds, "read")
            else:
                text = self._link.filled(statement.text, values)
                found = self._again(lambda: self._link.fetch_binary(text, "read"))
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

    def _run(self, statement: _Statement, values: Mapping[str, Any], seconds: float | None, done: str) -> Result:
        """The result of one statement, in the transaction or by itself."""
        limit = _time_limit(seconds)
        if self._is_writing:
            self._waiting += [(text, None) for text in limit]
            return self._send(self._link.filled(statement.text, values), done, seconds)

        def read() -> Result:
            text = self._link.filled(statement.text, values)
            return self._send_alone([text], [*self._bounds(), *limit], seconds, done)[0]

        return self._again(read)

    def _send_alone(self, texts: list[str], before: list[str], seconds: float | None, done: str) -> list[Result]:
        """The results of statements that read, in a transaction of their own if something has to be set for them."""
        if self._is_reading or not before:
            return self._link.send([*before, *texts], done, seconds)[len(before) :]
        try:
            return self._link.send(["BEGIN", *before, *texts, "COMMIT"], done, seconds)[len(before) + 1 : -1]
        except BaseException:
            self._link.roll_back()
            raise

    def _again(self, read: Callable[[], T]) -> T:
        """Reads; again and again for some seconds, if the connection breaks or the server undoes the transaction."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                found = read()
            except (ConnectionLost, Conflict):
                if self._is_reading or time.monotonic() > deadline:
                    self._patience = 0.0
                    raise
                time.sleep(0.05)
            else:
                self._patience = PATIENCE
                return found

    def _send(self, text: str, done: str, seconds: float | None = None) -> Result:
        """Sends what waits, and a statement, as one message; returns the result of the statement."""
        waiting, self._waiting = self._waiting, []
        if self._link.is_broken and not (waiting and waiting[0][0] == "BEGIN"):
            raise ConnectionLost(f"{self.url} cannot be {done}: the connection broke inside a transaction.")
        results = self._link.send([*(text for text, _ in waiting), text], done, seconds)
        for (_, taker), result in zip(waiting, results, strict=False):
            if taker is not None:
                taker(result)
        return results[-1]

    # --- the rest of a store ---------------------------------------------------------------------------------------

    def select(self, scope: str, statement: str) -> list[Row]:
        """Somebody's own SELECT; see `Store.select`."""
        return copied_select.select(self, scope, statement)

    def check(self) -> list[str]:
        """PostgreSQL checks its pages and foreign keys itself."""
        return []

    def size(self) -> int:
        """Bytes of the tables and their indexes."""
        return int(self.do("store_bytes", {"schema": self._address.schema}))

    def facts(self) -> dict[str, str]:
        """The engine and how it is set."""
        return {"engine": f"PostgreSQL {self._link.version}", "durability": self.durability}

    def backup(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Refused: a server is not one file."""
        raise Unwritable(
            f"{self.url} is on a server, which has its own backups: run pg_dump --schema={self._address.schema}, or "
            "`smolmem copy` to a SQLite file, or `smolmem export`."
        )

    def close(self) -> None:
        """Closes the connection."""
        with self.lock:
            self._link.close()

    def after_fork_in_child(self) -> None:
        """Leaves the connection to the parent; the next use opens one of this process."""
        self.lock = threading.RLock()
        self._waiting, self._is_writing, self._is_reading = [], False, False
        self._link.leave_to_parent()

    # --- opening ---------------------------------------------------------------------------------------------------

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
            row = self._link.live().execute("SELECT format FROM store WHERE id = 1").fetchone()
        except errors.UndefinedTable:
            return 0
        except psycopg.Error as error:
            raise explained(error, self._address, "opened") from error
        return int(row[0]) if row else 0

    def _migrate(self, latest: int) -> None:
        """Brings the tables up to date; several processes may be at it."""
        for left in reversed(range(TRIES)):
            connection = self._link.live()
            try:
                connection.execute(_FIRST.format(schema=schema_name(self._address, connection)))
                with connection.transaction():
                    row = connection.execute(_LOCK).fetchone()
                    for script in migrations("postgres")[int(row[0]) if row else 0 :]:
                        connection.execute(script)
                    connection.execute("UPDATE store SET format = %s WHERE id = 1", (latest,))
                return
            except psycopg.Error as error:
                racing = isinstance(error, (errors.UniqueViolation, errors.DuplicateTable))
                if not left or not (racing or error.sqlstate in CONFLICTS):
                    raise explained(error, self._address, "created") from error
                time.sleep(random.uniform(0, 0.1))  # noqa: S311


def _as_dicts(found: Result) -> list[Row]:
    """Rows as dicts. The order in which runs and notes were written is none of their columns in SQLite."""
    kept = [place for place, column in enumerate(found.names) if column != "rowid"]
    return [{found.names[place]: row[place] for place in kept} for row in found.rows]


def _time_limit(seconds: float | None) -> list[str]:
    return [] if seconds is None else [f"SET LOCAL statement_timeout = {int(seconds * 1000)}"]


_PARAMETER = re.compile(r"('(?:[^']|'')*')|--[^\n]*|(?<!:):([a-z_]\w*)|%")
_prepared_cache: dict[str, _Statement] = {}


def _prepared_statements() -> dict[str, _Statement]:
    if not _prepared_cache:
        _prepared_cache.update((name, _prepared(text)) for name, text in statements("postgres").items())
    return _prepared_cache


def _prepared(text: str) -> _Statement:
    """A statement with the driver's spelling of parameters, without comments."""

    def spelled(found: re.Match[str]) -> str:
        if found[1]:
            return found[1].replace("%", "%%")
        return f"%({found[2]})s" if found[2] else "%%" if found[0] == "%" else ""

    plain = _PARAMETER.sub(spelled, text).strip().rstrip(";")
    changes = re.match(r"(WITH [^;]*\)\s*)?(INSERT|UPDATE|DELETE)\b", plain) is not None
    return _Statement(plain, not changes or "RETURNING" in plain.rpartition(")")[2], ":new_id" in text)
