"""The record of a large value in chunks: of a set, a deque, a frame, an object that holds long lists.

Lists and dicts of a record that are long become chunks, each stored once, so a value that grows adds what is new.
`chunks.Assembly` puts them back. The value is encoded as a whole; lists and dicts of plain items, which `ChunkedValue`
encodes item by item, need none of this.
"""

from __future__ import annotations

from smolmem.core.encoding import chunks, wire
from smolmem.core.encoding.chunks import LONG_TEXT as LONG
from smolmem.core.encoding.wire import Json


def split(record: bytes, new: dict[str, bytes]) -> bytes:
    """A record whose long lists and dicts are in chunks, which are added to `new`."""
    return record if len(record) <= LONG else _split(wire.loads(record), record, new, 0)


def _split(value: Json, body: bytes, new: dict[str, bytes], depth: int) -> bytes:
    """A part of a record, which is `body` as JSON."""
    if len(body) <= LONG or depth > chunks.DEEPEST_IN_RECORD or isinstance(value, str):
        return body
    items = value if isinstance(value, list) else list(value.values())
    bodies = [
        _split(item, each, new, depth + 1) if len(each) > LONG else each
        for item, each in zip(items, wire.dumps_each(items), strict=True)
    ]
    if isinstance(value, list):
        return _in_chunks("list", bodies, new)
    fields = [name + b":" + each for name, each in zip(wire.dumps_each(value), bodies, strict=True)]
    if "$" in value:
        return b"{" + b",".join(fields) + b"}"
    return _in_chunks("dict", [b"{" + field + b"}" for field in fields], new)


def _in_chunks(tag: str, bodies: list[bytes], new: dict[str, bytes]) -> bytes:
    made = chunks.Chunks()
    tree = made.update(bodies)
    new |= made.new
    return wire.dumps({"$": tag, "chunks": tree})
