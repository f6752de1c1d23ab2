"""Vectors: rows of the store, searched in memory, exactly enough and quickly.

Each number of a vector becomes one bit: is it above the average of its column? Counting the bits in which two vectors
differ is thirty times less work than multiplying them, so all are compared by bits, and the nearest few thousand by
their numbers. Measured on 100,000 real paragraphs, that finds 99 of 100 of the true ten nearest; see bench/README.md.

There is one index per scope, so nothing of another scope can be found by mistake, and searching one costs nothing for
the others. It is filled from the store when it is first used, and takes in what other processes add. What is dropped
there is noticed when it is looked up, and the search is made again without it.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from smolmem.store.base import Row, Store

CANDIDATES = 2_000
"""How many of the nearest by bits are compared by their numbers; one more for every two hundred rows."""
_ROWS = 32_768
"""Rows that are compared at a time: they fit a core's cache."""
_PIECE = 512
_SCALE = 32_767
_FEW = 256
"""Vectors of fewer numbers have too few bits to go by, and are short enough to be compared as they are."""

_WORDS = ("session", "run", "agent", "role", "trust")
FACTS = np.dtype([*((word, "<u4") for word in _WORDS), ("at", "<f8")])
"""The columns of a passage that a search can filter by; words as checksums, which the row confirms."""

Array = Any  # a NumPy array


def facts_of(passage: Row) -> bytes:
    """The columns that are kept beside the vector of a passage."""
    words = (checksum(passage[name]) for name in _WORDS)
    return bytes(np.array((*words, passage["at"]), FACTS).tobytes())


def checksum(word: str | None) -> int:
    """A word as a number."""
    return zlib.crc32((word or "").encode("utf-8", "surrogatepass"))


def numbers_of(vector: Sequence[float] | Array) -> bytes:
    """A vector of length one as it is stored: 15 bits a number, which loses nothing that search could see."""
    floats = np.asarray(vector, np.float32)
    length = float(np.linalg.norm(floats)) or 1.0
    return bytes(np.round(floats / length * _SCALE).astype("<i2").tobytes())


def floats_of(numbers: bytes, count: int) -> Array:
    """Stored vectors as rows of floats, each of length one."""
    return np.frombuffer(numbers, "<i2").reshape(count, -1).astype(np.float32) / _SCALE


def cosines(numbers: Sequence[bytes], vector: Array) -> Array:
    """How near some stored vectors are to a vector of length one."""
    return np.vecdot(floats_of(b"".join(numbers), len(numbers)), vector)  # not @: BLAS would wait for its threads


class Index:
    """The vectors of one scope and model; for one thread at a time."""

    def __init__(self, scope: str, model: str, size: int) -> None:
        self.scope, self.model, self.size = scope, model, size
        self.count = 0
        self.last = 0
        self._averaged = 0
        self._ids: Array = np.empty(0, np.int64)
        self._facts: Array = np.empty(0, FACTS)
        self._numbers: Array = np.empty((0, size), np.int16)
        self._alive: Array = np.empty(0, bool)
        self._bits: list[Array] = [np.empty(0, np.uint64)] * -(-size // 64)
        self._average: Array = np.zeros(size, np.int16)
        self._taken: Array = np.empty((_PIECE, size), np.int16)
        self._floats: Array = np.empty((_PIECE, size), np.float32)
        self._differing: Array = np.empty(_ROWS, np.uint64)
        self._count: Array = np.empty(_ROWS, np.uint8)

    def update(self, store: Store) -> None:
        """Reads the vectors that were added to the store since the last update."""
        found = store.columns("vectors", {"scope": self.scope, "id": self.last, "model": self.model})
        if not found:
            return
        self.last = int(found[0][-1])
        ids, facts, numbers = self._sound(found[1:])
        if not ids:
            return
        start, self.count = self.count, self.count + len(ids)
        new = {
            "_ids": np.array(ids, np.int64),
            "_facts": np.frombuffer(b"".join(facts), FACTS),
            "_numbers": np.frombuffer(b"".join(numbers), "<i2").reshape(-1, self.size),
            "_alive": np.ones(len(ids), bool),
        }
        for name, rows in new.items():
            setattr(self, name, _put(getattr(self, name), start, rows))
        if self.count > 4 * self._averaged:
            self._averaged = self.count
            sample = self._numbers[: self.count : max(1, self.count // 4_096)]
            self._average = sample.mean(axis=0, dtype=np.float32).astype(np.int16)
            start = 0
        coded = self._code(self._numbers[start : self.count])
        self._bits = [_put(old, start, new) for old, new in zip(self._bits, coded, strict=True)]

    def _sound(self, columns: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Columns without rows that are damaged, or empty because the model refused the text."""
        sizes = (FACTS.itemsize, 2 * self.size)
        if all({*map(len, column)} == {size} for column, size in zip(columns[1:], sizes, strict=True)):
            return columns
        rows = [row for row in zip(*columns, strict=True) if (len(row[1]), len(row[2])) == sizes]
        return [tuple(row[place] for row in rows) for place in range(3)]

    def _code(self, numbers: Array) -> Array:
        bits = np.packbits(numbers > self._average, axis=1)
        wide: Array = np.zeros((len(numbers), 8 * len(self._bits)), np.uint8)
        wide[:, : bits.shape[1]] = bits
        return np.ascontiguousarray(wide.view(np.uint64).T)

    def drop(self, passages: Collection[int]) -> None:
        """Leaves passages out from now on."""
        self._alive[: self.count] &= ~np.isin(self._ids[: self.count], list(passages))

    def search(self, query: Array, limit: int, where: Where | None = None) -> list[tuple[int, float]]:
        """The nearest passages and how near they are, the nearest first."""
        if not self.count:
            return []
        allowed = self._alive[: self.count]
        if where is not None:
            allowed = allowed & where.mask(self._facts[: self.count])
        near = self._nearest(query, allowed)
        scores = self._scores(near, np.asarray(query, np.float32) / _SCALE)
        if limit < len(scores):
            edge = np.partition(scores, len(scores) - limit)[len(scores) - limit] if limit else np.inf
            kept = np.flatnonzero(scores >= edge)
            near, scores = near[kept], scores[kept]
        best = np.argsort(-scores, kind="stable")[:limit]
        return [
            (int(passage), float(score)) for passage, score in zip(self._ids[near[best]], scores[best], strict=True)
        ]

    def _scores(self, near: Array, query: Array) -> Array:
        """How near rows are by their numbers; in small pieces, and in memory that is used again."""
        scores: Array = np.empty(len(near), np.float32)
        for start in range(0, len(near), _PIECE):
            rows = near[start : start + _PIECE]
            taken, floats = self._taken[: len(rows)], self._floats[: len(rows)]
            np.take(self._numbers, rows, axis=0, out=taken, mode="clip")
            floats[:] = taken
            np.vecdot(floats, query, out=scores[start : start + len(rows)])  # not @: BLAS would wait for its threads
        return scores

    def _nearest(self, query: Array, allowed: Array) -> Array:
        """The rows that differ from the query in the fewest bits."""
        total = int(np.count_nonzero(allowed))
        if total <= 2 * CANDIDATES or self.size < _FEW:
            return np.flatnonzero(allowed)
        wanted = self._code(np.round(np.asarray(query, np.float32) * _SCALE).astype(np.int16)[None])[:, 0]
        apart: Array = np.zeros(self.count, np.uint16)
        for start in range(0, self.count, _ROWS):
            here = apart[start : start + _ROWS]
            differing, count = self._differing[: len(here)], self._count[: len(here)]
            for bits, word in zip(self._bits, wanted, strict=True):
                np.bitwise_xor(bits[start : start + len(here)], word, out=differing)
                here += np.bitwise_count(differing, out=count)
        if total < self.count:
            apart[~allowed] = self.size + 1
        counts = np.cumsum(np.bincount(apart, minlength=self.size + 2))
        edge = int(np.searchsorted(counts, CANDIDATES + self.count // 200, "right"))
        return np.flatnonzero(apart <= min(edge, self.size))


def _put(old: Array, start: int, rows: Array) -> Array:
    """Rows behind the first `start` of an array that has room for more, or gets it."""
    count = start + len(rows)
    if start == 0 and len(old) < count:
        return rows
    if len(old) < count:
        grown: Array = np.empty((count + count // 2, *old.shape[1:]), old.dtype)
        grown[:start] = old[:start]
        old = grown
    old[start:count] = rows
    return old


class Where:
    """The filter of a search, besides the scope.

    Args:
        words: the allowed values of columns; None for any value.
        without: the excluded values.
        since: the earliest time.
        until: the time that it must be before.
    """

    def __init__(
        self,
        words: Mapping[str, Collection[str] | None],
        without: Mapping[str, Collection[str]],
        since: float | None,
        until: float | None,
    ) -> None:
        self._only = {name: _checksums(wanted) for name, wanted in words.items() if wanted is not None}
        self._not = {name: _checksums(unwanted) for name, unwanted in without.items() if unwanted}
        self._since, self._until = since, until

    def mask(self, facts: Array) -> Array:
        """Which rows may be found."""
        allowed: Array = np.ones(len(facts), bool)
        for name, wanted in self._only.items():
            allowed &= np.isin(facts[name], wanted)
        for name, unwanted in self._not.items():
            allowed &= ~np.isin(facts[name], unwanted)
        if self._since is not None:
            allowed &= facts["at"] >= self._since
        if self._until is not None:
            allowed &= facts["at"] < self._until
        return allowed


def _checksums(words: Collection[str]) -> Array:
    return np.array([checksum(word) for word in words], np.uint32)
