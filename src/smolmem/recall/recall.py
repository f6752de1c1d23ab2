"""Recall as a whole: questions in, recollections out; opened when it is first needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from smolmem.errors import BadValue
from smolmem.recall import models
from smolmem.recall.context import TOKENS, block, message, sources
from smolmem.recall.embed import Choice, Embedder, Reranker, checked, installed, open_embedder
from smolmem.recall.notes import Notes
from smolmem.recall.reader import read
from smolmem.recall.search import Search, Wanted
from smolmem.recall.values import TRUST, Recollection
from smolmem.record.values import Step
from smolmem.store.journal import Journal
from smolmem.store.reminders import Reminder
from smolmem.store.units import ids

log = logging.getLogger("smolmem")

Given = Embedder | Callable[[list[str]], Any] | Choice | None


class Recall:
    """Everything that agents did and users noted, to be found again."""

    def __init__(self, journal: Journal, embedder: Given) -> None:
        self.notes = Notes(journal)
        self._journal = journal
        self._embedder: Given = checked(embedder)
        self._search: Search | None = None
        self._reranker: Reranker | None = None

    def find(self, question: str, limit: int, wanted: Wanted, *, rerank: bool = False) -> list[Recollection]:
        """What answers a question, the best first."""
        if not isinstance(question, str):
            raise BadValue(f"recall() needs a question, not {question!r}.")
        if wanted.min_trust not in TRUST:
            raise BadValue(f"{wanted.min_trust!r} is not one of {', '.join(TRUST)}.")
        self.read()
        self.notes.sweep()
        if rerank and self._reranker is None:
            self._reranker = Reranker()
        found = self._opened().find(question, limit, wanted, reranker=self._reranker if rerank else None)
        return [replace(one, stale=one.note is not None and self.notes.is_stale(one.note)) for one in found]

    def remind(
        self, question: str, limit: int, wanted: Wanted, run: str, step: int | None, tokens: int = TOKENS
    ) -> tuple[str, Reminder | None]:
        """What answers a question as a block for a run of an agent, and a record of that it was shown."""
        text, shown = block(self.find(question, limit, replace(wanted, but=USELESS)), tokens)
        if not shown:
            return "", None
        found = sources(shown)
        return text, self._journal.reminders.add(run, step, question[:2000], [message(text)], found)

    def without_forgotten(self, steps: Sequence[Step]) -> list[Step]:
        """Steps that may come to an agent's mind."""
        rows = self._journal.store.rows("forgotten_steps", {"ids": ids(step.id for step in steps)})
        gone = {row["id"] for row in rows}
        return [step for step in steps if step.id not in gone]

    def _opened(self) -> Search:
        if self._search is None:
            embedder = open_embedder(self._embedder)
            if embedder is None:
                self._search = Search(self._journal, None)
                if self._embedder is None:
                    _say_once()
            else:
                try:
                    from smolmem.recall.meaning import Meaning
                except ImportError as error:
                    raise BadValue(f"recall by meaning lacks {error.name}: pip install 'smolmem[semantic]'.") from error

                self._search = Search(self._journal, Meaning(self._journal.store, embedder))
        return self._search

    def read(self) -> None:
        """Makes findable what was recorded since the last time."""
        read(self._journal)


USELESS = ("task", "code", "call")
"""What an agent is not reminded of: that it was asked the same before, and code without what came of it."""
_said: set[str] = set()


def _say_once() -> None:
    if "words" not in _said:
        _said.add("words")
        need = "embedder='local'" if installed() else "embedder='local' after pip install 'smolmem[semantic]'"
        log.warning(
            "smolmem recalls by words alone: for recall by meaning, open the memory once with %s (%d MB are fetched); "
            "embedder='off' is silent about it.",
            need,
            models.E5.megabytes,
        )


def names(given: Collection[str] | str | None, what: str) -> tuple[str, ...] | None:
    """One or several names, as a search takes them."""
    if given is None:
        return None
    listed = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(name, str) for name in listed):
        raise BadValue(f"{what} are texts, not {given!r}.")
    return listed
