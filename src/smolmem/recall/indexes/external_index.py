"""Keeps a vector index outside of the store in step with the store, and searches it.

The store has every vector, so the index is a copy. The key of a vector is the id of its passage and a checksum of its
numbers: comparing keys shows what the index lacks and what it has too much, also after a backup was restored. The
indexer copies new vectors and removes dropped ones, in one process at a time. Each search updates an index in RAM.

A search takes candidates from the index and everything else from the store: whether a passage still exists, whether the
filters admit it, and its score. So an outdated index can miss a passage, and never returns a wrong one. If the index
fails, recall continues with words alone; that is logged once.
"""

from __future__ import annotations

import hashlib
import logging
import time
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from smolmem.core.errors import InvalidArgument
from smolmem.core.fork_lock import ForkLock
from smolmem.recall.indexes.vector_index import Opener, VectorIndex, locate, opener, without_password
from smolmem.recall.vectors import FACTS, Where, cosines, floats_of
from smolmem.store.base import Store
from smolmem.store.contents import fingerprint_key
from smolmem.store.passage_rows import json_list, scope_term

log = logging.getLogger("smolmem")

T = TypeVar("T")
Hit = tuple[int, float]
Report = Callable[[int, int], object]
"""Called now and then with how much is done and how much there is."""
BATCH = 1_000
"""Vectors that are read and added at a time."""
MAX_CANDIDATES = 20_000
"""Candidates that a search with filters asks an index for at most."""
PAUSE_SECONDS = 10.0
"""How long no search asks an index that failed."""
_PASSAGE_BITS = 32
_inherited: list[Any] = []


class ExternalIndex:
    """The vectors of a store in an index outside of it."""

    def __init__(self, url: str, store: Store) -> None:
        self.url = without_password(url)
        self._location = locate(url)
        if store.encrypted and self._location.leaves_process:
            raise InvalidArgument(
                f"{store.url} is encrypted, and vectors in {self.url} would not be: "
                "use vectors='faiss', which stays in RAM."
            )
        self._prefix = f"smolmem-{hashlib.blake2b(fingerprint_key(store), digest_size=6).hexdigest()}"
        self._opener: Opener | None = None
        self._mirrors: dict[str, _Mirror] = {}
        self._lock = ForkLock(self._set_aside)
        self._failed = False
        self._ask_after = 0.0
        self._unfinished: set[str] = set()
        self._closed = False

    @property
    def in_process(self) -> bool:
        """Whether each process has its own copy in RAM, which its searches update."""
        return self._location.in_process

    def search(self, store: Store, model: str, scope: str, vector: Any, limit: int, where: Where | None) -> list[Hit]:
        """The nearest passages of a scope, the nearest first; none while the index does not answer."""
        if self._failed and time.monotonic() < self._ask_after:
            return []

        def find() -> list[Hit]:
            mirror = self._mirror(model)
            if self.in_process and mirror.is_behind(store):
                for _ in mirror.update(store):
                    pass
            return mirror.search(store, scope, np.asarray(vector, np.float32), limit, where)

        return self._attempt(lambda: self._twice(find)) or []

    def _twice(self, find: Callable[[], T]) -> T:
        """Searches again with the index opened anew: Chroma fails after another process has written to its folder."""
        try:
            return find()
        except Exception:
            self._close()
            return find()

    def is_behind(self, store: Store, model: str) -> bool:
        """Whether the store has vectors that this process has not seen in the index."""
        with self._lock:
            mirror = self._mirrors.get(model)
        return not self.in_process and (mirror is None or mirror.is_behind(store))

    def sync(
        self, store: Store, models: Collection[str], *, erased: bool = False, report: Report | None = None
    ) -> bool:
        """Brings the index in step with the store; false if the index does not answer.

        Args:
            store: the store.
            models: whose vectors.
            erased: vectors were erased: compare all keys, and let the index remove old files.
            report: called after each batch.
        """
        wanted = {*models, *self._unfinished}
        self._unfinished = {model for model in wanted if not self._sync_model(store, model, erased, report)}
        return not self._unfinished

    def _sync_model(self, store: Store, model: str, erased: bool, report: Report | None) -> bool:
        """Works batch by batch, so that searches need not wait for all of them."""

        def steps() -> Iterator[bool]:
            mirror = self._mirror(model)
            yield from mirror.update(store, compare=erased, report=report)
            mirror.index.save(erased=erased)

        work = steps()
        more: bool | None = True
        while more and not self._closed:
            more = self._attempt(lambda: next(work, False))
        return more is False

    def _mirror(self, model: str) -> _Mirror:
        if model not in self._mirrors:
            self._opener = self._opener or opener(self._location)
            size = int(model.rpartition("/")[2])
            name = f"{self._prefix}-{hashlib.blake2b(model.encode(), digest_size=6).hexdigest()}"
            self._mirrors[model] = _Mirror(self._opener(name, size), model)
        return self._mirrors[model]

    def _attempt(self, work: Callable[[], T]) -> T | None:
        """Does something with the index; the first failure in a row is logged, and the index is opened anew."""
        with self._lock:
            try:
                done = work()
            except Exception as error:  # each engine has errors of its own
                if not self._failed:
                    what = f"{self.url} failed ({type(error).__name__}: {str(error)[:300]})"
                    log.warning("smolmem recalls by words alone: %s. It is tried again, and nothing is lost.", what)
                self._failed, self._ask_after = True, time.monotonic() + PAUSE_SECONDS
                self._close()
                return None
            self._failed = False
            return done

    def _set_aside(self) -> None:
        """Clients of a parent process have threads and sockets that a child must neither use nor close."""
        _inherited.append((self._mirrors, self._opener))
        self._mirrors, self._opener = {}, None

    def close(self) -> None:
        """Closes the index, and ends copying to it; what searches added to a copy in RAM is saved."""
        self._closed = True
        if self.in_process:
            self._attempt(self._save)
        with self._lock:
            self._close()

    def _save(self) -> None:
        for mirror in self._mirrors.values():
            mirror.index.save()

    def _close(self) -> None:
        for mirror in self._mirrors.values():
            with suppress(Exception):  # it is opened anew when it is needed
                mirror.index.close()
        self._mirrors.clear()


class _Mirror:
    """One index of one model, and how much of the store it has taken in."""

    def __init__(self, index: VectorIndex, model: str) -> None:
        self.index, self._model = index, model
        self._newest: int | None = None
        self._count = 0

    def is_behind(self, store: Store) -> bool:
        """Whether the store has newer vectors."""
        return self._newest != int(store.do("newest_vector", {}))

    def update(self, store: Store, *, compare: bool = False, report: Report | None = None) -> Iterator[bool]:
        """Adds new vectors, one batch each time. All keys are compared at first, and whenever the counts differ."""
        newest = int(store.do("newest_vector", {}))
        if self._newest is None or compare or self.index.count() != self._count:
            yield from self._compare(store, report)
        else:
            for rows in self._batches(store, self._newest):
                self._add(store, rows)
                yield True
        self._count = self.index.count()
        self._newest = newest

    def _compare(self, store: Store, report: Report | None) -> Iterator[bool]:
        known = self.index.keys()  # before the store is read: what is added meanwhile is not taken for outdated
        total, seen = int(store.do("last_passage", {})), 0
        current: set[int] = set()
        for rows in self._batches(store, 0):
            current |= rows.keys()
            self._add(store, {key: row for key, row in rows.items() if key not in known})
            seen += len(rows)
            if report is not None:
                report(min(seen, total), total)
            yield True
        if outdated := known - current:
            self.index.drop(outdated)

    def _batches(self, store: Store, after: int) -> Iterator[dict[int, tuple[str, bytes]]]:
        """The vectors of the store from a row on: key → scope and numbers."""
        while rows := store.rows("vectors_after", {"id": after, "model": self._model, "limit": BATCH}):
            after = rows[-1]["id"]
            yield {
                key_of(row["passage"], row["numbers"]): (row["scope"], row["numbers"]) for row in rows if row["numbers"]
            }

    def _add(self, store: Store, rows: dict[int, tuple[str, bytes]]) -> None:
        """Adds vectors, then removes those whose passage was dropped meanwhile: another process may have erased it."""
        if not rows:
            return
        numbers = floats_of(b"".join(numbers for _, numbers in rows.values()), len(rows))
        self.index.add(list(rows), numbers, [scope_term(scope) for scope, _ in rows.values()])
        there = {row["id"] for row in store.rows("there", {"ids": json_list(map(passage_of, rows))})}
        if gone := [key for key in rows if passage_of(key) not in there]:
            self.index.drop(gone)

    def search(self, store: Store, scope: str, vector: Any, limit: int, where: Where | None) -> list[Hit]:
        """The nearest passages that the store confirms; more candidates are taken until there are enough."""
        asked = limit
        while True:
            keys = self.index.nearest(vector, asked, scope_term(scope))
            found = self._confirmed(store, keys, scope, vector, where)
            if len(found) >= limit or len(keys) < asked or asked >= MAX_CANDIDATES:
                return list(islice(sorted(found, key=lambda hit: -hit[1]), limit))
            asked = min(4 * asked, MAX_CANDIDATES)

    def _confirmed(self, store: Store, keys: list[int], scope: str, vector: Any, where: Where | None) -> list[Hit]:
        found = store.rows("vectors_of", {"ids": json_list(map(passage_of, keys)), "model": self._model})
        rows = {key_of(row["passage"], row["numbers"]): row for row in found if row["scope"] == scope}
        if outdated := [key for key in keys if key not in rows]:
            self.index.drop(outdated)
            self._count = self.index.count()
        current = [rows[key] for key in keys if key in rows]
        if not current:
            return []
        allowed: Any = np.ones(len(current), bool)
        if where is not None:
            allowed = where.mask(np.frombuffer(b"".join(row["facts"] for row in current), FACTS))
        pairs = zip(current, cosines([row["numbers"] for row in current], vector), allowed, strict=True)
        return [(int(row["passage"]), float(score)) for row, score, is_allowed in pairs if is_allowed]


def key_of(passage: int, numbers: bytes) -> int:
    """The key of a vector: a positive number of 63 bits."""
    return (zlib.crc32(numbers) >> 1) << _PASSAGE_BITS | passage


def passage_of(key: int) -> int:
    """The passage that a key belongs to."""
    return key & (1 << _PASSAGE_BITS) - 1
