"""Any Python value ⇄ plain JSON, without ever raising and without ever running code.

Agents produce arbitrary values: model replies with lone surrogates, data frames, open locks, objects that contain
themselves. Every value becomes JSON that a person can read and any program can parse:

    None, bool, int, finite float, str, list, dict with text keys    as they are
    everything else                                                   {"$": "<tag>", …}

A value with no tag of its own becomes `{"$": "object", "type": …, "repr": …}` and comes back as a `Placeholder`, with
its attributes and no code of its class. Decoding imports nothing and calls nothing that the data chooses.

A container met a second time is written as `{"$": "ref", "n": k}`, the k-th container of the value in reading
order. That keeps aliasing, ends cycles and stops a small nest of lists from growing without bound.

Texts and bytes above `INLINE` leave the JSON and are kept once, by hash, in `blobs`.

A few stored bytes can stand for a value of any size, so there are two limits for every reader. `packing.py` limits what
bytes unpack to. References and repeated blobs unfold to `MAX_UNFOLDED`: readers print what a step holds, and printing
writes every reference out. Values beyond the limit become placeholders. Values that are not printed (variables, results
of calls) are read `whole`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from smolmem.core.encoding import instances
from smolmem.core.encoding.packing import Undecodable
from smolmem.core.encoding.placeholders import (
    MAX_REPR,
    Placeholder,
    make_placeholder,
    own_attributes,
    safe_text,
    type_name,
)
from smolmem.core.errors import Undone

INLINE = 4096
"""Texts and bytes longer than this are stored once, by hash, beside the record."""

MAX_DEPTH = 150
"""Deeper nesting than this is kept as a repr: neither `json` nor a reader copes with more."""

MAX_ATTRIBUTES = 2000
"""An unknown object whose attributes would need more nodes than this keeps its repr alone."""

MAX_UNFOLDED = 500_000
"""Characters and items that a value may have when its references and repeated blobs are written out. A value that is
large on disk may have more: ten times its record, and four times its blobs."""

_NONE: Mapping[int, int] = {}
_INSTEAD = 100  # characters counted for a placeholder of a value that is not unfolded

Json = Any
Encode = Callable[["Encoder", Any], Json]
Decode = Callable[["Decoder", dict[str, Json]], Any]

_JSON = json.JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":"))
_SIMPLE = (str, int, float, bool, type(None))


class Base64(str):
    """Bytes inside a record; redaction does not search them as text."""

    __slots__ = ()


def fingerprint(data: bytes) -> str:
    """The hash by which content is known: 160 bits of BLAKE2b, as hex."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def dumps(value: Json) -> bytes:
    """Canonical bytes: one spelling per value; ASCII, so that lone surrogates and NUL survive."""
    return "".join(_pieces(value, 0)).encode("ascii")


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


class Inside(NamedTuple):
    """The ids of the objects in a value, except texts and numbers, and the numbers of shared objects that it names.

    `is_foreign`: an object can share its memory with others; `is_described`: a record can only describe an object.
    """

    ids: Collection[int] = ()
    shared: Collection[int] = ()
    is_foreign: bool = False
    is_described: bool = False


class Encoder:
    """Turns values into JSON; `blobs` collects what is stored beside it, by fingerprint.

    `exact` maps a type to its encoder; `kin` lists (base class, encoder) for whole families, where an encoder
    may answer `NotImplemented`. Values of other types become placeholders.
    """

    def __init__(
        self, exact: Mapping[type, Encode], kin: tuple[tuple[type, Encode], ...], shared: Mapping[int, int] = _NONE
    ) -> None:
        self.exact = exact
        self.kin = kin
        self._shared = shared  # the numbers of objects that are stored by themselves, by id()
        self.blobs: dict[str, bytes] = {}
        self.described = 0
        """How many values have no encoding of their own, and are only described."""
        self.placeholders = 0
        """How many of them are placeholders already."""
        self._named: set[int] = set()
        self._is_foreign = False
        self._ids: Collection[int] = ()
        self.objects: list[Any] = []
        """The objects in the last value, except texts and numbers, each before those inside it."""
        self.texts: dict[str, bytes] = {}
        """Texts that are not readable in the JSON itself, by hash."""
        self._seen: dict[int, int] = {}
        self._keep: list[Any] = []
        self._depth = 0
        self._budget: int | None = None

    def value(self, value: Any) -> Json:
        """One self-contained value: references inside it reach no further than itself."""
        if type(value) in _SIMPLE:
            return self(value)
        outer = self._seen, self._keep
        self._seen, self._keep = {}, []
        try:
            return self(value)
        finally:
            self._ids, self.objects = self._seen.keys(), self._keep
            self._seen, self._keep = outer

    @property
    def inside(self) -> Inside:
        """The objects in the last value."""
        return Inside(self._ids, self._named, self._is_foreign, self.described > 0)

    def __call__(self, value: Any) -> Json:
        """A value inside the one that is being written."""
        cls = type(value)
        if cls is str:
            return value if len(value) <= INLINE else self._long_text(value)
        if value is None or cls is bool:
            return value
        if cls is int:
            return value if -(1 << 63) <= value < 1 << 63 else {"$": "int", "v": hex(value)}
        if cls is float:
            return value if math.isfinite(value) else {"$": "float", "v": repr(value)}
        return self._container(value, cls)

    def _container(self, value: Any, cls: type) -> Json:
        number = self._seen.get(id(value))
        if number is not None:
            return {"$": "ref", "n": number}
        if id(value) in self._shared:
            self._named.add(self._shared[id(value)])
            return {"$": "shared", "n": self._shared[id(value)]}
        before = len(self._keep) + 1
        self._seen[id(value)] = len(self._seen)
        self._keep.append(value)  # an id() is valid only while its object lives
        if self._budget is not None:
            self._spend(self._budget)
        self._depth += 1
        try:
            if self._depth > MAX_DEPTH:
                return self.placeholder(value, attributes=False)
            if cls is list:
                return [self(item) for item in value]
            if cls is dict:
                return self.mapping(value)
            return self._tagged(value, cls)
        except _TooMuch:
            raise
        except Exception:  # a foreign object may raise anything while it is read: it becomes a placeholder
            self._forget(before)
            return self.placeholder(value, attributes=False)
        finally:
            self._depth -= 1

    def _spend(self, budget: int) -> None:
        self._budget = budget - 1
        if self._budget < 0:
            raise _TooMuch

    def _forget(self, before: int) -> None:
        """Un-counts containers that were read but will not be written."""
        for dropped in self._keep[before:]:
            self._seen.pop(id(dropped), None)
        del self._keep[before:]

    def _tagged(self, value: Any, cls: type) -> Json:
        self._is_foreign |= cls not in _BUILT_IN
        encode = self.exact.get(cls)
        if encode is not None:
            return encode(self, value)
        for base, encode in self.kin:
            if issubclass(cls, base):
                made = encode(self, value)
                if made is not NotImplemented:
                    return made
        return self.placeholder(value)

    def mapping(self, value: Mapping[Any, Any]) -> Json:
        """A dict: JSON where its keys are texts, pairs otherwise. Order is kept, prompts depend on it."""
        if all(type(key) is str for key in value) and "$" not in value:
            return {key: self(item) for key, item in value.items()}
        return {"$": "dict", "v": [[self(key), self(item)] for key, item in value.items()]}

    def blob(self, data: bytes) -> str:
        """Keeps bytes beside the record and returns the hash they are found by."""
        key = fingerprint(data)
        self.blobs[key] = data
        return key

    def data(self, data: bytes) -> dict[str, Json]:
        """Bytes, inline or beside."""
        if len(data) > INLINE:
            return {"blob": self.blob(data)}
        return {"v": Base64(base64.b64encode(data).decode("ascii"))}

    def _long_text(self, value: str) -> Json:
        data = value.encode("utf-8", "surrogatepass")
        key = self.blob(data)
        self.texts[key] = data
        return {"$": "text", "blob": key}

    def placeholder(self, value: Any, *, attributes: bool = True) -> Json:
        """The placeholder of a value that has no encoding of its own."""
        self.described += 1
        if issubclass(type(value), Placeholder):  # not isinstance: a proxy may raise when it is asked for its class
            self.placeholders += 1
            described = {"$": "object", **value._described}
        else:
            text, shown = safe_text(repr, value), safe_text(str, value)
            described = {"$": "object", "type": type_name(value), "repr": text}
            if shown != text:
                described["str"] = shown
        if not attributes:
            return described
        own = own_attributes(value) if issubclass(type(value), Placeholder) else instances.attributes(value)
        if own is not None:
            before, outermost = len(self._keep), self._budget is None
            if outermost:
                self._budget = MAX_ATTRIBUTES
            try:
                described["attrs"] = {str(key): self(item) for key, item in own.items()}
            except _TooMuch:
                self._forget(before)
                if not outermost:
                    raise
            finally:
                if outermost:
                    self._budget = None
        return described


_BUILT_IN = frozenset({tuple, set, frozenset, bytes})


class _TooMuch(Exception):
    """An unknown object whose attributes need more than `MAX_ATTRIBUTES` nodes."""


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
        if isinstance(wire, _SIMPLE):
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
        if not self.unfolds(sizes[number]):
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
        """Bytes stored inline or beside."""
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
