"""What smolmem writes is the owner's alone, and nothing else leaves the process: no telemetry, no other files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from scripted import code, code_agent

from smolmem import Memory
from smolmem.cli.main import main
from smolmem.recall.embedding import models

HERE = Path(__file__).parent
WATCHED = "openat,open,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink,connect,sendto,sendmsg"
ENDINGS = r"(?:/dev/null|/dev/tty|/proc/[^\"]*)"

local_model = pytest.mark.skipif(not models.E5.here, reason="the local model is not on this machine")


@local_model
@pytest.mark.promise("S17")
def test_nothing_is_resolved_sent_or_written_outside_the_store(tmp_path: Path) -> None:
    home, folder, log = tmp_path / "home", tmp_path / "store", tmp_path / "calls"
    home.mkdir()
    folder.mkdir()
    done = subprocess.run(
        [*_watch(log), sys.executable, "-B", HERE / "private_use.py", folder],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=300,
        env=_environment(home),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "used" in done.stdout
    assert list(home.rglob("*")) == []
    if log.exists():
        calls = log.read_text(errors="replace").splitlines()
        assert len(calls) > 100
        assert [call for call in calls if _reaches_out(call)] == []
        assert [call for call in calls if _writes(call) and str(folder) not in call and not _probes(call)] == []


def _watch(log: Path) -> list[str]:
    """The command that notes which files and addresses a program uses; nothing where it is not installed."""
    if shutil.which("strace") is None:
        return []
    probe = subprocess.run(["strace", "-f", "-o", os.devnull, "true"], capture_output=True, check=False)
    return ["strace", "-f", "-e", f"trace={WATCHED}", "-s", "200", "-o", str(log)] if probe.returncode == 0 else []


def _environment(home: Path) -> dict[str, str]:
    """A user with an empty home folder; libraries send nothing where they see that tests run."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "LANG", "TMPDIR")}
    paths = os.pathsep.join([str(HERE), *filter(None, [kept.get("PYTHONPATH")])])
    return kept | {"PYTHONPATH": paths, "HOME": str(home), "SMOLMEM_MODELS": str(models.cache())}


def _reaches_out(call: str) -> bool:
    if "resolv.conf" in call or "/etc/hosts" in call:
        return True
    address = re.search(r'inet_addr\("([\d.]+)"\)|inet_pton\(AF_INET6, "([^"]+)"', call)
    return address is not None and (address[1] or address[2]) not in ("127.0.0.1", "::1")


def _writes(call: str) -> bool:
    """Whether a call creates or changes a file, as far as it succeeded."""
    made = re.search(r"\b(mkdir|mkdirat|rename|renameat2?|link|linkat|symlink|creat)\(|O_WRONLY|O_RDWR|O_CREAT", call)
    failed = re.search(r"= -1 E", call)
    return made is not None and failed is None and re.search(rf'"{ENDINGS}"', call) is None


def _probes(call: str) -> bool:
    """On Python 3.10 filelock, which smolagents imports, tries how links work: with empty files that it deletes."""
    if sys.version_info >= (3, 11):
        return False
    temporary = re.escape(tempfile.gettempdir())
    return re.search(rf'"{temporary}/(tmp\w{{8}}/probe-\w+|\w{{8}})"|mkdir\("{temporary}/tmp\w{{8}}"', call) is not None


@pytest.mark.promise("S17")
def test_a_switch_that_the_user_has_set_is_left_as_it_is() -> None:
    program = (
        "from smolmem.core.telemetry import disable; import os; disable(); print(os.environ['ORT_DISABLE_TELEMETRY'])"
    )
    for given, expected in ((None, "1"), ("0", "0")):
        variables = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
        variables |= {} if given is None else {"ORT_DISABLE_TELEMETRY": given}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=variables
        )
        assert done.stdout.strip() == expected


# --- file modes -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[0o000, 0o022, 0o377], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in folder.rglob("*")}


@pytest.mark.promise("S11")
def test_only_the_owner_can_read_what_smolmem_creates_whatever_the_umask(path: Path, umask: int) -> None:
    folder = path.parent
    with Memory(path, embedder="off") as memory:
        agent = memory.attach(code_agent(code("print('x' * 9000)"), code("final_answer(1)")))
        agent.run("Go", images=[Image.effect_noise((99, 99), 50)])
        memory.backup(folder / "copy.db")
        memory.export(folder / "export")
        memory.export(folder / "export.zip")
        while_open = modes(folder)
    assert {"agent.db", "agent.db-wal", "agent.db-shm", "copy.db", "export.zip", "export/media"} <= while_open.keys()
    assert any(name.startswith("export/media/") for name in while_open)
    folders = {"export", "export/media"}
    assert while_open == {name: 0o700 if name in folders else 0o600 for name in while_open}


@pytest.mark.promise("S11")
def test_files_of_the_command_line_are_private_too(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Memory(tmp_path / "agent.db").close()
        shutil.copy(HERE / "files" / "format-1.sqlite", tmp_path / "old.db")
        os.chmod(tmp_path / "old.db", 0o600)
        names = {"remember": "agent.db", "backup": "agent.db", "export": "agent.db", "migrate": "old.db"}
        given = {"remember": ["The sky is blue."], "backup": [tmp_path / "copy.db"], "export": [tmp_path / "out"]}
        for command, name in names.items():
            assert main(["--db", str(tmp_path / name), command, *map(str, given.get(command, []))]) == 0
    finally:
        os.umask(before)
    found = modes(tmp_path)
    assert {"agent.db", "copy.db", "out", "out/media"} <= found.keys()
    assert len([name for name in found if name.startswith("old.db")]) > 1, "migrate keeps a copy"
    assert found == {name: 0o700 if (tmp_path / name).is_dir() else 0o600 for name in found}
