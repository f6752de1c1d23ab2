"""No other way into the file than SQLite: closing any descriptor of a file drops all of a process's locks on it."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from pathlib import Path

import apsw
import programs
import pytest
from conftest import TORTURE
from scripted import code, code_agent

from smolmem import Memory
from smolmem.doctor import examine_path, versions
from smolmem.store.sqlite.encryption import connect, resolve_key

HERE = Path(__file__).parent


def elsewhere(program: str, *words: object) -> str:
    """What a program prints in a process of its own."""
    return programs.run(["-c", program, *words], check=True).stdout


OPEN_AND_CLOSE = "import sys; from smolmem import Memory; Memory(sys.argv[1]).close()"
IS_LOCKED = """
import fcntl, sys
with open(sys.argv[1], "rb+") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)  # what SQLite's readers share
        print("free")
    except OSError:
        print("locked")
"""
TASKS = "import sys; from smolmem import Memory; print([run.title for run in Memory(sys.argv[1]).runs(scope='*')])"


@pytest.mark.promise("D6")
def test_an_open_memory_holds_its_lock_whatever_else_the_process_does_with_the_file(path: Path, tmp_path: Path) -> None:
    with Memory(path) as memory:
        assert elsewhere(IS_LOCKED, path) == "locked\n"
        Memory(path, scope="acme").close()
        assert elsewhere(IS_LOCKED, path) == "locked\n"
        memory.doctor(), memory.backup(tmp_path / "copy.db"), memory.export(tmp_path / "export.zip")
        examine_path(path), versions(path)
        assert elsewhere(IS_LOCKED, path) == "locked\n"
    assert elsewhere(IS_LOCKED, path) == "free\n"


@pytest.mark.promise("D6")
def test_a_second_memory_in_one_process_does_not_unlock_the_first(path: Path) -> None:
    first = Memory(path, strict=True)
    first.attach(code_agent(code("final_answer(1)"))).run("before")
    for scope in ("acme", "umbra"):
        Memory(path, scope=scope).close()
    second = Memory(path, scope="acme", strict=True)
    elsewhere(OPEN_AND_CLOSE, path)  # must not take itself for the last one, which deletes the log
    first.attach(code_agent(code("final_answer(2)"))).run("after, by the first")
    elsewhere(OPEN_AND_CLOSE, path)
    second.attach(code_agent(code("final_answer(3)"))).run("after, by the second")
    kept = elsewhere(TASKS, path)
    assert [task in kept for task in ("before", "after, by the first", "after, by the second")] == [True] * 3
    first.close()
    second.close()
    with Memory(path) as memory:
        assert memory.stats().runs == 3
        assert memory.verify()


@pytest.mark.promise("D6")
def test_looking_after_a_file_does_not_unlock_those_who_write_it(path: Path, tmp_path: Path) -> None:
    with Memory(path, strict=True) as memory:
        memory.attach(code_agent(code("final_answer(1)"))).run("before")
        memory.doctor()
        memory.backup(tmp_path / "copy.db")
        memory.export(tmp_path / "export.zip")
        examine_path(path)
        versions(path)
        elsewhere(OPEN_AND_CLOSE, path)
        memory.attach(code_agent(code("final_answer(2)"))).run("after")
        assert "after" in elsewhere(TASKS, path)


AUDITED = """
import json, os, sys
path = os.path.abspath(sys.argv[1])
opened = []
def hook(event, given):
    if event == "open" and isinstance(given[0], (str, bytes, os.PathLike)):
        if os.path.abspath(os.fsdecode(given[0])) == path:
            opened.append(event)
sys.addaudithook(hook)
from smolmem import Memory
from smolmem.doctor import examine_path, versions
Memory(path).close()
with Memory(path) as memory:
    memory.remember("something")
    memory.verify(), memory.stats(), memory.doctor()
    memory.backup(path + ".copy"), memory.export(path + ".zip")
examine_path(path), versions(path)
print(json.dumps(opened))
"""


@pytest.mark.promise("D6")
def test_python_never_opens_the_file_itself(path: Path) -> None:
    assert json.loads(elsewhere(AUDITED, path)) == []


@pytest.mark.promise("D6")
def test_a_new_file_is_private_and_made_by_one_of_many_threads(path: Path) -> None:
    memories: list[Memory] = []
    threads = [threading.Thread(target=lambda: memories.append(Memory(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(memories) == 8
    assert path.stat().st_mode & 0o777 == 0o600
    for memory in memories:
        memory.close()
    assert sorted(file.name for file in path.parent.iterdir() if file.name.startswith(".")) == []


@pytest.mark.sampled
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_other_threads_open_files_leaves_a_child_that_works(path: Path) -> None:
    with Memory(path, embedder="off") as memory:
        ended = threading.Event()

        def churn() -> None:
            while not ended.is_set():
                store = memory._store.reopened()
                store.rows("runs", {})
                store.close()

        threads = [threading.Thread(target=churn) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(30 if TORTURE else 10):
                child = os.fork()
                if not child:
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
                    signal.alarm(30)
                    memory._store.rows("runs", {})
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            ended.set()
            for thread in threads:
                thread.join()


@pytest.mark.sampled
def test_a_check_beside_a_writer_of_the_index_finds_no_damage(path: Path) -> None:
    chance = random.Random(1)
    with Memory(path, embedder="off") as memory:
        writer = connect(str(path), apsw.SQLITE_OPEN_READWRITE, resolve_key(None))
        writer.set_busy_timeout(5000)
        for turn in range(80 if TORTURE else 40):  # a connection that has searched before is wrong in one of twelve
            memory.recall("word1", floor=0.0)
            with writer:
                for row in range(20):
                    text = " ".join(f"word{chance.randint(1, 5000)}" for _ in range(60))
                    writer.execute("INSERT INTO document_words (rowid, text) VALUES (?, ?)", (turn * 20 + row, text))
            assert memory._store.check() == []
        writer.close()
