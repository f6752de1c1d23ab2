"""Plain JSON as it is stored: its bytes, and the hashes that they are known by.

Agents produce arbitrary values: model replies with lone surrogates, data frames, open locks, objects that contain
themselves. `encoder` writes every value as JSON that a person can read and any program can parse, and `decoder` reads
it:

    None, bool, int, finite float, str, list, dict with text keys    as they are
    everything else                                                   {"$": "<tag>", …}

A value with no tag of its own becomes `{"$": "object", "type": …, "repr": …}`, and comes back as a `Placeholder`. A
container met a second time is written as `{"$": "ref", "n": k}`, the k-th container of the value in reading order. That
keeps aliasing, ends cycles and stops a small nest of lists from growing without bound. Texts and bytes above `INLINE`
leave the JSON and are kept once, by hash, as blobs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any

from smolmem.core.encoding.packing import Undecodable

INLINE = 4096
"""Texts and bytes longer than this are stored once, by hash, beside the record."""

MAX_DEPTH = 150
"""Deeper nesting than this is kept as a repr: neither `json` nor a reader copes with more."""

Json = Any
SIMPLE = (str, int, float, bool, type(None))
"""What is in JSON as it is, apart from long texts and numbers that JSON does not have."""

_JSON = json.JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":"))


class Base64(str):
    """Bytes inside a record; redaction does not search them as text."""

    __slots__ = ()


def fingerprint(data: bytes) -> str:
    """The hash by which content is known: 160 bits of BLAKE2b, as hex."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def dumps(value: Json) -> bytes:
    """Canonical bytes: one spelling per value; ASCII, so that lone surrogates and NUL survive."""
    return "".join(_pieces(value, 0)).encode("ascii")


def dumps_each(values: Iterable[Json]) -> list[bytes]:
    """The canonical bytes of each value."""
    return ["".join(_pieces(value, 0)).encode("ascii") for value in values]


def _compiled() -> Callable[[Json, int], Iterable[str]]:
    """The encoder that `_JSON` makes anew for each value, if this Python has it compiled."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # pragma: no cover - PyPy
        return lambda value, _: _JSON.iterencode(value)
    encoder: Callable[[Json, int], Iterable[str]] = make(
        None, _JSON.default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False
    )
    return encoder


_pieces = _compiled()


def loads(data: bytes) -> Json:
    """The JSON behind canonical bytes.

    Raises:
        Undecodable: the bytes are not JSON.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"not a record: {error}") from error
