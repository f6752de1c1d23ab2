"""Unfinished files: a copy is written beside its target under a hidden name, and gets its own name when it is complete.

A killed process leaves its unfinished file behind. While a backup or an export is written, its process holds a lock on
the unfinished file, and the system drops the lock with the process: the next backup or export in that folder deletes
what nobody holds. The unfinished file of another key, of a repair, of a rescued store or of a new store belongs to one
store; the next such change of that store deletes it (`replacing.py`).
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":  # where a file that is open cannot be deleted
    import fcntl

_COPY = ".copy.part"
_COPY_NAME = re.compile(r"\..+\.[0-9a-f]{8}\.copy\.part(?:-wal|-shm|-journal)?")
_UNFINISHED = re.compile(r"\.[0-9a-f]{8}\.(?:part|new)")
RECENT = 10.0
"""Seconds after its last change for which an unfinished copy counts as held: its process may not have the lock yet, or
give the file its name next."""


def part_of(target: Path) -> Path:
    """A name for the unfinished file of a store."""
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")


def copy_part_of(target: Path) -> Path:
    """A name for an unfinished backup or export; deletes those that killed processes left in the folder."""
    import shutil

    for left in unfinished_copies(target.parent):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            with suppress(OSError):
                left.unlink()
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}{_COPY}")


def unfinished_files(path: Path) -> list[Path]:
    """The unfinished files of a store, without backups and exports; none if the folder cannot be listed."""
    own = [file for file in _hidden_in(path.parent) if file.name.startswith(f".{path.name}.")]
    return [file for file in own if _UNFINISHED.search(file.name) and not _COPY_NAME.fullmatch(file.name)]


def unfinished_copies(folder: Path) -> list[Path]:
    """The backups and exports in a folder that killed processes left unfinished."""
    return [file for file in _hidden_in(folder) if _COPY_NAME.fullmatch(file.name) and not _is_held(file)]


def _hidden_in(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(file for file in folder.iterdir() if file.name.startswith("."))
    return []


@contextmanager
def held(part: Path) -> Iterator[None]:
    """Locks an unfinished file or folder of this process.

    The lock ends before the file gets its name. SQLite may have the file open afterwards, and POSIX would drop SQLite's
    locks when this descriptor is closed.
    """
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(part, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_held(part: Path) -> bool:
    """Whether a process is writing an unfinished file; also if that is unknown."""
    try:
        if time.time() - part.lstat().st_mtime < RECENT:
            return True
    except OSError:
        return True
    if sys.platform == "win32":
        return False
    try:
        descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
