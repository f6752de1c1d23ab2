"""Workers that are killed while their server crashes: one JSON line.

`fleet_workers.py URL FOLDER KILLS RESTARTS USER CRASH…`: the rest is a command, for `USER`, that makes the server crash
and start again. Each worker runs an agent that pays once a step. A killed worker is replaced by another process, which
resumes the run and skips a payment that was cut off. A payment is a line in a file, written by the tool; a step is
acknowledged by a line in another file, once it is stored.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from scripted import code
from smolagents import ActionStep, ChatMessage, CodeAgent, MessageRole, Model, tool
from workers import fork

from smolmem import Memory

STEPS, AT_ONCE = 12, 3
folder = Path()
paying = [""]


class Paying(Model):
    """Pays once a step; what it answers depends on nothing but the messages."""

    def generate(self, messages: Any, **options: Any) -> ChatMessage:
        done = sum(message.role == MessageRole.ASSISTANT for message in messages)
        text = code(f"print(pay(number={done}))" if done < STEPS else "final_answer('all paid')")
        return ChatMessage(role=MessageRole.ASSISTANT, content=text)


@tool
def pay(number: int) -> str:
    """Pays.

    Args:
        number: what for
    """
    add_line("paid", f"{paying[0]} {number}")
    return f"paid {number}, which was due " + "for a long time " * 20


def add_line(name: str, text: str) -> None:
    with open(folder / name, "ab", buffering=0) as file:
        file.write(f"{text}\n".encode())


def work(url: str, name: str) -> None:
    """Starts the run of an agent, or resumes it."""
    paying[0] = name
    agent = CodeAgent(tools=[pay], model=Paying(model_id="m"), name=name, max_steps=STEPS + 5, verbosity_level=-1)
    with Memory(url, strict=True, embedder="off") as memory:
        attached, runs = memory.attach(agent), memory.runs(agent=name)
        if not runs or runs[0].status != "finished":
            events: Any = attached.run(f"Pay for {name}", stream=True) if not runs else None
            for event in events or memory._resume(attached, runs[0], "skip").events or ():
                if isinstance(event, ActionStep):
                    add_line("acknowledged", f"{name} {event.step_number}")
    add_line("finished", name)


def disturb(url: str, kills: int, restarts: int, user: str, crash: list[str]) -> Counter[str]:
    """Kills workers and the server at random moments until all workers have done their work."""
    chance, did, begun = random.Random(1), Counter[str](), 0
    workers: dict[int, str] = {}
    deadline = time.monotonic() + 3000
    while (workers or did["kills"] < kills or did["restarts"] < restarts) and time.monotonic() < deadline:
        while len(workers) < AT_ONCE and (did["kills"] < kills or did["restarts"] < restarts):
            begun += 1
            name = f"agent_{begun}"
            workers[fork(partial(work, url, name))] = name
        wait_for_a_step(3.0)  # on a busy machine, workers would be killed before they have done anything
        time.sleep(chance.uniform(0.0, 0.4))
        if did["restarts"] < restarts and chance.random() < restarts / (kills + restarts):
            did["restarts"] += 1
            quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            subprocess.run(crash, check=True, user=user or None, **quiet)
        elif did["kills"] < kills and workers:
            did["kills"] += 1
            os.kill(chance.choice(list(workers)), signal.SIGKILL)
        ended = {pid: status for pid, status in (os.waitpid(pid, os.WNOHANG) for pid in workers) if pid}
        for pid, status in ended.items():
            name = workers.pop(pid)
            did["failed"] += os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0
            if did["failed"] > 20 + restarts:
                return did
            if name not in lines("finished"):
                did["replaced"] += 1
                workers[fork(partial(work, url, name))] = name
    did["unfinished"] = len(workers)
    return did


def wait_for_a_step(most: float) -> None:
    """Waits until one more step is acknowledged."""
    before, deadline = len(lines("acknowledged")), time.monotonic() + most
    while len(lines("acknowledged")) == before and time.monotonic() < deadline:
        time.sleep(0.02)


def lines(name: str) -> list[str]:
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


def main(url: str, kills: int, restarts: int, user: str, crash: list[str]) -> dict[str, int]:
    CodeAgent(tools=[pay], model=Paying(model_id="m"))  # the children inherit the compiled prompt templates
    with Memory(url, embedder="off"):
        pass
    did = disturb(url, kills, restarts, user, crash)
    told, paid = set(lines("acknowledged")), Counter(lines("paid"))
    stored: set[str] = set()
    runs = unpaid = wrong = 0
    with Memory(url, embedder="off") as memory:
        for run in memory.runs(limit=10_000):
            numbers = [step.number for step in run.steps if step.kind == "action"]
            wrong += numbers != list(range(1, len(numbers) + 1)) or run.status != "finished"
            stored |= {f"{run.agent} {number}" for number in numbers}
            runs += 1
            calls = [call for call in memory._journal.calls(run.id) if call.name == "pay" and call.ended]
            ended = [call for call in calls if "which was due" in str(call.outcome())]  # the others were skipped
            unpaid += sum(not paid[f"{run.agent} {call.arguments()[1]['number']}"] for call in ended)
        report = memory.verify()
    return {
        **did,
        "acknowledged": len(told),
        "lost": len(told - stored),
        "runs": runs,
        "wrong": wrong,
        "paid": sum(paid.values()),
        "doubled": sum(count > 1 for count in paid.values()),
        "unpaid": unpaid,
        "damaged": report.count,
    }


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    print(json.dumps(main(sys.argv[1], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], sys.argv[6:])))
