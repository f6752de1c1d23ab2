"""What every store promises, and the one place that chooses one by URL.

A store runs statements by name. Their text lies in SQL files beside each backend, so that people can read them and
nothing builds them from strings. What the tables mean is written once, above all backends, in `journal.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib import resources
from typing import Any, Literal, Protocol

from smolmem.errors import NotAStore

Row = dict[str, Any]
Durability = Literal["full", "normal"]
Progress = Callable[[int, int], None]
"""Told of long work: how much of it is done, and how much there is."""


class Store(Protocol):
    """A database that holds one journal."""

    @property
    def url(self) -> str:
        """What a user would open it by."""
        ...

    def write(self, *, sync: bool = True) -> AbstractContextManager[None]:
        """The only way into a transaction: all of it is on disk when the block ends, or none.

        Without `sync` it survives a killed process at once, and a power cut from the next synced write on.
        """
        ...

    def do(self, name: str, values: Mapping[str, Any]) -> Any:
        """Runs a statement; returns the first column of its first row, if it gives one."""
        ...

    def rows(self, name: str, values: Mapping[str, Any], seconds: float | None = None) -> list[Row]:
        """All rows of a query, each a dict.

        Raises:
            TimeoutError: it took longer than `seconds`, and was stopped.
        """
        ...

    def columns(self, name: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """All rows of a query, column by column; for rows by the hundred thousand."""
        ...

    def select(self, scope: str, statement: str) -> list[Row]:
        """The rows of somebody's own SELECT over the views of one scope; limited in rows and time.

        Raises:
            BadValue: it is not a SELECT over those.
        """
        ...

    def check(self) -> list[str]:
        """What the engine itself finds wrong with the store."""
        ...

    def size(self) -> int:
        """Bytes on disk."""
        ...

    def facts(self) -> dict[str, str]:
        """Versions and settings, for `stats()`."""
        ...

    def backup(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Copies the store, as it is at one moment, to a new file while others go on writing: whole, or not at all.

        Raises:
            Unwritable: there is something under that name already, or it cannot be written.
        """
        ...

    def close(self) -> None:
        """Lets go of the store; what was written stays."""
        ...


def open_store(url: str | os.PathLike[str], durability: Durability = "full") -> Store:
    """Opens or creates the store that a URL or path names.

    Raises:
        NotAStore: the URL names no store this version knows.
        StoreError: it cannot be opened.
    """
    text = os.fspath(url)
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+)://", text)
    if scheme is None or scheme[1] == "sqlite":
        from smolmem.store.sqlite import SqliteStore

        path = text[scheme.end() :].removeprefix("/") if scheme else text
        return SqliteStore(path, durability)
    raise NotAStore(f"{text!r} is not a store smolmem can open: give the path of a file, for instance 'agent.db'.")


def statements(backend: str) -> dict[str, str]:
    """The named statements of a backend."""
    text = _sql(backend).joinpath("queries.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)[1:]
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def migrations(backend: str) -> list[str]:
    """The numbered schema scripts of a backend, in order; the n-th brings a store to version n."""
    files = sorted(file.name for file in _sql(backend).iterdir() if re.match(r"\d{4}_", file.name))
    return [_sql(backend).joinpath(name).read_text(encoding="utf-8") for name in files]


def views(backend: str) -> str:
    """The script that makes the views that readers' own SELECTs can see."""
    text: str = _sql(backend).joinpath("views.sql").read_text(encoding="utf-8")
    return text


def _sql(backend: str) -> Any:
    return resources.files("smolmem.store").joinpath("sql", backend)
