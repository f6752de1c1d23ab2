"""Runs smolagents' own tests with every agent attached to a memory, and without, and compares.

The tests come with smolagents' source distribution. Some need the network, models or packages that are not here, so
what counts is the difference: a test that passes without smolmem and not with it is a failure (promise D7).

Run as a program: `smolagents_suite.py [pytest arguments]`. Adds its result to the torture report.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TESTS = ("test_agents.py", "test_memory.py", "test_monitoring.py", "test_serialization.py", "test_yield_support.py")
"""The files of smolagents' tests that make agents or need no fixture that the source distribution leaves out."""

FLAGS = ("--continue-on-collection-errors", "-W", "ignore")


def main(arguments: list[str]) -> int:
    version = metadata.version("smolagents")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="smolagents-") as folder:
        source = fetch(Path(folder), version)
        plain = outcomes(source, arguments, {})
        attached = outcomes(source, arguments, {"SMOLMEM_ATTACH": str(Path(folder, "agents.db"))})
        runs = recorded_runs(Path(folder, "agents.db"))
    broken = sorted(name for name, outcome in plain.items() if outcome == "passed" != attached.get(name))
    for how, found in (("without smolmem", plain), ("attached", attached)):
        print(f"{how}: {dict(Counter(found.values()))}")
    print(f"{runs} runs recorded")
    for name in broken:
        print(f"passes without smolmem only: {name}")
    report(version, plain, broken, runs, time.monotonic() - began)
    return 1 if broken or not runs else 0


def fetch(folder: Path, version: str) -> Path:
    """The unpacked source distribution."""
    wanted = ["--no-deps", "--no-binary", "smolagents", f"smolagents=={version}", "-d", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", *wanted], check=True)
    (archive,) = folder.glob("smolagents-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder / f"smolagents-{version}"


def outcomes(source: Path, arguments: list[str], environment: dict[str, str]) -> dict[str, str]:
    """How each test ends."""
    told = source / "outcomes.json"
    told.unlink(missing_ok=True)
    path = os.pathsep.join([str(HERE), *(each for each in sys.path if each)])
    files = [f"tests/{name}" for name in TESTS if (source / "tests" / name).exists()]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "smolagents_suite",
            "-p",
            "no:cacheprovider",
            *FLAGS,
            *files,
            *arguments,
        ],
        env=os.environ | environment | {"PYTHONPATH": path, "SMOLMEM_OUTCOMES": str(told)},
        cwd=source,
        check=False,
        stdout=subprocess.DEVNULL,
    )
    return dict(json.loads(told.read_text()))


def recorded_runs(path: Path) -> int:
    from smolmem import Memory

    if not path.exists():
        return 0
    with Memory(path) as memory:
        assert memory.verify()
        return memory.stats().runs


def report(version: str, plain: dict[str, str], broken: list[str], runs: int, seconds: float) -> None:
    import torture

    name = "smolagents' own tests with every agent attached"
    failing = sum(outcome == "failed" for outcome in plain.values())
    result = {
        "promises": ["D7"],
        "outcome": "failed" if broken or not runs else "passed",
        "cases": sum(outcome == "passed" for outcome in plain.values()),
        "seeds": f"tests of smolagents {version}: {runs} runs recorded, {failing} tests fail without smolmem, too",
        "seconds": seconds,
        "error": "; ".join(broken)[:500],
        "run": torture.this_run(),
    }
    torture.add({name: result})


# --- the plugin of the inner pytest ---------------------------------------------------------------------------------

_outcomes: dict[str, str] = {}


def pytest_configure(config: Any) -> None:
    path = os.environ.get("SMOLMEM_ATTACH")
    if path:
        attach_every_agent(path)


def attach_every_agent(path: str) -> None:
    """Attaches each agent as soon as it is made."""
    from smolagents import CodeAgent, ToolCallingAgent

    from smolmem import Memory

    memory = Memory(path, embedder="off", durability="normal")

    def attaching(made: Any) -> Any:
        def init(self: Any, *args: Any, **options: Any) -> None:
            made(self, *args, **options)
            if type(self).__init__ in inits:
                memory.attach(self)

        return init

    inits = []
    for kind in (CodeAgent, ToolCallingAgent):
        kind.__init__ = attaching(kind.__init__)
        inits.append(kind.__init__)


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    Path(os.environ["SMOLMEM_OUTCOMES"]).write_text(json.dumps(_outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
