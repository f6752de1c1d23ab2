"""Which passages of a step or note are shown, and in which order.

Recall finds whole steps. A prompt quotes one passage of each, and a person sees three. "Look at the pods." may fit a
question best and tells nothing: what the step saw does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from smolmem.core.scripts import is_unspaced, spaced
from smolmem.core.smolagents_texts import without_label
from smolmem.core.values import Excerpt, Recollection
from smolmem.recall.passages import plain_words
from smolmem.recall.query import is_specific
from smolmem.store.base import Row

FEWEST_WORDS, FEWEST_IN_ANSWER = 3, 2
"""Words that a passage must have to be worth a place in a prompt; answers are short."""
PAIR = 0.5
"""About how much of a word a pair of characters of a script without spaces is."""
_EMPTY = frozenset(
    """done ok okay yes none null true false success successfully finished completed result output print final answer
    step task thought now next check open get let""".split()  # noqa: SIM905
)
"""Words without information."""
RESULTS = ("answer", "error", "observation")
INTENTIONS = ("thought", "code", "call")
"""What came of a step, and what it was meant to do."""
_RESULTS_FIRST = {role: place for place, role in enumerate((*RESULTS, "thought", "code"), -5)}
"""Of passages that fit equally well, what came of a step is shown before how the step was done."""
_FINAL_ANSWER = frozenset(("final", "answer"))


def says_something(text: str, kind: str, tool: str | None = None) -> bool:
    """Whether a passage has enough words besides the usual ones and the name of its tool."""
    telling = set(filter(is_specific, _words(text))) - _EMPTY - {*_words(tool or "")}
    amount = sum(PAIR if is_unspaced(word) else 1 for word in telling)
    return amount >= (FEWEST_IN_ANSWER if kind == "answer" else FEWEST_WORDS)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", spaced(text).lower())


def shown_text(passage: Row) -> str:
    """The text of a passage as it is shown; it is indexed as the model said it."""
    text: str = passage["text"]
    return without_label(text) if passage["role"] == "thought" else text


def best_first(passages: Sequence[Row], fit: Mapping[int, float]) -> list[Row]:
    """The passages of a step or note, in the order to show them; thoughts without content come last.

    Code that does nothing but give the answer is left out beside the answer.
    """
    answered = {word for row in passages if row["role"] == "answer" for word in plain_words(row["text"])}
    shown = [
        row
        for row in passages
        if not answered or row["role"] != "code" or set(plain_words(row["text"])) - answered - _FINAL_ANSWER
    ]
    return sorted(
        shown,
        key=lambda row: (
            row["role"] == "thought" and not says_something(row["text"], row["role"]),
            -fit[row["id"]],
            _RESULTS_FIRST.get(row["role"], 0),
            row["id"],
        ),
    )


def shown_by(one: Recollection, excerpt: Excerpt) -> Recollection:
    """The same step or note, shown by another of its passages."""
    shown = {name: getattr(excerpt, name) for name in ("kind", "text", "origin", "trust", "tool")}
    return replace(one, **shown)
