"""A PostgreSQL server as a store: the same journal for agents on many machines.

What must stay true:
- Every writing transaction first locks the one row of `store`, as `BEGIN IMMEDIATE` does in SQLite. Ids are handed out
  while it is held, so their order is that of the commits: who has read up to an id has missed nothing.
- Statements without a result are sent with the next one that has a result, or with COMMIT: what counts on a network is
  how often a transaction waits. A quick transaction waits once: it takes ids from a reserve, and assumes what it would
  otherwise ask (`reserve.py`). If the server finds an assumption wrong, the transaction runs again and asks.
- A transaction that the server undid, or whose connection broke before COMMIT was sent, runs again. If the connection
  breaks during COMMIT, the store looks for a row that the transaction added. If there is none, it runs again with the
  same ids, so that a late message is refused. Without such a row it raises, and the recorder looks what was saved.
- A transaction that need not be waited for goes through a second connection, and its answer is read before the next
  transaction returns: then it is stored, or runs again. So a model's answer and the end of a call cost no waiting.
- Threads read at the same time, through further connections; who writes, or reads in one snapshot, has the first one.
- Values are escaped by libpq, and enter only as parameters.
- Nothing but the dialect that CockroachDB, YugabyteDB and Citus share: a test reads the statements.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from smolmem.core import faults
from smolmem.core.errors import SmolmemError, StoreError, Unwritable
from smolmem.store import base, fork_hooks
from smolmem.store.base import AGENT, Durability, Limits, Progress, Row, T, pause
from smolmem.store.postgres import server_select, server_words
from smolmem.store.postgres.address import Address, parse
from smolmem.store.postgres.connection import Link, Pool, Result, time_limit
from smolmem.store.postgres.read_ahead import Query, ReadAhead, Series
from smolmem.store.postgres.reserve import MORE_IDS, Posted, Reserve
from smolmem.store.postgres.server_errors import Conflict, ConnectionLost, MustWait, Unsent, WrongAssumption
from smolmem.store.postgres.server_schema import prepare
from smolmem.store.postgres.statements import LOCK, Statement, array_of, prepared_statements
from smolmem.store.terms import kept_terms

log = logging.getLogger("smolmem")

PATIENCE = 5.0
"""Seconds to wait for a server that went away; none while it stays away, so that an agent is not held up."""
_REPEATABLE = frozenset({"end_call"})
"""Statements that change nothing more when they run again."""

Taker = Callable[[Result], None]


class PostgresStore:
    """A `Store` on a server; usable from many threads, processes and machines."""

    def __init__(self, url: str, durability: Durability = "full") -> None:
        self._address: Address = parse(url)
        self.durability, self.has_vanished = durability, False  # a server has no file that others could replace
        self._statements = prepared_statements()
        self.lock = threading.RLock()
        self._waiting: list[tuple[str, Taker | None]] = []
        self._writing_thread: int | None = None
        self._is_reading = self._is_quick = self._is_posting = False  # reading: in one snapshot
        self._posted: Posted | None = None
        self._names: set[str] = set()  # of the statements of a transaction that change something
        self._reserve, self._ahead, self._series = Reserve(), ReadAhead(), Series()
        self._patience = PATIENCE
        self._link, self._pool = Link(self._address), Pool(self._address)
        self._bounds = self._link.scope_setting()
        try:
            prepare(self._link)
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

    def foreign_writes(self) -> None:
        """Not known: other connections write all the time."""

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

    @property
    def _is_writing(self) -> bool:
        """Whether this thread is in a transaction."""
        return self._writing_thread == threading.get_ident()

    def transact(self, body: Callable[[], T], *, sync: bool = True, quick: bool = False, wait: bool = True) -> T:
        """One transaction; see `Store.transact`."""
        with self.lock:
            if self._is_writing:
                raise StoreError("a transaction cannot begin inside another one.")
            if quick and not wait and not self._link.is_broken:
                self._settle()
                with suppress(MustWait):
                    return self._post(body)
            is_synced = sync and self.durability == "full"
            done = self._repeat(lambda quick: self._attempt(body, sync=is_synced, quick=quick), quick=quick)
            self._settle()
            return done

    def _repeat(self, attempt: Callable[[bool], T], *, quick: bool) -> T:
        """Attempts a transaction until it is stored, or cannot be."""
        deadline, tries = time.monotonic() + self._patience, 0
        self._reserve.was_lost = False
        while True:
            tries += 1
            try:
                done = attempt(quick)
            except WrongAssumption:
                if not quick and tries > 2:  # before, a server that crashed may have handed out an id again
                    raise
                quick = False
            except Conflict:
                if tries >= base.TRIES:
                    raise
            except Unsent as unsent:
                if time.monotonic() > deadline:
                    self._patience = 0.0
                    raise unsent.error from unsent.error.__cause__
            else:
                self._patience = PATIENCE
                return done
            pause(tries)

    def _attempt(self, body: Callable[[], T], *, sync: bool, quick: bool) -> T:
        is_sent = False
        try:
            self._begin(sync=sync, quick=quick)
            faults.point("write.begun")
            done = body()
            faults.point("write.done")
            is_sent = True
            self._send("COMMIT", "written")
            self._writing_thread = None
            self._reserve.commit()
            faults.point("write.committed")
        except BaseException as error:
            self._roll_back()
            if isinstance(error, ConnectionLost) and not is_sent:
                raise Unsent(error) from error
            if not is_sent or not isinstance(error, (ConnectionLost, WrongAssumption)) or not self._arrived(error):
                raise
        return done

    def _post(self, body: Callable[[], T]) -> T:
        """Sends a quick transaction without waiting for its answer.

        Raises:
            MustWait: it needs an answer, or there is no connection for it. Nothing was sent.
        """
        link = self._pool.take()
        if link is None:
            raise MustWait
        self._begin(sync=False, quick=self._reserve.is_fresh_since(link.connected_at))
        self._is_posting = True
        try:
            if not self._is_quick:
                raise MustWait
            faults.point("write.begun")
            done = body()
            faults.point("write.done")
            link.post([*(text for text, taker in self._waiting if taker is None), "COMMIT"], "written")
            self._posted = Posted(link, body, self._reserve.used, self._names)
        except ConnectionLost as error:
            raise MustWait from error
        finally:
            self._waiting, self._writing_thread, self._is_posting = [], None, False
            if self._posted is None:
                self._pool.give_back(link)
        faults.point("write.committed")
        return done

    def _settle(self) -> None:
        """Reads the answer to a transaction that was not waited for; runs the transaction again if it failed."""
        posted = self._posted
        if posted is None:
            return

        def attempt(quick: bool) -> None:
            if self._posted is None:
                self._attempt(posted.body, sync=False, quick=quick)
            else:
                self._read_answer(posted)

        try:
            self._repeat(attempt, quick=True)
        except SmolmemError as error:
            log.warning("smolmem could not record how a call ended, and its outcome counts as unknown: %s", error)

    def _read_answer(self, posted: Posted) -> None:
        self._reserve.used, self._names = posted.used, posted.names
        error = posted.link.read_answer("written")
        self._posted = None
        self._pool.give_back(posted.link)
        if error is None:
            self._reserve.commit()
        elif not isinstance(error, (ConnectionLost, WrongAssumption)) or not self._arrived(error):
            raise error

    def _arrived(self, error: ConnectionLost | WrongAssumption) -> bool:
        """Whether a transaction is stored whose answer, or that of its first attempt, was lost.

        Raises:
            Unsent: it is not, and can run again.
        """
        reserve = self._reserve
        if isinstance(error, WrongAssumption) and not reserve.was_lost:
            return False
        marker = reserve.used.marker
        if marker is not None:

            def look() -> list[Result]:
                asked = self._filled("is_stored", marker)
                return self._send_alone(self._link, [asked], [*self._bounds, LOCK], None, "read")

            if self._again(look)[0].rows:
                reserve.commit()
                return True
        if isinstance(error, ConnectionLost) and (marker is not None or self._names <= _REPEATABLE):
            reserve.restore()
            raise Unsent(error) from error
        return False

    def _begin(self, *, sync: bool, quick: bool) -> None:
        self._writing_thread, self._names = threading.get_ident(), set()
        self._ahead.clear()
        self._series.end_all()
        self._is_quick = quick and not self._link.is_broken and self._reserve.is_fresh_since(self._link.connected_at)
        self._reserve.begin(keep_ids=self._is_quick)
        durable = [] if sync else ["SET LOCAL synchronous_commit = off"]
        self._waiting = [(text, None) for text in ("BEGIN", *durable, *self._bounds, "EXECUTE take_lock")]
        self._waiting.append(("EXECUTE take_ids", self._reserve.take_ids))

    def _roll_back(self) -> None:
        self._waiting, self._writing_thread = [], None
        self._link.roll_back()

    def announce(self, contents: Mapping[bytes, bytes]) -> None:
        """Adds all contents that a transaction needs with its next message; see `Store.announce`."""
        if not contents or not self._is_writing:
            return
        self._ahead.drop(self._statements["add_contents"])
        shares = self._reserve.share_out(contents) if self._is_quick else None
        if shares is None:
            given = {"hashes": array_of(contents), "contents": array_of(contents.values())}
            self._waiting.append((self._filled("add_contents", given), self._reserve.take_contents))
        for name, values in shares or ():
            self._waiting.append((self._filled(name, values), None))

    def prepare_texts(self, texts: Iterable[str]) -> None:
        """Splits texts into terms before the lock is taken; see `Store.prepare_texts`."""
        for text in texts:
            kept_terms(text)

    def read_ahead(self, asked: Iterable[Query]) -> None:
        """Asks for what will be read with one message; see `Store.read_ahead`."""
        if not self._is_writing:
            self._series.begin(asked)
            return
        waiting: list[tuple[str, Taker]] = []
        for name, values in asked:
            statement, given = self._statement(name, values)
            waiting.append(
                (self._link.filled(statement.text, given), partial(self._ahead.put, name, values, statement))
            )
        if waiting:
            text, take = waiting.pop()
            self._waiting += waiting
            take(self._send(text, "read"))

    def _filled(self, name: str, values: Mapping[str, Any]) -> str:
        return self._link.spoken(self._statements[name], values)

    def _new_id(self, seal: bytes) -> int:
        """An id for a new row, which shows whether the transaction is stored."""
        ids = self._reserve.ids
        if not ids and any(taker == self._reserve.take_ids for _, taker in self._waiting):
            self._send("SELECT 1", "written")
        if not ids:
            self._reserve.take_ids(self._send(MORE_IDS, "written"))
        self._reserve.used.marker = {"id": self._reserve.take(), "hash": seal}
        return self._reserve.used.ids[-1]

    # --- statements ------------------------------------------------------------------------------------------------

    def do(self, name: str, values: Mapping[str, Any]) -> Any:
        """Runs a statement; see `Store.do`."""
        if self._is_writing and name == "add_content" and values["hash"] in self._reserve.used.contents:
            return self._reserve.used.contents[values["hash"]]
        statement, given = self._statement(name, values)
        if self._is_writing and not statement.has_result:
            number = self._new_id(values["hash"]) if statement.takes_id else None
            self._note_change(name, statement)
            self._waiting.append((self._link.spoken(statement, {**given, "new_id": number}), None))
            return number
        if name == "begin_reading":  # before what tells the scope, which follows with each query
            with self._reading_link() as link:
                self._again(lambda: link.send([statement.text], "used"))
            self._is_reading = True
            return None
        rows = self._found(name, values, None, "used").rows
        return rows[0][0] if rows else None

    def rows(self, name: str, values: Mapping[str, Any], seconds: float | None = None) -> list[Row]:
        """All rows of a query; see `Store.rows`."""
        if self._is_writing and self._is_quick and name == "other_writer":
            runs = array_of(json.loads(values["ids"]))
            self._waiting.append((self._filled("assume_no_other_writer", {**values, "runs": runs}), None))
            return []
        return self._found(name, values, seconds, "read").as_dicts()

    def _found(self, name: str, values: Mapping[str, Any], seconds: float | None, done: str) -> Result:
        """The result of one statement, which may be known already."""
        if not self._is_writing:
            return self._read_each(name, [values], seconds, done)[0]
        statement, given = self._statement(name, values)
        if (known := self._ahead.take(name, values)) is not None:
            return known
        self._note_change(name, statement)
        self._waiting += [(text, None) for text in time_limit(seconds)]
        return self._send(self._link.filled(statement.text, given), done, seconds)

    def _read_each(
        self, name: str, each: Sequence[Mapping[str, Any]], seconds: float | None, done: str
    ) -> list[Result]:
        """The results of a statement for several sets of values, outside of a transaction."""
        read = partial(self._read, seconds=seconds, done=done)
        if self._is_reading or self._statements[name].changes:
            return read([(name, values) for values in each])
        return self._series.results(name, each, read)

    def _note_change(self, name: str, statement: Statement) -> None:
        self._ahead.drop(statement)
        if statement.changes:
            self._names.add(name)

    def rows_of_each(
        self, name: str, each: Sequence[Mapping[str, Any]], seconds: float | None = None
    ) -> list[list[Row]]:
        """The rows of a query for several sets of values, with one message; see `Store.rows_of_each`."""
        if self._is_writing or self._is_reading or not each:
            return [self.rows(name, values, seconds) for values in each]
        return [found.as_dicts() for found in self._read_each(name, each, seconds, "read")]

    def columns(self, name: str, values: Mapping[str, Any], seconds: float | None = None) -> list[tuple[Any, ...]]:
        """All rows of a query by column; see `Store.columns`."""
        if self._is_writing or self._is_reading or self._address.scope or seconds:
            found = self._found(name, values, seconds, "read")
        else:
            statement, values = self._statement(name, values)
            with self._reading_link() as link:
                found = self._again(lambda: link.fetch_binary(link.filled(statement.text, values), "read"))
        return list(zip(*found.rows, strict=True))

    def _statement(self, name: str, values: Mapping[str, Any]) -> tuple[Statement, Mapping[str, Any]]:
        """A statement and its values; full text is said differently here."""
        name, values = server_words.in_terms(name, values, self.rows)
        return self._statements[name], values

    def _read(self, asked: Sequence[Query], seconds: float | None, done: str) -> list[Result]:
        """The results of statements outside of a transaction."""
        before, statements = [*self._bounds, *time_limit(seconds)], [self._statement(*query) for query in asked]
        with self._reading_link() as link:

            def read() -> list[Result]:
                texts = [link.filled(statement.text, values) for statement, values in statements]
                return self._send_alone(link, texts, before, seconds, done)

            return self._again(read)

    @contextmanager
    def _reading_link(self) -> Iterator[Link]:
        """The first connection; if another thread has it, another one."""
        is_free = self.lock.acquire(blocking=False)
        other = None if is_free else self._pool.take()
        if other is not None:
            try:
                yield other
            finally:
                self._pool.give_back(other)
            return
        if not is_free:
            self.lock.acquire()
        try:
            self._settle()
            yield self._link
        finally:
            self.lock.release()

    def _send_alone(
        self, link: Link, texts: list[str], before: list[str], seconds: float | None, done: str
    ) -> list[Result]:
        """The results of statements that read, in a transaction of their own if something has to be set for them."""
        if self._is_reading or not before:
            return link.send([*before, *texts], done, seconds)[len(before) :]
        try:
            return link.send(["BEGIN", *before, *texts, "COMMIT"], done, seconds)[len(before) + 1 : -1]
        except BaseException:
            link.roll_back()
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
        if self._is_posting:
            raise MustWait
        waiting, self._waiting = self._waiting, []
        if self._link.is_broken and not (waiting and waiting[0][0] == "BEGIN"):
            raise ConnectionLost(f"{self.url} cannot be {done}: the connection broke inside a transaction.")
        results = self._link.send([*(text for text, _ in waiting), text], done, seconds)
        for (_, taker), result in zip(waiting, results, strict=False):
            if taker is not None:
                taker(result)
        return results[-1]

    # --- the rest of a store ---------------------------------------------------------------------------------------

    def select(self, scope: str, statement: str, limits: Limits = AGENT) -> list[Row]:
        """A user's SELECT; see `Store.select`."""
        with self._reading_link() as link:
            return self._again(lambda: server_select.select(link, self._bounds, scope, statement, limits))

    def check(self) -> list[str]:
        """Rows that refer to something that is missing; PostgreSQL checks its pages and foreign keys itself."""
        return [f"{row['name']} {row['id']} refers to a missing {row['missing']}" for row in self.rows("dangling", {})]

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
        """Closes the connections."""
        with self.lock:
            self._settle()
            self._pool.close()
            self._link.close()

    def after_fork_in_child(self) -> None:
        """Leaves the connections to the parent; the next use opens one of this process."""
        self.lock = threading.RLock()
        self._waiting, self._writing_thread, self._is_reading, self._posted = [], None, False, None
        self._reserve = Reserve()
        self._link.leave_to_parent()
        self._pool.leave_to_parent()
