"""Loads an export into a store: line by line, in one transaction, trusting nothing.

The shape of every line is checked, and a line may only refer to earlier lines. Contents are checked by their hashes.
Events are applied to a `Timeline` and written by `Journal.append`, as when they were recorded: seals, steps and counts
are derived, not taken from the file.

A session, run or note that the store has already is not changed. Its numbers are matched with those of the file by
their order, so that a fork in the file can continue from it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smolmem.core.arguments import check_scope
from smolmem.core.display import Result
from smolmem.store.base import Progress
from smolmem.store.journal import Journal
from smolmem.transfer import archive
from smolmem.transfer.line_loader import LineLoader

Trusted = Literal["import", "keep"]


@dataclass(frozen=True)
class Imported(Result):
    """How many rows were loaded, how many the store had already, and how many sessions continue differently."""

    path: str
    added: dict[str, int]
    skipped: dict[str, int]
    differing: int


def load(
    journal: Journal,
    path: str | os.PathLike[str],
    *,
    scope: str | None = None,
    trust: Trusted = "import",
    progress: Progress | None = None,
) -> Imported:
    """Reads an export into a store: all of it, or nothing.

    The arguments are those of `Memory.load`. Below a scope, `acme/alice` becomes `<scope>/alice` if `acme` was
    exported, and `<scope>/acme/alice` if everything was.
    """
    below = None if scope is None else check_scope(scope)

    def read() -> LineLoader:
        with archive.opened(Path(path)) as export:
            return LineLoader(journal, export, below, keep=trust == "keep").load_lines(progress)

    loaded = journal.store.transact(read)
    return Imported(os.fspath(path), dict(loaded.added), dict(loaded.skipped), len(loaded.differing))
