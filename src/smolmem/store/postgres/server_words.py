"""Full text on PostgreSQL, with the terms and the scores of SQLite.

Texts are split into terms by SQLite's own tokenizer, in this process, so both stores find the same. A row holds each of
its terms once, with how often the row has the term, weighed by the column that it stands in; `queries.sql` computes
BM25 from that, as SQLite does. PostgreSQL's own text search knows no rarity, and the distributed engines lack parts of
it; arrays of texts and their inverted index they have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from smolmem.store.base import Row
from smolmem.store.terms import kept_terms

Query = Callable[[str, Mapping[str, Any]], list[Row]]
"""Runs a named query."""

_COLUMNS = {
    "add_document_words": {"scope": 0.0, "date": 1.0, "before": 0.2, "text": 1.0},
}
_GROUP = re.compile(r'"([^"]*)"( \*)?')
_FILTERS = dict.fromkeys(("since", "until", "runs", "agents", "apart", "roles", "trusts")) | {"but": "[]"}
_SEARCHES = {
    "count_documents": "count_documents",
    "newest_documents": "newest_documents",
    "find_documents": "find_documents_where",
    "find_documents_where": "find_documents_where",
}
"""Statements that search, and those that do: without filters, all filters of a statement are open."""


def in_terms(name: str, values: Mapping[str, Any], query: Query) -> tuple[str, Mapping[str, Any]]:
    """A statement and its values; those of full text with terms instead of texts."""
    if name in _COLUMNS:
        return name, _row_values(name, values)
    if name in _SEARCHES:
        return _SEARCHES[name], _query_values(values, query)
    return name, values


def _row_values(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The terms of a row, and their weighed counts."""
    counts: Counter[str] = Counter()
    size = 0
    for column, weight in _COLUMNS[name].items():
        terms = kept_terms(values[column])
        size += len(terms)
        for term in terms:
            counts[term] += weight  # type: ignore[assignment]
    return {"id": values["id"], "size": size, "terms": list(counts), "counts": list(counts.values())}


def _query_values(values: Mapping[str, Any], query: Query) -> dict[str, Any]:
    """A full-text query of `recall.query` as lists of terms: all of `all`, one of `any`; `scored` are counted."""
    every: list[str] = []
    groups: list[list[str]] = []
    for part in values["match"].split(" AND "):
        if part.startswith("scope : "):
            every += _terms(part, query)
        else:
            groups.append(_terms(part, query))
    scored = [term for group in groups for term in group]
    told = {"all": every, "any": groups[0] if groups else None, "scored": scored}
    return {**_FILTERS, **values, **told}


def _terms(group: str, query: Query) -> list[str]:
    found: list[str] = []
    for word, prefix in _GROUP.findall(group):
        terms = kept_terms(word)
        found += [longer for term in terms for longer in _beginning_with(term, query)] if prefix else terms
    return found


def _beginning_with(term: str, query: Query) -> list[str]:
    """The terms of the store that begin with one."""
    return [row["term"] for row in query("terms_from", {"first": term, "last": f"{term}\U0010ffff", "limit": 200})]
