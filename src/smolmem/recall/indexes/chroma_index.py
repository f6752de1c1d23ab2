"""Chroma as the vector index: a folder, or a server that several machines share."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from smolmem.core.telemetry import quiet_chromadb

Array = Any  # a NumPy array

_PROCESS = os.getpid()
"""The process that imported Chroma."""
PAGE = 5_000
"""Keys that are read or dropped at a time: Chroma limits a batch to 5,461 entries."""


class ChromaIndex:
    """One collection; keys are texts there."""

    def __init__(self, path: Path | None, server: str | None, name: str) -> None:
        if os.getpid() != _PROCESS:
            raise RuntimeError("Chroma does not work in a forked process: start processes with the method 'spawn'")
        chromadb = quiet_chromadb()
        settings = chromadb.Settings(anonymized_telemetry=False)
        if server is None:
            self._client = chromadb.PersistentClient(str(path), settings)
        else:
            at = urlsplit(server)
            port = at.port or (443 if at.scheme == "https" else 8000)
            self._client = chromadb.HttpClient(at.hostname, port, ssl=at.scheme == "https", settings=settings)
        shape: Any = {"hnsw": {"space": "cosine"}}
        self._collection = self._client.get_or_create_collection(name, embedding_function=None, configuration=shape)

    def add(self, keys: Sequence[int], vectors: Array, scopes: Sequence[str]) -> None:
        """Adds vectors, with their scopes as metadata."""
        scoped: Any = [{"scope": scope} for scope in scopes]
        self._collection.upsert(ids=[str(key) for key in keys], embeddings=vectors, metadatas=scoped)

    def drop(self, keys: Collection[int]) -> None:
        """Removes vectors."""
        names = [str(key) for key in keys]
        for start in range(0, len(names), PAGE):
            self._collection.delete(ids=names[start : start + PAGE])

    def nearest(self, vector: Array, limit: int, scope: str) -> list[int]:
        """The nearest vectors of a scope, as Chroma's graph finds them."""
        found = self._collection.query(
            query_embeddings=[vector], n_results=limit, where={"scope": scope}, include=["distances"]
        )
        return [int(key) for key in found["ids"][0]]

    def keys(self) -> set[int]:
        """The keys of all vectors."""
        found: set[int] = set()
        for start in range(0, self.count() + PAGE, PAGE):
            found |= {int(key) for key in self._collection.get(include=[], limit=PAGE, offset=start)["ids"]}
        return found

    def count(self) -> int:
        """How many vectors there are."""
        return int(self._collection.count())

    def save(self, *, erased: bool = False) -> None:
        """Chroma has written everything."""

    def close(self) -> None:
        """Closes the client; the next one reads what other processes have written."""
        self._client.close()
