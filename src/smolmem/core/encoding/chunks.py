"""Large lists and dicts as chunks, each stored once: a list that grows by an item adds an item to the store.

A chunk is the JSON of some consecutive items. The content of the items decides where a chunk ends, so an inserted item
changes only the chunk around it. The hashes of many chunks are kept in nodes, which are chunks of hashes. Unchanged
items are recognised without encoding them.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from smolmem.core.encoding import wire
from smolmem.core.encoding.encoder import CONSTANTS, Inside
from smolmem.core.encoding.packing import Undecodable
from smolmem.core.encoding.wire import Json

NAMED = re.compile(rb'"(blob|chunk)":"([0-9a-f]{40})"')
"""Where a record names the hash of another content: of bytes, or of a chunk, which is a record itself."""
ATOMS = frozenset({str, int, float, bool, type(None), *CONSTANTS})
"""Types whose values never change."""
_ITEMS = ATOMS | {list, dict, tuple, set, frozenset}
"""Types of items that can be stored in chunks."""
_MANY_ITEMS, _LONG_ITEM = 32, 500
"""Lists and dicts with fewer items, none of them long, are stored whole."""

_DEEPEST_SHAPE = 6
_END = object()
_SHORTEST, _LONGEST = 1_000, 4_000
_PER_NODE, _FEWEST_PER_NODE, _MOST_PER_NODE = 32, 8, 128
_NODE_ENDS = frozenset({"00", "01", "02", "03", "04", "05", "06", "07"})
"""A node ends behind a hash that begins with one of these: a chunk that is inserted changes only the node around it."""
LONG_TEXT = 3 * _LONGEST
"""Characters of a text that is stored in chunks."""
_MAX_DEPTH = 8
DEEPEST_IN_RECORD = 32
"""Lists and dicts that are deeper in a record are not stored in chunks."""
_MAX_ASSEMBLED = 32_000_000
"""Bytes that chunks may become, or eight times the bytes of the chunks."""


class NotChunkable(Exception):
    """A value that is to be stored whole: an item is foreign, or two items share an object."""


@dataclass
class Piece:
    """One item of a list or dict, encoded.

    `key` is the key of an item of a dict. `shape` is what is in the item; None if only encoding it tells whether it has
    changed.
    """

    key: str | None
    item: Any
    body: bytes
    blobs: dict[str, bytes]
    ids: tuple[int, ...]
    shared: tuple[int, ...]
    shape: tuple[Any, ...] | None

    def is_still(self, key: str | None, item: Any, shared: Collection[int]) -> bool:
        """Whether an item is this one, unchanged; `shared` are the ids of the objects that are stored by themselves."""
        if item is not self.item or key != self.key:
            return False
        if not self.ids:  # a value that never changes, or a shared object
            return True
        is_split = bool(shared) and any(number in shared for number in self.ids)
        return not is_split and is_same_shape(self.shape, shape_of(item))


Items = Sequence[tuple[str | None, Any]]
EncodeItem = Callable[[str | None, Any], Piece]


class Chunks:
    """Pieces of JSON in chunks, as they were stored: an update makes only the chunks that have changed."""

    def __init__(self) -> None:
        self._bodies: list[bytes] = []
        self._ends: list[tuple[int, str]] = []  # the end of each chunk among the pieces, and its hash
        self.new: dict[str, bytes] = {}
        """The chunks that the last update made."""

    def update(self, bodies: list[bytes]) -> Json:
        """Takes the pieces as they are now and returns the hashes of their chunks as JSON."""
        old, before, self._bodies, self.new = self._bodies, self._ends, bodies, {}
        stored = {key for _, key in before}
        start = _same(old, bodies)
        tail = _same(reversed(old[start:]), reversed(bodies[start:]))
        shift = len(bodies) - len(old)
        known = {end + shift: place for place, (end, _) in enumerate(before) if end >= len(old) - tail}
        self._ends = [chunk for chunk in before if chunk[0] <= start]
        end = self._ends[-1][0] if self._ends else 0
        while end < len(bodies):
            if end in known:  # the pieces from here on are in the same chunks as before
                self._ends += [(end + shift, key) for end, key in before[known[end] + 1 :]]
                break
            begin, end = end, _end_of_chunk(bodies, end)
            self._ends.append((end, _add(self.new, b"[" + b",".join(bodies[begin:end]) + b"]")))
        for key in stored & self.new.keys():
            del self.new[key]
        return _tree(self.new, [key for _, key in self._ends])


def _same(old: Iterable[bytes], new: Iterable[bytes]) -> int:
    """How many pieces at the beginning are the same ones."""
    return sum(1 for _ in itertools.takewhile(bool, map(operator.is_, old, new)))


def _end_of_chunk(bodies: list[bytes], begin: int) -> int:
    size = 0
    for place in range(begin, len(bodies)):
        size += len(bodies[place])
        if size >= _LONGEST or (size >= _SHORTEST and zlib.crc32(bodies[place]) % 8 == 0):
            return place + 1
    return len(bodies)


class _ByItem:
    """Finds the pieces of items that are at another place than before: behind an item that was inserted or removed."""

    def __init__(self, pieces: list[Piece]) -> None:
        self._pieces = pieces
        self._known: dict[tuple[str | None, int], Piece] | None = None

    def find(self, here: Piece | None, key: str | None, item: Any, shared: Collection[int]) -> Piece | None:
        """The piece of an item; None if there is none, or the item has changed.

        `here` is the piece that was at its place: while all were at theirs, an item behind them is a new one.
        """
        if self._known is None:
            if here is None:
                return None
            self._known = {(piece.key, id(piece.item)): piece for piece in self._pieces}
        known = self._known.get((key, id(item)))
        return known if known is not None and known.is_still(key, item, shared) else None


class ChunkedValue:
    """A list or dict as it was stored, to store the next one by its difference."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._chunks = Chunks()
        self.new: dict[str, bytes] = {}
        """Chunks and blobs that the last update made."""
        self.ids: set[int] = set()
        """The ids of all objects in the items."""

    def update(self, items: Items, encode: EncodeItem, shared: Collection[int]) -> Json:
        """Takes the items as they are now and returns the hashes of their chunks as JSON.

        Args:
            items: the items.
            encode: encodes an item.
            shared: the ids of the objects that are stored by themselves.

        Raises:
            NotChunkable: if the items must be stored together with others.
        """
        self.new = {}
        known = itertools.chain(self._pieces, itertools.repeat(None))
        moved = _ByItem(self._pieces)
        pieces = self._pieces = [
            one
            if one is not None and one.is_still(*item, shared)
            else moved.find(one, *item, shared) or self._piece(encode(*item))
            for one, item in zip(known, items, strict=False)
        ]
        ids = [number for piece in pieces for number in piece.ids]
        self.ids = set(ids)
        if len(self.ids) < len(ids):
            raise NotChunkable
        tree = self._chunks.update([piece.body for piece in pieces])
        self.new |= self._chunks.new
        return tree

    def _piece(self, made: Piece) -> Piece:
        self.new |= made.blobs
        made.blobs = {}
        return made

    def items_with(self, ids: set[int]) -> list[Any]:
        """The items that hold objects with these ids."""
        return [piece.item for piece in self._pieces if not ids.isdisjoint(piece.ids)]

    def shared(self) -> set[int]:
        """The numbers of the shared objects that the items refer to."""
        return {number for piece in self._pieces for number in piece.shared}


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
        groups, group = list[list[str]](), list[str]()
        for key in keys:
            group.append(key)
            if len(group) == _MOST_PER_NODE or (key[:2] in _NODE_ENDS and len(group) >= _FEWEST_PER_NODE):
                groups.append(group)
                group = []
        groups += [group] if group else []
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


def piece(key: str | None, item: Any, body: bytes, blobs: dict[str, bytes], inside: Inside) -> Piece:
    """An encoded item.

    Raises:
        NotChunkable: if the item refers to itself, or is of a foreign type.
    """
    if type(item) not in _ITEMS or b'"$":"ref"' in body:
        raise NotChunkable
    ids = list(inside.ids)[0 if key is None else 1 :]  # without the dict that holds the item under its key
    return Piece(key, item, body, blobs, tuple(ids), tuple(inside.shared), shape_of(item) if ids else None)


def reference(key: str | None, item: Any, number: int) -> Piece:
    """An item that is a shared object."""
    named: Json = {"$": "shared", "n": number}
    return Piece(key, item, wire.dumps(named if key is None else {key: named}), {}, (), (number,), None)


def shape_of(value: Any) -> tuple[Any, ...] | None:
    """The containers and values in a plain container; None if another object is inside, or if it is nested deeply."""
    shape: list[Any] = []
    return tuple(shape) if _add_shape(value, shape, _DEEPEST_SHAPE) else None


def flat_shape(value: Any) -> tuple[Any, ...] | None:
    """The same of a list or dict of many items, quickly; None if the items are not all plain, or hold containers."""
    held = list(value.values()) if type(value) is dict else value
    kinds, inside = set(map(type, held)), list[Any]()
    if kinds == {dict}:
        inside = [*itertools.chain.from_iterable(held), *itertools.chain.from_iterable(map(dict.values, held))]
    elif kinds and kinds <= {list, tuple}:
        inside = list(itertools.chain.from_iterable(held))
    elif not kinds <= ATOMS:
        return None
    if not ATOMS.issuperset(map(type, inside)):
        return None
    keys = value if type(value) is dict else ()
    lengths = map(_the_length, map(len, held if kinds.isdisjoint(ATOMS) else ()))
    return (value, *keys, *held, *lengths, *inside)


@functools.cache
def _the_length(length: int) -> int:
    """The same object for equal lengths: shapes are compared by identity."""
    return length


def _add_shape(value: Any, shape: list[Any], depth: int) -> bool:
    if type(value) is dict:
        held = (*value.keys(), *value.values())
    elif type(value) in (list, tuple, set, frozenset):
        held = tuple(value)
    else:
        return False
    shape.append(value)
    if ATOMS.issuperset(map(type, held)):
        shape += held
        return True
    for one in held:
        if type(one) in ATOMS:
            shape.append(one)
        elif not depth or not _add_shape(one, shape, depth - 1):
            return False
        else:
            shape.append(_END)
    return True


def is_same_shape(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> bool:
    """Whether a container holds the same values as before."""
    return one is not None and other is not None and len(one) == len(other) and all(map(operator.is_, one, other))


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
    together = [
        assembly.part(part) for part in _list(stored.get("together", []))
    ]  # of shared objects, of earlier files
    shared = [part and assembly.part(part) for part in assembly.items(stored.get("shared", _NONE))]
    named = {"large": stored.get("large"), "same": stored.get("same")}
    return {"$": "variables", "shared": shared, **groups, "together": together, **named}


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
        if tag == "shared":
            return _alone(stored)
        if tag == "stored":
            return {"$": "alone", "v": self._whole(self.chunk(stored["chunk"]), 0)}
        if tag == "compound" and depth < _MAX_DEPTH and isinstance(stored["v"], dict):
            return _alone({key: self.part(item, depth + 1) for key, item in stored["v"].items()})
        if tag not in _JOINED:
            raise Undecodable("not a value in chunks")
        return _alone(_JOINED[tag](list(self.items(stored["chunks"]))))

    def _whole(self, stored: Json, depth: int) -> Json:
        """A record with its long lists and dicts in place; see `long_records`."""
        if not isinstance(stored, (list, dict)) or depth > DEEPEST_IN_RECORD:
            return stored
        if isinstance(stored, list):
            return [self._whole(item, depth + 1) for item in stored]
        if "chunks" in stored and stored.get("$") in _JOINED:
            return self._whole(_JOINED[stored["$"]](list(self.items(stored["chunks"]))), depth)
        return {key: self._whole(item, depth + 1) for key, item in stored.items()}

    def items(self, stored: Json) -> Iterator[Json]:
        """The items of a value in chunks."""
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


_NONE: Json = {"depth": 0, "v": []}
_JOINED: dict[Any, Callable[[list[Json]], Json]] = {"list": list, "dict": _merged, "str": _joined}
