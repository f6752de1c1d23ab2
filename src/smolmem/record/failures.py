"""Writes that failed, counted and told."""

from __future__ import annotations

import logging

log = logging.getLogger("smolmem")


class Failures:
    """Writes that failed: all are counted; they are shown once, until writing works again."""

    def __init__(self) -> None:
        self.total = 0
        self.last: Exception | None = None
        self._shown = False

    def count(self, error: Exception) -> None:
        """Notes a failure, and says so the first time."""
        if error is self.last:  # seen again on its way out
            return
        self.total += 1
        self.last = error
        if not self._shown:
            self._shown = True
            log.warning("smolmem could not save a step; it will try again with the next one. %s", error)

    def recovered(self) -> None:
        """All is saved again."""
        if self._shown:
            self._shown = False
            log.warning("smolmem has now saved what it could not save before.")
