"""Semantic search: the vectors of a store, and the embedder that made them.

Recall embeds the question and nothing else: passages get their vectors from the indexer. If the model fails or its
server is down, recall continues with words alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from smolmem.core.errors import EmbedderFailed
from smolmem.core.fork_lock import ForkLock
from smolmem.recall.embedding.checked_embedder import CheckedEmbedder
from smolmem.recall.embedding.embedders import Vector
from smolmem.recall.filters import Filter
from smolmem.recall.indexes.external_index import ExternalIndex
from smolmem.recall.vectors import Index, Where, cosines
from smolmem.store.base import Store
from smolmem.store.passage_rows import documents_of, json_list


class Hit(NamedTuple):
    """A passage that is near to a question, and how near its document is."""

    passage: int
    document: int
    cosine: float
    """How near the vector of the passage is to that of the question."""
    whole: float
    """How near the vector of the document's first passage is, which is about the whole document."""


class SemanticSearch:
    """Finds the passages whose vectors are nearest to that of a question."""

    def __init__(self, store: Store, embedder: CheckedEmbedder, external: ExternalIndex | None = None) -> None:
        self._store = store
        self.embedder = embedder
        self._external = external
        self._model: str | None = None
        self._indexes: dict[tuple[str, str], Index] = {}
        self._questions: dict[str, Vector] = {}
        self._lock = ForkLock(self._indexes.clear)

    def nearest(self, question: str, limit: int, filters: Filter) -> list[Hit]:
        """The passages nearest to a question, the nearest first; none if the model does not answer."""
        vector = self._vector(question)
        if vector is None:
            return []
        with self._lock:
            found = [hit for scope in self._scopes(filters) for hit in self._search(scope, vector, limit, filters)]
        return sorted(found, key=lambda hit: -hit.cosine)[:limit]

    @property
    def is_behind(self) -> bool:
        """Whether an index outside of the store lacks vectors of the store."""
        model = self._model
        return model is not None and self._external is not None and self._external.is_behind(self._store, model)

    def lacks_vectors(self, documents: Iterable[int]) -> bool:
        """Whether a passage of these documents has no vector yet."""
        asked = {"model": self._model, "ids": json_list(documents)}
        return self._model is not None and bool(self._store.do("any_unembedded", asked))

    def keep(self, questions: tuple[str, ...]) -> None:
        """Embeds questions that will be asked again, if the model answers."""
        for question in questions:
            if question not in self._questions:
                vector = self._vector(question)
                if vector is None:
                    return
                self._questions[question] = vector

    def _vector(self, question: str) -> Vector | None:
        if question in self._questions:
            return self._questions[question]
        try:
            vector = self.embedder.query(question)
        except EmbedderFailed:
            return None
        return vector if len(vector) else None

    def _scopes(self, filters: Filter) -> list[str]:
        if filters.scope is not None and filters.below is None:
            return [filters.scope]
        return [row["scope"] for row in self._store.rows("scopes", {"scope": filters.scope, "below": filters.below})]

    def _search(self, scope: str, vector: Vector, limit: int, filters: Filter) -> list[Hit]:
        model = self._model = model_key(self.embedder.model, len(vector))
        excluded = {"session": [filters.excluded_session] if filters.excluded_session else []}
        excluded["role"] = list(filters.excluded_kinds)
        where = None if filters.is_open else Where(filters.columns, excluded, filters.since, filters.until)
        if self._external is not None:
            near = self._external.search(self._store, model, scope, vector, limit, where)
            return self._hits(near, self._documents_of(near), vector)
        index = self._indexes.setdefault((scope, model), Index(scope, model, len(vector)))
        index.update(self._store)
        while True:
            near = index.search(vector, limit, where)
            documents = self._documents_of(near)
            if len(documents) == len(near):
                return self._hits(near, documents, vector)
            index.drop({passage for passage, _ in near} - documents.keys())

    def _documents_of(self, near: Iterable[tuple[int, float]]) -> dict[int, int]:
        """The documents of those passages that still exist."""
        return documents_of(self._store, (passage for passage, _ in near))

    def _hits(self, near: Sequence[tuple[int, float]], documents: Mapping[int, int], vector: Vector) -> list[Hit]:
        """The passages that still exist; a document whose first passage has no vector is as near as its passage."""
        wholes = dict(near) | self._cosines(set(documents.values()) - documents.keys(), vector)
        return [
            Hit(passage, documents[passage], cosine, wholes.get(documents[passage], cosine))
            for passage, cosine in near
            if passage in documents
        ]

    def _cosines(self, passages: Iterable[int], vector: Vector) -> dict[int, float]:
        """How near some passages are; those without a vector are left out."""
        found = self._store.rows("vectors_of", {"ids": json_list(passages), "model": self._model})
        rows = [row for row in found if len(row["numbers"]) == 2 * len(vector)]
        if not rows:
            return {}
        scores = cosines([row["numbers"] for row in rows], np.asarray(vector, np.float32))
        return {int(row["passage"]): float(score) for row, score in zip(rows, scores, strict=True)}


def model_key(model: str, size: int) -> str:
    """The name that vectors are stored under: vectors of another model or length are never compared."""
    return f"{model}/{size}"
