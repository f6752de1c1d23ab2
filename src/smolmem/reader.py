"""Queries without smolagents, which takes a second to import: for commands that only list."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, cast

from smolmem.core.arguments import ScopeFilter, scope_filter
from smolmem.core.values import Run
from smolmem.queries import Queries
from smolmem.store.journal import Journal
from smolmem.store.opening import open_store


class Reader(Queries):
    """Finds runs, steps and alerts. Methods that act, such as `run.fork()`, need a `Memory`.

    Raises:
        StoreError: if the file cannot be used; the message says why and what to do.
    """

    def __init__(self, url: str | os.PathLike[str], *, scope: str = "default", key: str | bytes | None = None) -> None:
        self._bounds = scope_filter(scope)
        self.scope = scope
        self._journal = Journal(open_store(url, key=key))
        self._operations = cast(Any, _Lookup(self._journal, self._bounds))

    def close(self) -> None:
        """Closes the file."""
        self._journal.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Lookup:
    """The part of `Operations` that queries need."""

    def __init__(self, journal: Journal, bounds: ScopeFilter) -> None:
        self._journal = journal
        self._bounds = bounds

    def bind(self, value: Any) -> Any:
        return value

    def bind_all(self, values: Iterable[Any]) -> list[Any]:
        return list(values)

    def run(self, run: Run | str) -> Run:
        return run if isinstance(run, Run) else self._journal.run(run, self._bounds)
