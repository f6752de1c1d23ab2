"""Reads values back from plain JSON (`wire`). Decoding imports nothing and calls nothing that the data chooses.

A few stored bytes can stand for a value of any size, so there are limits for every reader. `packing` limits what bytes
unpack to. References and repeated blobs unfold to `MAX_UNFOLDED`: readers print what a step holds, and printing writes
every reference out, and copies a text once for each container around it. Values beyond the limit become placeholders.
Values that are not printed (variables, results of calls) are read `whole`.
"""

from __future__ import annotations

import base64
import binascii
import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from smolmem.core.encoding import instances
from smolmem.core.encoding.packing import Undecodable
from smolmem.core.encoding.placeholders import MAX_REPR, Placeholder, make_placeholder
from smolmem.core.encoding.wire import MAX_DEPTH, SIMPLE, Json
from smolmem.core.errors import Undone

MAX_UNFOLDED = 500_000
"""Characters and items that a value may have when its references and repeated blobs are written out. A value that is
large on disk may have more: ten times its record, and four times its blobs."""

_INSTEAD = 100  # characters counted for a placeholder of a value that is not unfolded

Decode = Callable[["Decoder", dict[str, Json]], Any]


class Decoder:
    """Turns JSON back into values; `fetch` finds a blob by its hash, `kinds` maps tags to decoders.

    No class is looked up, let alone imported, because a record names it: `classes` are found by the caller.

    Args:
        kinds: the decoder of each tag.
        fetch: finds a blob by its hash.
        classes: classes of this process, by name, whose instances are rebuilt; all others become placeholders.
        stored: the size of the record in bytes.
        whole: unfold values of any size.
    """

    def __init__(
        self,
        kinds: Mapping[str, Decode],
        fetch: Callable[[str], bytes],
        classes: Mapping[str, type] | None = None,
        *,
        stored: int = 0,
        whole: bool = False,
    ) -> None:
        self.kinds = kinds
        self.classes = classes or {}
        self.lost: list[str] = []
        """The types of values that could not be rebuilt."""
        self._fetch = fetch
        self._blobs: dict[str, bytes] = {}
        self._texts: dict[str, str] = {}
        self._limit = float("inf") if whole else max(MAX_UNFOLDED, 10 * stored)
        self._made: list[Any] = []
        self._sizes: list[int] = []  # of `_made`, unfolded; 0 while a container is being read
        self._unfolded = 0
        self.shared: list[Any] = []
        """The JSON of objects that values refer to by number, each under a name."""
        self._scopes: dict[int, tuple[list[Any], list[int]]] = {}  # `_made` and `_sizes` of each shared object
        self._open = 0

    def value(self, wire: Json) -> Any:
        """The value that `Encoder.value` was given."""
        outer = self._made, self._sizes
        self._made, self._sizes = [], []
        try:
            return self(wire)
        except (Undecodable, Undone):
            raise
        except Exception as error:  # an error of a library about bytes that are not in its format
            raise Undecodable(f"not a stored value: {type(error).__name__}: {error}") from error
        finally:
            self._made, self._sizes = outer

    def __call__(self, wire: Json) -> Any:
        """A value inside the one that is being read."""
        if isinstance(wire, SIMPLE):
            self._unfolded += len(wire) if isinstance(wire, str) else 1
            return wire
        place, before = len(self._made), self._unfolded
        if isinstance(wire, list):
            made: Any = []
            self._add(made)
            made.extend(self(item) for item in wire)
        elif "$" not in wire:
            made = {}
            self._add(made)
            for key, item in wire.items():
                self._unfolded += len(key)
                made[key] = self(item)
        elif wire["$"] in _UNCOUNTED:
            return _UNCOUNTED[wire["$"]](self, wire)
        else:
            made = self._tagged(wire["$"], wire)
        self._unfolded += 1
        self._sizes[place] = self._unfolded - before
        return made

    def _add(self, made: Any) -> None:
        self._made.append(made)
        self._sizes.append(0)

    def _tagged(self, tag: str, wire: dict[str, Json]) -> Any:
        place = len(self._made)
        self._add(_CYCLE)
        decode = self.kinds.get(tag, _unknown)
        if decode in _FILLED_LATER:
            return decode(self, wire)
        self._made[place] = made = decode(self, wire)
        return made

    def unfolds(self, size: int) -> bool:
        """Counts a repeated part; false if the repetition makes the value too large."""
        fits = self._unfolded + size <= self._limit
        self._unfolded += size if fits else _INSTEAD
        return fits

    def reference(self, wire: dict[str, Json]) -> Any:
        """A container that was met before."""
        return self._again(self._made, self._sizes, operator.index(wire["n"]))

    def _again(self, made: list[Any], sizes: list[int], number: int) -> Any:
        if made[number] is _CYCLE:
            self.lost.append("smolmem.cycle")
        if not self.unfolds(sizes[number] * 9 // 8):  # references in references: each level is printed again
            self.lost.append("smolmem.repeated")
            return make_placeholder({"type": "smolmem.repeated", "repr": f"<a value of {sizes[number]:,} parts>"})
        return made[number]

    def shared_object(self, wire: dict[str, Json]) -> Any:
        """An object that is stored by itself: the same one wherever it is referred to."""
        number = operator.index(wire["n"])
        if number in self._scopes:
            return self._again(*self._scopes[number], 1)
        if self._open > MAX_DEPTH // 2:
            self.lost.append("smolmem.deep")
            return make_placeholder({"type": "smolmem.deep", "repr": "<a value inside many others>"})
        outer = self._made, self._sizes
        self._made, self._sizes = self._scopes[number] = [], []
        self._open += 1
        try:
            return self(self.shared[number]["v"]).popitem()[1]
        finally:
            self._open -= 1
            self._made, self._sizes = outer

    def text(self, wire: dict[str, Json]) -> str:
        """A long text; the same one where it was met before."""
        key = wire["blob"]
        if key not in self._texts:
            self._texts[key] = self.fetch(key).decode("utf-8", "surrogatepass")
        found = self._texts[key]
        return found if self.unfolds(len(found)) else f"<a text of {len(found):,} characters>"

    def key(self, wire: Json) -> Any:
        """A value that is hashed. Hashing takes as long as printing, and no encoder writes a key that is too large."""
        before = self._unfolded
        made = self(wire)
        if self._unfolded - before > MAX_UNFOLDED:
            raise Undecodable("a key that is too large")
        return made

    def fetch(self, key: str) -> bytes:
        """A blob by its hash."""
        if key not in self._blobs:
            self._blobs[key] = self._fetch(key)
            self._limit += 4 * len(self._blobs[key])
        return self._blobs[key]

    def hold(self, value: Any) -> Any:
        """Announces a container before its items are read, so that they can refer to it."""
        self._made[-1] = value
        return value

    def data(self, wire: dict[str, Json]) -> bytes:
        """Bytes stored inline or beside, whole or in pieces."""
        if "pieces" in wire:
            return b"".join(self.fetch(each["blob"]) for each in wire["pieces"])
        if "blob" in wire:
            return self.fetch(wire["blob"])
        try:
            return base64.b64decode(wire["v"], validate=True)
        except binascii.Error as error:
            raise Undecodable(f"not base64: {error}") from error


def _object(decoder: Decoder, wire: dict[str, Json]) -> Any:
    known, stored = decoder.classes.get(wire["type"], object), wire.get("attrs", {})
    rebuilt = instances.member(known, wire["member"]) if "member" in wire else instances.blank(known, stored)
    if rebuilt is not None:
        return instances.fill(decoder.hold(rebuilt), stored, decoder)
    decoder.lost.append(str(wire["type"]))
    made: Placeholder = decoder.hold(make_placeholder(wire, bare="attrs" not in wire))
    if "attrs" in wire:
        vars(made).update((key, decoder(item)) for key, item in wire["attrs"].items())
    return made


def _dict(decoder: Decoder, wire: dict[str, Json]) -> dict[Any, Any]:
    made: dict[Any, Any] = decoder.hold({})
    for key, item in wire["v"]:
        hashable = decoder.key(key)
        made[hashable] = decoder(item)
    return made


def _unknown(decoder: Decoder, wire: dict[str, Json]) -> Placeholder:
    decoder.lost.append(str(wire["$"]))
    text = json.dumps(wire)[:MAX_REPR]
    return make_placeholder({"type": f"unknown.{re.sub(r'[^A-Za-z0-9_]', '_', str(wire['$']))}", "repr": text})


def _variables(decoder: Decoder, wire: dict[str, Json]) -> dict[str, Any]:
    decoder.shared = wire["shared"]
    return {name: decoder(item) for name, item in wire.items() if name not in ("$", "shared")}


_CYCLE = make_placeholder({"type": "smolmem.cycle", "repr": "<the value that holds this one>"})
_FILLED_LATER: tuple[Decode, ...] = (_object, _dict)
_UNCOUNTED: dict[str, Decode] = {  # values that are not containers have no number
    "alone": lambda decoder, wire: next(iter(decoder.value(wire["v"]).values())),
    "ref": Decoder.reference,
    "shared": Decoder.shared_object,
    "text": Decoder.text,
    "int": lambda decoder, wire: int(wire["v"], 16),
    "float": lambda decoder, wire: float(wire["v"]),
}
KINDS: dict[str, Decode] = {"object": _object, "dict": _dict, "variables": _variables}
