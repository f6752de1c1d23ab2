"""Failed writes: counted, logged once, and logged again when writing works again."""

from __future__ import annotations

import logging

log = logging.getLogger("smolmem")


class Failures:
    """The failed writes of one `Memory`."""

    def __init__(self) -> None:
        self.total = 0
        self.last: Exception | None = None
        self._shown = False

    def count(self, error: Exception) -> None:
        """Counts a failure, and logs the first one."""
        if error is self.last:  # the same error, raised through another guard
            return
        self.total += 1
        self.last = error
        if not self._shown:
            self._shown = True
            log.warning("smolmem could not save a step; it is retried with the next one. %s", error)

    def recovered(self) -> None:
        """Everything is saved again."""
        if self._shown:
            self._shown = False
            log.warning("smolmem has now saved the steps that it could not save before.")
