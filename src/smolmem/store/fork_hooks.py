"""What happens to open SQLite files when the process forks.

SQLite keeps the locks of a process in its memory, and a forked child inherits that memory, not the locks. So no
transaction may be in progress at a fork, and the child closes the inherited connections before it opens its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

MAX_SECONDS = 30.0
"""How long a fork waits for a transaction of another thread."""


class Forkable(Protocol):
    """An open file."""

    lock: threading.RLock

    def after_fork_in_child(self) -> None:
        """Closes what was inherited."""
        ...


stores: weakref.WeakSet[Forkable] = weakref.WeakSet()
_held: list[Forkable] = []


def _before_fork() -> None:
    _held[:] = [store for store in list(stores) if store.lock.acquire(timeout=MAX_SECONDS)]


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop().lock.release()


def _after_fork_in_child() -> None:
    _held.clear()
    for store in list(stores):
        store.after_fork_in_child()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
