"""Gives a file another key: encrypts it, decrypts it, or changes its key.

SQLite writes a new file with the new key, the new file is checked, and then it takes the name of the old one: a kill or
a power cut leaves either the old file or the new one. Meanwhile an exclusive lock keeps all other programs out; a file
that another program has open is refused, because that program would continue to write to the old file.

What must stay true:
- The write-ahead log is emptied before the new file takes the name, and is not deleted afterwards: by then it belongs
  to the new file.
- Both files are in WAL mode whenever they have the name: only then does every open connection hold a lock.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from smolmem.core import faults
from smolmem.core.errors import Busy, Damaged, InvalidArgument, StoreError, Unwritable
from smolmem.store import private_files
from smolmem.store.base import Progress
from smolmem.store.driver_errors import explained
from smolmem.store.encryption import Key, connect, require_encrypting_build
from smolmem.store.sqlite import SqliteStore

_WAIT = 2.0  # seconds for a program that is about to close the file
_STEPS = 20_000  # of SQLite's machine, between two reports of progress


def change_key(path: Path, old: Key | None, new: Key | None, progress: Progress | None = None) -> None:
    """Replaces a file by the same file under another key; no key is a plain file.

    Raises:
        StoreError: the old key does not open the file, or another program has it open, or the new file cannot be
            written; the file is unchanged.
    """
    if old == new:
        raise InvalidArgument("the new key is the same as the old key: give another key.")
    require_encrypting_build()
    target = Path(os.path.realpath(path))
    if not target.exists():
        raise StoreError(f"{path} does not exist: check the path.")
    SqliteStore(str(target), key=old).close()  # refuses what is not a store, and what the old key does not open
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with _exclusive(target, old, path) as source:
            private_files.create(part)
            faults.point("rekey.begun")
            _write(source, part, new, progress)
            _check(source, part, new)
            _sync(part, os.O_RDWR)
            faults.point("rekey.done")
            if os.name == "nt":  # a file that is open cannot be replaced there
                source.close()
            os.replace(part, target)
            faults.point("rekey.committed")
            if os.name != "nt":
                _sync(target.parent, os.O_RDONLY)
    except apsw.Error as error:
        raise _without_keys(error, path, old, new) from None
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


def _write(source: apsw.Connection, part: Path, key: Key | None, progress: Progress | None) -> None:
    """Writes everything to an empty file. An empty key in the URI is a plain file; no key would be the same key."""
    total = int(source.pragma("page_count")) * int(source.pragma("page_size"))

    def report() -> bool:
        if progress is not None:
            progress(min(part.stat().st_size, total), total)
        return False

    source.set_progress_handler(report, _STEPS)
    try:
        source.execute("VACUUM INTO ?", (f"{part.as_uri()}?key=" if key is None else key.uri(part),))
    finally:
        source.set_progress_handler(None)
    if progress is not None:
        progress(total, total)


def _check(source: apsw.Connection, part: Path, key: Key | None) -> None:
    """Reads every page of the new file with the new key, and leaves the file in WAL mode."""
    with closing(connect(str(part), apsw.SQLITE_OPEN_READWRITE, key)) as written:
        problem = written.execute("PRAGMA quick_check(1)").get
        same = all(written.pragma(name) == source.pragma(name) for name in ("application_id", "user_version"))
        if problem != "ok" or not same:
            raise Damaged(f"the new file is not whole ({problem}), and the old one was left as it is: check the disk.")
        written.pragma("journal_mode", "WAL")


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _without_keys(error: apsw.Error, path: Path, *keys: Key | None) -> StoreError:
    """The driver's error as ours. The driver may name the URI of the new file, which carries the key."""
    text = str(error)
    for key in keys:
        text = text if key is None else key.removed_from(text)
    return explained(type(error)(text), f"{path} cannot be given another key")
