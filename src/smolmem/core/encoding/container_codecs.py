"""Codecs for containers of the standard library, and for subclasses of basic types.

A subclass of a basic type is stored as its value, with the name of its class beside it. Named tuples and enums get
their class back where the reader knows it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from smolmem.core.encoding import instances, placeholders
from smolmem.core.encoding.decoder import Decode, Decoder
from smolmem.core.encoding.encoder import Encode, Encoder
from smolmem.core.encoding.wire import Json


def _items(tag: str) -> Encode:
    return lambda encoder, value: {"$": tag, "v": [encoder(item) for item in value]}


def _set(tag: str) -> Encode:
    def encode(encoder: Encoder, value: Any) -> Json:
        ordered = sorted(value, key=lambda item: (type(item).__name__, placeholders.safe_text(repr, item)))
        return {"$": tag, "v": [encoder(item) for item in ordered]}

    return encode


def _like(base: Callable[[Any], Any]) -> Encode:
    """A subclass of a basic type: its value is kept, the name of its class beside it."""
    return lambda encoder, value: {"$": "like", "type": placeholders.type_name(value), "v": encoder(base(value))}


def enum_member(encoder: Encoder, value: Any) -> Json:
    """A member: like its value where it has a basic type (`HTTPStatus.OK == 200`), else by its name."""
    for base, read in ((str, str.__str__), (int, int.__int__), (float, float.__float__)):
        if isinstance(value, base):
            return _like(read)(encoder, value)
    described: dict[str, Json] = encoder.placeholder(value, attributes=False)
    return described | ({"member": value._name_} if isinstance(value._name_, str) else {})


def _deque(encoder: Encoder, value: Any) -> Json:
    return {"$": "deque", "v": [encoder(item) for item in value], "maxlen": value.maxlen}


def _pairs(tag: str) -> Encode:
    return lambda encoder, value: {"$": tag, "v": [[encoder(key), encoder(item)] for key, item in value.items()]}


_FACTORIES: dict[str, Any] = {cls.__name__: cls for cls in (list, dict, set, tuple, str, int, float, bool)}


def _defaultdict(encoder: Encoder, value: Any) -> Json:
    factory = None if value.default_factory is None else value.default_factory.__name__
    if factory is not None and _FACTORIES.get(factory) is not value.default_factory:
        raise TypeError("another factory")
    return {**_pairs("defaultdict")(encoder, value), "factory": factory}


def _undefaultdict(decoder: Decoder, stored: dict[str, Json]) -> Any:
    factory = None if stored["factory"] is None else _FACTORIES[stored["factory"]]
    return defaultdict(factory, _unpairs(decoder, stored))


def _unpairs(decoder: Decoder, stored: dict[str, Json]) -> Iterator[tuple[Any, Any]]:
    return ((decoder(key), decoder(item)) for key, item in stored["v"])


def _unlike(decoder: Decoder, stored: dict[str, Json]) -> Any:
    value, known = decoder(stored["v"]), decoder.classes.get(stored["type"], object)
    if isinstance(value, tuple) and instances.is_named_tuple(known):
        return tuple.__new__(known, value)
    if isinstance(value, Hashable) and (member := instances.member_of_value(known, value)) is not None:
        return member
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        decoder.lost.append(str(stored["type"]))
    return value


EXACT: dict[type, Encode] = {
    tuple: _items("tuple"),
    set: _set("set"),
    frozenset: _set("frozenset"),
    deque: _deque,
    defaultdict: _defaultdict,
    OrderedDict: _pairs("ordered"),
    Counter: _pairs("counter"),
}

KIN: tuple[tuple[type, Encode], ...] = (
    (str, _like(str.__str__)),
    (int, _like(int.__int__)),
    (float, _like(float.__float__)),
    (bytes, _like(lambda value: bytes.__getitem__(value, slice(None)))),
    (list, _like(lambda value: list(list.__iter__(value)))),
    (tuple, _like(lambda value: tuple(tuple.__iter__(value)))),
    (dict, _like(lambda value: dict(dict.items(value)))),
    (set, _like(lambda value: set(set.__iter__(value)))),
    (frozenset, _like(lambda value: frozenset(frozenset.__iter__(value)))),
)

DECODERS: dict[str, Decode] = {
    "tuple": lambda decoder, stored: tuple(decoder(item) for item in stored["v"]),
    "set": lambda decoder, stored: {decoder.key(item) for item in stored["v"]},
    "frozenset": lambda decoder, stored: frozenset(decoder.key(item) for item in stored["v"]),
    "deque": lambda decoder, stored: deque((decoder(item) for item in stored["v"]), stored["maxlen"]),
    "defaultdict": _undefaultdict,
    "ordered": lambda decoder, stored: OrderedDict(_unpairs(decoder, stored)),
    "counter": lambda decoder, stored: Counter(dict(_unpairs(decoder, stored))),
    "like": _unlike,
}
