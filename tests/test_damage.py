"""A damaged index: nothing vanishes in silence, `verify` and `doctor` find the damage, and `doctor --repair` ends it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import CliRunner
from scripted import answer, calling_agent, calls, code, code_agent

from smolmem import Memory, SmolmemError
from smolmem.cli.main import main
from smolmem.core.errors import Busy, Damaged
from smolmem.core.values import Run
from smolmem.doctor import examine_path
from smolmem.store import rebuilding
from smolmem.store.contents import seal
from smolmem.store.rebuilding import rebuild

TORTURE = bool(os.environ.get("SMOLMEM_TORTURE"))


def record(path: Path) -> None:
    """A finished run with tool calls, a fork with an edit, a cut run, and notes of which some are superseded."""
    with Memory(path, embedder="off") as memory:
        agent = memory.attach(calling_agent(calls(("weather", {"city": "Oslo"})), answer("mild"), name="caller"))
        agent.run("What is the weather?")
        worker = memory.attach(code_agent(code("x = 1"), code("1 / 0"), KeyboardInterrupt(), name="worker"))
        with pytest.raises(KeyboardInterrupt):
            worker.run("Work until it is cut")
        memory.runs(agent="caller")[0].fork(step=1).steps[-1].edit(observations="edited in the fork")
        old = memory.remember("The printer is on floor 2")
        memory.remember("The printer is on floor 3", supersedes=old)
        memory.forget(memory.remember("The door code is 1234"))
        memory.recall("printer")


def runs_of(memory: Memory) -> list[Any]:
    return [(run.id, run.title, run.status, run.step_count, repr(run.answer)) for run in memory.runs()]


def notes_of(memory: Memory, **options: Any) -> list[Any]:
    return [(note.id, note.text, note.status) for note in memory.notes(**options)]


CONTENT: dict[str, Callable[[Memory], Any]] = {
    "runs": runs_of,
    "runs by id": lambda memory: [memory.run(run.id).id for run in memory.runs()],
    "steps": lambda memory: [[(step.id, repr(step.to_smolagents())) for step in run.steps] for run in memory.runs()],
    "all steps": lambda memory: [(step.id, step.scope, step.agent) for step in memory.steps(limit=1000)],
    "events": lambda memory: [run.events() for run in memory.runs()],
    "revisions": lambda memory: [[len(step.history()) for step in run.steps] for run in memory.runs()],
    "sessions": lambda memory: [session_of(memory, run) for run in memory.runs()],
    "newest runs": lambda memory: [run.id for run in memory._journal.latest_runs("default", "worker")],
    "notes": lambda memory: notes_of(memory, past=True),
    "current notes": notes_of,
}
"""All that a user can read."""


def content(memory: Memory) -> dict[str, Any]:
    return {name: read(memory) for name, read in CONTENT.items()}


def session_of(memory: Memory, run: Run) -> tuple[Any, ...]:
    """What a resume of a run would get."""
    stored = memory._journal.session(run.session, run.id)
    made = [(call.name, call.ended, repr(call.outcome())) for call in memory._journal.calls(run.id, 0)]
    return [entry.key for entry in stored.entries], stored.turns, stored.done, len(stored.code), made


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, dict[str, Any]]:
    """A store as it was after some work, as it is after more work, and what is read from it now."""
    path = tmp_path_factory.mktemp("stale") / "agent.db"
    record(path)
    before = path.read_bytes()
    record(path)
    after = path.read_bytes()
    with Memory(path, embedder="off") as memory:
        return before, after, content(memory)


def trees(data: bytes, path: Path, kind: str) -> dict[str, list[int]]:
    """The pages of each index or table."""
    path.write_bytes(data)
    raw = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        named = "SELECT name, pageno FROM dbstat JOIN sqlite_schema USING (name) WHERE type = ? ORDER BY pageno"
        found: dict[str, list[int]] = {}
        for name, page in raw.execute(named, (kind,)):
            found.setdefault(name, []).append(page)
        return found
    finally:
        raw.close()
        path.unlink()


INDEXES = [
    *("sqlite_autoindex_content_1", "sqlite_autoindex_run_1", "sqlite_autoindex_note_1"),
    *("run_by_time", "run_by_session", "run_by_parent", "run_open", "event_by_session"),
    *("step_by_run", "step_by_place", "step_by_error", "call_by_run"),
    *("unit_by_session", "unit_by_scope", "unit_by_note", "unit_by_run"),
    *("note_by_scope", "note_by_end", "note_by_past", "note_by_run", "forgotten_by_target"),
    *("recalled_by_run", "recalled_by_step", "cut_by_session", "alert_by_run", "alert_by_time"),
]
UNREAD = {"run_by_session", "run_by_parent", "run_open", "step_by_error", "note_by_end", "note_by_run"}
"""Indexes that only filters, erasing and forgetting use: their damage is found by `verify` and `doctor`."""


def page(data: bytes, number: int) -> bytes:
    return data[(number - 1) * 4096 : number * 4096]


def with_page(data: bytes, number: int, new: bytes) -> bytes:
    return data[: (number - 1) * 4096] + new + data[number * 4096 :]


def with_older_index(stale: tuple[bytes, bytes, Any], path: Path, index: str) -> bytes:
    """The newer file with the pages that an index had in the older one: what lost writes leave behind."""
    before, bad, _ = stale
    for number in trees(before, path, "index")[index]:
        bad = with_page(bad, number, page(before, number))
    return bad


def without_entries(data: bytes, number: int) -> bytes:
    """A page of a tree with its second half of entries gone."""
    old = page(data, number)
    entries = int.from_bytes(old[3:5], "big")
    return with_page(data, number, old[:3] + (entries // 2).to_bytes(2, "big") + old[5:])


def damages(stale: tuple[bytes, bytes, Any], path: Path, index: str) -> dict[str, bytes]:
    """Files with one damaged index each, by the kind of damage."""
    _, data, _ = stale
    (*_, last) = trees(data, path, "index")[index]
    return {
        "older": with_older_index(stale, path, index),
        "cut": without_entries(data, last),
        "zeroed": with_page(data, last, bytes(4096)),
        "garbled": with_page(data, last, random.Random(index).randbytes(4096)),
    }


def test_every_index_of_the_schema_is_damaged_here(path: Path) -> None:
    Memory(path).close()
    raw = apsw.Connection(str(path))
    found = [name for (name,) in raw.execute("SELECT name FROM sqlite_schema WHERE type = 'index'")]
    raw.close()
    assert sorted(found) == sorted(INDEXES)


@pytest.mark.promise("D4")
@pytest.mark.parametrize("index", INDEXES)
def test_what_a_damaged_index_hides_is_an_error_and_never_missing(
    path: Path, stale: tuple[bytes, bytes, dict[str, Any]], index: str
) -> None:
    _, whole, right = stale
    for kind, bad in damages(stale, path, index).items():
        if bad == whole:
            continue  # the index is empty, or was the same before
        for part, expected in right.items():
            read = read_part(path, bad, part)
            assert read in (expected, "refused"), f"{kind}: {part} differ without an error"
        with fresh(path, bad) as memory:
            assert not memory.verify(), f"{kind}: verify finds nothing"
            findings = [finding for finding in memory.doctor().findings if finding.level == "problem"]
            assert any("smolmem doctor --repair" in finding.repair for finding in findings), kind
        if index == "sqlite_autoindex_run_1" and kind == "older":
            assert not examine_path(path)


def fresh(path: Path, data: bytes) -> Memory:
    for leftover in ("agent.db-wal", "agent.db-shm"):
        path.with_name(leftover).unlink(missing_ok=True)
    path.write_bytes(data)
    return Memory(path, embedder="off")


def read_part(path: Path, bad: bytes, part: str) -> Any:
    """What is read from a damaged file; `refused` for an error that names the file and the next command."""
    with fresh(path, bad) as memory:
        try:
            return CONTENT[part](memory)
        except Damaged as error:
            assert str(path) in str(error)
            assert "smolmem doctor --repair" in str(error)
            return "refused"
