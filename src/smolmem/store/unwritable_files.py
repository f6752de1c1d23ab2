"""Opens a file that cannot be written as a private copy.

SQLite reads a file in WAL mode only where it can write files beside it. On the copy everything works as usual: an old
format is migrated, pending steps are indexed. The file itself and its folder do not change.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from smolmem.core.errors import Unwritable
from smolmem.store.base import Progress
from smolmem.store.copies import copy_from
from smolmem.store.encryption import Key, connect

_CHUNK = 16 << 20


def can_be_written(path: Path) -> bool:
    """Whether a file and its folder can be written; a missing file counts as writable."""
    return not path.exists() or (os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK))


@contextmanager
def private_copy(path: Path, key: Key | None = None, progress: Progress | None = None) -> Iterator[Path]:
    """A copy of a file, with its write-ahead log, in a folder that only this user can open; deleted afterwards.

    Raises:
        Unwritable: the file cannot be read, or there is no room for the copy.
    """
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
