"""Recall: questions in, recollections out. The embedder is opened when it is first needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from smolmem.core.errors import InvalidArgument
from smolmem.core.values import TRUST, Recollection, Reminder, Step
from smolmem.recall import models
from smolmem.recall.context import TOKENS, block, message, sources
from smolmem.recall.embedders import Embedder, ModelName, Reranker, checked, installed, open_embedder
from smolmem.recall.filters import Filter
from smolmem.recall.indexer import index_pending
from smolmem.recall.notes import Notes
from smolmem.recall.search import Search
from smolmem.store.journal import Journal
from smolmem.store.passage_rows import json_list

log = logging.getLogger("smolmem")

EmbedderChoice = Embedder | Callable[[list[str]], Any] | ModelName | None


class RecallEngine:
    """Searches everything that agents did and users noted."""

    def __init__(self, journal: Journal, embedder: EmbedderChoice) -> None:
        self.notes = Notes(journal)
        self._journal = journal
        self._embedder: EmbedderChoice = checked(embedder)
        self._search: Search | None = None
        self._reranker: Reranker | None = None

    def find(self, question: str, limit: int, filters: Filter, *, rerank: bool = False) -> list[Recollection]:
        """The passages that answer a question, the best first."""
        if not isinstance(question, str):
            raise InvalidArgument(f"recall() needs a question, not {question!r}.")
        if filters.min_trust not in TRUST:
            raise InvalidArgument(f"{filters.min_trust!r} is not one of {', '.join(TRUST)}.")
        self.index_pending()
        self.notes.sweep()
        if rerank and self._reranker is None:
            self._reranker = Reranker()
        found = self._opened().find(question, limit, filters, reranker=self._reranker if rerank else None)
        return [replace(one, stale=one.note is not None and self.notes.is_stale(one.note)) for one in found]

    def remind(
        self, question: str, limit: int, filters: Filter, run: str, step: int | None, tokens: int = TOKENS
    ) -> tuple[str, Reminder | None]:
        """The answer to a question as a block for an agent's run, and the recorded reminder."""
        text, shown = block(self.find(question, limit, replace(filters, excluded_kinds=NOT_IN_REMINDERS)), tokens)
        if not shown:
            return "", None
        found = sources(shown)
        return text, self._journal.reminders.add(run, step, question[:2000], [message(text)], found)

    def without_forgotten(self, steps: Sequence[Step]) -> list[Step]:
        """Steps without those that were forgotten."""
        rows = self._journal.store.rows("forgotten_steps", {"ids": json_list(step.id for step in steps)})
        gone = {row["id"] for row in rows}
        return [step for step in steps if step.id not in gone]

    def _opened(self) -> Search:
        if self._search is None:
            embedder = open_embedder(self._embedder)
            if embedder is None:
                self._search = Search(self._journal, None)
                if self._embedder is None:
                    _warn_once()
            else:
                try:
                    from smolmem.recall.semantic import SemanticSearch
                except ImportError as error:
                    raise InvalidArgument(
                        f"semantic recall lacks {error.name}: pip install 'smolmem[semantic]'."
                    ) from error

                self._search = Search(self._journal, SemanticSearch(self._journal.store, embedder))
        return self._search

    def index_pending(self) -> None:
        """Indexes what was recorded since the last time."""
        index_pending(self._journal)


NOT_IN_REMINDERS = ("task", "code", "call")
"""Kinds that an agent is not reminded of: earlier tasks, and code without its result."""
_warned: set[str] = set()


def _warn_once() -> None:
    if "words" not in _warned:
        _warned.add("words")
        need = "embedder='local'" if installed() else "embedder='local' after pip install 'smolmem[semantic]'"
        log.warning(
            "smolmem recalls by words alone. For semantic recall, open the memory once with %s (%d MB are fetched); "
            "embedder='off' turns this message off.",
            need,
            models.E5.megabytes,
        )


def names(given: Collection[str] | str | None, what: str) -> tuple[str, ...] | None:
    """One name or several, as a filter takes them."""
    if given is None:
        return None
    listed = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(name, str) for name in listed):
        raise InvalidArgument(f"{what} are texts, not {given!r}.")
    return listed
