from __future__ import annotations

import gc
import os
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import quick  # noqa: F401  makes agents quickly, in every test
from servers import oldest_server, pg_url, server  # noqa: F401

from smolmem import Memory
from smolmem.cli.main import main
from smolmem.core import faults
from smolmem.recall import indexer
from smolmem.recall.indexer import BackgroundIndexer
from smolmem.store.leases import Leases
from smolmem.store.sqlite import private_files
from smolmem.store.sqlite.encryption import encrypting_build

pytest.register_assert_rewrite("conformance", "recalling")

TORTURE = bool(os.environ.get("SMOLMEM_TORTURE"))
INDEXING = ("test_recall", "test_postgres_recall", "test_models", "test_provenance", "test_leases", "test_locks")
"""Modules whose tests run with the thread that indexes in the background; so do processes that tests start."""
CREATING = ("test_durability", "test_power_cut", "test_vanished", "test_damage", "test_locks", "test_sqlite")
"""Modules whose tests make each store with all its tables; so do processes that tests start."""

WITH_MODEL = ("test_models", "test_private")
"""Modules whose tests use the local model, where it is installed; so do processes that tests start."""


def pytest_configure() -> None:
    """Lets children be interrupted where the tests themselves are started with interrupts ignored (`make test &`).

    A program inherits that interrupts are ignored, but not a handler: the tests ignore them with one.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects the tests without garbage collections, which take a third of that time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests begin first: at the end of the run, no process waits for another one that began such a test late."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    """Garbage collections leave alone what is loaded now: a million objects of all packages that tests use."""
    import hypothesis  # noqa: F401  whose plugin loads it at the end, where it does not find what is frozen

    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_indexer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the thread that indexes, threads and writes of a test are those that the test makes."""
    if request.module.__name__ not in INDEXING:
        monkeypatch.setattr(BackgroundIndexer, "wake", lambda indexer: None)


@pytest.fixture(autouse=True)
def _patient_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search indexes all that is pending, also on a machine that is busy: no test is about the moment it takes."""
    for name in ("SEARCH_SECONDS", "REMOTE_SEARCH_SECONDS", "MATCHING_SECONDS"):
        monkeypatch.setattr(indexer, name, 20.0)


@pytest.fixture(autouse=True, scope="module")
def _recall_by_words(request: pytest.FixtureRequest) -> Iterator[None]:
    """Without the local model, which each memory takes a second to load, where no test is about meaning."""
    with pytest.MonkeyPatch.context() as patched:
        if request.module.__name__ not in WITH_MODEL and not TORTURE:
            patched.setenv("SMOLMEM_MODELS", "none")
        yield


@pytest.fixture(autouse=True)
def _copied_stores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new store is a copy of an empty one, with a key of its own: its tables are made once for all tests."""
    if request.module.__name__ in CREATING or encrypting_build() is not None:
        return
    empty, place = request.getfixturevalue("empty_store")

    def create(path: Path) -> None:
        with private_files.create_open(path) as file:
            if path.suffix == ".new":  # the name of a store that is made
                file.write(empty[:place] + secrets.token_bytes(16) + empty[place + 16 :])

    monkeypatch.setattr(private_files, "create", create)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    """The bytes of a store in which nothing is, and where its random key stands."""
    path = tmp_path_factory.mktemp("empty") / "agent.db"
    with Memory(path) as memory:
        key = memory._store._live().execute("SELECT key FROM fingerprint_key").get  # type: ignore[attr-defined]
    content = path.read_bytes()
    assert content.count(key) == 1
    return content, content.index(key)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def memory(path: Path) -> Iterator[Memory]:
    """A strict memory: a write that fails fails the test."""
    with Memory(path, strict=True) as opened:
        yield opened


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """A command in this process, its output in a pipe."""

    def call(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(args)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


class Clock:
    """The time as a test sets it: it stands still until it is moved."""

    def __init__(self, now: float) -> None:
        self.time = now

    def pass_by(self, seconds: float) -> None:
        self.time += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that decides what has expired and what has been silent for too long."""
    made = Clock(time.time())
    monkeypatch.setattr("smolmem.core.clock.now", lambda: made.time)
    monkeypatch.setattr("smolmem.core.clock.elapsed", lambda: made.time)
    return made


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a thread that indexes finds that another has the lease. The thread loses no time before and after."""
    event, acquire = threading.Event(), Leases.acquire

    def watched(leases: Leases, name: str, holder: str, seconds: float) -> Any:
        lease = acquire(leases, name, holder, seconds)
        if lease is None and threading.current_thread().name == "smolmem-indexer":
            event.set()
        return lease

    monkeypatch.setattr(Leases, "acquire", watched)
    monkeypatch.setattr(indexer, "EMBED_DELAY", 0.0)
    monkeypatch.setattr(indexer, "IDLE_SECONDS", 0.05)
    return event


@pytest.fixture(autouse=True)
def no_faults_left() -> Iterator[None]:
    yield
    faults.hook = None


FETCH = ".venv/bin/python -c 'from smolmem.recall.embedding import models; models.fetch(models.{})'"
HOW_TO_RUN = {
    "chromium": "apt-get install chromium chromium-driver",
    "axe-core": "make .venv/axe",
    "mcp 2": "make .venv/mcp2",
    "smolagents": "make .venv/oldest",
    "the local model": FETCH.format("E5"),
    "the second model": FETCH.format("BGE"),
    "the reranker": FETCH.format("RERANKER"),
    "the static table": FETCH.format("POTION"),
    "root may": "run the tests as a user who is not root",
    "bash": "apt-get install bash",
    "matplotlib": ".venv/bin/pip install matplotlib",
    "PostgreSQL 15": "apt-get install postgresql-15",
    "takes long": "make torture",
}
"""What makes skipped tests run, by a word of the reason why they are skipped."""


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says what was skipped and how to have it run, and that `make torture` does more."""
    skipped: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        skipped[reason.removeprefix("Skipped: ")] += 1
    if skipped:
        terminalreporter.section("skipped, and how to have it run", sep="-")
    for reason, count in skipped.most_common():
        how = next((how for word, how in HOW_TO_RUN.items() if word in reason), None)
        tests = f"{count} test{'s' * (count != 1)}"
        terminalreporter.write_line(f"{tests}: {reason}" + (f": {how}" if how else ""))
    promises = sum("promise" in report.keywords for report in terminalreporter.stats.get("passed", []))
    if promises and not TORTURE:
        terminalreporter.write_line(f"{promises} tests of promises ran with samples: `make torture` runs them in full.")
