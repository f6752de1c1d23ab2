"""Recall: questions in, recollections out. The embedder is opened when it is first needed."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smolmem.core.errors import Busy, EmbedderFailed, InvalidArgument, Unwritable
from smolmem.core.fork_lock import ForkLock
from smolmem.core.rows import TRUST
from smolmem.core.values import Recollection, Reminder, Step
from smolmem.recall import query
from smolmem.recall.calibration import FLOOR
from smolmem.recall.context import TOKENS, block, is_worth_quoting, message, sources
from smolmem.recall.documents import Source, open_source
from smolmem.recall.embedding import models
from smolmem.recall.embedding.checked_embedder import CheckedEmbedder
from smolmem.recall.embedding.embedders import Embedder, ModelName, Reranker, checked, installed, open_embedder
from smolmem.recall.excerpts import shown_by
from smolmem.recall.filters import Filter
from smolmem.recall.indexer import BackgroundIndexer, index_for
from smolmem.recall.notes import Notes
from smolmem.recall.provenance import Provenance
from smolmem.recall.search import Group, Search
from smolmem.store.base import Progress
from smolmem.store.journal import Journal
from smolmem.store.passage_rows import json_list

if TYPE_CHECKING:
    from smolmem.recall.indexes.external_index import ExternalIndex

log = logging.getLogger("smolmem")

VECTORS_VARIABLE = "SMOLMEM_VECTORS"
"""The environment variable that names the vector index, unless the user does."""
EmbedderChoice = Embedder | Callable[[list[str]], Any] | ModelName | None


class RecallEngine:
    """Searches everything that agents did and users noted."""

    def __init__(self, journal: Journal, embedder: EmbedderChoice, vectors: str | None = None) -> None:
        self.notes = Notes(journal)
        self._journal = journal
        self._embedder: EmbedderChoice = checked(embedder)
        self._opened_embedder: CheckedEmbedder | None = None
        self._is_opened = False
        self._search: Search | None = None
        self._reranker: Reranker | None = None
        self._lock = ForkLock()
        self._external = _external_index(journal, vectors)
        self._sources: list[Source] = []
        self._indexer = BackgroundIndexer(journal, self._open_embedder, self._external)
        self._most_pending = math.inf

    def find(
        self,
        question: str,
        limit: int,
        filters: Filter,
        *,
        floor: float = FLOOR,
        group: Group = "step",
        rerank: bool = False,
    ) -> list[Recollection]:
        """The steps and notes that answer a question, the best first."""
        if not isinstance(question, str):
            raise InvalidArgument(f"recall() needs a question, not {question!r}.")
        if not question.strip():
            raise InvalidArgument("recall() needs a question: the text is empty.")
        if isinstance(floor, bool) or not isinstance(floor, (int, float)) or not 0 <= floor <= 1:
            raise InvalidArgument(f"floor is a number from 0 to 1, not {floor!r}.")
        question = query.beginning(question)
        if filters.min_trust not in TRUST:
            raise InvalidArgument(f"{filters.min_trust!r} is not one of {', '.join(TRUST)}.")
        if group not in ("step", "run"):
            raise InvalidArgument(f"group is 'step' or 'run', not {group!r}.")
        store = self._journal.store
        store.read_ahead((name, {}) for name in ("count_pending", "any_pending", "last_passage"))
        try:
            self.notes.sweep()
            self._ask_sources(question, filters)
            self._index_for(question)
            search, reranker = self._opened(), self._opened_reranker(rerank)
            found = search.find(question, limit, filters, floor=floor, group=group, reranker=reranker)
        finally:
            store.read_ahead(())
        if search.semantic is not None and search.semantic.is_behind:
            self._indexer.wake()
        stale = self.notes.stale_among(one.note for one in found if one.note is not None)
        return [replace(one, stale=True) if one.note in stale else one for one in found]

    def _index_for(self, question: str) -> None:
        """Indexes a little of what is pending, and leaves the rest to the indexer."""
        try:
            with self._indexer.batch:
                is_pending, self._most_pending = index_for(self._journal, query.words(question), self._most_pending)
        except (Unwritable, Busy):  # such as a full disk: what is indexed is found, and the indexer says what is wrong
            is_pending = True
        if is_pending:
            self._indexer.wake()

    def _opened_reranker(self, wanted: bool) -> Reranker | None:
        if wanted and self._reranker is None:
            self._reranker = Reranker()
        return self._reranker if wanted else None

    def add_source(self, given: Any, scope: str, limit: int) -> None:
        """Asks another store, too, whenever its scope is searched."""
        self._sources.append(open_source(given, scope, limit))

    def _ask_sources(self, question: str, filters: Filter) -> None:
        """Stores what sources know about a question; what is new gets its vectors at once, so that it is ranked."""
        asked = [source for source in self._sources if source.is_asked(filters)]
        embedder = self._open_embedder() if any([source.bring(self.notes, question) for source in asked]) else None
        if embedder is not None:
            from smolmem.recall.embedding.vector_writer import VectorWriter

            with suppress(EmbedderFailed):  # the embedder has logged it
                writer = VectorWriter(self._journal.store, embedder)
                writer.write_some()
                if self._external is not None:
                    self._external.sync(self._journal.store, [writer.model])

    def remind(
        self, question: str, limit: int, filters: Filter, run: str, step: int | None, tokens: int = TOKENS
    ) -> tuple[str, Reminder | None]:
        """The answer to a question as a block for an agent's run, and the recorded reminder."""
        found = self._found_for_reminder(question, limit, filters)
        text, shown = block([one for one in found if is_worth_quoting(one)], tokens)
        if not shown:
            return "", None
        return text, self._journal.reminders.add(run, step, question[:2000], [message(text)], sources(shown))

    def _found_for_reminder(self, question: str, limit: int, filters: Filter) -> list[Recollection]:
        """The best result, then the best note and how earlier runs ended: both tell more than the other steps."""
        listed = self.find(question, max(CONSIDERED, limit), filters._replace(excluded_kinds=NOT_IN_REMINDERS))
        found = [one for one in listed if one.score >= FLOOR]
        if not found or filters.kinds is not None:
            return found[:limit]
        notes = [one for one in found if one.note is not None][:NOTES]
        answers = [answer for answer in map(_as_answer, found) if answer is not None][:ANSWERS]
        best: dict[int, Recollection] = {}
        for one in (found[0], *notes, *answers, *found):
            best.setdefault(one.document, one)
        return list(best.values())[:limit]

    def without_forgotten(self, steps: Sequence[Step]) -> list[Step]:
        """Steps without those that were forgotten."""
        rows = self._journal.store.rows("forgotten_steps", {"ids": json_list(step.id for step in steps)})
        gone = {row["id"] for row in rows}
        return [step for step in steps if step.id not in gone]

    def _opened(self) -> Search:
        if self._search is None:
            embedder = self._open_embedder()
            if embedder is None:
                self._search = Search(self._journal, None)
                if self._embedder is None and models.chosen() != "off":
                    _warn_once()
            else:
                try:
                    from smolmem.recall.semantic import SemanticSearch
                except ImportError as error:
                    raise InvalidArgument(
                        f"semantic recall lacks {error.name}: pip install 'smolmem[semantic]'."
                    ) from error

                semantic = SemanticSearch(self._journal.store, embedder, self._external)
                self._search = Search(self._journal, semantic)
        return self._search

    def _open_embedder(self) -> CheckedEmbedder | None:
        with self._lock:
            if not self._is_opened:
                opened = self._open_chosen()
                self._opened_embedder = None if opened is None else CheckedEmbedder(opened)
                self._is_opened = True
            return self._opened_embedder

    def _open_chosen(self) -> Embedder | None:
        """The embedder that the user chose; without a choice, a default model that cannot be opened stops nobody."""
        try:
            return open_embedder(self._embedder)
        except InvalidArgument as error:
            if self._embedder is not None:
                raise
            _warned.add("words")
            log.warning("smolmem recalls by words alone: %s", error)
            return None

    def recorded(self) -> None:
        """Something was recorded: it is indexed in the background."""
        self._indexer.wake()

    def index(self, progress: Progress | None = None) -> int:
        """Indexes and embeds everything that is pending; returns how many steps, notes and passages there were."""
        return self._indexer.index(progress)

    def loaded(self, progress: Progress | None = None) -> None:
        """Much was stored at once: it can be found by its words from now on, and gets its vectors in the background."""
        with suppress(Unwritable, Busy):  # such as a full disk: what was stored is stored, and the indexer tries again
            self._indexer.index_words(progress)
        self._indexer.wake()

    def follow_sources(self) -> None:
        """Notes what was made from text of low trust, before that text is erased."""
        self._journal.store.transact(lambda: Provenance(self._journal).catch_up_all(), sync=False)

    def indexed_models(self) -> list[str]:
        """The models whose vectors an index outside of the store has; none if there is no such index."""
        rows = [] if self._external is None else self._journal.store.rows("vector_models", {})
        return [row["model"] for row in rows]

    def erase_vectors(self, models: Collection[str]) -> bool:
        """Removes erased vectors from an index outside of the store; false if the index does not answer."""
        return self._external is None or self._external.sync(self._journal.store, models, erased=True)

    def close(self) -> None:
        """Ends indexing; what is left stays pending."""
        if self._external is not None:
            self._external.close()
        self._indexer.close()


def _as_answer(one: Recollection) -> Recollection | None:
    """A step that ended a run, shown by its answer; None for other steps and notes."""
    answer = next((excerpt for excerpt in one.excerpts if excerpt.kind == "answer"), None)
    return None if answer is None else shown_by(one, answer)


def _external_index(journal: Journal, url: str | None) -> ExternalIndex | None:
    """The vector index that a user chose; None for the one that is built in."""
    chosen = url or os.environ.get(VECTORS_VARIABLE)
    if not chosen:
        return None
    try:
        from smolmem.recall.indexes.external_index import ExternalIndex
    except ImportError as error:
        from smolmem.recall.indexes.vector_index import locate

        locate(chosen)  # if the package of the index is missing, names the extra that also has NumPy
        raise InvalidArgument(f"vectors needs {error.name}: pip install 'smolmem[semantic]'.") from error
    return ExternalIndex(chosen, journal.store)


CONSIDERED = 30
"""Results among which a reminder looks for notes and answers."""
NOTES, ANSWERS = 1, 2
"""Notes, and answers of earlier runs, that come early in a reminder: behind the best result."""
NOT_IN_REMINDERS = ("task", "code", "call")
"""Kinds that an agent is not reminded of: earlier tasks, and code without its result."""
_warned: set[str] = set()


def _warn_once() -> None:
    if "words" not in _warned:
        _warned.add("words")
        need = "embedder='local'" if installed() else "embedder='local' after pip install 'smolmem[semantic]'"
        log.warning(
            "smolmem recalls by words alone. For semantic recall, open the memory once with %s (%d MB are fetched); "
            "embedder='off' or `smolmem model use off` turns this message off.",
            need,
            models.E5.megabytes,
        )


def names(given: Collection[str] | str | None, what: str) -> tuple[str, ...] | None:
    """One name or several, as a filter takes them."""
    if given is None:
        return None
    listed = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if not all(isinstance(name, str) for name in listed):
        raise InvalidArgument(f"{what} are texts, not {given!r}.")
    return listed
