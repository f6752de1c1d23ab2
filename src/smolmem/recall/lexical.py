"""Search by words: the database's full text over whole steps and notes ("documents"), long ones in sections.

Words are weighed by their rarity in the searched scope, not in the whole store: in Ann's memory, "Ann" says nothing. In
a small scope each word is searched for by itself, so that its weight can be set. In a large scope the rarest words are
searched for together, as many as full text can score in time.

The texts of the best sections are read, to count the other words and the pairs of neighbouring words: a document that
has two words of the question side by side, as a quotation has, is better than one that has them far apart.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter

from smolmem.recall import query
from smolmem.recall.calibration import Evidence
from smolmem.recall.english import OTHER, information
from smolmem.recall.filters import Filter
from smolmem.recall.section_scores import (
    Pair,
    best_coverage,
    find_pairs,
    known_terms,
    pairs_of,
    rarity,
    term_of,
    word_scores,
)
from smolmem.recall.sections import Section, SectionReader
from smolmem.store.base import Row, Store
from smolmem.store.passage_rows import BEFORE, documents_of, scope_term

log = logging.getLogger("smolmem")

SMALL_SCOPE = 2_000
"""Sections of a scope that is small enough to search for each word by itself."""
LEAST_WEIGHT = 0.25
"""The weight of a word that four of five sections have. In a small scope, such words are only counted in the texts of
the best sections, unless the other words match too few: they cost most, and hardly change the order."""
MAX_MATCHES = 10_000
"""Sections that full text scores in a large scope, unless the rarest word alone stands in more."""
MOST_MATCHES = 20_000
"""Sections that full text scores at most: of words that stand in more, the newest sections are taken."""
SECTIONS = 3
"""Sections that are listed for each listed document."""
FEWEST = 30
"""Documents whose sections are compared at least: how well the best one fits does not depend on how many are wanted."""
EVERYWHERE, RARE = 0.5, 1.5
"""What a word tells that all sections of a scope have, beside one that a third of them have: in a memory that is all
about one shop, "shop" tells a third."""
PHRASE = 0.3
"""What a pair of neighbouring words adds, as a share of the score that a word as rare would have."""
MAX_SECONDS = 1.0
"""Seconds that one search may take."""
SHORTEST_PREFIX = 3
LONGER_TERMS = 1_000
"""Terms that are looked for in texts, of those that begin with a word."""

Hits = list[tuple[int, float]]
"""Documents, or sections of documents, with their scores."""


@dataclass(frozen=True)
class _Found:
    """What full text found for words."""

    sections: Hits
    weights: dict[str, float]
    absent: frozenset[str]
    """The words that no section of the scope has."""
    unasked: list[str] = field(default_factory=list)
    """The words that full text was not asked for."""


@dataclass(frozen=True)
class Matches:
    """What words found."""

    found: Hits = field(default_factory=list)
    """Documents, the best first."""
    weights: dict[str, float] = field(default_factory=dict)
    """What each word tells: the rarer it is in the searched scope, the more."""
    sections: dict[int, int] = field(default_factory=dict)
    """The best section of each document: the id of its first passage."""
    absent: frozenset[str] = frozenset()
    """The words that no section of the scope has."""
    read: list[Section] = field(default_factory=list)
    """The best sections."""
    pairs: dict[int, dict[Pair, float]] = field(default_factory=dict)
    """The pairs of neighbouring words that these sections have, and what each tells."""
    size: int = 0
    """How many sections were searched."""

    @property
    def pair_scores(self) -> dict[int, float]:
        """What the pairs in the best section of each document tell together."""
        return {document: sum(self.pairs.get(id, {}).values()) for document, id in self.sections.items()}

    def documents_without(self, words: Iterable[str]) -> set[int]:
        """The documents, of those with the best sections, that have none of some words: those before them have."""
        asked = {term_of(word) for word in words}
        named = {section.document for section in self.read if known_terms(section, asked)}
        return {section.document for section in self.read} - named

    def quoted(self, phrases: Sequence[str]) -> float:
        """What the pairs of neighbouring words in the best section tell, less if the question has many."""
        asked = pairs_of(phrases)
        told = (sum(told for pair, told in here.items() if pair in asked) for here in self.pairs.values())
        return max(told, default=0.0) / math.sqrt(len(phrases) + 4)

    def evidence(self, words: Iterable[str], phrases: Sequence[str], names: Collection[str]) -> Evidence:
        """How well the best sections fit the question, or a part of it."""
        told = {word: information(word) * _share_told(self.weights[word]) for word in words if word in self.weights}
        if not told:
            return Evidence()
        total = sum(told.values())
        coverage, nearby = best_coverage(self.read, told)
        length = sum(section.length for section in self.read) / (len(self.read) or 1)
        return Evidence(
            information=total,
            most=max(told.values()),
            coverage=coverage,
            nearby=nearby,
            unknown=sum(weight for word, weight in told.items() if word in self.absent and word in names) / total,
            quoted=self.quoted(phrases),
            volume=self.size * (length + 2 * BEFORE),
        )


class LexicalSearch:
    """The full text of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sections = SectionReader(store)
        self._last = -1
        self._size = 0
        self._counts: dict[str, int] = {}

    def best(
        self,
        words: list[str],
        filters: Filter,
        limit: int,
        phrases: Sequence[str] = (),
    ) -> Matches:
        """The documents that match some words, the best first; those that also have the phrases come earlier."""
        if not words:
            return Matches()
        self._refresh()
        term = self._scope_of(filters)
        size = self._size_of(term)
        search = self._word_by_word if size <= SMALL_SCOPE else self._together
        listed = max(limit, FEWEST)
        found = search(words, term, filters, listed)
        ids = [id for id, _ in found.sections]
        read = self._sections.read(ids, {term_of(word.rstrip("*")) for word in words} | self._longer_terms(words))
        documents = {section.id: section.document for section in read}
        for start in range(len(documents), len(ids), listed):
            if len(set(documents.values())) < listed:
                documents |= documents_of(self._store, ids[start : start + listed])
        pairs = find_pairs(read, phrases, size)
        by_words = word_scores(read, {word: found.weights[word] for word in found.unasked})
        extra = {id: score + PHRASE * sum(pairs[id].values()) for id, score in by_words.items()}
        best, places = _ranked(found.sections, extra, documents)
        return Matches(best[:limit], found.weights, places, found.absent, read, pairs, size)

    def similar(self, words: list[str], filters: Filter) -> list[str]:
        """Words of the scope that may be meant by words that are not in it: longer ones, or misspelled ones."""
        self._refresh()
        scope = self._scope_of(filters)
        return [self._most_similar(word, scope) for word in words]

    # --- counting --------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Counts again when something was added; in a large store, once a tenth is new: rarity need not be exact."""
        last = int(self._store.do("last_passage", {}))
        if not (0.9 * last if last > SMALL_SCOPE else last) <= self._last <= last:
            size = int(self._store.do("size_of_documents", {}))
            self._counts, self._size, self._last = {}, size, last  # another thread may be using the old counts

    def _scope_of(self, filters: Filter) -> str | None:
        """The term of the scope; None if the scope is the whole store.

        That is quicker, and the same; whatever is found is compared with the filter before it is returned.
        """
        term = None if filters.scope is None else scope_term(filters.scope, below=filters.below is not None)
        return None if self._size_of(term) == self._size else term

    def _size_of(self, term: str | None) -> int:
        return self._size if term is None else self._count_all([query.scope_match(term)])[0]

    def _count_all(self, matches: list[str]) -> list[int]:
        counts = self._counts
        new = [match for match in dict.fromkeys(matches) if match not in counts]
        found = self._store.rows_of_each("count_documents", [{"match": match} for match in new])
        for match, rows in zip(new, found, strict=True):
            counts[match] = int(next(iter(rows[0].values())))
        return [counts[match] for match in matches]

    def _most_similar(self, word: str, scope: str | None) -> str:
        if len(word) >= SHORTEST_PREFIX and self._count_all([query.match([f"{word}*"], scope)])[0]:
            return f"{word}*"
        if len(word) <= SHORTEST_PREFIX or information(word) < OTHER:
            return word  # a common word is spelled as it is meant
        given = {"first": word[0], "last": _after(word[0]), "limit": 50_000}
        stem = term_of(word)
        allowed = {one: _mistakes(one) for one in (word, stem)}
        lengths = {length for one in allowed for length in range(len(one) - 2, len(one) + 3)}
        near = [row["term"] for row in self._store.rows("terms_from", given) if len(row["term"]) in lengths]
        pieces = _pieces(word)
        near.sort(key=lambda term: -len(pieces & _pieces(term)))  # the terms of the index have no endings
        close = [term for term in near[:50] if any(_distance(one, term) <= most for one, most in allowed.items())]
        counts = self._count_all([query.match([term], scope) for term in close])
        return next((term for term, count in zip(close, counts, strict=True) if count), word)

    def _longer_terms(self, words: Iterable[str]) -> set[str]:
        """The terms of the store that begin with one of the words that end with `*`."""
        beginnings = [word[:-1] for word in words if word.endswith("*")]
        given = [{"first": first, "last": _after(first), "limit": LONGER_TERMS} for first in beginnings]
        return {row["term"] for each in given for row in self._store.rows("terms_from", each)}

    # --- searching -------------------------------------------------------------------------------------------------

    def _word_by_word(self, words: list[str], term: str | None, filters: Filter, limit: int) -> _Found:
        """The matches in a small scope, each word weighed by its rarity in that scope."""
        size = self._size_of(term)
        within, anywhere = ([query.match([word], of) for word in words] for of in (term, None))
        counts = iter(self._count_all([*within, *(anywhere if size < self._size else within)]))  # in one message
        here, everywhere = dict(zip(words, counts, strict=False)), dict(zip(words, counts, strict=True))
        weights = {word: rarity(here[word], size) for word in words}
        rare = [word for word in words if weights[word] >= LEAST_WEIGHT]
        asked = rare if sum(here[word] for word in rare) >= limit else words
        found = self._find([self._search(query.match([word], term), filters, SMALL_SCOPE) for word in asked])
        total: dict[int, float] = defaultdict(float)
        for word, hits in zip(asked, found, strict=True):
            scale = weights[word] / _fts5_rarity(everywhere[word], self._size)
            for id, score in hits:
                total[id] += scale * score
        ranked = sorted(total.items(), key=itemgetter(1, 0), reverse=True)[: SECTIONS * limit]
        absent = frozenset(word for word in words if not here[word])
        return _Found(ranked, weights, absent, [word for word in words if word not in asked])

    def _together(self, words: list[str], term: str | None, filters: Filter, limit: int) -> _Found:
        """The matches in a large scope: of the rarest words."""
        most = term is not None and self._size_of(term) > self._size / 2
        within = None if most else term  # counting in most of the store is slower than in all of it, and no better
        size = self._size_of(within)
        counts = dict(zip(words, self._count_all([query.match([word], within) for word in words]), strict=True))
        weights = {word: rarity(count, size) for word, count in counts.items()}
        asked = _rarest(words, counts)
        if filters.is_open and counts[asked[0]] > MOST_MATCHES:
            found = self._find([("newest_documents", {"match": query.match(asked, term), "limit": limit})])[0]
        else:
            found = self._find([self._search(query.match(asked, term), filters, SECTIONS * limit)])[0]
        absent = frozenset(word for word, count in counts.items() if not count)
        return _Found(found, weights, absent, [word for word in words if word not in asked])

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
            return [list(zip(*each, strict=True)) for each in columns]
        except TimeoutError as late:
            log.warning("smolmem stopped a search by words: %s. Ask for fewer or rarer words.", late)
            return [[] for _ in searches]


def _after(beginning: str) -> str:
    """The first text after all texts with this beginning, in alphabetical order."""
    return beginning[:-1] + chr(ord(beginning[-1]) + 1)


def _rarest(words: Sequence[str], counts: Mapping[str, int]) -> list[str]:
    """The rarest words: as many as full text can score in time, and the rarest one in any case."""
    ranked = sorted((word for word in words if counts[word]), key=counts.__getitem__) or list(words[:1])
    together = accumulate(map(counts.__getitem__, ranked))
    return [word for word, count in zip(ranked, together, strict=True) if count <= MAX_MATCHES] or ranked[:1]


def _ranked(hits: Hits, extra: Mapping[int, float], documents: Mapping[int, int]) -> tuple[Hits, dict[int, int]]:
    """The documents of sections, and the best section of each; of equally good documents, the newest comes first."""
    scores = {id: score + extra.get(id, 0.0) for id, score in hits if id in documents}
    found: dict[int, float] = {}
    places: dict[int, int] = {}
    for id in sorted(scores, key=lambda id: (-scores[id], -documents[id], id)):
        found.setdefault(documents[id], scores[id])
        places.setdefault(documents[id], id)
    return list(found.items()), places


def _share_told(weight: float) -> float:
    """How much of what a word tells in English it tells in a scope where it has this weight."""
    return min(1.0, (weight + EVERYWHERE) / RARE)


def _fts5_rarity(count: int, of: int) -> float:
    """The weight that SQLite's bm25() gives a word."""
    weight = math.log((of - count + 0.5) / (count + 0.5)) if count < of else 0.0
    return max(weight, 1e-6)


def _mistakes(word: str) -> int:
    """How many letters of a word may be wrong."""
    return 1 if len(word) < 8 else 2


def _pieces(word: str) -> set[str]:
    padded = f" {word} "
    return {padded[start : start + 2] for start in range(len(padded) - 1)}


def _distance(one: str, other: str) -> int:
    """How many letters must be added, left out, changed or swapped with the next to make one word another."""
    before: list[int] = []
    above = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        here = [row]
        for column, letter_there in enumerate(other, 1):
            changes = min(above[column] + 1, here[-1] + 1, above[column - 1] + (letter != letter_there))
            if min(row, column) > 1 and one[row - 2] == letter_there and other[column - 2] == letter:
                changes = min(changes, before[column - 2] + 1)
            here.append(changes)
        before, above = above, here
    return above[-1]
