"""Pictures ⇄ JSON: mode, size, palette, info, and the pixels as PNG or compressed bytes.

A stored picture is unpacked when its pixels are first needed. Most readers (an index, a list, an export) only need its
size, and a few stored bytes can be a picture of any size.
"""

from __future__ import annotations

import io
import zlib
from typing import Any, NamedTuple

import PIL.Image

from smolmem.core.encoding import placeholders, wire
from smolmem.core.encoding.decoder import Decoder
from smolmem.core.encoding.encoder import Encoder
from smolmem.core.encoding.packing import Undecodable, inflate
from smolmem.core.encoding.wire import Json
from smolmem.core.errors import Damaged, StoreError
from smolmem.core.recent import Recent

_PNG_MODES = {"1", "L", "LA", "RGB", "RGBA"}
_DEFLATES_TO = 1032  # bytes, at most, from one byte
_images: Recent[str, bytes] = Recent(32_000_000, len)


def encode(encoder: Encoder, value: PIL.Image.Image) -> Json:
    """Pixels, mode, palette and info. PNG where it is exact, so that a browser can show the blob as it is."""
    if type(value) is StoredImage and value.stored is not None:
        return value.stored.encode(encoder, value)
    value.load()
    raw = value.tobytes()
    made: dict[str, Json] = {"$": "image", "mode": value.mode, "size": list(value.size)}
    if value.palette is not None and value.mode in ("P", "PA"):
        made["palette"] = [value.palette.mode, encoder.data(bytes(value.palette.palette))]
    if value.info:
        made["info"] = encoder({key: item for key, item in value.info.items() if isinstance(key, str)})
    png = value.mode in _PNG_MODES and raw != b""
    known = wire.fingerprint(repr((value.mode, value.size)).encode() + raw)
    if not encoder.packs_pictures:
        return made | {"pixels": known}
    packed = _images.get(known)
    if packed is None:
        packed = _png(value) if png else zlib.compress(raw, 1)
        _images.put(known, packed)  # one picture is often attached to every step of a run
    return made | {"form": "png" if png else "raw", **encoder.data(packed)}


def _png(value: PIL.Image.Image) -> bytes:
    plain = PIL.Image.frombytes(value.mode, value.size, value.tobytes())
    out = io.BytesIO()
    plain.save(out, "PNG", compress_level=1)
    return out.getvalue()


class StoredPixels(NamedTuple):
    """A stored picture that is not unpacked."""

    mode: str
    size: tuple[int, int]
    form: str
    data: bytes
    palette: tuple[str, bytes] | None

    def encode(self, encoder: Encoder, value: PIL.Image.Image) -> Json:
        """The record of the picture, without unpacking it."""
        made: dict[str, Json] = {"$": "image", "mode": self.mode, "size": list(self.size)}
        if self.palette is not None:
            made["palette"] = [self.palette[0], encoder.data(self.palette[1])]
        if value.info:
            made["info"] = encoder(value.info)
        return made | {"form": self.form, **encoder.data(self.data)}

    def unpack(self) -> PIL.Image.Image:
        """The picture, decoded by Pillow from a form of our own choosing, never from what the file claims to be.

        Raises:
            StoreError: it is larger than Pillow may unpack.
            Damaged: if the bytes are not a stored picture.
        """
        width, height = self.size
        most = PIL.Image.MAX_IMAGE_PIXELS
        if most is not None and width * height > most:
            raise StoreError(
                f"a picture of {width:,} × {height:,} pixels is not unpacked, because PIL.Image.MAX_IMAGE_PIXELS is "
                f"{most:,}: raise it if you trust where the picture comes from."
            )
        if width * height > 8 * _DEFLATES_TO * (len(self.data) + 1000):
            raise Damaged(f"{len(self.data):,} bytes cannot hold a picture of {width:,} × {height:,} pixels.")
        try:
            return self._unpacked()
        except Exception as error:  # Pillow's own, about bytes that only claim to be a picture
            raise Damaged(f"a stored picture of {width:,} × {height:,} pixels cannot be unpacked: {error}.") from error

    def _unpacked(self) -> PIL.Image.Image:
        if self.form == "png":
            with PIL.Image.open(io.BytesIO(self.data), formats=["PNG"]) as opened:
                if opened.size != self.size:
                    raise Undecodable("its size is not the one recorded")
                made = PIL.Image.frombytes(self.mode, self.size, opened.tobytes())
        else:
            raw = inflate(self.data, self.size[0] * self.size[1] * 16 + 1024)
            made = PIL.Image.frombytes(self.mode, self.size, raw) if raw else PIL.Image.new(self.mode, self.size)
        if self.palette is not None:
            made.putpalette(self.palette[1], self.palette[0])
        return made


class StoredImage(PIL.Image.Image):
    """A picture that is unpacked when its pixels are first needed, and then is a plain `PIL.Image.Image`.

    A few stored bytes can be a picture of any size, and most readers do not look at it.
    """

    stored: StoredPixels | None = None

    @classmethod
    def of(cls, stored: StoredPixels, info: dict[Any, Any]) -> StoredImage:
        """A picture that is not unpacked yet."""
        made = cls()
        made.stored, made.info = stored, info
        made._mode, made._size = stored.mode, stored.size  # as Pillow's own plugins do
        return made

    def load(self) -> Any:
        """Unpacks the picture; every method of Pillow that needs pixels calls this first."""
        stored = self.stored
        if stored is not None:
            info = self.info
            vars(self).update(vars(stored.unpack()))
            self.info = info
            self.stored = None
            self.__class__ = PIL.Image.Image  # type: ignore[assignment]
            vars(self).pop("stored", None)
        return PIL.Image.Image.load(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PIL.Image.Image) or (self.size, self.mode) != (other.size, other.mode):
            return False
        for each in (self, other):
            if isinstance(each, StoredImage):
                each.load()
        return bool(PIL.Image.Image.__eq__(self, other))

    __hash__ = None  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.load()
        return PIL.Image.Image.__reduce_ex__(self, protocol)


StoredImage.__module__, StoredImage.__name__, StoredImage.__qualname__ = "PIL.Image", "Image", "Image"


def decode(decoder: Decoder, stored: dict[str, Json]) -> PIL.Image.Image:
    """A picture that is not unpacked yet."""
    width, height = (int(side) for side in stored["size"])
    if width < 0 or height < 0:
        raise Undecodable(f"an image of {width} × {height} pixels")
    palette = (str(stored["palette"][0]), decoder.data(stored["palette"][1])) if "palette" in stored else None
    info = decoder(stored["info"]) if "info" in stored else {}
    pixels = StoredPixels(str(stored["mode"]), (width, height), str(stored["form"]), decoder.data(stored), palette)
    return StoredImage.of(pixels, info)


MAX_SHOWN = 6_000_000
"""The pixels of the largest picture that is drawn for a person."""


def is_small(value: object) -> bool:
    """Whether a value is a picture that is unpacked in order to be drawn."""
    return isinstance(value, PIL.Image.Image) and value.width * value.height <= MAX_SHOWN


def describe(value: PIL.Image.Image) -> str:
    """The text of a picture, without unpacking it."""
    return f"<a picture of {value.width:,} × {value.height:,} pixels>"


placeholders.descriptions[PIL.Image.Image] = describe
