"""A file that is deleted or replaced while agents work: it is said once, and nothing that was acknowledged is lost."""

from __future__ import annotations

import logging
import os
import random
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scripted import code, code_agent
from smolagents import ActionStep, tool
from test_encryption import run_tests, with_build
from workers import fork

from smolmem import Memory, Run, Step
from smolmem.core.errors import Damaged, Unwritable

TORTURE = bool(os.environ.get("SMOLMEM_TORTURE"))
pytestmark = pytest.mark.skipif(os.name == "nt", reason="an open file cannot be deleted on Windows")


def beside(path: Path, suffix: str) -> Path:
    return Path(f"{path}{suffix}")


def delete(*suffixes: str) -> Callable[[Path], None]:
    return lambda path: [beside(path, suffix).unlink() for suffix in suffixes]  # type: ignore[return-value]


def replace_by_text(path: Path) -> None:
    new = path.with_name("new")
    new.write_text("something else")
    os.replace(new, path)


def replace_by_store(path: Path) -> None:
    new = path.with_name("new.db")
    with Memory(new) as other:
        other.remember("of another store")
    os.replace(new, path)


DELETED = {
    "the file": delete(""),
    "the file and its log": delete("", "-wal", "-shm"),
    "the log": delete("-wal"),
    "the shared memory": delete("-shm"),
    "both": delete("-wal", "-shm"),
    "moved away": lambda path: path.rename(path.with_name("moved.db")),
}
REPLACED = {"by a text": replace_by_text, "by a store": replace_by_store}


def agent_that(act: Callable[[], Any], **options: Any) -> Any:
    """An agent with three steps; `act` happens in the second."""

    @tool
    def happen() -> str:
        """Something happens."""
        act()
        return "it happened"

    steps = code("print('first')"), code("print(happen())"), code("final_answer('third')")
    return code_agent(*steps, tools=[happen], **options)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]


def actions(run: Run) -> list[Step]:
    return [step for step in run.steps if step.kind == "action"]


def assert_whole(path: Path, texts: tuple[str, ...] = ("first", "it happened", "third")) -> None:
    with Memory(path) as memory:
        (run,) = memory.runs()
        assert (run.status, run.step_count) == ("finished", 3)
        assert all(text in str(step.to_smolagents()) for text, step in zip(texts, actions(run), strict=True))
        assert [note.text for note in memory.notes()] == ["before"]
        assert memory.verify()


@pytest.mark.promise("D15")
def test_a_file_that_another_program_empties_while_an_agent_works_is_reported_once_and_the_agent_continues(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = Memory(path)
    assert memory.attach(agent_that(lambda: os.truncate(path, 0))).run("Go") == "third"
    said = [line for line in warnings(caplog) if "was emptied by another program" in line]
    assert len(said) == 1
    assert str(path) in said[0]
    with pytest.raises(Damaged, match="was emptied"):
        memory.close()
    assert path.stat().st_size == 0


@pytest.mark.promise("D15")
@pytest.mark.parametrize("what", DELETED)
def test_what_is_deleted_while_an_agent_works_is_written_again_in_full(
    path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    with Memory(path, strict=True) as memory, Memory(path) as reader:
        memory.remember("before")
        assert memory.attach(agent_that(lambda: DELETED[what](path))).run("Go") == "third"
        said = [line for line in warnings(caplog) if "while it was in use" in line]
        assert len(said) == 1
        assert str(path) in said[0]
        assert reader.runs()[0].status == "finished"
        assert path.stat().st_mode & 0o077 == 0
        assert not list(path.parent.glob(".*"))
    assert_whole(path)


@pytest.mark.promise("D15")
@pytest.mark.parametrize("what", REPLACED)
def test_a_file_that_was_put_in_the_place_of_the_store_stays_and_the_store_continues_beside_it(
    path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    with Memory(path, strict=True) as memory, Memory(path) as reader:
        memory.remember("before")
        theirs = []

        def happen() -> None:
            REPLACED[what](path)
            theirs.append(path.read_bytes())

        assert memory.attach(agent_that(happen)).run("Go") == "third"
        said = [line for line in warnings(caplog) if "was replaced by another file" in line]
        (rescued,) = path.parent.glob("agent.db.rescued-*[0-9]")
        assert len(said) == 1
        assert str(rescued) in said[0]
        assert reader.runs()[0].status == "finished"
        assert repr(memory) == f"Memory({str(rescued)!r}, scope='default')"
    assert path.read_bytes() == theirs[0]
    assert_whole(rescued)


@pytest.mark.promise("D15")
def test_a_deleted_file_is_not_written_again_by_those_who_only_read_or_close_it(path: Path) -> None:
    with Memory(path) as memory:
        memory.remember("before")
        path.unlink()
        assert [note.text for note in memory.notes()] == ["before"]
    assert not path.exists()


@pytest.mark.parametrize("what", REPLACED)
def test_a_file_has_vanished_when_it_was_replaced_until_someone_continues_it(path: Path, what: str) -> None:
    with Memory(path, strict=True) as memory, Memory(path) as reader:
        memory.remember("before")
        assert not reader._store.has_vanished
        REPLACED[what](path)
        assert reader._store.has_vanished
        memory.remember("after")
        assert not reader._store.has_vanished
        assert [note.text for note in reader.notes()] == ["after", "before"]
    assert not reader._store.has_vanished


@pytest.mark.promise("D15")
def test_a_backup_and_an_export_of_a_deleted_file_have_all_of_it(path: Path, tmp_path: Path) -> None:
    with Memory(path, strict=True) as memory:
        memory.remember("before")
        memory.attach(agent_that(lambda: None)).run("Go")
        path.unlink()
        memory.backup(tmp_path / "backup.db")
        path.unlink()
        memory.export(tmp_path / "out")
    assert_whole(tmp_path / "backup.db")
    assert_whole(path)


@pytest.mark.promise("D15")
def test_without_a_folder_to_write_to_the_agent_continues_and_everything_is_saved_later(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = path.parent / "folder"
    folder.mkdir()
    place = folder / "agent.db"
    with Memory(place) as memory:
        memory.remember("before")
        agent = memory.attach(agent_that(lambda: shutil.rmtree(folder)))
        assert agent.run("Go") == "third"
        assert sum("could not save" in line for line in warnings(caplog)) == 1
        with pytest.raises(Unwritable, match=r"was deleted or replaced.*No such file"):
            memory.flush()
        folder.mkdir()
        memory.flush()
    assert_whole(place)


def work_until_told(path: Path, number: int, steps: int) -> None:
    """Records a run; its last write comes when nothing is deleted any more."""
    folder = path.parent
    with Memory(path) as memory:
        script = [code(f"print({number}, {step})") for step in range(1, steps)]
        agent = memory.attach(code_agent(*script, code("final_answer(0)"), name=f"agent_{number}", description="d"))
        for event in agent.run("Work", stream=True):
            if isinstance(event, ActionStep):
                (folder / f"begun {number}").touch()
        (folder / f"done {number}").touch()
        while not (folder / "over").exists():
            time.sleep(0.01)
        memory.remember(f"the end of {number}")


@pytest.mark.promise("D15")
@pytest.mark.parametrize("seed", range(20 if TORTURE else 2))
def test_processes_whose_file_is_deleted_again_and_again_lose_nothing(path: Path, seed: int) -> None:
    chance, processes, steps, deleted = random.Random(seed), 3, 25, 0
    Memory(path).close()
    children = [fork(partial(work_until_told, path, number, steps)) for number in range(processes)]
    try:
        deadline = time.monotonic() + 60
        while len(list(path.parent.glob("begun *"))) < processes:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        while not deleted or len(list(path.parent.glob("done *"))) < processes:
            assert time.monotonic() < deadline
            path.unlink(missing_ok=True)
            deleted += 1
            time.sleep(chance.uniform(0.1, 0.3))
    finally:
        (path.parent / "over").touch()
        ended = [os.waitpid(child, 0)[1] for child in children]
    assert not any(ended)
    whole, notes = set(), set()
    for file in (path, *path.parent.glob("agent.db.rescued-*[0-9]")):  # beside, if a copy was deleted at once
        with Memory(file) as memory:
            notes |= {note.text for note in memory.notes()}
            whole |= {run.agent for run in memory.runs() if run.step_count == steps and run.status == "finished"}
            assert memory.verify()
    assert (len(whole), len(notes)) == (processes, processes)


# --- after the memory is closed ---------------------------------------------------------------------------------------


def test_steps_of_an_earlier_run_keep_what_the_model_was_sent_after_the_memory_is_closed(path: Path) -> None:
    with Memory(path, strict=True) as memory:
        agent = memory.attach(code_agent(code("print('one')"), code("final_answer(1)"), code("final_answer(2)")))
        agent.run("First")
        earlier = list(agent.memory.steps)
        stored = memory.runs()[0].steps[1].to_smolagents()
        agent.run("Second")
    first, second = agent.model.prompts[:2]
    assert [step.model_input_messages for step in earlier[1:]] == [first, second]
    assert stored.model_input_messages == first
    assert not beside(path, "-wal").exists()
    replace_by_store(path)
    assert "another file or none is at its path" in str(earlier[1].model_input_messages)
    path.unlink()
    assert "another file or none is at its path" in str(earlier[1].model_input_messages)
    assert not path.exists()


@with_build
@pytest.mark.promise("D15")
def test_an_encrypted_file_that_is_deleted_or_replaced_is_written_again_encrypted() -> None:
    assert " passed" in run_tests(
        "tests/test_vanished.py", "-k", "not encrypted and not again_and_again", key=f"raw:{'5a' * 32}"
    )
