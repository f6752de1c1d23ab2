"""A lock that a forked child finds free.

A thread of the parent may hold a lock at the moment of a fork. The child has a copy of the lock and not the thread, so
an ordinary lock would stay locked for ever.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable


class ForkLock:
    """A lock for `with`; in a forked child nobody holds it.

    Args:
        in_child: called in a forked child, to drop unfinished work of the parent's threads.
    """

    def __init__(self, in_child: Callable[[], None] | None = None) -> None:
        self._lock = threading.Lock()
        self._in_child = in_child
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Replaces the copy of the parent's lock."""
        self._lock = threading.Lock()
        if self._in_child is not None:
            self._in_child()


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_locks):
        lock.after_fork_in_child()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork_in_child)
