"""Indexing what was recorded: steps and notes become passages, and passages get vectors, in the background.

Writing a step only marks it as pending. A thread of this process indexes what is pending, in short transactions on a
connection of its own. Of all processes that use a store, one at a time does so: it has the lease `indexer`. A killed
process loses nothing, because what is pending stays so until it is indexed.

A search indexes the newest pending steps itself, for some milliseconds at most, so that a step can be found from the
moment it is written. A search never runs a model on what is stored.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import cast

from smolmem.core.errors import Damaged
from smolmem.core.rows import Origin, Passage
from smolmem.recall.embedders import Embedder
from smolmem.recall.notes import add_note_passages
from smolmem.recall.passages import passages_of, spellings
from smolmem.recall.provenance import NOT_INDEXED, Provenance
from smolmem.store.base import Progress, Row
from smolmem.store.journal import Journal
from smolmem.store.leases import Leases
from smolmem.store.passage_rows import PassageOwner, add_passages, drop_passages, reindex_after
from smolmem.store.writer import IMPORTED

log = logging.getLogger("smolmem")

BATCH = 8
"""Steps that are indexed in one transaction: short enough that a writer hardly waits."""
SEARCH_SECONDS = 0.05
"""How long a search indexes what is pending before it searches."""
LEASE_SECONDS = 30.0
IDLE_SECONDS = 5.0
"""How long the thread waits for more before it ends."""


def index_newest(journal: Journal) -> bool:
    """Indexes what was recorded last, for a moment; returns whether something is still pending."""
    end = time.monotonic() + SEARCH_SECONDS
    while time.monotonic() < end:
        if not _index_some(journal, newest=True):
            return False
    return True


def _index_some(journal: Journal, *, newest: bool = False) -> int:
    """Indexes some steps and notes; returns how many. In order, because a step is also found by what came before it."""
    store = journal.store
    if not store.do("any_pending", {}):
        return 0
    with store.write(sync=False):
        steps = store.rows("pending_steps", {"limit": BATCH, "newest": newest})
        recalled_in = lru_cache(BATCH)(lambda run: spellings(journal.reminders.lines_recalled_in(run)))
        provenance = Provenance(journal)
        if newest:
            provenance.catch_up({row["run"] for row in steps}, max((row["id"] for row in steps), default=0))
        for row in sorted(steps, key=lambda row: int(row["id"])):
            store.do("step_indexed", {"step": row["id"]})
            before = store.rows("step_passages", {"session": row["session"], "step": row["id"]})
            provenance.follow(row)
            found = [] if row["forgotten"] or row["kind"] in NOT_INDEXED else _passages(journal, row, recalled_in)
            found = provenance.judged(row, found)
            drop_passages(store, before)
            add_passages(store, _owner(row), found)
            if [old["text"] for old in before] != [new.text for new in found]:
                reindex_after(store, row["session"], row["id"])
        notes = store.rows("pending_notes", {"limit": BATCH - len(steps)})
        for row in notes:
            store.do("note_indexed", {"note": row["id"]})
            drop_passages(store, store.rows("note_passages", {"note": row["id"]}))
            if row["current"]:
                add_note_passages(store, row, exposed=provenance.made_from_low_trust(row))
    return len(steps) + len(notes)


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
        called = {call["name"] for call in journal.store.rows("tools_called_in_step", row)}
        found = passages_of(
            journal.step_of(row), asked_by=asked_by, recalled=recalled, managed_agents=managed, called=called
        )
        return [replace(passage, origin="import") for passage in found] if row["writer"] == IMPORTED else found
    except Damaged as error:
        log.warning("smolmem cannot index a step, and continues without it. %s", error)
        return []


class BackgroundIndexer:
    """The thread of a process that indexes one store; there is none while nothing is pending."""

    def __init__(self, journal: Journal, embedder: Callable[[], Embedder | None]) -> None:
        self._journal = journal
        self._embedder = embedder
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._closed = False
        self._failing = False

    def wake(self) -> None:
        """Something is pending."""
        if self._process != os.getpid():  # after a fork the thread is the parent's
            self._process, self._thread = os.getpid(), None
            self._lock, self._wake = threading.Lock(), threading.Event()
        self._wake.set()
        with self._lock:
            if not self._closed and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._work, name="smolmem-indexer", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Ends the thread after its current batch; what is left stays pending."""
        with self._lock:
            self._closed, thread = True, self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def index(self, progress: Progress | None = None) -> int:
        """Indexes and embeds all that is pending, now; returns how many steps, notes and passages."""
        total = int(self._journal.store.do("count_pending", {}))
        done = 0
        while count := _index_some(self._journal):
            done += count
            if progress is not None:
                progress(min(done, total), total)
        return done + self._write_vectors(self._journal, progress)

    def _write_vectors(self, journal: Journal, progress: Progress | None = None) -> int:
        embedder = self._embedder()
        if embedder is None:
            return 0
        from smolmem.recall.vector_writer import VectorWriter

        writer, done = VectorWriter(journal.store, embedder), 0
        total = writer.count() if progress is not None else 0
        while not self._closed and (count := writer.write_some()):
            done += count
            if progress is not None:
                progress(min(done, total), total)
        return done

    # --- the thread ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        store = None
        try:
            store = self._journal.store.reopened()
            leases, holder = Leases(store), secrets.token_hex(8)
            while self._wake.wait(IDLE_SECONDS) and not self._closed:
                self._wake.clear()
                lease = leases.acquire("indexer", holder, LEASE_SECONDS)
                if lease is not None:
                    self._work_through(Journal(store), partial(leases.renew, lease))
                    leases.release(lease)
            self._failing = False
        except Exception as error:  # recall goes on with what is indexed
            if not self._failing:
                self._failing = True
                log.warning("smolmem stopped indexing in the background; the next recall tries again: %s", error)
        finally:
            if store is not None:
                store.close()

    def _work_through(self, journal: Journal, renew: Callable[[], bool]) -> None:
        """Indexes what is pending, then embeds passages, while the lease lasts."""
        while not self._closed and _index_some(journal):
            renew()
        embedder = self._embedder()
        if embedder is not None:
            from smolmem.recall.vector_writer import VectorWriter

            writer = VectorWriter(journal.store, embedder)
            while not self._closed and renew() and writer.write_some():
                _index_some(journal)
