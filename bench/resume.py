"""How long it takes to open, resume and look: what a user waits for before anything happens.

    make bench-resume                                   # a run of 1,000 steps, and 20,000 steps to look through
    make bench-resume ARGS="--steps 100 --looked-at 2000"

A scripted agent records a run and is killed inside its last model call. A new process makes the agent again and
resumes the run; the time is that from the call of `resume` to the next question to the model. Looking uses a memory
that `bench/inspector.py` builds, or the one of `--file`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import growth
from rich.console import Console
from rich.table import Table

from smolmem import Memory, Watch

COMMAND = "from smolmem.cli.main import main; main()"
TARGETS = {
    "import smolmem and Memory(path), beyond smolagents": 60.0,
    "resume, until the model is asked": 500.0,
    "smolmem runs": 300.0,
    "memory.runs()": 50.0,
    "memory.steps()": 50.0,
    "memory.recall(): two words": 50.0,
    "memory.recall(): words that every step has": 200.0,
    "backtest of a rule": 1_000.0,
}
"""At most so many milliseconds."""


class Killed(growth.Scripted):
    """A model whose process dies when it is asked once more than there are steps."""

    def generate(self, messages: list[Any], **options: Any) -> Any:
        """The next reply, or the end of the process."""
        if self.said == self.steps - 1:
            os._exit(9)
        return super().generate(messages, **options)


class Resumed(growth.Scripted):
    """A model that notes when it is asked, and ends the run."""

    asked_at = 0.0

    def generate(self, messages: list[Any], **_: Any) -> Any:
        """The last reply."""
        self.asked_at = time.perf_counter()
        return growth.ChatMessage(growth.MessageRole.ASSISTANT, growth.reply(self.steps, self.steps))


def record(path: Path, steps: int) -> None:
    """Records a run of so many steps and dies."""
    with Memory(path, embedder="off") as memory:
        agent = growth.new_agent(steps + 1)
        agent.model = Killed(steps + 1)
        memory.attach(agent).run(growth.TASK)


def resume(path: Path, steps: int) -> float:
    """Milliseconds from the call of `resume` to the next question to the model."""
    agent = growth.new_agent(steps + 1)
    agent.model = model = Resumed(steps + 1)
    with Memory(path, embedder="off") as memory:
        began = time.perf_counter()
        memory.resume(agent)
    return 1_000 * (model.asked_at - began)


def in_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs this file in a new process."""
    return subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)


def import_ms(folder: Path) -> float:
    """What `import smolmem` and opening a new file take once smolagents is there: the best of five fresh processes.

    Not the difference of two imports: smolagents' own varies by more than what is to be measured.
    """
    code = (
        "import sys, time, smolagents; began = time.perf_counter(); from smolmem import Memory; "
        "memory = Memory(sys.argv[1]); print(time.perf_counter() - began); memory.close()"
    )
    commands = [[sys.executable, "-c", code, str(folder / f"opened-{number}.db")] for number in range(5)]
    environment = compiled(folder)
    runs = [subprocess.run(each, capture_output=True, check=True, text=True, env=environment) for each in commands]
    return min(float(run.stdout) for run in runs) * 1000


def compiled(folder: Path) -> dict[str, str]:
    """An environment with compiled modules, as an installed package has them, whatever this one is set to."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(folder / "compiled")}


def resumed(path: Path, steps: int) -> float:
    """The milliseconds of a resume in a new process."""
    died = in_process("--record", str(path), "--steps", str(steps))
    if died.returncode != 9:
        raise RuntimeError(died.stderr[-2_000:])
    done = in_process("--resume", str(path), "--steps", str(steps))
    if done.returncode:
        raise RuntimeError(done.stderr[-2_000:])
    return float(done.stdout)


def command_ms(path: Path, folder: Path, *arguments: str) -> float:
    """The best wall time of five calls of the command line."""
    took, environment = [], compiled(folder)
    for _ in range(5):
        began = time.perf_counter()
        command = [sys.executable, "-c", COMMAND, *arguments, "--db", str(path)]
        subprocess.run(command, capture_output=True, check=True, env=environment)
        took.append(1_000 * (time.perf_counter() - began))
    return min(took)


def median_ms(act: Callable[[], object], times: int = 5) -> float:
    """The median of some calls in milliseconds."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        took.append(1_000 * (time.perf_counter() - began))
    return statistics.median(took)


def look(path: Path, steps: int) -> dict[str, float]:
    """The milliseconds of questions to a large memory."""
    with Memory(path, embedder="off") as memory:
        memory.recall("warm")
        return {
            "memory.runs()": median_ms(lambda: memory.runs(scope="*")),
            "memory.steps()": median_ms(lambda: memory.steps(scope="*")),
            "memory.recall(): two words": median_ms(lambda: memory.recall("417 482", scope="*")),
            "memory.recall(): words that every step has": median_ms(
                lambda: memory.recall("slow database index", scope="*")
            ),
            "backtest of a rule": median_ms(lambda: memory.backtest(Watch.failures(), scope="*", limit=steps), times=3),
        }


def measure(steps: int, looked_at: int, file: Path | None) -> dict[str, Any]:
    """All figures, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = file or Path(folder) / "looked-at.db"
        if not path.exists():
            from inspector import build

            build(path, max(looked_at // 100, 1), looked_at, min(looked_at, 50_000))
        figures = {
            "import smolmem and Memory(path), beyond smolagents": import_ms(Path(folder)),
            "resume, until the model is asked": resumed(Path(folder) / "resumed.db", steps),
            "smolmem runs": command_ms(path, Path(folder), "runs"),
            **look(path, looked_at),
        }
        with Memory(path, embedder="off") as memory:
            counts = memory.stats()
    return {"steps": steps, "looked_at": counts.steps, "backtest": min(looked_at, counts.steps), "figures": figures}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How long opening, resuming and looking take.")
    parser.add_argument("--steps", type=int, default=1_000, help="how long the run is that is resumed")
    parser.add_argument("--looked-at", type=int, default=20_000, help="how many steps a rule is tried on")
    parser.add_argument("--file", type=Path, help="a memory that bench/inspector.py built")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--resume", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    given = options()
    if given.record is not None:
        record(given.record, given.steps)
    elif given.resume is not None:
        print(resume(given.resume, given.steps))
    else:
        found = measure(given.steps, given.looked_at, given.file)
        title = f"a run of {found['steps']:,} steps; a memory of {found['looked_at']:,} steps"
        table = Table("what", "milliseconds", "at most", "", title=title)
        for what, took in found["figures"].items():
            word = "[green]met[/]" if took <= TARGETS[what] else "[red]missed[/]"
            table.add_row(what, f"{took:,.1f}", f"{TARGETS[what]:,.0f}", word)
        Console().print(table)
        if given.json is not None:
            given.json.write_text(json.dumps(found | {"targets": TARGETS}, indent=1))


if __name__ == "__main__":
    main()
