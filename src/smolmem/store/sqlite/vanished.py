"""Rescues a file that is deleted or replaced while it is open: copies all of it to a new file.

SQLite continues to write to a file that has no name any more, and every write succeeds until the process ends. So a
store compares the device and inode of its open files with those at their paths, in each transaction. A process that
still has the old file open can read all of it, and copies it to a new file: at the old path, if that is free.

What must stay true:
- A foreign file at the path is never changed; the copy then gets a name beside it.
- All processes that had the old file open continue in the same new file. The new file gets its name while the write
  lock of the old file is held, after a comparison has shown that the copy has every transaction. It says which file it
  continues, so that the others find it; the old file says that it is continued, so that nobody copies it again.
- A connection to a file without a name is closed without a checkpoint: SQLite would delete, by name, the log of the
  new file.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from smolmem.core.errors import Busy, StoreError, Unwritable
from smolmem.store.sqlite import private_files
from smolmem.store.sqlite.copies import copy_from, give_name, sync_file
from smolmem.store.sqlite.encryption import Key, connect
from smolmem.store.sqlite.header import APPLICATION_ID, owner_of, read_header
from smolmem.store.sqlite.part_files import part_of

log = logging.getLogger("smolmem")

_TRIES = 20  # to copy a file that others still write
_WAIT = 5.0  # seconds for the process that has the new file, where that was deleted, too
_SIGN = "INSERT INTO continued (file, at) VALUES (?, ?)"
_SUFFIXES = ("-wal", "-shm")
File = tuple[int, int]
"""Device and inode."""


class Place:
    """Where the files of an open database are: the database, its log and its shared memory.

    Args:
        path: the path.
        status: the status of the file that is open.
        since: a time before it was opened.
        key: its key.
    """

    def __init__(self, path: Path, status: os.stat_result, since: float, key: Key | None) -> None:
        self.path = path
        self._key = key
        self._path = str(path)
        self._real = os.path.realpath(path)  # SQLite puts the log there
        self._names_besides = [f"{self._real}{suffix}" for suffix in _SUFFIXES]
        self._since = since
        self._file = (status.st_dev, status.st_ino)
        self._besides = self._besides_now()
        self._not_ours: File | None = None
        self._has_content = False
        self.is_emptied = False
        """Whether another program has emptied the file, which keeps its name; known since `has_name` was asked."""

    @property
    def has_name(self) -> bool:
        """Whether the path leads to the database; costs one `stat`."""
        found = status_of(self._path)
        self._has_content |= found is not None and found.st_size > 0
        self.is_emptied = self._has_content and found is not None and not found.st_size
        return found is not None and (found.st_dev, found.st_ino) == self._file

    @property
    def is_whole(self) -> bool:
        """Whether the names of all files lead to them."""
        return self.has_name and all(
            then is None or then == now for then, now in zip(self._besides, self._besides_now(), strict=True)
        )

    def _besides_now(self) -> list[File | None]:
        return [_file(name) for name in self._names_besides]

    def continuation(self) -> Path | None:
        """The file that another process has copied this one to."""
        for candidate in (self.path, self._beside()):
            found = _file(str(candidate))
            if found in (None, self._file, self._not_ours):
                continue
            if candidate == self.path:
                self._drop_besides()
            try:
                if self._continues(candidate):
                    return candidate
                self._not_ours = found
            except (StoreError, apsw.Error):  # the file is missing again, not a store, or busy
                continue
        return None

    def rescue(self, connection: apsw.Connection) -> Path:
        """Copies all that a connection reads to a new file, unless another process did; returns the new file.

        Raises:
            StoreError: it cannot be copied; the connection still has everything.
        """
        try:
            for _ in range(_TRIES):
                found = self._awaited(connection) or self._copied(connection, again=self.is_continued_in(connection))
                if found is not None:
                    return found
        except OSError as error:
            raise Unwritable(
                f"{self.path} was deleted or replaced, and cannot be written again: {error.strerror}. This process "
                "still has what was recorded: make the folder writable, and the next write tries again."
            ) from error
        raise Busy(f"{self.path} was deleted or replaced, and other processes keep writing to it. Close them.")

    def _awaited(self, connection: apsw.Connection) -> Path | None:
        """The continuation. If it is missing, waits for the process that has it open: that process has newer data."""
        deadline = time.monotonic() + _WAIT
        while (found := self.continuation()) is None:
            if not self.is_continued_in(connection) or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        return found

    # --- copying ---------------------------------------------------------------------------------------------------

    def _copied(self, connection: apsw.Connection, *, again: bool) -> Path | None:
        """Makes the new file; None if the old file was meanwhile written, or copied by another process."""
        part = part_of(self.path)
        private_files.create(part)
        try:
            with _transaction(connection, "BEGIN"):
                connection.execute("SELECT count(*) FROM sqlite_schema")
                version = connection.pragma("data_version")
                copy_from(connection, str(part), None, self._key)
            self._sign(part)
            sync_file(part)
            with _transaction(connection, "BEGIN IMMEDIATE"):
                if connection.pragma("data_version") != version or self.is_continued_in(connection) != again:
                    return None
                found = self.continuation() or self._put(part)
                connection.execute(_SIGN, (self._id, time.time()))
                connection.execute("COMMIT")
                return found
        finally:
            for suffix in ("", "-journal", *_SUFFIXES):
                Path(f"{part}{suffix}").unlink(missing_ok=True)

    def _put(self, part: Path) -> Path:
        """Gives the copy its name: the old path, if it is free."""
        now = _file(str(self.path))
        if now in (None, self._file) and self._has_no_other_log(now):
            for suffix in _SUFFIXES:
                Path(f"{self._real}{suffix}").unlink(missing_ok=True)
            if now is None:
                give_name(part, self.path)
            else:
                os.replace(part, self._real)
            what = "was deleted" if now is None else "lost its log"
            log.warning("smolmem: %s %s while it was in use. A new file has the whole record.", self.path, what)
            return self.path
        beside = self._beside() if not self._beside().exists() else Path(f"{self._beside()}-{secrets.token_hex(2)}")
        give_name(part, beside)
        log.warning(
            "smolmem: %s was replaced by another file while it was in use, and that file is left as it is. The whole "
            "record, also of what this process records from now on, is in %s. To merge the two: `smolmem export %s "
            "record.zip`, then `smolmem load %s record.zip`.",
            self.path,
            beside,
            beside,
            self.path,
        )
        return beside

    def _has_no_other_log(self, now: File | None) -> bool:
        """Whether only our log is there, or an empty log without a database."""
        if all(file in (None, *self._besides) for file in self._besides_now()):
            return True
        log = status_of(f"{self._real}{_SUFFIXES[0]}")
        return now is None and log is not None and log.st_size == 0

    def _drop_besides(self) -> None:
        """Deletes the old log and shared memory: SQLite would use them for the new file."""
        for suffix, ours, now in zip(_SUFFIXES, self._besides, self._besides_now(), strict=True):
            if ours is not None and ours == now:
                Path(f"{self._real}{suffix}").unlink(missing_ok=True)

    def _beside(self) -> Path:
        return self.path.with_name(f"{self.path.name}.rescued-{self._file[1]}")

    # --- which file continues which --------------------------------------------------------------------------------

    def _sign(self, part: Path) -> None:
        with closing(connect(str(part), apsw.SQLITE_OPEN_READWRITE, self._key)) as writing:
            writing.execute(_SIGN, (self._id, time.time()))

    def _continues(self, candidate: Path) -> bool:
        """Whether a file records that it continues this one."""
        if owner_of(read_header(candidate, self._key)) != APPLICATION_ID:
            return False
        with closing(connect(str(candidate), apsw.SQLITE_OPEN_READWRITE, self._key)) as reading:
            reading.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            reading.set_busy_timeout(1000)
            return self.is_continued_in(reading)

    def is_continued_in(self, connection: apsw.Connection) -> bool:
        """Whether a database records that this file is continued in another file."""
        query = "SELECT count(*) FROM continued WHERE file = ? AND at >= ?"
        return bool(connection.execute(query, (self._id, self._since)).get)

    @property
    def _id(self) -> str:
        return "{}:{}".format(*self._file)


@contextmanager
def _transaction(connection: apsw.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def status_of(path: str | Path) -> os.stat_result | None:
    """The status of a file; none if there is no file."""
    try:
        return os.stat(path)
    except OSError:
        return None


def _file(path: str) -> File | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
