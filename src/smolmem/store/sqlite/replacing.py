"""Replaces a file by a new one that is written from it: with another key, or with new indexes.

The new file is written and checked, and then takes the name of the old one: a kill or a power cut leaves either the old
file or the new one. Meanwhile an exclusive lock keeps all other programs out; a file that another program has open is
refused, because that program would continue to write to the old file.

What must stay true:
- The write-ahead log is emptied before the new file takes the name, and is not deleted afterwards: by then it belongs
  to the new file.
- Both files are in WAL mode whenever they have the name: only then does every open connection hold a lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from smolmem.core import faults
from smolmem.core.errors import Busy, StoreError, Unwritable
from smolmem.store.sqlite.encryption import Key, connect
from smolmem.store.sqlite.part_files import part_of, unfinished_files
from smolmem.store.sqlite.sqlite_store import SqliteStore

_WAIT = 2.0  # seconds for a program that is about to close the file


def replace_file(path: Path, key: Key | None, write: Callable[[apsw.Connection, Path], None]) -> None:
    """Replaces a store by the file that `write` fills; `write` gets the open store and an empty file.

    Raises:
        StoreError: the key does not open the file, or another program has it open, or the new file cannot be written;
            the file is unchanged.
        apsw.Error: as `write` raises it; the file is unchanged.
    """
    target = Path(os.path.realpath(path))
    if not target.exists():
        raise StoreError(f"{path} does not exist: check the path.")
    SqliteStore(str(target), key=key).close()  # refuses a file that is not a store, or that the key does not open
    part = part_of(target)
    try:
        with _exclusive(target, key, path) as source:
            for left in unfinished_files(target):  # they may hold the content without a key
                left.unlink(missing_ok=True)
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            faults.point("replace.begun")
            write(source, part)
            _sync(part, os.O_RDWR)
            faults.point("replace.done")
            if os.name == "nt":  # a file that is open cannot be replaced there
                source.close()
            os.replace(part, target)
            faults.point("replace.committed")
            if os.name != "nt":
                _sync(target.parent, os.O_RDONLY)
    except OSError as error:
        raise Unwritable(f"{path} cannot be replaced: {error.strerror}. Check the folder and the disk.") from error
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            Path(f"{part}{suffix}").unlink(missing_ok=True)


@contextmanager
def _exclusive(target: Path, key: Key | None, shown: Path) -> Iterator[apsw.Connection]:
    """A connection that keeps all others out, with an empty write-ahead log."""
    with closing(connect(str(target), apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI, key)) as source:
        source.set_busy_timeout(int(_WAIT * 1000))
        source.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        source.execute("PRAGMA temp_store = MEMORY")
        try:
            source.pragma("locking_mode", "EXCLUSIVE")
            source.execute("BEGIN IMMEDIATE; COMMIT")
        except (apsw.BusyError, apsw.LockedError):
            raise Busy(f"{shown} is open in another program, and was left as it is: close that program.") from None
        busy, left, _ = source.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
        if busy or left:
            raise Busy(f"{shown} is in use by another program, and was left as it is: close that program.")
        yield source


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
