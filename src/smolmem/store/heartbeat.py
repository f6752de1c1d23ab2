"""Renews the lease of a writer in a thread, while the writer has runs.

The thread does not keep the journal alive. A forked child has no such thread and no runs: they are the parent's.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable

from smolmem.core.errors import SmolmemError

LEASE_SECONDS = 60.0
"""How long a writer that was stopped, or that this process cannot see, counts as alive."""
BEAT_SECONDS = 15.0
"""How often a lease is renewed: a write may wait 30 seconds for another one, and the lease must outlast that."""

log = logging.getLogger("smolmem")


class Heartbeat:
    """The runs that one writer works on.

    Args:
        renew: a bound method that renews the lease.
    """

    def __init__(self, renew: Callable[[], None]) -> None:
        self._renew = weakref.WeakMethod(renew)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._runs: set[str] = set()
        self._stop: threading.Event | None = None

    def of(self, runs: Iterable[str | None]) -> list[str]:
        """The runs, of those given, that this writer works on."""
        return [run for run in runs if run in self._runs] if self._pid == os.getpid() else []

    @property
    def runs(self) -> list[str]:
        """The runs that this writer works on."""
        return self.of(list(self._runs))

    def add(self, runs: Iterable[str]) -> None:
        """The writer works on more runs; it has the lease."""
        if self._pid != os.getpid():
            self._begin_anew()
        with self._lock:
            self._runs.update(runs)
            if self._runs and self._stop is None:
                self._stop = threading.Event()
                given = (self._renew, self._stop)
                threading.Thread(target=_beat, args=given, name="smolmem lease", daemon=True).start()

    def remove(self, runs: Iterable[str]) -> None:
        """The writer no longer works on some runs. Its lease ends by itself: it protects nothing any more."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._runs.difference_update(runs)
            if not self._runs and self._stop is not None:
                self._stop.set()
                self._stop = None

    def stop(self) -> None:
        """The store is closed: the writer works on nothing."""
        self.remove(list(self._runs))


def _beat(renew: weakref.WeakMethod[Callable[[], None]], stop: threading.Event) -> None:
    while not stop.wait(BEAT_SECONDS):
        method = renew()
        if method is None:
            return
        try:
            method()
        except SmolmemError as error:  # the lease may run out, and another process may then take the runs over
            log.info("smolmem could not renew its lease: %s", error)
        del method
