"""Copies of a database, and the names of new files. No file of others is replaced."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import apsw

from smolmem.store import private_files
from smolmem.store.base import Progress
from smolmem.store.encryption import Key, connect

_PAGES = 1024  # between two reports of progress
_WAIT = 30.0  # seconds for another writer


def copy(source: str, target: str, progress: Progress | None, key: Key | None = None) -> None:
    """Copies a database, with the same key, through connections of its own.

    A held snapshot keeps other writers from starting the copy over.
    """
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
    """Brings a file to disk; no connection may have it open (see `sqlite.py`)."""
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
