"""The interface of every store, and the source of its SQL.

A store runs statements by name. Their text is in SQL files for each backend, so that people can read them and
no code builds them from strings. The meaning of the tables is implemented once, for every backend, in `records.py` and
`journal.py`.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from smolmem.core.errors import Undone

TRIES = 20
"""How often a transaction that a server undoes runs again."""
T = TypeVar("T")
Row = dict[str, Any]
Durability = Literal["full", "normal"]
Progress = Callable[[int, int], None]
"""Called during long work with how much is done and how much there is."""


class Limits(NamedTuple):
    """How much a SELECT may return, how long it may take, and whether it may call any function.

    On a server, `any_function` means functions with long results: the others are listed in `select_check.py`.
    """

    rows: int = 200
    seconds: float = 1.0
    bytes: int = 200_000
    any_function: bool = False


AGENT = Limits()


class Store(Protocol):
    """A database that holds one journal."""

    @property
    def url(self) -> str:
        """The path or URL that opens this store."""
        ...

    @property
    def encrypted(self) -> bool:
        """Whether it is stored encrypted, with a key that this store was given."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether the store is open."""
        ...

    @property
    def has_vanished(self) -> bool:
        """Whether the file was deleted or replaced: only those that have it open can still read it."""
        ...

    def reopened(self) -> Store:
        """The same store through a connection of its own, also if this one is closed.

        Raises:
            StoreError: if the store is not there any more.
        """
        ...

    @property
    def numbers_have_gaps(self) -> bool:
        """Whether a number may be missing between two ids, because a transaction that took it was undone."""
        ...

    def transact(self, body: Callable[[], T], *, sync: bool = True, quick: bool = False, wait: bool = True) -> T:
        """The only way into a transaction: all that `body` writes is on disk when this returns, or nothing.

        The body may run several times, because servers undo transactions that conflict: it must change nothing but
        the store. `quick` is for a transaction of a run that this process holds: a server may be told what to assume,
        instead of being asked first. Without `sync` the transaction survives a killed process at once, and a power cut
        once the next synced transaction returned. Without `wait`, a server need not have answered yet: the transaction
        survives a killed process at once, and what else is lost until the next transaction returned is written again.
        """
        ...

    def foreign_writes(self) -> tuple[int, int] | None:
        """A value that stays the same while no other connection writes; None if that is not known.

        Part of a transaction: what was read in an earlier one need not be read again while the value is the same.
        """
        ...

    @property
    def is_remote(self) -> bool:
        """Whether each statement with a result is a message to a server."""
        ...

    def announce(self, contents: Mapping[bytes, bytes]) -> None:
        """Contents, by hash, that the transaction will add: a server gets all of them with one message."""
        ...

    def prepare_texts(self, texts: Iterable[str]) -> None:
        """Texts that the next transaction will index: a server needs their terms, and others wait during it."""
        ...

    def read_ahead(self, asked: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Queries that will be made, by name and values: a server gets all of them with one message.

        Outside of a transaction, this thread begins a series of reads that belong together, such as those of one
        search: they are sent with its next query, and a query that is made again may be answered from memory. Without
        queries, the series ends.
        """
        ...

    def do(self, name: str, values: Mapping[str, Any]) -> Any:
        """Runs a statement; returns the first column of its first row, if it gives one."""
        ...

    def rows(self, name: str, values: Mapping[str, Any], seconds: float | None = None) -> list[Row]:
        """All rows of a query, each a dict.

        Raises:
            TimeoutError: if it took longer than `seconds`.
        """
        ...

    def rows_of_each(
        self, name: str, each: Sequence[Mapping[str, Any]], seconds: float | None = None
    ) -> list[list[Row]]:
        """`rows` for several sets of values; a server gets all of them with one message.

        Raises:
            TimeoutError: if it took longer than `seconds`.
        """
        ...

    def columns(self, name: str, values: Mapping[str, Any], seconds: float | None = None) -> list[tuple[Any, ...]]:
        """All rows of a query, column by column; for rows by the hundred thousand.

        Raises:
            TimeoutError: if it took longer than `seconds`.
        """
        ...

    def select(self, scope: str, statement: str, limits: Limits = AGENT) -> list[Row]:
        """The rows of a user's SELECT over the views of one scope; limited in rows and time.

        Raises:
            InvalidArgument: if it is not a SELECT over those views.
        """
        ...

    def check(self) -> list[str]:
        """The problems that the engine's own check finds."""
        ...

    def size(self) -> int:
        """Bytes on disk."""
        ...

    def facts(self) -> dict[str, str]:
        """Versions and settings, for `stats()`."""
        ...

    def backup(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Copies one state of the store to a new file while others write; the copy is complete or does not exist.

        Raises:
            Unwritable: if the path exists or cannot be written.
        """
        ...

    def close(self) -> None:
        """Closes the store."""
        ...


def in_snapshot(store: Store, body: Callable[[Store], T]) -> T:
    """Runs `body` with one state of a store, through a connection of its own; others continue to write.

    The body runs again if a server undoes the transaction, as distributed engines do also with those that only read.
    """
    tries = 0
    while True:
        try:
            with closing(store.reopened()) as other:
                other.do("begin_reading", {})
                return body(other)
        except Undone:
            tries += 1
            if tries >= TRIES:
                raise
        pause(tries)


def pause(tries: int) -> None:
    """Waits a moment before a transaction runs again; longer each time, and others wait differently."""
    time.sleep(random.uniform(0, min(0.5, 0.005 * 2**tries)))  # noqa: S311


@cache
def statements(backend: str) -> dict[str, str]:
    """The named statements of a backend: those of SQLite, with the backend's own versions."""
    found = _named_statements("sqlite")
    return found if backend == "sqlite" else found | _named_statements(backend)


def _named_statements(backend: str) -> dict[str, str]:
    text = _sql(backend).joinpath("queries.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)[1:]
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


@cache
def migrations(backend: str) -> list[str]:
    """The numbered schema scripts of a backend, in order; the n-th brings a store to version n."""
    files = sorted(file.name for file in _sql(backend).iterdir() if re.match(r"\d{4}_", file.name))
    return [_sql(backend).joinpath(name).read_text(encoding="utf-8") for name in files]


def script(backend: str, name: str) -> str:
    """A script of a backend: `schema` of a new file, `views` that a user's SELECT can read, or `roles`."""
    return _sql(backend).joinpath(f"{name}.sql").read_text(encoding="utf-8")


def _sql(backend: str) -> Path:
    return Path(__file__).parent / "sql" / backend
