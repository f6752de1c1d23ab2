"""Which words of a question stand in a text, and where; also in other grammatical forms.

The terms of full text decide, so what is marked is what the search counted: "checks" has the term of "check", and
"checkout" has another one. A pair of characters of a script without spaces stands anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain

from smolmem.core.scripts import is_unspaced, with_places, words_apart
from smolmem.core.text import merged
from smolmem.store.terms import terms_of

MAX_MARKS = 50

_PART = re.compile(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+|\d+")
"""A part of an identifier such as `checkHealth`."""


class Highlighter:
    """Finds the words of a question in texts. A word that ends with `*` stands for all words that begin with it."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = list(words)
        self._known: dict[str, set[str]] = {}
        self._tokens: dict[str, str | None] = {}
        self._inside = {word.rstrip("*"): word for word in self.words if is_unspaced(word.rstrip("*"))}
        apart = [word for word in self.words if word not in self._inside.values()]
        self._terms = {term: word for word in apart if not word.endswith("*") for term in _terms(word)}
        self._beginnings = {word[:-1].lower(): word for word in apart if word.endswith("*")}
        begins = {*self._beginnings, *(begin for term, word in self._terms.items() for begin in _begins(term, word))}
        one_of = "|".join(map(re.escape, sorted(begins, key=len, reverse=True)))
        self._pattern = re.compile(rf"(?<![^\W_])(?:{one_of})[^\W_]*", re.IGNORECASE) if begins else None

    def marks(self, text: str) -> tuple[tuple[int, int], ...]:
        """The places of the words, as pairs of start and end; only the first ones in a text that has many."""
        return tuple(merged([place for (_, place), _ in zip(self._found(text), range(MAX_MARKS), strict=False)]))

    def words_in(self, text: str) -> set[str]:
        """The words of the question that a text has."""
        if text not in self._known:
            self._known[text] = {word for word, _ in self._found(text)}
        return self._known[text]

    def _found(self, text: str) -> Iterator[tuple[str, tuple[int, int]]]:
        if text.isascii():
            yield from self._found_apart(text)
            return
        plain, places = with_places(text)
        for word, (start, end) in chain(self._found_apart(words_apart(plain)), self._found_inside(plain)):
            yield word, (places[start], places[end - 1] + 1)

    def _found_apart(self, text: str) -> Iterator[tuple[str, tuple[int, int]]]:
        for match in self._pattern.finditer(text) if self._pattern else ():
            token = match[0]
            if token not in self._tokens:
                self._tokens[token] = self._word_of(token)
            word = self._tokens[token]
            if word is not None:
                yield word, match.span()

    def _found_inside(self, text: str) -> Iterator[tuple[str, tuple[int, int]]]:
        for characters, word in self._inside.items():
            for match in re.finditer(characters, text):
                yield word, match.span()

    def _word_of(self, token: str) -> str | None:
        """The word of the question that a word of a text is a form of, or begins with as an identifier."""
        for part in (token, *_PART.findall(token)[:1]):
            word = next((self._terms[term] for term in _terms(part) if term in self._terms), None)
            if word is not None:
                return word
        lower = token.lower()
        return next((word for begin, word in self._beginnings.items() if lower.startswith(begin)), None)


@lru_cache(4096)
def _terms(word: str) -> tuple[str, ...]:
    return tuple(terms_of(word))


def _begins(term: str, word: str) -> set[str]:
    """How the forms of a word begin, with and without accents: "carri" is the term of "carry" and of "carries"."""
    shared = len(term) - 1 if len(term) > 3 else len(term)
    return {term[:shared], word[:shared].lower()}
