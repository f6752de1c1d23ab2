"""PostgreSQL passes the suites that every backend passes, and what only a server must."""

from __future__ import annotations

import ast
import json
import logging
import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pages
import programs
import psycopg
import pytest
from conformance import Conformance
from scripted import Scripted, answer, calling_agent, calls, code, code_agent
from servers import schema_url
from smolagents import ActionStep
from workers import fork

from smolmem import Memory
from smolmem.cli.main import main
from smolmem.core import faults
from smolmem.core.errors import CannotResume, InvalidArgument, NotAStore, SmolmemError, StoreError, TooNew, Unwritable
from smolmem.store import base, writer
from smolmem.store.base import Limits, migrations, statements
from smolmem.store.leases import Leases
from smolmem.store.opening import open_store
from smolmem.store.packed_text import add_functions
from smolmem.store.postgres import postgres_store, server_select
from smolmem.store.postgres.address import parse
from smolmem.store.postgres.connection import Link
from smolmem.store.postgres.postgres_store import PostgresStore
from smolmem.store.postgres.roles import ROLE, set_up_roles
from smolmem.store.postgres.select_check import CheckedSelect
from smolmem.store.postgres.server_errors import Conflict, ConnectionLost
from smolmem.store.postgres.server_select import READER
from smolmem.store.postgres.statements import prepared_statements
from smolmem.transfer import copying
from smolmem.transfer.copying import in_order

TORTURE = bool(os.environ.get("SMOLMEM_TORTURE"))
HERE = Path(__file__).parent
SQL = HERE.parent / "src" / "smolmem" / "store" / "sql"


class TestPostgres(Conformance):
    every = 1 if os.environ.get("SMOLMEM_TORTURE") else 10

    @pytest.fixture
    def url(self, pg_url: str) -> str:
        return pg_url


class TestSerializablePostgres15(Conformance):
    """The oldest server, where every transaction is serializable."""

    every = 1 if os.environ.get("SMOLMEM_TORTURE") else 25

    @pytest.fixture
    def url(self, oldest_server: str) -> str:
        return schema_url(oldest_server)


@pytest.fixture
def pg(pg_url: str) -> Iterator[Memory]:
    with Memory(pg_url, strict=True, embedder="off") as memory:
        yield memory


def connection_of(memory: Memory) -> Any:
    return memory._store._link.live()  # type: ignore[attr-defined]


# --- the statements ---------------------------------------------------------------------------------------------------


def plain_sql(text: str) -> str:
    return re.sub(r"--[^\n]*|'(?:[^']|'')*'", "", text)


FORBIDDEN = re.compile(
    r"advisory|\blisten\b|\bnotify\b|deferrable|concurrently|\bctid\b|\bxmin\b|plpgsql|\btemp\b|\bunlogged\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("file", sorted((SQL / "postgres").glob("*.sql")), ids=lambda file: file.name)
def test_statements_stay_within_the_dialect_that_distributed_engines_share(file: Path) -> None:
    assert not FORBIDDEN.findall(plain_sql(file.read_text()))
    assert not FORBIDDEN.findall(plain_sql(" ".join(statements("postgres").values())))


@pytest.mark.parametrize("file", sorted((SQL.parent / "postgres").glob("*.py")), ids=lambda file: file.name)
def test_sql_in_the_code_stays_within_it_too(file: Path) -> None:
    tree = ast.parse(file.read_text())
    spoken = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in spoken
    ]
    assert not [text for text in texts if FORBIDDEN.search(text)]


def parameters(text: str) -> set[str]:
    return set(re.findall(r"(?<!:):([a-z_]\w*)", plain_sql(text)))


def sqlite_columns(connection: apsw.Connection, text: str) -> list[str]:
    found: list[str] = []
    cursor = connection.cursor()
    cursor.exec_trace = lambda cursor, *_: found.extend(name for name, *_ in cursor.get_description()) or False
    try:
        cursor.execute(text, dict.fromkeys(parameters(text)))
    except apsw.ExecTraceAbort:
        pass
    return found


def postgres_columns(link: Link, name: str) -> list[str]:
    statement = prepared_statements()[name]
    named = set(re.findall(r"%\((\w+)\)s", statement.text))
    text = link.filled(statement.text, dict.fromkeys(named))
    connection = link.live().pgconn
    prepared = connection.prepare(b"", text.encode())
    assert prepared.status == psycopg.pq.ExecStatus.COMMAND_OK, (name, prepared.error_message.decode())
    described = connection.describe_prepared(b"")
    return [(described.fname(place) or b"").decode() for place in range(described.nfields)]


SAID_DIFFERENTLY = {
    *(
        "add_document_words",
        "count_documents",
        "find_documents",
        "find_documents_where",
        "next_passage",
        "newest_documents",
    ),
}
"""Statements of full text: terms instead of texts."""
ONLY_HERE = {
    *("add_contents", "add_new_contents", "assume_contents", "assume_no_other_writer", "is_stored"),
    *("dangling", "store_bytes"),
}
ENGINE = re.compile(r"^(PRAGMA|VACUUM|BEGIN|INSERT INTO \w+_words \(\w+_words\))")


def test_both_dialects_have_the_same_statements_parameters_and_columns(pg: Memory) -> None:
    ours, theirs = statements("postgres"), statements("sqlite")
    assert set(ours) - set(theirs) == ONLY_HERE
    scratch = apsw.Connection(":memory:")
    add_functions(scratch)
    for script in migrations("sqlite"):
        scratch.execute(script)
    link: Link = pg._store._link  # type: ignore[attr-defined]
    for name, text in theirs.items():
        if ENGINE.match(text) or name == "find_documents":
            continue
        here = [column for column in postgres_columns(link, name) if column != "rowid"]
        if name in SAID_DIFFERENTLY:
            continue
        assert parameters(ours[name]) - {"new_id"} <= parameters(text), name
        there = sqlite_columns(scratch, text)
        takes_id = ":new_id" in ours[name]
        if len(there) > 1:
            assert sorted(here) == sorted(there), name
        else:
            assert takes_id or len(here) == len(there), name


def test_both_schemas_have_the_same_tables_and_columns(pg: Memory) -> None:
    scratch = apsw.Connection(":memory:")
    add_functions(scratch)
    for script in migrations("sqlite"):
        scratch.execute(script)
    found = connection_of(pg).execute(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()"
    )
    here: dict[str, set[str]] = {}
    for table, column in found:
        here.setdefault(table, set()).add(column)
    tables = [name for (name,) in scratch.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    for table in tables:
        if table.startswith("sqlite_") or "_words" in table or table in ("document_terms", "continued"):
            continue
        there = {row[1] for row in scratch.execute(f"PRAGMA table_info({table})")}
        assert here[table] - {"rowid"} == there, table


# --- transactions -----------------------------------------------------------------------------------------------------


def work(memory: Memory) -> list[Any]:
    """Something of everything; returns what can be read of it."""
    memory.attach(code_agent(code("print('alpha')"), code("1 / 0"), code("final_answer(1)"), name="a")).run("First")
    memory.attach(calling_agent(calls(("weather", {"city": "Oslo"})), answer("mild"), name="b")).run("The weather")
    gone = memory.remember("the bicycle is blue")
    memory.remember("the bicycle is red", supersedes=gone.id)
    memory.forget(memory.runs(agent="b")[0].steps[-1])
    memory.index()
    memory.erase(memory.runs(agent="a")[0])
    kept = memory.attach(code_agent(code("print('bicycle')"), code("final_answer('red')"), name="c"))
    kept.run("Which colour has the bicycle?")
    found = memory.recall("bicycle", 3)
    report = memory.verify()
    assert report, report.problems
    runs = [(run.agent, run.status, run.step_count, [step.kind for step in run.steps]) for run in memory.runs()]
    runs.append(memory._store.select("default", "SELECT agent, count(*) AS n FROM steps GROUP BY agent ORDER BY 1"))  # type: ignore[arg-type]
    return [runs, [note.text for note in memory.notes(past=True)], sorted(hit.text for hit in found)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    with Memory(tmp_path_factory.mktemp("sqlite") / "agent.db", strict=True, embedder="off") as memory:
        return work(memory)


def test_both_stores_keep_and_find_the_same(pg: Memory, expected: list[Any]) -> None:
    assert work(pg) == expected


def test_a_serializable_server_is_no_different(pg_url: str, expected: list[Any]) -> None:
    serializable = f"{pg_url}&options=-c%20default_transaction_isolation%3Dserializable"
    with Memory(serializable, strict=True, embedder="off") as memory:
        shown = connection_of(memory).execute("SHOW transaction_isolation").fetchone()
        assert shown == ("serializable",)
        assert work(memory) == expected


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(20 if TORTURE else 1))
def test_a_transaction_that_the_server_undoes_at_any_message_runs_again(
    pg_url: str, tmp_path: Path, expected: list[Any], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Also one that only reads, in a snapshot: distributed engines undo those, too."""
    chance, undone, left, send = random.Random(seed), {"body": 0, "commit": 0, "snapshot": 0}, [-1], Link.send
    snapshots = set[Link]()

    def conflicting(link: Link, texts: list[str], *given: Any) -> Any:
        if texts[0] == "BEGIN":
            left[0] = chance.randrange(-4, 5)  # the message of this transaction that fails, if any
        elif texts[0].startswith("BEGIN ISOLATION"):
            snapshots.add(link)
            left[0] = chance.randrange(-50, 50)
        is_chosen = left[0] == 0 or (left[0] == 1 and texts[-1] == "COMMIT")
        left[0] -= 1
        if not is_chosen:
            return send(link, texts, *given)
        undone["snapshot" if link in snapshots else "commit" if texts[-1] == "COMMIT" else "body"] += 1
        if chance.random() < 0.5:  # the server did some of it before it gave up
            send(link, texts[:-1] or ["SELECT 1"], *given)
        link.roll_back()
        raise Conflict("40001")

    monkeypatch.setattr(Link, "send", conflicting)
    monkeypatch.setattr(base, "TRIES", 100)
    monkeypatch.setattr(base, "pause", lambda tries: None)
    monkeypatch.setattr(postgres_store, "pause", lambda tries: None)
    with Memory(pg_url, strict=True, embedder="off") as memory:
        assert work(memory) == expected
        found = contents(memory)
        memory.export(tmp_path / "export", scope="*")
        with Memory(f"{pg_url}_loaded", scope="*", embedder="off") as other:
            other.load(tmp_path / "export", trust="keep")
            assert contents(other) == found
        with Memory(f"{pg_url}_copied", scope="*", embedder="off") as other:
            copying.copy_store(memory._journal, other._journal)
            assert contents(other) == found
    assert min(undone["body"], undone["commit"], 3 * undone["snapshot"]) > 5, undone


def test_a_server_that_goes_away_while_it_is_verified_is_no_damage(pg: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot is read again; if that fails, too, nothing is said about the store."""
    pg.remember("kept")
    send, left = Link.send, [12]

    def breaking(link: Link, texts: list[str], *given: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            link.live().close()
            raise ConnectionLost("the connection broke")
        return send(link, texts, *given)

    monkeypatch.setattr(postgres_store, "PATIENCE", 0.0)
    monkeypatch.setattr(Link, "send", breaking)
    monkeypatch.setattr(base, "pause", lambda tries: left.__setitem__(0, 99))
    report = pg.verify()
    assert report, report.problems
    left[0] = 12
    monkeypatch.setattr(base, "TRIES", 1)
    with pytest.raises(ConnectionLost):
        pg.verify()


def test_ids_with_gaps_and_large_steps_change_nothing(pg_url: str, expected: list[Any]) -> None:
    with Memory(pg_url, strict=True, embedder="off") as memory:
        connection_of(memory).execute("ALTER SEQUENCE ids INCREMENT BY 32 RESTART 1000003")
        assert work(memory) == expected


def test_ids_are_in_the_order_of_commits(pg_url: str) -> None:
    """Who reads on from the last id misses nothing, with several writers."""
    memory = Memory(pg_url, embedder="off")
    stop, seen, written = threading.Event(), set[int](), list[int]()

    def write(number: int) -> None:
        store = open_store(pg_url)
        for turn in range(40):
            row = {"scope": "s", "agent": "a", "run": None, "number": turn, "rule": "r", "reason": "x", "at": 1.0}
            store.transact(lambda row=row: store.do("add_alert", row | {"acts": "[]", "hash": b""}), sync=False)
        written.append(number)
        store.close()

    def poll() -> None:
        store, last = open_store(pg_url), 0
        while True:
            over = stop.is_set()
            for row in store.rows("alert_after", {"id": last}):
                last = row["id"]
                seen.add(last)
            if over:
                break
        store.close()

    reader = threading.Thread(target=poll)
    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    memory.close()
    assert len(written) == 4
    assert len(seen) == 160


def test_synchronous_commit_follows_durability(pg_url: str) -> None:
    for durability, sync, expected in (("full", True, "on"), ("full", False, "off"), ("normal", True, "off")):
        store = PostgresStore(pg_url, durability)  # type: ignore[arg-type]

        def ask(store: PostgresStore = store) -> Any:
            return store._send("SHOW synchronous_commit", "read").rows[0][0]

        assert store.transact(ask, sync=sync) == expected
        store.close()


# --- the network ------------------------------------------------------------------------------------------------------


def end_connection(memory: Memory, server: str) -> None:
    pid = connection_of(memory).info.backend_pid
    with psycopg.connect(server, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", (pid,))


def test_a_broken_connection_is_made_again(pg: Memory, server: str) -> None:
    agent = pg.attach(code_agent(*[code("print(1)")] * 6, code("final_answer(1)"), max_steps=9))
    for number, _ in enumerate(agent.run("Go", stream=True)):
        if number % 3 == 0:
            end_connection(pg, server)
    (run,) = pg.runs()
    assert (run.status, run.step_count) == ("finished", 7)
    assert pg.verify()


def test_a_connection_that_breaks_during_commit_stores_no_step_twice(
    pg: Memory, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, broken = Link.send, [0]
    pg.strict = False

    def lossy(link: Link, texts: list[str], *given: Any) -> Any:
        found = send(link, texts, *given)
        if texts[-1] == "COMMIT" and any(text.startswith("EXECUTE add_step(") for text in texts) and broken[0] < 3:
            broken[0] += 1  # the server committed, and its answer was lost
            end_connection(pg, server)
            raise ConnectionLost("the connection broke")
        return found

    monkeypatch.setattr(Link, "send", lossy)
    agent = pg.attach(code_agent(*[code("print(1)")] * 4, code("final_answer(1)")))
    agent.run("Go")
    monkeypatch.undo()
    pg.flush()
    assert broken[0] == 3
    (run,) = pg.runs()
    assert [step.number for step in run.steps if step.kind == "action"] == [1, 2, 3, 4, 5]
    assert pg.verify()


def test_a_run_goes_on_without_the_server_and_is_stored_when_it_is_back(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(postgres_store, "PATIENCE", 0.2)
    send = Link.send
    with Memory(pg_url, embedder="off") as memory:
        agent = memory.attach(code_agent(*[code("print(1)")] * 4, code("final_answer(7)")))

        def gone(link: Link, *given: Any) -> Any:
            raise ConnectionLost(f"{link.address.shown} cannot be used: the server is gone")

        with caplog.at_level(logging.WARNING, "smolmem"):
            for number, _ in enumerate(agent.run("Go", stream=True)):
                if number == 2:
                    monkeypatch.setattr(Link, "send", gone)
        sent = []

        def count(link: Link, *given: Any) -> Any:
            sent.append(given)
            return send(link, *given)

        monkeypatch.setattr(Link, "send", count)
        memory.flush()
        assert 0 < len(sent) < 20, "each step is sent again once"
        (run,) = memory.runs()
        assert run.step_count == 5
        assert memory.verify()
    assert "the server is gone" in caplog.text


def test_the_clock_of_leases_is_the_servers(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines whose clocks differ by an hour agree on who holds a lease."""
    first, second = open_store(pg_url), open_store(pg_url)
    assert Leases(first).acquire("x", "one", 60)
    monkeypatch.setattr("smolmem.core.clock.now", lambda: time.time() + 3600)
    assert Leases(second).acquire("x", "two", 60) is None
    assert 50 < Leases(second).seconds_left("x") <= 60
    assert Leases(second).acquire("y", "two", 0.05)
    time.sleep(0.1)
    assert Leases(first).acquire("y", "one", 60)
    first.close()
    second.close()


def test_a_run_of_another_machine_is_resumed_only_after_its_lease(
    server: str, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_places", lambda: (("elsewhere", "0"),))  # no process is seen from here
    steps = [code("print(1)"), code("final_answer(5)")]

    def die() -> None:
        memory = Memory(pg_url, embedder="off")
        for event in memory.attach(code_agent(*steps, name="w")).run("Go", stream=True):
            if isinstance(event, ActionStep):
                os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(fork(die), 0)
    with Memory(pg_url, embedder="off") as memory:
        with pytest.raises(SmolmemError, match=r"in use by"):
            memory.resume(code_agent(*steps[1:], name="w"), memory.runs()[0])
        with psycopg.connect(server, autocommit=True) as connection:  # a minute passes on the server's clock
            connection.execute(f"UPDATE {pg_url.rpartition('schema=')[2]}.lease SET renewed = renewed - 60")
        assert memory.resume(code_agent(*steps[1:], name="w")) == 5
        assert memory.alerts()[0].rule == "takeover"


# --- killed processes -------------------------------------------------------------------------------------------------


def program(name: str, *arguments: str) -> dict[str, Any]:
    done = programs.run([HERE / name, *arguments], timeout=3600 if TORTURE else 250)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.promise("D1")
def test_killed_workers_lose_no_step_that_was_stored(pg_url: str) -> None:
    count = "200" if TORTURE else "4"
    found = program("workers.py", "kill", pg_url, count, "1")
    assert (found["lost"], found["damaged"]) == (0, 0), found


BOTH = ("server", "oldest_server")
"""The newest PostgreSQL, and the oldest, on which all transactions are serializable."""


@pytest.mark.promise("D6")
@pytest.mark.parametrize("which", BOTH if TORTURE else BOTH[1:])
def test_many_workers_write_at_once(request: pytest.FixtureRequest, which: str) -> None:
    processes, steps = (16, 300) if TORTURE else (4, 10)
    url = schema_url(request.getfixturevalue(which))
    found = program("workers.py", "write", url, str(processes), str(steps))
    assert found == {"failed": 0, "right": processes, "runs": processes, "damaged": 0}


@pytest.mark.long
@pytest.mark.promise("D12")
@pytest.mark.parametrize(
    ("scenario", "which"),
    [(scenario, which) for scenario in ("code", "calling") for which in BOTH]
    if TORTURE
    else [("code", BOTH[0]), ("calling", BOTH[1])],
)
def test_killed_runs_are_resumed_and_no_finished_call_is_made_again(
    request: pytest.FixtureRequest, tmp_path: Path, scenario: str, which: str
) -> None:
    found = program("resumers.py", scenario, str(tmp_path), request.getfixturevalue(which))
    wrong = {name: count for name, count in found.items() if name.startswith("failed")}
    assert not wrong, found
    assert (found["wrong answer"], found["lost"], found["doubled"]) == (0, 0, 0), found
    assert found["resumed"] == found["killed"] > (5 if TORTURE else 3)


# --- what users get wrong ---------------------------------------------------------------------------------------------


def one_sentence(error: pytest.ExceptionInfo[Any]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 500
    return text


def test_a_server_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(StoreError, match=r"cannot be opened: .*Check the address") as error:
        Memory("postgresql://me:hunter2@127.0.0.1:1/x")
    assert "hunter2" not in one_sentence(error)


def test_a_database_that_is_not_there_is_one_sentence(server: str) -> None:
    with pytest.raises(NotAStore, match=r"there is no such database. Create it"):
        Memory(server.replace("/postgres?", "/nothing?"))


def test_a_user_who_is_not_there_is_one_sentence(server: str) -> None:
    with pytest.raises(Unwritable, match=r"knows no such user|refuses the user"):
        Memory(server.replace("//postgres:", "//nobody:"))


@pytest.fixture
def member(server: str) -> Iterator[str]:
    """The URL of a user without rights."""
    name = f"m{os.urandom(4).hex()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'hunter2'")
        yield server.replace("//postgres:", f"//{name}:hunter2")
        connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_user_without_rights_is_one_sentence(member: str) -> None:
    with pytest.raises(Unwritable, match=r"permission denied.*Grant the rights") as error:
        Memory(f"{member}&schema=forbidden")
    assert "hunter2" not in one_sentence(error)


def test_a_read_only_server_is_one_sentence(pg_url: str) -> None:
    Memory(pg_url).close()
    with pytest.raises(Unwritable, match=r"only reads, as replicas do. Give the address of the primary"):
        Memory(f"{pg_url}&options=-c%20default_transaction_read_only%3Don")


def first_format(memory: Memory) -> None:
    """Undoes the migrations after the first one."""
    first, *later = migrations("postgres")
    added = "\n".join(later)
    for table, what, name in re.findall(r"ALTER TABLE (\w+) ADD (COLUMN|CONSTRAINT) (\w+)", added):
        connection_of(memory).execute(f"ALTER TABLE {table} DROP {what} {name}")
    for name in re.findall(r"CREATE INDEX (\w+)", added):
        connection_of(memory).execute(f"DROP INDEX {name}")
    for name in re.findall(r"DROP INDEX (\w+)", added):
        connection_of(memory).execute(re.findall(rf"CREATE INDEX {name} .*;", first)[0])
    connection_of(memory).execute("UPDATE store SET format = 1")


def test_a_store_of_the_first_format_gets_the_new_columns_and_keeps_its_runs(pg_url: str) -> None:
    with Memory(pg_url, strict=True, embedder="off") as memory:
        memory.attach(code_agent(code("final_answer(1)"))).run("Before the upgrade")
        first_format(memory)
    with Memory(pg_url, strict=True, embedder="off") as memory:
        assert memory.runs()[0].tag("old").tags == ("old",)
        assert memory.verify()


def test_rows_that_refer_to_nothing_survive_an_upgrade_and_are_named(
    pg_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Memory(pg_url, strict=True, embedder="off") as memory:
        memory.attach(code_agent(code("final_answer(1)"))).run("Before the upgrade")
        first_format(memory)
        connection_of(memory).execute("UPDATE event SET run = 'gone' WHERE id = (SELECT max(id) FROM event)")
    with caplog.at_level(logging.WARNING), Memory(pg_url, embedder="off") as memory:
        assert re.search(
            r"table event has rows that refer to a run that is missing .*gone.*smolmem verify", caplog.text
        )
        (number,) = connection_of(memory).execute("SELECT id FROM event WHERE run = 'gone'").fetchone()
        assert f"event {number} refers to a missing run" in memory.verify().problems
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            connection_of(memory).execute("UPDATE event SET run = 'gone too'")


def test_a_store_of_a_later_release_is_left_as_it_is(pg_url: str) -> None:
    with Memory(pg_url) as memory:
        connection_of(memory).execute("UPDATE store SET format = 99")
    with pytest.raises(TooNew, match=r"format 99, this one knows .*upgrade smolmem"):
        Memory(pg_url)


def test_a_key_is_for_files(pg_url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"a key is for SQLite files"):
        Memory(pg_url, key="a passphrase")


def test_a_backup_names_what_to_use_instead(pg: Memory, tmp_path: Path) -> None:
    with pytest.raises(Unwritable, match=r"pg_dump --schema=t.*smolmem copy"):
        pg.backup(tmp_path / "copy.db")


@pytest.mark.parametrize("url", ["postgresql://h/d?schema=A-b", "postgresql://h/d?schema=pg_x", "postgresql://[h/d"])
def test_an_address_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(NotAStore):
        Memory(url)


def test_no_secret_of_a_url_is_shown() -> None:
    url = "postgresql://me:hun%40ter2@db.example/x?sslmode=verify-full&sslpassword=s3cret&schema=team"
    address = parse(url)
    for shown in (repr(address), address.shown, address.clean(f"bad {url} hun@ter2")):
        assert "hun%40ter2" not in shown
        assert "hun@ter2" not in shown
        assert "s3cret" not in shown
    assert address.shown == "postgresql://me@db.example/x?sslmode=verify-full&schema=team"
    assert "sslmode=verify-full" in address.conninfo
    assert "schema" not in address.conninfo


def test_several_processes_may_create_one_store(server: str) -> None:
    url, failed = schema_url(server), list[BaseException]()

    def create() -> None:
        try:
            Memory(url).close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_forked_child_leaves_the_connection_to_its_parent(pg: Memory) -> None:
    child = fork(lambda: [pg.remember("from the child"), None][1])  # type: ignore[arg-type]
    assert os.waitpid(child, 0)[1] == 0
    pg.remember("from the parent")
    assert {note.text for note in pg.notes()} == {"from the child", "from the parent"}


# --- roles ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(pg_url: str, server: str, member: str) -> str:
    """A store with row-level security; the URL is that of a user who is an agent."""
    Memory(pg_url).close()
    set_up_roles(pg_url)
    assert set_up_roles(pg_url) == ROLE
    name = re.match(r"postgresql://(\w+):", member)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"GRANT {ROLE} TO {name and name[1]}")
    return f"{member}&schema={pg_url.rpartition('schema=')[2]}"


def test_a_connection_sees_and_writes_its_scope_and_nothing_else(guarded: str) -> None:
    for name in ("ann", "bob"):
        with Memory(f"{guarded}&scope=acme/{name}", scope=f"acme/{name}", strict=True, embedder="off") as memory:
            agent = memory.attach(code_agent(code("print('garden')"), code(f"final_answer('{name}')"), name=name))
            agent.run(f"Water the garden of {name}")
            memory.remember(f"{name} has a garden")
            assert {run.agent for run in memory.runs(scope="*")} == {name}
            assert {hit.agent for hit in memory.recall("garden", scope="*") if hit.agent} == {name}
            assert memory.verify()
            with pytest.raises(
                Unwritable, match=rf"row-level security.*names 'acme/{name}'. Give the scope in the URL"
            ):
                memory.scoped("acme/eve").remember("written into another scope")
    with Memory(f"{guarded}&scope=acme", scope="*", embedder="off") as memory:
        assert {run.agent for run in memory.runs()} == {"ann", "bob"}
    with Memory(guarded, scope="*", embedder="off") as memory:
        assert (memory.runs(), memory.notes(), memory.steps(), memory.recall("garden")) == ([], [], [], [])
        tables = ["session", "run", "step", "event", "call", "note", "passage", "document_words"]
        for table in [*tables, "content", "prompt", "vector", "alert", "pending", "forgotten", "recalled"]:
            assert connection_of(memory).execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


def test_an_agent_cannot_change_the_tables(guarded: str) -> None:
    with Memory(f"{guarded}&scope=acme", scope="acme", embedder="off") as memory:
        for statement in (
            "DROP TABLE run",
            "ALTER TABLE run DISABLE ROW LEVEL SECURITY",
            "DELETE FROM fingerprint_key",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection_of(memory).execute(statement)


def test_an_agent_that_cannot_upgrade_a_store_is_told_who_can(pg_url: str, guarded: str) -> None:
    with Memory(pg_url, embedder="off") as memory:
        first_format(memory)
    with pytest.raises(Unwritable, match=r"earlier smolmem \(format 1\).* open it once as the owner of its tables"):
        Memory(f"{guarded}&scope=acme", embedder="off")


def test_a_select_runs_as_a_role_that_may_only_read_the_views(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second lock: should a function get past the check, it is not much that it can do."""
    with Memory(f"{guarded}&scope=acme/ann", scope="acme/ann", strict=True, embedder="off") as memory:
        memory.attach(code_agent(code("final_answer(1)"), name="ann")).run("Water the garden")
        memory.remember("ann has a garden")
        for statement in ("select text from notes", "select agent from runs", "select kind from steps order by id"):
            assert memory._store.select("acme/ann", statement), statement
        assert memory._store.select("*", "select count(*) as n from notes") == [{"n": 1}]
        assert memory._store.select("acme/bob", "select * from notes") == []
        monkeypatch.setattr(server_select, "check", lambda text, *_, **__: CheckedSelect(text, "SELECT", True, None))
        name = parse(guarded).schema
        assert memory._store.select("*", "select current_user") == [{"current_user": READER}]
        for table in ("content", "event", "call", "lease", "fingerprint_key", "passage"):
            with pytest.raises(InvalidArgument, match=f"permission denied for table {table}"):
                memory._store.select("*", f"select * from {name}.{table}")
        with pytest.raises(InvalidArgument, match="permission denied for table step"):
            memory._store.select("*", f"select hash from {name}.step")
        for statement in ("select 1; select 2", f"delete from {name}.note", "select pg_read_file('/etc/passwd')"):
            with pytest.raises(InvalidArgument, match=r"this SELECT cannot be run"):
                memory._store.select("*", statement)


# --- moving -----------------------------------------------------------------------------------------------------------


def contents(memory: Memory) -> list[Any]:
    return [
        [
            (run.id, run.agent, run.status, run.scope, run.answer, [(step.kind, step.text) for step in run.steps])
            for run in memory.runs(scope="*", limit=100)
        ],
        [(note.id, note.text, note.status, note.origin) for note in memory.notes(scope="*", past=True, limit=100)],
        [(alert.rule, alert.reason) for alert in memory.alerts(scope="*")],
    ]


def test_a_store_is_copied_to_a_server_and_back(
    pg_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = str(tmp_path / "a.db"), str(tmp_path / "b.db")
    with Memory(source, strict=True, embedder="off") as memory:
        work(memory)
        broken = code_agent(code("print(1)"), ConnectionError("gone"), name="broken")
        with pytest.raises(Exception, match="gone"):
            memory.attach(broken, scope="acme").run("Fails")
        expected = contents(memory)
    for one, other in ((source, pg_url), (pg_url, target)):
        assert main(["copy", one, other]) == 0
        assert "copied" in capsys.readouterr().out
        with Memory(other, scope="*", embedder="off") as memory:
            assert contents(memory) == expected
            assert memory.verify()
    assert main(["copy", source, pg_url]) == 0
    assert "0 runs, 0 steps, 0 notes copied" in capsys.readouterr().out
    with Memory(target, scope="acme", embedder="off") as memory:
        assert memory.resume(code_agent(code("final_answer(3)"), name="broken")) == 3


def linked_work(memory: Memory) -> None:
    """Sessions that refer to each other: a team, a fork, reminders of other sessions, notes of runs."""
    first = memory.attach(code_agent(code("print('the cellar is wet')"), code("final_answer(1)"), name="first"))
    first.run("Look at the cellar")
    reminded = memory.attach(code_agent(code("print('dry it')"), code("final_answer(2)"), name="second"), recall=3)
    reminded.run("What about the cellar?")
    helper = code_agent(code("final_answer('pumped')"), name="helper", description="Pumps water.")
    chief = code_agent(
        code("print(helper('pump the cellar'))"), code("final_answer(3)"), name="chief", managed_agents=[helper]
    )
    memory.attach(chief).run("Dry the cellar")
    memory.runs(agent="first")[0].fork(step=1)
    note = memory.remember("the pump is broken")
    memory.forget(note)
    memory.remember("the pump works", supersedes=memory.remember("the pump is old").id)
    memory.forget(memory.runs(agent="second")[0])


@pytest.mark.parametrize("to_server", [True, False])
def test_a_copy_that_is_killed_at_any_moment_continues_where_it_was(
    pg_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_server: bool
) -> None:
    file = str(tmp_path / "a.db")
    source, target = (file, pg_url) if to_server else (pg_url, file)
    with Memory(source, strict=True, embedder="off") as memory:
        linked_work(memory)
        expected = contents(memory)
    monkeypatch.setattr(copying, "COUNT", 32)
    monkeypatch.setattr(copying, "LINES", 1)

    def copy(last: str = "", times: int = 0) -> None:
        left = times

        def die(point: str) -> None:
            nonlocal left
            left -= point == last
            if point == last and not left:
                os.kill(os.getpid(), signal.SIGKILL)

        with Memory(source) as one, Memory(target) as other:
            monkeypatch.setattr(faults, "hook", die)
            copying.copy_store(one._journal, other._journal)

    there = [0]
    for last, times in (("write.done", 3), ("write.committed", 3), ("write.done", 9), ("write.committed", 9)):
        assert os.waitpid(fork(partial(copy, last, times)), 0)[1] == signal.SIGKILL
        with Memory(target, scope="*", embedder="off") as memory:
            report, found = memory.verify(), contents(memory)
            assert report, report.problems
            assert all(run in expected[0] for run in found[0] if run[2] != "running")  # or they belong to the copy
            assert not memory._store.do("any_pending", {})  # nothing is indexed before all of it is there
            there.append(report.checked["contents"] + report.checked["events"] + report.checked["notes"])
    assert there == sorted(set(there))
    copy()
    with Memory(target, scope="*", embedder="off") as memory:
        assert contents(memory) == expected
        assert memory.recall("cellar")


@pytest.mark.parametrize("to_server", [True, False])
def test_a_copy_continues_inside_a_long_session(
    pg_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_server: bool
) -> None:
    """No transaction is long, and the runs that are not complete belong to the copy, until another one completes it."""
    file = str(tmp_path / "a.db")
    source, target = (file, pg_url) if to_server else (pg_url, file)
    monkeypatch.setattr(copying, "LINES", 10)
    with Memory(source, strict=True, embedder="off") as memory:
        turns = [*[code("print('some words')")] * 5, code("final_answer(1)")] * 3
        agent = memory.attach(code_agent(*turns, code("print(9)"), ConnectionError("gone"), name="long", max_steps=9))
        for turn in range(3):
            agent.run(f"Look at turn {turn}", reset=not turn)
        with pytest.raises(Exception, match="gone"):
            agent.run("Fails", reset=False)
        memory.attach(code_agent(code("final_answer(2)"), name="short")).run("Be short")
        expected = contents(memory)
        done = list[int]()

        def die(point: str) -> None:
            done.append(point == "write.committed")
            if sum(done) == limit:
                raise KeyboardInterrupt

        arrived = [0]
        for limit, place in ((3, target), (2, target), (2, target), (3, tmp_path / "c.db")):  # first, contents
            with Memory(place, scope="*", embedder="off") as copy:
                monkeypatch.setattr(faults, "hook", die)
                done.clear()
                with pytest.raises(KeyboardInterrupt):
                    copying.copy_store(memory._journal, copy._journal)
                monkeypatch.setattr(faults, "hook", None)
                assert copy.verify()
                (begun,) = [run for run in copy.runs(agent="long") if run.status == "running"][-1:]
                with pytest.raises(CannotResume, match="in use by a copy that was not completed"):
                    copy.resume(code_agent(code("final_answer(1)"), name="long"), begun)
                arrived.append(copy.stats().events)
                if place != target:  # nobody completes it
                    copy.erase(begun)
                    assert not copy.runs()
        assert arrived[:-1] == sorted(set(arrived[:-1]))
        memory.runs(agent="long")[0].tag("changed meanwhile")
        with Memory(target, scope="*", embedder="off") as copy:
            again = copying.copy_store(memory._journal, copy._journal)
            assert contents(copy) == expected
            assert copy.runs(agent="long")[0].tags == ("changed meanwhile",)
            assert (again.added["session"] + again.skipped.get("session", 0), again.differing) == (2, 0)
            once_more = copying.copy_store(memory._journal, copy._journal)
            assert (once_more.added, once_more.skipped["session"], once_more.differing) == ({}, 2, 0)


def forked_work(memory: Memory) -> None:
    """A long session, forks of it that go on, and a fork of a fork that shares less than that one."""
    turns = [*[code("print('some words')")] * 5, code("final_answer(1)")] * 3
    agent = memory.attach(code_agent(*turns, name="long", max_steps=9))
    for turn in range(3):
        agent.run(f"Look at turn {turn}", reset=not turn)
    memory.detach(agent)
    late = memory.runs(agent="long")[0].fork(step=4)
    early = late.fork(step=2)
    memory.runs(agent="long")[-1].fork(step=3)  # stays as it is
    for number, run in enumerate((late, early, memory.runs(agent="long")[-1])):
        going_on = code_agent(code("print('forked words')"), code(f"final_answer({number})"), name="long")
        memory.resume(going_on, run.fork(step=1) if number == 2 else run)
        memory.detach(going_on)


@pytest.mark.parametrize("to_server", [True, False])
def test_a_copy_continues_inside_sessions_with_forks(
    pg_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_server: bool
) -> None:
    """However often it is killed: after each transaction here, none of which is long."""
    file = str(tmp_path / "a.db")
    source, target = (file, pg_url) if to_server else (pg_url, file)
    monkeypatch.setattr(copying, "LINES", 10)
    with Memory(source, strict=True, embedder="off") as memory:
        forked_work(memory)
        expected, arrived, commits = contents(memory), [0], [0]
        assert sum(run[2] == "finished" for run in expected[0]) > 5

        def die(point: str) -> None:
            commits[0] += point == "write.committed"
            if commits[0] == 2:  # the first one is of the check of the source
                raise KeyboardInterrupt

        is_complete = False
        while not is_complete:
            with Memory(target, scope="*", embedder="off") as copy:
                monkeypatch.setattr(faults, "hook", die)
                commits[0] = 0
                with pytest.raises(KeyboardInterrupt):
                    copying.copy_store(memory._journal, copy._journal)
                monkeypatch.setattr(faults, "hook", None)
                report, found = copy.verify(), contents(copy)[0]
                assert report, report.problems
                assert all(run in expected[0] for run in found if run[2] != "running")
                arrived.append(copy.stats().events)
                is_complete = len(found) == len(expected[0]) and all(run[2] != "running" for run in found)
        assert max(after - before for before, after in pairwise(arrived)) <= 12
        assert len(set(arrived)) > 3
        with Memory(target, scope="*", embedder="off") as copy:
            again = copying.copy_store(memory._journal, copy._journal)
            assert contents(copy) == expected
            assert (again.added, again.differing) == ({}, 0)


def test_what_refers_to_each_other_is_copied_together_and_after_what_it_refers_to() -> None:
    after = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a", "e"}, "f": set()}
    assert [sorted(circle) for circle in in_order(after)] == [["d"], ["b", "c"], ["a"], ["e"], ["f"]]
    chain = {str(number): {str(number + 1)} for number in range(5_000)}
    assert sum(map(len, in_order(chain))) == 5_001


def test_a_store_that_two_workers_wrote_in_turn_is_copied(pg_url: str, tmp_path: Path) -> None:
    """Each has its numbers from a moment before: they do not ascend in the order of the events."""
    with Memory(pg_url, strict=True, embedder="off") as one, Memory(pg_url, strict=True, embedder="off") as two:
        runs = [
            memory.attach(code_agent(*[code("print(1)")] * 4, code("final_answer(1)"), name=name)).run(
                "Go", stream=True
            )
            for memory, name in ((one, "one"), (two, "two"))
        ]
        for turn in (0, 1, 1, 0, 1, 1, 0, 0, 0, 1):
            next(event for event in runs[turn] if isinstance(event, ActionStep))
        assert [list(run) for run in runs]
        steps = [row["step"] for row in one._store.rows("export_events", {"id": 0, "scope": None, "below": None})]
        assert steps != sorted(steps)
        with Memory(tmp_path / "copy.db", scope="*", embedder="off") as copy:
            copying.copy_store(one._journal, copy._journal)
            assert contents(copy)[0] == contents(one)[0]


SELECTS = (
    "select agent, status, steps, began, scope from runs order by agent",
    "select count(*) as n, sum(input_tokens) as tokens from steps where error is null",
    "select number, kind, length(text) as size, text from steps order by id",
    "select s.*, r.title from steps s join runs r on r.id = s.run where kind = 'action' order by s.id",
    "select kind, text, tags from notes",
    "select agent, count(*) as runs from runs group by agent order by 1",  # those of the docs
    "select run, number, text from steps where error is not null",
    "select * from notes",
    "select agent, sum(input_tokens) from runs group by agent order by agent;",
    "SELECT kind, count(*) AS n FROM notes GROUP BY kind",
    "select agent, avg(steps), count(*) filter (where steps >= 2) from runs where title LIKE '%BICYCLE%' group by 1",
    "with busy (run, n) as (select run, count(*) from steps group by run) select max(n) as most, 7 / 2 from busy",
    "with recursive up (n) as (select 1 union all select n + 1 from up where n < 5) select sum(n) from up",
    "select case when ended is null then 'open' else substr(ended, 1, 2) end, count(*) <> 7 from runs group by 1",
)


def test_a_select_gives_the_same_on_both_stores(
    pg_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "agent.db")
    with Memory(pg_url, strict=True, embedder="off") as memory:
        work(memory)
        memory.attach(code_agent(code("1 / 0"), code("final_answer(1)"), name="d")).run("Divide")
    assert main(["copy", pg_url, file]) == 0
    capsys.readouterr()
    ids = ("id", "run")  # of steps and runs: copies get ids of their own
    with Memory(file) as one, Memory(pg_url) as two:
        for statement in SELECTS:
            told = [memory._store.select("*", statement, Limits(any_function=True)) for memory in (one, two)]
            shown = [[{name: row[name] for name in row if name not in ids} for row in rows] for rows in told]
            assert shown[0] == shown[1], statement
            assert shown[0], statement
    assert main(["--db", pg_url, "sql", "select text from elsewhere"]) == 2
    assert 'relation "elsewhere" does not exist' in capsys.readouterr().err


HOSTILE = (
    "select set_config('smolmem.scope', 'other', true), text from notes",
    "select text from notes where set_config('role', 'none', true) = 'none'",
    "select SET_CONFIG ('role', 'none', true)",
    "select pg_catalog.set_config('role', 'none', true)",
    "select \"set_config\"('role', 'none', true)",
    "select pg_catalog.\"set_config\"('role', 'none', true)",
    "select set_config/**/('role', 'none', true)",
    "select set_config--\n('role', 'none', true)",
    "select U&\"set\\005fconfig\"('role', 'none', true)",
    "select n.set_config('role', 'none', true) from notes n",
    "select 1 as x, query_to_xml('select * from run', true, false, '')",
    "select table_to_xml('run', true, false, '')",
    "select pg_sleep(5)",
    "select pg_read_file('/etc/passwd')",
    "select lo_import('/etc/passwd')",
    "select dblink('', 'select 1')",
    "select current_setting('smolmem.scope')",
    "select current_user",
    "select * from SCHEMA.note",
    'select * from "SCHEMA".note',
    "select SCHEMA.id from notes as SCHEMA, SCHEMA.run",
    "select * from note",
    "table note",
    "select * from content",
    "select * from pg_catalog.pg_roles",
    "select * from pg_stat_activity",
    "select * from information_schema.tables",
    "select text from notes; delete from SCHEMA.note",
    "select 1; set role none",
    "set role none",
    "reset role",
    "begin",
    "commit",
    "copy notes to '/tmp/notes'",
    "copy (select 1) to program 'id'",
    "explain analyze select 1",
    "do $$ begin perform 1; end $$",
    "select $$x$$",
    "select E'\\'' , set_config('role', 'none', true) --'",
    "delete from notes",
    "update SCHEMA.note set text = ''",
    "insert into SCHEMA.note default values",
    "with gone as (delete from SCHEMA.note returning 1) select * from gone",
    "with gone as (delete from notes returning 1) select * from gone",
    "select * into copied from notes",
    "create table t (x int)",
    "select 1) , (select 2",
    "select repeat('x', 1000000000)",
    "select * from notes tablesample system(1)",
    "select * from generate_series(1, 10)",
    "select string_agg(a.text, '') from notes a, notes b",
    "select text::regclass from notes where text = 'x'::pg_catalog.text",
    "values (1)",
    "select 1 as \u0441",
    "select 1 \x00",
    "",
    ";",
)


def test_a_select_reads_its_scope_and_does_nothing_else(pg: Memory) -> None:
    schema = parse(pg._store._address.url).schema  # type: ignore[attr-defined]
    pg.remember("mine")
    pg.scoped("other").remember("not a number")
    for statement in HOSTILE:
        with pytest.raises(InvalidArgument, match="this SELECT cannot be run"):
            print(statement, pg._store.select("default", statement.replace("SCHEMA", schema)))
    assert pg._store.select("default", "select text, scope from notes") == [{"text": "mine", "scope": "default"}]
    # nothing of the statement is evaluated on rows of another scope: an error would show their text
    with pytest.raises(InvalidArgument, match='invalid input syntax for type integer: "mine"'):
        pg._store.select("default", "select cast(text as integer) from notes where scope <> ''")
    assert pg._store.select("nobody", "select cast(text as integer) from notes where scope = 'other'") == []
    assert {note.text for note in pg.notes(scope="*")} == {"mine", "not a number"}


def test_a_select_is_stopped_after_its_time_and_its_rows(pg: Memory) -> None:
    forever = "with recursive n (i) as (select 1 union all select i + 1 from n) select max(i) from n"
    with pytest.raises(InvalidArgument, match=r"stopped: it took longer than 0.05 s"):
        pg._store.select("default", forever, Limits(seconds=0.05))
    many = "with recursive n (i) as (select 1 union all select i + 1 from n where i < 900) select i from n"
    assert len(pg._store.select("default", many, Limits(rows=250))) == 250
    assert len(pg._store.select("default", many.replace("select i from", "select 'x' from"), Limits(bytes=150))) == 200
    assert pg._store.select("default", "select count(*) as n from runs") == [{"n": 0}]  # the connection is free again


def test_catalogs_begin_like_no_other_name(server: str, oldest_server: str) -> None:
    """So a SELECT that must not name them cannot: only they are in the search path."""
    for url in (server, oldest_server):
        with psycopg.connect(url) as connection:
            found = connection.execute(
                "SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relname !~ '^pg_'"
            ).fetchall()
            assert found == []


MORE = (["encrypt"], ["sql", "select 1"], ["top"], ["backup", "x.db"], ["doctor", "--repair"], ["replay"], ["nonsense"])


def test_the_command_line_works_with_a_server_and_prints_no_password(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = pg_url.replace("postgres:@", "postgres:hunter2@")
    monkeypatch.setenv("SMOLMEM_URL", url)
    with Memory(url, embedder="off") as memory:
        memory.attach(code_agent(code("final_answer(3)"), name="one")).run("Count")
        assert "hunter2" not in repr(memory)
    for arguments in (
        [],
        ["runs"],
        ["stats"],
        ["doctor"],
        ["verify"],
        ["search", "count"],
        ["show"],
        ["migrate"],
        *MORE,
    ):
        assert main(arguments) in (0, 1, 2, 3), arguments
        printed = capsys.readouterr()
        assert "hunter2" not in printed.out + printed.err, arguments
        assert "Traceback" not in printed.err
    assert main(["doctor"]) == 0
    assert "PostgreSQL" in capsys.readouterr().out


# --- the page and the demo --------------------------------------------------------------------------------------------


def test_the_page_runs_as_it_stands(server: str, pg_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"model": Scripted(code("final_answer(42)"))}
    team = schema_url(server).replace("postgres:@", "postgres:secret@")
    for block in pages.blocks(HERE.parent / "docs" / "postgres.md"):
        text = block.replace("postgresql://me@localhost/agents", pg_url)
        exec(text.replace("postgresql://me:secret@localhost/agents?schema=team", team), names)
    names["take_over"](names["memory"], names["agent"])
    names["memory"].close()
    shown = capsys.readouterr().out
    assert "What is 6 times 7?" in shown
    assert "secret" not in shown


@pytest.mark.long
def test_the_demo_tells_its_story(server: str) -> None:
    done = programs.run([HERE.parent / "fleet.py", "--url", server])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "paid in all: 101, 102, 103" in done.stdout
    assert "takeover" in done.stdout
    assert "0 problems" in done.stdout
    with psycopg.connect(server) as connection:  # it leaves nothing behind
        assert not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname LIKE 'fleet%'").fetchall()


def test_postgresql_15_keeps_and_finds_the_same(oldest_server: str, expected: list[Any]) -> None:
    with Memory(schema_url(oldest_server), strict=True, embedder="off") as memory:
        assert connection_of(memory).execute("SHOW transaction_isolation").fetchone() == ("serializable",)
        assert work(memory) == expected
        assert memory.stats().engine.startswith("PostgreSQL 15")
        link: Link = memory._store._link  # type: ignore[attr-defined]
        for name, text in statements("postgres").items():
            if not ENGINE.match(text) and name != "find_documents":
                postgres_columns(link, name)


def test_the_inspector_shows_a_store_on_a_server(pg: Memory) -> None:
    from test_inspector import Site, _loop

    work(pg)
    run, note = pg.runs()[0], pg.notes()[0]
    site = Site(pg)
    step = f"/steps/{run.steps[-1].id}"
    paths = ["/", "/?q=bicycle", "/memory", "/memory?q=bicycle", "/alerts", "/data-version", f"/runs/{run.id}"]
    paths += [f"/runs/{run.id}/json", step, f"{step}/prompt", f"{step}/revisions", f"/notes/{note.id}"]
    for target in paths:
        found = site.get(target)
        assert found.status == 200, (target, found.said)
    assert run.title[:20] in site.get("/").text
    _loop.run_until_complete(_loop.shutdown_default_executor())
