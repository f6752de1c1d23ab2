"""One SQLite file, safe against power cuts, other processes and other people's files.

`apsw` brings a current SQLite to every platform: the one that Python links may carry the WAL-reset bug, which
corrupts a file that several programs write, and that is exactly what an agent, a command line and an inspector do.

What must stay true:
- A file that is not ours, or newer than us, stays byte for byte as it was: its header is read before any query.
- Nothing but SQLite opens the file. POSIX drops all of a process's locks on a file when the process closes any
  descriptor of it: reading the header with `open()` would unlock other connections of this process, and the next
  process to close the file could delete the log that they write to.
- A key is tried on the header before SQLite reads the write-ahead log: a connection with a wrong key would take the log
  for empty, and tell other connections so.
- WAL with `synchronous=FULL`: a step whose write returned survives `kill -9` and a power cut; one write is one sync.
- A synced write fills its last sector. Otherwise the next write, which need not be synced, begins in the same sector,
  and a power cut that garbles that sector takes the synced write with it.
- `BEGIN IMMEDIATE` only. A transaction that starts by reading and then writes fails under load, whatever the timeout.
- Each transaction checks whether the file still has its name, a synced one also the log, and again at its end
  (`vanished.py`).
- A file is data: no trigger, no view, no schema that our own scripts do not make.
"""

from __future__ import annotations

import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from smolmem.core import faults
from smolmem.core.encoding.packing import Undecodable
from smolmem.core.errors import REPAIR, Busy, Damaged, NotAStore, StoreError, TooNew, Unwritable
from smolmem.store import fork_hooks
from smolmem.store.base import AGENT, Durability, Limits, Progress, Row, T, migrations, statements
from smolmem.store.packed_text import rows_with_text
from smolmem.store.sqlite import private_files
from smolmem.store.sqlite.copies import back_up, give_name, refuse_existing
from smolmem.store.sqlite.driver_errors import explained
from smolmem.store.sqlite.encryption import Key, connect, require_encrypting_build
from smolmem.store.sqlite.file_schema import expected_schema, migrate, problems, schema, set_wal
from smolmem.store.sqlite.header import APPLICATION_ID, decrypted_header, owner_of, stored_header
from smolmem.store.sqlite.sandboxed_select import select, time_limit
from smolmem.store.sqlite.vanished import Place, status_of

BUSY_SECONDS = 30.0
"""Seconds to wait for another writer; one second while writes keep failing, so that an agent is not held up."""

_SYNC = {True: "PRAGMA synchronous = FULL", False: "PRAGMA synchronous = NORMAL"}
EMPTIED = "What was recorded before is lost, unless there is a backup: restore it, then open the memory again."
_TRIES = 100  # to open a file that is being replaced


class SqliteStore:
    """A `Store` in one file; usable from many threads and processes."""

    def __init__(self, path: str, durability: Durability = "full", key: Key | None = None) -> None:
        if not path or "\0" in path or path == ":memory:":
            raise NotAStore(f"{path!r} is not a file name: give the path of a file, for instance 'agent.db'.")
        if key is not None:
            require_encrypting_build()
        self.path = Path(path)
        self._key = key
        self._absolute = self.path.absolute()
        self.durability = durability
        self._statements = statements("sqlite")
        self.lock = threading.RLock()
        self._patience = BUSY_SECONDS
        self._syncs = True
        self._connection: apsw.Connection | None = None
        self._opened = 0
        self._foreign_writes: tuple[int, int] | None = None
        self._reopens = False
        with fork_hooks.no_fork:
            self._open()
            fork_hooks.stores.add(self)

    @property
    def url(self) -> str:
        """The path, as given."""
        return str(self.path)

    @property
    def encrypted(self) -> bool:
        """Whether the file is encrypted."""
        return self._key is not None

    @property
    def is_open(self) -> bool:
        """Whether the file is open; a forked child opens it when it is used."""
        return self._connection is not None or self._reopens

    @property
    def has_vanished(self) -> bool:
        """Whether the file lost its name, and no other process has copied it; see `Store.has_vanished`."""
        with self.lock:
            if self._connection is not None:
                self._following()
            return self._connection is not None and not self._place.has_name

    def reopened(self) -> SqliteStore:
        """The same file through a connection of its own; see `Store.reopened`."""
        if self.is_open:
            self._secure()
        elif not self._place.has_name:
            raise StoreError(f"{self.path} is closed, and another file or none is at its path.")
        return SqliteStore(str(self._absolute), self.durability, self._key)

    @property
    def numbers_have_gaps(self) -> bool:
        """SQLite gives the number of a row that was undone to the next row."""
        return False

    def transact(self, body: Callable[[], T], *, sync: bool = True, quick: bool = False, wait: bool = True) -> T:
        """One transaction; see `Store.transact`. It never conflicts: it has the lock from the beginning."""
        with self.lock:
            try:
                self._begin(sync=sync and self.durability == "full")
                faults.point("write.begun")
                done = body()
                faults.point("write.done")
                self._live().execute("COMMIT")
                faults.point("write.committed")
                if sync and not self._place.has_name:
                    self._secure()
            except BaseException as error:
                self._roll_back()
                explained = self._explained(error, "written")
                self._be_patient(1.0 if isinstance(explained, Busy) else self._patience)
                if explained is error:
                    raise
                raise explained from error
            self._be_patient(BUSY_SECONDS)
            return done

    def foreign_writes(self) -> tuple[int, int]:
        """Changes when another connection has written; see `Store.foreign_writes`."""
        if self._foreign_writes is None:
            self._foreign_writes = self._opened, self._live().execute("PRAGMA data_version").get
        return self._foreign_writes

    @property
    def is_remote(self) -> bool:
        """The file is here."""
        return False

    def announce(self, contents: Mapping[bytes, bytes]) -> None:
        """Nothing is gained here."""

    def prepare_texts(self, texts: Iterable[str]) -> None:
        """SQLite splits texts itself."""

    def read_ahead(self, asked: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Nothing is gained here."""

    def do(self, name: str, values: Mapping[str, Any]) -> Any:
        """Runs a statement; see `Store.do`."""
        with self.lock:
            connection = self._connection
            if connection is None or not connection.in_transaction:
                connection = self._following()
            try:
                first = connection.execute(self._statements[name], values).fetchone()
            except apsw.Error as error:
                raise self._explained(error, "used") from error
        return None if first is None else first[0]

    def rows(self, name: str, values: Mapping[str, Any], seconds: float | None = None) -> list[Row]:
        """All rows of a query; see `Store.rows`."""
        with self.lock, self._wrapped("read"), time_limit(self._following(), seconds):
            statement, texts = self._statements[name], self._statements["step_texts"]
            return rows_with_text(self._live(), statement, dict(values), texts)

    def rows_of_each(
        self, name: str, each: Sequence[Mapping[str, Any]], seconds: float | None = None
    ) -> list[list[Row]]:
        """The rows of a query for several sets of values; see `Store.rows_of_each`."""
        return [self.rows(name, values, seconds) for values in each]

    def columns(self, name: str, values: Mapping[str, Any], seconds: float | None = None) -> list[tuple[Any, ...]]:
        """All rows of a query by column; see `Store.columns`."""
        with self.lock, self._wrapped("read"), time_limit(self._following(), seconds):
            found = self._live().execute(self._statements[name], dict(values)).fetchall()
        return list(zip(*found, strict=True))

    def select(self, scope: str, statement: str, limits: Limits = AGENT) -> list[Row]:
        """A user's SELECT; see `Store.select`."""
        self._secure()
        return select(str(self._absolute), scope, statement, self._key, limits)

    def check(self) -> list[str]:
        """SQLite's own integrity and foreign-key checks, on a connection of their own.

        FTS5 checks the segments that its connection knew last. While another connection writes, some of these are
        gone, and the index would be reported as damaged.
        """
        with self.lock, self._wrapped("checked"):
            live = self._live()
            if not self._place.has_name:
                return problems(live)
            with closing(connect(str(self._absolute), apsw.SQLITE_OPEN_READONLY, self._key)) as fresh:
                fresh.set_busy_timeout(int(BUSY_SECONDS * 1000))
                return problems(fresh)

    def size(self) -> int:
        """Bytes of the file and its write-ahead log."""
        files = (self._absolute, self._absolute.with_name(f"{self._absolute.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def facts(self) -> dict[str, str]:
        """The engine and how it is set."""
        return {"engine": f"SQLite {apsw.sqlite_lib_version()}", "durability": self.durability}

    def backup(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """A copy while others write; see `Store.backup`."""
        refuse_existing(path)
        self._secure()
        with self._wrapped("copied"):
            back_up(str(self._absolute), path, progress, self._key)

    def close(self) -> None:
        """Closes the file."""
        with self.lock, self._wrapped("closed"):
            connection, self._connection, self._reopens = self._connection, None, False
            if connection is not None:
                if not self._place.is_whole or self._place.is_emptied:
                    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                connection.close()

    def after_fork_in_child(self) -> None:
        """Closes the inherited connection; the next use opens one of this process."""
        self.lock = threading.RLock()
        if self._connection is not None:
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self._connection.close()
            self._connection, self._reopens = None, True

    # --- opening ---------------------------------------------------------------------------------------------------

    def _open(self, *, create: bool = True) -> None:
        for _ in range(_TRIES):
            if self._try_to_open(create=create):
                return
            time.sleep(0.01)
        raise Busy(f"{self.path} cannot be opened: another program keeps replacing it. Close that program.")

    def _try_to_open(self, *, create: bool) -> bool:
        """False if another file got this name meanwhile, which is how a store gets another key."""
        self._refuse_foreign()
        with self._wrapped("opened"):
            if create:
                self._create()
            found, began = status_of(self._absolute), time.time()
            uri = f"{self._absolute.as_uri()}?psow=0"  # no powersafe overwrite: a torn write garbles whole sectors
            connection = connect(uri, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI, self._key)
            try:
                if self._key is not None and found is not None and found.st_size:
                    self._refuse_other_owner(decrypted_header(connection, self.path))
                self._configure(connection)
                version = connection.pragma("user_version")  # from now on no other process can replace the file
                now = status_of(self._absolute)
                if found is None or now is None or not os.path.samestat(found, now):
                    connection.close()
                    return False
                self._prepare(connection, version)
                place = Place(self._absolute, now, began, self._key)
                if not place.has_name:  # it was deleted, and its log may be that of another file
                    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                    connection.close()
                    return False
            except BaseException as error:
                connection.close()
                if isinstance(error, apsw.NotADBError) and self._key is not None and found and not found.st_size:
                    return False  # the file was empty, and another process has chosen the salt
                raise
            self._connection, self._place, self._opened = connection, place, self._opened + 1
        return True

    def _refuse_foreign(self) -> None:
        """Refuses a foreign file before SQLite runs a statement, which could change it."""
        try:
            found = os.stat(self.path)
            mode, size = found.st_mode, found.st_size
        except FileNotFoundError:
            if not self._absolute.parent.is_dir():
                raise NotAStore(
                    f"{self.path} cannot be created: its folder {self._absolute.parent} does not exist; create it."
                ) from None
            return
        except OSError as error:
            raise NotAStore(
                f"{self.path} cannot be opened: {error.strerror or error}. Give the path of a file."
            ) from error
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise NotAStore(f"{self.path} is {what}: give the path of a file, for instance 'agent.db'.")
        if not size:
            return
        header = stored_header(self._absolute, self._key, self.path)
        if self._key is None:
            self._refuse_other_owner(header)

    def _refuse_other_owner(self, header: bytes) -> None:
        owner = owner_of(header)
        if owner != APPLICATION_ID and (owner != 0 or self._has_tables()):
            raise NotAStore(f"{self.path} is a database of another program, and was left as it is: give another path.")

    def _has_tables(self) -> bool:
        with self._wrapped("opened"):
            uri = f"{self._absolute.as_uri()}?immutable=1"
            reading = connect(uri, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI, self._key)
            try:
                return bool(reading.execute("SELECT count(*) FROM sqlite_schema").get)
            finally:
                reading.close()

    def _create(self) -> None:
        """Creates a private file. It gets its name once it is closed: no other thread can have it open then.

        An encrypted file begins with a random salt, which each connection to an empty file would choose for itself;
        such a file therefore has its first page before it has its name.
        """
        if self.path.exists():
            return
        new = self._absolute.with_name(f".{self.path.name}.{secrets.token_hex(4)}.new")
        try:
            private_files.create(new)
            try:
                if self._key is not None:
                    self._write_first_page(new)
                give_name(new, self._absolute)
            finally:
                new.unlink(missing_ok=True)
        except FileExistsError:
            pass
        except OSError as error:
            raise Unwritable(
                f"{self.path} cannot be created: {error.strerror}. Give a path that can be written."
            ) from error

    def _write_first_page(self, new: Path) -> None:
        connection = connect(str(new), apsw.SQLITE_OPEN_READWRITE, self._key)
        try:
            connection.pragma("journal_mode", "MEMORY")
            self._claim(connection)
        finally:
            connection.close()

    def _configure(self, connection: apsw.Connection) -> None:
        connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # until we know that the file is ours
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.execute("PRAGMA cell_size_check = ON; PRAGMA cache_size = -32000")
        if connection.readonly("main"):
            raise Unwritable(f"{self.path} is read-only: make it writable, or copy it to where it can be written.")

    def _prepare(self, connection: apsw.Connection, version: int) -> None:
        latest = len(migrations("sqlite"))
        if version > latest:
            raise TooNew(
                f"{self.path} was written by a later smolmem (format {version}, this one knows {latest}), "
                "and was left as it is: upgrade smolmem."
            )
        if version:
            self._refuse_changed(connection, version)
        else:
            self._claim(connection)
        set_wal(connection, BUSY_SECONDS)
        self._syncs = self.durability == "full"
        connection.execute(_SYNC[self._syncs])
        if version < latest:
            migrate(connection, latest)
            self._refuse_changed(connection, latest)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)

    def _claim(self, connection: apsw.Connection) -> None:
        """Writes our application id into the header before WAL mode begins, so that the header always has it."""
        if connection.pragma("application_id") != APPLICATION_ID:
            connection.execute("BEGIN IMMEDIATE")
            connection.pragma("application_id", APPLICATION_ID)
            connection.execute("COMMIT")

    def _refuse_changed(self, connection: apsw.Connection, version: int) -> None:
        found = schema(connection)
        if found != expected_schema(version):
            strange = sorted(name for _, name, _ in found ^ expected_schema(version))
            raise Damaged(
                f"{self.path} has a schema that smolmem did not make ({', '.join(strange[:5])}); "
                "nothing in it was used: restore it from a backup."
            )

    # --- using -----------------------------------------------------------------------------------------------------

    def _live(self) -> apsw.Connection:
        if self._connection is None and self._reopens:  # in a forked child
            self._reopens = False
            self._open()
        if self._connection is None:
            raise StoreError(f"{self.path} is closed: open it again with Memory({str(self.path)!r}).")
        return self._connection

    def _begin(self, *, sync: bool) -> None:
        """Begins a transaction in a file that has its name: it still has it while the lock is held, or is noticed."""
        for _ in range(_TRIES):
            self._set_sync(sync)
            self._live().execute("BEGIN IMMEDIATE")
            self._foreign_writes = None
            if self._place.is_whole if sync else self._place.has_name:
                if self._place.is_emptied:
                    raise Damaged(f"{self.path} was emptied by another program while it was in use. {EMPTIED}")
                return
            self._live().execute("ROLLBACK")
            self._secure()
        raise Busy(f"{self.path} cannot be written: another program keeps replacing it. Close that program.")

    def _secure(self) -> None:
        """Continues in another file, if this one was deleted or replaced."""
        with self.lock, self._wrapped("copied"):
            connection = self._live()
            if not self._place.is_whole:
                self._move_to(self._place.rescue(connection))

    def _following(self) -> apsw.Connection:
        """The connection to read with: to the file that another process has copied this one to, if one did."""
        connection = self._live()
        if not connection.in_transaction and not self._place.has_name:
            found = self._place.continuation()
            if found is not None:
                self._move_to(found)
        return self._live()

    def _move_to(self, path: Path) -> None:
        """Continues in another file; stays here if that file is gone again."""
        old, place, shown = self._live(), self._place, self.path
        if path != self._absolute:
            self.path = self._absolute = path
        try:
            self._open(create=False)
        except StoreError:
            self.path, self._absolute = shown, place.path
            return
        left = old
        if not place.is_continued_in(self._live()):
            left, self._connection = self._live(), old
            self._place, self.path, self._absolute = place, shown, place.path
        left.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        left.close()

    def _set_sync(self, sync: bool) -> None:
        if sync != self._syncs:
            self._live().execute(_SYNC[sync])
            self._syncs = sync

    def _roll_back(self) -> None:
        connection = self._connection
        with suppress(apsw.Error):  # it has rolled back by itself, or will when the file is opened again
            if connection is not None and connection.in_transaction:
                connection.execute("ROLLBACK")

    def _be_patient(self, seconds: float) -> None:
        if seconds != self._patience and self._connection is not None:
            self._patience = seconds
            self._connection.set_busy_timeout(int(seconds * 1000))

    @contextmanager
    def _wrapped(self, done: str) -> Iterator[None]:
        """Translates errors of the driver."""
        try:
            yield
        except (apsw.Error, UnicodeDecodeError, Undecodable) as error:
            raise self._explained(error, done) from error

    def _explained(self, error: BaseException, done: str) -> BaseException:
        """An error of the driver, or of damaged data, as one of ours; any other error as it is."""
        if isinstance(error, apsw.Error):
            return explained(error, f"{self.path} cannot be {done}", self.path)
        if isinstance(error, (UnicodeDecodeError, Undecodable)):
            return Damaged(f"{self.path} cannot be {done}: it is damaged ({error}). {REPAIR}")
        return error
