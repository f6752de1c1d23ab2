"""The page about async programs runs, and says what happens; `doctor` names the integrations."""

from __future__ import annotations

import re
from pathlib import Path

import programs
import pytest

from smolmem import Memory, doctor

ROOT = Path(__file__).parent.parent


def test_the_page_about_async_programs_runs_as_it_stands(tmp_path: Path) -> None:
    """In a process of its own: the page forks."""
    done = programs.run([ROOT / "tests/pages.py", ROOT / "docs/async.md"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if line != "Agent interrupted."]  # smolagents prints it
    assert printed[0] == "[3, 3, 3]"
    assert "first" in printed[1]
    assert int(printed[2]) >= 4, "events of four steps"
    assert printed[3:] == ["None", "interrupted", "3", "A note of the child process"]
    with Memory(tmp_path / "agent.db") as memory:
        assert memory.verify()
        assert [run.status for run in memory.runs()] == ["finished"] * 5


def test_doctor_names_the_integrations_and_their_versions(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"mcp": "2.3.0", "mcpadapt": "0.1.19", "gradio": "6.31.0"}
    monkeypatch.setattr(doctor, "version", known.get)
    found = {finding.text: finding for finding in memory.doctor().findings}
    assert found["Integrations: mcp 2.3.0, gradio 6.31.0."].repair == ""  # what nobody asked for is nothing to repair
    assert found["smolagents' MCPClient cannot import mcp 2.3.0; `smolmem mcp` can."].repair == "pip install 'mcp<2'"
    monkeypatch.setattr(doctor, "version", lambda package: None)
    assert any("Integrations: none." in finding.text for finding in memory.doctor().findings)


def test_doctor_looks_for_a_package_of_every_extra() -> None:
    """But for `static`, which is part of `semantic`."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("[project.optional-dependencies]\n")[2].partition("\n\n")[0]
    extras = dict(line.split(" = ", 1) for line in section.splitlines())
    known = {name for name, needs in extras.items() if set(re.findall(r'"([\w-]+)[\[>]', needs)) & {*doctor.PACKAGES}}
    assert extras.keys() - known == {"static", "all"}
