"""Search by words: SQLite's full text over whole steps and notes ("documents"), and over their passages.

Words are weighed by their rarity in the searched scope, not in the whole store: in Ann's memory, "Ann" says nothing. In
a small scope each word is searched for by itself, so that its weight can be set. In a large scope all words are
searched for together; if they would match too much, a document must have one of the rarest words, and all words count.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from smolmem.recall import query
from smolmem.recall.filters import Filter
from smolmem.store.base import Row, Store
from smolmem.store.passage_rows import json_list, scope_term

log = logging.getLogger("smolmem")

Level = Literal["documents", "passages"]
SMALL_SCOPE = 5_000
"""Documents or passages of a scope that is small enough to search for each word by itself."""
MAX_MATCHES = 3_000
"""Documents or passages that are scored by their words."""
BASE = 1.0
"""What every word tells, however common: in a memory that is all about one shop, "shop" still tells something."""
MAX_SECONDS = 1.0
"""Seconds that one search may take."""
PRIOR, PRIOR_COUNT = 10, 0.3
"""Documents that every scope is taken to have besides its own, and how many of them have a word: in a scope of three
documents, no word is common."""
SHORTEST_PREFIX = 3


@dataclass(frozen=True)
class Matches:
    """What words found: ids with scores, the best first; and the share of the words' information in the best match."""

    found: list[tuple[int, float]]
    coverage: float


class LexicalSearch:
    """The full text of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last = -1
        self._sizes: dict[Level, int] = {}
        self._counts: dict[tuple[Level, str], int] = {}

    def best(self, level: Level, words: list[str], filters: Filter, limit: int) -> Matches:
        """The documents or passages that match some words, the best first."""
        if not words:
            return Matches([], 0.0)
        self._refresh()
        term = None if filters.scope is None else scope_term(filters.scope, below=filters.below is not None)
        size = self._sizes[level] if term is None else self._count(level, query.scope_match(term))
        if size <= SMALL_SCOPE:
            return self._word_by_word(level, words, size, term, filters, limit)
        return self._together(level, words, term, filters, limit)

    def similar(self, words: list[str]) -> list[str]:
        """Words of the store that may be meant by words that are not in it: longer ones, or misspelled ones."""
        self._refresh()
        return [self._most_similar(word) for word in words]

    # --- counting --------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Counts again when something was added; in a large store, once a tenth is new: rarity need not be exact."""
        last = int(self._store.do("last_passage", {}))
        if not (0.9 * last if last > SMALL_SCOPE else last) <= self._last <= last:
            self._last = last
            self._counts.clear()
            levels: tuple[Level, ...] = ("documents", "passages")
            self._sizes = {level: int(self._store.do(f"size_of_{level}", {})) for level in levels}

    def _count(self, level: Level, match: str) -> int:
        self._count_all(level, [match])
        return self._counts[level, match]

    def _count_all(self, level: Level, matches: list[str]) -> None:
        new = [match for match in dict.fromkeys(matches) if (level, match) not in self._counts]
        found = self._store.rows_of_each(f"count_{level}", [{"match": match} for match in new])
        for match, rows in zip(new, found, strict=True):
            self._counts[level, match] = int(next(iter(rows[0].values())))

    def _most_similar(self, word: str) -> str:
        if len(word) >= SHORTEST_PREFIX and self._count("documents", query.match([f"{word}*"], None)):
            return f"{word}*"
        if len(word) <= SHORTEST_PREFIX:
            return word
        given = {"first": word[0], "last": chr(ord(word[0]) + 1), "limit": 50_000}
        near = [row["term"] for row in self._store.rows("terms_from", given) if abs(len(row["term"]) - len(word)) <= 2]
        pieces = _pieces(word)
        near.sort(key=lambda term: -len(pieces & _pieces(term)))
        allowed = 1 if len(word) < 8 else 2
        stems = {word, word.rstrip("eys")}  # the terms of the index have no endings
        return next((term for term in near[:50] if min(_distance(stem, term) for stem in stems) <= allowed), word)

    # --- searching -------------------------------------------------------------------------------------------------

    def _word_by_word(
        self, level: Level, words: list[str], size: int, term: str | None, filters: Filter, limit: int
    ) -> Matches:
        """The matches in a scope of `size`, each word weighed by its rarity in that scope."""
        total: dict[int, float] = defaultdict(float)
        covered: dict[int, float] = defaultdict(float)
        information = 0.0
        self._count_all(level, [query.match([word], term) for word in words])
        present = [word for word in words if self._count(level, query.match([word], term))]
        self._count_all(level, [query.match([word], None) for word in present])
        asked = [self._search(level, query.match([word], term), filters, SMALL_SCOPE) for word in present]
        found = dict(zip(present, self._find(asked), strict=True))
        for word in words:
            here = self._count(level, query.match([word], term))
            weight = query.weight(word) * rarity(here, size)
            told = weight + query.weight(word) * BASE
            information += told
            if here:
                scored = _fts5_rarity(self._count(level, query.match([word], None)), self._sizes[level])
                for id, score in found[word]:
                    total[id] += weight * score / scored
                    covered[id] += told * min(1.0, math.sqrt(score / scored))
        best = sorted(total.items(), key=lambda hit: (-hit[1], hit[0]))
        return Matches(best[:limit], max(covered.values(), default=0.0) / information)

    def _together(self, level: Level, words: list[str], term: str | None, filters: Filter, limit: int) -> Matches:
        size = self._sizes[level]
        self._count_all(level, [query.match([word], None) for word in words])
        counts = {word: self._count(level, query.match([word], None)) for word in words}
        telling = [word for word in words if counts[word] < size / 3]  # SQLite gives the others hardly any weight
        words = telling or sorted(words, key=lambda word: counts[word])[:1]
        share = 1.0 if term is None else self._count(level, query.scope_match(term)) / max(1, size)
        rarest: list[str] = []
        matched = 0.0
        for word in sorted(words, key=lambda word: counts[word]):
            matched += share * counts[word]
            if rarest and matched > MAX_MATCHES:
                break
            rarest.append(word)
        asked = words if len(rarest) == len(words) else [*rarest, *words]
        information = sum(_fts5_rarity(counts[word], size) for word in asked)

        def matches(found: list[tuple[int, float]]) -> Matches:
            return Matches(found[:limit], min(1.0, found[0][1] / information) if found else 0.0)

        if filters.is_open and term is not None and share > 0.5:  # quicker than searching for the scope's term
            found = self._matches(level, words, None, filters, 2 * limit, rarest)
            mine = self._in_scope(found, filters)
            if len(mine) >= limit or len(found) < 2 * limit:
                return matches(mine)
        return matches(self._matches(level, words, term, filters, limit, rarest))

    def _matches(
        self,
        level: Level,
        words: list[str],
        term: str | None,
        filters: Filter,
        limit: int,
        rarest: list[str] | None = None,
    ) -> list[tuple[int, float]]:
        match = query.match(words, term)
        if rarest is not None and len(rarest) < len(words):
            match = f"{query.match(rarest, None)} AND {match}"
        return self._find([self._search(level, match, filters, limit)])[0]

    def _search(self, level: Level, match: str, filters: Filter, limit: int) -> tuple[str, Row]:
        """A search as the name of a statement and its values."""
        name, values = f"find_{level}", {"match": match, "limit": limit}
        if not filters.is_open:
            name = f"{name}_where"
            values |= {"since": filters.since, "until": filters.until, "apart": filters.excluded_session}
            columns = filters.columns if level == "passages" else filters.document_columns
            values |= {f"{name}s": None if given is None else json_list(given) for name, given in columns.items()}
            if level == "passages":
                values["but"] = json_list(filters.excluded_kinds)
        return name, values

    def _find(self, searches: list[tuple[str, Row]]) -> list[list[tuple[int, float]]]:
        """The matches of searches that use the same statement; here one after the other, at a server together."""
        groups = [searches] if self._store.is_remote and searches else [[search] for search in searches]
        return [matches for group in groups for matches in self._find_together(group)]

    def _find_together(self, searches: list[tuple[str, Row]]) -> list[list[tuple[int, float]]]:
        try:
            found = self._store.rows_of_each(searches[0][0], [values for _, values in searches], MAX_SECONDS)
        except TimeoutError as late:
            log.warning("smolmem stopped a search by words: %s. Ask for fewer or rarer words.", late)
            return [[] for _ in searches]
        return [[(row["id"], row["score"]) for row in rows] for rows in found]

    def _in_scope(self, found: list[tuple[int, float]], filters: Filter) -> list[tuple[int, float]]:
        rows = self._store.rows("there", {"ids": json_list(id for id, _ in found)})
        inside = {row["id"] for row in rows if filters.includes(row["scope"])}
        return [hit for hit in found if hit[0] in inside]


def rarity(count: int, of: int) -> float:
    """The information of a word that so many of so many documents have."""
    having, size = count + PRIOR_COUNT, of + PRIOR
    return math.log(1 + (size - having + 0.5) / (having + 0.5))


def _fts5_rarity(count: int, of: int) -> float:
    """The weight that SQLite's bm25() gives a word."""
    weight = math.log((of - count + 0.5) / (count + 0.5)) if count < of else 0.0
    return max(weight, 1e-6)


def _pieces(word: str) -> set[str]:
    padded = f" {word} "
    return {padded[start : start + 2] for start in range(len(padded) - 1)}


def _distance(one: str, other: str) -> int:
    """How many letters must be added, left out or changed to make one word another."""
    above = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        here = [row]
        for column, letter_there in enumerate(other, 1):
            here.append(min(above[column] + 1, here[-1] + 1, above[column - 1] + (letter != letter_there)))
        above = here
    return above[-1]
