"""Reading what was recorded, so that it can be found: units are made of steps before each recall and after each run.

A step is searchable from the moment it is written, because whoever searches reads first what nobody has read yet.
Making units while a step is being written would cost a third of the write; made in bulk, they cost a fifth of that.
"""

from __future__ import annotations

import sys
from typing import cast

from rich.console import Console
from rich.progress import Progress

from smolmem.recall.text import pieces
from smolmem.record.values import Origin
from smolmem.store.base import Row
from smolmem.store.journal import Journal
from smolmem.store.units import Place, add_units, drop_units

BATCH = 64
MANY = 1_000
"""Steps that are read without a progress bar."""
MOUTHS = frozenset({"recall_memory", "memory"})
"""Names under which an agent asks for memories: what comes back from there is not news."""


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
        for row in rows:
            if row["revision"]:
                drop_units(store, store.rows("step_units", {"session": row["session"], "step": row["id"]}))
            if not row["forgotten"] and row["kind"] != "system_prompt":
                _read_one(journal, row)
            store.do("was_read", {"step": row["id"]})
    return len(rows) == BATCH


def _read_one(journal: Journal, row: Row) -> None:
    """Makes units of one step: its own words, not those it was reminded of."""
    run, parent = row["run"], row["parent"]
    asked_by: Origin = "agent" if parent else "user"
    told = [*journal.reminders.told(run), *(journal.reminders.told(parent) if parent else ())]
    mouths = MOUTHS | {helper["agent"] for helper in journal.store.rows("helpers", {"run": run})} if told else ()
    own = {name: row[name] for name in ("scope", "session", "run", "agent", "at")}
    place = cast(Place, own | {"step": row["id"], "note": None})
    step = journal.step_of(row)
    add_units(journal.store, place, pieces(step, asked_by=asked_by, recalled=told, mouths=mouths))
