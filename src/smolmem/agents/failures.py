"""Failed writes: counted, logged once, and logged again when writing works again.

A store that fails again and again is tried less and less often, because each attempt writes all that is not saved.
"""

from __future__ import annotations

import logging
import time
import traceback

log = logging.getLogger("smolmem")


_AT_ONCE = 3
"""So many failures in a row are followed by a retry with the next step."""
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 30.0
"""Seconds without a retry after the next failure; each further one doubles them."""


class Failures:
    """The failed writes of one `Memory`."""

    def __init__(self) -> None:
        self.total = 0
        self.last: Exception | None = None
        self._shown = False
        self._call_shown = False
        self._in_a_row = 0
        self._retry_at = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether the next attempt should wait for a later step."""
        return self._in_a_row > _AT_ONCE and time.monotonic() < self._retry_at

    def count(self, error: Exception) -> None:
        """Counts a failure, and logs the first one."""
        if error is self.last:  # the same error, raised through another guard
            return
        self.total += 1
        self.last = error
        self._in_a_row += 1
        wait = _FIRST_WAIT * 2.0 ** min(self._in_a_row - _AT_ONCE, 16)
        self._retry_at = time.monotonic() + min(wait, _LONGEST_WAIT)
        if not self._shown:
            self._shown = True
            log.warning("smolmem could not save a step; it is retried with the next one. %s", error)

    def warn_of_call(self, name: str) -> None:
        """Logs the first tool call that is made although its beginning could not be recorded."""
        if not self._call_shown:
            self._call_shown = True
            log.warning(
                "smolmem could not record that %s is called: until the store works again, a resumed run may repeat "
                "calls that were made.",
                name,
            )

    def recovered(self) -> None:
        """Everything is saved again."""
        self._in_a_row = 0
        self._call_shown = False
        if self._shown:
            self._shown = False
            log.warning("smolmem has now saved the steps that it could not save before.")


def described(error: BaseException) -> dict[str, str]:
    """How an error that ended a run is stored."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {"type": type(error).__name__, "message": str(error), "traceback": text}
