"""Compressed text in a SQLite file, and the SQL functions that read and write it: `plain()` and `packed()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw

from smolmem.core.encoding import packing
from smolmem.store.base import Row

SHORT = 200
"""Characters of a text that is not worth packing."""


def add_functions(connection: apsw.Connection) -> None:
    """Gives a connection the functions that the statements use."""
    functions: dict[str, Callable[..., Any]] = {"packed": packed, "plain": _plain}
    for name, function in functions.items():
        connection.create_scalar_function(name, function, -1, deterministic=True, flags=apsw.SQLITE_INNOCUOUS)


def packed(text: Any) -> Any:
    """A text as it lies in the file: packed, if that saves space."""
    if not isinstance(text, str) or len(text) < SHORT:
        return text
    data = text.encode("utf-8", "surrogatepass")
    smaller = packing.pack(data)
    return smaller if len(smaller) < len(data) else text


def plain(stored: Any) -> Any:
    """The text that was packed.

    Raises:
        Undecodable: the bytes are damaged.
    """
    if not isinstance(stored, bytes):
        return stored
    try:
        return packing.unpack(stored).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise packing.Undecodable(f"is not text: {error}") from error


def unpacked(rows: list[Row]) -> list[Row]:
    """Rows whose `text` is text.

    Raises:
        Undecodable: a text is damaged.
    """
    if rows and "text" in rows[0]:
        for row in rows:
            row["text"] = plain(row["text"])
    return rows


def _plain(stored: Any, most: int | None = None) -> Any:
    """The first characters of a text, for SQL; NULL if it is damaged: whoever reads the row itself is told so."""
    try:
        text = plain(stored)
    except packing.Undecodable:
        return None
    return text[:most] if isinstance(text, str) else text
