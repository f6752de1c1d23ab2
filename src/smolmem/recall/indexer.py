"""Indexing what was recorded: steps and notes become passages, and passages get vectors, in the background.

Writing a step only marks it as pending. A thread of this process indexes what is pending, in short transactions on a
connection of its own. Of all processes that use a store, one at a time does so: it has the lease `indexer`. A killed
process loses nothing, because what is pending stays so until it is indexed. If the embedding model or the store fails,
the thread tries again after a while, and again after a longer while.

A search indexes the newest pending steps itself, for some milliseconds, and then those that have a word of the
question, so that a step can be found from the moment it is written. It never runs a model on what is stored.
"""

from __future__ import annotations

import atexit
import logging
import math
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, cast

from smolmem.core.errors import Damaged, EmbedderFailed
from smolmem.core.fork_lock import ForkLock
from smolmem.core.rows import Origin, Passage
from smolmem.recall.embedding.checked_embedder import CheckedEmbedder
from smolmem.recall.notes import add_note_passages
from smolmem.recall.passages import passages_of, spellings, web_tools
from smolmem.recall.provenance import NOT_INDEXED, Provenance
from smolmem.store.base import Progress, Row, Store
from smolmem.store.fork_hooks import no_fork
from smolmem.store.journal import Journal
from smolmem.store.leases import Lease, Leases
from smolmem.store.passage_rows import PassageOwner, add_passages, drop_passages, json_list, reindex_after, sections
from smolmem.store.writer import IMPORTED

if TYPE_CHECKING:
    from smolmem.recall.embedding.vector_writer import VectorWriter
    from smolmem.recall.indexes.external_index import ExternalIndex

log = logging.getLogger("smolmem")

BATCH, REMOTE_BATCH = 8, 4
"""Steps that are indexed in one transaction: short enough that a writer hardly waits; fewer in the background of a
server, where each takes a round trip."""
SEARCH_SECONDS, REMOTE_SEARCH_SECONDS = 0.05, 0.3
"""How long a search indexes what is pending before it searches."""
MOST_PENDING = 2_000
"""Pending steps and notes up to which a search indexes some itself. With more, it finds what is indexed, and the
indexer catches up."""
FOLLOW_SECONDS = 0.1
"""CPU time in which a search follows the trust of the pending steps before those that it indexes; if there are more, it
leaves them to the indexer, too."""
MATCHING = 32
"""Pending steps with a word of the question that a search indexes besides."""
MATCHING_SECONDS = 0.5
PAUSE_SECONDS = 0.05
"""How long the thread waits after a batch at most: as long as the batch took. A writer that waits for SQLite looks from
time to time, and would find no moment between two batches."""
LEASE_SECONDS = 30.0
IDLE_SECONDS = 5.0
"""How long the thread waits for more before it ends, and for another process that has the lease."""
WAIT_SECONDS, PATIENCE_SECONDS = 0.1, 3.0
"""How often `index` looks whether another still embeds, and how long it waits without seeing progress."""
EMBED_DELAY = 2.0
"""How long the thread only indexes words, so that a short program does not load a model before it ends."""
RETRY_SECONDS = (5.0, 15.0, 60.0, 300.0)
"""How long the thread waits after the first, second, … failure in a row."""
CLOSE_SECONDS = 5.0
"""How long closing waits for a batch: a server may take much longer to answer, or never answer."""


def index_for(journal: Journal, words: list[str], most: float = math.inf) -> tuple[bool, float]:
    """Indexes, for a moment, what was recorded last; then what has a word of the question.

    Returns:
        Whether something is still pending, and with how many pending steps at most the next search should index some:
        where too many steps came before the newest, the indexer must have done half of them first.
    """
    pending = int(journal.store.do("count_pending", {}))
    if not pending or pending > min(most, MOST_PENDING):
        return bool(pending), most if pending else math.inf
    end = time.monotonic() + (REMOTE_SEARCH_SECONDS if journal.store.is_remote else SEARCH_SECONDS)
    while time.monotonic() < end:
        if not _index_some(journal, newest=True):
            left = int(journal.store.do("count_pending", {}))
            return bool(left), left // 2 if left else math.inf
    asked = {"words": json_list(words), "limit": MATCHING}
    with suppress(TimeoutError):
        rows = journal.store.rows("pending_with", asked, MATCHING_SECONDS)
        for start in range(0, len(rows), BATCH):
            _index_some(journal, json_list(row["step"] for row in rows[start : start + BATCH]))
    return True, math.inf


def _index_some(journal: Journal, steps: str | None = None, *, newest: bool = False) -> int:
    """Indexes some steps and notes; returns how many. In order, because a step is also found by what came before it."""
    store = journal.store
    if not store.do("any_pending", {}):
        return 0
    is_background = not newest and steps is None
    limit = REMOTE_BATCH if store.is_remote and is_background else BATCH
    asked, passages = {"limit": limit, "newest": newest, "only": steps}, _passages_once(journal)
    if store.is_remote:  # what can be done before other writers have to wait
        for row in store.rows("pending_steps", asked):
            store.prepare_texts(text for _, text in sections(passages(row)))
    return store.transact(lambda: _index_within(journal, asked, passages), sync=False)


def _passages_once(journal: Journal) -> Callable[[Row], list[Passage]]:
    """What makes the passages of pending steps, once for each revision of a step."""
    recalled_in = lru_cache(BATCH)(lambda run: spellings(journal.reminders.lines_recalled_in(run)))
    known: dict[tuple[int, int], list[Passage]] = {}

    def passages(row: Row) -> list[Passage]:
        if row["forgotten"] or row["kind"] in NOT_INDEXED:
            return []
        key = row["id"], row["record"]
        if key not in known:
            known[key] = _passages(journal, row, recalled_in)
        return known[key]

    return passages


def _index_within(journal: Journal, asked: Row, passages: Callable[[Row], list[Passage]]) -> int:
    store = journal.store
    provenance, some = Provenance(journal), {"limit": asked["limit"]}
    store.read_ahead([("pending_notes", some), ("pending_steps", asked)])
    rows, notes = store.rows("pending_steps", asked), store.rows("pending_notes", some)
    for row in notes:
        store.do("note_indexed", {"note": row["id"]})
        before = store.rows("note_passages", {"note": row["id"]})
        if row["current"]:
            add_note_passages(store, row, exposed=provenance.made_from_low_trust(row), earlier=before)
        else:
            drop_passages(store, before)
    if asked["newest"] or asked["only"] is not None:
        last = max((row["id"] for row in rows), default=0)
        if not provenance.catch_up({row["run"] for row in rows}, last, FOLLOW_SECONDS):
            return len(notes)
    places = [{"session": row["session"], "step": row["id"]} for row in rows]
    queries = [query for row in rows for query in provenance.queries_of(row)]
    store.read_ahead([*(("step_passages", place) for place in places), *queries])
    earlier = {place["step"]: store.rows("step_passages", place) for place in places}
    for row in sorted(rows, key=lambda row: int(row["id"])):
        store.do("step_indexed", {"step": row["id"]})
        before = earlier[row["id"]]
        provenance.follow(row)
        found = provenance.judged(row, passages(row))
        add_passages(store, _owner(row), found, before)
        if [old["text"] for old in before] != [new.text for new in found]:
            reindex_after(store, row["session"], row["id"])
    return len(rows) + len(notes)


def _owner(row: Row) -> PassageOwner:
    own = {name: row[name] for name in ("scope", "session", "run", "agent", "at")}
    return cast(PassageOwner, own | {"step": row["id"], "note": None})


def _passages(journal: Journal, row: Row, recalled_in: Callable[[str], frozenset[str]]) -> list[Passage]:
    """The passages of a step: its own words, not those it was reminded of."""
    asked_by: Origin = "agent" if row["parent"] else "user"
    try:
        recalled = recalled_in(row["run"])
        rows = journal.store.rows("helpers", {"run": row["run"]}) if recalled else []
        managed = {row["agent"] for row in rows}
        called = web_tools(journal.store.rows("tools_called_in_step", row))
        found = passages_of(
            journal.step_of(row), asked_by=asked_by, recalled=recalled, managed_agents=managed, called=called
        )
        return [passage._replace(origin="import") for passage in found] if row["writer"] == IMPORTED else found
    except Damaged as error:
        log.warning("smolmem cannot index a step, and continues without it. %s", error)
        return []


_all: weakref.WeakSet[BackgroundIndexer] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends indexing before the process does: a thread inside a model would abort the process at its end."""
    for indexer in list(_all):
        indexer.close()


class BackgroundIndexer:
    """The thread of a process that indexes one store; there is none while nothing is pending."""

    def __init__(
        self,
        journal: Journal,
        embedder: Callable[[], CheckedEmbedder | None],
        external: ExternalIndex | None = None,
    ) -> None:
        self._journal = journal
        self._embedder = embedder
        self._external = external
        self.batch = ForkLock()
        """Held while a batch is indexed: a search of this process comes next."""
        self._lock = ForkLock(self._after_fork)
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._failures = 0
        self._embed_after = 0.0
        _all.add(self)

    def _after_fork(self) -> None:
        """The thread is the parent's, and may have been using the event."""
        self._thread, self._wake = None, threading.Event()

    def wake(self) -> None:
        """Something is pending."""
        with self._lock:
            self._wake.set()
            if not self._closed and self._thread is None:
                self._embed_after = max(self._embed_after, time.monotonic() + EMBED_DELAY)
                self._thread = threading.Thread(target=self._work, name="smolmem-indexer", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Ends the thread after its current batch; what is left stays pending."""
        with self._lock:
            self._closed, thread = True, self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)

    def index(self, progress: Progress | None = None) -> int:
        """Indexes and embeds all that is pending, now; returns how many steps, notes and passages."""
        done = self.index_words(progress)
        writer = self._vector_writer(self._journal)
        if writer is None:
            return done
        done += self._embed_all(writer, progress)
        if self._external is not None:
            self._external.sync(self._journal.store, [writer.model], report=progress)
        return done

    def index_words(self, progress: Progress | None = None) -> int:
        """Indexes all that is pending, and embeds nothing; returns how many steps and notes."""
        total, done = int(self._journal.store.do("count_pending", {})), 0
        while count := _index_some(self._journal):
            done += count
            if progress is not None:
                progress(min(done, total), total)
        return done

    def _embed_all(self, writer: VectorWriter, progress: Progress | None) -> int:
        """Embeds all passages; what another thread or process is about to embed is left to it."""
        leases = Leases(self._journal.store)
        lease = self._lease(leases, writer)
        total, done = writer.count() if progress is not None else 0, 0
        try:
            while not self._closed and (count := writer.write_some()):
                done += count
                if lease is not None and not leases.renew(lease):  # the model took longer than the lease lasts
                    lease = self._lease(leases, writer)
                    writer.begin_again()
                if progress is not None:
                    progress(min(done, total), total)
        finally:
            if lease is not None:
                with suppress(Exception):  # the lease ends by itself
                    leases.release(lease)
        return done

    def _lease(self, leases: Leases, writer: VectorWriter) -> Lease | None:
        """The lease of the indexer, taken from a holder that makes no progress; None if all is done meanwhile."""
        own, seen, end = secrets.token_hex(8), None, 0.0
        while (lease := leases.acquire("indexer", own, LEASE_SECONDS)) is None:
            left, holder = writer.count(), leases.holder("indexer")
            if seen != (left, holder):
                seen, end = (left, holder), time.monotonic() + PATIENCE_SECONDS
            if self._closed or not left:
                return None
            if time.monotonic() > end:  # such as a killed process
                leases.end("indexer")
            else:
                time.sleep(WAIT_SECONDS)
        return lease

    def _vector_writer(self, journal: Journal) -> VectorWriter | None:
        """What embeds passages; none without an embedder, and then NumPy is not needed."""
        embedder = self._embedder()
        if embedder is None:
            return None
        with no_fork:
            from smolmem.recall.embedding.vector_writer import VectorWriter

        return VectorWriter(journal.store, embedder)

    # --- the thread ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        holder, store, pause = secrets.token_hex(8), None, 0.0
        while self._is_wanted(pause):
            try:
                store = store or self._journal.store.reopened()
                pause = self._take_turn(store, holder)
            except Exception as error:  # recall goes on with what is indexed
                pause = self._failed(error)
                _close(store)
                store = None
        _close(store)

    def _is_wanted(self, pause: float) -> bool:
        """Waits until something is pending or a pause is over; false if the thread should end."""
        self._wake.wait(pause or IDLE_SECONDS)
        with self._lock:
            if not self._closed and (pause or self._wake.is_set()):
                self._wake.clear()
                return True
            self._thread = None
            return False

    def _take_turn(self, store: Store, holder: str) -> float:
        """Indexes what is pending; returns after how many seconds to try again, 0 if all is done."""
        leases = Leases(store)
        lease = leases.acquire("indexer", holder, LEASE_SECONDS)
        if lease is None:  # whoever has it may end without having seen the newest steps
            return IDLE_SECONDS
        try:
            journal, renew = Journal(store, self._journal.redactor), partial(leases.renew, lease)
            while not self._closed and self._index_batch(journal):
                renew()
            wait = self._embed_after - time.monotonic()
            if wait > 0:
                return wait
            writer = self._vector_writer(journal)
            while writer is not None and not self._closed and renew() and writer.write_some():
                self._index_batch(journal)
            if writer is not None and self._external is not None:
                self._external.sync(store, [writer.model], report=lambda *_: renew())
        finally:
            with suppress(Exception):  # the lease ends by itself
                leases.release(lease)
        self._failures = 0
        return 0.0

    def _index_batch(self, journal: Journal) -> int:
        """Indexes some steps and notes, and leaves others time to write; returns how many."""
        with self.batch:
            began = time.monotonic()
            count = _index_some(journal)
        if count:
            time.sleep(min(time.monotonic() - began, PAUSE_SECONDS))
        return count

    def _failed(self, error: Exception) -> float:
        """Logs the first failure in a row, unless the embedder has; returns how long to wait."""
        if not self._failures and not isinstance(error, EmbedderFailed):
            log.warning("smolmem cannot index in the background now, and tries again: %s", error)
        pause = RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
        self._failures += 1
        self._embed_after = time.monotonic() + pause
        return pause


def _close(store: Store | None) -> None:
    if store is not None:
        with suppress(Exception):  # it may be closed, or its disk gone; nothing of it is needed any more
            store.close()
