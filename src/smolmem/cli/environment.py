"""What every command works with: the chosen store, scope and output."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from smolmem.cli.output import Output
from smolmem.core.errors import NotAStore, NotFound

if TYPE_CHECKING:
    from smolmem.core.values import Run
    from smolmem.memory import Memory
    from smolmem.store.journal import Journal

DEFAULT_DB = "smolmem.db"
URL_VARIABLE = "SMOLMEM_URL"


class Environment:
    """The values of `--db`, `--scope` and `--json`, and what follows from them."""

    def __init__(self) -> None:
        self.db: str | None = None
        self.scope: str | None = None
        self.json = False

    @property
    def url(self) -> str:
        """The store: `--db`, else the environment variable, else a file in the current folder."""
        return self.db or os.environ.get(URL_VARIABLE) or DEFAULT_DB

    @property
    def path(self) -> str:
        """The path of the store's file."""
        return self.url.removeprefix("sqlite:///")

    @property
    def read_scope(self) -> str:
        """The scope that is read: all scopes unless `--scope` names one."""
        return self.scope or "*"

    @cached_property
    def output(self) -> Output:
        """Where results are printed."""
        return Output(self.json)

    def open(self, *, create: bool = False, **options: Any) -> Memory:
        """Opens the store; a missing file is created only with `create`.

        Raises:
            NotAStore: the file does not exist.
            StoreError: the file cannot be used.
        """
        if not create:
            self._require_file()
        from smolmem.memory import Memory

        return Memory(self.url, **{"scope": "*", **options})

    @contextmanager
    def open_journal(self) -> Iterator[Journal]:
        """Opens the journal of the store alone, without recall."""
        self._require_file()
        from smolmem.store.journal import Journal
        from smolmem.store.opening import open_store

        store = open_store(self.url)
        try:
            yield Journal(store)
        finally:
            store.close()

    def _require_file(self) -> None:
        path = self.path
        if "://" not in path and "\0" not in path and not os.path.lexists(path):
            raise NotAStore(
                f"There is no store at {path}: name a store with --db PATH or in {URL_VARIABLE}, "
                "or create a sample store with `smolmem demo`."
            )

    def run(self, memory: Memory, id: str | None) -> Run:
        """The run whose id begins so; without an id the newest run that no other run called.

        Raises:
            NotFound: there is no such run.
        """
        if id is not None:
            return memory.run(id)
        found = memory.runs(scope=self.read_scope, managed=False, limit=1)
        if not found:
            raise NotFound(f"{self.url} holds no runs yet: `smolmem demo` creates a store with sample runs.")
        return found[0]
