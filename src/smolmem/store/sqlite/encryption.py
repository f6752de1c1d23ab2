"""Encryption at rest: the key of a SQLite file, and connections that use the key.

SQLite itself does not encrypt. `apsw-sqlite3mc` is a build of `apsw` with SQLite3 Multiple Ciphers: every page of the
file and of the write-ahead log is encrypted before it is written. Both distributions install the module `apsw`, so the
encrypting build replaces the plain one and cannot be an extra of this package.

The cipher is AEGIS-256: it authenticates pages, so a changed byte is an error and never other content; it was the
fastest authenticated cipher in our measurements; and its passphrases go through Argon2id, which needs memory for every
guess.

What must stay true:
- A plain SQLite ignores `PRAGMA key`. A key without the encrypting build is therefore refused before a file is opened.
- The key is the first thing a connection is given. Temporary tables and sorts of such a connection stay in memory.
- The key is in no URL, message, log or representation.
"""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path
from typing import NoReturn

import apsw

from smolmem.core.errors import InvalidArgument, StoreError
from smolmem.store.packed_text import add_functions

KEY_VARIABLE = "SMOLMEM_KEY"
CIPHER = "aegis"
_RAW = "raw:"


class Key:
    """A passphrase, or 32 bytes that are used as they are.

    Args:
        key: a passphrase; `raw:` and 64 hexadecimal digits; or 32 bytes.

    Raises:
        InvalidArgument: the key is empty or malformed.
    """

    __slots__ = ("_hex",)

    def __init__(self, key: str | bytes) -> None:
        self._hex = _material(key).hex()

    def __repr__(self) -> str:
        return "Key(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self._hex == other._hex

    def __hash__(self) -> int:
        return hash(self._hex)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Key cannot be pickled or copied.")

    def unlock(self, connection: apsw.Connection) -> None:
        """Gives a new connection the key.

        Raises:
            StoreError: this build of apsw does not encrypt.
        """
        require_encrypting_build()
        cipher = connection.execute(f"PRAGMA cipher = '{CIPHER}'").get
        answer = connection.execute(f"PRAGMA hexkey = '{self._hex}'").get
        if (cipher, answer) != (CIPHER, "ok"):
            raise StoreError(f"this build of apsw did not accept the key: run {SWAP}.")
        connection.execute("PRAGMA temp_store = MEMORY")

    def uri(self, path: Path) -> str:
        """A URI of a file that carries the key; only for SQLite, because the URI must not be in a message."""
        return f"{path.as_uri()}?cipher={CIPHER}&hexkey={self._hex}"

    def removed_from(self, text: str) -> str:
        """A text of the driver without the key."""
        return text.replace(self._hex, "…")


SWAP = "`pip uninstall apsw apsw-sqlite3mc`, then `pip install apsw-sqlite3mc`"
"""The commands that replace the plain build, also where both are installed."""


def encrypting_build() -> str | None:
    """The version of SQLite3 Multiple Ciphers, if this apsw is the encrypting build."""
    version: str | None = getattr(apsw, "mc_version", None)
    return version


def require_encrypting_build() -> None:
    """Refuses to use a key that SQLite would ignore.

    Raises:
        StoreError: this apsw is the plain build.
    """
    if encrypting_build() is None:
        raise StoreError(f"a key cannot be used, because the installed apsw cannot encrypt: run {SWAP}.")


def resolve_key(key: str | bytes | None) -> Key | None:
    """The given key, else the key in the environment variable, else none.

    Raises:
        InvalidArgument: the key is empty or malformed.
    """
    return key_in_variable(KEY_VARIABLE) if key is None else Key(key)


def key_in_variable(name: str) -> Key | None:
    """The key in an environment variable. An empty variable is an error: a lost secret must not mean "no key".

    Raises:
        InvalidArgument: the key is empty or malformed.
    """
    value = os.environ.get(name)
    if value is None:
        return None
    if not value:
        raise InvalidArgument(f"{name} is empty: set it to the key, or unset it.")
    return Key(value)


def connect(path: str, flags: int, key: Key | None = None) -> apsw.Connection:
    """Opens a connection, and gives it our SQL functions and the key before anything else."""
    connection = apsw.Connection(path, flags=flags)
    add_functions(connection)
    if key is not None:
        try:
            key.unlock(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def _material(key: str | bytes) -> bytes:
    """The key for SQLite: the passphrase in UTF-8, or `raw:` and the digits of a key."""
    if isinstance(key, bytes) and len(key) == 32:
        return f"{_RAW}{key.hex()}".encode()
    if not isinstance(key, str):
        given = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise InvalidArgument(f"a key is a passphrase (str) or 32 bytes, not {given}.")
    if not key:
        raise InvalidArgument("the key is empty: give a passphrase (str) or 32 bytes.")
    if key.startswith(_RAW) and not re.fullmatch(r"raw:[0-9a-fA-F]{64}", key):
        raise InvalidArgument("a key that begins with `raw:` has 64 hexadecimal digits after it.")
    try:
        return unicodedata.normalize("NFC", key).encode()
    except UnicodeEncodeError:
        raise InvalidArgument("the key is not valid Unicode text: give another passphrase, or 32 bytes.") from None
