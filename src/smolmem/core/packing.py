"""Bytes as they lie on disk, compressed, and how much they may unpack to.

A few packed bytes can unpack to gigabytes. So there is a limit for whoever reads, and nothing is packed tighter than
the limit allows: what was written can be read.
"""

from __future__ import annotations

import os
import zlib
from typing import NamedTuple


class Undecodable(ValueError):
    """Stored bytes that are not what an encoder writes; the store turns it into `Damaged` with its place."""


class Allowance(NamedTuple):
    """What packed bytes may unpack to: so many bytes, or so many times their size."""

    size: int
    times: int

    def limit(self, packed: int) -> int:
        """The bytes that so many packed bytes may unpack to; `SMOLMEM_MAX_UNPACKED` in the environment allows more."""
        return max(self.size, self.times * packed, int(os.environ.get(MAX_UNPACKED, 0)))


MAX_UNPACKED = "SMOLMEM_MAX_UNPACKED"
RECORD = Allowance(1_000_000, 8)
"""Each byte of JSON can become an object of 64 bytes."""
BLOB = Allowance(4_000_000, 50)


def pack(data: bytes) -> bytes:
    """Bytes as they lie on disk: one letter, then the bytes, compressed where that saves space and can be unpacked."""
    if len(data) > 200:
        packed = zlib.compress(data, 1)
        allowed = RECORD if data[:1] in b"{[" else BLOB
        if len(packed) < len(data) <= allowed.limit(len(packed)):
            return b"z" + packed
    return b"=" + data


def unpack(data: bytes, allowed: Allowance = BLOB) -> bytes:
    """The bytes that were packed.

    Raises:
        Undecodable: they are cut, changed, or unpack to more than is allowed.
    """
    form, body = data[:1], data[1:]
    if form == b"=":
        return body
    if form != b"z":
        raise Undecodable("cannot be unpacked: not packed here")
    return inflate(body, allowed.limit(len(body)))


def inflate(data: bytes, limit: int) -> bytes:
    """Decompresses at most `limit` bytes.

    Raises:
        Undecodable: the bytes are cut, changed, or decompress to more.
    """
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, limit)
        if not inflater.eof and (inflater.unconsumed_tail or len(plain) == limit):
            raise Undecodable(
                f"cannot be unpacked: {len(data):,} bytes unpack to more than {limit:,}. If you trust the file, set "
                f"{MAX_UNPACKED} to the bytes that may be unpacked"
            )
    except zlib.error as error:
        raise Undecodable(f"cannot be unpacked: {error}") from error
    if not inflater.eof:
        raise Undecodable("cannot be unpacked: cut short")
    return plain
