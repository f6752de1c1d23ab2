"""A cache of the values that were used last, which threads can share.

The inspector, the indexer and several agents read one store at the same time. A plain dict from which two threads drop
the oldest entry raises `KeyError` or `RuntimeError` now and then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from smolmem.core.fork_lock import ForkLock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The values that were used last.

    Args:
        most: what all values together may weigh.
        weigh: the weight of a value; each counts 1 by default.
    """

    def __init__(self, most: int, weigh: Callable[[V], int] = lambda _: 1) -> None:
        self._most = most
        self._weigh = weigh
        self._values: OrderedDict[K, V] = OrderedDict()
        self._weight = 0
        self._lock = ForkLock(self._drop_all)

    def get(self, key: K) -> V | None:
        """The value of a key, if it is still there."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def take(self, key: K) -> V | None:
        """The value of a key, which is not kept any longer."""
        with self._lock:
            value = self._values.get(key)
            self._drop(key)
            return value

    def put(self, key: K, value: V) -> None:
        """Keeps a value, and drops the values that were not used for the longest time."""
        with self._lock:
            self._drop(key)
            self._values[key] = value
            self._weight += self._weigh(value)
            while self._weight > self._most:
                self._drop(next(iter(self._values)))

    def clear(self) -> None:
        """Drops all values."""
        with self._lock:
            self._drop_all()

    def _drop(self, key: K) -> None:
        if key in self._values:
            self._weight -= self._weigh(self._values.pop(key))

    def _drop_all(self) -> None:
        self._values, self._weight = OrderedDict(), 0
