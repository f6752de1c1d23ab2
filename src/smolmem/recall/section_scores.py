"""What the texts of sections tell about a question, beside what full text knows.

Full text of a large store is only asked for the rare words of a question, and that of PostgreSQL does not know where a
word stands. So the texts of the best sections are read: words that were not asked for are counted, and pairs of words
that stand side by side in the question and in the section, as in a quotation.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple

from smolmem.store.passage_rows import with_identifiers
from smolmem.store.terms import terms_of

SATURATION, LENGTH = 1.2, 0.75
"""The parameters of BM25 as SQLite has them: how soon more of the same word tells nothing new, and how much a long text
counts against it."""
PRIOR, PRIOR_COUNT = 10, 0.3
"""Documents that every scope is taken to have besides its own, and how many of them have a word: in a scope of three
documents, no word is common."""

NEARBY = 30
"""Words that are about as many as a sentence or two has."""


@dataclass
class Section:
    """A section of a document, known by the id of its first passage."""

    id: int
    document: int
    texts: list[str] = field(default_factory=list)

    @cached_property
    def length(self) -> int:
        """How many characters the section has."""
        return sum(map(len, self.texts))

    @cached_property
    def terms(self) -> list[str]:
        """The terms of the section, in order."""
        return terms_of(with_identifiers("\n".join(self.texts)))


class TextScore(NamedTuple):
    """What the text of a section adds: for words that full text was not asked for, and for pairs of words."""

    words: float
    pairs: float


def text_scores(
    sections: Collection[Section], weights: Mapping[str, float], words: Iterable[str], phrases: Iterable[str], size: int
) -> dict[int, TextScore]:
    """The scores of some words and phrases in sections, by section.

    Args:
        sections: the sections, with their texts.
        weights: what each word of the question tells.
        words: the words to count.
        phrases: the pairs of words to look for.
        size: how many sections are searched.
    """
    weight_of = {_term(word): weight for word, weight in weights.items()}
    counted = [_term(word) for word in words]
    asked = {(pair[0], pair[1]) for pair in map(terms_of, phrases) if len(pair) == 2}
    pairs = {section.id: asked.intersection(pairwise(section.terms) if asked else ()) for section in sections}
    told = {pair: rarity(count, size) for pair, count in Counter(chain.from_iterable(pairs.values())).items()}
    average = sum(section.length for section in sections) / (len(sections) or 1) or 1.0
    found: dict[int, TextScore] = {}
    for section in sections:
        norm = SATURATION * (1 - LENGTH + LENGTH * section.length / average)
        counts = Counter(section.terms) if counted else {}
        by_words = sum(weight_of[term] * _share(counts[term], norm) for term in counted if term in counts)
        by_pairs = sum(map(told.__getitem__, pairs[section.id]))
        found[section.id] = TextScore(by_words, by_pairs)
    return found


class Coverage(NamedTuple):
    """The largest share of what the words of a question tell: in one section, and within a few words of each other."""

    in_section: float
    nearby: float


def best_coverage(sections: Iterable[Section], told: Mapping[str, float]) -> Coverage:
    """How much of a question the best section has; a word with `*` is a beginning."""
    weights: dict[str, float] = defaultdict(float)
    for word, weight in told.items():
        weights[word if word.endswith("*") else _term(word)] += weight
    beginnings = [word for word in weights if word.endswith("*")]
    found = []
    for section in sections:
        here = frozenset(section.terms)
        known = {term: term for term in weights.keys() & here}
        known |= {term: word for word in beginnings for term in here if term.startswith(word[:-1])}
        found.append((sum(map(weights.__getitem__, {*known.values()})), known, section.terms))
    found.sort(key=lambda one: -one[0])
    nearby = 0.0
    for most, known, terms in found:
        if most <= nearby:
            break
        nearby = max(nearby, _most_nearby(terms, known, weights))
    total = sum(told.values()) or 1.0
    return Coverage(found[0][0] / total if found else 0.0, nearby / total)


def _most_nearby(terms: Iterable[str], known: Mapping[str, str], told: Mapping[str, float]) -> float:
    """The most that is told by terms of the question which stand within a few words of each other."""
    places = [(place, known[term]) for place, term in enumerate(terms) if term in known]
    counts: Counter[str] = Counter()
    best = here = 0.0
    first = 0
    for place, word in places:
        counts[word] += 1
        here += told[word] if counts[word] == 1 else 0.0
        while places[first][0] < place - NEARBY:
            gone = places[first][1]
            counts[gone] -= 1
            here -= told[gone] if not counts[gone] else 0.0
            first += 1
        best = max(best, here)
    return best


def _term(word: str) -> str:
    return "".join(terms_of(word))


def _share(count: int, norm: float) -> float:
    """How much of what a word tells is told by so many of it."""
    return (SATURATION + 1) * count / (count + norm)


def rarity(count: int, of: int) -> float:
    """The information of a word that so many of so many documents have."""
    having, size = count + PRIOR_COUNT, of + PRIOR
    return math.log(1 + (size - having + 0.5) / (having + 0.5))
