"""Where the searchable pieces of steps and notes are kept: rows, full text and vectors that live and die together.

One rule keeps search exact: what is not to be found has no unit. A note that is superseded, forgotten or expired, a
step that is forgotten, a revision that is past: their units are dropped in the transaction that says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypedDict

from smolmem.record.values import Piece
from smolmem.store.base import Row, Store
from smolmem.store.records import seal


class Place(TypedDict):
    """What all units of a step or note have in common."""

    scope: str
    session: str
    step: int | None
    note: str | None
    run: str | None
    agent: str | None
    at: float


BEFORE = 300
"""Characters of each of the two units before it that a unit is also found by."""
_WORDS = ("whose", "date", "before", "text")


def add_units(store: Store, place: Place, pieces: Iterable[Piece]) -> None:
    """Makes pieces findable; part of a transaction of the caller's."""
    common = {**place, "whose": _whose(place["scope"]), "date": _date(place["at"])}
    before = _before(store, place)
    for piece in pieces:
        row = common | {"role": piece.role, "tool": piece.tool, "origin": piece.origin, "text": piece.text}
        row["before"] = "\n".join(_task(store, place) if piece.role == "answer" else before[-2:])
        unit = store.do("add_unit", row | {"hash": seal("unit", row)})
        store.do("add_words", {name: row[name] for name in _WORDS} | {"id": unit})
        before.append(piece.text[-BEFORE:])


def _task(store: Store, place: Place) -> list[str]:
    """What an answer answers, however long ago it was asked."""
    rows = store.rows("task_before", {"session": place["session"], "step": place["step"]})
    return [row["text"][:BEFORE] for row in rows]


def _before(store: Store, place: Place) -> list[str]:
    if place["step"] is None:
        return []
    rows = store.rows("units_before", {"session": place["session"], "step": place["step"]})
    return [row["text"][-BEFORE:] for row in reversed(rows)]


def drop_units(store: Store, rows: Sequence[Row]) -> None:
    """Makes units unfindable, by word and by meaning; part of a transaction of the caller's."""
    for row in rows:
        store.do("drop_words", {name: row[name] for name in ("id", *_WORDS)})
        store.do("drop_vector", {"scope": row["scope"], "unit": row["id"]})
        store.do("drop_unit", {"id": row["id"]})


def forget_after(store: Store, session: str, step: int) -> None:
    """A step is no longer what it was: units that are also found by its words are made anew."""
    store.do("read_again_after", {"session": session, "step": step})


def word_of(scope: str, *, below: bool = False) -> str:
    """The word that units of a scope carry; with `below`, that of the scope and all that lies in it."""
    return f"{'w' if below else 's'}{hashlib.blake2b(scope.encode(), digest_size=8).hexdigest()}0"


def _whose(scope: str) -> str:
    parts = scope.split("/")
    within = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return " ".join([word_of(scope), *(word_of(path, below=True) for path in within)])


def _date(at: float) -> str:
    try:
        moment = datetime.fromtimestamp(at)
        return f"{moment:%A} {moment.day} {moment:%B %Y}"
    except (OverflowError, OSError, ValueError):
        return ""


def ids(numbers: Iterable[Any]) -> str:
    """Numbers or texts as a query's list."""
    return json.dumps(list(numbers))
