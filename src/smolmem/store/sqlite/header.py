"""Reads a file before it is opened as a store: its header, its format, whether it is locked.

Everything is read through SQLite: `sqlite_store.py` explains why no other code may open the file.
"""

from __future__ import annotations

import os
import time
from contextlib import closing, suppress
from pathlib import Path

import apsw

from smolmem.core.errors import NotAStore, Unwritable
from smolmem.store.sqlite.encryption import KEY_VARIABLE, Key, connect

MAGIC = b"SQLite format 3\0"
APPLICATION_ID = 0x736D656D  # "smem", in the header of our files
_WAITS = (0.01, 0.03, 0.1, 0)  # seconds: another process may just be writing the first page
_LOCKED_MS = 500  # milliseconds: no write of ours holds the lock for so long


def read_header(path: Path, key: Key | None = None) -> bytes:
    """The first 100 bytes of a database, decrypted; read through SQLite, so that locks of this process stay.

    Raises:
        NotAStore: the file is not a database, or not one that the key opens.
        Unwritable: the file cannot be read.
    """
    header = stored_header(path, key, path)
    if key is None:
        return header
    with closing(connect(str(path), apsw.SQLITE_OPEN_READONLY, key)) as connection:
        return decrypted_header(connection, path)


def stored_header(path: Path, key: Key | None, name: Path) -> bytes:
    """The first 100 bytes as they are stored: of a plain database without a key, or of another file with a key.

    Raises:
        NotAStore: the file is plain and there is a key, or it is not plain and there is none.
        Unwritable: the file cannot be read.
    """
    header = _read(path)
    plain = header.startswith(MAGIC)
    if plain and key is not None:
        raise NotAStore(
            f"{name} is not encrypted, but a key was given; the file was left as it is: open it without key= and "
            f"{KEY_VARIABLE}, or encrypt it with `smolmem encrypt`."
        )
    if not header:
        raise NotAStore(f"{name} is not a smolmem file, and was left as it is: give another path.")
    if not plain and key is None:
        raise NotAStore(
            f"{name} is not a smolmem file or is encrypted, and was left as it is: give its key with key=… or "
            f"{KEY_VARIABLE}, or give another path."
        )
    return header


def decrypted_header(connection: apsw.Connection, name: Path) -> bytes:
    """The first 100 bytes of an encrypted database, through a connection that has the key and ran no query yet.

    Raises:
        NotAStore: the key does not open the file.
    """
    for wait in _WAITS:
        try:
            return connection.read("main", 0, 0, 100)[1]
        except apsw.NotADBError:
            time.sleep(wait)
    raise NotAStore(f"The key does not open {name}, and the file was left as it is: check key=… or {KEY_VARIABLE}.")


def _read(path: Path) -> bytes:
    """The first 100 bytes as they are stored; none if there are fewer.

    A power cut can garble the file during a checkpoint: SQLite recovers it from the log, so that the log is read, too.
    """
    try:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            whole, header = connection.read("main", 0, 0, 100)
            header = header if whole else b""
            return header if header.startswith(MAGIC) else _logged_header(path) or header
    except apsw.Error as error:
        denied = "" if os.access(path, os.R_OK) else " (permission denied)"
        raise Unwritable(f"{path} cannot be read{denied}: {error}. Check its permissions.") from error


def is_plain(path: Path) -> bool:
    """Whether a file is an SQLite database that is not encrypted."""
    return _read(path).startswith(MAGIC)


def owner_of(header: bytes) -> int:
    """The application id in a header."""
    return int.from_bytes(header[68:72], "big")


def _logged_header(path: Path) -> bytes:
    """The first 100 bytes in the write-ahead log of a plain database of ours; none if the log does not hold them.

    SQLite is not asked: it would take the log of an encrypted file for empty. The log may be opened, unlike the file:
    SQLite locks the file and its shared memory, not the log.
    """
    try:
        with open(f"{path}-wal", "rb") as log:
            page_size = int.from_bytes(log.read(32)[8:12], "big")
            while 512 <= page_size <= 65536 and len(frame := log.read(24)) == 24:
                page = log.read(page_size)
                if frame[:4] == b"\0\0\0\1" and page.startswith(MAGIC):
                    return page[:100] if owner_of(page) == APPLICATION_ID else b""
    except OSError:
        pass
    return b""


def read_version(path: Path, key: Key | None = None) -> int:
    """The format of a file that is ours; SQLite is asked only where the write-ahead log may hold a newer one."""
    in_file = int.from_bytes(read_header(path, key)[60:64], "big")
    log = Path(f"{path}-wal")
    if not log.exists() or not log.stat().st_size or not os.access(path, os.W_OK):
        return in_file
    try:
        with closing(connect(str(path), apsw.SQLITE_OPEN_READWRITE, key)) as reading:
            reading.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            return int(reading.pragma("user_version"))
    except apsw.Error:
        return in_file


def is_locked(path: Path, key: Key | None = None) -> bool:
    """Whether another connection holds the write lock for longer than a write takes."""
    with closing(connect(str(path), apsw.SQLITE_OPEN_READWRITE, key)) as connection, suppress(apsw.Error):
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.set_busy_timeout(_LOCKED_MS)
        try:
            connection.execute("BEGIN IMMEDIATE; ROLLBACK")
        except (apsw.BusyError, apsw.LockedError):
            return True
    return False
