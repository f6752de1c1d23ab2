"""Codecs for types of the standard library, NumPy and pandas; `pictures.py` has that of Pillow.

Optional libraries are used only where a value of theirs occurs. A value that cannot be rebuilt exactly is refused
here (by raising), and the encoder then keeps a placeholder of it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any
from uuid import UUID

import PIL.Image

from smolmem.core.encoding import container_codecs, pictures, wire
from smolmem.core.encoding.decoder import KINDS, Decode, Decoder
from smolmem.core.encoding.encoder import Encode, Encoder
from smolmem.core.encoding.packing import Undecodable
from smolmem.core.encoding.wire import Json


class NotExact(Exception):
    """This value would not come back equal: keep a placeholder instead."""


# --- standard library ---------------------------------------------------------------------------------------------


def _text(tag: str, describe: Callable[[Any], str] = str) -> Encode:
    return lambda encoder, value: {"$": tag, "v": describe(value)}


def _bytes(tag: str) -> Encode:
    def encode(encoder: Encoder, value: Any) -> Json:
        data = bytes(value)
        encoder.texts[wire.fingerprint(data)] = data
        return {"$": tag, **encoder.data(data)}

    return encode


def _datetime(encoder: Encoder, value: datetime) -> Json:
    made: dict[str, Json] = {"$": "datetime", "v": value.replace(tzinfo=None, fold=0).isoformat()}
    if value.fold:
        made["fold"] = 1
    if value.tzinfo is not None:
        made["tz"] = _zone(value.tzinfo, value)
    return made


def _zone(zone: Any, at: datetime | None) -> str | float:
    zoneinfo = sys.modules.get("zoneinfo")  # importing it takes some milliseconds
    if zoneinfo is not None and isinstance(zone, zoneinfo.ZoneInfo) and zone.key:
        return str(zone.key)
    offset = zone.utcoffset(at)
    if offset is None:
        raise NotExact
    return float(offset.total_seconds())


def _unzone(stored: str | float) -> Any:
    if not isinstance(stored, str):
        return timezone(timedelta(seconds=stored))
    from zoneinfo import ZoneInfo

    return ZoneInfo(stored)


def _untimed(cls: type[datetime] | type[time]) -> Decode:
    def decode(decoder: Decoder, stored: dict[str, Json]) -> Any:
        zone = _unzone(stored["tz"]) if "tz" in stored else None
        return cls.fromisoformat(stored["v"]).replace(fold=stored.get("fold", 0), tzinfo=zone)

    return decode


def _time(encoder: Encoder, value: time) -> Json:
    made = {"$": "time", "v": value.replace(tzinfo=None, fold=0).isoformat(), "fold": value.fold}
    return made if value.tzinfo is None else made | {"tz": _zone(value.tzinfo, None)}


_PATHS: dict[str, type[PurePath]] = {
    cls.__name__: cls for cls in (PosixPath, WindowsPath, PurePosixPath, PureWindowsPath)
}


def _unpath(decoder: Decoder, stored: dict[str, Json]) -> PurePath:
    try:
        return _PATHS[stored["flavour"]](stored["v"])
    except NotImplementedError:  # a path of another system
        return _PATHS[f"Pure{stored['flavour']}"](stored["v"])


# --- NumPy --------------------------------------------------------------------------------------------------------


def _array(encoder: Encoder, value: Any) -> Json:
    """An array or scalar by dtype, shape and bytes; an array of objects item by item."""
    made = {"$": "array", "shape": list(value.shape)}
    if value.dtype.hasobject:
        flat = value.ravel()
        return made | {"dtype": "O", "items": [encoder(flat[position]) for position in range(flat.size)]}
    if value.dtype.kind in "US":  # texts are stored as texts, not as bytes
        return made | {"dtype": value.dtype.str, "items": [encoder(item) for item in value.ravel().tolist()]}
    described = encoder(value.dtype.descr) if value.dtype.names else value.dtype.str
    return made | {"dtype": described, **encoder.pieces(value.tobytes())}


def _unarray(decoder: Decoder, stored: dict[str, Json]) -> Any:
    import numpy as np

    shape = tuple(int(side) for side in stored["shape"])
    made: Any
    if "items" in stored:
        dtype = np.dtype(str(stored["dtype"]))
        if dtype.kind not in "OUS":
            raise Undecodable("an array of numbers stored item by item")
        made = np.empty(len(stored["items"]), dtype=dtype)
        for position, item in enumerate(stored["items"]):
            made[position] = decoder(item)
        made = made.reshape(shape)
    else:
        described = stored["dtype"]
        dtype = np.dtype(described if isinstance(described, str) else [tuple(each) for each in decoder(described)])
        if dtype.hasobject:
            raise Undecodable("an array of objects stored as bytes")
        data = decoder.data(stored)
        if not data and 0 not in shape and (dtype.itemsize or math.prod(shape) > 1_000_000):
            raise Undecodable("an array without its items")
        made = np.frombuffer(data, dtype=dtype).reshape(shape).copy() if data else np.empty(shape, dtype=dtype)
    return made[()] if stored.get("scalar") else made


# --- pandas -------------------------------------------------------------------------------------------------------


def _column(encoder: Encoder, value: Any) -> Json:
    """A pandas array: its dtype's name and its items, exactly."""
    import numpy as np
    import pandas as pd

    dtype = value.dtype.numpy_dtype if isinstance(value, pd.arrays.NumpyExtensionArray) else value.dtype
    if str(dtype) == "category":
        made = {"categories": _index(encoder, value.categories), "codes": encoder(np.asarray(value.codes))}
        return {"dtype": "category", "ordered": bool(value.ordered), **made}
    if isinstance(dtype, np.dtype):
        return {"dtype": dtype.str, "array": encoder(np.asarray(value))}
    return {"dtype": str(dtype), "items": [encoder(item) for item in value.tolist()]}


def _uncolumn(decoder: Decoder, stored: dict[str, Json]) -> Any:
    import pandas as pd

    if stored["dtype"] == "category":
        categories, codes = _unindex(decoder, stored["categories"]), decoder(stored["codes"])
        return pd.Categorical.from_codes(codes, categories, ordered=stored["ordered"])
    if "array" in stored:
        return decoder(stored["array"])
    return pd.array([decoder(item) for item in stored["items"]], dtype=str(stored["dtype"]))


def _index(encoder: Encoder, value: Any) -> Json:
    import pandas as pd

    if type(value) is pd.RangeIndex:
        return {"range": [value.start, value.stop, value.step], "name": encoder(value.name)}
    if isinstance(value, pd.MultiIndex):
        levels = [_column(encoder, value.get_level_values(level).array) for level in range(value.nlevels)]
        return {"levels": levels, "names": [encoder(name) for name in value.names]}
    return {"column": _column(encoder, value.array), "name": encoder(value.name)}


def _unindex(decoder: Decoder, stored: dict[str, Json]) -> Any:
    import pandas as pd

    if "range" in stored:
        return pd.RangeIndex(*stored["range"], name=decoder(stored["name"]))
    if "levels" in stored:
        levels = [_uncolumn(decoder, level) for level in stored["levels"]]
        return pd.MultiIndex.from_arrays(levels, names=[decoder(name) for name in stored["names"]])
    return pd.Index(_uncolumn(decoder, stored["column"]), name=decoder(stored["name"]))


def _checked(encode: Encode, decode: Decode, assertion: str, **options: bool) -> Encode:
    """Decodes the value at once and refuses it if it differs: pandas has too many dtypes to list."""

    def checked(encoder: Encoder, value: Any) -> Json:
        import pandas as pd

        made = encode(encoder, value)
        trial = Encoder(encoder.exact, encoder.kin)
        alone = encode(trial, value)
        getattr(pd.testing, assertion)(decode(_holding(trial.blobs), alone), value, **options)
        return made

    return checked


def _holding(blobs: dict[str, bytes]) -> Decoder:
    decoder = Decoder(DECODERS, blobs.__getitem__, whole=True)
    decoder._add(None)
    return decoder


def _frame(encoder: Encoder, value: Any) -> Json:
    columns = [_column(encoder, value.iloc[:, position].array) for position in range(value.shape[1])]
    return {
        "$": "frame",
        "columns": _index(encoder, value.columns),
        "index": _index(encoder, value.index),
        "data": columns,
    }


def _unframe(decoder: Decoder, stored: dict[str, Json]) -> Any:
    import pandas as pd

    data = {position: _uncolumn(decoder, column) for position, column in enumerate(stored["data"])}
    columns, index = _unindex(decoder, stored["columns"]), _unindex(decoder, stored["index"])
    made = pd.DataFrame(data, index=index)
    made.columns = columns
    return made


def _series(encoder: Encoder, value: Any) -> Json:
    return {
        "$": "series",
        "name": encoder(value.name),
        "index": _index(encoder, value.index),
        "data": _column(encoder, value.array),
    }


def _unseries(decoder: Decoder, stored: dict[str, Json]) -> Any:
    import pandas as pd

    name, index = decoder(stored["name"]), _unindex(decoder, stored["index"])
    return pd.Series(_uncolumn(decoder, stored["data"]), index=index, name=name)


def _pandas_index(encoder: Encoder, value: Any) -> Json:
    return {"$": "index", **_index(encoder, value)}


def _timestamp(encoder: Encoder, value: Any) -> Json:
    zone = getattr(value.tzinfo, "key", None) or (None if value.tzinfo is None else str(value.tzinfo))
    return {"$": "timestamp", "v": int(value.value), "unit": value.unit, "tz": zone}


def _untimestamp(decoder: Decoder, stored: dict[str, Json]) -> Any:
    import pandas as pd

    made = pd.Timestamp(int(stored["v"]), unit="ns", tz=stored["tz"])
    return made.as_unit(str(stored["unit"]))


def _unmissing(decoder: Decoder, stored: dict[str, Json]) -> Any:
    import pandas as pd

    return {"NaT": pd.NaT, "<NA>": pd.NA}[stored["v"]]


def optional(encoder: Encoder, value: Any) -> Json:
    """Values of libraries that may not be installed, known by their loaded module; else `NotImplemented`."""
    root, name = type(value).__module__.partition(".")[0], type(value).__name__
    if root == "numpy":
        np = sys.modules["numpy"]
        if type(value) is np.ndarray and not (value.dtype.hasobject and value.dtype.names):
            return _array(encoder, value)
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            return {**_array(encoder, value), "scalar": True}
    if root == "pandas":
        encode = _PANDAS.get("Index" if name.endswith("Index") else name)
        return NotImplemented if encode is None else encode(encoder, value)
    return NotImplemented


_PANDAS: dict[str, Encode] = {
    "DataFrame": _checked(_frame, _unframe, "assert_frame_equal", check_exact=True, check_freq=False),
    "Series": _checked(_series, _unseries, "assert_series_equal", check_exact=True, check_freq=False),
    "Index": _checked(_pandas_index, _unindex, "assert_index_equal", exact=True),
    "Timestamp": _timestamp,
    "NaTType": _text("missing"),
    "NAType": _text("missing"),
}

# --- the tables ---------------------------------------------------------------------------------------------------

EXACT: dict[type, Encode] = {
    **container_codecs.EXACT,
    bytes: _bytes("bytes"),
    bytearray: _bytes("bytearray"),
    complex: lambda encoder, value: {"$": "complex", "v": [encoder(value.real), encoder(value.imag)]},
    range: lambda encoder, value: {"$": "range", "v": [encoder(value.start), encoder(value.stop), encoder(value.step)]},
    type(...): lambda encoder, value: {"$": "ellipsis"},
    datetime: _datetime,
    date: _text("date", date.isoformat),
    time: _time,
    timedelta: lambda encoder, value: {"$": "timedelta", "v": [value.days, value.seconds, value.microseconds]},
    Decimal: _text("decimal"),
    Fraction: lambda encoder, value: {"$": "fraction", "v": [encoder(value.numerator), encoder(value.denominator)]},
    UUID: _text("uuid"),
    **{
        cls: lambda encoder, value: {"$": "path", "flavour": type(value).__name__, "v": str(value)}
        for cls in _PATHS.values()
    },
}

KIN: tuple[tuple[type, Encode], ...] = (
    (object, optional),
    (Enum, container_codecs.enum_member),
    (PIL.Image.Image, pictures.encode),
    *container_codecs.KIN,
)

DECODERS: dict[str, Decode] = {
    **KINDS,
    **container_codecs.DECODERS,
    "bytes": lambda decoder, stored: decoder.data(stored),
    "bytearray": lambda decoder, stored: bytearray(decoder.data(stored)),
    "complex": lambda decoder, stored: complex(*(float(decoder(part)) for part in stored["v"])),
    "range": lambda decoder, stored: range(*(decoder(part) for part in stored["v"])),
    "ellipsis": lambda decoder, stored: ...,
    "datetime": _untimed(datetime),
    "date": lambda decoder, stored: date.fromisoformat(stored["v"]),
    "time": _untimed(time),
    "timedelta": lambda decoder, stored: timedelta(*stored["v"]),
    "decimal": lambda decoder, stored: Decimal(stored["v"]),
    "fraction": lambda decoder, stored: Fraction(*(decoder(part) for part in stored["v"])),
    "uuid": lambda decoder, stored: UUID(stored["v"]),
    "path": _unpath,
    "image": pictures.decode,
    "array": _unarray,
    "frame": _unframe,
    "series": _unseries,
    "index": _unindex,
    "timestamp": _untimestamp,
    "missing": _unmissing,
}
