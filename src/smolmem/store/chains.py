"""Contents that repeat each other, packed together.

A tool's result is in the record of the call, in the record of the step, and in the messages of the step. So a content
is compressed with the preceding contents of the same run as a dictionary, and a repetition takes a few bytes. A chain
of contents ends after a few steps: reading a content reads the chain before it, and damage to a content loses the rest
of its chain. It ends where a step begins, because the contents of one step repeat each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from smolmem.core.encoding import packing
from smolmem.core.encoding.packing import Undecodable
from smolmem.core.recent import Recent
from smolmem.store.base import Row

_LENGTH, _BYTES = 12, 200_000
"""How many contents, and bytes of them, a chain has before it ends with the next step."""
_MAX_LENGTH, _MAX_BYTES = 24, 800_000
"""How many it holds at most: a step can have any number of calls."""
_NUMBERS = 64
_RUNS = 64
_CACHED_BYTES = 4_000_000
"""Bytes of contents that are kept in RAM: a chain is read again for each of its contents otherwise."""


class Chain:
    """The contents that the next content of a run may repeat, and the numbers of the contents that it had last."""

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}
        self.seen: Any = None
        """When it was known that all of this is in the store: see `Contents.check`."""
        self.base: tuple[int, bytes, int | None] | None = None
        """The number and hash of the last content, and the number of the content before it."""
        self.dictionary = b""
        """What the next content is packed with."""
        self._length = 0

    def note(self, number: int, key: bytes) -> None:
        """A content of the run is in the store."""
        self.numbers[key] = number
        if len(self.numbers) > _NUMBERS:
            del self.numbers[next(iter(self.numbers))]

    def add(self, number: int, key: bytes, data: bytes) -> None:
        """Adds a content that was packed with this chain; a chain that holds the most starts over."""
        before = None if self.base is None else self.base[0]
        self.base, self.dictionary, self._length = (number, key, before), self.dictionary + data, self._length + 1
        if self._length >= _MAX_LENGTH or len(self.dictionary) > _MAX_BYTES:
            self._start_over()

    def begin_step(self) -> None:
        """A step begins: a chain that is long enough starts over."""
        if self._length >= _LENGTH or len(self.dictionary) > _BYTES:
            self._start_over()

    def _start_over(self) -> None:
        self.base, self.dictionary, self._length = None, b"", 0

    def clear(self) -> None:
        """Drops everything that is known."""
        self.numbers = {}
        self._start_over()


class Chains:
    """The chains of the runs that a process records, and the contents of chains that were read last."""

    def __init__(self, read: Callable[[int, int, int], list[Row]]) -> None:
        """Reads nothing yet.

        Args:
            read: the row of a content and the rows of contents that it is packed with, up to a content, and how many.
        """
        self._read_rows = read
        self._of_runs: Recent[str, Chain] = Recent(_RUNS)
        self._read: Recent[int, tuple[int | None, bytes]] = Recent(_CACHED_BYTES, lambda link: len(link[1]))
        self._joined: tuple[int | None, int, bytes] = (None, 0, b"")  # the last chain that was joined, and its length
        self.forgotten = 0
        """How often everything was forgotten."""

    @contextmanager
    def of(self, run: str) -> Iterator[Chain]:
        """The chain of a run, for one transaction; the chain is dropped if the transaction fails."""
        chain = self._of_runs.take(run) or Chain()
        yield chain
        self._of_runs.put(run, chain)

    def unpack(self, row: Row, allowed: packing.Allowance) -> bytes:
        """The bytes of a content row.

        Raises:
            Undecodable: if they, or the contents they were packed with, are damaged.
        """
        packed = row["bytes"]
        if not isinstance(packed, bytes):
            raise Undecodable("cannot be unpacked: not bytes")
        given = self._dictionary(row["base"]) if packing.needs_dictionary(packed) else b""
        data = packing.unpack(packed, allowed, given)
        self._remember(row["id"], row["base"], data)
        return data

    def _dictionary(self, base: int | None) -> bytes:
        """The contents of a chain up to its content `base`. Runs are read in order, so most of them are joined."""
        chain: list[tuple[int, int | None, bytes | None, bytes]] = []
        (last, length, joined), at = self._joined, base
        rows: dict[int, Row] = {}
        while at is not None and at != last:
            if len(chain) == _MAX_LENGTH:
                raise Undecodable("cannot be unpacked: a chain of contents that is too long")
            known = self._read.get(at)
            if known is None and at not in rows:
                rows = {row["id"]: row for row in self._read_rows(at, last or 0, _MAX_LENGTH)}
            chain.append(_link(at, rows.get(at)) if known is None else (at, known[0], None, known[1]))
            at = chain[-1][1]
        if at is None:
            length, joined = 0, b""
        if length + len(chain) > _MAX_LENGTH:
            raise Undecodable("cannot be unpacked: a chain of contents that is too long")
        for number, before, packed, data in reversed(chain):
            if packed is not None:
                data = packing.unpack(packed, packing.BLOB, joined)
                self._remember(number, before, data)
            joined += data
        self._joined = base, length + len(chain), joined
        return joined

    def _remember(self, number: int, base: int | None, data: bytes) -> None:
        if len(data) <= _MAX_BYTES:
            self._read.put(number, (base, data))

    def forget(self) -> None:
        """Drops all caches and chains: contents were erased."""
        self._of_runs.clear()
        self.forget_read()
        self.forgotten += 1

    def forget_read(self) -> None:
        """Drops the contents that were read."""
        self._joined = (None, 0, b"")
        self._read.clear()


def _link(number: int, row: Row | None) -> tuple[int, int | None, bytes | None, bytes]:
    """A content of a chain: its number, the content before it, and its packed bytes."""
    if row is None or not isinstance(row["bytes"], bytes):
        raise Undecodable(f"cannot be unpacked: content {number} is missing")
    return number, row["base"], row["bytes"], b""
