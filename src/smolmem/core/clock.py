"""The clock that decides whether something has expired or been silent for too long; tests replace both functions."""

from __future__ import annotations

import time


def now() -> float:
    """The time, in seconds since 1970."""
    return time.time()


def elapsed() -> float:
    """Seconds since a fixed but unknown moment; setting the system's time does not change them."""
    return time.monotonic()
