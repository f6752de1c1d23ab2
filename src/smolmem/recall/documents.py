"""Documents of others as notes: a text is stored once, with the origin `import` and so with low trust.

They come from an import, or from a source: another store that recall asks, too, such as a vector store of LangChain.
What a source returns is stored before it is ranked. So it is filtered, scored and quoted as everything else, what
agents make of it is known, and a document that was forgotten stays away.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from smolmem.core.errors import InvalidArgument
from smolmem.recall.filters import Filter
from smolmem.recall.notes import LONGEST, Notes

log = logging.getLogger("smolmem")

Document = tuple[str, Mapping[str, Any]]
"""A text, and where it is from."""
KIND = "document"
"""The kind of notes that are documents."""
BATCH = 100
"""Documents that are written in one transaction."""
_SOURCES = ("source", "file_name", "file_path", "title", "url")
"""Metadata that says where a document is from; kept as tags."""


def add_documents(notes: Notes, documents: Iterable[Document], scope: str) -> Iterator[Counter[str]]:
    """Adds documents in batches; yields how many of each were `added`, were here already (`skipped`) or `empty`."""
    waiting = iter(documents)
    while batch := list(islice(waiting, BATCH)):
        parts = [(number, part) for number, document in enumerate(batch) for part in _parts(*document)]
        is_new = notes.add_imported([part for _, part in parts], scope, KIND)
        filled = {number for number, _ in parts}
        added = {number for (number, _), new in zip(parts, is_new, strict=True) if new}
        yield Counter(added=len(added), skipped=len(filled - added), empty=len(batch) - len(filled))


def _parts(text: str, metadata: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """A document as texts that fit a note, with tags."""
    tags = [_tag(value) for key in _SOURCES if isinstance(value := metadata.get(key), str) and value]
    cut = (text[start : start + LONGEST] for start in range(0, len(text), LONGEST))
    return [(part, tags) for part in cut if part.strip()]


def _tag(text: str) -> str:
    return re.sub(r"[^ -~\w]", " ", text).strip()[-100:].strip() or "unnamed"


# --- sources ----------------------------------------------------------------------------------------------------------


@dataclass
class Source:
    """Another store that recall asks, for one scope."""

    search: Callable[[str], Iterable[Any]]
    scope: str
    is_logged: bool = False
    """Whether the present failure is logged."""

    def is_asked(self, filters: Filter) -> bool:
        """Whether a search with these filters could return a document of this source."""
        kinds = filters.kinds is None or KIND in filters.kinds
        rest = (filters.agents, filters.runs, filters.trusts, filters.until)
        return filters.includes(self.scope) and kinds and rest == (None,) * len(rest)

    def bring(self, notes: Notes, question: str) -> bool:
        """Stores what the source knows about a question; returns whether some of it was new. Never raises."""
        try:
            found = [_document(one) for one in self.search(question)]
            new = any(counts["added"] for counts in add_documents(notes, found, self.scope))
        except Exception as error:  # each store has errors of its own
            if not self.is_logged:
                log.warning("smolmem recalls without a source that failed (%s: %s).", type(error).__name__, error)
            self.is_logged = True
            return False
        self.is_logged = False
        return new


def open_source(given: Any, scope: str, limit: int) -> Source:
    """A source of recall, known by its methods: no other library is imported.

    Raises:
        InvalidArgument: if it has none of the methods.
    """
    if callable(search := getattr(given, "similarity_search", None)):  # a vector store of LangChain
        return Source(lambda question: search(question, k=limit), scope)
    for name in ("retrieve", "invoke"):  # a retriever of LlamaIndex, of LangChain
        if callable(ask := getattr(given, name, None)):
            return Source(lambda question: islice(ask(question), limit), scope)
    if callable(given):
        return Source(lambda question: islice(given(question), limit), scope)
    raise InvalidArgument(
        f"a source is a vector store or retriever of LangChain or LlamaIndex, or a function from a question to texts, "
        f"not {given!r}."
    )


def _document(found: Any) -> Document:
    """A text, a document of LangChain, or a node of LlamaIndex."""
    if isinstance(found, str):
        return found, {}
    text = next((text for name in ("page_content", "text") if isinstance(text := getattr(found, name, None), str)), "")
    metadata = getattr(found, "metadata", None)
    return text, metadata if isinstance(metadata, Mapping) else {}
