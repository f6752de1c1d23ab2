"""Encryption on the encrypting build of apsw, which `make test` installs beside the plain one; and without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from smolmem import Memory, doctor
from smolmem.cli.main import main
from smolmem.core.errors import StoreError
from smolmem.store.sqlite.encryption import Key, encrypting_build
from smolmem.store.sqlite.rekeying import change_key

HERE = Path(__file__).parent
TORTURE = bool(os.environ.get("SMOLMEM_TORTURE"))
ENCRYPTING = Path(sys.prefix) / "encrypting"
"""Where `make` installs the encrypting build of apsw."""
FILE_TESTS = (
    *("holds_its_lock", "does_not_unlock", "never_opens_the_file", "new_file_is_private"),  # of test_locks
    *("opening_again", "sees_each_step", "all_or_nothing", "threads_share", "stored_once", "revisions_and_removals"),
    *("runs_by_tag", "stats_count", "survive_the_store"),
)
"""Words of the names of those tests that every store passes and that depend on the file."""
with_build = pytest.mark.skipif(
    not ENCRYPTING.exists(), reason="`make .venv/encrypting` installs the encrypting build of apsw"
)
plain_build = pytest.mark.skipif(encrypting_build() is not None, reason="the installed apsw encrypts")


def run_tests(*names: str, key: str | None = None) -> str:
    """Runs tests on the encrypting build, in a process of their own."""
    folders = [str(ENCRYPTING), str(HERE.parent / "src"), str(HERE)]
    kept = ("SMOLMEM_TORTURE", "PYTEST_DEBUG_TEMPROOT")
    others = ("SMOLMEM_", "PYTEST_")
    variables = {name: value for name, value in os.environ.items() if name in kept or not name.startswith(others)}
    variables |= {"PYTHONPATH": os.pathsep.join(folders)} | ({} if key is None else {"SMOLMEM_KEY": key})
    check = "import apsw; assert apsw.mc_version"
    subprocess.run([sys.executable, "-c", check], env=variables, check=True, timeout=60)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *names]
    done = subprocess.run(
        command, env=variables, cwd=HERE.parent, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stdout[-30_000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.long
@with_build
@pytest.mark.promise("S18")
def test_encrypted_means_encrypted() -> None:
    assert " passed" in run_tests("tests/encrypted.py")


@pytest.mark.long
@with_build
@pytest.mark.promise("S18")
@pytest.mark.parametrize("key", [f"raw:{'5a' * 32}", *([None] if TORTURE else [])])
def test_the_encrypting_build_passes_the_suite_of_every_store(key: str | None) -> None:
    """Without torture, of the suite what depends on the file: how it is opened, locked, shared and written."""
    some = [] if TORTURE else ["-k", " or ".join(FILE_TESTS)]
    assert " passed" in run_tests("tests/test_sqlite.py::TestSqlite", "tests/test_locks.py", *some, key=key)


@plain_build
@pytest.mark.promise("S18")
@pytest.mark.parametrize("given", ["argument", "variable"])
def test_a_key_without_the_encrypting_build_is_refused_and_nothing_is_written(
    path: Path, given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "a key" if given == "argument" else None
    if given == "variable":
        monkeypatch.setenv("SMOLMEM_KEY", "a key")
    for attempt in (lambda: Memory(path, key=key), lambda: change_key(path, None, Key("a key"))):
        with pytest.raises(StoreError, match=r"cannot encrypt: run `pip uninstall apsw .*`pip install apsw-sqlite3mc`"):
            attempt()
    assert list(path.parent.iterdir()) == []
    monkeypatch.setenv("SMOLMEM_KEY", "a key")
    assert main(["remember", "a word", "--create", "--db", str(path)]) == 3
    assert list(path.parent.iterdir()) == []
    monkeypatch.delenv("SMOLMEM_KEY")
    Memory(path).close()
    assert main(["encrypt", "--db", str(path)]) == 3
    assert capsys.readouterr().err.count("pip install apsw-sqlite3mc") == 2


@plain_build
@pytest.mark.promise("S18")
def test_an_existing_plain_file_is_not_used_with_a_key(path: Path) -> None:
    Memory(path).close()
    before = path.read_bytes()
    with pytest.raises(StoreError):
        Memory(path, key="a key")
    assert not doctor.examine_path(path, "a key")
    assert path.read_bytes() == before


@pytest.mark.parametrize("together", [True, False])
def test_the_doctor_reports_two_builds_in_one_folder(
    memory: Memory, tmp_path: Path, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {"apsw": tmp_path, "apsw-sqlite3mc": tmp_path if together else tmp_path / "other"}
    real = doctor.metadata.distribution
    monkeypatch.setattr(
        doctor.metadata,
        "distribution",
        lambda name: SimpleNamespace(locate_file=lambda _: folders[name]) if name in folders else real(name),
    )
    findings = [finding for finding in memory.doctor().findings if "in one folder" in finding.text]
    assert [finding.level for finding in findings] == (["warning"] if together else [])
    assert all("pip install apsw-sqlite3mc" in finding.repair for finding in findings)
