"""Export, load, backup and doctor: a store can be carried elsewhere, and nothing from elsewhere is believed."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import stat
import struct
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import programs
import pytest
from PIL import Image
from rich.console import Console
from scripted import Counting, Scripted, answer, calling_agent, calls, code, code_agent
from smolagents import ActionStep, CodeAgent, tool
from smolagents.monitoring import Timing, TokenUsage
from workers import fork, record

from smolmem import Memory, SmolmemError, Watch, doctor
from smolmem.core.encoding import codec
from smolmem.core.errors import Damaged, NotAStore, TooNew, UnknownOutcome, Unwritable
from smolmem.policies import views
from smolmem.store.base import migrations
from smolmem.store.sqlite import part_files
from smolmem.store.sqlite.part_files import held
from smolmem.store.sqlite.sqlite_store import SqliteStore
from smolmem.transfer import archive
from smolmem.transfer.archive import ExportWriter
from smolmem.transfer.export import export
from smolmem.transfer.load import load as load_export

TORTURE = bool(os.environ.get("SMOLMEM_TORTURE"))
HERE = Path(__file__).parent


@tool
def pay(amount: int) -> str:
    """Pays.

    Args:
        amount: how much
    """
    if amount == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"paid {amount}"


def payer(*script: Any) -> CodeAgent:
    return code_agent(*script, tools=[pay], name="payer", description="pays")


def program(*words: object) -> dict[str, Any]:
    done = programs.run([__file__, *words], timeout=1800 if TORTURE else 250)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout[done.stdout.rindex("{") :])
    return told


# --- a store with everything in it ----------------------------------------------------------------------------------


def fill(memory: Memory) -> None:
    def shoot(step: Any, agent: Any) -> None:
        step.observations_images = [Image.effect_noise((90, 90), 40).convert("RGB")]

    memory.remember("The shop opens at nine.", kind="fact", tags=["shop"])
    old = memory.remember("Ann lives in Oslo.")
    new = memory.remember("Ann lives in Bergen.", supersedes=old)
    memory.remember("Ann needs a coat there.", sources=[new])
    memory.forget(memory.remember("Forget that the moose is brown."))
    memory.remember("Long over.", expires=timedelta(seconds=-9))

    agent = memory.attach(
        code_agent(
            code("x = [1]\nprint('größe', 'y' * 9000)"),
            code("1 / 0"),
            code("final_answer(x)"),
            step_callbacks=[shoot],
            name="coder",
            description="codes",
        ),
        recall=3,
        watch=[Watch("größe", threshold=1, name="large")],
    )
    agent.run("When does the shop open?", images=[Image.new("RGB", (64, 64), (9, 9, 200))])
    agent.memory.steps[1].observations = "corrected"
    del agent.memory.steps[2]
    memory.detach(agent)

    child = code_agent(code("final_answer('child')"), name="helper", description="helps")
    manager = CodeAgent(
        tools=[],
        model=Scripted("a plan", code("r = helper(task='t')"), code("final_answer(r)")),
        managed_agents=[child],
        planning_interval=5,
        verbosity_level=0,
        name="manager",
        description="manages",
    )
    memory.attach(manager).run("Have it done")

    pages = [code(f"print('page {n} ' + 'lorem ipsum ' * 40)") for n in range(9)]
    reader = CodeAgent(
        tools=[], model=Counting(*pages, code("final_answer(1)")), verbosity_level=0, name="reader", description="reads"
    )
    memory.attach(reader, views=[views.TokenBudget(2_900)]).run("Read")

    caller = memory.attach(calling_agent(calls(("weather", {"city": "nowhere"})), answer("mild")), scope="acme/alice")
    caller.run("What is it like?")
    memory.remember("Alice likes rain.", scope="acme/alice")
    memory.scoped("*").remember("Acme is large.", scope="acme", sources=[memory.steps(scope="acme/*")[0]])
    broken = memory.attach(code_agent(code("y = 7"), ConnectionError("429"), name="broken", description="b"))
    with pytest.raises(Exception, match="429"):
        broken.run("Fail")
    memory.detach(broken)

    one = memory.runs(agent="coder")[0].fork(step=1)
    memory.resume(
        code_agent(code("x.append(5)\nprint(x)"), code("final_answer(x)"), name="coder", description="c"), one.id
    )
    two = one.fork(step=2)
    memory.run(two.id).steps[1].edit(observations="otherwise")
    two.fork()
    memory.forget(memory.steps(run=memory.runs(agent="manager")[0].id)[0].id)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with everything, a run that was killed included; only to be copied."""
    path = tmp_path_factory.mktemp("full") / "agent.db"
    program("cut", path)
    with Memory(path, strict=True, embedder="off") as memory:
        fill(memory)
        assert memory.verify()
    return path


@pytest.fixture(scope="module")
def out(full: Path) -> Path:
    with Memory(full, embedder="off") as memory:
        export(memory._journal, full.parent / "out")
    return full.parent / "out"


def load(journal: Any, path: Any, **options: Any) -> Any:
    """Loads an export of one's own; tests/test_trust.py has those of others."""
    return load_export(journal, path, trust="keep", **options)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Memory]:
    with Memory(tmp_path / "empty.db", strict=True, embedder="off") as memory:
        yield memory


def sent(step: Any) -> str:
    return codec.encode(list(getattr(step, "model_input_messages", None) or [])).key


def picture(memory: Memory, at: str = "*") -> dict[str, Any]:
    """All that a user can see, without the numbers that a store gives by itself."""
    journal, seen = memory._journal, {}
    texts = {step.id: (step.run, step.text) for step in memory.steps(scope=at, limit=10_000)}
    for run in memory.runs(scope=at, limit=1000):
        about = {name: value for name, value in vars(run).items() if not name.startswith("_")}
        steps = [
            [
                {name: value for name, value in vars(step).items() if name not in ("id", "_load", "_operations")},
                codec.encode(step.to_smolagents()).key,
                sent(step.to_smolagents()),
                [codec.encode(past.to_smolagents()).key for past in step.history()],
                [codec.encode(reminder.messages).key for reminder in [journal.reminders.of(step.id)] if reminder],
            ]
            for step in (*run.steps, *run.removed)
        ]
        called = [
            (call.turn, call.kind, call.name, call.key(), call.ended, call.failed) for call in journal.calls(run.id)
        ]
        events = [(event.at, event.act, event.position, texts.get(event.step)) for event in run.events()]
        cuts = [vars(cut) | {"last": texts[cut.last]} for cut in journal.trims.of(run.session)]
        seen[run.id] = [about, codec.encode(run.answer).key, repr(run.failure), run.task, steps, called, events, cuts]
    notes = [
        vars(note) | {"_operations": None, "sources": [texts.get(source, source) for source in note.sources]}
        for note in memory.notes(scope=at, past=True, limit=1000)
    ]
    return {"runs": seen, "notes": notes, "alerts": memory.alerts(scope=at, limit=1000)}


def test_everything_comes_back_from_a_folder_and_from_a_zip(full: Path, out: Path, tmp_path: Path) -> None:
    with Memory(full, embedder="off") as memory:
        right = picture(memory)
        zipped = export(memory._journal, tmp_path / "out.zip")
        order = [step.text for step in memory.steps(scope="*", limit=1000)]
    assert {run[0]["status"] for run in right["runs"].values()} == {"finished", "failed", "interrupted"}
    assert sum(bool(run[7]) for run in right["runs"].values()) >= 1, "no cuts"
    assert right["alerts"]
    assert {note["status"] for note in right["notes"]} == {"current", "superseded", "forgotten", "expired"}
    for number, source in enumerate((out, tmp_path / "out.zip")):
        with Memory(tmp_path / f"{number}.db", strict=True, embedder="off") as memory:
            loaded = load(memory._journal, source)
            assert loaded.added["run"] == len(right["runs"])
            assert loaded.skipped == {}
            assert memory.verify(), memory.verify().problems
            assert picture(memory) == right
            assert [step.text for step in memory.steps(scope="*", limit=1000)] == order
            assert memory.stats().contents == zipped.written["content"]
    assert zipped.bytes == (tmp_path / "out.zip").stat().st_size
    assert sorted(Path(file).suffix for file in os.listdir(out / "media")).count(".png") >= 2
    with Image.open(next(out.glob("media/*.png"))) as image:
        image.load()


def test_what_was_loaded_is_found_by_recall_and_what_was_forgotten_is_not(out: Path, empty: Memory) -> None:
    load(empty._journal, out)
    assert any("lorem ipsum" in one.text for one in empty.recall("page 3 lorem", 5))
    assert "The shop opens at nine." in [one.text for one in empty.recall("When does the shop open?", 3)]
    found = [one.text for one in empty.recall("Where does Ann live? What about the moose?", 20)]
    assert "Ann lives in Bergen." in found
    assert not {"Ann lives in Oslo.", "Forget that the moose is brown.", "Long over."} & set(found)
    assert empty.recall("Alice rain", 3, scope="acme/alice")[0].origin == "user"
    assert empty.verify()


def test_a_killed_run_is_resumed_from_the_loaded_copy(out: Path, empty: Memory) -> None:
    load(empty._journal, out)
    (run,) = empty.runs(agent="payer")
    assert (run.status, run.step_count) == ("interrupted", 1)
    agent = payer(code("final_answer(bill)"))
    with pytest.raises(UnknownOutcome):
        empty.resume(agent, run.id)
    assert empty.resume(agent, run.id, unknown="skip") == 5
    assert [step.number for step in empty.run(run.id).steps if step.kind == "action"] == [1, 2, 3]
    assert empty.verify()


def test_a_run_of_another_machine_can_be_resumed_here(full: Path, tmp_path: Path, empty: Memory) -> None:
    shutil.copy(full, tmp_path / "a.db")
    with Memory(tmp_path / "a.db", embedder="off") as memory:
        (run,) = memory.runs(agent="payer")
        row = memory._journal.store.rows("run_row", {"id": run.id})[0] | {"writer": "elsewhere:1:1"}
        del row["hash"]
        memory._journal._put_run(row)
        memory._journal.leases.acquire("elsewhere:1:1", "elsewhere:1:1", 60)
        assert memory.run(run.id).status == "running"
        export(memory._journal, tmp_path / "out.zip")
    load(empty._journal, tmp_path / "out.zip")
    assert empty.run(run.id).status == "interrupted"


def test_loaded_runs_are_replayed_rerun_and_forked(out: Path, empty: Memory) -> None:
    load(empty._journal, out)
    run = empty.runs(agent="coder", status="finished")[-1]
    run.replay(detailed=True, console=Console(file=io.StringIO()))
    again = empty.runs(agent="reader")[0].fork(step=3)
    assert empty.resume(code_agent(code("final_answer(3)"), name="reader", description="r"), again.id) == 3
    manager = empty.runs(agent="manager")[0]
    assert [child.agent for child in empty.runs(parent=manager.id)] == ["helper"]
    failed = empty.runs(agent="broken")[0]
    assert empty.resume(code_agent(code("final_answer(y)"), name="broken", description="b"), failed.id) == 7
    assert empty.verify()


def test_loading_twice_adds_nothing(full: Path, out: Path, tmp_path: Path) -> None:
    shutil.copy(full, tmp_path / "a.db")
    with Memory(tmp_path / "a.db", strict=True, embedder="off") as memory:
        before, seen = memory.stats(), picture(memory)
        for _ in range(2):
            loaded = load(memory._journal, out)
            assert loaded.added == {}
            assert loaded.skipped == {"session": before.sessions, "run": before.runs, "note": before.notes}
            assert loaded.differing == 0
        assert picture(memory) == seen
        after = memory.stats()
        assert (after.contents, after.prompts, after.events) == (before.contents, before.prompts, before.events)


def test_a_store_that_has_other_runs_keeps_them_and_numbers_are_mapped(full: Path, out: Path, empty: Memory) -> None:
    empty.attach(code_agent(code("print('mine')"), code("final_answer(1)"))).run("My own task")
    mine = picture(empty)
    load(empty._journal, out)
    with Memory(full, embedder="off") as memory:
        right = picture(memory)
    now = picture(empty)
    assert now["runs"] == mine["runs"] | right["runs"]
    assert now["notes"] == right["notes"]
    assert empty.verify(), empty.verify().problems


def test_a_fork_is_loaded_onto_the_run_that_is_here_already(tmp_path: Path, empty: Memory) -> None:
    with Memory(tmp_path / "a.db", embedder="off") as memory:
        memory.attach(code_agent(code("x = 1"), code("x = 2"), code("final_answer(x)"))).run("Go")
        export(memory._journal, tmp_path / "one")
        first = memory.runs()[0]
        branch = first.fork(step=1)
        assert memory.resume(code_agent(code("final_answer(x + 40)")), branch.id) == 41
        export(memory._journal, tmp_path / "two")
        right = picture(memory)
    empty.remember("so that numbers differ")
    empty.attach(code_agent(code("final_answer(0)"))).run("Before")
    load(empty._journal, tmp_path / "one")
    loaded = load(empty._journal, tmp_path / "two")
    assert (loaded.added["run"], loaded.skipped["run"], loaded.differing) == (1, 1, 0)
    assert {id: empty_run for id, empty_run in picture(empty)["runs"].items() if id in right["runs"]} == right["runs"]
    assert empty.verify(), empty.verify().problems


def test_a_session_that_went_on_elsewhere_stays_as_it_is_here_and_is_told(tmp_path: Path, empty: Memory) -> None:
    with Memory(tmp_path / "a.db", embedder="off") as memory:
        agent = memory.attach(code_agent(*[code("final_answer(1)")] * 2))
        agent.run("One")
        export(memory._journal, tmp_path / "one")
        agent.run("Two", reset=False)
        memory.runs(text="Two")[0].fork()
        export(memory._journal, tmp_path / "two")
    load(empty._journal, tmp_path / "one")
    loaded = load(empty._journal, tmp_path / "two")
    assert loaded.differing == 2  # it, and its fork
    assert [run.title for run in empty.runs()] == ["One"]
    assert empty.verify(), empty.verify().problems


def test_a_fork_with_another_system_prompt_than_its_origin_can_be_loaded(tmp_path: Path, empty: Memory) -> None:
    with Memory(tmp_path / "a.db", embedder="off") as memory:
        memory.attach(code_agent(code("final_answer(1)"))).run("One")
        other = memory.attach(code_agent(code("final_answer(2)"), instructions="Be brief."))
        memory.resume(other, memory.runs()[0].fork())
        other.run("Two", reset=False)
        export(memory._journal, tmp_path / "out")
    load(empty._journal, tmp_path / "out")
    assert sorted(run.title for run in empty.runs()) == ["One", "One", "Two"]
    assert empty.verify(), empty.verify().problems


def test_a_scope_and_what_lies_below_it(full: Path, tmp_path: Path, empty: Memory) -> None:
    with Memory(full, embedder="off") as memory:
        whole = export(memory._journal, tmp_path / "acme", scope="acme", below="acme/")
        export(memory._journal, tmp_path / "alone", scope="acme")
        right = picture(memory, "acme/*")
    lines = [json.loads(line) for line in (tmp_path / "acme" / "smolmem.jsonl").read_text().splitlines()]
    assert {line["scope"] for line in lines if line["type"] != "header" and "scope" in line} == {"acme", "acme/alice"}
    assert "moose" not in (tmp_path / "acme" / "smolmem.jsonl").read_text()
    assert whole.written["run"] == 1
    load(empty._journal, tmp_path / "acme")
    assert picture(empty) == right
    with Memory(tmp_path / "b.db", embedder="off") as other:
        load(other._journal, tmp_path / "acme", scope="bob")
        assert {run.scope for run in other.runs(scope="*")} == {"bob/alice"}
        assert {note.scope for note in other.notes(scope="*")} == {"bob", "bob/alice"}
        assert other.verify()
        assert load(other._journal, tmp_path / "acme", scope="carl").added == {}
    with Memory(tmp_path / "c.db", embedder="off") as other:
        load(other._journal, tmp_path / "alone")
        assert [note.text for note in other.notes(scope="*")] == ["Acme is large."]
        assert other.notes(scope="*")[0].sources == ()


def test_everything_under_another_scope(out: Path, empty: Memory) -> None:
    load(empty._journal, out, scope="old")
    assert {run.scope for run in empty.runs(scope="*")} == {"old/default", "old/acme/alice"}
    assert empty.recall("Alice rain", 3, scope="old/*")[0].text == "Alice likes rain."
    assert empty.alerts(scope="old/*")
    assert empty.verify()


def test_texts_beyond_what_files_and_json_like_come_back(tmp_path: Path, empty: Memory) -> None:
    odd = ["\ud800 half", "nul \0 nul", "\u2028 line\nline\r", "🦉" * 5000, '"blob":"' + "0" * 40 + '"', "[1, 2", "1e5"]
    with Memory(tmp_path / "a.db", embedder="off") as memory:
        agent = memory.attach(code_agent())
        for number, text in enumerate([*odd, *(text * 9000 for text in odd if len(text) < 99)]):
            agent.memory.steps.append(ActionStep(number, Timing(0.0), observations=text))
        memory.detach(agent)
        right = picture(memory)
        export(memory._journal, tmp_path / "out.zip")
        export(memory._journal, tmp_path / "scoped", scope="default")
    for source in ("out.zip", "scoped"):
        with Memory(tmp_path / f"{source}.db", embedder="off") as other:
            load(other._journal, tmp_path / source)
            assert picture(other) == right
            assert other.verify()


def test_an_error_of_the_progress_function_is_not_taken_for_damage(tmp_path: Path, empty: Memory) -> None:
    with Memory(tmp_path / "a.db", embedder="off") as memory:
        for number in range(200):
            memory.remember(f"Note {number}")
        export(memory._journal, tmp_path / "out")

    def stop(*_: int) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        load(empty._journal, tmp_path / "out", progress=stop)
    assert not empty.notes()


def test_what_is_done_prints_nicely_and_tells_how_far_it_is(full: Path, tmp_path: Path, empty: Memory) -> None:
    told: list[tuple[int, int]] = []
    with Memory(full, embedder="off") as memory:
        made = export(memory._journal, tmp_path / "out", progress=lambda *far: told.append(far))
    loaded = load(empty._journal, tmp_path / "out", progress=lambda *far: told.append(far))
    again = load(empty._journal, tmp_path / "out")
    assert told
    assert all(0 <= done <= total for done, total in told)
    console = Console(file=io.StringIO(), width=200)
    for value in (made, loaded, again, doctor.examine(empty._journal)):
        console.print(value)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "here already" in text
    assert "runs" in text


def test_memory_does_not_grow_with_the_store(tmp_path: Path) -> None:
    """Eight steps of a megabyte, exported and loaded within a few."""
    with Memory(tmp_path / "a.db", embedder="off") as memory, Memory(tmp_path / "b.db", embedder="off") as other:
        agent = memory.attach(code_agent())
        for number in range(8):
            agent.memory.steps.append(ActionStep(number, Timing(0.0), observations=os.urandom(500_000).hex()))
        memory.detach(agent)
        agent.memory.steps.clear()
        tracemalloc.start()
        try:
            export(memory._journal, tmp_path / "out", scope="default")
            load(other._journal, tmp_path / "out")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 6_000_000
        assert len(other.steps(limit=100)) == 9


@pytest.mark.parametrize("name", ["out", "out.zip"])
def test_what_exists_is_not_overwritten_and_a_missing_folder_is_named(full: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with Memory(full, embedder="off") as memory:
        with pytest.raises(Unwritable, match=rf"{name} exists already.*give another path"):
            export(memory._journal, tmp_path / name)
        with pytest.raises(Unwritable, match="no/such"):
            export(memory._journal, tmp_path / "no" / "such" / name)
        with pytest.raises(Unwritable, match=rf"{name} exists already"):
            memory._store.backup(tmp_path / name)
        with pytest.raises(Unwritable, match="no/such"):
            memory._store.backup(tmp_path / "no" / "such" / name)
        for write in (memory._store.backup, lambda path: export(memory._journal, path)):
            with pytest.raises(Unwritable, match="is not a file name"):
                write("a\0b")
    assert (tmp_path / name).read_text() == "mine"
    assert os.listdir(tmp_path) == [name]


def test_a_damaged_store_is_not_exported_as_if_it_were_whole(full: Path, tmp_path: Path) -> None:
    shutil.copy(full, tmp_path / "a.db")
    raw = apsw.Connection(str(tmp_path / "a.db"))
    raw.execute("UPDATE content SET bytes = x'3d31' WHERE id = 9")
    raw.close()
    with Memory(tmp_path / "a.db", embedder="off") as memory, pytest.raises(Damaged, match="not what was written"):
        export(memory._journal, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["a.db"]


def test_an_export_is_of_one_moment_while_others_write(tmp_path: Path, empty: Memory) -> None:
    with Memory(tmp_path / "a.db", strict=True, embedder="off") as memory:
        agent = memory.attach(code_agent(*[code("print(1)")] * 60, code("final_answer(1)"), max_steps=99))
        events = agent.run("Long", stream=True)
        while not any(isinstance(event, ActionStep) and event.step_number == 20 for event in [next(events)]):
            pass
        lines = ExportWriter.line

        def write_more(box: ExportWriter, row: dict[str, Any]) -> None:
            lines(box, row)
            next(events, None)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ExportWriter, "line", write_more)
            export(memory._journal, tmp_path / "out")
        for _ in events:
            pass
        assert memory.verify()
        longer = memory.runs()[0].step_count
    load(empty._journal, tmp_path / "out")
    assert empty.verify(), empty.verify().problems
    assert 0 < empty.runs()[0].step_count < longer


# --- kill -9 --------------------------------------------------------------------------------------------------------


def kill_at(moment: int, work: Callable[[], Any], *places: tuple[Any, str]) -> bool:
    """Does something in a child that dies at its n-th call of one of these; whether it died."""

    def run() -> None:
        left = [moment]
        for owner, name in places:
            original = getattr(owner, name)

            def die(*args: Any, original: Any = original, **kwargs: Any) -> Any:
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return original(*args, **kwargs)

            setattr(owner, name, die)
        work()

    return os.waitpid(fork(run), 0)[1] != 0


def kill_exports(path: str, folder: str) -> dict[str, int]:
    part_files.RECENT = 0.0
    target, died = Path(folder) / "target", 0
    for name in ("target", "target.zip"):
        target = Path(folder) / name
        for moment in range(0, 400, 1 if TORTURE else 31):

            def exporting() -> None:
                with Memory(path, embedder="off") as memory:
                    export(memory._journal, target)

            if not kill_at(
                moment,
                exporting,
                (ExportWriter, "line"),
                (ExportWriter, "media"),
                (zipfile.ZipFile, "write"),
                (os, "rename"),
            ):
                break
            died += 1
            assert not target.exists()
        assert target.exists()
        assert [file.name for file in Path(folder).iterdir() if ".part" in file.name] == []
    return {"died": died}


def kill_backup(path: str, folder: str) -> dict[str, Any]:
    """What a killed backup leaves, what `doctor` says of it, and what the next backup leaves."""
    part_files.RECENT = 0.0

    def backing_up(name: str) -> None:
        with Memory(path, embedder="off") as memory:
            memory.backup(Path(folder) / name)

    def parts() -> list[str]:
        return [file.name for file in Path(folder).iterdir() if ".part" in file.name]

    assert kill_at(0, lambda: backing_up("monday.db"), (os, "rename"))
    left = parts()
    with Memory(path, embedder="off") as memory:
        named = [finding.repair for finding in memory.doctor().findings if "unfinished file" in finding.text]
    with held(Path(folder) / left[0]):
        backing_up("tuesday.db")
        kept = parts()
    backing_up("wednesday.db")
    return {"left": left, "named": named, "kept": kept, "after": parts()}


def kill_loads(source: str, path: str) -> dict[str, int]:
    Memory(path, embedder="off").close()
    died = 0
    for moment in [*range(0, 100, 20), *range(100, 100_000, 40 if TORTURE else 100)]:

        def loading() -> None:
            with Memory(path, embedder="off") as memory:
                load(memory._journal, source)

        if not kill_at(moment, loading, (SqliteStore, "do")):
            break
        died += 1
        with Memory(path, embedder="off") as memory:
            stats = memory.stats()
            assert (stats.runs, stats.contents, stats.notes) == (0, 0, 0), "half of it"
    with Memory(path, embedder="off") as memory:
        return {"died": died, "runs": memory.stats().runs, "damaged": memory.verify().count}


def test_a_killed_export_leaves_nothing_under_its_name(full: Path, tmp_path: Path) -> None:
    shutil.copy(full, tmp_path / "a.db")
    assert program("exports", tmp_path / "a.db", tmp_path)["died"] > 8


def test_the_next_backup_deletes_what_a_killed_one_left_and_not_what_another_process_writes(
    full: Path, tmp_path: Path
) -> None:
    shutil.copy(full, tmp_path / "a.db")
    found = program("backup", tmp_path / "a.db", tmp_path)
    assert len(found["left"]) == len(found["named"]) == 1
    assert found["left"][0] in found["named"][0]
    assert found["kept"] == found["left"]
    assert found["after"] == []


def test_a_backup_deletes_no_file_of_others_and_none_that_was_just_written(empty: Memory, tmp_path: Path) -> None:
    others = [tmp_path / ".album.copy.parts", tmp_path / ".report.12345678.copy.party", tmp_path / ".copy.part"]
    part = tmp_path / ".monday.db.12345678.copy.part"
    for file in (*others, part):
        file.touch()
    empty.backup(tmp_path / "tuesday.db")
    assert all(file.exists() for file in (*others, part))
    for file in (*others, part):
        os.utime(file, (0, 0))
    empty.backup(tmp_path / "wednesday.db")
    assert [file.exists() for file in (*others, part)] == [True, True, True, False]


def test_a_killed_load_changes_nothing(out: Path, tmp_path: Path) -> None:
    told = program("loads", out, tmp_path / "a.db")
    assert told["died"] > 8
    assert told["runs"] > 5
    assert told["damaged"] == 0


# --- what comes from elsewhere --------------------------------------------------------------------------------------


class Elsewhere:
    """A small export that can be changed, and a store to load it into; watches that nothing else is touched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with Memory(folder / "source.db", embedder="off") as memory:
            note = memory.remember("Ann is here.")
            agent = memory.attach(
                code_agent(code("print(1)"), code("1 / 0"), ConnectionError("gone"), name="a", description="d"),
                recall=2,
                watch=[Watch("division", threshold=1)],
            )
            with pytest.raises(Exception, match="gone"):
                agent.run("Where is Ann?", images=[Image.effect_noise((90, 90), 40).convert("RGB")])
            memory.detach(agent)
            memory.remember("Ann left.", supersedes=note, sources=[memory.steps()[0]])
            run = memory.runs()[0]
            memory._journal.trims.add(run.session, _cut(run.steps[0].id))
            run.steps[1].edit(observations="two")
            run.fork(step=1)
            memory.forget(memory.steps()[0].id)
            export(memory._journal, folder / "right")
        self.lines = (folder / "right" / "smolmem.jsonl").read_bytes().splitlines(keepends=True)
        self.rows = [json.loads(line) for line in self.lines]
        Memory(folder / "empty.db", embedder="off").close()
        self.bytes = (folder / "empty.db").read_bytes()
        self.count = 0

    def line(self, kind: str, last: bool = False) -> int:
        found = [number for number, row in enumerate(self.rows) if row["type"] == kind]
        return found[-1 if last else 0]

    def changed(self, number: int, /, **changes: Any) -> list[bytes]:
        row = {name: value for name, value in (self.rows[number] | changes).items() if value is not LEFT_OUT}
        return [*self.lines[:number], json.dumps(row).encode() + b"\n", *self.lines[number + 1 :]]

    def folder_of(self, lines: list[bytes]) -> Path:
        self.count += 1
        made = self.folder / "bad" / str(self.count)
        made.mkdir(parents=True)
        shutil.copytree(self.folder / "right" / "media", made / "media")
        (made / "smolmem.jsonl").write_bytes(b"".join(lines))
        return made

    def zip_of(self, change: Callable[[zipfile.ZipFile], Any] | None = None, lines: list[bytes] | None = None) -> Path:
        self.count += 1
        made = self.folder / f"bad{self.count}.zip"
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("smolmem.jsonl", b"".join(self.lines if lines is None else lines))
            for file in (self.folder / "right" / "media").iterdir():
                archive.write(file, f"media/{file.name}")
            if change is not None:
                change(archive)
        return made

    def load(self, source: Path) -> SmolmemError | None:
        """Loads it into an empty store; what was refused must have changed nothing, and what was not must hold."""
        store = self.folder / "store.db"
        for file in self.folder.glob("store.db*"):
            file.unlink()
        store.write_bytes(self.bytes)
        before = self.everything()
        refused: SmolmemError | None = None
        with Memory(store, embedder="off") as memory:
            try:
                load(memory._journal, source)
            except (Damaged, NotAStore, TooNew) as error:
                refused = error
                assert str(source) in str(error)
                counted = memory.stats()
                assert (counted.runs, counted.contents, counted.notes, counted.events, counted.calls) == (0, 0, 0, 0, 0)
            else:
                report = memory.verify()
                assert report, report.problems
                look(memory)
        for file in self.folder.glob("store.db*"):
            file.unlink()
        assert self.everything() == before, "something was written outside the store"
        return refused

    def everything(self) -> set[tuple[str, int]]:
        root = self.folder.parent
        return {
            (str(file), file.lstat().st_mtime_ns)
            for file in (*root.iterdir(), *self.folder.iterdir())
            if not file.name.startswith("store.db") and file != self.folder
        }


LEFT_OUT = object()


def _cut(step: int) -> Any:
    from smolmem.core.values import Trim

    return Trim("budget", step, 1, 9, 5, "short", time.time())


def look(memory: Memory) -> None:
    """Reads all that can be read; whatever is wrong is said as an error of ours."""
    for run in memory.runs(scope="*", limit=1000):
        for ask in (
            lambda run=run: (repr(run.answer), repr(run.failure), run.task),
            lambda run=run: [repr(step.to_smolagents()) for step in run.steps],
            lambda run=run: run.events(),
        ):
            try:
                ask()
            except SmolmemError:
                continue
    memory.notes(scope="*", past=True)
    memory.alerts(scope="*")
    memory.recall("Ann", 5, scope="*")


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Elsewhere:
    (folder := tmp_path_factory.mktemp("elsewhere") / "in").mkdir()
    return Elsewhere(folder)


def test_the_small_export_itself_is_fine(elsewhere: Elsewhere) -> None:
    assert elsewhere.load(elsewhere.folder_of(elsewhere.lines)) is None
    assert elsewhere.load(elsewhere.zip_of()) is None
    assert {row["type"] for row in elsewhere.rows} == set(transfer_types())


def transfer_types() -> list[str]:
    from smolmem.transfer.lines import SHAPES

    return list(SHAPES)


WRONG: list[Any] = [LEFT_OUT, -1, 2**63, 1.5, "\0", "\ud800", [], {}, True, "ffffffffffffffff", float("inf")]


@pytest.mark.promise("S6")
@pytest.mark.parametrize("kind", transfer_types())
def test_a_wrong_value_in_any_field_is_refused_or_harmless(elsewhere: Elsewhere, kind: str) -> None:
    number = elsewhere.line(kind)
    fields = [name for name in elsewhere.rows[number] if not (kind == "step" and name != "id") and name != "smolmem"]
    refused = 0
    for place, field in enumerate(fields):
        wrong = WRONG if TORTURE else WRONG[place % 5 :: 5]
        for value in wrong:
            error = elsewhere.load(elsewhere.folder_of(elsewhere.changed(number, **{field: value})))
            refused += error is not None
            if error is not None and field != "type":
                assert re.search(r"line \d|lines refer to it|is referred to|fork", str(error)), str(error)
    assert refused >= len(fields) // 2


HOSTILE: dict[str, Callable[[Elsewhere], list[bytes]]] = {
    "nothing": lambda e: [],
    "not json": lambda e: [*e.lines[:3], b"{not json\n", *e.lines[3:]],
    "a list": lambda e: [*e.lines[:3], b"[1]\n", *e.lines[3:]],
    "an empty line": lambda e: [*e.lines[:3], b"\n", *e.lines[3:]],
    "binary": lambda e: [os.urandom(5000)],
    "not utf-8": lambda e: [*e.lines[:3], b'{"type":"\xff"}\n', *e.lines[3:]],
    "deep": lambda e: [e.lines[0], b"[" * 100_000 + b"]" * 100_000 + b"\n"],
    "deep content": lambda e: [
        e.lines[0],
        b'{"type":"content","hash":"' + b"0" * 40 + b'","json":' + b"[" * 9_000 + b"]" * 9_000 + b"}\n",
    ],
    "a long line": lambda e: [e.lines[0], b'{"type":"' + b"x" * (archive.LINE + 5) + b'"}\n'],
    "a long number": lambda e: [*e.lines[:1], b'{"type":"end","lines":' + b"9" * 5000 + b"}\n"],
    "cut short": lambda e: e.lines[:-1],
    "cut in a line": lambda e: [*e.lines[:9], e.lines[9][:20]],
    "more behind the end": lambda e: [*e.lines, e.lines[1]],
    "a line less": lambda e: [*e.lines[:5], *e.lines[6:]],
    "a line twice": lambda e: [*e.lines[: e.line("run")], e.lines[e.line("run")], *e.lines[e.line("run") :]],
    "a session twice": lambda e: [*e.lines[:2], e.lines[1], *e.lines[2:]],
    "no header": lambda e: e.lines[1:],
    "two headers": lambda e: [e.lines[0], *e.lines],
    "another format": lambda e: e.changed(0, format="otherthing"),
    "a content that is another": lambda e: e.changed(e.line("content"), text="other", json=LEFT_OUT),
    "a content of two kinds": lambda e: e.changed(e.line("content"), text="x", json=1, file="x"),
    "an event of no session": lambda e: e.changed(e.line("event"), session="abc"),
    "an event of no run": lambda e: e.changed(e.line("event"), run="abc"),
    "a record that is no step": lambda e: e.changed(e.line("event"), record=e.rows[e.line("run")]["failure"]),
    "a place beyond the list": lambda e: e.changed(
        next(number for number, row in enumerate(e.rows) if row["type"] == "event" and row.get("place") == 1), place=9
    ),
    "a removal of what is not there": lambda e: e.changed(e.line("event"), act="remove", record=None),
    "a revision before the step": lambda e: e.changed(e.line("event"), act="revise"),
    "a prompt of no parent": lambda e: e.changed(e.line("prompt", last=True), parent=99),
    "a prompt that keeps too much": lambda e: e.changed(e.line("prompt", last=True), keep=99),
    "a prompt without its content": lambda e: e.changed(e.line("prompt"), suffix=["0" * 40]),
    "a session that is its own fork": lambda e: e.changed(
        e.line("session"), fork_of=e.rows[e.line("session")]["id"], fork_at=2
    ),
    "a run that is its own fork": lambda e: e.changed(e.line("run"), fork_of=e.rows[e.line("run")]["id"]),
    "a run of no session": lambda e: e.changed(e.line("run"), session="abc"),
    "a run with no parent": lambda e: e.changed(e.line("run"), parent="abc"),
    "an unknown status": lambda e: e.changed(e.line("run"), status="paused"),
    "a failure that is none": lambda e: e.changed(e.line("run"), failure=e.rows[e.line("call")]["arguments"]),
    "a call of no run": lambda e: e.changed(e.line("call"), run="abc"),
    "a call without arguments": lambda e: e.changed(e.line("call"), arguments="0" * 40),
    "a reminder that is no message": lambda e: e.changed(e.line("recalled"), block=e.rows[e.line("run")]["failure"]),
    "a reminder of no step": lambda e: e.changed(e.line("recalled"), found=[999]),
    "a note of no run": lambda e: e.changed(e.line("note"), run="abc"),
    "a note of no source": lambda e: e.changed(e.line("note"), sources=[999]),
    "a note that supersedes nothing": lambda e: e.changed(e.line("note"), supersedes="abc"),
    "a note of an unknown origin": lambda e: e.changed(e.line("note"), origin="god"),
    "a cut of no step": lambda e: e.changed(e.line("cut"), last=999),
    "forgotten what is not there": lambda e: e.changed(e.line("forgotten"), what="note", target="abc"),
    "a scope that is none": lambda e: e.changed(e.line("session"), scope="a/../*"),
    "a time beyond time": lambda e: e.changed(e.line("run"), began=1e300),
    "an unknown type": lambda e: e.changed(5, type="pickle"),
    "sql for a type": lambda e: e.changed(5, type="x'; DROP TABLE run; --"),
}


@pytest.mark.promise("S6")
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_lines_are_refused_with_the_file_and_what_to_do(elsewhere: Elsewhere, kind: str) -> None:
    lines = HOSTILE[kind](elsewhere)
    for source in (elsewhere.folder_of(lines), elsewhere.zip_of(lines=lines)):
        error = elsewhere.load(source)
        assert error is not None
        assert "Nothing was loaded: export it again" in str(error)


def test_a_newer_export_is_refused(elsewhere: Elsewhere) -> None:
    error = elsewhere.load(elsewhere.folder_of(elsewhere.changed(0, version=2)))
    assert isinstance(error, TooNew)
    assert "upgrade smolmem" in str(error)


NAMES = [
    *("../evil", "../../evil", "/tmp/evil", "//evil", "C:\\evil", "c:/evil", "..\\evil", "media/../../evil"),
    *("media/", "media/..", "./smolmem.jsonl", "media//x.png", "media\\x.png", "smolmem.jsonl/", "SMOLMEM.JSONL"),
    *("evil", "~/evil", "media/{}.png/../../evil", "media/./{}.png", "media/{}", "media/{}.", "media/{}.PNG"),
    *("media/{}.tar.gz", "/media/{}.png", "media/{}.p/ng", "media/%2e%2e/evil", "file:///etc/passwd", "aux", "nul"),
    *("media/\u2025/evil", "media/{}.p\u202eng", "../media/{}.png", "media/../media/{}.png"),
    *("\\\\host\\share\\evil"),
    *("media/{}.png\n", "media/{}.png\0", "\0", "media/{}.png\0.txt", " media/{}.png"),
    *(f"{'../' * depth}etc/passwd" for depth in range(1, 12)),
    *(f"media/{'../' * depth}tmp/evil.png" for depth in range(1, 12)),
    *(f"{drive}:{slash}evil" for drive in "acdz" for slash in ("", "/", "\\")),
]


@pytest.mark.promise("S6")
@pytest.mark.parametrize("form", ["named in a line", "in a zip"])
def test_names_that_lead_elsewhere_are_refused(elsewhere: Elsewhere, form: str) -> None:
    """Some seventy names in lines, and again as members of a zip, as files or as links; under torture as both."""
    number = next(place for place, row in enumerate(elsewhere.rows) if "file" in row)
    key = elsewhere.rows[number]["hash"]
    for place, name in enumerate(name.replace("{}", key) for name in NAMES):
        if form == "named in a line":
            error = elsewhere.load(elsewhere.folder_of(elsewhere.changed(number, file=name)))
            assert error is not None, name
            continue
        modes = (stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777)
        for mode in modes if TORTURE else modes[place % 2 :][:1]:
            member = zipfile.ZipInfo("x")
            member.filename, member.external_attr = name, mode << 16
            made = elsewhere.zip_of(lambda archive, member=member: archive.writestr(member, "/etc/passwd"))
            if name == "media/" and stat.S_ISREG(mode):
                continue
            assert elsewhere.load(made) is not None, name
    assert not Path("/tmp/evil").exists()


@pytest.mark.promise("S6")
def test_links_pipes_and_missing_files_are_not_read(elsewhere: Elsewhere) -> None:
    number = next(place for place, row in enumerate(elsewhere.rows) if "file" in row)
    name = elsewhere.rows[number]["file"]

    def spoil(change: Callable[[Path], Any]) -> str:
        made = elsewhere.folder_of(elsewhere.lines)
        change(made)
        error = elsewhere.load(made)
        assert error is not None
        return str(error)

    right = elsewhere.folder / "right"
    replace = {
        "a link to the right file": lambda made: ((made / name).unlink(), (made / name).symlink_to(right / name)),
        "a link to a device": lambda made: ((made / name).unlink(), (made / name).symlink_to("/dev/zero")),
        "a pipe": lambda made: ((made / name).unlink(), os.mkfifo(made / name)),
        "a folder": lambda made: ((made / name).unlink(), (made / name).mkdir()),
        "missing": lambda made: (made / name).unlink(),
        "another": lambda made: (made / name).write_bytes(b"other"),
        "empty": lambda made: (made / name).write_bytes(b""),
        "all media elsewhere": lambda made: (
            shutil.rmtree(made / "media"),
            (made / "media").symlink_to(right / "media"),
        ),
        "no media": lambda made: shutil.rmtree(made / "media"),
        "the lines elsewhere": lambda made: (
            (made / "smolmem.jsonl").unlink(),
            (made / "smolmem.jsonl").symlink_to(right / "smolmem.jsonl"),
        ),
        "the lines a pipe": lambda made: ((made / "smolmem.jsonl").unlink(), os.mkfifo(made / "smolmem.jsonl")),
        "no lines": lambda made: (made / "smolmem.jsonl").unlink(),
    }
    for what, change in replace.items():
        assert spoil(change), what


def patched(path: Path, signature: bytes, offset: int, value: bytes) -> None:
    data = bytearray(path.read_bytes())
    at = data.rindex(signature)
    data[at + offset : at + offset + len(value)] = value
    path.write_bytes(data)


def bomb(elsewhere: Elsewhere, size: int, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """An export with a file of so many zeros."""
    key = "0" * 40
    named = f'{{"type":"content","hash":"{key}","file":"media/{key}.bin"}}\n'.encode()
    lines = [elsewhere.lines[0], named, *elsewhere.lines[1:]]
    return elsewhere.zip_of(lambda archive: archive.writestr(f"media/{key}.bin", bytes(size), method), lines)


def costs(elsewhere: Elsewhere, made: Path) -> tuple[float, int]:
    """Loads what must be refused; seconds and bytes that it took."""
    tracemalloc.start()
    began = time.process_time()
    try:
        assert elsewhere.load(made) is not None, made
        return time.process_time() - began, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        made.unlink()


@pytest.mark.promise("S6")
def test_a_bomb_costs_little(elsewhere: Elsewhere) -> None:
    seconds, size = costs(elsewhere, bomb(elsewhere, 120 << 20))
    assert size < 100_000_000
    assert seconds < 6  # two, where nobody else is at work


@pytest.mark.promise("S6")
def test_bombs_are_defused_whatever_their_headers_say(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "FREE", 4 << 20)
    head, same = elsewhere.lines[0], elsewhere.lines[elsewhere.line("content")]
    liar, other, secret = bomb(elsewhere, 8 << 20), bomb(elsewhere, 8 << 20), bomb(elsewhere, 100)
    patched(liar, b"PK\x01\x02", 24, struct.pack("<I", 10))  # the directory says ten bytes
    patched(other, b"PK\x01\x02", 20, struct.pack("<I", 1 << 31))  # packed in more than there is
    patched(secret, b"PK\x01\x02", 8, b"\x01\x00")  # a password
    bombs = [
        *(liar, other, secret, bomb(elsewhere, 8 << 20, zipfile.ZIP_BZIP2), bomb(elsewhere, 8 << 20, zipfile.ZIP_LZMA)),
        elsewhere.zip_of(lines=[head, *[same] * (8_000_000 // len(same))]),
        elsewhere.zip_of(lines=[head, b'{"type":"' + b"x" * (8 << 20)]),
        elsewhere.zip_of(lines=[head, b"[" + b"[]," * 1_300_000 + b"[]]\n"]),
        elsewhere.zip_of(lines=[head, b"\n" * (8 << 20)]),
    ]
    for made in bombs:
        assert costs(elsewhere, made)[1] < 100_000_000


def test_broken_zips_and_other_files_are_refused(elsewhere: Elsewhere, tmp_path: Path) -> None:
    whole = elsewhere.zip_of().read_bytes()
    for number, data in enumerate(
        [
            b"",
            b"PK",
            b"not a zip" * 99,
            whole[:-30],
            whole[: len(whole) // 2],
            whole[50:],
            elsewhere.bytes,
            whole[:200] + bytes(300) + whole[500:],
        ]
    ):
        made = elsewhere.folder / f"broken{number}.zip"
        made.write_bytes(data)
        assert elsewhere.load(made) is not None, number
    for strange in (elsewhere.folder / "nothing-there", elsewhere.folder / "bad", Path("/dev/null")):
        with Memory(tmp_path / "a.db", embedder="off") as memory, pytest.raises(NotAStore, match="Give"):
            load(memory._journal, strange)


def test_a_duplicate_member_is_refused(elsewhere: Elsewhere) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        made = elsewhere.zip_of(lambda archive: archive.writestr("smolmem.jsonl", "x"))
    assert "twice" in str(elsewhere.load(made))


def test_a_large_picture_in_a_small_file_is_not_unpacked_at_load(
    tmp_path: Path, empty: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memory(tmp_path / "a.db", embedder="off") as memory:
        agent = memory.attach(code_agent())
        vast = Image.new("1", (8000, 8000))
        agent.memory.steps.append(ActionStep(1, Timing(0.0), observations="see", observations_images=[vast]))
        export(memory._journal, tmp_path / "out.zip")
    assert (tmp_path / "out.zip").stat().st_size < 50_000

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("a picture was unpacked")

    with monkeypatch.context() as patch:
        patch.setattr("PIL.Image.open", fail)
        patch.setattr("PIL.Image.frombytes", fail)
        load(empty._journal, tmp_path / "out.zip")
    assert empty.steps(kind="action")[0].to_smolagents().observations_images[0].size == (8000, 8000)


# --- backup ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("D13")
@pytest.mark.parametrize("part", range(20 if TORTURE else 1))
def test_five_backups_while_another_process_writes_open_verify_and_are_a_prefix(
    path: Path, tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smolmem.store.sqlite.copies._PAGES", 20)
    Memory(path).close()
    writer = programs.start([__file__, "write", path], stdout=programs.DEVNULL, stderr=programs.DEVNULL)
    told: list[tuple[int, int]] = []
    lengths: list[int] = []
    try:
        with Memory(path, embedder="off") as memory:
            for number in range(5):
                enough = max(5, lengths[-1] + 1 if lengths else 0)
                deadline = time.monotonic() + 60
                while memory.stats().events < enough and time.monotonic() < deadline:
                    time.sleep(0.01)
                copy = tmp_path / f"copy{number}.db"
                memory._store.backup(copy, lambda *far: told.append(far))
                assert stat.S_IMODE(copy.stat().st_mode) == 0o600
                assert writer.poll() is None, "the writer must be writing"
                with Memory(copy, embedder="off") as kept:
                    assert kept.verify()
                    runs = kept.runs(limit=1000)
                    for run in runs:
                        numbers = [step.number for step in run.steps if step.kind == "action"]
                        assert numbers == list(range(1, len(numbers) + 1))
                    lengths.append(kept.stats().events)
                copy.unlink()
    finally:
        writer.kill()
        writer.wait()
    assert lengths == sorted(set(lengths))
    assert told[-1][0] == told[-1][1]
    assert sorted(file.name for file in tmp_path.iterdir() if "part" in file.name or "copy" in file.name) == []


def test_a_backup_that_fails_leaves_nothing(full: Path, tmp_path: Path) -> None:
    def stop(*_: int) -> None:
        raise RuntimeError("stop")

    with Memory(full, embedder="off") as memory:
        with pytest.raises(RuntimeError):
            memory._store.backup(tmp_path / "copy.db", stop)
        assert os.listdir(tmp_path) == []
        memory._store.backup(tmp_path / "copy.db")
        with Memory(tmp_path / "copy.db", embedder="off") as copy:
            assert picture(copy) == picture(memory)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit for the size of a file")
def test_a_backup_that_does_not_fit_names_the_copy_and_the_reason(full: Path, tmp_path: Path) -> None:
    program = """if True:
        import resource, signal, sys
        from smolmem import Memory, SmolmemError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with Memory(sys.argv[1], embedder="off") as memory:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
            try:
                memory.backup(sys.argv[2])
            except SmolmemError as error:
                print(error)
    """
    target = tmp_path / "copy.db"
    said = programs.run(["-c", program, str(full), str(target)], timeout=60).stdout
    assert said.startswith(f"{target} cannot be written: SQLITE_IOERR_WRITE.")
    assert os.listdir(tmp_path) == []


# --- doctor ---------------------------------------------------------------------------------------------------------


def found(memory: Memory, level: str, words: str) -> doctor.Finding | None:
    findings = doctor.examine(memory._journal).findings
    return next((one for one in findings if one.level == level and words in one.text), None)


def test_a_healthy_store_is_said_to_be_so_and_is_left_as_it_was(path: Path) -> None:
    with Memory(path, embedder="off") as memory:
        memory.attach(code_agent(code("final_answer(1)"))).run("Go")
        before = path.read_bytes(), Path(f"{path}-wal").read_bytes(), sorted(os.listdir(path.parent))
        diagnosis = doctor.examine(memory._journal)
        assert diagnosis, diagnosis
        assert {one.level for one in diagnosis.findings} <= {"ok", "hint"}
        assert (path.read_bytes(), Path(f"{path}-wal").read_bytes(), sorted(os.listdir(path.parent))) == before


def test_what_is_wrong_with_the_file_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Memory(path, embedder="off") as memory:
        agent = memory.attach(code_agent())
        agent.memory.steps.append(ActionStep(1, Timing(0.0), observations=os.urandom(8 << 20).hex()))
        assert found(memory, "ok", "contents") is not None
        path.chmod(0o644)
        wide = found(memory, "warning", "Other users of this machine")
        assert wide is not None
        assert wide.repair == f"chmod 600 {path}"
        path.chmod(0o600)
        monkeypatch.setattr(SqliteStore, "facts", lambda self: {"engine": "SQLite 3.44.0", "durability": "full"})
        assert found(memory, "problem", "WAL-reset") is not None
        monkeypatch.undo()
        monkeypatch.setattr(doctor, "_file_system", lambda path: "nfs4")
        assert found(memory, "problem", "network file system (nfs4)") is not None
        monkeypatch.undo()
        with open(f"{path}-wal", "ab") as log:
            log.truncate(80 << 20)
        assert found(memory, "hint", "write-ahead log") is not None
    with Memory(path, embedder="off") as memory:
        raw = apsw.Connection(str(path))
        raw.execute("CREATE TABLE x AS SELECT * FROM content; DROP TABLE x")
        raw.close()
        assert found(memory, "hint", "of the file are free") is not None


def test_damage_is_found_in_passing(path: Path) -> None:
    with Memory(path, embedder="off") as memory:
        memory.attach(code_agent(*[code("print('x' * 999)")] * 9, code("final_answer(1)"))).run("Go")
    data = bytearray(path.read_bytes())
    root = apsw.Connection(str(path)).execute("SELECT rootpage FROM sqlite_schema WHERE name = 'event_by_session'").get
    at = (root - 1) * 4096
    data[at + 8 : at + 40] = os.urandom(32)
    path.write_bytes(data)
    with Memory(path, embedder="off") as memory:
        diagnosis = doctor.examine(memory._journal)
    assert not diagnosis
    assert any("damaged" in one.text and "backup" in one.repair for one in diagnosis.findings)
    assert not doctor.examine_path(path)


def test_the_file_system_is_the_one_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        f"2 1 0:5 / {tmp_path} rw shared:1 - nfs4 host:/x rw\n"
        f"3 1 0:6 / {tmp_path}x rw - cifs host:/y rw\nnonsense\n"
    )
    assert doctor._file_system(tmp_path / "a.db", mounts) == "nfs4"
    assert doctor._file_system(Path("/a.db"), mounts) == "ext4"
    assert doctor._file_system(Path("/a.db"), tmp_path / "none") == ""


def test_what_is_wrong_with_the_environment_is_found(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    for version, level in (("1.9.2", "problem"), ("1.99.0", "hint"), ("1.24.0", "ok")):
        monkeypatch.setattr(doctor.compat, "SMOLAGENTS", version)
        assert found(memory, level, f"smolagents {version}") is not None
    monkeypatch.undo()
    monkeypatch.setenv("SMOLMEM_MODELS", "/nowhere")
    monkeypatch.setattr(doctor, "installed", lambda: False)
    assert "smolmem[semantic]" in str(found(memory, "hint", "words alone"))
    monkeypatch.setattr(doctor, "installed", lambda: True)
    assert "embedder='local'" in str(found(memory, "hint", "the local model is not on this machine"))
    usage = shutil.disk_usage("/")
    for free, level in ((5 << 20, "problem"), (500 << 20, "warning"), (50 << 30, "ok")):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage._replace(free=free))
        assert found(memory, level, "left on the disk") is not None
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (time.sleep(0.03), real(file)))
    assert "durability='normal'" in str(found(memory, "warning", "A synced write takes"))


def test_habits_are_found(full: Path, tmp_path: Path, clock: Any) -> None:
    shutil.copy(full, tmp_path / "a.db")
    with Memory(tmp_path / "a.db", embedder="off") as memory:
        killed = memory.runs(agent="payer")[0]
        assert f"memory.resume(agent, '{killed.id[:8]}')" in str(found(memory, "warning", "a killed process"))
        assert found(memory, "hint", "of this week did not finish") is not None
        assert found(memory, "warning", "failed with the same error") is None
        for _ in range(3):
            with pytest.raises(Exception, match="quota"):
                memory.attach(code_agent(ConnectionError("quota \x1b[31m"))).run("Fail")
        assert "3 of the last" in str(found(memory, "warning", "failed with the same error"))
        agent = memory.attach(code_agent())
        long = ActionStep(1, Timing(0.0), observations="z" * 300_000, token_usage=TokenUsage(70_000, 5))
        agent.memory.steps.append(long)
        assert "TokenBudget" in str(found(memory, "hint", "prompts of more than 50,000 tokens, up to 70,000"))
        assert "TrimObservations" in str(found(memory, "hint", "more than 200 kB of text"))
        first = memory.remember("Ann lives in Rome.")
        memory.remember("Ann speaks Italian.", sources=[first])
        memory.remember("Ann lives in Paris.", supersedes=first)
        assert "smolmem forget" in str(found(memory, "hint", "made from sources that are no longer current"))
        memory.remember("Soon over.", expires=timedelta(hours=1))
        clock.pass_by(3601)
        assert found(memory, "ok", "expired") is not None
        agent.memory.steps = [ActionStep(number, Timing(0.0), observations="a") for number in range(1002)]
        assert found(memory, "hint", "are not indexed yet") is not None
        console = Console(file=io.StringIO(), width=300)
        console.print(doctor.examine(memory._journal))
        assert "\x1b" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_doctor_is_quick_on_ten_thousand_runs(path: Path) -> None:
    with Memory(path, embedder="off") as memory:
        memory.attach(code_agent(code("print('x' * 3000)"), code("final_answer(1)"))).run("Go")
        raw = apsw.Connection(str(path))
        count = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})"
        for table, own, rows in (("run", "id", 10_000), ("step", "id", 30_000)):
            names = [row[1] for row in raw.execute(f"PRAGMA table_info({table})") if row[1] != own]
            made = "printf('%016x', i)" if table == "run" else "i + 100"
            raw.execute(
                f"{count.format(rows)} INSERT INTO {table} ({own}, {', '.join(names)}) "
                f"SELECT {made}, {', '.join(names)} FROM n, (SELECT * FROM {table} ORDER BY rowid DESC LIMIT 1)"
            )
        raw.close()
        began = time.process_time()
        doctor.examine(memory._journal)
        assert time.process_time() - began < 4  # two, where nobody else is at work


def test_doctor_reports_a_fork_as_unfinished_once_it_was_resumed(path: Path) -> None:
    with Memory(path, embedder="off") as memory:
        memory.attach(code_agent(code("x = 1"), code("final_answer(x)"))).run("Count")
        fork = memory.runs()[0].fork(step=1)
        assert found(memory, "hint", "did not finish") is None
        for _ in memory.stepwise(code_agent(code("y = 2"))):
            break
        assert found(memory, "hint", f"newest is {fork.id[:8]}") is not None


def outside(path: Path | str) -> str:
    diagnosis = doctor.examine_path(path)
    return " | ".join(f"{one.level}: {one.text} → {one.repair}" for one in diagnosis.findings)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: os.mkfifo(path), "not a regular file"),
        (lambda path: path.write_text("just some text " * 99), "is not a smolmem file"),
        (lambda path: path.write_bytes(b"SQLite format 3\0"), "is not a smolmem file"),
        (
            lambda path: (
                apsw.Connection(str(path)).execute("CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1)") and None
            ),
            "another program",
        ),
    ],
)
def test_a_file_that_is_no_store_is_explained_and_not_touched(path: Path, make: Any, said: str) -> None:
    make(path)
    before = path.read_bytes() if path.is_file() else os.path.lexists(path)
    told = outside(path)
    assert said in told
    assert told.startswith("problem")
    assert f"ok: smolagents {doctor.compat.SMOLAGENTS}." in told, "the environment is examined without a store, too"
    assert not doctor.examine_path(path)
    assert (path.read_bytes() if path.is_file() else os.path.lexists(path)) == before
    assert set(os.listdir(path.parent)) <= {"agent.db"}
    with pytest.raises(NotAStore):
        doctor.versions(path)


def test_a_url_of_something_else_is_explained() -> None:
    assert "not a store smolmem can open" in outside("mysql://host/db")
    assert "not a file name" in outside("")
    assert "mkdir -p" in outside("/no/such/folder/agent.db")


def test_newer_older_changed_and_locked_files_are_explained_and_not_touched(path: Path) -> None:
    newest = len(migrations("sqlite"))
    with Memory(path, embedder="off") as memory:
        memory.attach(code_agent(code("final_answer(1)"))).run("Go")
        assert doctor.versions(path) == (newest, newest)
    assert doctor.versions(path) == doctor.versions(f"sqlite:///{path}") == (newest, newest)
    assert outside(path).startswith("ok")

    def change(statement: str) -> bytes:
        raw = apsw.Connection(str(path))
        raw.execute(statement)
        raw.close()
        return path.read_bytes()

    before = change("PRAGMA user_version = 99")
    assert doctor.versions(path) == (99, newest)
    assert "written by a later smolmem (format 99" in outside(path)
    assert path.read_bytes() == before
    before = change(f"PRAGMA user_version = {newest}; CREATE VIEW planted AS SELECT 1")
    assert "schema that smolmem did not make (planted)" in outside(path)
    assert str(path) in outside(path)
    assert path.read_bytes() == before
    change("DROP VIEW planted")
    told = program("hold", path)
    assert "has locked" in told["said"]
    assert "Another process has locked" in told["said"]
    assert "fuser" in told["said"]
    assert outside(path).startswith("ok")


def test_the_format_is_read_where_it_is_only_in_the_log_yet(path: Path) -> None:
    with Memory(path, embedder="off") as memory:
        raw = memory._store._live()  # type: ignore[attr-defined]
        raw.execute("PRAGMA wal_autocheckpoint = 0")
        raw.execute("PRAGMA user_version = 77")
        assert doctor.versions(path)[0] == 77
        assert int.from_bytes(path.read_bytes()[60:64], "big") != 77
        raw.execute("BEGIN; PRAGMA user_version = 88")
        assert doctor.versions(path)[0] == 77
        raw.execute(f"ROLLBACK; PRAGMA user_version = {len(migrations('sqlite'))}")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_explained(path: Path) -> None:
    Memory(path).close()
    path.chmod(0)
    assert "check its permissions" in outside(path)


def test_a_store_that_was_opened_by_a_relative_path_is_exported_from_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Memory("agent.db", embedder="off") as memory:
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        memory.remember("here")
        assert export(memory._journal, "out").written["note"] == 1
    assert os.listdir(tmp_path / "other") == ["out"]


# --- programs -------------------------------------------------------------------------------------------------------


def cut(path: str) -> dict[str, Any]:
    """A run that is killed while it pays."""

    def work() -> None:
        with Memory(path, strict=True, embedder="off") as memory:
            memory.attach(payer(code("bill = 5\nprint(pay(amount=1))"), code("pay(amount=13)"))).run("Pay the bill")

    return {"status": os.waitpid(fork(work), 0)[1]}


def write(path: str) -> dict[str, Any]:
    number = 0
    while True:
        number += 1
        record(path, f"agent_{number}", 40, lambda step: None)


def hold(path: str) -> dict[str, Any]:
    reading, writing = os.pipe()

    def work() -> None:
        connection = apsw.Connection(path)
        connection.execute("BEGIN IMMEDIATE")
        os.write(writing, b"!")
        time.sleep(60)

    child = fork(work)
    os.read(reading, 1)
    try:
        return {"said": outside(path), "pid": child}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    programs: dict[str, Callable[..., dict[str, Any]]] = {
        "cut": cut,
        "write": write,
        "hold": hold,
        "exports": kill_exports,
        "backup": kill_backup,
        "loads": kill_loads,
    }
    print(json.dumps(programs[what](*words)))
