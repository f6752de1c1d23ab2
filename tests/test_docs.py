"""The code in the documentation runs, its links and commands exist, and the demo prints what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pages
import programs
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("howto", "recall", "smolagents-memory", "views", "quickstart")),
    *(ROOT / "docs" / f"{name}.md" for name in ("recipes", "concepts", "you-asked")),
    *(ROOT / "docs" / f"tutorial-{name}.md" for name in ("monitoring", "browser", "team")),
]
TORTURE = bool(os.environ.get("SMOLMEM_TORTURE"))
OLDEST = Path(sys.prefix) / "oldest"
"""Where `make` installs the oldest supported smolagents."""


def test_the_readmes_python_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = pages.run(ROOT / "README.md")
    assert [run.answer for run in names["memory"].runs()] == [49, 42]
    names["memory"].close()
    shown = capsys.readouterr().out
    assert "fact · note" in shown
    assert re.search(r"Run\('[0-9a-f]{8}', finished, 'CodeAgent', 'And what is 7 times 7\?', 2 steps, \d", shown)


def test_the_first_example_is_six_lines() -> None:
    first = pages.blocks(ROOT / "README.md")[0]
    assert len([line for line in first.splitlines() if line.strip()]) == 6


def test_the_make_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", README + (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= named <= targets
    assert "make test" in (ROOT / ".ci/run").read_text()


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.stem)
def test_the_pages_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(pages.blocks(page)) >= 3
    pages.run(page)["memory"].close()


@pytest.mark.sampled
@pytest.mark.skipif(not OLDEST.exists(), reason="`make test` fetches the oldest smolagents")
def test_the_pages_run_on_the_oldest_smolagents_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "tests/pages.py", *(PAGES if TORTURE else PAGES[:2])],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=280,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (OLDEST, ROOT / "tests")))},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not OLDEST.exists(), reason="`make test` fetches the oldest smolagents")
def test_the_oldest_smolagents_is_the_promised_release() -> None:
    required = re.search(r'"smolagents>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert required is not None
    assert [folder.name for folder in OLDEST.glob("smolagents-*")] == [f"smolagents-{required[1]}.0.dist-info"]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_links_between_pages_exist(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_tree_in_the_design_page_is_the_tree_of_the_package() -> None:
    tree = next(block for block in (ROOT / "docs/design.md").read_text().split("```") if "src/smolmem/\n" in block)
    package = ROOT / "src/smolmem"
    present = [folder.name for folder in package.rglob("*") if any(folder.glob("*.py"))]
    assert sorted(re.findall(r"^  +(\w+)/", tree, re.MULTILINE)) == sorted([*present, "sql"])


def test_the_demo_prints_its_chapters(tmp_path: Path) -> None:
    done = programs.run([ROOT / "demo.py", "--folder", tmp_path], env=os.environ | {"COLUMNS": "110"})
    assert done.returncode == 0, done.stderr
    printed = " ".join(done.stdout.split())
    for expected in (
        "checkout fails: no such column: currency (release 41)",
        "kill -9, while the agent restarts the shop",
        "interrupted ai_monitoring_agent",
        "UnknownOutcome: run",
        "4 restart_application (The outcome of this call of restart_application is unknown",
        "▲ [ALERT] health: 2 of the last 2 steps match",
        "to the person on call",
        "Remedy: roll_back_release.",
        "The shop now: health check: 200 OK (release 40)",
        "Reminded of ❘",
        "first incident 10 10",
        "with recall 4 4",
        "three of five would have fired once in 5 steps of 2 runs",
        "I remember this problem and its remedy.",
        "agent.db: intact",
    ):
        assert expected in printed, f"{expected!r} is missing:\n{done.stdout}"
