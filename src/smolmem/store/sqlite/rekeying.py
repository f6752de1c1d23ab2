"""Gives a file another key: encrypts it, decrypts it, or changes its key.

SQLite writes a new file with the new key, which replaces the old one (see `replacing.py`).
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw

from smolmem.core.errors import Damaged, InvalidArgument, StoreError
from smolmem.store.base import Progress
from smolmem.store.sqlite.driver_errors import explained
from smolmem.store.sqlite.encryption import Key, connect, require_encrypting_build
from smolmem.store.sqlite.replacing import replace_file

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

    def write(source: apsw.Connection, part: Path) -> None:
        _write(source, part, new, progress)
        _check(source, part, new)

    try:
        replace_file(path, old, write)
    except apsw.Error as error:
        raise _without_keys(error, path, old, new) from None


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


def _without_keys(error: apsw.Error, path: Path, *keys: Key | None) -> StoreError:
    """The driver's error as ours. The driver may name the URI of the new file, which carries the key."""
    text = str(error)
    for key in keys:
        text = text if key is None else key.removed_from(text)
    return explained(type(error)(text), f"{path} cannot be given another key", path)
