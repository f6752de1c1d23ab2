"""Large lists and dicts as chunks, each stored once: a list that grows by an item adds an item to the store.

A chunk is the JSON of some consecutive items. The content of the items decides where a chunk ends, so an inserted item
changes only the chunk around it. The hashes of many chunks are kept in nodes, which are chunks of hashes. Unchanged
items are recognised without encoding them.
"""

from __future__ import annotations

import operator
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from smolmem.core.encoding import wire
from smolmem.core.encoding.packing import Undecodable
from smolmem.core.encoding.wire import Json

NAMED = re.compile(rb'"(blob|chunk)":"([0-9a-f]{40})"')
"""Where a record names the hash of another content: of bytes, or of a chunk, which is a record itself."""
ATOMS = frozenset({str, int, float, bool, type(None), bytes})
"""Types whose values never change."""
_ITEMS = ATOMS | {list, dict, tuple}
"""Types of items that can be stored in chunks."""
_MANY_ITEMS, _LONG_ITEM = 32, 500
"""Lists and dicts with fewer items, none of them long, are stored whole."""

_SHORTEST, _LONGEST, _PER_NODE = 1_000, 4_000, 32
LONG_TEXT = 3 * _LONGEST
"""Characters of a text that is stored in chunks."""
_MAX_DEPTH = 8
_MAX_ASSEMBLED = 32_000_000
"""Bytes that chunks may become, or eight times the bytes of the chunks."""


class NotChunkable(Exception):
    """A value that is to be stored whole: an item is foreign, or two items share an object."""


@dataclass
class Piece:
    """One item of a list or dict, encoded.

    `key` is the key of an item of a dict. `shape` is the content of a flat item; None if only encoding the item tells
    whether it changed.
    """

    key: str | None
    item: Any
    body: bytes
    blobs: dict[str, bytes]
    ids: tuple[int, ...]
    shape: tuple[Any, ...] | None

    def is_still(self, key: str | None, item: Any) -> bool:
        """Whether an item is this one, unchanged."""
        if item is not self.item or key != self.key:
            return False
        if type(item) in ATOMS:
            return True
        shape = _shape(item)
        return (
            self.shape is not None
            and shape is not None
            and len(shape) == len(self.shape)
            and all(map(operator.is_, shape, self.shape))
        )


Items = Sequence[tuple[str | None, Any]]
EncodeItem = Callable[[str | None, Any], Piece]


@dataclass
class ChunkedValue:
    """A list or dict as it was stored, to store the next one by its difference."""

    pieces: list[Piece] = field(default_factory=list)
    _chunks: list[tuple[int, str]] = field(default_factory=list)  # the end of each chunk among the pieces, and its hash
    new: dict[str, bytes] = field(default_factory=dict)
    """Chunks and blobs that the last update made."""

    def update(self, items: Items, encode: EncodeItem) -> list[str]:
        """Takes the items as they are now and returns the hashes of their chunks.

        Raises:
            NotChunkable: if the items must be stored together with others.
        """
        self.new = {}
        same = self._unchanged(items)
        self._chunks = [chunk for chunk in self._chunks if chunk[0] <= same]
        start = self._chunks[-1][0] if self._chunks else 0
        kept = self.pieces[:same]
        self.pieces = kept + [self._piece(*items[place], place, encode) for place in range(same, len(items))]
        self._refuse_shared()
        self._cut(start)
        return [key for _, key in self._chunks]

    def ids(self) -> set[int]:
        """The ids of all containers inside."""
        return {number for piece in self.pieces for number in piece.ids}

    def _unchanged(self, items: Items) -> int:
        """How many items at the beginning are as they were."""
        for place, (piece, (key, item)) in enumerate(zip(self.pieces, items, strict=False)):
            if not piece.is_still(key, item):
                return place
        return min(len(self.pieces), len(items))

    def _piece(self, key: str | None, item: Any, place: int, encode: EncodeItem) -> Piece:
        known = self.pieces[place] if place < len(self.pieces) else None
        return known if known is not None and known.is_still(key, item) else encode(key, item)

    def _refuse_shared(self) -> None:
        ids = [number for piece in self.pieces for number in piece.ids]
        if len(set(ids)) < len(ids):
            raise NotChunkable

    def _cut(self, start: int) -> None:
        """Makes chunks of the pieces from `start` on."""
        bodies: list[bytes] = []
        size = 0
        for place in range(start, len(self.pieces)):
            piece = self.pieces[place]
            bodies.append(piece.body)
            self.new.update(piece.blobs)
            size += len(piece.body)
            ends = size >= _LONGEST or (size >= _SHORTEST and zlib.crc32(piece.body) % 8 == 0)
            if ends or place == len(self.pieces) - 1:
                self._chunks.append((place + 1, _add(self.new, b"[" + b",".join(bodies) + b"]")))
                bodies, size = [], 0

    def tree(self, keys: list[str]) -> Json:
        """The hashes of the chunks as JSON."""
        return _tree(self.new, keys)


class ChunkedText:
    """A long text as it was stored, to store the text that continues it by its end."""

    def __init__(self, text: str, before: ChunkedText | None) -> None:
        self._text = text
        self.new: dict[str, bytes] = {}
        """Chunks that were made."""
        whole = len(before._text) // _LONGEST if before is not None and text.startswith(before._text) else 0
        starts = range(whole * _LONGEST, len(text), _LONGEST)
        self._keys: list[str] = ([] if before is None else before._keys[:whole]) + [
            _add(self.new, wire.dumps([text[start : start + _LONGEST]])) for start in starts
        ]
        self.tree = _tree(self.new, self._keys)

    def unsearched(self, text: str) -> int:
        """Where the search for secrets begins: some characters before the end of the part that was searched."""
        return max(0, len(self._text) - 2 * _LONGEST) if text.startswith(self._text) else 0


def _add(new: dict[str, bytes], data: bytes) -> str:
    key = wire.fingerprint(data)
    new[key] = data
    return key


def _tree(new: dict[str, bytes], keys: list[str]) -> Json:
    """Hashes as JSON: few hashes, of chunks or of nodes."""
    depth = 0
    while len(keys) > _PER_NODE:
        groups = [keys[start : start + _PER_NODE] for start in range(0, len(keys), _PER_NODE)]
        keys, depth = [_add(new, wire.dumps(_named(group))) for group in groups], depth + 1
    return {"depth": depth, "v": _named(keys)}


def items_of(value: Any) -> Items | None:
    """The items of a list or dict that can be stored in chunks; None for any other value."""
    if type(value) is list:
        return [(None, item) for item in value]
    if type(value) is dict and "$" not in value and all(type(key) is str for key in value):
        return list(value.items())
    return None


def is_long(items: Items) -> bool:
    """Whether items are many, or some of them are long."""
    return len(items) >= _MANY_ITEMS or any(_holds_text(item) for _, item in items)


def _holds_text(item: Any) -> bool:
    if type(item) is str:
        return len(item) >= _LONG_ITEM
    held = item.values() if type(item) is dict else item if type(item) in (list, tuple) else ()
    return any(type(one) is str and len(one) >= _LONG_ITEM for one in held)


def _named(keys: Iterable[str]) -> Json:
    return [{"chunk": key} for key in keys]


def piece(key: str | None, item: Any, body: bytes, blobs: dict[str, bytes], ids: Iterable[int]) -> Piece:
    """An encoded item.

    Raises:
        NotChunkable: if the item refers to itself, or is of a foreign type.
    """
    if type(item) not in _ITEMS or b'"$":"ref"' in body:
        raise NotChunkable
    return Piece(key, item, body, blobs, tuple(ids), None if type(item) in ATOMS else _shape(item))


def _shape(item: Any) -> tuple[Any, ...] | None:
    """The values in a flat container; None if one of them is mutable."""
    held = (
        (*item.keys(), *item.values()) if type(item) is dict else tuple(item) if type(item) in (list, tuple) else None
    )
    return held if held is not None and ATOMS.issuperset(map(type, held)) else None


# --- reading ---------------------------------------------------------------------------------------------------------


def named_below(records: Iterable[bytes], fetch: Callable[[str], bytes]) -> set[str]:
    """The hashes of all contents that records name, also through chunks."""
    found: set[str] = set()
    for record in records:
        coming = [record]
        while coming:
            for kind, key in NAMED.findall(coming.pop()):
                name = key.decode()
                if name not in found:
                    found.add(name)
                    coming += [fetch(name)] if kind == b"chunk" else []
    return found


def assembled(stored: Json, fetch: Callable[[str], bytes]) -> Json:
    """The JSON of a snapshot of variables with its chunks in place; any other JSON as it is.

    Raises:
        Undecodable: if the chunks are not those of a snapshot.
    """
    if not isinstance(stored, dict) or stored.get("$") != "snapshot":
        return stored
    assembly = Assembly(fetch)
    groups = {name: _group(assembly, stored.get(name)) for name in ("state", "variables")}
    together = [assembly.part(part) for part in _list(stored.get("together"))]
    return {**groups, "together": together, "large": stored.get("large"), "same": stored.get("same")}


def _group(assembly: Assembly, parts: Json) -> Json:
    if not isinstance(parts, dict):
        raise Undecodable("not a snapshot of variables")
    return {name: assembly.part(part) for name, part in parts.items()}


class Assembly:
    """Puts chunks together; a few chunks could claim to be a value of any size, so there is a limit."""

    def __init__(self, fetch: Callable[[str], bytes]) -> None:
        self._fetch = fetch
        self._known: dict[str, bytes] = {}
        self._left = _MAX_ASSEMBLED

    def chunk(self, key: Any) -> Json:
        """The JSON of a chunk.

        Raises:
            Undecodable: if there is none, or all chunks together are too large.
        """
        if not isinstance(key, str):
            raise Undecodable("not a chunk")
        if key not in self._known:
            self._known[key] = self._fetch(key)
            self._left += 8 * len(self._known[key])
        self._left -= len(self._known[key])
        if self._left < 0:
            raise Undecodable("chunks that are too large together")
        return wire.loads(self._known[key])

    def part(self, stored: Json, depth: int = 0) -> Json:
        """The JSON of a value that is stored inline, as a chunk, or in chunks."""
        tag = stored.get("$") if isinstance(stored, dict) else None
        if tag == "alone":
            return stored
        if tag == "stored":
            return {"$": "alone", "v": self.chunk(stored["chunk"])}
        if tag == "compound" and depth < _MAX_DEPTH and isinstance(stored["v"], dict):
            return _alone({key: self.part(item, depth + 1) for key, item in stored["v"].items()})
        if tag not in _JOINED:
            raise Undecodable("not a value in chunks")
        return _alone(_JOINED[tag](list(self._items(stored["chunks"]))))

    def _items(self, stored: Json) -> Iterator[Json]:
        depth = stored.get("depth") if isinstance(stored, dict) else None
        if not isinstance(depth, int) or not 0 <= depth <= _MAX_DEPTH:
            raise Undecodable("not a list of chunks")
        yield from self._below(stored["v"], depth)

    def _below(self, named: Json, depth: int) -> Iterator[Json]:
        for one in _list(named):
            inside = _list(self.chunk(one.get("chunk") if isinstance(one, dict) else None))
            if depth:
                yield from self._below(inside, depth - 1)
            else:
                yield from inside


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise Undecodable("not a list of chunks")
    return value


def _alone(value: Json) -> Json:
    """A value whose references reach no further than itself, under a name as the encoder puts it."""
    return {"$": "alone", "v": {"": value}}


def _merged(items: list[Json]) -> Json:
    return {key: item for pair in items for key, item in pair.items()}


def _joined(items: list[Json]) -> Json:
    """A text as the encoder would have written it; `Decoder` reads a text of any length."""
    return "".join(items)


_JOINED: dict[Any, Callable[[list[Json]], Json]] = {"list": list, "dict": _merged, "str": _joined}
