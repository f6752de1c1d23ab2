"""Confidence: how much better a question does than questions that have nothing to do with the store.

Every question finds something: some words are common, and some vector is always the nearest. So a dozen questions about
things that no agent's memory is likely to hold are asked in each scope, once. What they get is noise. A question that
gets no more than that is about something that the memory does not know.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

UNRELATED = (
    "Which violin strings were ordered for the spring recital?",
    "How deep is the volcanic lake that the geologists measured?",
    "What did the dentist say about the cracked molar?",
    "When does the ferry to the lighthouse leave in winter?",
    "Who repaired the roof of the old windmill after the storm?",
    "Why did the beekeeper move her hives away from the orchard?",
    "How much flour does the bakery need for the wedding cake?",
    "What colour was the horse that won the village race?",
    "Which museum bought the bronze statue of the shepherd?",
    "How long must the clay dry before the pottery is fired?",
    "Who wrote the letter about the lost luggage in Lisbon?",
    "When did the choir sing the requiem in the cathedral?",
)
LEXICAL_SPREAD = 0.19
"""How much coverage differs between unrelated questions, for one word; the more words, the less it differs."""
SEMANTIC_SPREAD = 0.01
"""How much the nearest cosine differs between unrelated questions, at least."""
LEXICAL_MIDDLE, MIDDLE = 4.4, 5.9
"""Spreads above the noise at which a question is as likely known as not: by words alone, and with vectors."""
DOUBT = 2.3
"""Spreads that words must be better by if the vectors do not agree with them."""
STEEPNESS = 1.3


@dataclass(frozen=True)
class Evidence:
    """How well the best match fits a question: the share of its words, and the nearest vector (None without one)."""

    words: float
    """How many words the question has; everyday words count less."""
    coverage: float
    cosine: float | None


@dataclass(frozen=True)
class Noise:
    """What unrelated questions get in a scope: the usual value and how much it differs."""

    coverage: float
    cosine: float
    cosine_spread: float

    def confidence(self, evidence: Evidence) -> float:
        """How likely the memory knows what a question asks for, from 0 to 1."""
        lexical = (evidence.coverage - self.coverage) * math.sqrt(evidence.words + 2) / LEXICAL_SPREAD
        if evidence.cosine is None:
            return _likelihood(lexical - LEXICAL_MIDDLE)
        semantic = (evidence.cosine - self.cosine) / self.cosine_spread
        return _likelihood(max(lexical - LEXICAL_MIDDLE - DOUBT, max(lexical, 0.0) + semantic - MIDDLE))


def _likelihood(spreads: float) -> float:
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, STEEPNESS * spreads))))


def measure(ask: Callable[[str], Evidence]) -> Noise:
    """Asks the unrelated questions."""
    got = [ask(question) for question in UNRELATED]
    coverages = [each.coverage for each in got]
    cosines = [each.cosine for each in got if each.cosine is not None] or [0.0]
    return Noise(
        statistics.median(coverages),
        statistics.median(cosines),
        max(SEMANTIC_SPREAD, statistics.pstdev(cosines)),
    )
