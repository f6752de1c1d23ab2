"""Encrypted means encrypted. `test_encryption.py` runs this file, in a process with the encrypting build of apsw."""

from __future__ import annotations

import json
import os
import pty
import re
import secrets
import shlex
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import programs
import pytest
from scripted import answer, calling_agent, calls, code, code_agent
from smolagents import tool

from smolmem import Memory, SmolmemError, Watch
from smolmem.cli.main import all_commands, main
from smolmem.core import faults
from smolmem.core.errors import Busy, Damaged, InvalidArgument, NotAStore, StoreError
from smolmem.doctor import examine_path, versions
from smolmem.store.sqlite.encryption import Key, connect
from smolmem.store.sqlite.part_files import unfinished_files
from smolmem.store.sqlite.rebuilding import rebuild
from smolmem.store.sqlite.rekeying import change_key
from smolmem.store.sqlite.sqlite_store import SqliteStore

KEY = "correct horse battery staple"
RAW = bytes(range(32))
RAW_KEY, OTHER_RAW_KEY = f"raw:{RAW.hex()}", f"raw:{'5a' * 32}"
"""Where no passphrase is tested: turning a passphrase into a key takes long, on purpose, at every connection."""
FIELDS = ("task", "code", "observation", "note", "tag", "toolname", "result", "argument", "alert", "answer", "scope")
MARKERS = {field: f"zq{field}marker" for field in FIELDS}
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SMOLMEM_KEY", "SMOLMEM_NEW_KEY", "SMOLMEM_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return folder / "agent.db"


@tool
def zqtoolnamemarker(text: str) -> str:
    """Looks something up.

    Args:
        text: what to look up.
    """
    return f"{MARKERS['result']} of {text}"


def fill(memory: Memory) -> None:
    """Puts a marker into everything that is stored."""
    said = code(f"x = '{MARKERS['code']}'\nprint('{MARKERS['observation']}')")
    rule = Watch(MARKERS["observation"], name=MARKERS["alert"], threshold=1, then=lambda _: None)
    agent = code_agent(said, code(f"final_answer('{MARKERS['answer']}')"))
    memory.attach(agent, watch=[rule], scope=f"acme/{MARKERS['scope']}").run(MARKERS["task"])
    called = calls(("zqtoolnamemarker", {"text": MARKERS["argument"]}))
    memory.attach(calling_agent(called, answer("done"), tools=[zqtoolnamemarker])).run("Look it up")
    memory.remember(f"a note with {MARKERS['note']}", tags=[MARKERS["tag"]])
    assert memory.alerts(scope="*")
    assert memory.recall(MARKERS["note"])


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A plain file with every marker in it."""
    path = tmp_path_factory.mktemp("filled") / "agent.db"
    with Memory(path, embedder="off") as memory:
        fill(memory)
    return path.read_bytes()


def files(*folders: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for folder in folders for file in sorted(folder.rglob("*")) if file.is_file()}


def found(content: dict[Path, bytes]) -> set[str]:
    """The fields whose marker is in a file, in any case, in UTF-8 or UTF-16."""
    text = b"".join(content.values()).lower()
    return {
        field for field, marker in MARKERS.items() for form in ("utf-8", "utf-16-le") if marker.encode(form) in text
    }


def sentence(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    assert not re.search(r"\. [A-Z]", text)
    return text


# --- nothing readable ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [KEY, RAW], ids=["passphrase", "raw"])
def test_no_word_is_in_the_file_the_log_temporary_files_or_the_backup(
    path: Path, tmp_path: Path, key: str | bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    for name in ("TMPDIR", "SQLITE_TMPDIR"):
        monkeypatch.setenv(name, str(temporary))
    with Memory(path, key=key, strict=True, embedder="off") as memory:
        fill(memory)
        memory.backup(path.parent / "copy.db")
        memory.doctor(), memory.verify()
        during = files(path.parent, temporary)
        names = {file.name for file in during} - {".ses"}  # which onnxruntime writes when it is imported
        assert names == {"agent.db", "agent.db-wal", "agent.db-shm", "copy.db"}
        assert during[Path(f"{path}-wal")]
        assert found(during) == set()
    after = files(path.parent)
    assert {file.name for file in after} == {"agent.db", "copy.db"}
    assert found(after) == set()
    for content in after.values():
        assert not content.startswith(b"SQLite")
        assert not re.search(rb"[ -~]{40}", content)  # no text at all
        assert len(zlib.compress(content)) > 0.99 * len(content)  # and no pattern, such as pages of zeros
    with Memory(path.parent / "copy.db", key=key, embedder="off") as copy:
        assert copy.verify()
        assert copy.stats().runs == 2


def test_the_same_search_finds_the_words_of_a_plain_file(path: Path) -> None:
    with Memory(path, strict=True, embedder="off") as memory:
        fill(memory)
        assert found(files(path.parent)) == set(FIELDS)


def test_every_connection_gets_the_key_first_and_keeps_temporary_data_in_memory(path: Path, tmp_path: Path) -> None:
    heard: dict[int, tuple[str, list[str]]] = {}
    kept: list[apsw.Connection] = []

    def listen(connection: apsw.Connection) -> None:
        said: list[str] = []
        heard[len(kept)] = (connection.filename, said)
        kept.append(connection)
        connection.exec_trace = lambda _, sql, __: said.append(sql) or True  # type: ignore[func-returns-value]

    apsw.connection_hooks.append(listen)
    try:
        with Memory(path, key=RAW_KEY, embedder="off") as memory:
            fill(memory)
            store: Any = memory._store
            store.select("default", "SELECT count(*) FROM runs")
            assert store._live().pragma("temp_store") == 2
            memory.backup(tmp_path / "copy.db"), memory.export(tmp_path / "export.zip"), memory.doctor()
            versions(path, RAW_KEY)
            assert examine_path(path, RAW_KEY)
    finally:
        apsw.connection_hooks.remove(listen)
    used = [said for name, said in heard.values() if name and said]
    assert len(used) >= 8
    for said in used:
        assert [text.split(" = ")[0] for text in said[:3]] == ["PRAGMA cipher", "PRAGMA hexkey", "PRAGMA temp_store"]


def test_an_export_is_plain_on_purpose(path: Path, tmp_path: Path) -> None:
    with Memory(path, key=KEY, embedder="off") as memory:
        fill(memory)
        memory.export(tmp_path / "export")
    assert found(files(tmp_path / "export"))
    assert "plain text" in (Memory.export.__doc__ or "")


# --- keys that do not fit -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The encrypted file and the write-ahead log that a killed process leaves."""
    folder = tmp_path_factory.mktemp("killed")
    with Memory(folder / "agent.db", key=RAW, embedder="off") as memory:
        fill(memory)
        return {name: (folder / name).read_bytes() for name in ("agent.db", "agent.db-wal")}


@pytest.fixture
def interrupted(tmp_path: Path, left_behind: dict[str, bytes]) -> Path:
    """An encrypted file as a killed process leaves it: with a write-ahead log."""
    folder = tmp_path / "interrupted"
    folder.mkdir()
    for name, content in left_behind.items():
        (folder / name).write_bytes(content)
    return folder / "agent.db"


OPEN: dict[str, Callable[[Path, Any], Any]] = {
    "Memory": lambda path, key: Memory(path, key=key).close(),
    "versions": versions,
    "encrypt": lambda path, key: change_key(path, None if key is None else Key(key), Key(b"n" * 32)),
}


@pytest.mark.parametrize("way", OPEN)
@pytest.mark.parametrize(
    ("key", "said"),
    [
        (None, "is encrypted, and was left as it is: give its key with key=… or SMOLMEM_KEY"),
        ("wrong", "The key does not open"),
        (OTHER_RAW_KEY, "The key does not open"),
        (RAW_KEY[:-1] + "e", "The key does not open"),
    ],
)
def test_a_wrong_or_missing_key_is_one_sentence_and_changes_nothing(
    interrupted: Path, way: str, key: str | bytes | None, said: str
) -> None:
    before = files(interrupted.parent)
    with pytest.raises(NotAStore) as caught:
        OPEN[way](interrupted, key)
    assert said in sentence(caught.value)
    assert files(interrupted.parent) == before
    diagnosis = examine_path(interrupted, key)
    assert not diagnosis
    assert files(interrupted.parent) == before
    with Memory(interrupted, key=RAW, embedder="off") as memory:
        assert memory.stats().runs == 2
        assert memory.verify()


def test_a_plain_file_is_not_opened_with_a_key(path: Path) -> None:
    Memory(path).close()
    before = files(path.parent)
    for way in ("Memory", "versions"):
        with pytest.raises(NotAStore, match="is not encrypted, but a key was given"):
            OPEN[way](path, KEY)
    assert files(path.parent) == before


def test_another_programs_file_is_refused_with_and_without_a_key(path: Path) -> None:
    path.write_bytes(secrets.token_bytes(8192))
    before = files(path.parent)
    for key in (None, KEY):
        with pytest.raises(NotAStore):
            Memory(path, key=key)
    theirs = path.with_name("theirs.db")
    other = apsw.Connection(str(theirs))
    Key(KEY).unlock(other)
    other.execute("CREATE TABLE theirs (a)")
    other.close()
    before[theirs] = theirs.read_bytes()
    with pytest.raises(NotAStore, match="another program"):
        Memory(theirs, key=KEY)
    assert files(path.parent) == before


def test_a_changed_byte_is_an_error_and_never_other_content(path: Path) -> None:
    with Memory(path, key=RAW, embedder="off") as memory:
        fill(memory)
    whole = path.read_bytes()
    with Memory(path, key=RAW, embedder="off") as memory:
        expected = [run.task for run in memory.runs(scope="*")]
    refused = 0
    for at in range(5, len(whole), 4096):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            with Memory(path, key=RAW, embedder="off") as memory:
                assert [run.task for run in memory.runs(scope="*")] == expected
                refused += not memory.verify()
        except (Damaged, NotAStore):
            refused += 1
    assert refused > 0.9 * len(whole) // 4096


def test_a_repair_of_a_damaged_file_saves_what_can_be_read_and_keeps_the_old_file(path: Path) -> None:
    with Memory(path, key=RAW, embedder="off") as memory:
        memory.attach(code_agent(code("print(1)"), code("final_answer(2)"))).run("Kept")
        memory.remember("a note that stays")
    root = _root_of(path, "call")
    whole = path.read_bytes()
    path.write_bytes(bad := whole[: (root - 1) * 4096 + 100] + bytes(40) + whole[(root - 1) * 4096 + 140 :])
    done = rebuild(path, Key(RAW))
    assert done.lost == ("call 1 to its end",)
    assert Path(done.backup).read_bytes() == bad
    assert not path.read_bytes().startswith(b"SQLite format 3")
    with Memory(path, key=RAW, embedder="off") as memory:
        assert memory.runs()[0].answer == 2
        assert [note.text for note in memory.notes()] == ["a note that stays"]


def _root_of(path: Path, table: str) -> int:
    connection = connect(str(path), apsw.SQLITE_OPEN_READWRITE, Key(RAW))
    root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).get
    connection.close()
    return int(root)


@pytest.mark.parametrize("key", ["", b"", b"short", RAW + b"x", "raw:12", "raw:" + "g" * 64, "\udcff", 7])
def test_a_malformed_key_is_refused_before_anything_is_opened(path: Path, key: Any) -> None:
    with pytest.raises(InvalidArgument, match="key"):
        Memory(path, key=key)
    assert files(path.parent) == {}


def test_an_empty_variable_does_not_mean_no_key(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMOLMEM_KEY", "")
    with pytest.raises(InvalidArgument, match="SMOLMEM_KEY is empty"):
        Memory(path)
    assert files(path.parent) == {}


def test_the_forms_of_a_key_are_the_same_key(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Memory(path, key=RAW).close()
    Memory(path, key=f"raw:{RAW.hex()}").close()
    monkeypatch.setenv("SMOLMEM_KEY", f"raw:{RAW.hex()}")
    Memory(path).close()
    with pytest.raises(NotAStore):
        Memory(path, key="given keys come before the variable")
    other = path.with_name("other.db")
    Memory(other, key="caf\u00e9 with a 'quote' and \0").close()
    Memory(other, key="cafe\u0301 with a 'quote' and \0").close()
    with pytest.raises(NotAStore):
        Memory(other, key="cafe\u0301 with a 'quote' and \0 ")


def test_the_key_is_in_no_message_and_no_representation(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    texts = [repr(Key(KEY)), str(Key(KEY))]
    with Memory(path, key=KEY, embedder="off") as memory:
        fill(memory)
        texts += [repr(memory), repr(memory.stats()), repr(memory.doctor()), memory._store.url, repr(memory._store)]
        with pytest.raises(Busy) as caught:
            change_key(path, Key(KEY), Key("another secret"))
        texts += traceback.format_exception(caught.value)
    for bad in (KEY + "x", "x" + KEY):
        with pytest.raises(SmolmemError) as wrong:
            Memory(path, key=bad)
        texts += [text for text in traceback.format_exception(wrong.value) if "key=" not in text]
    real = apsw.Connection.execute

    def refuse(self: Any, sql: str, *given: Any, **options: Any) -> Any:
        if sql.startswith("VACUUM"):
            raise apsw.CantOpenError(f"unable to open database: {given}")
        return real(self, sql, *given, **options)

    class Refusing(apsw.Connection):
        execute = refuse

    monkeypatch.setattr(apsw, "Connection", Refusing)
    with pytest.raises(StoreError) as failed:
        change_key(path, Key(KEY), Key("another secret"))
    texts += traceback.format_exception(failed.value)
    assert "unable to open database" in texts[-1]
    everything = "".join([*texts, caplog.text])
    for secret in (KEY, "another secret", RAW.hex()):
        assert secret not in everything.replace('Key("another secret")', "")
        assert secret.encode().hex() not in everything


# --- another key --------------------------------------------------------------------------------------------------


def content_of(path: Path, key: Any) -> tuple[Any, ...]:
    with Memory(path, key=key, embedder="off") as memory:
        assert memory.verify()
        runs = memory.runs(scope="*")
        found = [hit.text for hit in memory.recall(MARKERS["note"], scope="*")]
        return [(run.id, run.task, run.answer, len(run.steps)) for run in runs], found, memory.stats().passages


def test_a_file_is_encrypted_rekeyed_and_decrypted_with_all_its_content(path: Path) -> None:
    with Memory(path, embedder="off") as memory:
        fill(memory)
    os.chmod(path, 0o644)
    expected = content_of(path, None)
    reports: list[tuple[int, int]] = []
    for old, new in ((None, KEY), (KEY, RAW), (RAW, OTHER_RAW_KEY), (OTHER_RAW_KEY, None), (None, RAW)):
        change_key(path, old and Key(old), new and Key(new), lambda done, total: reports.append((done, total)))
        assert path.stat().st_mode & 0o777 == 0o600
        assert {file.name for file in files(path.parent)} <= {"agent.db", "agent.db-wal"}
        assert bool(found(files(path.parent))) == (new is None)
        if old is not None:
            with pytest.raises(NotAStore):
                Memory(path, key=old)
        assert content_of(path, new) == expected
    assert reports
    with pytest.raises(InvalidArgument, match="same"):
        change_key(path, Key(RAW), Key(RAW))


HOLD = """
import sys
from smolmem import Memory
print("opening", flush=True)
memory = Memory(sys.argv[1], key=sys.argv[2] or None, embedder="off")
print("open", flush=True)
sys.stdin.readline()
memory.remember("written by the other program")
memory.close()
"""


@pytest.mark.parametrize("key", [None, RAW_KEY])
def test_a_file_that_another_program_has_open_is_refused(
    path: Path, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smolmem.store.sqlite.replacing._WAIT", 0.05)
    Memory(path, key=key).close()
    with programs.start(["-c", HOLD, path, key or ""], stdin=programs.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() + other.stdout.readline() == "opening\nopen\n"
        with pytest.raises(Busy, match="open in another program, and was left as it is"):
            change_key(path, key and Key(key), Key(OTHER_RAW_KEY))
        other.communicate("go\n", timeout=60)
    with Memory(path, key=key, embedder="off") as memory:
        assert [note.text for note in memory.notes()] == ["written by the other program"]
        with pytest.raises(Busy):  # also within one process
            change_key(path, key and Key(key), Key(OTHER_RAW_KEY))
    assert [file.name for file in files(path.parent) if ".part" in file.name] == []


DIE = """
import os, sys
from pathlib import Path
from smolmem.core import faults
from smolmem.store.sqlite.encryption import Key, connect
from smolmem.store.sqlite.rebuilding import rebuild
from smolmem.store.sqlite.rekeying import change_key
faults.hook = lambda name: os.kill(os.getpid(), 9) if name == sys.argv[4] else None
old, new = (Key(text) if text else None for text in sys.argv[2:4])
change_key(Path(sys.argv[1]), old, new)
"""


@pytest.mark.parametrize("point", ["replace.begun", "replace.done", "replace.committed"])
@pytest.mark.parametrize(("old", "new"), [(None, RAW_KEY), (RAW_KEY, None), (RAW_KEY, OTHER_RAW_KEY)])
def test_a_kill_leaves_the_old_file_or_the_new_one(
    path: Path, filled: bytes, old: str | None, new: str | None, point: str
) -> None:
    path.write_bytes(filled)
    if old:
        change_key(path, None, Key(old))
    expected = content_of(path, old)
    done = programs.run(["-c", DIE, path, old or "", new or "", point])
    assert done.returncode == -9, done.stderr
    now = new if point == "replace.committed" else old
    assert content_of(path, now) == expected
    left = unfinished_files(path)
    assert bool(left) == (point != "replace.committed")
    with Memory(path, key=now, embedder="off") as memory:
        assert any("unfinished file" in one.text for one in memory.doctor().findings) == bool(left)
    rebuild(path, Key(now) if now else None)
    assert unfinished_files(path) == []


def test_who_waits_for_a_file_that_gets_a_key_does_not_write_to_the_old_one(path: Path) -> None:
    Memory(path, key=RAW_KEY).close()
    waiting: list[Any] = []

    def meanwhile(name: str) -> None:
        if name == "replace.done":
            for key in (RAW_KEY, OTHER_RAW_KEY):
                waiting.append(programs.start(["-c", HOLD, path, key], stdin=programs.PIPE))
            assert [program.stdout.readline() for program in waiting] == ["opening\n"] * 2
            time.sleep(1)  # both are at the lock, or were refused

    faults.hook = meanwhile
    try:
        change_key(path, Key(RAW_KEY), Key(OTHER_RAW_KEY))
    finally:
        faults.hook = None
    ends = [program.communicate("go\n", timeout=60) for program in waiting]
    assert "The key does not open" in ends[0][1]
    wrote = waiting[1].returncode == 0
    assert wrote or "The key does not open" in ends[1][1]  # it came before the new file did
    with Memory(path, key=OTHER_RAW_KEY, embedder="off") as memory:
        assert len(memory.notes()) == wrote
        assert memory.verify()


def test_a_failure_leaves_the_file_and_no_rest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Memory(path).close()
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("smolmem.store.sqlite.rekeying._check", full)
    with pytest.raises(StoreError, match="No space left"):
        change_key(path, None, Key(KEY))
    assert {file.name for file in files(path.parent)} <= {"agent.db", "agent.db-wal"}
    assert path.read_bytes() == before
    Memory(path).close()


def test_a_link_stays_a_link(path: Path) -> None:
    Memory(path).close()
    link = path.with_name("link.db")
    link.symlink_to(path)
    change_key(link, None, Key(RAW_KEY))
    assert link.is_symlink()
    Memory(path, key=RAW_KEY).close()


# --- processes ----------------------------------------------------------------------------------------------------


def test_a_forked_child_opens_the_file_with_the_key(path: Path) -> None:
    with Memory(path, key=RAW_KEY, embedder="off") as memory:
        child = os.fork()
        if not child:
            memory.remember("by the child")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert [note.text for note in memory.notes()] == ["by the child"]


CREATE = """
import sys
from smolmem.store.sqlite.encryption import Key, connect
from smolmem.store.sqlite.rebuilding import rebuild
from smolmem.store.sqlite.sqlite_store import SqliteStore
print("ready", flush=True)
sys.stdin.readline()
for path in sys.argv[2:]:
    SqliteStore(path, key=Key(sys.argv[1])).close()
"""


@pytest.mark.parametrize("empty", [False, True], ids=["missing", "empty"])
def test_many_processes_create_one_encrypted_file(path: Path, empty: bool) -> None:
    paths = [path.with_name(f"{number}.db") for number in range(15)]
    for new in paths if empty else ():
        new.touch(0o600)
    creators: list[Any] = [programs.start(["-c", CREATE, RAW_KEY, *paths], stdin=programs.PIPE) for _ in range(5)]
    for creator in creators:
        assert creator.stdout.readline() == "ready\n"
    for creator in creators:
        creator.stdin.write("go\n")
        creator.stdin.flush()
    assert [creator.communicate(timeout=120)[1] for creator in creators] == [""] * 5
    for new in paths:
        assert new.stat().st_mode & 0o777 == 0o600
        Memory(new, key=RAW_KEY).close()
    assert {file.name for file in files(path.parent)} == {new.name for new in paths}


# --- the command line ---------------------------------------------------------------------------------------------


@pytest.fixture
def in_folder(path: Path, filled: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(path.parent)
    Path("smolmem.db").write_bytes(filled)
    Path("smolmem.db").chmod(0o600)
    (path.parent / "key.txt").write_text(f"{RAW_KEY}\n")
    (path.parent / "new.txt").write_text(OTHER_RAW_KEY)
    return path.parent / "smolmem.db"


group = all_commands()
EXAMPLES = [example for name in ("encrypt", "decrypt", "rekey") for example in group.commands[name].examples]  # type: ignore[attr-defined]


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_runs(
    in_folder: Path, example: str, as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "encrypt" not in example:
        change_key(in_folder, None, Key(RAW_KEY))
    if "--key-file" not in example:
        monkeypatch.setenv("SMOLMEM_KEY", RAW_KEY)
        monkeypatch.setenv("SMOLMEM_NEW_KEY", OTHER_RAW_KEY)
    assert main([*shlex.split(example)[1:], *(["--json"] if as_json else [])]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert out.startswith("{" if as_json else "smolmem.db is ")
    if as_json:
        assert json.loads(out) == {"path": "smolmem.db", "encrypted": "decrypt" not in example}
    for name in ("SMOLMEM_KEY", "SMOLMEM_NEW_KEY"):
        monkeypatch.delenv(name, raising=False)
    key = RAW_KEY if "encrypt" in example else OTHER_RAW_KEY if "rekey" in example else None
    assert content_of(in_folder, key)[0]


def test_every_command_reads_an_encrypted_store_with_a_key(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["encrypt", "--key-file", "key.txt"]) == 0
    words = (
        *("runs", "steps", "replay", "show", "stats", "notes", "alerts", "verify", "doctor", "migrate"),
        *(f"search {MARKERS['note']}", f"context {MARKERS['note']}", "backup copy.db", "export export.zip"),
    )
    for line in words:
        assert main([*line.split(), "--key-file", "key.txt"]) == 0, (line, capsys.readouterr())
        for rest in ("copy.db", "export.zip"):
            (in_folder.parent / rest).unlink(missing_ok=True)
        monkeypatch.setenv("SMOLMEM_KEY", RAW_KEY)
        assert main(line.split()) == 0, (line, capsys.readouterr())
        for rest in ("copy.db", "export.zip"):
            (in_folder.parent / rest).unlink(missing_ok=True)
        monkeypatch.setenv("SMOLMEM_KEY", OTHER_RAW_KEY)
        capsys.readouterr()
        assert main(line.split()) in (1, 3)
        said = capsys.readouterr()
        assert "The key does not open" in said.out + said.err
        monkeypatch.delenv("SMOLMEM_KEY")
        assert main(line.split()) in (1, 3)
        said = capsys.readouterr()
        assert "is encrypted" in said.out + said.err
        assert not (in_folder.parent / "copy.db").exists()
    assert main(["demo", "demo.db", "--no-ui", "--key-file", "key.txt"]) == 0
    Memory("demo.db", key=RAW_KEY).close()
    assert main(["load", "none.zip", "--db", "x.db", "--key-file", "missing.txt"]) != 0
    assert main(["remember", "a word", "--create", "--db", "new.db", "--key-file", "key.txt"]) == 0
    Memory("new.db", key=RAW_KEY).close()


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("encrypt", 2, "no key was given: set SMOLMEM_KEY, or give --key-file PATH"),
        ("encrypt --key-file missing.txt", 2, "cannot be read"),
        ("encrypt --key-file empty.txt", 2, "is empty"),
        ("encrypt --key-file bytes.txt", 2, "is not text"),
        ("decrypt --key-file key.txt", 3, "is not encrypted"),
        ("rekey --key-file key.txt", 3, "is not encrypted"),
        ("encrypt --db missing.db --key-file key.txt", 3, "no store at missing.db"),
        ("encrypt --db key.txt --key-file key.txt", 3, "encrypted already or not a smolmem file"),
        ("encrypt --db . --key-file key.txt", 3, "is not a file"),
        ("runs --key-file key.txt", 3, "is not encrypted, but a key was given"),
        ("encrypt --key secret", 2, "No such option"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    in_folder: Path, line: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_folder.parent / "empty.txt").write_text("\n")
    (in_folder.parent / "bytes.txt").write_bytes(b"\xff\xfe" * 16)
    before = files(in_folder.parent)
    assert main(line.split()) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert files(in_folder.parent) == before


def typed(words: list[str], *answers: str) -> tuple[int, str]:
    """Runs a command on a terminal, and types an answer at each question."""
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, "-m", "smolmem", *words])
    shown, answered, left = b"", 0, list(answers)
    while True:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # the command has ended
            break
        if left and shown[answered:].rstrip().endswith(b":"):
            os.write(terminal, f"{left.pop(0)}\n".encode())
            answered = len(shown)
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), shown.decode()


def test_a_terminal_asks_for_keys_and_does_not_show_them(in_folder: Path) -> None:
    for words, answers, done in (
        (["encrypt"], (KEY, KEY), "is encrypted"),
        (["runs"], (KEY,), "finished"),
        (["doctor"], (KEY,), "encrypted (aegis"),
        (["rekey"], (KEY, "zweites", "zweites"), "with the new key"),
        (["decrypt"], ("zweites",), "is decrypted"),
    ):
        code, shown = typed(words, *answers)
        assert code == 0, shown
        assert done in " ".join(shown.split())
        assert "Key of smolmem.db" in shown
        assert KEY not in shown
        assert "zweites" not in shown
    assert content_of(in_folder, None)[0]


def test_a_completion_reads_an_encrypted_store_and_asks_nothing(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from smolmem.cli.commands import complete_run
    from smolmem.cli.environment import Environment

    change_key(in_folder, None, Key(RAW_KEY))
    context = group.make_context("smolmem", ["runs"], obj=Environment())
    assert complete_run(context, group.params[0], "") == []
    monkeypatch.setenv("SMOLMEM_KEY", RAW_KEY)
    assert len(complete_run(context, group.params[0], "")) == 2


# --- the inspector ------------------------------------------------------------------------------------------------


def test_the_inspector_takes_the_key(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import uvicorn

    from smolmem.inspector import serve

    opened: list[Any] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: opened.append(sockets))
    Memory(path, key=RAW_KEY).close()
    serve.serve(str(path), port=0, open_browser=False, key=RAW_KEY)
    assert opened
    with pytest.raises(NotAStore):
        serve.serve(str(path), port=0, open_browser=False)


@pytest.fixture(autouse=True)
def connections_are_closed() -> Iterator[None]:
    yield
    assert [connection for connection in apsw.connections() if connection.filename] == []


def test_the_cipher_is_the_documented_one(path: Path) -> None:
    store = SqliteStore(str(path), key=Key(KEY))
    try:
        assert store.encrypted
        assert store._live().execute("PRAGMA cipher").get == "aegis"
    finally:
        store.close()
    text = (HERE.parent / "SECURITY.md").read_text(encoding="utf-8")
    assert "AEGIS-256" in text
