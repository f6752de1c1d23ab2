"""Confidence: how much better a question does than questions that have nothing to do with the store.

Every question finds something: some words are common, and some vector is always the nearest. So a dozen questions about
things that no agent's memory is likely to hold are asked in each scope, once: half of them about people, half about the
work of agents. What they get is noise. A question that gets no more than that is about something that the
memory does not know.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

UNRELATED = (
    "How deep is the volcanic lake that the geologists measured?",
    "When does the ferry to the lighthouse leave in winter?",
    "Why did the beekeeper move her hives away from the orchard?",
    "What colour was the horse that won the village race?",
    "How long must the clay dry before the pottery is fired?",
    "When did the choir sing the requiem in the cathedral?",
    "Where did the code fail to parse the sheet music because a clef was missing?",
    "Which answer named the wrong violin maker, because the search result was never verified?",
    "Which tool returned an error when the weaving pattern was uploaded, and the agent ignored it?",
    "Which script writes the orchard's harvest into the wrong column of the ledger?",
    "Why did the orchestrator give the task of translating the sonnet to an expert on glaciers?",
    "Where did the agent print the whole museum catalogue instead of only the bronze statues?",
)
COVERAGE_SPREAD = 0.19
"""How much coverage differs between unrelated questions, for one word; the more words, the less it differs."""
PHRASES = 0.5
"""What the information in phrases counts, beside that in words."""
SEMANTIC_SPREAD = 0.01
"""How much the nearest cosine differs between unrelated questions, at least."""
LEXICAL_MIDDLE, MIDDLE = 4.4, 5.2
"""Spreads above the noise at which a question is as likely known as not: by words alone, and with vectors."""
DOUBT = 2.3
"""Spreads that words must be better by if the vectors do not agree with them."""
STEEPNESS = 1.3


@dataclass(frozen=True)
class Evidence:
    """How well the best match fits a question: by its words, its phrases, and the nearest vector (None without one)."""

    words: float = 0.0
    """How many words the question has; everyday words count less."""
    coverage: float = 0.0
    """The share of the words' information in the best match."""
    phrases: int = 0
    """How many phrases the question has."""
    side_by_side: float = 0.0
    """The information of the phrases in the best match."""
    cosine: float | None = None

    @property
    def lexical(self) -> float:
        """How much words and phrases tell, in spreads."""
        told = self.coverage * math.sqrt(self.words + 2) / COVERAGE_SPREAD
        return told + PHRASES * self.side_by_side / math.sqrt(self.phrases + 4)


@dataclass(frozen=True)
class Noise:
    """What unrelated questions get in a scope: the usual value and how much it differs."""

    lexical: float
    cosine: float
    cosine_spread: float

    def confidence(self, evidence: Evidence, among: int = 1) -> float:
        """How likely the memory knows what a question asks for, from 0 to 1.

        Args:
            evidence: what the question got.
            among: how many sentences it was chosen from; the best of several is better by chance.
        """
        lexical = evidence.lexical - self.lexical - math.log(among)
        if evidence.cosine is None:
            return _likelihood(lexical - LEXICAL_MIDDLE)
        semantic = (evidence.cosine - self.cosine) / self.cosine_spread
        return _likelihood(max(lexical - LEXICAL_MIDDLE - DOUBT, max(lexical, 0.0) + semantic - MIDDLE))


def _likelihood(spreads: float) -> float:
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, STEEPNESS * spreads))))


def measure(ask: Callable[[str], Evidence]) -> Noise:
    """Asks the unrelated questions."""
    got = [ask(question) for question in UNRELATED]
    cosines = [each.cosine for each in got if each.cosine is not None] or [0.0]
    return Noise(
        statistics.median(each.lexical for each in got),
        statistics.median(cosines),
        max(SEMANTIC_SPREAD, statistics.pstdev(cosines)),
    )
