"""FAISS as the vector index: exact search in the RAM of each process, and a file that is written as a whole.

FAISS knows numbers and no scopes, so the scopes are kept beside it. A file that is missing, damaged or of another shape
is made again from the store.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from smolmem.store.sqlite.private_files import create_open, make_folder

log = logging.getLogger("smolmem")

Array = Any  # a NumPy array


class FaissIndex:
    """One flat FAISS index for each scope.

    Args:
        path: a folder for the file of this index; None for RAM alone.
        name: the name of the index.
        size: how many numbers a vector has.
    """

    def __init__(self, path: Path | None, name: str, size: int) -> None:
        self._size = size
        self._file = None if path is None else path / f"{name}.npz"
        self._scopes: dict[str, Any] = defaultdict(self._empty)
        self._scope_of: dict[int, str] = {}
        self._changed = False
        self._load()

    def _empty(self) -> Any:
        return faiss.IndexIDMap2(faiss.IndexFlatIP(self._size))

    def add(self, keys: Sequence[int], vectors: Array, scopes: Sequence[str]) -> None:
        """Adds vectors to the indexes of their scopes."""
        self.drop(keys)
        places: dict[str, list[int]] = defaultdict(list)
        for place, scope in enumerate(scopes):
            places[scope].append(place)
        for scope, several in places.items():
            numbers = np.ascontiguousarray(vectors[several], np.float32)
            self._scopes[scope].add_with_ids(numbers, np.array([keys[place] for place in several], np.int64))
        self._scope_of |= dict(zip(keys, scopes, strict=True))
        self._changed = True

    def drop(self, keys: Collection[int]) -> None:
        """Removes vectors from the indexes of their scopes."""
        gone: dict[str, list[int]] = defaultdict(list)
        for key in keys:
            if key in self._scope_of:
                gone[self._scope_of.pop(key)].append(key)
        for scope, several in gone.items():
            self._scopes[scope].remove_ids(np.array(several, np.int64))
        self._changed |= bool(gone)

    def nearest(self, vector: Array, limit: int, scope: str) -> list[int]:
        """The nearest vectors of a scope."""
        count = min(limit, self._scopes[scope].ntotal)
        if not count:
            return []
        _, keys = self._scopes[scope].search(np.ascontiguousarray(vector, np.float32)[None], count)
        return [int(key) for key in keys[0] if key >= 0]

    def keys(self) -> set[int]:
        """The keys of all vectors."""
        return set(self._scope_of)

    def count(self) -> int:
        """How many vectors there are."""
        return len(self._scope_of)

    def save(self, *, erased: bool = False) -> None:
        """Writes the file beside the old one, and puts it in its place."""
        if self._file is None or not self._changed:
            return
        parts = {scope: faiss.serialize_index(index) for scope, index in self._scopes.items() if index.ntotal}
        if not self._file.parent.exists():
            self._file.parent.parent.mkdir(parents=True, exist_ok=True)
            make_folder(self._file.parent)
        new = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        new.unlink(missing_ok=True)
        with create_open(new) as file:
            np.savez(file, **parts)
        new.replace(self._file)
        self._changed = False

    def _load(self) -> None:
        if self._file is None or not self._file.exists():
            return
        try:
            with self._file.open("rb") as file, np.load(file, allow_pickle=False) as parts:
                found: dict[str, Any] = {str(name): faiss.deserialize_index(parts[name]) for name in parts.files}
            if any(index.d != self._size for index in found.values()):
                raise ValueError("its vectors have another length")
        except Exception as error:  # whatever is wrong with it, the store has the vectors
            log.warning("smolmem cannot read %s, and rebuilds it from the store: %s", self._file, error)
            return
        for scope, index in found.items():
            self._scopes[scope] = index
            self._scope_of |= {int(key): scope for key in faiss.vector_to_array(index.id_map)}

    def close(self) -> None:
        """Frees the memory."""
        self._scopes.clear()
        self._scope_of.clear()


def _after_fork_in_child() -> None:
    """The threads of FAISS are the parent's: a search with several threads would wait for them for ever."""
    faiss.omp_set_num_threads(1)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork_in_child)
