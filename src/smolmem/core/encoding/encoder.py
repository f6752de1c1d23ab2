"""Writes any Python value as plain JSON (`wire`), without ever raising and without ever running the user's code."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple
from uuid import UUID

from smolmem.core.encoding import instances
from smolmem.core.encoding.placeholders import Placeholder, own_attributes, safe_text, type_name
from smolmem.core.encoding.wire import INLINE, MAX_DEPTH, SIMPLE, Base64, Json, fingerprint

MAX_ATTRIBUTES = 2000
"""An unknown object whose attributes would need more nodes than this keeps its repr alone."""

CONSTANTS = frozenset({bytes, complex, date, datetime, time, timedelta, Decimal, Fraction, UUID})
"""Types whose values never change, and are not in JSON as they are."""
_BUILT_IN = CONSTANTS | {tuple, set, frozenset}
"""Types whose values share no memory with others."""

_PIECE = 16_384
"""Bytes of a piece of an array."""

_NONE: Mapping[int, int] = {}

Encode = Callable[["Encoder", Any], Json]


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
        self.packs_pictures = True
        """Whether pictures are packed; hashes of their pixels are enough to compare a value with itself."""
        self.texts: dict[str, bytes] = {}
        """Texts that are not readable in the JSON itself, by hash."""
        self._seen: dict[int, int] = {}
        self._keep: list[Any] = []
        self._depth = 0
        self._budget: int | None = None

    def value(self, value: Any) -> Json:
        """One self-contained value: references inside it reach no further than itself."""
        if type(value) in SIMPLE:
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
        before = len(self._keep) + 1, len(self.blobs)
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

    def _forget(self, before: tuple[int, int]) -> None:
        """Un-counts containers that were read but will not be written, and drops their blobs: an erase finds no others.

        `before` is how many containers and blobs there were.
        """
        containers, blobs = before
        for dropped in self._keep[containers:]:
            self._seen.pop(id(dropped), None)
        del self._keep[containers:]
        for key in list(self.blobs)[blobs:]:
            del self.blobs[key]

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

    def pieces(self, data: bytes) -> dict[str, Json]:
        """Bytes, in pieces if there are many: an array that grows, or changes in a few places, adds what is new."""
        if len(data) <= 2 * _PIECE:
            return self.data(data)
        starts = range(0, len(data), _PIECE)
        return {"pieces": [{"blob": self.blob(data[start : start + _PIECE])} for start in starts]}

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
            before, outermost = (len(self._keep), len(self.blobs)), self._budget is None
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


class _TooMuch(Exception):
    """An unknown object whose attributes need more than `MAX_ATTRIBUTES` nodes."""
