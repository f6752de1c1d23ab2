"""Copies a whole store to another one, of either kind: exports, loads, and verifies both sides.

Runs and notes that are there already are skipped, so an interrupted or outdated copy is continued by copying again.
The target indexes passages and vectors itself.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from smolmem.core.display import Drawable
from smolmem.core.errors import Damaged, InvalidArgument
from smolmem.store.base import Progress
from smolmem.store.journal import Journal
from smolmem.store.verify import verify
from smolmem.transfer.export import export
from smolmem.transfer.load import load

_COUNTED = ("session", "run", "event", "call", "note")


@dataclass(frozen=True)
class Copied(Drawable):
    """How many rows were copied, and how many were there already."""

    source: str
    target: str
    added: dict[str, int]
    skipped: dict[str, int]


def copy_store(source: Journal, target: Journal, progress: Progress | None = None) -> Copied:
    """Copies everything; origins and trust stay as they are.

    The export is in a private temporary folder meanwhile, as plain text.

    Raises:
        InvalidArgument: if source and target are the same.
        Damaged: if a side is damaged, or the copy is incomplete.
    """
    if source.store.url == target.store.url:
        raise InvalidArgument(f"{source.store.url} cannot be copied to itself: name another store.")
    _refuse_damaged(source)
    with tempfile.TemporaryDirectory(prefix="smolmem-") as folder:
        path = Path(folder) / "export"
        written = export(source, path, progress=progress).written
        loaded = load(target, path, trust="keep", progress=progress)
    for kind in _COUNTED:
        there = loaded.added.get(kind, 0) + loaded.skipped.get(kind, 0)
        if not loaded.differing and there < written.get(kind, 0) and kind in ("session", "run", "note"):
            raise Damaged(f"{target.store.url}: {there} of {written[kind]} {kind}s arrived. Copy again.")
    _refuse_damaged(target)
    return Copied(source.store.url, target.store.url, loaded.added, loaded.skipped)


def _refuse_damaged(journal: Journal) -> None:
    report = verify(journal)
    if not report:
        raise Damaged(f"{journal.store.url} is damaged, and nothing was copied from it: {report.problems[0]}")
