"""Confidence: how likely a memory knows what a question asks for.

Every question finds something: some words are common, and some vector is always the nearest. Six things tell a
question that the memory can answer from one that it cannot: how much of the question one step or note has, how much of
that stands within a sentence or two, how many words that are, whether they stand side by side, whether the question
names something that stands nowhere in the memory, and how much is searched, because a large memory has some words of
any question. They are added up, as in a logistic regression (see docs/design.md).

How near the nearest vector is says something only beside what unrelated questions get, because each model has cosines
of its own. So a dozen questions about things that no agent's memory is likely to hold are asked in each scope, once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import NamedTuple

FLOOR = 0.15
"""The confidence below which a question is not answered, by default."""
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
COVERAGE, WORDS = 3.0, 0.85
"""What covering a whole question tells, and what it tells more if the question has many words."""
NEARBY = 1.6
"""What it tells, again more for many words, that the words stand within a sentence or two."""
PHRASES = 0.13
UNKNOWN = 4.4
"""What names that stand nowhere in the memory tell against it."""
VOLUME, LEAST = 0.57, 20_000
"""What it tells against a match that so much is searched; a smaller memory counts as if it had so many characters."""
USUAL = 3.0
"""Makes the sum zero where a question is as likely known as not."""
TOO_LITTLE = 1.0
"""What one word of everyday English tells: a match needs more, unless it is half of the question."""
NO_WORDS = -3.3
"""What words tell, at least, where vectors decide: about as much as those of an unrelated question."""
ENOUGH = 7.0
"""What the words of a match tell together that weigh fully in the ranking. Less, such as one everyday word, weighs less
beside vectors, and gives neighbours less: otherwise "why did buyers stop ordering" is answered by what stands beside a
"stop"."""
SEMANTIC, AGREEMENT, DOUBT = 0.7, 1.2, 3.0
"""What a spread above the noise tells, where it tells for a match, and what vectors tell against one at most."""
LEAST_SPREAD = 0.01
"""How much the nearest cosine differs between unrelated questions, at least."""


class Evidence(NamedTuple):
    """How well the best match fits a question: by its words, its phrases, and the nearest vector (None without one)."""

    information: float = 0.0
    """What the words of the question tell together (see `english.py`)."""
    most: float = 1.0
    """What the most telling word tells."""
    coverage: float = 0.0
    """The share of the words' information in the best match."""
    nearby: float = 0.0
    """The largest share of it within a sentence or two."""
    unknown: float = 0.0
    """The share of the words' information in names that stand nowhere in the searched scope."""
    quoted: float = 0.0
    """The information of the question's phrases in the best match, less if there are many."""
    volume: float = 0.0
    """How many characters are searched, roughly."""
    cosine: float | None = None

    @property
    def share_told(self) -> float:
        """How much the words of the best match tell: near 0 for one everyday word, 1 for enough."""
        return min(1.0, self.coverage * self.information / ENOUGH)

    @property
    def lexical(self) -> float:
        """How much words and phrases tell."""
        covered = self.coverage * self.information
        if not covered or (covered <= TOO_LITTLE and self.coverage < 0.5):
            return -math.inf
        words = math.sqrt(self.information / self.most + 2)
        told = self.coverage * (COVERAGE + WORDS * words) + NEARBY * self.nearby * words - UNKNOWN * self.unknown
        told += PHRASES * self.quoted
        return told - VOLUME * math.log(max(self.volume, LEAST)) + USUAL


class Noise(NamedTuple):
    """The nearest cosine that unrelated questions get in a scope: the usual value and how much it differs."""

    cosine: float
    spread: float


def noise_of(cosines: Iterable[float]) -> Noise:
    """The noise of a scope, from what the unrelated questions got."""
    known = [*cosines] or [0.0]
    return Noise(statistics.median(known), max(LEAST_SPREAD, statistics.pstdev(known)))


def confidence_in(evidence: Evidence, noise: Noise | None, among: int = 1) -> float:
    """How likely the memory knows what a question asks for, from 0 to 1.

    Args:
        evidence: what the question got.
        noise: what unrelated questions get, if there are vectors.
        among: how many sentences it was chosen from; the best of several is better by chance.
    """
    told = evidence.lexical - 2 * math.log(among)
    if evidence.cosine is not None and noise is not None:
        above = (evidence.cosine - noise.cosine) / noise.spread
        told = max(told - DOUBT, max(told, NO_WORDS) + SEMANTIC * (above - AGREEMENT))
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, told))))
