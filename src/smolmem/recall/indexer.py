"""Indexing what was recorded: steps become passages before each recall and after each run.

A step can be found from the moment it is written, because every search first indexes the steps that are pending.
Indexing while a step is written would make the write a third more expensive, and the agent would wait for it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import cast

from rich.console import Console
from rich.progress import Progress

from smolmem.core.errors import Damaged
from smolmem.core.rows import Origin, Passage
from smolmem.recall.passages import passages_of, spellings
from smolmem.store.base import Row
from smolmem.store.journal import Journal
from smolmem.store.passage_rows import PassageOwner, add_passages, drop_passages, reindex_after
from smolmem.store.writer import IMPORTED

log = logging.getLogger("smolmem")

BATCH = 64
NOT_INDEXED = ("system_prompt", "injected")
"""Kinds of steps that are not indexed: they stand in every run."""
SHOW_PROGRESS = 1_000
"""Steps that are indexed without a progress bar."""


def index_pending(journal: Journal) -> None:
    """Indexes the latest revision of all steps that are pending."""
    store = journal.store
    count = int(store.do("count_unread", {}))
    if not count:
        return
    with Progress(console=Console(file=sys.stderr), transient=True, disable=not _shows_progress(count)) as bar:
        task = bar.add_task("smolmem indexes what was recorded", total=count)
        while _index_some(journal):
            bar.advance(task, BATCH)


def _shows_progress(count: int) -> bool:
    return count > SHOW_PROGRESS and sys.stderr.isatty()


def _index_some(journal: Journal) -> bool:
    store = journal.store
    with store.write(sync=False):
        rows = store.rows("unread", {"limit": BATCH})
        recalled_in = lru_cache(BATCH)(lambda run: spellings(journal.reminders.lines_recalled_in(run)))
        for row in rows:
            store.do("was_read", {"step": row["id"]})
            before = store.rows("step_units", {"session": row["session"], "step": row["id"]})
            found = [] if row["forgotten"] or row["kind"] in NOT_INDEXED else _passages(journal, row, recalled_in)
            drop_passages(store, before)
            add_passages(store, _owner(row), found)
            if before and [old["text"] for old in before] != [new.text for new in found]:
                reindex_after(store, row["session"], row["id"])
    return bool(rows)


def _owner(row: Row) -> PassageOwner:
    own = {name: row[name] for name in ("scope", "session", "run", "agent", "at")}
    return cast(PassageOwner, own | {"step": row["id"], "note": None})


def _passages(journal: Journal, row: Row, recalled_in: Callable[[str], set[str]]) -> list[Passage]:
    """The passages of a step: its own words, not those it was reminded of."""
    asked_by: Origin = "agent" if row["parent"] else "user"
    try:
        recalled = recalled_in(row["run"])
        rows = journal.store.rows("helpers", {"run": row["run"]}) if recalled else []
        managed = {row["agent"] for row in rows}
        found = passages_of(journal.step_of(row), asked_by=asked_by, recalled=recalled, managed_agents=managed)
        return [replace(passage, origin="import") for passage in found] if row["writer"] == IMPORTED else found
    except Damaged as error:
        log.warning("smolmem cannot index a step, and continues without it. %s", error)
        return []
