"""Processes that record and are killed, forked from one that has smolagents loaded already.

Run as a program: `workers.py kill PATH COUNT SEED`, `workers.py write PATH PROCESSES STEPS`, or
`workers.py upgrade PATH EVERY`. Prints one JSON line.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import apsw
from scripted import code, code_agent
from smolagents import ActionStep, AgentError

from smolmem import Memory
from smolmem.store.base import migrations
from smolmem.store.sqlite import file_schema

PATIENCE = 100.0
"""Seconds until a child that is neither killed nor done is taken for one that hangs."""


def fork(work: Callable[[], None], patience: float = PATIENCE) -> int:
    """A child that works; its collector leaves alone what is loaded already, so that those pages are not copied."""
    gc.freeze()
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(patience, exit=True)  # a child that hangs says where
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    gc.unfreeze()
    return child


def warm_up() -> None:
    """Records and resumes a run, so that children inherit what a process loads, compiles and computes only once."""
    with tempfile.TemporaryDirectory() as folder, Memory(f"{folder}/agent.db", embedder="off") as memory:
        with suppress(AgentError):
            memory.attach(code_agent(code("x = 1"), ConnectionError("warm up"), verbosity_level=-1)).run("Warm up")
        memory.resume(code_agent(code("final_answer(x)")))
        memory.verify()


def record(path: str, name: str, steps: int, done: Callable[[int], Any]) -> None:
    """One agent's run; `done(n)` once step n is on the list, and so on disk."""
    with Memory(path) as memory:
        script = [code(f"print('{name}', {i}, 'x' * 300)") for i in range(1, steps)]
        agent = memory.attach(
            code_agent(*script, code("final_answer(0)"), name=name, description="d", max_steps=steps + 1)
        )
        for event in agent.run(f"task of {name}", stream=True):
            if isinstance(event, ActionStep):
                done(event.step_number)


def kill(path: str, count: int, seed: int) -> dict[str, int]:
    """Kills `count` recording processes at random moments; counts what they had been told is safe and is not."""
    chance = random.Random(seed)
    promised = lost = 0
    warm_up()
    for number in range(count):
        reading, writing = os.pipe()
        name = f"agent_{number}"
        child = fork(lambda: record(path, name, 40, lambda step: os.write(writing, f"{step}\n".encode())))
        os.close(writing)
        with os.fdopen(reading) as pipe:
            told = [int(pipe.readline()) for _ in range(chance.randrange(6))]
            time.sleep(chance.uniform(0.0, 0.02))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            told += [int(line) for line in pipe.read().split("\n")[:-1]]
        promised += len(told)
        if told:
            with Memory(path) as memory:
                (run,) = memory.runs(agent=name)
                kept = [step.to_smolagents().step_number for step in run.steps if step.kind == "action"]
                lost += len(set(told) - set(kept)) + (kept != list(range(1, len(kept) + 1)))
                lost += run.status not in ("interrupted", "finished")
    with Memory(path) as memory:
        report = memory.verify()
        return {
            "kills": count,
            "promised": promised,
            "lost": lost,
            "damaged": report.count,
            "runs": memory.stats().runs,
        }


def write(path: str, processes: int, steps: int) -> dict[str, int]:
    """Many processes record into one file at once."""
    warm_up()
    patience = PATIENCE + processes * steps / 10
    children = [
        fork(lambda number=number: record(path, f"agent_{number}", steps, lambda step: None), patience)  # type: ignore[misc]
        for number in range(processes)
    ]
    failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    with Memory(path) as memory:
        kept = [[step.number for step in run.steps if step.kind == "action"] for run in memory.runs(limit=processes)]
        right = sum(numbers == list(range(1, steps + 1)) for numbers in kept)
        return {"failed": failed, "right": right, "runs": memory.stats().runs, "damaged": memory.verify().count}


def upgrade(path: str, every: int) -> dict[str, int]:
    """Dies at each statement that creating or upgrading a store executes, or at each `every`-th, on the same file."""
    warm_up()
    died = 0
    latest = len(migrations("sqlite"))
    old = file_schema.schema(apsw.Connection(path)) if os.path.exists(path) else frozenset()
    for stop in range(0, 200, every):
        killed = os.waitpid(fork(lambda: _die_at(path, stop)), 0)[1] != 0
        died += killed
        state = (
            file_schema.schema(apsw.Connection(path)) if os.path.exists(path) and os.path.getsize(path) else frozenset()
        )
        assert state in (old, file_schema.expected_schema(latest)), "half a schema"
        if not killed:
            break
    with Memory(path) as memory:
        return {"died": died, "damaged": memory.verify().count}


def _die_at(path: str, stop: int) -> None:
    left = [stop]

    def trace(*_: Any) -> bool:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return True

    apsw.connection_hooks.append(lambda connection: setattr(connection, "exec_trace", trace))
    Memory(path).close()


if __name__ == "__main__":
    what, path, *numbers = sys.argv[1:]
    print(json.dumps({"kill": kill, "write": write, "upgrade": upgrade}[what](path, *map(int, numbers))))
