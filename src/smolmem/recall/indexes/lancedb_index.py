"""LanceDB as the vector index: a folder of column files that several processes can open."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa

Array = Any  # a NumPy array

_PROCESS = os.getpid()
"""The process that imported LanceDB."""
PAGE = 5_000
"""Keys that are dropped by one statement."""
KEPT_VERSIONS = timedelta(minutes=5)
"""How long the previous versions of the files are kept for others who read them."""


class LanceIndex:
    """One table; search compares every row of the scope."""

    def __init__(self, path: Path | None, name: str, size: int) -> None:
        if os.getpid() != _PROCESS:
            raise RuntimeError("LanceDB does not work in a forked process: start processes with the method 'spawn'")
        self._size, self._name = size, name
        self._database = lancedb.connect(str(path))
        fields: list[Any] = [("key", pa.int64()), ("scope", pa.string()), ("vector", pa.list_(pa.float32(), size))]
        self._table = self._database.create_table(name, schema=pa.schema(fields), exist_ok=True)

    def add(self, keys: Sequence[int], vectors: Array, scopes: Sequence[str]) -> None:
        """Adds rows, or replaces those of the same key."""
        rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self._size)
        new = pa.table({"key": pa.array(keys, pa.int64()), "scope": list(scopes), "vector": rows})
        merge = self._table.merge_insert("key").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(new)

    def drop(self, keys: Collection[int]) -> None:
        """Removes rows."""
        listed = [int(key) for key in keys]
        for start in range(0, len(listed), PAGE):
            self._table.delete(f"key IN ({', '.join(map(str, listed[start : start + PAGE]))})")

    def nearest(self, vector: Array, limit: int, scope: str) -> list[int]:
        """The nearest rows of a scope; `scope` is a hash in hexadecimal digits."""
        self._table.checkout_latest()
        search = self._table.search(vector).distance_type("cosine").where(f"scope = '{scope}'", prefilter=True)
        return [int(key) for key in search.select(["key", "_distance"]).limit(limit).to_arrow()["key"].to_pylist()]

    def keys(self) -> set[int]:
        """The keys of all rows."""
        self._table.checkout_latest()
        rows = self._table.search().select(["key"]).limit(self.count() or 1).to_arrow()
        return {int(key) for key in rows["key"].to_pylist()}

    def count(self) -> int:
        """How many rows there are."""
        return int(self._table.count_rows())

    def save(self, *, erased: bool = False) -> None:
        """Merges small files, and removes old ones; after an erase all is written anew, without dropped rows."""
        if erased:
            self._table = self._database.create_table(self._name, self._table.to_arrow(), mode="overwrite")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a reader of an old version fails once, and is asked again
            self._table.optimize(cleanup_older_than=timedelta(0) if erased else KEPT_VERSIONS)

    def close(self) -> None:
        """LanceDB holds no open files."""
