"""The documentation site, the notebook, the recording and the package that a reader gets."""

from __future__ import annotations

import email
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import fake_ollama
import pages
import pytest
from conftest import TORTURE

import smolmem
from smolmem.cli.main import main

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SOURCE = Path(smolmem.__file__).parent.parent
WISHES = """58 1216 945 364 251 1579 901 694 1385 1719 2566 2557 2172 2654 1695 1781 1381 52 1084 1847 2165 2725 2524
145 1560 703 1439 2290 2332"""
"""Issues and pull requests of smolagents that the page "You asked" answers."""


def load(file: Path) -> Any:
    """A program of the documentation, as a module."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*line: Any, **options: Any) -> str:
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=900, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- the site -------------------------------------------------------------------------------------------------------


def build_site(built: Path) -> None:
    """Builds the site strictly: a broken link, anchor or reference fails."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", built],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(SOURCE), "http_proxy": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr


class Loaded(HTMLParser):
    """The addresses that a browser loads with a page, without a click."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        loads = tag in ("script", "img", "iframe", "source") or (tag == "link" and given.get("rel") != "canonical")
        if loads:
            self.addresses += [given.get("src") or given.get("href") or ""]


def has_its_sections_and_loads_nothing_from_other_servers(site: Path) -> None:
    built = sorted(site.glob("*.html"))
    for name in ("index", "quickstart", "recipes", "concepts", "api", "cli", "promises", "benchmarks", "security"):
        assert site / f"{name}.html" in built
    for page in built:
        loaded = Loaded()
        loaded.feed(page.read_text(encoding="utf-8"))
        assert not [address for address in loaded.addresses if re.match(r"(https?:)?//", address)], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:", style.read_text(encoding="utf-8")), style.name


def has_every_public_name_with_its_documentation(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    shown = set(re.findall(r'id="smolmem\.([\w.]+)"', page))
    for name in set(smolmem.__all__) - {"__version__", "views"}:
        assert any(each.endswith(f".{name}") for each in shown), name
    for method in ("attach", "resume", "recall", "erase", "runs", "push_to_hub", "import_runs"):
        assert f"memory.Memory.{method}" in shown
    assert {f"policies.views.{name}" for name in ("KeepImages", "TokenBudget", "Summarize", "Redact")} <= shown


def names_the_tests_of_each_promise(site: Path) -> None:
    page = (site / "promises.html").read_text(encoding="utf-8")
    for name in load(ROOT / "tests/promises.py").PROMISES:
        section = page.partition(f'id="{name.lower()}"')[2].partition("<h2")[0]
        assert "tests/" in section, name


def has_every_page_in_its_menu(site: Path) -> None:
    menu = (site / "index.html").read_text(encoding="utf-8")
    for page in DOCS.glob("*.md"):
        assert f'href="{page.stem}.html"' in menu, page.name


@pytest.mark.long
def test_the_site_is_built_strictly_and_is_complete(tmp_path: Path) -> None:
    """One test: a build takes seven seconds, and each process that runs tests would build its own."""
    build_site(tmp_path)
    has_its_sections_and_loads_nothing_from_other_servers(tmp_path)
    has_every_public_name_with_its_documentation(tmp_path)
    names_the_tests_of_each_promise(tmp_path)
    has_every_page_in_its_menu(tmp_path)


# --- pages ----------------------------------------------------------------------------------------------------------


def test_every_wish_is_answered_with_code() -> None:
    text = (DOCS / "you-asked.md").read_text(encoding="utf-8")
    assert set(re.findall(r"/(?:issues|pull)/(\d+)", text)) == set(WISHES.split())
    for section in text.split("\n## ")[1:]:
        assert "```python" in section, section.partition("\n")[0]


def test_every_page_with_code_is_run_by_a_test() -> None:
    tests = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").glob("test_*.py"))
    for page in DOCS.glob("*.md"):
        if pages.blocks(page):
            stem = page.stem.removeprefix("tutorial-")
            assert f'"{stem}"' in tests or f"{page.name}" in tests, page.name


def test_the_notebook_of_the_quickstart_is_its_page() -> None:
    maker = load(DOCS / "site/make_notebook.py")
    made = maker.notebook(maker.PAGE.read_text(encoding="utf-8"))
    assert maker.NOTEBOOK.read_text(encoding="utf-8") == made, "run python docs/site/make_notebook.py"


NOTEBOOK_RUNNER = """
import sys
import nbclient, nbformat

notebook = nbformat.read(sys.argv[1], as_version=4)
for cell in notebook.cells:
    cell.source = cell.source.replace(sys.argv[2], sys.argv[3])
nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
texts = [output.text for cell in notebook.cells for output in cell.get("outputs", []) if output.output_type == "stream"]
print("".join(texts))
"""


def test_the_notebook_of_the_quickstart_runs(tmp_path: Path) -> None:
    """In a process of its own: the warnings of the notebook's libraries are not ours."""
    with fake_ollama.serving() as address:
        line = [sys.executable, "-c", NOTEBOOK_RUNNER, DOCS / "quickstart.ipynb", fake_ollama.ADDRESS, address]
        env = os.environ | {"PYTHONPATH": str(SOURCE), "IPYTHONDIR": str(tmp_path / "ipython")}
        done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "\n55\n" in done.stdout, "the resumed run answers"
    assert "Reports are due on Tuesday" in done.stdout


def test_the_commands_of_the_readme_find_what_its_python_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pages.run(ROOT / "README.md")["memory"].close()
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    lines = [line.partition("  #")[0] for block in blocks for line in block.splitlines() if line.startswith("smolmem")]
    assert "smolmem ui" in lines
    printed = {}
    for line in set(lines) - {"smolmem ui"}:
        words = shlex.split(line)[1:] + ["--no-follow"] * line.startswith("smolmem tail")
        capsys.readouterr()
        assert main(words) == 0, line
        printed[words[0]] = capsys.readouterr().out
    assert set(printed) == {"runs", "search", "sql", "tail", "doctor"}
    assert "What is 6 times 7?" in printed["search"]
    assert "CodeAgent" in printed["sql"]


def test_the_recording_shows_the_commands_and_loads_nothing() -> None:
    picture = (DOCS / "pictures/recording.svg").read_text(encoding="utf-8")
    shown = re.sub(r"<[^>]+>", "", picture).replace("&#160;", " ")
    for command, _ in load(DOCS / "pictures/make_recording.py").COMMANDS:
        assert command.replace('"', "&quot;") in shown or command in shown
    assert "interrupted" in shown
    assert set(re.findall(r"https?://[\w./]+", picture)) == {"http://www.w3.org/2000/svg"}


@pytest.mark.sampled
@pytest.mark.skipif(not TORTURE, reason="making the recording again takes long")
def test_the_recording_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    maker = load(DOCS / "pictures/make_recording.py")
    assert "3&#160;orders&#160;have&#160;no&#160;address" in maker.animated(*maker.record(tmp_path))


# --- the package ----------------------------------------------------------------------------------------------------

needs_hatchling = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed: `make test` installs it"
)


def build(folder: Path, repository: str = "") -> Path:
    """A wheel, built from a copy of the project that names a repository."""
    copy = folder / "project"
    shutil.copytree(SOURCE, copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, copy)
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (copy / "pyproject.toml").write_text(
        text.replace('\nrepository = ""\n', f'\nrepository = "{repository}"\n'), encoding="utf-8"
    )
    line = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(line, cwd=copy, capture_output=True, check=True, timeout=100)
    return next(folder.glob("*.whl"))


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_string(archive.read(name).decode())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@needs_hatchling
def test_the_package_has_its_files_its_extras_and_its_readme(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        present = set(archive.namelist())
    for file in SOURCE.joinpath("smolmem").rglob("*"):
        if file.is_file() and file.suffix != ".pyc":
            assert file.relative_to(SOURCE).as_posix() in present
    described = metadata(wheel)
    extras = set(described.get_all("Provides-Extra") or ())
    assert described["Description-Content-Type"] == "text/markdown"
    assert "every step is on disk" in str(described.get_payload())
    wanted = {line.split(";")[0] for line in described.get_all("Requires-Dist") or () if "extra ==" in line}
    in_all = {line.split(";")[0] for line in described.get_all("Requires-Dist") or () if "extra == 'all'" in line}
    assert "all" in extras
    assert in_all == wanted, "the extra `all` installs what all others install"


@needs_hatchling
def test_links_and_pictures_of_a_published_package_lead_to_the_repository(tmp_path: Path) -> None:
    described = metadata(build(tmp_path, "https://git.example/smolmem"))
    text = str(described.get_payload())
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert "https://git.example/smolmem/blob/HEAD/docs/recipes.md" in targets
    assert "https://git.example/smolmem/raw/HEAD/docs/pictures/recording.svg" in targets
    assert not [target for target in targets if not target.startswith("https://")]
    addresses = [line.partition(", ")[2] for line in described.get_all("Project-URL") or ()]
    assert "https://git.example/smolmem" in addresses
    for address in addresses + targets:
        if address.startswith("https://git.example/smolmem/") and "/HEAD/" in address:
            assert (ROOT / address.partition("/HEAD/")[2].partition("#")[0]).exists(), address


def interpreter(version: str) -> Any:
    """A Python of this version; the test is skipped where the machine has none."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    found = str(kept[-1]) if kept else shutil.which(f"python{version}")
    missing = pytest.mark.skipif(found is None, reason=f"Python {version} is not on this machine")
    return pytest.param(found, id=version, marks=missing)


PYTHONS = [interpreter(version) for version in ("3.10", "3.11", "3.12", "3.13")]


@needs_hatchling
@pytest.mark.sampled
@pytest.mark.parametrize("python", PYTHONS if TORTURE else [PYTHONS[0], PYTHONS[-1]])
def test_the_wheel_installs_on_every_supported_python(wheel: Path, tmp_path: Path, python: str) -> None:
    """Without what it needs: each module is compiled, and the part that needs nothing is run."""
    run(python, "-m", "venv", "--without-pip", tmp_path / "venv")
    fresh = tmp_path / "venv/bin/python"
    pip = [sys.executable, "-m", "pip", "--python", fresh, "--disable-pip-version-check"]
    run(*pip, "install", "-q", "--no-deps", "--no-index", "--no-compile", wheel)
    code = (
        "import compileall, smolmem; from pathlib import Path; folder = Path(smolmem.__file__).parent\n"
        "assert compileall.compile_dir(folder, quiet=1); print(smolmem.__version__)"
    )
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    assert run(fresh, "-W", "error", "-c", code, cwd=tmp_path, env=env).strip() == smolmem.__version__


AGENT = """
from smolagents import CodeAgent
from scripted import Scripted, code
from smolmem import Memory

with Memory("agent.db") as memory:
    agent = memory.attach(CodeAgent(tools=[], model=Scripted(code("final_answer(6 * 7)")), verbosity_level=0))
    assert agent.run("What is 6 times 7?") == 42
    assert memory.verify()
"""


@pytest.mark.sampled
@needs_hatchling
@pytest.mark.skipif(not TORTURE, reason="installing everything takes long and needs a network")
@pytest.mark.parametrize("python", PYTHONS)
def test_the_wheel_works_on_every_supported_python(wheel: Path, tmp_path: Path, python: str) -> None:
    run(python, "-m", "venv", tmp_path / "venv")
    fresh = tmp_path / "venv/bin/python"
    run(fresh, "-m", "pip", "install", "-q", f"smolmem[ui] @ {wheel.as_uri()}")
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    run(fresh, "-c", AGENT, cwd=tmp_path, env=env | {"PYTHONPATH": str(ROOT / "tests")})
    assert "finished" in run(tmp_path / "venv/bin/smolmem", "runs", "agent.db", cwd=tmp_path, env=env)
