"""Copies a whole store to another one, of either kind, and verifies both sides.

Contents are most of a store. They are copied first, some at a time, each time in a transaction of their own; those that
are there already are skipped, so a copy that was interrupted continues where it was. The rows that refer to them follow
in one transaction, through an export without contents: others see all sessions of the source, or none. Sessions and
notes that are there already are skipped, so an outdated copy is brought up to date by copying again. The target indexes
passages and vectors itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from smolmem.core.display import Drawable
from smolmem.core.encoding import packing
from smolmem.core.errors import Damaged, InvalidArgument
from smolmem.store.base import Progress
from smolmem.store.journal import Journal
from smolmem.store.verify import verify
from smolmem.transfer.export import export
from smolmem.transfer.load import load

COUNT, BYTES = 200, 4 << 20
"""Contents, and bytes of contents, that are copied in one transaction."""


@dataclass(frozen=True)
class Copied(Drawable):
    """How many rows were copied, and how many were there already."""

    source: str
    target: str
    added: dict[str, int]
    skipped: dict[str, int]


def copy_store(source: Journal, target: Journal, progress: Progress | None = None) -> Copied:
    """Copies everything; origins and trust stay as they are.

    The rows are in a private temporary folder meanwhile, as plain text.

    Raises:
        InvalidArgument: if source and target are the same.
        Damaged: if a side is damaged, or the copy is incomplete.
    """
    if source.store.url == target.store.url:
        raise InvalidArgument(f"{source.store.url} cannot be copied to itself: name another store.")
    _refuse_damaged(source)
    with tempfile.TemporaryDirectory(prefix="smolmem-") as folder:
        path = Path(folder) / "export"
        written = export(source, path, contents=False).written
        numbers = _copy_contents(source, target, progress)
        loaded = load(target, path, trust="keep", progress=progress, contents=numbers)
    for kind in ("session", "run", "note"):
        there = loaded.added.get(kind, 0) + loaded.skipped.get(kind, 0)
        if not loaded.differing and there < written.get(kind, 0):
            raise Damaged(f"{target.store.url}: {there} of {written[kind]} {kind}s arrived. Copy again.")
    _refuse_damaged(target)
    return Copied(source.store.url, target.store.url, loaded.added, loaded.skipped)


def _copy_contents(source: Journal, target: Journal, progress: Progress | None) -> dict[str, int]:
    """Copies the contents that the target does not have; returns the numbers of all in the target, by hash."""
    numbers: dict[str, int] = {}
    total = source.store.rows("export_sizes", {})[0]["contents"]
    for last, contents in _contents(source):
        keys = list(contents)
        found = target.store.rows_of_each("content_id", [{"hash": key} for key in keys])
        here = {key: int(rows[0]["id"]) for key, rows in zip(keys, found, strict=True) if rows}
        missing = {key: packing.pack(data) for key, data in contents.items() if key not in here}
        if missing:
            here |= target.store.transact(lambda missing=missing: _add_contents(target, missing))  # type: ignore[misc]
        numbers.update((key.hex(), number) for key, number in here.items())
        if progress is not None:
            progress(last, total)
    return numbers


def _contents(source: Journal) -> Iterator[tuple[int, dict[bytes, bytes]]]:
    """All contents by hash, some at a time, each time with the number of the last one."""
    last, size, contents = 0, 0, dict[bytes, bytes]()
    while ids := [row["id"] for row in source.store.rows("content_ids_after", {"id": last})]:
        for start in range(0, len(ids), COUNT):
            for rows in source.store.rows_of_each("content", [{"id": number} for number in ids[start : start + COUNT]]):
                last, data = rows[0]["id"], source.checked(rows, f"content {rows[0]['id']}")
                contents[rows[0]["hash"]], size = data, size + len(data)
                if size > BYTES:
                    yield last, contents
                    size, contents = 0, {}
            yield last, contents
            size, contents = 0, {}


def _add_contents(target: Journal, packed: dict[bytes, bytes]) -> dict[bytes, int]:
    target.store.announce(packed)
    store, numbers = target.store, dict[bytes, int]()
    for key, data in packed.items():
        added = store.do("add_content", {"hash": key, "bytes": data, "base": None})
        numbers[key] = int(added or store.do("content_id", {"hash": key}))
    return numbers


def _refuse_damaged(journal: Journal) -> None:
    report = verify(journal)
    if not report:
        raise Damaged(f"{journal.store.url} is damaged: {report.problems[0]}")
