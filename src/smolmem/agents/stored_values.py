"""A value of an agent as it is stored: whole, in chunks, or as a dict of such values.

An object that can be reached from two values is stored by itself, and both refer to its number (`shared`). So a value
that changes is stored anew without the values that share an object with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from smolmem.core.encoding import chunks, codec, long_records, wire
from smolmem.core.encoding.chunks import ChunkedText, ChunkedValue, NotChunkable, Piece
from smolmem.core.encoding.codec import Encoded

_INLINE = 400
"""Bytes of a value that is written into the snapshot itself."""
_DEEPEST, _FEW = 4, 32
"""Dicts of few items, inside each other, are searched for long lists."""

Encode = Callable[..., Encoded]


@dataclass
class StoredValue:
    """A value as it was stored.

    `ids` are those of the objects inside, `shared` the numbers of the objects that it refers to, and `new` the contents
    that were made for it.
    """

    value: Any
    body: bytes
    ids: Collection[int] = ()
    shared: Collection[int] = ()
    new: Mapping[str, bytes] = field(default_factory=dict)
    is_foreign: bool = False
    is_described: bool = False
    chunked: ChunkedValue | None = None
    text: ChunkedText | None = None
    inside: dict[str, StoredValue] = field(default_factory=dict)
    shape: tuple[Any, ...] | None = None
    record_key: str = ""
    seconds: float = 0.0

    def parts_with(self, ids: set[int]) -> list[Any]:
        """The value, or those parts of it, that hold objects with these ids."""
        if id(self.value) in ids or (self.chunked is None and not self.inside):
            return [self.value]
        if self.chunked is not None:
            return self.chunked.items_with(ids)
        return [part for stored in self.inside.values() for part in stored.parts_with(ids)]


class ValueEncoder:
    """Encodes values; what it knows of a value as it was stored before saves encoding unchanged parts of it."""

    def __init__(self, encode: Encode) -> None:
        self.encode = encode
        self.shared: dict[int, int] = {}
        """The numbers of the objects that are stored by themselves, by id()."""

    def shared_object(self, before: StoredValue) -> StoredValue:
        """An object that is stored by itself."""
        number = self.shared.pop(id(before.value))
        try:
            return self.value("", before.value, before)
        finally:
            self.shared[id(before.value)] = number

    def objects(self, value: Any) -> list[Any]:
        """The objects that are stored with a value, itself included, each before those inside it."""
        number = self.shared.pop(id(value), None)
        try:
            return codec.objects(value, self.shared)
        finally:
            if number is not None:
                self.shared[id(value)] = number

    def value(self, name: str, value: Any, before: StoredValue | None, depth: int = 0) -> StoredValue:
        """A value under its name: whether a text is a secret may depend on the name."""
        if id(value) in self.shared:
            number = self.shared[id(value)]
            return StoredValue(value, wire.dumps({"$": "shared", "n": number}), shared={number})
        if before is not None and self._is_unchanged(before, value):
            return before
        items = chunks.items_of(value)
        if type(value) is dict and items and depth < _DEEPEST and _is_compound(items):
            return self._compound(name, value, before, depth)
        if items and chunks.is_long(items):
            try:
                return self._chunked(value, items, before)
            except NotChunkable:
                pass
        if type(value) is str and len(value) > chunks.LONG_TEXT and _continues(before, value):
            return self._text(name, value, before)
        return self._whole(name, value, before)

    def _is_unchanged(self, before: StoredValue, value: Any) -> bool:
        """Whether a value is as it was stored, and the same objects are to be stored with it."""
        return (
            before.shape is not None
            and before.value is value
            and not (self.shared and any(number in self.shared for number in before.ids))
            and chunks.is_same_shape(before.shape, _shape_of(value))
        )

    def _whole(self, name: str, value: Any, before: StoredValue | None) -> StoredValue:
        encoded = self.encode({name: value}, shared=self.shared)
        if before is not None and before.record_key == encoded.key:
            body, new = before.body, before.new
        elif len(encoded.record) <= _INLINE:
            body, new = b'{"$":"alone","v":' + encoded.record + b"}", encoded.blobs
        else:
            new = dict(encoded.blobs)
            record = long_records.split(encoded.record, new)
            key = wire.fingerprint(record)
            new[key], body = record, wire.dumps({"$": "stored", "chunk": key})
        inside = encoded.inside
        ids = set(list(inside.ids)[1:])  # without the dict that was made here
        shape = _shape_of(value) if ids else None
        made = StoredValue(value, body, ids, inside.shared, new, inside.is_foreign, inside.is_described, shape=shape)
        made.record_key = encoded.key
        return made

    def _chunked(self, value: Any, items: chunks.Items, before: StoredValue | None) -> StoredValue:
        flags = [False, False]

        def encode(key: str | None, item: Any) -> Piece:
            if id(item) in self.shared:
                return chunks.reference(key, item, self.shared[id(item)])
            encoded = self.encode(item if key is None else {key: item}, shared=self.shared)
            flags[0] |= encoded.inside.is_foreign
            flags[1] |= encoded.inside.is_described
            return chunks.piece(key, item, encoded.record, encoded.blobs, encoded.inside)

        chunked = (before.chunked if before is not None else None) or ChunkedValue()
        tree = chunked.update(items, encode, self.shared)
        body = wire.dumps({"$": "dict" if type(value) is dict else "list", "chunks": tree})
        old = before if before is not None and before.chunked is chunked else None
        is_static = old is not None and old.body == body  # comparing the shape of a value that grows gains nothing
        return StoredValue(
            value,
            body,
            {id(value)} | chunked.ids,
            chunked.shared(),
            chunked.new,
            flags[0] or (old is not None and old.is_foreign),
            flags[1] or (old is not None and old.is_described),
            chunked,
            shape=_shape_of(value) if is_static or len(items) <= _FEW else None,
        )

    def _text(self, name: str, value: str, before: StoredValue | None) -> StoredValue:
        """A long text that continues the text before, in chunks: other texts are often stored as a tool's result, too.

        A secret could lie across two chunks, so the text, or its end, is searched first.
        """
        known = before.text if before is not None else None
        start = 0 if known is None else known.unsearched(value)
        if self.encode({name: value[start:]}).redacted:
            return self._whole(name, value, before)
        text = ChunkedText(value, known)
        return StoredValue(value, wire.dumps({"$": "str", "chunks": text.tree}), new=text.new, text=text)

    def _compound(self, name: str, value: dict[str, Any], before: StoredValue | None, depth: int) -> StoredValue:
        known = before.inside if before is not None else {}
        inside = {key: self.value(key, item, known.get(key), depth + 1) for key, item in value.items()}
        ids, shared, new = {id(value)}, set[int](), dict[str, bytes]()
        for key, stored in inside.items():
            if not ids.isdisjoint(stored.ids):
                return self._whole(name, value, before)
            ids.update(stored.ids)
            shared.update(stored.shared)
            if stored is not known.get(key):
                new |= stored.new
        return StoredValue(
            value,
            b'{"$":"compound","v":' + object_of((key, stored.body) for key, stored in inside.items()) + b"}",
            ids,
            shared,
            new,
            any(stored.is_foreign for stored in inside.values()),
            any(stored.is_described for stored in inside.values()),
            inside=inside,
        )


def _shape_of(value: Any) -> tuple[Any, ...] | None:
    is_long = type(value) in (list, dict) and len(value) > _FEW
    return chunks.flat_shape(value) if is_long else chunks.shape_of(value)


def _continues(before: StoredValue | None, text: str) -> bool:
    return before is not None and type(before.value) is str and text.startswith(before.value)


def object_of(fields: Iterable[tuple[str, bytes]]) -> bytes:
    """A JSON object of fields that are JSON already."""
    return b"{" + b",".join(wire.dumps(name) + b":" + body for name, body in fields) + b"}"


def _is_compound(items: chunks.Items, depth: int = 0) -> bool:
    """Whether a dict is short and holds long lists or dicts; a dict can hold itself."""
    if len(items) > _FEW or depth > _DEEPEST:
        return False
    inside = (chunks.items_of(item) for _, item in items)
    return any(held and (chunks.is_long(held) or _is_compound(held, depth + 1)) for held in inside)
