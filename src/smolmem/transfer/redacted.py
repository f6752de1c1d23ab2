"""Takes secrets out of an export of a store that was recorded without redaction, or with fewer rules.

A redacted content has another hash, and references to it are changed. Contents precede the lines that refer to them, so
one pass is enough.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from smolmem.core import wire
from smolmem.core.chunks import NAMED
from smolmem.core.redaction import Redactor
from smolmem.store.base import Row

NOT_JSON = object()
_TEXTS = ("text", "title", "tags", "kind", "query", "rule", "reason", "acts", "error")
"""Fields of lines that hold recorded text."""


def as_json(data: bytes) -> Any:
    """The value of a content that is JSON in our spelling, else `NOT_JSON`."""
    if data[:1] in (b"[", b"{", b'"', b"-", b"t", b"f", b"n") or data[:1].isdigit():
        try:
            value = json.loads(data)
            return value if wire.dumps(value) == data else NOT_JSON
        except (ValueError, RecursionError):
            pass
    return NOT_JSON


class Redaction:
    """The redaction of one export.

    Args:
        redactor: finds the secrets.
        fetch: the bytes of a content, by hash.
    """

    def __init__(self, redactor: Redactor, fetch: Callable[[str], bytes]) -> None:
        self._redactor, self._fetch = redactor, fetch
        self._moved: dict[str, str] = {}
        self._added: set[str] = set()

    def key(self, key: str) -> str:
        """The hash under which a content was written."""
        return self._moved.get(key, key)

    def row(self, row: Row) -> Row:
        """A line without secrets in its texts."""
        return {name: self._clean(value) if name in _TEXTS else value for name, value in row.items()}

    def _clean(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._clean(item) for item in value]
        return self._redactor.text(value) if isinstance(value, str) else value

    def contents(self, key: str, data: bytes) -> list[tuple[str, bytes]]:
        """The replacement of a content: texts that it refers to, then the content without secrets."""
        tree = as_json(data)
        beside: dict[str, bytes] = {}
        if tree is not NOT_JSON:
            clean, beside = self._redactor.stored_record(tree, self._fetch)
            new = wire.dumps(clean)
            named = (name.decode() for _, name in NAMED.findall(new))
            # A text that holds no secret by itself was changed as a record: both readings are kept.
            beside |= {name: self._fetch(name) for name in named if name in self._moved and name not in beside}
        else:
            new = self._redacted_text(data)
        made = [(name, text) for name, text in beside.items() if name not in self._added]
        self._added.update(beside)
        if new != data:
            self._moved[key] = wire.fingerprint(new)
        return [*made, (self.key(key), new)]

    def _redacted_text(self, data: bytes) -> bytes:
        try:
            text = data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:  # a picture, or numbers
            return data
        return self._redactor.text(text).encode("utf-8", "surrogatepass")
