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
        stems = "|".join(map(re.escape, self.stems))
        self._pattern = re.compile(rf"(?<![^\W_])({stems})[^\W_]*", re.IGNORECASE) if stems else None

    @property
    def stems(self) -> list[str]:
        """The beginnings of the words, the longest first."""
        return sorted(self._words, key=len, reverse=True)

    def marks(self, text: str) -> tuple[tuple[int, int], ...]:
        """The places of the words, as pairs of start and end; only the first ones in a text that has many."""
        found = self._pattern.finditer(text) if self._pattern else ()
        return tuple(match.span() for match, _ in zip(found, range(MAX_MARKS), strict=False))

    def words_in(self, text: str) -> set[str]:
        """The words of the question that a text has."""
        stems = self._pattern.findall(text) if self._pattern else ()
        return {self._words[stem.lower()] for stem in {*stems} if stem.lower() in self._words}


def _stem(word: str) -> str:
    """The beginning that the forms of a word share, roughly."""
    plain = word.rstrip("*")
    return plain if len(plain) <= 4 else plain[: max(4, len(plain) - 3)]
