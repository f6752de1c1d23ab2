from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import quick  # noqa: F401  makes agents quickly, in every test

from smolmem import Memory
from smolmem.core import faults

pytest.register_assert_rewrite("conformance", "recalling")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def memory(path: Path) -> Iterator[Memory]:
    """A strict memory: a write that fails fails the test."""
    with Memory(path, strict=True) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_faults_left() -> Iterator[None]:
    yield
    faults.hook = None
