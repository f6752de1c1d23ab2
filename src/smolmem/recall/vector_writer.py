"""Gives passages their vectors, in batches, outside of any search.

The newest passages come first, and of these the ones that tell most: tasks, answers, errors, plans and thoughts before
code and observations. Of a very long text only the beginning gets vectors; its middle is found by words.
"""

from __future__ import annotations

import logging

from smolmem.recall.embedders import Embedder, normalised
from smolmem.recall.semantic import model_key
from smolmem.recall.vectors import facts_of, numbers_of
from smolmem.store.base import Row, Store

log = logging.getLogger("smolmem")

BATCH = 32
"""Passages that are embedded and written together."""
PAGE = 8 * BATCH
"""Passages that are ordered by what they tell."""
MAX_REFUSALS = 5
"""Texts in a row that a model may refuse before it is taken to be down."""
LONG = ("code", "call", "observation", "other")
MAX_PASSAGES = 12
"""Passages of one step that get vectors, of the kinds that can be very long."""


class VectorWriter:
    """Embeds the passages of a store."""

    def __init__(self, store: Store, embedder: Embedder) -> None:
        self._store = store
        self._embedder = embedder
        self._model: str | None = None
        self._done_up_to = 0
        self._refused = 0

    def count(self) -> int:
        """How many passages have no vector."""
        return int(self._store.do("count_unembedded", {"model": self._key()}))

    def write_some(self) -> int:
        """Embeds the next passages; returns how many, 0 if all have vectors.

        Raises:
            Exception: whatever the model raised, once it refused several texts in a row.
        """
        last = int(self._store.do("last_passage", {}))
        asked = {"model": self._key(), "above": self._done_up_to, "last": last, "limit": PAGE}
        rows = self._store.rows("unembedded", asked)
        if not rows:
            self._done_up_to = last
            return 0
        rows.sort(key=lambda row: (row["role"] in LONG, -row["id"]))
        for start in range(0, len(rows), BATCH):
            self._write(rows[start : start + BATCH])
        return len(rows)

    def _key(self) -> str:
        if self._model is None:
            self._model = model_key(self._embedder, self._embedder.query("how long is a vector?"))
        return self._model

    def _write(self, batch: list[Row]) -> None:
        told = [row for row in batch if row["role"] not in LONG or row["id"] - row["document"] < MAX_PASSAGES]
        numbers = dict(zip((row["id"] for row in told), self._embed([row["text"] for row in told]), strict=True))
        with self._store.write(sync=False):
            for row in batch:
                made = {"passage": row["id"], "model": self._key(), "facts": facts_of(row)}
                self._store.do("put_vector", made | {"numbers": numbers.get(row["id"], b"")})

    def _embed(self, texts: list[str]) -> list[bytes]:
        """The vectors of some texts as they are stored; empty for a text that the model refuses."""
        if not texts:
            return []
        try:
            vectors = self._embedder.passages(texts)
            if len(vectors) != len(texts):
                raise ValueError(f"{len(texts)} texts gave {len(vectors)} vectors")
            made = [numbers_of(normalised(vector)) for vector in vectors]
        except Exception:
            if len(texts) > 1:  # one of them may be what the model refuses
                half = len(texts) // 2
                return self._embed(texts[:half]) + self._embed(texts[half:])
            self._refused += 1
            if self._refused > MAX_REFUSALS:
                raise
            return [b""]
        self._refused = 0
        return made
