"""A damaged index hides nothing in silence, `verify` and `doctor` find the damage, and `doctor --repair` ends it."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from scripted import answer, calling_agent, calls, code, code_agent
from workers import fork

from smolmem import Memory
from smolmem.cli.main import main
from smolmem.core.errors import Busy, Damaged, Unwritable
from smolmem.core.rows import Batch
from smolmem.core.values import Run
from smolmem.doctor import examine_path, repair
from smolmem.store.contents import seal
from smolmem.store.sqlite import sqlite_store
from smolmem.store.sqlite.part_files import unfinished_files
from smolmem.store.sqlite.rebuilding import rebuild

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
    made = [(call.name, call.ended, repr(call.outcome())) for call in memory._journal.calls(run.id)]
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
    *("run_by_time", "run_by_session", "run_by_parent", "run_by_writer", "run_open", "event_by_session"),
    *("step_by_run", "step_by_place", "step_by_error", "call_by_run"),
    *("note_by_scope", "note_by_end", "note_by_past", "note_by_run", "forgotten_by_target"),
    *("recalled_by_run", "recalled_by_step", "content_by_base", "cut_by_session", "alert_by_run", "alert_by_time"),
]


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
    made_anew = ("passage_", "document_", "vector_", "sqlite_autoindex_vector", "sqlite_autoindex_pending")
    brief = ("sqlite_autoindex_lease", "sqlite_autoindex_continued", "sqlite_autoindex_exposure")
    assert sorted(name for name in found if not name.startswith((*made_anew, *brief))) == sorted(INDEXES)


@pytest.mark.promise("D4")
@pytest.mark.parametrize("index", INDEXES)
def test_what_a_damaged_index_hides_is_an_error_and_never_missing(
    path: Path,
    stale: tuple[bytes, bytes, dict[str, Any]],
    index: str,
    record_property: Callable[[str, object], None],
) -> None:
    right = stale[2]
    kinds = list(damages(stale, path, index).items())
    kinds = kinds if TORTURE else kinds[INDEXES.index(index) % 4 :: 4]
    record_property("cases", len(kinds) * len(right))
    for kind, bad in kinds:
        if is_sound(path, bad):
            continue  # the index has no entries, or had the same
        for part, expected in right.items():
            read = read_part(path, bad, part)
            assert read in (expected, "refused"), f"{kind}: {part} differ without an error"
        with fresh(path, bad) as memory:
            assert not memory.verify(), f"{kind}: verify finds nothing"
            findings = [finding for finding in memory.doctor().findings if finding.level == "problem"]
            assert any("smolmem doctor --repair" in finding.repair for finding in findings), kind
        if index == "sqlite_autoindex_run_1" and kind == "older":
            assert not examine_path(path)


def is_sound(path: Path, data: bytes) -> bool:
    """Whether SQLite itself finds nothing."""
    path.write_bytes(data)
    raw = apsw.Connection(str(path))
    try:
        return bool(raw.execute("PRAGMA integrity_check").get == "ok")
    except apsw.CorruptError:
        return False
    finally:
        raw.close()


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


# --- repair ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("D4")
@pytest.mark.parametrize("kind", ["older", "cut", "zeroed", "garbled"])
def test_a_repair_brings_back_what_any_damaged_index_hid(
    path: Path, stale: tuple[bytes, bytes, dict[str, Any]], kind: str
) -> None:
    for number, index in enumerate(INDEXES[:: 1 if TORTURE else 4]):
        bad = damages(stale, path, index)[kind]
        if is_sound(path, bad):
            continue
        fresh(path, bad).close()
        done = rebuild(path, None)
        assert done.merged == 0
        assert done.indexes > len(INDEXES)
        with Memory(path, embedder="off") as memory:
            assert content(memory) == stale[2]
            assert memory.recall("printer")
            assert memory.verify()
            assert memory.doctor()
        assert Path(done.backup).parent == path.parent
        assert not is_sound(Path(done.backup), Path(done.backup).read_bytes())
        Path(done.backup).unlink()
        assert number or os.stat(path).st_mode & 0o777 == 0o600


def test_the_command_repairs_and_says_what_it_did_and_where_the_old_file_is(
    path: Path, stale: tuple[bytes, bytes, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    fresh(path, with_older_index(stale, path, "step_by_run")).close()
    assert main(["doctor", "--db", str(path)]) == 1
    assert f"smolmem doctor --repair --db {path}" in capsys.readouterr().out
    assert main(["doctor", "--repair", "--db", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["findings"][0]["text"]
    (backup,) = path.parent.glob("agent.db.before-repair-*")
    assert "indexes and the full-text index rebuilt" in said
    assert str(backup) in said
    assert main(["verify", "--db", str(path)]) == 0


def test_a_damaged_full_text_index_is_found_and_repaired(path: Path) -> None:
    record(path)
    raw = apsw.Connection(str(path))
    raw.execute("UPDATE document_words_data SET block = zeroblob(length(block)) WHERE id > 10")
    raw.close()
    with Memory(path, embedder="off") as memory:
        assert not memory.verify()
    rebuild(path, None)
    with Memory(path, embedder="off") as memory:
        assert memory.verify()
        assert any("floor 3" in found.text for found in memory.recall("printer"))


def test_contents_that_were_stored_twice_because_their_index_was_damaged_are_merged(path: Path) -> None:
    Memory(path).close()
    empty = path.read_bytes()
    record(path)
    bad = with_older_index((empty, path.read_bytes(), {}), path, "sqlite_autoindex_content_1")
    with fresh(path, bad) as memory:
        agent = memory.attach(calling_agent(calls(("weather", {"city": "Oslo"})), answer("mild"), name="caller"))
        agent.run("What is the weather?")
        steps = [repr(step.to_smolagents()) for step in memory.runs()[0].steps]
    assert rebuild(path, None).merged > 0
    with Memory(path, embedder="off") as memory:
        assert memory.verify()
        assert [repr(step.to_smolagents()) for step in memory.runs()[0].steps] == steps


def test_a_repair_that_fails_or_finds_the_file_in_use_leaves_the_file_as_it_was(
    path: Path, stale: tuple[bytes, bytes, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole, _ = stale
    fresh(path, whole).close()
    with monkeypatch.context() as patched:
        patched.setattr("smolmem.store.sqlite.rebuilding._Copy.write", cannot_write)
        with pytest.raises(Unwritable, match=r"cannot be repaired, and was left as it is.*no space left"):
            rebuild(path, None)
    assert path.read_bytes() == whole
    monkeypatch.setattr("smolmem.store.sqlite.replacing._WAIT", 0.05)
    with fresh(path, whole), pytest.raises(Busy, match="close that program"):
        rebuild(path, None)
    left = path.with_name(f".{path.name}.zip.12345678.copy.part")  # what a killed export leaves is a folder
    left.mkdir()
    os.utime(left, (0, 0))
    assert unfinished_files(path) == []
    fresh(path, whole).close()
    Path(rebuild(path, None).backup).unlink()
    assert not left.exists()
    for point in ("replace.begun", "replace.done"):
        fresh(path, bad := with_older_index(stale, path, "step_by_run")).close()
        monkeypatch.setattr("smolmem.core.faults.hook", lambda name, point=point: fail() if name == point else None)
        with pytest.raises(RuntimeError):
            rebuild(path, None)
        assert path.read_bytes() == bad
        assert not [file for file in path.parent.iterdir() if ".part" in file.name or "before-repair" in file.name]


def fail() -> None:
    raise RuntimeError("planted")


def cannot_write(copy: Any) -> None:
    raise apsw.FullError("planted")


@pytest.mark.promise("D4")
@pytest.mark.parametrize("table", ["content", "step", "event", "run", "call", "prompt", "session", "fingerprint_key"])
def test_a_repair_of_a_garbled_table_brings_back_every_row_that_can_be_read_and_lists_the_lost_ones(
    path: Path, stale: tuple[bytes, bytes, dict[str, Any]], table: str
) -> None:
    _, whole, _ = stale
    path.write_bytes(whole)
    before = rows_by_table(path)
    last = trees(whole, path, "table")[table][-1]
    chance = random.Random(table)
    for new in (bytes(4096), chance.randbytes(4096), page(whole, last)[:2500] + chance.randbytes(1596)):
        path.write_bytes(with_page(whole, last, new))
        done = rebuild(path, None)
        after = rows_by_table(path)
        assert {name for name in before if before[name] != after[name]} <= {table}
        lost = before[table] - after[table]
        assert lost == 0 or any(line.startswith(f"{table} ") for line in done.lost)
        assert all(line.startswith(f"{table} ") for line in done.lost)
        with Memory(path, embedder="off") as memory:
            memory.remember("it works")
            memory.recall("works")


def test_verify_names_a_problem_that_every_check_finds_once_and_counts_all(
    path: Path, stale: tuple[bytes, bytes, dict[str, Any]]
) -> None:
    _, whole, _ = stale
    for table, pages in trees(whole, path, "table").items():
        if table in ("event", "step", "call", "prompt"):
            whole = with_page(whole, pages[0], bytes(4096))
    path.write_bytes(whole)
    with Memory(path, embedder="off") as memory:
        report = memory.verify()
    assert len(report.problems) == len({*report.problems}) < report.count


@pytest.mark.promise("D4")
@pytest.mark.parametrize("table", ["session", "step", "event"])
def test_after_a_repair_incomplete_runs_are_named_can_be_listed_and_erased_and_the_others_are_whole(
    path: Path, stale: tuple[bytes, bytes, dict[str, Any]], table: str
) -> None:
    _, whole, _ = stale
    path.write_bytes(with_page(whole, trees(whole, path, "table")[table][-1], bytes(4096)))
    finding = repair(path)
    assert "could not be read" in finding.text
    with Memory(path, scope="*", embedder="off") as memory:
        for run in memory.runs():
            incomplete = run.id[:8] in finding.text.partition("Incomplete runs: ")[2]
            if table == "session":
                assert incomplete == (run.fork_of is not None)
            if incomplete:
                left = {step.id for step in memory.steps(run=run) if step.kind != "system_prompt"}
                assert {step.id for step in run.steps if step.run == run.id} == left
                assert [alert.rule for alert in memory.alerts() if alert.run == run.id] == ["repair"]
                assert run.id in memory.erase(run).runs
            else:
                assert run.steps or run.fork_of


def rows_by_table(path: Path) -> dict[str, int]:
    names = ("content", "step", "event", "run", "call", "prompt", "session", "note", "fingerprint_key")
    with closing(apsw.Connection(str(path))) as raw:
        return {name: len(raw.execute(f"SELECT * FROM {name}").fetchall()) for name in names}


# --- forks ----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("D4")
@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_fork_of_itself_is_refused_and_found_however_long_the_circle(path: Path, length: int) -> None:
    with Memory(path, embedder="off") as memory:
        memory.attach(code_agent(code("x = 1"), code("final_answer(x)"))).run("Go")
        runs = memory.runs()
        for _ in range(length):
            runs.append(runs[-1].fork(step=1))
    bend(path, [run.id for run in runs[1:]], [run.session for run in runs[1:]])
    with Memory(path, embedder="off") as memory:
        last = memory.run(runs[-1].id)
        acts: list[Callable[[], Any]] = [
            *(lambda: last.steps, lambda: last.fork(step=1), lambda: last.fork(step=9), lambda: last.as_of(9)),
            *(lambda: memory.resume(code_agent(), last), lambda: last.restore(code_agent()), last.replay),
        ]
        for act in acts:
            with pytest.raises(Damaged, match=r"agent\.db.* is a fork of itself.*smolmem doctor"):
                act()
        report = memory.verify()
        assert any("is a fork of itself" in problem for problem in report.problems)
        assert any("is a fork of itself" in finding.text for finding in memory.doctor().findings)
        assert last.id in memory.erase(last).runs
        memory.erase(scope="default")
        assert memory.runs() == []


def bend(path: Path, runs: list[str], sessions: list[str]) -> None:
    """Makes the first fork a fork of the last one, with hashes that fit."""
    raw = apsw.Connection(str(path))
    for table, ids in (("run", runs), ("session", sessions)):
        cursor = raw.execute(f"SELECT * FROM {table} WHERE id = ?", (ids[0],))
        names = [column[0] for column in cursor.get_description()]
        row = dict(zip(names, cursor.fetchone(), strict=True)) | {"fork_of": ids[-1]}
        raw.execute(f"UPDATE {table} SET fork_of = ?, hash = ? WHERE id = ?", (ids[-1], seal(table, row), ids[0]))
    raw.close()


def test_a_lineage_of_a_thousand_forks_is_followed(path: Path) -> None:
    with Memory(path, embedder="off", durability="normal") as memory:
        memory.attach(code_agent(code("x = 1"), code("final_answer(x)"))).run("Go")
        fork = memory.runs()[0].fork(step=2)
        journal = memory._journal
        run, session = journal.run_row(fork.id), journal.session_row(fork.session)
        for number in range(1100):
            session = {**session, "id": f"{number:016x}", "fork_of": session["id"]}
            run = {**run, "id": f"{number:016x}", "fork_of": run["id"], "session": session["id"]}
            journal.save(Batch(session, new_session=True, runs=[run]))
        last = memory.run(run["id"])
        assert [step.kind for step in last.steps] == ["task", "action", "action"]
        assert [step.kind for step in last.fork(step=1).steps] == ["task", "action"]
        assert memory.verify()


def test_a_process_that_dies_while_it_creates_the_file_leaves_a_part_that_doctor_names(path: Path) -> None:
    def die() -> None:
        sqlite_store.give_name = lambda *_: os._exit(0)  # type: ignore[assignment]
        Memory(path)

    assert os.waitpid(fork(die), 0)[1] == 0
    assert not path.exists()
    (left,) = unfinished_files(path)
    with Memory(path) as memory:
        assert any(str(left) in finding.repair for finding in memory.doctor().findings)
    Path(rebuild(path, None).backup).unlink()
    assert unfinished_files(path) == []
