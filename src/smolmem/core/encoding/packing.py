"""Compressed bytes, and a limit on the size that they unpack to.

A few packed bytes can unpack to gigabytes, so every reader has a limit. Data that would exceed it is stored unpacked,
so everything that was written can be read.
"""

from __future__ import annotations

import os
import threading
import zlib
from typing import NamedTuple

import zstandard


class Undecodable(ValueError):
    """Stored bytes that no encoder writes; the store raises `Damaged` with their place instead."""


class Allowance(NamedTuple):
    """How far packed bytes may unpack: to `size` bytes, or to `times` times their size."""

    size: int
    times: int

    def limit(self, packed: int) -> int:
        """How many bytes `packed` bytes may unpack to; the environment variable `SMOLMEM_MAX_UNPACKED` allows more."""
        return max(self.size, self.times * packed, int(os.environ.get(MAX_UNPACKED, 0)))

    def allows(self, size: int, packed: int) -> bool:
        """Whether `packed` bytes may unpack to `size` bytes."""
        return size <= self.size or size <= self.limit(packed)


MAX_UNPACKED = "SMOLMEM_MAX_UNPACKED"
RECORD = Allowance(1_000_000, 8)
"""Each byte of JSON can become an object of 64 bytes."""
BLOB = Allowance(4_000_000, 50)
_SHORT = 60
"""Bytes that are not worth packing."""


def pack(data: bytes, dictionary: bytes = b"") -> bytes:
    """Packs bytes: one letter, then the bytes, compressed if that saves space and stays within the limit.

    `dictionary` is text that the data repeats; `unpack` needs the same.
    """
    allowed = RECORD if data[:1] in b"{[" else BLOB
    for form, given in ((b"d", dictionary), (b"s", b"")) if dictionary else ((b"s", b""),):
        packed = _zstd(given).compress(data) if len(data) > _SHORT else data
        if len(packed) < len(data) and allowed.allows(len(data), len(packed)):
            return form + packed
    return b"=" + data


def needs_dictionary(data: bytes) -> bool:
    """Whether bytes were packed with a dictionary."""
    return data[:1] == b"d"


def unpack(data: bytes, allowed: Allowance = BLOB, dictionary: bytes = b"") -> bytes:
    """The bytes that were packed.

    Raises:
        Undecodable: they are cut, changed, or unpack to more than is allowed.
    """
    form, body = data[:1], data[1:]
    if form == b"=":
        return body
    if form == b"z":  # until 0.1
        return inflate(body, allowed.limit(len(body)))
    if form not in (b"s", b"d"):
        raise Undecodable("cannot be unpacked: not packed here")
    return _decompress(body, allowed, dictionary if form == b"d" else b"")


class _OfThread(threading.local):
    """One compressor and decompressor for each thread: two threads that use one at once crash the process.

    Making a decompressor takes longer than unpacking a short text.
    """

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=3, write_checksum=False)
        self.decompressor = zstandard.ZstdDecompressor()


_plain = _OfThread()


def _zstd(dictionary: bytes) -> zstandard.ZstdCompressor:
    if not dictionary:
        return _plain.compressor
    return zstandard.ZstdCompressor(level=3, dict_data=_raw(dictionary), write_checksum=False)


def _raw(dictionary: bytes) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _decompress(body: bytes, allowed: Allowance, dictionary: bytes) -> bytes:
    try:
        size = zstandard.get_frame_parameters(body).content_size
        if not allowed.allows(size, len(body)):
            raise _too_large(body, allowed.limit(len(body)))
        with_dictionary = dictionary and zstandard.ZstdDecompressor(dict_data=_raw(dictionary))
        return (with_dictionary or _plain.decompressor).decompress(body, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Undecodable(f"cannot be unpacked: {error}") from error


def _too_large(body: bytes, limit: int) -> Undecodable:
    return Undecodable(
        f"cannot be unpacked: {len(body):,} bytes unpack to more than {limit:,}. If you trust the file, set "
        f"{MAX_UNPACKED} to the bytes that may be unpacked"
    )


def inflate(data: bytes, limit: int) -> bytes:
    """Decompresses at most `limit` bytes.

    Raises:
        Undecodable: the bytes are cut, changed, or decompress to more.
    """
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, limit)
        if not inflater.eof and (inflater.unconsumed_tail or len(plain) == limit):
            raise _too_large(data, limit)
    except zlib.error as error:
        raise Undecodable(f"cannot be unpacked: {error}") from error
    if not inflater.eof:
        raise Undecodable("cannot be unpacked: cut short")
    return plain
