"""One SQLite file, safe against power cuts, other processes and other people's files.

`apsw` brings a current SQLite to every platform: the one that Python links may carry the WAL-reset bug, which
corrupts a file that several programs write, and that is exactly what an agent, a command line and an inspector do.

What must stay true:
- A file that is not ours, or newer than us, stays byte for byte as it was: its header is read before any query.
- Nothing but SQLite opens the file. POSIX drops all of a process's locks on a file when the process closes any
  descriptor of it: reading the header with `open()` would unlock other connections of this process, and the next
  process to close the file could delete the log that they write to.
- WAL with `synchronous=FULL`: a step whose write returned survives `kill -9` and a power cut; one write is one sync.
- `BEGIN IMMEDIATE` only. A transaction that starts by reading and then writes fails under load, whatever the timeout.
- A file is data: no trigger, no view, no schema that our own scripts do not make.
"""

from __future__ import annotations

import os
import secrets
import stat
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import apsw

from smolmem.core import faults
from smolmem.core.errors import Busy, Damaged, NotAStore, StoreError, TooNew, Unwritable
from smolmem.store.base import Durability, Progress, Row, migrations, statements
from smolmem.store.sandboxed_select import select, time_limit

APPLICATION_ID = 0x736D656D  # "smem", in the file's header
BUSY_SECONDS = 30.0
"""Seconds to wait for another writer; one second while writes keep failing, so that an agent is not held up."""

_SYNC = {True: "PRAGMA synchronous = FULL", False: "PRAGMA synchronous = NORMAL"}
_MAGIC = b"SQLite format 3\0"
_PAGES = 1024  # of a backup, between two words about how far it is
_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


class SqliteStore:
    """A `Store` in one file; usable from many threads and processes."""

    def __init__(self, path: str, durability: Durability = "full") -> None:
        if not path or "\0" in path or path == ":memory:":
            raise NotAStore(f"{path!r} is not a file name: give the path of a file, for instance 'agent.db'.")
        self.path = Path(path)
        self._absolute = self.path.absolute()
        self.durability = durability
        self._statements = statements("sqlite")
        self._lock = threading.RLock()
        self._patience = BUSY_SECONDS
        self._syncs = True
        self._connection: apsw.Connection | None = None
        self._reopens = False
        self._open()
        _stores.add(self)

    @property
    def url(self) -> str:
        """The path, as given."""
        return str(self.path)

    @contextmanager
    def write(self, *, sync: bool = True) -> Iterator[None]:
        """One transaction; see `Store.write`."""
        with self._lock:
            try:
                with self._wrapped("written"):
                    self._set_sync(sync and self.durability == "full")
                    self._live().execute("BEGIN IMMEDIATE")
                    faults.point("write.begun")
                    yield
                    faults.point("write.done")
                    self._live().execute("COMMIT")
                    faults.point("write.committed")
            except BaseException as error:
                self._roll_back()
                self._be_patient(1.0 if isinstance(error, Busy) else self._patience)
                raise
            self._be_patient(BUSY_SECONDS)

    def do(self, name: str, values: Mapping[str, Any]) -> Any:
        """Runs a statement; see `Store.do`."""
        with self._lock:
            try:
                first = self._live().execute(self._statements[name], values).fetchone()
            except apsw.Error as error:
                raise self._explained(error, "used") from error
        return None if first is None else first[0]

    def rows(self, name: str, values: Mapping[str, Any], seconds: float | None = None) -> list[Row]:
        """All rows of a query; see `Store.rows`."""
        with self._lock, self._wrapped("read"), time_limit(self._live(), seconds):
            cursor = self._live().execute(self._statements[name], dict(values))
            try:
                names = [column[0] for column in cursor.get_description()]
            except apsw.ExecutionCompleteError:  # no rows
                return []
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def columns(self, name: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """All rows of a query by column; see `Store.columns`."""
        with self._lock, self._wrapped("read"):
            found = self._live().execute(self._statements[name], dict(values)).fetchall()
        return list(zip(*found, strict=True))

    def select(self, scope: str, statement: str) -> list[Row]:
        """Somebody's own SELECT; see `Store.select`."""
        self._live()
        return select(str(self._absolute), scope, statement)

    def check(self) -> list[str]:
        """SQLite's own integrity and foreign-key checks."""
        with self._lock, self._wrapped("checked"):
            integrity = [str(row[0]) for row in self._live().execute("PRAGMA integrity_check(20)")]
            dangling = [
                f"{row[0]} row {row[1]} refers to a missing {row[2]}"
                for row in self._live().execute("PRAGMA foreign_key_check")
            ]
        return [problem for problem in integrity if problem != "ok"] + dangling[:20]

    def size(self) -> int:
        """Bytes of the file and its write-ahead log."""
        files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def facts(self) -> dict[str, str]:
        """The engine and how it is set."""
        return {"engine": f"SQLite {apsw.sqlite_lib_version()}", "durability": self.durability}

    def backup(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """A copy while others write; see `Store.backup`."""
        target = Path(path).absolute()
        if "\0" in str(target):
            raise Unwritable(f"{str(path)!r} is not a file name: give another path.")
        if os.path.lexists(target):
            raise Unwritable(f"{path} exists already, and was left as it is: give another path.")
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        self._live()
        try:
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            try:
                with self._wrapped("copied"):
                    copy(str(self._absolute), str(part), progress)
                with open(part, "rb+") as whole:
                    os.fsync(whole.fileno())
                os.rename(part, target)
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            raise Unwritable(f"{path} cannot be written: {error.strerror}. Give a path that can be written.") from error

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection, self._reopens = None, False

    # --- opening ---------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._refuse_foreign()
        with self._wrapped("opened"):
            self._create()
            connection = apsw.Connection(str(self._absolute), flags=apsw.SQLITE_OPEN_READWRITE)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection

    def _refuse_foreign(self) -> None:
        """Looks at the file before SQLite runs a statement, which could change it."""
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
        header = self._header()
        if not header.startswith(_MAGIC):
            if self._is_ours_in_log():
                return
            raise NotAStore(f"{self.path} is not a smolmem file, and was left as it is: give another path.")
        owner = int.from_bytes(header[68:72], "big")
        if owner != APPLICATION_ID and (owner != 0 or self._has_tables()):
            raise NotAStore(f"{self.path} is a database of another program, and was left as it is: give another path.")

    def _header(self) -> bytes:
        return read_header(self._absolute)

    def _is_ours_in_log(self) -> bool:
        """Whether the write-ahead log holds our first page: a power cut can garble the file during a checkpoint."""
        log = self._absolute.with_name(f"{self.path.name}-wal")
        if not log.exists() or not log.stat().st_size:
            return False
        try:
            reading = apsw.Connection(str(self._absolute), flags=apsw.SQLITE_OPEN_READWRITE)
            try:
                reading.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                return bool(reading.pragma("application_id") == APPLICATION_ID)
            finally:
                reading.close()
        except apsw.Error:
            return False

    def _has_tables(self) -> bool:
        with self._wrapped("opened"):
            uri = f"{self._absolute.as_uri()}?immutable=1"
            reading = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
            try:
                return bool(reading.execute("SELECT count(*) FROM sqlite_schema").get)
            finally:
                reading.close()

    def _create(self) -> None:
        """Creates an empty private file. It gets its name once it is closed: no other thread can have it open then."""
        if self.path.exists():
            return
        new = self._absolute.with_name(f".{self.path.name}.{secrets.token_hex(4)}.new")
        try:
            os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            try:
                _link(new, self._absolute)
            finally:
                new.unlink(missing_ok=True)
        except FileExistsError:
            pass
        except OSError as error:
            raise Unwritable(
                f"{self.path} cannot be created: {error.strerror}. Give a path that can be written."
            ) from error

    def _prepare(self, connection: apsw.Connection) -> None:
        connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # until we know that the file is ours
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.execute("PRAGMA cell_size_check = ON; PRAGMA cache_size = -32000")
        if connection.readonly("main"):
            raise Unwritable(f"{self.path} is read-only: make it writable, or copy it to where it can be written.")
        version = connection.pragma("user_version")
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
        _set_wal(connection)
        self._syncs = self.durability == "full"
        connection.execute(_SYNC[self._syncs])
        if version < latest:
            _migrate(connection, latest)
            self._refuse_changed(connection, latest)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)

    def _claim(self, connection: apsw.Connection) -> None:
        """Writes our mark into the header before WAL mode begins, so that a look at the header always finds it."""
        if connection.pragma("application_id") != APPLICATION_ID:
            connection.execute("BEGIN IMMEDIATE")
            connection.pragma("application_id", APPLICATION_ID)
            connection.execute("COMMIT")

    def _refuse_changed(self, connection: apsw.Connection, version: int) -> None:
        found = _schema(connection)
        if found != _expected_schema(version):
            strange = sorted(name for _, name, _ in found ^ _expected_schema(version))
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

    def _set_sync(self, sync: bool) -> None:
        if sync != self._syncs:
            self._live().execute(_SYNC[sync])
            self._syncs = sync

    def _roll_back(self) -> None:
        connection = self._connection
        if connection is not None and connection.in_transaction:
            with suppress(apsw.Error):  # it has rolled back by itself, or will when the file is opened again
                connection.execute("ROLLBACK")

    def _be_patient(self, seconds: float) -> None:
        if seconds != self._patience and self._connection is not None:
            self._patience = seconds
            self._connection.set_busy_timeout(int(seconds * 1000))

    @contextmanager
    def _wrapped(self, done: str) -> Iterator[None]:
        """A driver's error as ours: what happened, where, what to do next."""
        try:
            yield
        except apsw.Error as error:
            raise self._explained(error, done) from error
        except UnicodeDecodeError as error:
            raise Damaged(
                f"{self.path} cannot be {done}: it is damaged ({error}). Restore it from a backup."
            ) from error

    def _explained(self, error: apsw.Error, done: str) -> StoreError:
        return _explain(error, f"{self.path} cannot be {done}")


def _explain(error: apsw.Error, what: str) -> StoreError:
    detail = str(error)
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return Busy(f"{what}: another process has held it for too long ({detail}). Close that process, or try again.")
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError, apsw.FormatError)):
        return Damaged(f"{what}: it is damaged ({detail}). Restore it from a backup.")
    if isinstance(error, apsw.FullError):
        return Unwritable(f"{what}: no space left ({detail}). Free some space; what was written before is safe.")
    if isinstance(error, (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, apsw.IOError, apsw.AuthError)):
        return Unwritable(f"{what}: {detail}. Check the disk and the permissions of the file and its folder.")
    return StoreError(f"{what}: {detail}.")


def _link(new: Path, path: Path) -> None:
    """Gives a file its name unless something has that name; some file systems have no hard links."""
    try:
        os.link(new, path)
    except FileExistsError:
        raise
    except OSError:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def read_header(path: Path) -> bytes:
    """The first 100 bytes of a file, read through SQLite: no lock is taken, and none is lost; empty if there are fewer.

    Raises:
        Unwritable: the file cannot be read.
    """
    try:
        reading = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            whole, header = reading.read("main", 0, 0, 100)
            return header if whole else b""
        finally:
            reading.close()
    except apsw.Error as error:
        denied = "" if os.access(path, os.R_OK) else " (permission denied)"
        raise Unwritable(f"{path} cannot be read{denied}: {error}. Check its permissions.") from error


def read_version(path: Path) -> int:
    """The format of a file that is ours; SQLite is asked only where the write-ahead log may hold a newer one."""
    in_file = int.from_bytes(read_header(path)[60:64], "big")
    log = Path(f"{path}-wal")
    if not log.exists() or not log.stat().st_size or not os.access(path, os.W_OK):
        return in_file
    try:
        reading = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            reading.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            return int(reading.pragma("user_version"))
        finally:
            reading.close()
    except apsw.Error:
        return in_file


def is_locked(path: Path, seconds: float) -> bool:
    """Whether another connection holds the write lock for longer than some seconds."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.set_busy_timeout(int(seconds * 1000))
        connection.execute("BEGIN IMMEDIATE; ROLLBACK")
    except (apsw.BusyError, apsw.LockedError):
        return True
    except apsw.Error:
        return False
    finally:
        connection.close()
    return False


def _set_wal(connection: apsw.Connection) -> None:
    """Turns WAL mode on; with several processes at it for the first time, SQLite may say "locked" without waiting."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.pragma("journal_mode", "WAL")
            return
        except (apsw.BusyError, apsw.LockedError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def copy(source: str, target: str, progress: Progress | None) -> None:
    """Copies a database through connections of its own. A held snapshot keeps other writers from starting it over."""
    reading, writing = apsw.Connection(source, flags=apsw.SQLITE_OPEN_READWRITE), apsw.Connection(target)
    try:
        reading.set_busy_timeout(int(BUSY_SECONDS * 1000))
        reading.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        reading.execute("BEGIN; SELECT count(*) FROM sqlite_schema")
        writing.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")  # it is synced once, when it is whole
        with writing.backup("main", reading, "main") as copy:
            while not copy.done:
                copy.step(_PAGES)
                if progress is not None:
                    progress(copy.page_count - copy.remaining, copy.page_count)
    finally:
        writing.close()
        reading.close()


def _migrate(connection: apsw.Connection, latest: int) -> None:
    """Brings the schema up to date in one transaction: all of it, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for number in range(connection.pragma("user_version"), latest):
            connection.execute(migrations("sqlite")[number])
            connection.pragma("user_version", number + 1)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _schema(connection: apsw.Connection) -> frozenset[tuple[str, str, str]]:
    found = connection.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_schema")
    return frozenset((str(kind), str(name), str(sql)) for kind, name, sql in found)


@cache
def _expected_schema(version: int) -> frozenset[tuple[str, str, str]]:
    scratch = apsw.Connection(":memory:")
    try:
        for script in migrations("sqlite")[:version]:
            scratch.execute(script)
        return _schema(scratch)
    finally:
        scratch.close()


# --- fork ---------------------------------------------------------------------------------------------------------
#
# SQLite keeps the locks of a process in its memory, and a forked child inherits that memory, not the locks. So no
# transaction may be under way at a fork, and the child closes the inherited connections before it opens its own.

_held: list[SqliteStore] = []


def _before_fork() -> None:
    _held[:] = [store for store in list(_stores) if store._lock.acquire(timeout=BUSY_SECONDS)]


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop()._lock.release()


def _after_fork_in_child() -> None:
    _held.clear()
    for store in list(_stores):
        store._lock = threading.RLock()
        if store._connection is not None:
            store._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            store._connection.close()
            store._connection, store._reopens = None, True


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
