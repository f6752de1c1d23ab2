"""The `passage` table and its indexes: passages of steps and notes as rows, full text and vectors, kept in line.

A step or note is one document, known by the id of its first passage. The full text has a row for each section of a
document, known by the id of the section's first passage, and keeps no copy of the text. Passages are what is shown, and
what has a vector. In a SQLite file a passage of a step is a place in the text of the step (`packed_text`).

One rule keeps search exact: what must not be found has no passage. The passages of a note that is superseded, forgotten
or expired, of a step that is forgotten, and of an old revision are dropped in the transaction that says so.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypedDict

from smolmem.core.rows import Passage
from smolmem.core.scripts import spaced
from smolmem.store.base import Row, Store
from smolmem.store.contents import with_hash
from smolmem.store.packed_text import pieces


class PassageOwner(TypedDict):
    """What all passages of a step or note have in common."""

    scope: str
    session: str
    step: int | None
    note: str | None
    run: str | None
    agent: str | None
    at: float


SECTION = 4_000
"""Characters of a document that are one row of the full text."""
BEFORE = 300
"""Characters of the end of each of the two documents before it that a document is also found by."""
_WORD, _JOINT = re.compile(r"\w+"), re.compile(r"[A-Z](?<=[a-z\d][A-Z])")
LONGEST_NAME = 80
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")


def add_passages(store: Store, owner: PassageOwner, passages: Sequence[Passage], earlier: Sequence[Row] = ()) -> None:
    """Adds the passages of a step or note, as one document, in place of its earlier ones; in the caller's transaction.

    If they are the same, only the full text is written: the passages keep their ids, and so their vectors.
    """
    rows = _rows(owner, passages, earlier[0]["id"]) if earlier else []
    is_same = _is_same(rows, earlier)
    if is_same:
        _drop_words(store, earlier)
    else:
        drop_passages(store, earlier)
    if not passages:
        return
    has_answer, number = any(passage.role == "answer" for passage in passages), {"count": len(passages)}
    place = {"session": owner["session"], "step": owner["step"]}
    told = [("passages_before", place), *([("task_before", place)] if has_answer else [])]
    store.read_ahead(told if is_same else [("next_passage", number), *told])
    before = spaced("\n".join([_task(store, place) if has_answer else "", *_before(store, place)]))
    if not is_same:
        rows = _rows(owner, passages, int(store.do("next_passage", number)))
    texts: Iterable[Any] = (passage.text for passage in passages)
    if not store.is_remote:
        texts = pieces(texts, store.do("step_text", place))
    for row, text in zip(rows, texts, strict=True):
        store.do("put_passage_text" if is_same else "add_passage", row | {"text": text})
    words = {"scope": _scope_terms(owner["scope"]), "date": _date(owner["at"])}
    for first, text in sections(passages):
        row = words | {"id": rows[first]["id"], "text": text, "before": "" if first else before}
        store.do("add_document_words", row)


def _rows(owner: PassageOwner, passages: Sequence[Passage], document: int) -> list[Row]:
    """Passages as sealed rows."""
    rows: list[Row] = []
    for own_id, passage in enumerate(passages, document):
        row: Row = {**owner, "id": own_id, "document": document, "text": passage.text}
        row |= {"role": passage.role, "tool": passage.tool, "origin": passage.origin, "trust": passage.trust}
        rows.append(with_hash("passage", row))
    return rows


def _is_same(rows: Sequence[Row], earlier: Sequence[Row]) -> bool:
    return bool(rows) and [(row["id"], row["hash"]) for row in rows] == [(row["id"], row["hash"]) for row in earlier]


def sections(passages: Sequence[Passage]) -> Iterator[tuple[int, str]]:
    """The text of a document in sections, as it is indexed, each with the place of its first passage.

    A word in a long text counts little; in sections, a page of 50,000 characters is found by a sentence of it.
    """
    first, texts = 0, list[str]()
    for place, passage in enumerate(passages):
        if texts and sum(map(len, texts)) + len(passage.text) > SECTION:
            yield first, searchable("\n".join(texts))
            first, texts = place, []
        texts.append(passage.text)
    yield first, searchable("\n".join(texts))


def _before(store: Store, place: Row) -> list[str]:
    """The ends of the two documents before a step."""
    earlier: dict[int, str] = {}
    for row in store.rows("passages_before", place):
        if row["role"] == "task" and row["document"] in earlier:
            earlier[row["document"]] = ""  # long instructions are about the whole run
        else:
            earlier[row["document"]] = f"{earlier.get(row['document'], '')}\n{row['text']}"[-BEFORE:]
    return list(earlier.values())


def _task(store: Store, place: Row) -> str:
    """The task that an answer answers, however long ago it was given."""
    rows = store.rows("task_before", place)
    return "".join(row["text"][:BEFORE] for row in rows)


def searchable(text: str) -> str:
    """A text as it is searched, with the parts of its identifiers: "check health" finds `checkHealth`."""
    text = spaced(text)
    names = dict.fromkeys(_identifiers(text))
    return "\n".join([text, *(" ".join(_PART.findall(name)) for name in names)]) if names else text


def _identifiers(text: str) -> Iterator[str]:
    """The words with a capital letter inside; none that is as long as only data is."""
    end = 0
    for joint in _JOINT.finditer(text):
        start = joint.start()
        if start >= end:
            while start > end and (text[start - 1].isalnum() or text[start - 1] == "_"):
                start -= 1
            word = _WORD.match(text, start)
            if word is not None:
                end = word.end()
                if end - start <= LONGEST_NAME:
                    yield word[0]


def drop_passages(store: Store, rows: Sequence[Row]) -> None:
    """Removes passages from the index; part of the caller's transaction."""
    _drop_words(store, rows)
    for row in rows:
        store.do("drop_vector", {"id": row["id"]})
        store.do("drop_passage", {"id": row["id"]})


def _drop_words(store: Store, rows: Sequence[Row]) -> None:
    for row in rows:
        store.do("drop_document_words", {"id": row["id"]})


def reindex_after(store: Store, session: str, step: int) -> None:
    """A step has changed: the passages that are also found by its words are indexed again."""
    store.do("index_again_after", {"session": session, "step": step})


def scope_term(scope: str, *, below: bool = False) -> str:
    """The index term of a scope; with `below`, of the scope and all scopes in it."""
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


def documents_of(store: Store, passages: Iterable[int]) -> dict[int, int]:
    """The document of each passage that still exists."""
    found = store.columns("there", {"ids": json_list(passages)})
    return dict(zip(*found, strict=True)) if found else {}


def json_list(values: Iterable[Any]) -> str:
    """Numbers or texts as a list for a query."""
    return json.dumps(list(values))
