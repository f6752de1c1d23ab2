"""Copies a whole store to another one, of either kind, and verifies both sides.

Contents are copied first, then the rows that refer to them, some at a time, each time in a transaction of their own
(`batches.py`): sessions arrive complete, or not at all; a long one, whose events come in several transactions, can be
neither resumed nor recalled until it is complete. What is there already is skipped, so a copy that was
interrupted continues where it was, and an outdated copy gets the sessions and notes that are new.

The target indexes passages and vectors itself, once the copy is complete: whether a step can be trusted depends on
steps and notes that may come later.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from smolmem.core.display import Drawable
from smolmem.core.encoding import packing
from smolmem.core.errors import Damaged, InvalidArgument
from smolmem.store.base import Progress, Row
from smolmem.store.journal import Journal
from smolmem.store.verify import verify
from smolmem.transfer.batches import batches
from smolmem.transfer.export import export_rows
from smolmem.transfer.load import load_part

COUNT, BYTES = 200, 4 << 20
"""Contents, and bytes of contents, that are copied in one transaction."""
LINES = 500
"""Rows that are copied in one transaction, about."""


@dataclass(frozen=True)
class Copied(Drawable):
    """How many rows were copied, how many were there already, and how many sessions continue differently there."""

    source: str
    target: str
    added: dict[str, int]
    skipped: dict[str, int]
    differing: int


def copy_store(source: Journal, target: Journal, progress: Progress | None = None) -> Copied:
    """Copies everything; origins and trust stay as they are.

    Rows without contents are in an unnamed temporary file meanwhile, as plain text.

    Raises:
        InvalidArgument: if source and target are the same.
        Damaged: if a side is damaged, or the copy is incomplete.
    """
    if source.store.url == target.store.url:
        raise InvalidArgument(f"{source.store.url} cannot be copied to itself: name another store.")
    _refuse_damaged(source)
    added, skipped, differing = Counter[str](), Counter[str](), set[str]()
    with tempfile.TemporaryFile(prefix="smolmem-") as file:
        written = export_rows(source, file)
        bar = _Bar(progress, source.store.rows("export_sizes", {})[0]["contents"], sum(written.values()))
        numbers, steps = _copy_contents(source, target, bar), dict[int, int]()
        for batch in batches(source.store.url, file, LINES):
            loaded = load_part(target, batch, numbers, steps)
            added.update(loaded.added)
            skipped.update(loaded.skipped)
            differing |= loaded.differing
            bar.add_lines(batch.count)
    for kind in ("session", "run", "note"):
        there = added[kind] + skipped[kind]
        if not differing and there < written.get(kind, 0):
            raise Damaged(f"{target.store.url}: {there} of {written[kind]} {kind}s arrived. Copy again.")
    target.store.transact(lambda: _index_later(target))
    _refuse_damaged(target)
    return Copied(source.store.url, target.store.url, dict(added), dict(skipped), len(differing))


class _Bar:
    """How much of a copy is done: contents by their numbers, then lines."""

    def __init__(self, progress: Progress | None, contents: int, lines: int) -> None:
        self._progress, self._contents, self._lines, self._done = progress, contents, lines, 0

    def set_content(self, number: int) -> None:
        """All contents up to a number are copied."""
        self._show(min(number, self._contents))

    def add_lines(self, count: int) -> None:
        """So many more lines are copied."""
        self._done += count
        self._show(self._contents + min(self._done, self._lines))

    def _show(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, self._contents + self._lines)


def _copy_contents(source: Journal, target: Journal, bar: _Bar) -> dict[str, int]:
    """Copies the contents that the target does not have; returns the numbers of all in the target, by hash."""
    numbers: dict[str, int] = {}
    last = 0
    while rows := source.store.rows("content_hashes_after", {"id": last, "limit": COUNT}):
        last = rows[-1]["id"]
        found = target.store.rows_of_each("content_id", [{"hash": row["hash"]} for row in rows])
        here = {row["hash"]: int(ids[0]["id"]) for row, ids in zip(rows, found, strict=True) if ids}
        for contents in _read([row for row in rows if row["hash"] not in here], source):
            packed = {key: packing.pack(data) for key, data in contents.items()}
            here |= target.store.transact(lambda packed=packed: _add_contents(target, packed))  # type: ignore[misc]
        numbers.update((key.hex(), number) for key, number in here.items())
        bar.set_content(last)
    return numbers


def _read(wanted: list[Row], source: Journal) -> Iterator[dict[bytes, bytes]]:
    """Contents of the source by hash, a few megabytes at a time."""
    size, contents = 0, dict[bytes, bytes]()
    for rows in source.store.rows_of_each("content", [{"id": row["id"]} for row in wanted]):
        if not rows:  # erased a moment ago
            continue
        data = source.checked(rows, f"content {rows[0]['id']}")
        contents[rows[0]["hash"]], size = data, size + len(data)
        if size > BYTES:
            yield contents
            size, contents = 0, {}
    if contents:
        yield contents


def _add_contents(target: Journal, packed: dict[bytes, bytes]) -> dict[bytes, int]:
    target.store.announce(packed)
    store, numbers = target.store, dict[bytes, int]()
    for key, data in packed.items():
        added = store.do("add_content", {"hash": key, "bytes": data, "base": None})
        numbers[key] = int(added or store.do("content_id", {"hash": key}))
    return numbers


def _index_later(target: Journal) -> None:
    """Marks what has no passages as pending."""
    target.store.do("index_missing_steps", {})
    target.store.do("index_missing_notes", {})


def _refuse_damaged(journal: Journal) -> None:
    report = verify(journal)
    if not report:
        raise Damaged(f"{journal.store.url} is damaged: {report.problems[0]}")
