"""The terms of a text, as SQLite's full text has them: small letters, no accents, English words without endings.

PostgreSQL's full text is made of the same terms, and recall recognises the words of a question by them.
"""

from __future__ import annotations

import threading
from functools import lru_cache

import apsw

_tokenizers = threading.local()


def terms_of(text: str) -> list[str]:
    """The terms of a text, in order."""
    if not hasattr(_tokenizers, "porter"):
        _tokenizers.connection = apsw.Connection(":memory:")
        _tokenizers.porter = _tokenizers.connection.fts5_tokenizer("porter", ["unicode61"])
    data = text.encode("utf-8", "replace")
    found: list[str] = _tokenizers.porter(
        data, apsw.FTS5_TOKENIZE_DOCUMENT, None, include_offsets=False, include_colocated=False
    )
    return [term.replace("\0", "") for term in found] if "\0" in text else found


@lru_cache(128)
def kept_terms(text: str) -> tuple[str, ...]:
    """The terms of a text, kept for a while: texts are split before the transaction that writes them."""
    return tuple(terms_of(text))
