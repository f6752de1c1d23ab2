"""Reading what was recorded, so that it can be found: units are made of steps before each recall and after each run.

A step is searchable from the moment it is written, because whoever searches reads first what nobody has read yet.
Making units while a step is being written would make the write a third more expensive, and the agent would wait for it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import cast

from rich.console import Console
from rich.progress import Progress

from smolmem.errors import Damaged
from smolmem.recall.text import pieces, spelled
from smolmem.record.values import Origin, Piece
from smolmem.store.base import Row
from smolmem.store.journal import Journal
from smolmem.store.units import Place, add_units, drop_units, forget_after

log = logging.getLogger("smolmem")

BATCH = 64
UNREAD = ("system_prompt", "injected")
"""Steps that nobody did: what stands in every run is not remembered once for each."""
MANY = 1_000
"""Steps that are read without a progress bar."""


def read(journal: Journal) -> None:
    """Makes units of all steps that have none, in their latest revision."""
    store = journal.store
    count = int(store.do("count_unread", {}))
    if not count:
        return
    with Progress(console=Console(file=sys.stderr), transient=True, disable=not _shows(count)) as bar:
        task = bar.add_task("smolmem reads what was recorded", total=count)
        while _read_some(journal):
            bar.advance(task, BATCH)


def _shows(count: int) -> bool:
    return count > MANY and sys.stderr.isatty()


def _read_some(journal: Journal) -> bool:
    store = journal.store
    with store.write(sync=False):
        rows = store.rows("unread", {"limit": BATCH})
        told = lru_cache(BATCH)(lambda run: spelled(journal.reminders.told(run)))
        for row in rows:
            store.do("was_read", {"step": row["id"]})
            before = store.rows("step_units", {"session": row["session"], "step": row["id"]})
            found = [] if row["forgotten"] or row["kind"] in UNREAD else _pieces(journal, row, told)
            drop_units(store, before)
            add_units(store, _place(row), found)
            if before and [unit["text"] for unit in before] != [piece.text for piece in found]:
                forget_after(store, row["session"], row["id"])
    return bool(rows)


def _place(row: Row) -> Place:
    own = {name: row[name] for name in ("scope", "session", "run", "agent", "at")}
    return cast(Place, own | {"step": row["id"], "note": None})


def _pieces(journal: Journal, row: Row, told_in: Callable[[str], set[str]]) -> list[Piece]:
    """What of a step can be found: its own words, not those it was reminded of."""
    asked_by: Origin = "agent" if row["parent"] else "user"
    try:
        told = told_in(row["run"])
        helpers = {helper["agent"] for helper in journal.store.rows("helpers", {"run": row["run"]})} if told else ()
        return pieces(journal.step_of(row), asked_by=asked_by, recalled=told, helpers=helpers)
    except Damaged as error:
        log.warning("smolmem cannot read a step, and goes on without it. %s", error)
        return []
