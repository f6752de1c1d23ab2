"""SQLite passes the suite that every backend passes, and what only a file must."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest
from conformance import Conformance
from conftest import TORTURE
from schema_script import migrated, schema_script
from scripted import answer, calling_agent, calls, code, code_agent

from smolmem import Memory, SmolmemError
from smolmem.store.base import migrations, script


class TestSqlite(Conformance):
    every = 1 if TORTURE else 10 if os.environ.get("SMOLMEM_KEY") else 6
    """`test_encryption.py` runs these tests once more, with a key."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "agent.db")


def test_the_engine_is_free_of_the_wal_reset_bug() -> None:
    assert tuple(map(int, apsw.sqlite_lib_version().split("."))) >= (3, 51, 3)


def test_the_file_is_in_wal_mode_with_full_sync(memory: Memory) -> None:
    connection = memory._store._live()  # type: ignore[attr-defined]
    assert connection.pragma("journal_mode") == "wal"
    assert connection.pragma("synchronous") == 2
    assert not connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, -1)


def test_a_new_file_has_what_the_numbered_scripts_leave(memory: Memory) -> None:
    assert script("sqlite", "schema") == schema_script(), "run tests/schema_script.py again"
    new, old = memory._store._live(), migrated()  # type: ignore[attr-defined]
    assert new.pragma("user_version") == len(migrations("sqlite"))
    names = [name for (name,) in old.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    for name in names:
        columns = "id, length(key)" if name == "fingerprint_key" else "*"
        assert new.execute(f"SELECT {columns} FROM {name}").get == old.execute(f"SELECT {columns} FROM {name}").get
        assert new.execute(f"PRAGMA table_xinfo({name})").get == old.execute(f"PRAGMA table_xinfo({name})").get


def test_durability_can_be_relaxed(path: Path) -> None:
    with Memory(path, durability="normal") as memory:
        assert memory._store._live().pragma("synchronous") == 1  # type: ignore[attr-defined]
    with pytest.raises(SmolmemError, match="'full' or 'normal'"):
        Memory(path, durability="some")  # type: ignore[arg-type]


def test_a_url_names_the_same_file_as_its_path(path: Path) -> None:
    with Memory(path) as memory:
        memory.attach(code_agent(code("final_answer(1)"))).run("Go")
    with Memory(f"sqlite:///{path}") as memory:
        assert len(memory.runs()) == 1


HOSTILE: list[Any] = [
    *(
        "__import__('os').system('touch /tmp/pwned')",
        "cos\nsystem\n(S'touch /tmp/pwned'\ntR.",
        "!!python/object/apply:os.system",
    ),
    *(
        '{"$":"object","type":"os.system","repr":"x"}',
        '{"$":"error","class":"SystemExit","text":"","args":[0]}',
        "[" * 5000,
    ),
    *(
        b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
        b"\x00" * 100,
        b"zgarbage",
    ),
    *("\x1b]0;x\x07", "../../../etc/passwd", -1, 2**62, 1.5, None, "running", "full", "9" * 400),
]


@pytest.mark.promise("S1")
def test_hostile_values_in_every_stored_column_run_nothing(path: Path, tmp_path: Path) -> None:
    with Memory(path) as memory:
        memory.attach(code_agent(code("print(1)"), code("1 / 0"), code("final_answer([1])"))).run("Go")
        memory.attach(calling_agent(calls(("weather", {"city": "Oslo"})), answer("mild"))).run("Go on")
    whole, copy, tried, place = path.read_bytes(), tmp_path / "copy.db", 0, 0
    schema = apsw.Connection(str(path))
    tables = {
        table: [row[1] for row in schema.execute(f"PRAGMA table_info({table})")]
        for table in ("content", "prompt", "session", "run", "event", "step")
    }
    schema.close()
    heard: list[str] = []
    listening = True
    sys.addaudithook(lambda event, args: heard.append(f"{event} {args}") if listening else None)
    for table, columns in tables.items():
        for column in columns:
            place += 1
            for value in HOSTILE if TORTURE else HOSTILE[place % 6 :: 6]:
                copy.write_bytes(whole)
                raw = apsw.Connection(str(copy))
                try:
                    raw.execute(
                        f"UPDATE {table} SET {column} = ? WHERE rowid % 2 = 0"
                        if table != "session"
                        else f"UPDATE {table} SET {column} = ?",
                        (value,),
                    )
                except apsw.Error:
                    continue
                finally:
                    raw.close()
                tried += 1
                read_everything(copy)
    listening = False
    assert tried > (300 if TORTURE else 50)
    loaded = [
        line for line in heard if line.split(".")[0] in ("os", "subprocess", "socket", "pty") and "system" in line
    ]
    assert not loaded
    assert not [
        line for line in heard if line.startswith(("exec ", "compile ")) and "smolmem" not in line and "pwned" in line
    ]
    assert not Path("/tmp/pwned").exists()


def read_everything(path: Path) -> None:
    try:
        with Memory(path) as memory:
            memory.verify()
            for run in memory.runs(scope="*"):
                try:
                    repr((run.answer, run.failure, run.task))
                    for step in run.steps:
                        repr(step.to_smolagents())
                except SmolmemError:
                    continue
    except SmolmemError:
        pass


def test_whatever_a_row_refers_to_is_written_before_it(tmp_path: Path) -> None:
    """Servers check each reference at once: with SQLite's own check switched on, recording must work as well."""

    def enforce(connection: apsw.Connection) -> None:
        connection.execute("PRAGMA foreign_keys = ON")

    apsw.connection_hooks.append(enforce)
    try:
        with Memory(tmp_path / "agent.db", strict=True, embedder="off") as memory:
            helper = code_agent(code("final_answer('bought')"), name="helper", description="helps")
            steps = (code("print(helper(task='buy'))"), code("1 / 0"), code("final_answer(2)"))
            agent = memory.attach(code_agent(*steps, managed_agents=[helper], name="boss"))
            agent.run("Buy")
            run = memory.runs(agent="boss")[0]
            memory.remember("bought", supersedes=memory.remember("not bought").id)
            run.fork(step=2)
            run.steps[-1].edit(observations="seen")
            memory.recall("bought")
            memory.index()
            assert memory._store._live().pragma("foreign_keys") == 1  # type: ignore[attr-defined]
            assert memory.verify()
            assert {one.agent for one in memory.runs()} == {"boss", "helper"}
            memory.export(tmp_path / "export")
            with Memory(tmp_path / "loaded.db", strict=True, embedder="off") as other:
                other.load(tmp_path / "export")
                assert len(other.runs()) == len(memory.runs())
                assert other.verify()
    finally:
        apsw.connection_hooks.remove(enforce)
