"""By meaning: vectors of what is stored, made when they are needed and kept in the store.

Writing a step does not wait for a model. Before a search, whatever has no vector of this model yet gets one, whether
it is new or the model is. A model that fails, a server that is down: recall goes on by words, and says so once.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress

from smolmem.recall.embed import Embedder, Vector
from smolmem.recall.index import Index, Where, facts_of, numbers_of
from smolmem.store.base import Row, Store
from smolmem.store.units import ids

if TYPE_CHECKING:
    from smolmem.recall.search import Wanted

log = logging.getLogger("smolmem")

BATCH = 64
PATIENCE = 5
"""Texts in a row that a model may refuse before it is taken to be down."""
MANY = 200
"""Units that are embedded without a progress bar."""


class Meaning:
    """The vectors of a store and the model that makes them."""

    def __init__(self, store: Store, embedder: Embedder) -> None:
        self._store = store
        self.embedder = embedder
        self._indexes: dict[tuple[str, str], Index] = {}
        self._lock = threading.Lock()
        self._failing = False
        self._refused = 0

    def nearest(self, asked: str, limit: int, wanted: Wanted) -> list[tuple[int, float]]:
        """The units nearest to a question in meaning; none if the model does not answer."""
        try:
            vector = _length_one(self.embedder.query(asked))
            with self._lock:
                found = [hit for scope in self._scopes(wanted) for hit in self._search(scope, vector, limit, wanted)]
        except Exception as error:
            if not self._failing:
                self._failing = True
                log.warning(
                    "smolmem recalls by words alone: %s does not work (%s: %s).",
                    self.embedder.model,
                    type(error).__name__,
                    error,
                )
            return []
        self._failing = False
        return sorted(found, key=lambda hit: -hit[1])[:limit]

    def _scopes(self, wanted: Wanted) -> list[str]:
        if wanted.scope is not None and wanted.below is None:
            return [wanted.scope]
        return [row["scope"] for row in self._store.rows("scopes", {"scope": wanted.scope, "below": wanted.below})]

    def _search(self, scope: str, vector: Vector, limit: int, wanted: Wanted) -> list[tuple[int, float]]:
        index = self._index(scope, len(vector))
        without = {"session": [wanted.apart] if wanted.apart else [], "role": wanted.but}
        where = None if wanted.anything else Where(wanted.words, without, wanted.since, wanted.until)
        while True:
            found = index.search(vector, limit, where)
            there = {row["id"] for row in self._store.rows("there", {"ids": ids(unit for unit, _ in found)})}
            gone = [unit for unit, _ in found if unit not in there]
            if not gone:
                return found
            index.drop(gone)

    def _index(self, scope: str, size: int) -> Index:
        """The index of a scope, with everything in it that there is."""
        model = f"{self.embedder.model}/{size}"
        index = self._indexes.setdefault((scope, model), Index(scope, model, size))
        new = index.count == 0
        index.update(self._store)
        complete = not new or self._store.do("count_units", {"scope": scope}) == index.count
        if self._embed(scope, model, index.last if complete else 0):
            if not complete:  # older units got their vectors only now
                self._indexes[scope, model] = index = Index(scope, model, size)
            index.update(self._store)
        return index

    def _embed(self, scope: str, model: str, after: int) -> int:
        """Gives each unit without a vector one; returns how many there were."""
        done, bar = 0, None
        try:
            for batch in self._unembedded(scope, model, after):
                if done >= MANY and bar is None:
                    left = self._store.do("count_unembedded", {"scope": scope, "model": model, "id": after})
                    bar = Progress(console=Console(file=sys.stderr), transient=True, disable=not sys.stderr.isatty())
                    bar.add_task("smolmem reads what it has not read yet", total=done + left, completed=done)
                    bar.start()
                self._embed_some(model, batch)
                done += len(batch)
                if bar is not None:
                    bar.update(bar.task_ids[0], completed=done)
        finally:
            if bar is not None:
                bar.stop()
        return done

    def _embed_some(self, model: str, batch: list[Row]) -> None:
        made = [(unit, self._numbers(unit["text"])) for unit in batch]
        with self._store.write(sync=False):
            for unit, numbers in made:
                row = {"unit": unit["id"], "model": model, "facts": facts_of(unit), "numbers": numbers}
                self._store.do("put_vector", row)

    def _numbers(self, text: str) -> bytes:
        """A text's vector as it is stored; an empty one for a text that the model can make nothing of."""
        try:
            numbers = numbers_of(_length_one(self.embedder.passage(text)))
        except Exception:
            self._refused += 1
            if self._refused > PATIENCE:
                raise
            return b""
        self._refused = 0
        return numbers

    def _unembedded(self, scope: str, model: str, after: int) -> Iterator[list[Row]]:
        last = after
        while rows := self._store.rows("unembedded", {"scope": scope, "model": model, "id": last, "limit": BATCH}):
            last = rows[-1]["id"]
            yield rows


def _length_one(vector: Vector) -> Vector:
    length = sum(float(number) ** 2 for number in vector) ** 0.5
    if not length < float("inf") or length == 0.0:
        raise ValueError(f"a vector of {len(vector)} numbers has no direction")
    return [float(number) / length for number in vector]
