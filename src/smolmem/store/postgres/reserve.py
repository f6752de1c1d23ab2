"""What a process knows before it asks the server: ids that it may use, and contents that it has stored before.

With it a transaction is one message: nothing in it depends on an answer. What it takes for granted is checked by
statements that are sent along, and that fail if it is not so: the ids of known contents, and that no content is new to
this process only.

Ids of the reserve are older than the transaction that uses them, so their order is not that of the commits. Only steps,
calls, prompts and contents have such ids, and only within a run that this process holds, whose writer is one process:
there they ascend. Events are put in order by ids that the server hands out while it holds the lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from smolmem.store.postgres.connection import Link, Result
from smolmem.store.postgres.statements import array_of

FRESH_SECONDS = 30.0
"""How long ids are used after they were handed out. Leases are renewed more often, each time with new ids."""
KNOWN_CONTENTS = 4_000
MORE_IDS = "SELECT nextval('ids') FROM generate_series(1, 500)"
"""For a long transaction, which has used up its ids."""


class Used:
    """What one transaction takes from the reserve and adds to the store."""

    def __init__(self) -> None:
        self.contents: dict[bytes, int] = {}
        self.marker: dict[str, Any] | None = None  # the id and the hash of a row that shows whether it is stored
        self.ids: list[int] = []


class Posted(NamedTuple):
    """A transaction that was sent, and whose answer was not read yet."""

    link: Link
    body: Callable[[], object]
    used: Used
    names: set[str]


class Reserve:
    """Ids and contents of one store in one process."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.used = Used()  # by the current transaction
        self.was_lost = False
        self._known: dict[bytes, int] = {}
        self._filled_at = 0.0

    def is_fresh_since(self, connected_at: float) -> bool:
        """Whether there are ids of this moment, and of this connection: a server that crashed hands some out again."""
        return bool(self.ids) and max(connected_at, time.monotonic() - FRESH_SECONDS) < self._filled_at

    def begin(self, *, keep_ids: bool) -> None:
        """A transaction begins; without `keep_ids` it waits for ids of its own."""
        self.used = Used()
        if not keep_ids:
            self.ids.clear()

    def take(self) -> int:
        """An id."""
        self.used.ids.append(self.ids.pop(0))
        return self.used.ids[-1]

    def restore(self) -> None:
        """The transaction was lost on its way, perhaps: it runs again with the same ids."""
        self.refill([*self.used.ids, *self.ids])
        self.was_lost = True

    def refill(self, ids: Iterable[int]) -> None:
        """New ids replace older ones."""
        self.ids[:] = sorted(ids)
        self._filled_at = time.monotonic()

    def take_ids(self, found: Result) -> None:
        """New ids, from the server."""
        self.refill(int(row[0]) for row in found.rows)

    def take_contents(self, found: Result) -> None:
        """The ids of contents, from the server."""
        self.used.contents.update((bytes(key), int(number)) for key, number in found.rows)

    def commit(self) -> None:
        """What the transaction stored is known from now on."""
        self.was_lost = False
        for key, number in self.used.contents.items():
            self._known.pop(key, None)
            self._known[key] = number
        while len(self._known) > KNOWN_CONTENTS:
            del self._known[next(iter(self._known))]

    def share_out(self, contents: Mapping[bytes, bytes]) -> list[tuple[str, dict[str, Any]]] | None:
        """The statements that add contents with ids of the reserve, and check known ones; None if the ids are too few.

        A known content may have been erased or replaced by another process.
        """
        new = [key for key in contents if key not in self._known]
        if len(new) > len(self.ids):
            return None
        old = {key: self._known[key] for key in contents if key in self._known}
        taken = {key: self.take() for key in new}
        self.used.contents.update(old | taken)
        statements: list[tuple[str, dict[str, Any]]] = []
        if new:
            added = {"hashes": array_of(new), "contents": array_of(contents[key] for key in new)}
            statements.append(("add_new_contents", added | {"ids": array_of(taken.values())}))
        if old:
            known = {"ids": array_of(old.values()), "hashes": array_of(old), "count": len(old)}
            statements.append(("assume_contents", known))
        return statements
