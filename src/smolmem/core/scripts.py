"""Texts of any script, as they are searched.

Full text splits a text at everything that is no letter or digit. That fits scripts with spaces between words and no
marks between letters, and others not:

- Chinese, Japanese, Thai, Lao, Khmer and Burmese have no spaces between words, and Korean joins particles to words. A
  run of their characters is searched as pairs, 東京都 as 東京, 京都 and, for searches by one character, 都.
- The vowels of Hindi, the points of Hebrew and Arabic, and decomposed accents are marks, which would split a word.
- A soft hyphen or a joiner inside a word is not seen by those who search for it.
- Characters of full width are those of half width to a reader.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

UNSPACED = (
    "\u0e01-\u0edf\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
"""The characters of scripts without spaces, as a class of a regular expression."""
_RUN = re.compile(rf"[{UNSPACED}\uac00-\ud7a3]+")
_LETTERS = re.compile(r"[^\W_]+")


def _plain(text: str) -> str:
    """A text without marks and invisible characters, and with characters of half width."""
    if text.isascii():
        return text
    usual = unicodedata.normalize("NFKC", text)
    replaced = _replaced(usual)
    return usual.translate(replaced) if replaced else usual


def with_places(text: str) -> tuple[str, Sequence[int]]:
    """A text without marks, and where each of its characters stands in the given text."""
    replaced = _replaced(text)
    if not replaced:
        return text, range(len(text))
    pieces = [replaced.get(ord(character), character) for character in text]
    return "".join(pieces), [at for at, piece in enumerate(pieces) for _ in piece]


def spaced(text: str) -> str:
    """A text as full text takes it: without marks, and with pairs of characters where a script has no spaces."""
    return text if text.isascii() else _RUN.sub(lambda run: f" {' '.join(_pairs(run[0]))} ", _plain(text))


def words_apart(text: str) -> str:
    """A text with spaces in place of the characters of scripts without spaces, and as long as before."""
    return _RUN.sub(lambda run: " " * len(run[0]), text)


def is_unspaced(word: str) -> bool:
    """Whether a word stands anywhere in a run of characters, as the pairs of `spaced` do."""
    return _RUN.fullmatch(word) is not None


def _pairs(run: str) -> list[str]:
    letters = "".join(_LETTERS.findall(run))
    return [letters[at : at + 2] for at in range(len(letters))]


def _replaced(text: str) -> dict[int, str]:
    return {ord(one): plain for one in {*text} if not one.isascii() and (plain := _plain_character(one)) != one}


@lru_cache(10_000)
def _plain_character(character: str) -> str:
    """A character in its usual width; nothing for a mark."""
    parts = (part for part in unicodedata.normalize("NFKC", character) if unicodedata.category(part)[0] != "M")
    return "" if unicodedata.category(character) == "Cf" else "".join(parts)
