"""What the texts of sections tell about a question, beside what full text knows.

Full text of a large store is only asked for the rare words of a question, and that of PostgreSQL does not know where a
word stands. So the texts of the best sections are read: words that were not asked for are counted, and pairs of words
that stand side by side in the question and in the section, as in a quotation.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from smolmem.recall.sections import Section, Terms
from smolmem.store.terms import terms_of

SATURATION, LENGTH = 1.2, 0.75
"""The parameters of BM25 as SQLite has them: how soon more of the same word tells nothing new, and how much a long text
counts against it."""
PRIOR, PRIOR_COUNT = 10, 0.3
"""Documents that every scope is taken to have besides its own, and how many of them have a word: in a scope of three
documents, no word is common."""

NEARBY = 30
"""Words that are about as many as a sentence or two has."""
Pair = tuple[str, ...]
"""Two terms that stand side by side."""


def word_scores(sections: Collection[Section], weights: Mapping[str, float]) -> dict[int, float]:
    """The scores of words, of which each tells so much, by section."""
    weight_of = {_term(word): weight for word, weight in weights.items()}
    average = sum(section.length for section in sections) / (len(sections) or 1) or 1.0
    found: dict[int, float] = {}
    for section in sections:
        norm = SATURATION * (1 - LENGTH + LENGTH * section.length / average)
        here = section.places
        shares = (weight * _share(len(here[term]), norm) for term, weight in weight_of.items() if term in here)
        found[section.id] = sum(shares)
    return found


def find_pairs(sections: Collection[Section], phrases: Iterable[str], size: int) -> dict[int, dict[Pair, float]]:
    """The pairs of words that stand side by side, by section, and what each tells: the rarer it is, the more."""
    asked = {pair: Terms(pair) for pair in pairs_of(phrases)}
    pairs = {section.id: [pair for pair, terms in asked.items() if section.terms.places(terms)] for section in sections}
    told = {pair: rarity(count, size) for pair, count in Counter(chain.from_iterable(pairs.values())).items()}
    return {id: {pair: told[pair] for pair in found} for id, found in pairs.items()}


def pairs_of(phrases: Iterable[str]) -> dict[Pair, None]:
    """The terms of phrases of two words, in order."""
    return dict.fromkeys(pair for pair in map(_terms, phrases) if len(pair) == 2)


class Coverage(NamedTuple):
    """The largest share of what the words of a question tell: in one section, and within a few words of each other."""

    in_section: float
    nearby: float


def term_of(word: str) -> str:
    """The term of a word of a question; a word with `*`, which is a beginning, stays as it is."""
    return word if word.endswith("*") else _term(word)


def known_terms(section: Section, asked: Collection[str]) -> dict[str, str]:
    """The terms of a section that a question asks for, each with the term or the beginning that asks for it."""
    here, beginnings = section.places, [term for term in asked if term.endswith("*")]
    begun = {term: beginning for beginning in beginnings for term in here if term.startswith(beginning[:-1])}
    return {term: term for term in asked if term in here} | begun


def best_coverage(sections: Iterable[Section], told: Mapping[str, float]) -> Coverage:
    """How much of a question the best section has."""
    weights: dict[str, float] = defaultdict(float)
    for word, weight in told.items():
        weights[term_of(word)] += weight
    found = []
    for section in sections:
        known = known_terms(section, weights)
        found.append((sum(weights[word] for word in dict.fromkeys(known.values())), known, section.places))
    found.sort(key=lambda one: -one[0])
    nearby = 0.0
    for most, known, here in found:
        if most <= nearby:
            break
        nearby = max(nearby, _most_nearby(known, here, weights))
    total = sum(told.values()) or 1.0
    return Coverage(found[0][0] / total if found else 0.0, nearby / total)


def _most_nearby(known: Mapping[str, str], here: Mapping[str, list[int]], told: Mapping[str, float]) -> float:
    """The most that is told by terms of the question which stand within a few words of each other."""
    places = sorted((place, word) for term, word in known.items() for place in here[term])
    counts: Counter[str] = Counter()
    best = covered = 0.0
    first = 0
    for place, word in places:
        counts[word] += 1
        covered += told[word] if counts[word] == 1 else 0.0
        while places[first][0] < place - NEARBY:
            gone = places[first][1]
            counts[gone] -= 1
            covered -= told[gone] if not counts[gone] else 0.0
            first += 1
        best = max(best, covered)
    return best


@lru_cache(1_000)
def _terms(words: str) -> tuple[str, ...]:
    return tuple(terms_of(words))


def _term(word: str) -> str:
    return "".join(_terms(word))


def _share(count: int, norm: float) -> float:
    """How much of what a word tells is told by so many of it."""
    return (SATURATION + 1) * count / (count + norm)


def rarity(count: int, of: int) -> float:
    """The information of a word that so many of so many documents have."""
    having, size = count + PRIOR_COUNT, of + PRIOR
    return math.log(1 + (size - having + 0.5) / (having + 0.5))
