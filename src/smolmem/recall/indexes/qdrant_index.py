"""Qdrant as the vector index: a server, or a folder that one process at a time can open."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from qdrant_client import QdrantClient, models

Array = Any  # a NumPy array

PAGE = 10_000
"""Keys that are read or dropped at a time."""


class QdrantIndex:
    """One collection; keys are Qdrant's ids."""

    def __init__(self, path: Path | None, server: str | None, name: str, size: int) -> None:
        self._name = name
        self._client = QdrantClient(path=str(path)) if server is None else QdrantClient(url=server)
        if not self._client.collection_exists(name):
            shape = models.VectorParams(size=size, distance=models.Distance.COSINE)
            self._client.create_collection(name, vectors_config=shape)
            if server is not None:  # a folder is searched row by row, and ignores indexes
                self._client.create_payload_index(name, "scope", models.PayloadSchemaType.KEYWORD)

    def add(self, keys: Sequence[int], vectors: Array, scopes: Sequence[str]) -> None:
        """Adds vectors, with their scopes as payload."""
        scoped: Any = [{"scope": scope} for scope in scopes]
        self._client.upsert(self._name, models.Batch(ids=list(keys), vectors=vectors.tolist(), payloads=scoped))

    def drop(self, keys: Collection[int]) -> None:
        """Removes vectors."""
        listed: list[Any] = list(keys)
        for start in range(0, len(listed), PAGE):
            self._client.delete(self._name, models.PointIdsList(points=listed[start : start + PAGE]))

    def nearest(self, vector: Array, limit: int, scope: str) -> list[int]:
        """The nearest vectors of a scope."""
        of_scope = models.FieldCondition(key="scope", match=models.MatchValue(value=scope))
        found = self._client.query_points(
            self._name,
            query=vector.tolist(),
            limit=limit,
            query_filter=models.Filter(must=[of_scope]),
            with_payload=False,
        )
        return [int(point.id) for point in found.points]

    def keys(self) -> set[int]:
        """The keys of all vectors."""
        found: set[int] = set()
        offset: Any = None
        while True:
            points, offset = self._client.scroll(self._name, limit=PAGE, offset=offset, with_payload=False)
            found |= {int(point.id) for point in points}
            if offset is None:
                return found

    def count(self) -> int:
        """How many vectors there are."""
        return int(self._client.count(self._name).count)

    def save(self, *, erased: bool = False) -> None:
        """Qdrant has written everything."""

    def close(self) -> None:
        """Closes the client, so that another process can open the folder."""
        self._client.close()
