"""Loads an export into a store: line by line, in one transaction, trusting nothing.

The shape of every line is checked, and it may only refer to earlier lines. Contents are checked by their hashes. Events
are applied to a `Timeline` and written by `Journal.append`, as when they were recorded: seals, steps and everything
else that can be derived is derived, not taken from the file.

A session, run or note that is here already stays as it is here. Its numbers are matched with those of the file by their
order, so that a fork in the file can continue from it.

A copy of a store (`copying.py`) is loaded in parts, each in a transaction of its own. A part may refer to the steps of
earlier parts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smolmem.core.arguments import check_scope
from smolmem.core.display import Drawable
from smolmem.store.base import Progress
from smolmem.store.journal import Journal
from smolmem.transfer import archive
from smolmem.transfer.batches import Batch
from smolmem.transfer.line_loader import CopiedPart, LineLoader

Trusted = Literal["import", "keep"]


@dataclass(frozen=True)
class Imported(Drawable):
    """How many rows were loaded, how many were here already, and how many sessions continue differently."""

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

    Args:
        journal: where to.
        path: the folder or zip of an export.
        scope: put it there: of an export of `acme`, `acme/alice` becomes `<scope>/alice`; of one of everything,
            `<scope>/acme/alice`.
        trust: `import`: everything has the origin `import` and low trust; `keep`: origins are as the export says.
        progress: called now and then with how much is done and how much there is.

    Raises:
        NotAStore: it is not an export.
        Damaged: if a line is wrong; the message names it.
        TooNew: a later smolmem made it.
    """
    below = None if scope is None else check_scope(scope)

    def read() -> LineLoader:
        with archive.opened(Path(path)) as export:
            return LineLoader(journal, export, below, keep=trust == "keep").load_lines(progress)

    loaded = journal.store.transact(read)
    return Imported(os.fspath(path), dict(loaded.added), dict(loaded.skipped), len(loaded.differing))


def load_part(journal: Journal, part: Batch, contents: Mapping[str, int], steps: dict[int, int]) -> LineLoader:
    """Loads a part of a copy in one transaction: all of it, or nothing. Its steps and notes are not indexed yet.

    A part that is here already is only read, to learn the numbers of its steps.

    Args:
        journal: where to.
        part: the lines; their contents are stored already.
        contents: the numbers here of contents, by hash.
        steps: the numbers here of the steps of earlier parts, by their numbers in the copied store; those of this part
            are added.
    """

    def read() -> LineLoader:
        copied = CopiedPart(contents, steps, part.prompts, part.skip, part.is_last)
        return LineLoader(journal, part, None, keep=True, copied=copied).load_lines(None)

    def write() -> LineLoader:
        last = int(journal.store.do("last_pending", {}))
        done = read()
        journal.store.do("drop_pending_after", {"id": last})
        return done

    loaded = read() if part.is_in(journal.store) else journal.store.transact(write)
    steps.update(loaded.step_numbers.items())
    if not part.is_last:  # the last part counts the session
        del loaded.added["session"]
        part.prompts.update(loaded.prompt_numbers.items())
    return loaded
