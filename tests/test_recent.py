"""The cache that threads share: bounded, in order of use, and never an error."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from smolmem.core.recent import Recent


def test_the_values_that_were_used_last_stay() -> None:
    cache = Recent[str, int](2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]


def test_values_together_never_weigh_more_than_is_allowed() -> None:
    cache = Recent[int, bytes](10, len)
    cache.put(1, b"123456")
    cache.put(1, b"12")  # replaced, not added
    cache.put(2, b"12345678")
    assert (cache.get(1), cache.get(2)) == (b"12", b"12345678")
    cache.put(3, b"x" * 11)
    assert [cache.get(key) for key in (1, 2, 3)] == [None, None, None]
    cache.put(4, b"1")
    assert cache.take(4) == b"1"
    assert cache.take(4) is None


def test_threads_that_put_drop_and_take_at_once_raise_nothing() -> None:
    cache = Recent[int, int](3)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def use(seed: int) -> int:
        for number in range(2000):
            cache.put((seed * number) % 7, number)
            cache.get(number % 7)
            cache.take(number % 5)
        return seed

    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(use, range(1, 5))) == [1, 2, 3, 4]
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_finds_the_cache_unlocked_and_empty() -> None:
    cache = Recent[int, int](3)
    cache.put(1, 1)
    with cache._lock:  # as another thread may hold it
        child = os.fork()
        if child == 0:
            os._exit(0 if cache.get(1) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
