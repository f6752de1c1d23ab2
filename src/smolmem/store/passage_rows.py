"""The `unit` table and its index: passages of steps and notes as rows, full text and vectors, which are kept in step.

One rule keeps search exact: what must not be found has no passage. The passages of a note that is superseded, forgotten
or expired, of a step that is forgotten, and of an old revision are dropped in the transaction that says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypedDict

from smolmem.core.rows import Passage
from smolmem.store.base import Row, Store
from smolmem.store.contents import seal


class PassageOwner(TypedDict):
    """What all passages of a step or note have in common."""

    scope: str
    session: str
    step: int | None
    note: str | None
    run: str | None
    agent: str | None
    at: float


BEFORE = 300
"""Characters of each of the two passages before it that a passage is also found by."""
_WORDS = ("whose", "date", "before", "text")


def add_passages(store: Store, owner: PassageOwner, passages: Iterable[Passage]) -> None:
    """Adds passages to the index; part of the caller's transaction."""
    common = {**owner, "whose": _scope_terms(owner["scope"]), "date": _date(owner["at"])}
    before = _before(store, owner)
    for passage in passages:
        row = common | {"role": passage.role, "tool": passage.tool, "origin": passage.origin, "text": passage.text}
        row["before"] = "\n".join(_task(store, owner) if passage.role == "answer" else before[-2:])
        passage_id = store.do("add_unit", row | {"hash": seal("unit", row)})
        store.do("add_words", {name: row[name] for name in _WORDS} | {"id": passage_id})
        before.append(passage.text[-BEFORE:])


def _task(store: Store, owner: PassageOwner) -> list[str]:
    """The task that an answer answers, however long ago it was given."""
    rows = store.rows("task_before", {"session": owner["session"], "step": owner["step"]})
    return [row["text"][:BEFORE] for row in rows]


def _before(store: Store, owner: PassageOwner) -> list[str]:
    if owner["step"] is None:
        return []
    rows = store.rows("units_before", {"session": owner["session"], "step": owner["step"]})
    return [row["text"][-BEFORE:] for row in reversed(rows)]


def drop_passages(store: Store, rows: Sequence[Row]) -> None:
    """Removes passages from the index; part of the caller's transaction."""
    for row in rows:
        store.do("drop_words", {name: row[name] for name in ("id", *_WORDS)})
        store.do("drop_vector", {"scope": row["scope"], "unit": row["id"]})
        store.do("drop_unit", {"id": row["id"]})


def reindex_after(store: Store, session: str, step: int) -> None:
    """A step has changed: the passages that are also found by its words are indexed again."""
    store.do("read_again_after", {"session": session, "step": step})


def scope_term(scope: str, *, below: bool = False) -> str:
    """The index term of a scope's passages; with `below`, of the scope and all scopes in it."""
    return f"{'w' if below else 's'}{hashlib.blake2b(scope.encode(), digest_size=8).hexdigest()}0"


def _scope_terms(scope: str) -> str:
    parts = scope.split("/")
    within = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return " ".join([scope_term(scope), *(scope_term(path, below=True) for path in within)])


def _date(at: float) -> str:
    try:
        moment = datetime.fromtimestamp(at)
        return f"{moment:%A} {moment.day} {moment:%B %Y}"
    except (OverflowError, OSError, ValueError):
        return ""


def json_list(values: Iterable[Any]) -> str:
    """Numbers or texts as a list for a query."""
    return json.dumps(list(values))
