"""What the texts of sections tell about a question, beside what full text knows.

Full text of a large store is only asked for the rare words of a question, and that of PostgreSQL does not know where a
word stands. So the texts of the best sections are read: words that were not asked for are counted, and pairs of words
that stand side by side in the question and in the section, as in a quotation.
"""

from __future__ import annotations

import math
from collections import Counter
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


def best_coverage(sections: Iterable[Section], told: Mapping[str, float]) -> float:
    """The largest share of what the words of a question tell that one section has; a word with `*` is a beginning."""
    terms = {word: _term(word) for word in told if not word.endswith("*")}
    best = 0.0
    for section in sections:
        here = frozenset(section.terms)
        known = [word for word, term in terms.items() if term in here]
        known += [word for word in told.keys() - terms if any(term.startswith(word[:-1]) for term in here)]
        best = max(best, sum(map(told.__getitem__, known)))
    return best / (sum(told.values()) or 1.0)


def _term(word: str) -> str:
    return "".join(terms_of(word))


def _share(count: int, norm: float) -> float:
    """How much of what a word tells is told by so many of it."""
    return (SATURATION + 1) * count / (count + norm)


def rarity(count: int, of: int) -> float:
    """The information of a word that so many of so many documents have."""
    having, size = count + PRIOR_COUNT, of + PRIOR
    return math.log(1 + (size - having + 0.5) / (having + 0.5))
