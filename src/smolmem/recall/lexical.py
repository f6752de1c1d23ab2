"""Search by words: the database's full text over whole steps and notes ("documents"), long ones in sections.

Words are weighed by their rarity in the searched scope, not in the whole store: in Ann's memory, "Ann" says nothing. In
a small scope each word is searched for by itself, so that its weight can be set. In a large scope all words are
searched for together; if they would match too much, a document must have one of the rarest words, and all words count.

Pairs of neighbouring words are searched for, too: a document that has two words of the question side by side, as a
quotation has, is better than one that has them far apart.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from smolmem.recall import query
from smolmem.recall.filters import Filter
from smolmem.store.base import Row, Store
from smolmem.store.passage_rows import documents_of, scope_term

log = logging.getLogger("smolmem")

SMALL_SCOPE = 2_000
"""Sections of a scope that is small enough to search for each word by itself."""
MAX_MATCHES, MAX_PHRASE_ROWS = 10_000, 40_000
"""Sections that are scored by their words, and rows of the index that are read for phrases."""
SECTIONS = 3
"""Sections that are listed for each listed document."""
PHRASE = 0.3
"""What a pair of neighbouring words adds, as a share of the score that a word as rare would have."""
BASE = 1.0
"""What every word tells, however common: in a memory that is all about one shop, "shop" still tells something."""
MAX_SECONDS = 1.0
"""Seconds that one search may take."""
PRIOR, PRIOR_COUNT = 10, 0.3
"""Documents that every scope is taken to have besides its own, and how many of them have a word: in a scope of three
documents, no word is common."""
SHORTEST_PREFIX = 3

Hits = list[tuple[int, float]]
"""Documents, or sections of documents, with their scores."""


_Found = tuple[Hits, float, dict[str, float]]
"""Sections, the coverage of the best one, and what each word tells."""


@dataclass(frozen=True)
class Matches:
    """What words found."""

    found: Hits
    """Documents, the best first."""
    coverage: float
    """The share of the words' information in the best match."""
    phrases: float = 0.0
    """The information of the pairs of words in the document that has the most."""
    weights: dict[str, float] = field(default_factory=dict)
    """What each word tells: the rarer it is in the searched scope, the more."""
    sections: dict[int, int] = field(default_factory=dict)
    """The best section of each document: the id of its first passage."""


class LexicalSearch:
    """The full text of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last = -1
        self._size = 0
        self._counts: dict[str, int] = {}

    def best(self, words: list[str], filters: Filter, limit: int, phrases: Sequence[str] = ()) -> Matches:
        """The documents that match some words, the best first; those that also have the phrases come earlier."""
        if not words:
            return Matches([], 0.0)
        self._refresh()
        term = None if filters.scope is None else scope_term(filters.scope, below=filters.below is not None)
        if self._size_of(term) == self._size:
            term = None  # quicker, and the same; whatever is found is compared with the filter before it is returned
        search = self._word_by_word if self._size_of(term) <= SMALL_SCOPE else self._together
        found, coverage, weights = search(words, term, filters, limit)
        side_by_side = self._phrases(phrases, term, filters) if found else {}
        scores = ((id, score + PHRASE * side_by_side.get(id, 0.0)) for id, score in found)
        ranked = sorted(scores, key=lambda hit: (-hit[1], hit[0]))
        documents, sections = self._documents(ranked, limit)
        return Matches(documents, coverage, max(side_by_side.values(), default=0.0), weights, sections)

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
            self._size = int(self._store.do("size_of_documents", {}))

    def _size_of(self, term: str | None) -> int:
        return self._size if term is None else self._count_all([query.scope_match(term)])[0]

    def _count_all(self, matches: list[str]) -> list[int]:
        new = [match for match in dict.fromkeys(matches) if match not in self._counts]
        found = self._store.rows_of_each("count_documents", [{"match": match} for match in new])
        for match, rows in zip(new, found, strict=True):
            self._counts[match] = int(next(iter(rows[0].values())))
        return [self._counts[match] for match in matches]

    def _most_similar(self, word: str) -> str:
        if len(word) >= SHORTEST_PREFIX and self._count_all([query.match([f"{word}*"], None)])[0]:
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

    def _phrases(self, phrases: Sequence[str], term: str | None, filters: Filter) -> dict[int, float]:
        """The sections that have some phrases. In a large store only the phrases of the rarest words are asked for."""
        if self._store.is_remote:  # its rows of terms do not have the order of the words
            return {}
        if self._size > SMALL_SCOPE:
            rows = {phrase: self._rows_to_read(phrase) for phrase in phrases}
            phrases = _rarest(phrases, rows, MAX_PHRASE_ROWS)
        return dict(self._find([self._search(query.match(phrases, term), filters, SMALL_SCOPE)])[0]) if phrases else {}

    def _rows_to_read(self, phrase: str) -> int:
        """How many rows of the index a search for a phrase reads."""
        return sum(self._count_all([query.match([word], None) for word in phrase.split()]))

    def _word_by_word(self, words: list[str], term: str | None, filters: Filter, limit: int) -> _Found:
        """The matches in a small scope, each word weighed by its rarity in that scope."""
        found = self._find([self._search(query.match([word], term), filters, SMALL_SCOPE) for word in words])
        size, weights = self._size_of(term), dict[str, float]()
        here = [len(hits) for hits in found]
        if not filters.is_open:
            here = self._count_all([query.match([word], term) for word in words])
        everywhere = here
        if size < self._size:
            everywhere = self._count_all([query.match([word], None) for word in words])
        total: dict[int, float] = defaultdict(float)
        covered: dict[int, float] = defaultdict(float)
        information = 0.0
        for word, count, seen, hits in zip(words, here, everywhere, found, strict=True):
            weight, scored = rarity(count, size), _fts5_rarity(seen, self._size)
            told = query.weight(word) * (weight + BASE)
            weights[word] = weight
            information += told
            for id, score in hits:
                total[id] += weight * score / scored
                covered[id] += told
        return list(total.items()), max(covered.values(), default=0.0) / information, weights

    def _together(self, words: list[str], term: str | None, filters: Filter, limit: int) -> _Found:
        """The matches in a large scope; words that most documents have are only asked for if there are no others."""
        most = term is not None and self._size_of(term) > self._size / 2
        within = None if most else term  # counting in most of the store is slower than in all of it, and no better
        size = self._size_of(within)
        counts = dict(zip(words, self._count_all([query.match([word], within) for word in words]), strict=True))
        weights = {word: rarity(count, size) for word, count in counts.items()}
        asked = [word for word in words if counts[word] < size / 3] or [min(words, key=counts.__getitem__)]
        rarest = _rarest(asked, counts, MAX_MATCHES) or [min(asked, key=counts.__getitem__)]
        scored, match = asked, query.match(asked, term)
        if len(rarest) < len(asked):
            scored, match = [*rarest, *asked], f"{query.match(rarest, None)} AND {match}"
        found = self._find([self._search(match, filters, SECTIONS * limit)])[0]
        everywhere = self._count_all([query.match([word], None) for word in scored])
        information = sum(_fts5_rarity(count, self._size) for count in everywhere)
        return found, min(1.0, found[0][1] / information) if found else 0.0, weights

    def _documents(self, sections: Hits, limit: int) -> tuple[Hits, dict[int, int]]:
        """The documents of the best sections, and the best section of each; a document has the score of that one."""
        found: dict[int, float] = {}
        places: dict[int, int] = {}
        for start in range(0, SECTIONS * limit, limit):
            page = sections[start : start + limit]
            documents = documents_of(self._store, (id for id, _ in page)) if page and len(found) < limit else {}
            for section, score in page:
                if section in documents:
                    places.setdefault(documents[section], section)
                    found.setdefault(documents[section], score)
        return list(found.items())[:limit], places

    def _search(self, match: str, filters: Filter, limit: int) -> tuple[str, Row]:
        """A search as the name of a statement and its values."""
        values: Row = {"match": match, "limit": limit}
        return ("find_documents", values) if filters.is_open else ("find_documents_where", values | filters.values)

    def _find(self, searches: list[tuple[str, Row]]) -> list[Hits]:
        """The matches of searches that use the same statement; a server gets all of them with one message."""
        try:
            if self._store.is_remote:
                found = self._store.rows_of_each(searches[0][0], [values for _, values in searches], MAX_SECONDS)
                return [[(row["id"], row["score"]) for row in rows] for rows in found]
            columns = (self._store.columns(name, values, MAX_SECONDS) for name, values in searches)
            return [list(zip(*each, strict=True)) if each else [] for each in columns]
        except TimeoutError as late:
            log.warning("smolmem stopped a search by words: %s. Ask for fewer or rarer words.", late)
            return [[] for _ in searches]


def _rarest(terms: Sequence[str], counts: Mapping[str, int], most: int) -> list[str]:
    """The rarest terms that together occur in at most so many rows."""
    ranked = sorted(terms, key=counts.__getitem__)
    together = accumulate(map(counts.__getitem__, ranked))
    return [term for term, count in zip(ranked, together, strict=True) if count <= most]


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
