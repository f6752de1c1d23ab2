"""Kill it, tear its files, fill its disk, open it from many processes: nothing acknowledged is lost."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import programs
import pytest
from scripted import Scripted, answer, calling_agent, calls, code, code_agent
from smolagents import CodeAgent, tool

from smolmem import Memory, SmolmemError
from smolmem.cli.environment import Environment
from smolmem.cli.main import main
from smolmem.core import faults
from smolmem.core.encoding import codec, step_facts
from smolmem.core.errors import Busy, Damaged, NotAStore, StoreError, TooNew, Unwritable
from smolmem.store.journal import Journal
from smolmem.store.sqlite.driver_errors import explained

TORTURE = bool(os.environ.get("SMOLMEM_TORTURE"))
CASES = 250 if TORTURE else 60
"""Damaged files and logs that a test tries."""
KILLS = 100
"""Processes that a test kills while they record."""
HERE = Path(__file__).parent
BASE = apsw.vfs_names()[0]


def workers(*words: object) -> dict[str, int]:
    done = programs.run([HERE / "workers.py", *words], timeout=1800 if TORTURE else 250)
    assert done.returncode == 0, done.stderr
    assert "locked" not in done.stderr
    assert "could not save" not in done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.promise("D1")
@pytest.mark.parametrize("seed", range(20 if TORTURE else 2))
def test_random_kills_lose_nothing_that_was_acknowledged(
    path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    record_property("cases", KILLS)
    record_property("seeds", f"{seed}–{seed}")
    told = workers("kill", path, KILLS, seed)
    assert told["promised"] > KILLS
    assert (told["kills"], told["lost"], told["damaged"]) == (KILLS, 0, 0)


@pytest.mark.promise("D6")
def test_many_processes_write_one_file_without_loss_or_doubles(
    path: Path, record_property: Callable[[str, object], None]
) -> None:
    processes, steps = (16, 500) if TORTURE else (8, 100)
    record_property("cases", processes * steps)
    told = workers("write", path, processes, steps)
    assert told == {"failed": 0, "right": processes, "runs": processes, "damaged": 0}


@pytest.mark.promise("D10")
@pytest.mark.parametrize("old", [None, 1, 9, 11])
def test_a_store_whose_creation_or_upgrade_dies_at_any_statement_is_whole_or_as_it_was(
    path: Path, old: int | None
) -> None:
    if old is not None:
        shutil.copy(HERE / f"files/format-{old}.sqlite", path)
    told = workers("upgrade", path, 1 if TORTURE else 3)
    assert told["died"] > (10 if TORTURE else 4)
    assert told["damaged"] == 0


@pytest.mark.promise("D10")
def test_a_file_of_every_released_format_opens(tmp_path: Path) -> None:
    files = sorted(HERE.glob("files/format-*.sqlite"))
    assert [file.stem for file in files] == [f"format-{old}" for old in (1, 10, 11, 2, 3, 8, 9)]
    for file in files:
        shutil.copy(file, tmp_path / "old.db")
        with Memory(tmp_path / "old.db") as memory:
            (run,) = memory.runs()
            assert (run.title, run.status, run.answer) == ("Count to three", "finished", [1, 2, 3])
            assert [step.kind for step in run.steps] == ["task", "action", "action"]
            assert memory.verify()


@pytest.mark.promise("D10")
def test_a_newer_file_is_refused_and_left_as_it_was(path: Path) -> None:
    Memory(path).close()
    raw = apsw.Connection(str(path))
    raw.pragma("user_version", 99)
    raw.close()
    before = path.read_bytes()
    with pytest.raises(TooNew, match=r"agent\.db.*upgrade smolmem"):
        Memory(path)
    assert path.read_bytes() == before


# --- D3: the log ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """A store as a crash leaves it: a small file and a long log."""
    path = tmp_path_factory.mktemp("log") / "agent.db"
    with Memory(path) as memory:
        agent = memory.attach(code_agent(*[code(f"print({i})") for i in range(12)], code("final_answer(1)")))
        agent.run("Write a log")
        log = path.with_name("agent.db-wal")
        return path.read_bytes(), log.read_bytes()


@pytest.mark.promise("D3")
@pytest.mark.parametrize("part", range(6 if TORTURE else 1))
def test_a_torn_or_garbled_log_gives_a_clean_prefix(
    tmp_path: Path, logged: tuple[bytes, bytes], part: int, record_property: Callable[[str, object], None]
) -> None:
    record_property("cases", CASES)
    record_property("seeds", f"{part}–{part}")
    file, log = logged
    chance = random.Random(part)
    lengths = set()
    for _ in range(CASES):
        path = tmp_path / "agent.db"
        cut = chance.randrange(len(log))
        torn = bytearray(log[:cut] if chance.random() < 0.5 else log)
        for _ in range(chance.choice([0, 1, 1, 50])):
            torn[chance.randrange(cut, len(torn)) if len(torn) > cut else -1 :][:1] = b"\x55"
            if torn:
                torn[min(cut, len(torn) - 1)] ^= chance.randrange(1, 256)
        path.write_bytes(file)
        path.with_name("agent.db-wal").write_bytes(torn)
        path.with_name("agent.db-shm").unlink(missing_ok=True)
        with Memory(path) as memory:
            runs = memory.runs()
            numbers = [step.number for run in runs for step in run.steps if step.kind == "action"]
            assert numbers == list(range(1, len(numbers) + 1))
            assert memory.verify()
            lengths.add(len(numbers))
    assert len(lengths) > 5


# --- D4: the file ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "agent.db"
    with Memory(path) as memory:
        agent = memory.attach(code_agent(code("print('one')"), code("1 / 0"), code("final_answer([1, 'a'])")))
        agent.run("Make a file")
        other = memory.attach(calling_agent(calls(("weather", {"city": "Oslo"})), answer("mild")))
        other.run("And another run")
    return path.read_bytes()


def content(memory: Memory) -> list[Any]:
    """All that a user can read."""
    return [
        [
            {name: value for name, value in vars(run).items() if not name.startswith("_")},
            run.answer,
            repr(run.failure),
        ]
        + [
            (repr(step), step.text, codec.encode(step.to_smolagents()).key, sent(step.to_smolagents()))
            for step in run.steps
        ]
        for run in memory.runs()
    ]


def sent(step: Any) -> str:
    return repr(list(getattr(step, "model_input_messages", None) or []))


@pytest.mark.promise("D4")
@pytest.mark.parametrize("part", range(8 if TORTURE else 1))
def test_a_damaged_file_gives_a_clear_error_and_never_wrong_content(
    tmp_path: Path, whole: bytes, part: int, record_property: Callable[[str, object], None]
) -> None:
    record_property("cases", CASES)
    record_property("seeds", f"{part}–{part}")
    path = tmp_path / "agent.db"
    path.write_bytes(whole)
    with Memory(path) as memory:
        right = content(memory)
    whole = path.read_bytes()
    chance = random.Random(part)
    outcomes = {"refused": 0, "found": 0, "harmless": 0}
    for _ in range(CASES):
        bad = bytearray(whole)
        for _ in range(chance.choice([1, 1, 3, 20])):
            bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.1:
            bad = bad[: chance.randrange(len(bad))]
        outcomes[judge(path, bytes(bad), right)] += 1
    assert min(outcomes.values()) > 0


def judge(path: Path, bad: bytes, right: list[Any]) -> str:
    for leftover in ("agent.db-wal", "agent.db-shm"):
        path.with_name(leftover).unlink(missing_ok=True)
    path.write_bytes(bad)
    try:
        memory = Memory(path)
    except SmolmemError as error:
        assert str(path) in str(error)
        assert path.read_bytes() == bad
        return "refused"
    with memory:
        report = memory.verify()
        try:
            read = content(memory)
        except SmolmemError as error:
            assert str(path) in str(error)
            assert not report, "an error that verify does not find"
            return "found"
        if read != right:
            assert not report, "changed content that verify does not find"
            known = [item for run in right for item in run]
            assert all(item in known for run in read for item in run), "wrong content was read without an error"
        return "harmless" if report else "found"


@pytest.mark.promise("D4")
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("text", lambda path: path.write_text("just some notes, longer than a header " * 9)),
        ("short", lambda path: path.write_bytes(b"SQLite format 3\0")),
        (
            "foreign",
            lambda path: apsw.Connection(str(path)).execute("CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1)"),
        ),
        ("folder", lambda path: path.mkdir()),
        ("fifo", lambda path: os.mkfifo(path)),
    ],
)
def test_what_is_not_ours_is_refused_and_left_as_it_was(path: Path, name: str, make: Any) -> None:
    made = make(path)
    del made
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(NotAStore, match=r"agent\.db.*give (another path|the path of a file)"):
        Memory(path)
    assert (path.read_bytes() if path.is_file() else b"") == before
    assert os.listdir(path.parent) == ["agent.db"]


@pytest.mark.promise("D4")
@pytest.mark.parametrize("url", ["mysql://host/db", "", "a\0b", ":memory:", "https://example.com/x.db"])
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(NotAStore, match=r"agent\.db"):
        Memory(url)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="no/such"):
        Memory(tmp_path / "no" / "such" / "agent.db")
    assert os.listdir(tmp_path) == []


def test_the_file_is_for_its_owner_alone(path: Path) -> None:
    with Memory(path) as memory:
        memory.attach(code_agent(code("final_answer(1)"))).run("Go")
        modes = {file.name: oct(file.stat().st_mode & 0o777) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(["agent.db", "agent.db-wal", "agent.db-shm"], "0o600")


@pytest.mark.promise("S13")
@pytest.mark.parametrize(
    "planted",
    [
        "CREATE TRIGGER t AFTER INSERT ON event BEGIN DELETE FROM step; END",
        "CREATE VIEW steps AS SELECT * FROM step",
        "DROP INDEX run_open; CREATE INDEX run_open ON run (abs(began))",
        "ALTER TABLE run ADD COLUMN extra TEXT DEFAULT 'x'",
    ],
)
def test_a_schema_that_is_not_ours_is_refused(path: Path, planted: str) -> None:
    Memory(path).close()
    raw = apsw.Connection(str(path))
    raw.execute(planted)
    raw.close()
    before = path.read_bytes()
    with pytest.raises(Damaged, match="schema that smolmem did not make"):
        Memory(path)
    assert path.read_bytes() == before


# --- D5, D7: what goes wrong while an agent runs --------------------------------------------------------------------


def agents() -> dict[str, tuple[Any, str]]:
    """Agents that leave every type of step, fresh each time, and what each must answer."""
    child = code_agent(code("final_answer('child')"), name="helper", description="helps")
    manager = CodeAgent(
        tools=[],
        model=Scripted(code("r = helper(task='t')"), code("final_answer('managed')")),
        managed_agents=[child],
        verbosity_level=0,
    )
    return {
        "code": (code_agent(code("x = 1"), code("1 / 0"), "no code at all", code("final_answer('code')")), "code"),
        "calling": (
            calling_agent(
                calls(("weather", {"city": "nowhere"})),
                calls(("weather", {"city": "a"}), ("weather", {"city": "b"})),
                answer("calling"),
            ),
            "calling",
        ),
        "planning": (
            code_agent("plan", code("x = 1"), "plan 2", code("final_answer('planning')"), planning_interval=1),
            "planning",
        ),
        "max_steps": (code_agent(code("x = 1"), "max_steps", max_steps=1), "max_steps"),
        "managed": (manager, "managed"),
        "stream": (code_agent(code("x = 1"), code("final_answer('stream')"), stream_outputs=True), "stream"),
    }


KINDS = sorted(agents())


def talk(agent: Any) -> list[str]:
    return [str(prompt) for prompt in agent.model.prompts]


@pytest.mark.promise("D7")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("site", ["save", "encode", "facts", "stored", "write.begun", "write.done", "write.committed"])
def test_an_error_at_any_write_site_changes_nothing_for_the_agent(
    path: Path, kind: str, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, expected = agents()[kind]
    assert str(plain.run("Go")) == expected

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"planted at {site}")

    with Memory(path) as memory:
        agent = memory.attach(agents()[kind][0])
        if site in ("save", "stored"):
            monkeypatch.setattr(Journal, site, fail)
        elif site in ("encode", "facts"):
            monkeypatch.setattr(codec if site == "encode" else step_facts, site, fail)
        else:
            faults.hook = lambda name: fail() if name == site else None
        assert str(agent.run("Go")) == expected
        assert talk(agent) == talk(plain)
        assert memory.stats().failed_writes > 0
        monkeypatch.undo()
        faults.hook = None
        memory.flush()


@pytest.mark.promise("D7")
@pytest.mark.parametrize("kind", KINDS)
def test_recording_leaves_the_conversation_as_it_is(memory: Memory, kind: str) -> None:
    plain, expected = agents()[kind]
    agent = memory.attach(agents()[kind][0])
    assert str(plain.run("Go")) == str(agent.run("Go")) == expected
    assert talk(agent) == talk(plain)


class Faulty(apsw.VFS):
    """The real file system, but the n-th operation that changes a file fails: once, or from then on."""

    def __init__(self) -> None:
        self.countdown = -1
        self.lasting = False
        self.error: type[apsw.Error] = apsw.IOError
        super().__init__("faulty", BASE, makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> Any:
        return FaultyFile(self, name, flags)

    def step(self) -> None:
        if self.countdown == 0:
            if not self.lasting:
                self.countdown = -1
            raise self.error("planted")
        if self.countdown > 0:
            self.countdown -= 1


class FaultyFile(apsw.VFSFile):
    def __init__(self, vfs: Faulty, name: Any, flags: Any) -> None:
        self.vfs = vfs
        super().__init__(BASE, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self.vfs.step()
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self.vfs.step()
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:
        self.vfs.step()
        super().xTruncate(size)


@pytest.fixture
def faulty() -> Iterator[Faulty]:
    vfs = Faulty()
    try:
        yield vfs
    finally:
        vfs.countdown = -1
        vfs.unregister()


@pytest.mark.promise("D5")
@pytest.mark.parametrize("error", [apsw.IOError, apsw.FullError])
@pytest.mark.parametrize("lasting", [False, True])
def test_a_failing_disk_ends_no_run_and_loses_no_earlier_step(
    tmp_path: Path,
    faulty: Faulty,
    error: type[apsw.Error],
    lasting: bool,
    record_property: Callable[[str, object], None],
) -> None:
    numbers = range(0, 90, 1 if TORTURE else 7)
    record_property("cases", len(numbers))
    for number in numbers:
        path = tmp_path / f"{number}.db"
        memory = Memory(path)
        agent = memory.attach(code_agent(code("x = 1"), code("x = 2"), code("final_answer(x)")))
        faulty.error, faulty.lasting, faulty.countdown = error, lasting, number
        safe = 0
        for event in agent.run("Go on", stream=True):
            failed = memory.stats().failed_writes
            safe = len(agent.memory.steps) if not failed else safe
        assert event.output == 2
        hit = faulty.countdown <= 0
        assert bool(memory.stats().failed_writes) <= hit
        if not lasting:
            memory.close()
        faulty.countdown = -1
        memory._store.close()
        with Memory(path) as again:
            assert again.verify()
            kept = sum(len(run.steps) for run in again.runs())
            assert kept >= safe
            assert kept == 4 or lasting


@pytest.mark.promise("D5")
def test_strict_raises_what_otherwise_is_counted(path: Path, faulty: Faulty) -> None:
    memory = Memory(path, strict=True)
    agent = memory.attach(code_agent(code("final_answer(1)")))
    faulty.error, faulty.lasting, faulty.countdown = apsw.FullError, True, 0
    with pytest.raises(Unwritable, match=r"agent\.db.*no space left.*[Ff]ree some space"):
        agent.run("Full")
    faulty.countdown = -1
    memory.close()


@pytest.mark.promise("D5")
@pytest.mark.parametrize("error", [apsw.IOError, apsw.FullError])
def test_a_migration_on_a_full_disk_says_so_and_leaves_the_file_alone(
    path: Path,
    faulty: Faulty,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: type[apsw.Error],
) -> None:
    shutil.copy(Path(__file__).parent / "files/format-2.sqlite", path)
    before = path.read_bytes()
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=4096))
    faulty.error, faulty.lasting, faulty.countdown = error, True, 0
    assert main(["migrate", "--db", str(path)]) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "there is no space left on the disk" in said
    assert [file.name for file in path.parent.glob(f"{path.name}*format*")] == []
    assert path.read_bytes() == before


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit for the size of a file")
@pytest.mark.promise("D5")
def test_a_migration_that_fails_after_its_copy_leaves_no_copy(path: Path) -> None:
    shutil.copy(Path(__file__).parent / "files/format-1.sqlite", path)
    before = path.read_bytes()
    program = """if True:
        import resource, signal, sys
        from smolmem.cli.main import main
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
        sys.exit(main(["migrate", "--db", sys.argv[1]]))
    """
    done = programs.run(["-c", program, str(path), str(len(before) + 4096)], timeout=60)
    assert done.returncode == 3
    assert "cannot be opened" in done.stderr
    assert list(path.parent.glob("*.format-*")) == []
    assert path.read_bytes() == before


def test_a_new_store_that_a_failed_command_leaves_empty_is_removed_with_its_log(tmp_path: Path) -> None:
    path, env = tmp_path / "new.db", Environment()
    env.db = str(path)
    with pytest.raises(ValueError, match="planted"), env.closing, env.open_or_create():
        other = apsw.Connection(str(path))
        other.execute("SELECT count(*) FROM run")  # like a full disk, keeps the log from being emptied and deleted
        raise ValueError("planted")
    assert list(tmp_path.glob("new.db*")) == []
    other.close()


@pytest.mark.promise("D5")
def test_a_failure_is_said_once_and_its_end_too(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    left = [5]

    def fail(name: str) -> None:
        if name == "write.begun" and left[0]:
            left[0] -= 1
            raise OSError("planted")

    with Memory(path) as memory:
        agent = memory.attach(code_agent(*[code("x = 1")] * 8, code("final_answer(1)")))
        faults.hook = fail
        agent.run("Say it once")
        assert memory.stats().failed_writes == 5
        assert len(memory.runs()[0].steps) == 10
        assert memory.verify()
    assert [record.message.split()[1:3] for record in caplog.records] == [["could", "not"], ["has", "now"]]


@pytest.mark.promise("D5")
def test_calls_that_could_not_be_recorded_are_said_once_per_outage(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    def pay(number: int) -> str:
        """Pays.

        Args:
            number: what.
        """
        return f"paid {number}"

    def fail(name: str) -> None:
        raise OSError("planted")

    with Memory(path) as memory:
        agent = code_agent(
            *[*[code(f"pay({number})") for number in range(3)], code("final_answer(1)")] * 2, tools=[pay]
        )
        memory.attach(agent)
        for outage in (1, 2):
            faults.hook = fail
            agent.run("Pay")
            faults.hook = None
            memory.flush()
            said = [record.message for record in caplog.records]
            assert len([line for line in said if "could not record that pay is called" in line]) == outage
            assert len([line for line in said if "has now saved" in line]) == outage


@pytest.mark.promise("D5")
def test_runs_that_could_not_be_saved_are_saved_later_each_to_its_own(path: Path) -> None:
    def fail(name: str) -> None:
        raise OSError("planted")

    with Memory(path) as memory:
        agent = memory.attach(code_agent(code("x = 1"), *[code("final_answer(1)")] * 3))
        faults.hook = fail
        agent.run("First")
        agent.run("Second")
        faults.hook = None
        agent.run("Third")
        assert [(run.title, len(run.steps), run.status, run.answer) for run in memory.runs()] == [
            ("Third", 2, "finished", 1),
            ("Second", 2, "finished", 1),
            ("First", 3, "finished", 1),
        ]
        assert memory.verify()


@pytest.mark.promise("D5")
def test_a_locked_file_is_named_and_the_agent_is_not_held_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smolmem.store.sqlite.sqlite_store.BUSY_SECONDS", 0.1)
    with Memory(path) as memory:
        agent = memory.attach(code_agent(code("x = 1"), code("final_answer(x)")))
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        wait = memory._store._be_patient  # type: ignore[attr-defined]
        monkeypatch.setattr(memory._store, "_be_patient", lambda seconds: wait(min(seconds, 0.05)))
        memory._store._be_patient(0.05)  # type: ignore[attr-defined]
        assert agent.run("Wait") == 1
        assert isinstance(memory._failures.last, Busy)
        assert "agent.db" in str(memory._failures.last)
        other.execute("ROLLBACK")
        other.close()
        memory.flush()
        assert len(memory.runs()[0].steps) == 3


def test_a_closed_memory_says_how_to_open_it_again(path: Path) -> None:
    memory = Memory(path)
    memory.close()
    with pytest.raises(StoreError, match="open it again"):
        memory.runs()


def test_close_hands_the_agents_back(path: Path) -> None:
    agent = code_agent(code("final_answer(1)"))
    with Memory(path) as memory:
        memory.attach(agent)
    assert agent.run("Unrecorded") == 1
    with Memory(path) as memory:
        assert memory.runs() == []


@pytest.mark.promise("D16")
def test_the_end_of_a_with_block_on_a_full_disk_costs_no_answer_and_hands_all_agents_back(
    path: Path, faulty: Faulty, caplog: pytest.LogCaptureFixture
) -> None:
    agents = [code_agent(code(f"final_answer({number})")) for number in range(3)]
    plain = [type(agent.memory.steps) for agent in agents]

    def answers() -> list[Any]:
        with Memory(path, embedder="off") as memory:
            for agent in agents:
                memory.attach(agent)
            faulty.error, faulty.lasting, faulty.countdown = apsw.FullError, True, 0
            return [agent.run("Go") for agent in agents]

    assert answers() == [0, 1, 2]
    assert "could not write the last steps" in caplog.text
    assert [type(agent.memory.steps) for agent in agents] == plain


@pytest.mark.promise("D5")
def test_a_full_disk_and_a_lost_race_for_the_log_are_named_whatever_the_driver_calls_them(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (apsw.IOError("disk I/O error"), apsw.CantOpenError("unable to open database file")):
        assert "no space left" not in str(explained(error, "opening", path))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=4096))
    for error in (apsw.IOError("disk I/O error"), apsw.CantOpenError("unable to open database file")):
        said = explained(error, f"{path} cannot be opened", path)
        assert isinstance(said, Unwritable)
        assert re.match(rf"{path} cannot be opened: .*no space left .* {path.parent}\. Free some space", str(said))
    assert isinstance(explained(apsw.ProtocolError("locking protocol"), "reading", path), Busy)


def test_a_forked_process_does_not_take_the_answer_of_a_step_that_its_parent_made_by_hand(path: Path) -> None:
    script = (
        "import os, sys\n"
        "from scripted import code, code_agent; from smolagents import ActionStep, TaskStep, Timing\n"
        "from smolmem import Memory\n"
        "memory = Memory(sys.argv[1])\n"
        "agent = memory.attach(code_agent(code('final_answer(42)'), code('x = 1')))\n"
        "agent.python_executor.send_tools(agent.tools)\n"
        "agent.memory.steps.append(TaskStep(task='parent'))\n"
        "agent.step(ActionStep(step_number=1, timing=Timing(0.0)))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    agent.memory.steps.append(TaskStep(task='child'))\n"
        "    agent.memory.steps.append(ActionStep(step_number=1, timing=Timing(0.0, 1.0), observations='seen'))\n"
        "    memory.close()\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    programs.run(["-c", script, path], check=True)
    with Memory(path) as memory:
        (run,) = memory.runs(text="child")
        assert run.answer is None


def test_a_process_that_is_forked_while_a_thread_of_its_parent_resumes_a_run_records(path: Path) -> None:
    script = (
        "import os, sys, threading\n"
        "from scripted import code, code_agent; from smolmem import Memory\n"
        "from smolmem.agents.recorder import recorder_of\n"
        "memory = Memory(sys.argv[1])\n"
        "agent = memory.attach(code_agent(code('final_answer(1)')))\n"
        "entered, leave = threading.Event(), threading.Event()\n"
        "def adopt():\n"
        "    with recorder_of(agent).steps.paused():\n"
        "        entered.set(); leave.wait()\n"
        "adopting = threading.Thread(target=adopt)\n"
        "adopting.start(); entered.wait()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    agent.run('child')\n"
        "    memory.close()\n"
        "    os._exit(0)\n"
        "leave.set(); adopting.join(); os.waitpid(child, 0)\n"
    )
    programs.run(["-c", script, path], check=True)
    with Memory(path) as memory:
        (run,) = memory.runs(text="child")
        assert (run.status, run.answer) == ("finished", 1)
        assert memory.verify()


def test_a_forked_process_writes_through_a_connection_of_its_own(path: Path) -> None:
    script = (
        "import os, sys\n"
        "from scripted import code, code_agent; from smolmem import Memory\n"
        "memory = Memory(sys.argv[1])\n"
        "agent = memory.attach(code_agent(code('final_answer(1)'), code('final_answer(2)')))\n"
        "agent.run('parent')\n"
        "child = os.fork()\n"
        "agent.run('child' if child == 0 else 'parent again')\n"
        "os._exit(0) if child == 0 else os.waitpid(child, 0)\n"
    )
    programs.run(["-c", script, path], check=True)
    with Memory(path) as memory:
        assert sorted(run.title for run in memory.runs()) == ["child", "parent", "parent again"]
        assert memory.verify()
