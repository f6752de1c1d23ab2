"""Handles open SQLite files when the process forks.

SQLite keeps the locks of a process in its memory, and a forked child inherits that memory, not the locks. So no
transaction may be in progress at a fork, and the child closes the inherited connections before it opens its own.

SQLite also guards its own memory with locks, and Python guards each module that is being imported. A thread that holds
one of them at a fork does not exist in the child, where the lock is never released. So threads of smolmem open files
and import large libraries under `no_fork`, and a fork waits for that.
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
        """Closes the inherited connection."""
        ...


class _NoFork:
    """For `with`: no fork begins meanwhile."""

    lock = threading.RLock()

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


no_fork = _NoFork()
stores: weakref.WeakSet[Forkable] = weakref.WeakSet()
_held: list[threading.RLock] = []


def _before_fork() -> None:
    if no_fork.lock.acquire(timeout=MAX_SECONDS):
        _held.append(no_fork.lock)
    _held.extend(store.lock for store in list(stores) if store.lock.acquire(timeout=MAX_SECONDS))


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop().release()


def _after_fork_in_child() -> None:
    _held.clear()
    no_fork.lock = threading.RLock()
    for store in list(stores):
        store.after_fork_in_child()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
