"""Opens the store that a path or URL names: the one place that knows which backends there are."""

from __future__ import annotations

import os
import re

from smolmem.core.errors import InvalidArgument, NotAStore
from smolmem.store.base import Durability, Store
from smolmem.store.postgres.address import parse
from smolmem.store.sqlite.encryption import resolve_key
from smolmem.store.sqlite.sqlite_store import SqliteStore


def open_store(url: str | os.PathLike[str], durability: Durability = "full", key: str | bytes | None = None) -> Store:
    """Opens or creates a store; the key of an encrypted file is `key`, else the environment variable `SMOLMEM_KEY`.

    Raises:
        InvalidArgument: if the key is empty or malformed.
        NotAStore: if the URL names no store this version knows.
        StoreError: if the store cannot be opened.
    """
    if not isinstance(url, (str, os.PathLike)):
        raise InvalidArgument(f"a store is named by a path such as 'agent.db' or a URL, not {url!r}.")
    text = os.fspath(url)
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+)://", text)
    if scheme is None or scheme[1] == "sqlite":
        path = text[scheme.end() :].removeprefix("/") if scheme else text
        return SqliteStore(path, durability, resolve_key(key))
    if is_server(text):
        if key is not None:
            raise InvalidArgument("a key is for SQLite files: how a server encrypts its disk is set at the server.")
        return _open_server(text, durability)
    raise NotAStore(
        f"{scheme[0]}… is not a store smolmem can open: give the path of a file, for instance 'agent.db', "
        "or postgresql://user@host/database."
    )


def is_server(url: str | os.PathLike[str]) -> bool:
    """Whether a URL names a database server."""
    return os.fspath(url).startswith(("postgresql://", "postgres://"))


def shown(url: str) -> str:
    """A URL without its password, as it may be printed."""
    return parse(url).shown if is_server(url) else url


def _open_server(url: str, durability: Durability) -> Store:
    try:
        from smolmem.store.postgres.postgres_store import PostgresStore
    except ImportError as error:
        raise NotAStore("PostgreSQL needs its driver: pip install 'smolmem[postgres]'.") from error
    return PostgresStore(url, durability)
