"""Copies of a database, and the names of new files. No file of others is replaced.

A file that cannot be written is read as a private copy: SQLite reads a file in WAL mode only where it can write files
beside it. On the copy everything works as usual: an old format is migrated, pending steps are indexed. The file itself
and its folder do not change.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from smolmem.core.errors import Unwritable
from smolmem.store.base import Progress
from smolmem.store.sqlite import private_files
from smolmem.store.sqlite.driver_errors import explained, name_of
from smolmem.store.sqlite.encryption import Key, connect
from smolmem.store.sqlite.part_files import copy_part_of, held

_PAGES = 1024  # between two reports of progress
_WAIT = 30.0  # seconds for another writer
_CHUNK = 16 << 20


def refuse_existing(path: str | os.PathLike[str]) -> None:
    """Refuses a path that cannot be the name of a new file.

    Raises:
        Unwritable: something has that name, or it is not a name.
    """
    if "\0" in str(path):
        raise Unwritable(f"{str(path)!r} is not a file name: give another path.")
    if os.path.lexists(path):
        raise Unwritable(f"{path} exists already, and was left as it is: give another path.")


def back_up(source: str, path: str | os.PathLike[str], progress: Progress | None, key: Key | None) -> None:
    """Copies a database to a new file, which gets its name when it is complete and synced.

    Raises:
        Unwritable: the new file cannot be written.
    """
    target = Path(path).absolute()
    part = copy_part_of(target)
    try:
        private_files.create(part)
        try:
            with held(part):
                copy(source, str(part), progress, key)
                sync_file(part)
            os.rename(part, target)
        except (apsw.FullError, apsw.IOError) as error:
            if isinstance(error, apsw.IOError) and name_of(error) != "SQLITE_IOERR_WRITE":
                raise  # of the file that is read
            raise explained(error, f"{path} cannot be written", target) from error
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise Unwritable(f"{path} cannot be written: {error.strerror}. Give a path that can be written.") from error


def copy(source: str, target: str, progress: Progress | None, key: Key | None) -> None:
    """Copies through connections of its own; a held snapshot keeps other writers from starting the copy over."""
    with closing(connect(source, apsw.SQLITE_OPEN_READWRITE, key)) as reading:
        reading.set_busy_timeout(int(_WAIT * 1000))
        reading.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        reading.execute("BEGIN; SELECT count(*) FROM sqlite_schema")
        copy_from(reading, target, progress, key)


def copy_from(reading: apsw.Connection, target: str, progress: Progress | None, key: Key | None) -> None:
    """Copies what a connection reads; the target is not synced."""
    with closing(connect(target, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, key)) as writing:
        writing.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")  # the caller syncs the whole file once
        with writing.backup("main", reading, "main") as copying:
            while not copying.done:
                copying.step(_PAGES)
                if progress is not None:
                    progress(copying.page_count - copying.remaining, copying.page_count)


def sync_file(path: Path) -> None:
    """Brings a file to disk; no connection may have it open (see `sqlite_store.py`)."""
    with open(path, "rb+") as whole:
        os.fsync(whole.fileno())


def give_name(new: Path, path: Path) -> None:
    """Gives a file that no connection has open its name, unless something has that name.

    Raises:
        OSError: something has that name, or the name cannot be given.
    """
    try:
        os.link(new, path)
    except FileExistsError:
        raise
    except OSError:  # some file systems have no hard links
        private_files.create(path)
        os.replace(new, path)


# --- files that cannot be written -------------------------------------------------------------------------------------


def can_be_written(path: Path) -> bool:
    """Whether a file and its folder can be written; a missing file counts as writable."""
    return not path.exists() or (os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK))


@contextmanager
def private_copy(path: Path, key: Key | None = None, progress: Progress | None = None) -> Iterator[Path]:
    """A copy of a file, with its write-ahead log, in a folder that only this user can open; deleted afterwards.

    Raises:
        Unwritable: the file cannot be read, or there is no room for the copy.
    """
    import tempfile

    with tempfile.TemporaryDirectory(prefix="smolmem-") as folder:
        target = Path(folder) / path.name
        try:
            if not _copied_by_sqlite(path, target, key, progress):
                for name in (path.name, f"{path.name}-wal"):
                    _copy(path.with_name(name), target.with_name(name), progress)
        except OSError as error:
            raise Unwritable(
                f"{path} cannot be copied to {folder}, where it would be read: {error.strerror}. "
                "Make the file readable, or free some space."
            ) from error
        yield target


def _copied_by_sqlite(path: Path, target: Path, key: Key | None, progress: Progress | None) -> bool:
    """Copies one state of a file that another process has open: only then both files of WAL mode are there."""
    if not all(path.with_name(f"{path.name}-{end}").exists() for end in ("wal", "shm")):
        return False
    try:
        with closing(connect(str(path), apsw.SQLITE_OPEN_READONLY, key)) as reading:
            reading.execute("BEGIN; SELECT count(*) FROM sqlite_schema")
            copy_from(reading, str(target), progress, key)
    except apsw.Error:
        target.unlink(missing_ok=True)
        return False
    return True


def _copy(source: Path, target: Path, progress: Progress | None) -> None:
    """Copies a file that no process writes."""
    import shutil

    if not source.exists():
        return
    total = source.stat().st_size
    with source.open("rb") as reading, target.open("wb") as writing:
        while chunk := reading.read(_CHUNK):
            writing.write(chunk)
            if progress is not None:
                progress(writing.tell(), total)
    shutil.copystat(source, target)
    target.chmod(0o600)
