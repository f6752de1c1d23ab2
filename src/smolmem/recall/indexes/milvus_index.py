"""Milvus Lite as the vector index: a folder that one process at a time can open."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pymilvus import DataType, MilvusClient

Array = Any  # a NumPy array

_PROCESS = os.getpid()
"""The process that imported Milvus."""
PAGE = 10_000
"""Keys that are dropped at a time."""
MOST_RESULTS = 16_384
"""Results of one search: Milvus refuses more."""


class MilvusIndex:
    """One collection; search compares every row of the scope."""

    def __init__(self, path: Path | None, name: str, size: int) -> None:
        if os.getpid() != _PROCESS:
            raise RuntimeError("Milvus does not work in a forked process: start processes with the method 'spawn'")
        self._name = name.replace("-", "_")
        self._client = MilvusClient(f"{path}/milvus.db")
        if not self._client.has_collection(self._name):
            shape = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
            shape.add_field("key", DataType.INT64, is_primary=True)
            shape.add_field("scope", DataType.VARCHAR, max_length=64)
            shape.add_field("vector", DataType.FLOAT_VECTOR, dim=size)
            index = self._client.prepare_index_params()
            index.add_index("vector", index_type="FLAT", metric_type="COSINE")
            self._client.create_collection(self._name, schema=shape, index_params=index)

    def add(self, keys: Sequence[int], vectors: Array, scopes: Sequence[str]) -> None:
        """Adds rows, or replaces those of the same key."""
        rows = zip(keys, scopes, vectors, strict=True)
        new = [{"key": key, "scope": scope, "vector": vector} for key, scope, vector in rows]
        self._client.upsert(self._name, new)

    def drop(self, keys: Collection[int]) -> None:
        """Removes rows."""
        listed = [int(key) for key in keys]
        for start in range(0, len(listed), PAGE):
            self._client.delete(self._name, ids=listed[start : start + PAGE])

    def nearest(self, vector: Array, limit: int, scope: str) -> list[int]:
        """The nearest rows of a scope; `scope` is a hash in hexadecimal digits."""
        found = self._client.search(
            self._name,
            data=[vector],
            limit=min(limit, MOST_RESULTS),
            filter=f'scope == "{scope}"',
            output_fields=["key"],
        )
        return [int(row["key"]) for row in found[0]]

    def keys(self) -> set[int]:
        """The keys of all rows."""
        rows = self._client.query(self._name, filter="", output_fields=["key"], limit=self.count() or 1)
        return {int(row["key"]) for row in rows}

    def count(self) -> int:
        """How many rows there are."""
        return int(self._client.query(self._name, output_fields=["count(*)"])[0]["count(*)"])

    def save(self, *, erased: bool = False) -> None:
        """Milvus has written everything."""

    def close(self) -> None:
        """Closes the client, so that another process can open the folder."""
        self._client.close()
