"""Semantic search: passages are embedded before they are searched, and their vectors kept in the store.

Writing a step does not wait for a model. Before a search, passages without a vector of this model get one. If the model
fails or its server is down, recall continues with words alone, and logs that once.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator

from rich.console import Console
from rich.progress import Progress

from smolmem.recall.embedders import Embedder, Vector
from smolmem.recall.filters import Filter
from smolmem.recall.vectors import Index, Where, facts_of, numbers_of
from smolmem.store.base import Row, Store
from smolmem.store.passage_rows import json_list

log = logging.getLogger("smolmem")

BATCH = 64
MAX_REFUSALS = 5
"""Texts in a row that a model may refuse before it is taken to be down."""
SHOW_PROGRESS = 200
"""Passages that are embedded without a progress bar."""


class SemanticSearch:
    """The vectors of a store and the embedder that makes them."""

    def __init__(self, store: Store, embedder: Embedder) -> None:
        self._store = store
        self.embedder = embedder
        self._indexes: dict[tuple[str, str], Index] = {}
        self._lock = threading.Lock()
        self._failing = False
        self._refused = 0

    def nearest(self, question: str, limit: int, filters: Filter) -> list[tuple[int, float]]:
        """The passages nearest to a question; none if the model does not answer."""
        try:
            vector = _normalised(self.embedder.query(question))
            with self._lock:
                found = [hit for scope in self._scopes(filters) for hit in self._search(scope, vector, limit, filters)]
        except Exception as error:
            if not self._failing:
                self._failing = True
                log.warning(
                    "smolmem recalls by words alone: the embedder %s failed (%s: %s).",
                    self.embedder.model,
                    type(error).__name__,
                    error,
                )
            return []
        self._failing = False
        return sorted(found, key=lambda hit: -hit[1])[:limit]

    def _scopes(self, filters: Filter) -> list[str]:
        if filters.scope is not None and filters.below is None:
            return [filters.scope]
        return [row["scope"] for row in self._store.rows("scopes", {"scope": filters.scope, "below": filters.below})]

    def _search(self, scope: str, vector: Vector, limit: int, filters: Filter) -> list[tuple[int, float]]:
        index = self._index(scope, len(vector))
        excluded = {"session": [filters.excluded_session] if filters.excluded_session else []}
        excluded["role"] = list(filters.excluded_kinds)
        where = None if filters.is_open else Where(filters.columns, excluded, filters.since, filters.until)
        while True:
            found = index.search(vector, limit, where)
            there = {
                row["id"] for row in self._store.rows("there", {"ids": json_list(passage for passage, _ in found)})
            }
            gone = [passage for passage, _ in found if passage not in there]
            if not gone:
                return found
            index.drop(gone)

    def _index(self, scope: str, size: int) -> Index:
        """The index of a scope, up to date."""
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
        """Embeds each passage that has no vector; returns how many there were."""
        done, bar = 0, None
        try:
            for batch in self._without_vectors(scope, model, after):
                if done >= SHOW_PROGRESS and bar is None:
                    left = self._store.do("count_unembedded", {"scope": scope, "model": model, "id": after})
                    bar = Progress(console=Console(file=sys.stderr), transient=True, disable=not sys.stderr.isatty())
                    bar.add_task("smolmem embeds new passages", total=done + left, completed=done)
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
        made = [(passage, self._numbers(passage["text"])) for passage in batch]
        with self._store.write(sync=False):
            for passage, numbers in made:
                row = {"unit": passage["id"], "model": model, "facts": facts_of(passage), "numbers": numbers}
                self._store.do("put_vector", row)

    def _numbers(self, text: str) -> bytes:
        """A text's vector as it is stored; empty for a text that the model refuses."""
        try:
            numbers = numbers_of(_normalised(self.embedder.passage(text)))
        except Exception:
            self._refused += 1
            if self._refused > MAX_REFUSALS:
                raise
            return b""
        self._refused = 0
        return numbers

    def _without_vectors(self, scope: str, model: str, after: int) -> Iterator[list[Row]]:
        last = after
        while rows := self._store.rows("unembedded", {"scope": scope, "model": model, "id": last, "limit": BATCH}):
            last = rows[-1]["id"]
            yield rows


def _normalised(vector: Vector) -> Vector:
    length = sum(float(number) ** 2 for number in vector) ** 0.5
    if not length < float("inf") or length == 0.0:
        raise ValueError(f"a vector of {len(vector)} numbers has no direction")
    return [float(number) / length for number in vector]
