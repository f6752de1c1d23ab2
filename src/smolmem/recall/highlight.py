"""Which words of a question stand in a text, and where; also in other grammatical forms."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_MARKS = 50


class Highlighter:
    """Finds the words of a question in texts."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = list(words)
        self._words = {_stem(word): word for word in self.words}
        self._known: dict[str, set[str]] = {}
        stems = "|".join(map(re.escape, sorted(self._words, key=len, reverse=True)))
        self._pattern = re.compile(rf"(?<![^\W_])({stems})[^\W_]*") if stems else None

    def marks(self, text: str) -> tuple[tuple[int, int], ...]:
        """The places of the words, as pairs of start and end; only the first ones in a text that has many."""
        found = self._pattern.finditer(_lower(text)) if self._pattern else ()
        return tuple(match.span() for match, _ in zip(found, range(MAX_MARKS), strict=False))

    def words_in(self, text: str) -> set[str]:
        """The words of the question that a text has."""
        if text not in self._known:
            stems = self._pattern.findall(text.lower()) if self._pattern else ()
            self._known[text] = {self._words[stem] for stem in stems}
        return self._known[text]


def _lower(text: str) -> str:
    """A text in small letters, each at its place: a few capital letters have small forms of two."""
    small = text.lower()
    return small if len(small) == len(text) else "".join(letter.lower()[:1] for letter in text)


def _stem(word: str) -> str:
    """The beginning that the forms of a word share, roughly."""
    plain = word.rstrip("*")
    return plain if len(plain) <= 4 else plain[: max(4, len(plain) - 3)]
