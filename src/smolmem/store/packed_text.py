"""Text in a SQLite file: how it is stored, and the SQL functions that read and write it.

A text is stored as it is, or compressed (`packed()`, `plain()`). A passage that is a piece of the text of its step is
stored as one number, where the piece begins and how long it is (`pieces`, `piece_text()`): so a text is in the file
once, however many passages it has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apsw

from smolmem.core.encoding import packing
from smolmem.store.base import Row

SHORT = 200
"""Characters of a text that is not worth packing."""
_TRIES = 10
SHORTEST_PIECE, LONGEST_PIECE = 8, 0xFFFF
"""Characters of a passage that is stored as a number."""


def add_functions(connection: apsw.Connection) -> None:
    """Gives a connection the functions that the statements use."""
    functions: dict[str, Callable[..., Any]] = {
        "packed": packed,
        "plain": _plain,
        "piece_text": piece_text,
    }
    for name, function in functions.items():
        connection.create_scalar_function(name, function, -1, deterministic=True, flags=apsw.SQLITE_INNOCUOUS)


def packed(text: Any) -> Any:
    """A text as it is stored: packed, if that saves space."""
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


def pieces(texts: Iterable[str], whole: Any) -> Iterator[Any]:
    """Passages as they are stored: each as its place in the text of its step, or packed if it is not a piece of it.

    They are in the order of the text, so each is searched for behind the one before: a text can have megabytes.
    """
    known, start = _known(whole), 0
    for text in texts:
        place = -1
        if isinstance(known, str) and SHORTEST_PIECE <= len(text) <= LONGEST_PIECE:
            place = known.find(text, start)
            place = known.find(text) if place < 0 else place
        start = max(start, place)
        yield packed(text) if place < 0 else place << 16 | len(text)


def piece_text(stored: Any, whole: Any) -> Any:
    """The text of a stored passage; empty if the text of its step is missing: the hash of the row tells.

    Raises:
        Undecodable: the bytes are damaged.
    """
    if not isinstance(stored, int):
        return plain(stored)
    start, length, known = stored >> 16, stored & LONGEST_PIECE, _known(whole)
    return known[start : start + length] if isinstance(known, str) and start >= 0 else ""


def rows_with_text(connection: apsw.Connection, statement: str, values: Row, texts: str) -> list[Row]:
    """The rows of a query, whose `text` is text.

    The texts of steps are read by a second query. If another connection writes in between, both are asked again.

    Args:
        connection: the open file.
        statement: the query.
        values: its values.
        texts: the query for the stored texts of steps.

    Raises:
        Undecodable: a text is damaged.
    """
    for _ in range(_TRIES):
        version = _version(connection) if "passage" in statement else 0
        cursor = connection.execute(statement, values)
        try:
            names = [column[0] for column in cursor.get_description()]
        except apsw.ExecutionCompleteError:  # no rows
            return []
        rows = [dict(zip(names, row, strict=True)) for row in cursor]
        if "text" not in names:
            return rows
        wholes, steps = {}, [row.get("step") for row in rows if isinstance(row["text"], int)]
        if steps:
            wholes = {step: _known(text) for step, text in connection.execute(texts, {"ids": json.dumps(steps)})}
        if not steps or version == _version(connection):
            break
    for row in rows:
        row["text"] = piece_text(row["text"], wholes.get(row.get("step")))
    return rows


def _version(connection: apsw.Connection) -> Any:
    """Changes when another connection has written."""
    return connection.execute("PRAGMA data_version").get


def _plain(stored: Any, most: int | None = None) -> Any:
    """The first characters of a text, for SQL; NULL if it is damaged: whoever reads the row itself is told so."""
    text = _known(stored)
    return text[:most] if isinstance(text, str) else text


def _known(stored: Any) -> Any:
    try:
        return plain(stored)
    except packing.Undecodable:
        return None
