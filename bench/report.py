"""Runs every benchmark, each in its own process, and writes docs/benchmarks.md with its plots.

    make report                              # all benchmarks; at most a quarter of an hour on an idle machine
    make report DATA=folder                  # also recall quality on chats and runs (see bench/README.md)
    make report ARGS=--quick                 # small sizes; at most three minutes
    make report ARGS="--only recall"         # this one again; the other numbers are those of before
    make report ARGS=--missing               # goes on after an interruption
    make report ARGS=--render                # only the page, from the numbers of before

The numbers of each benchmark are kept as JSON in bench/numbers (those of the quick form in bench/numbers/quick). A
benchmark that fails, takes too long or is not installed is named on the page with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from report_page import page
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).parent.parent
NUMBERS = ROOT / "bench" / "numbers"
CREWAI = ROOT / ".venv-crewai" / "bin" / "python"
FORMAT = 1
"""Of the numbers that are kept: it changes when the page needs others."""
PACKAGES = [
    *("smolmem", "smolagents", "apsw", "numpy", "langgraph", "langgraph-checkpoint-sqlite", "openai-agents"),
    *("pydantic-ai-harness", "crewai", "chromadb", "faiss-cpu", "lancedb", "sqlite-vec", "mem0ai", "psycopg"),
]


@dataclass(frozen=True)
class Bench:
    """A benchmark: its script, its arguments in both forms, and the target of `make` that runs it alone."""

    name: str
    script: str
    target: str
    full: str
    quick: str | None
    """None: not in the quick form."""
    crewai: bool = False
    """CrewAI wants older releases of what the other contestants use, so it has an environment of its own."""

    def arguments(self, quick: bool) -> str:
        """The arguments of a form."""
        return (self.quick or "") if quick else self.full

    @property
    def needs_data(self) -> bool:
        """Whether it measures with data that is not part of this project."""
        return self.script == "quality.py" and self.name != "quality-assistants"

    def command(self, quick: bool) -> str:
        """What a reader types to run it alone."""
        data = " DATA=folder" if self.needs_data else ""
        arguments = self.arguments(quick).replace("MEMORY", "memory.db")
        return f"make {self.target}{data}" + (f' ARGS="{arguments}"' if arguments else "")


BENCHES = [
    Bench("growth", "growth.py", "bench", "--steps 500 --large 250", "--steps 60 --large 10"),
    Bench("crewai", "growth.py", "bench-crewai", "--steps 500 --only crewai", "--steps 60 --only crewai", crewai=True),
    Bench("variables", "variables.py", "bench-variables", "--steps 200", "--steps 40"),
    Bench("inspector", "inspector.py", "bench-inspector", "--runs 500 --steps 50000 --indexed 5000 --file MEMORY",
          "--runs 40 --steps 5000 --indexed 1000 --file MEMORY"),
    Bench("resume", "resume.py", "bench-resume", "--steps 1000 --looked-at 20000 --file MEMORY",
          "--steps 100 --looked-at 5000 --file MEMORY"),
    Bench("recall", "recall.py", "bench-recall", "--rows 100,1000,10000,30000", "--rows 100,1000,3000 --questions 40"),
    Bench("vectors-small", "vectors.py", "bench-vectors", "--rows 1000", "--rows 1000 --queries 200"),
    Bench("vectors-middle", "vectors.py", "bench-vectors", "--rows 10000", None),
    Bench("vectors-large", "vectors.py", "bench-vectors", "--rows 30000",
          "--rows 6000 --queries 200 --engines smolmem,numpy,faiss,sqlite-vec"),
    Bench("quality-assistants", "quality.py", "quality", "--set assistants --vectors-alone",
          "--set assistants --embedder off"),
    Bench("quality-smolruns", "quality.py", "quality", "--set smolruns --vectors-alone", None),
    Bench("quality-whowhen", "quality.py", "quality", "--set whowhen", None),
    Bench("quality-locomo", "quality.py", "quality", "--set locomo --vectors-alone --every 4", None),
    Bench("postgres", "postgres.py", "bench-postgres", "--steps 60 --rounds 5", "--steps 30 --rounds 1"),
    Bench("runs", "runs.py", "bench-runs", "", ""),
    Bench("prompts", "prompts.py", "bench-prompts", "--steps 100", "--steps 30"),
]  # fmt: skip

Record = dict[str, Any]


def form(quick: bool) -> list[Bench]:
    """The benchmarks of a form."""
    return [bench for bench in BENCHES if not quick or bench.quick is not None]


# --- running ---------------------------------------------------------------------------------------------------------


def run(bench: Bench, given: argparse.Namespace, memory: Path) -> Record:
    """Runs a benchmark in a process of its own; its numbers, or the reason why there are none."""
    about: Record = {
        "format": FORMAT,
        "command": bench.command(given.quick),
        "at": datetime.now(timezone.utc).isoformat()[:16] + "Z",
    }
    reason = _why_not(bench, given.data)
    if reason is not None:
        return about | {"error": reason}
    python = str(CREWAI) if bench.crewai else sys.executable
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        numbers = Path(folder) / "numbers.json"
        arguments = [word.replace("MEMORY", str(memory)) for word in shlex.split(bench.arguments(given.quick))]
        data = [str(given.data)] if bench.needs_data else []
        command = [python, str(ROOT / "bench" / bench.script), *data, *arguments, "--json", str(numbers)]
        error = _finish(command, given.limit)
        about |= {"seconds": round(time.perf_counter() - began, 1), "load": list(os.getloadavg())}
        if error is None and not numbers.exists():
            error = "it wrote no numbers"
        if error is not None:
            return about | {"error": error}
        return about | {"versions": versions(python), "numbers": json.loads(numbers.read_text(encoding="utf-8"))}


def _why_not(bench: Bench, data: Path | None) -> str | None:
    """Why a benchmark cannot run here."""
    if bench.crewai and not CREWAI.exists():
        return "CrewAI is not installed: `make .venv-crewai/ready` installs it"
    if bench.needs_data and data is None:
        return "its data is not part of this project: `make report DATA=folder`"
    return None


def _finish(command: list[str], limit: float) -> str | None:
    """Waits for a process; returns what went wrong. Its own processes end with it."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, text=True, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"it was stopped after {limit:.0f} s"
        finally:
            _end(process)
        output.seek(0)
        lines = [line for line in output.read().splitlines() if line.strip()]
    return None if code == 0 else f"it failed: {lines[-1].strip()[:300] if lines else f'exit code {code}'}"


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a process and those that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def versions(python: str) -> dict[str, str]:
    """The versions of the packages in an environment."""
    code = (
        "import importlib.metadata as m, json, sys; known = {d.name.lower(): d.version for d in m.distributions()}; "
        "print(json.dumps({name: known[name] for name in sys.argv[1:] if name in known}))"
    )
    done = subprocess.run([python, "-c", code, *PACKAGES], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    cpu = re.search(r"model name\s*: (.*)", _text("/proc/cpuinfo"))
    ram = re.search(r"MemTotal:\s*(\d+)", _text("/proc/meminfo"))
    return {
        "processor": f"{os.cpu_count()} × {cpu[1] if cpu else platform.machine()}",
        "RAM": f"{int(ram[1]) / 1e6:.0f} GB" if ram else "unknown",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
    }


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""


def run_all(benches: list[Bench], given: argparse.Namespace, folder: Path) -> None:
    """Runs benchmarks one after the other, so that none disturbs another, and keeps their numbers."""
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as temporary, Progress(*columns, console=console) as bar:
        row = bar.add_task("", total=len(benches))
        for bench in benches:
            bar.update(row, description=bench.name)
            record = run(bench, given, Path(temporary) / "memory.db")
            write(folder / f"{bench.name}.json", record | {"machine": machine()})
            said = f"not measured: {record['error']}" if "error" in record else "measured"
            console.print(f"{bench.name}: {said} ({record.get('seconds', 0):.0f} s)", highlight=False, markup=False)
            bar.advance(row)


def write(path: Path, record: Record) -> None:
    """Writes numbers in one go, so that an interruption leaves none half written."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1), encoding="utf-8")
    part.replace(path)


def kept(folder: Path) -> dict[str, Record]:
    """The numbers that are there, in the order of the benchmarks; none of another format."""
    paths = {bench.name: folder / f"{bench.name}.json" for bench in BENCHES}
    found = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.exists()}
    return {name: record for name, record in found.items() if record.get("format") == FORMAT}


# --- the command -----------------------------------------------------------------------------------------------------


def render(records: dict[str, Record], docs: Path, quick: bool) -> Path:
    """Writes the plots and the page."""
    pictures = docs / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    try:
        from report_plots import draw

        drawn = draw(records, pictures)
    except ImportError:  # the page is complete without pictures
        drawn = []
    target = docs / "benchmarks.md"
    target.write_text(page(records, [bench.name for bench in form(quick)], drawn, quick), encoding="utf-8")
    return target


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs every benchmark and writes docs/benchmarks.md.")
    names = [bench.name for bench in BENCHES]
    parser.add_argument("--quick", action="store_true", help="small sizes: at most three minutes on an idle machine")
    parser.add_argument("--only", choices=names, action="append", help="one benchmark again; may be repeated")
    parser.add_argument("--missing", action="store_true", help="only benchmarks without numbers")
    parser.add_argument("--render", action="store_true", help="run nothing, write the page")
    parser.add_argument("--data", type=Path, help="the folder of the data sets for recall quality")
    parser.add_argument("--limit", type=float, default=900, metavar="S", help="stop a benchmark after so many seconds")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where the page goes")
    parser.add_argument("--numbers", type=Path, default=NUMBERS, help="where the numbers are kept")
    return parser.parse_args()


def chosen(given: argparse.Namespace, folder: Path) -> list[Bench]:
    """The benchmarks that are to be run."""
    if given.render:
        return []
    every = form(given.quick)
    if given.only:
        return [bench for bench in every if bench.name in given.only]
    if given.missing:
        return [bench for bench in every if "numbers" not in kept(folder).get(bench.name, {})]
    for bench in BENCHES:
        (folder / f"{bench.name}.json").unlink(missing_ok=True)
    return every


def main() -> None:
    given = options()
    folder = given.numbers / "quick" if given.quick else given.numbers
    folder.mkdir(parents=True, exist_ok=True)
    benches = chosen(given, folder)
    try:
        if benches:
            run_all(benches, given, folder)
    except KeyboardInterrupt:
        sys.exit(f"Interrupted. To go on: make report ARGS='--missing{' --quick' if given.quick else ''}'")
    written = render(kept(folder), given.docs, given.quick)
    print(f"{written} is written.")


if __name__ == "__main__":
    main()
