"""Workers whose runs are taken over, or must not be: `leaseholders.py KIND FOLDER COUNT SEED`, one JSON line.

    replaced  a worker is killed in a container, and another container with another host name resumes its run
    shared    a worker works in a container, and another container with the same host name tries to resume its run
    stopped   a worker is stopped, its run is resumed elsewhere, and then it wakes up

A container is a process with its own host name and PID namespace; every other one sees the /proc of its host. Every
payment is a line in a file: a line that is there twice was paid twice.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from scripted import Scripted, answer, calls, code
from smolagents import CodeAgent, Model, ToolCallingAgent, tool
from smolagents.models import MessageRole
from workers import fork, warm_up

from smolmem import CannotResume, Memory
from smolmem.core.errors import Busy, TakenOver
from smolmem.store import heartbeat
from smolmem.store.sqlite import sqlite_store

heartbeat.LEASE_SECONDS, heartbeat.BEAT_SECONDS = 0.8, 0.2
LIVING_LEASE_SECONDS = 20.0
"""Of a run that must not be taken over: on a busy machine a heart may beat seconds late."""
sqlite_store.BUSY_SECONDS = 2.0
PAYMENTS = 6
folder = Path()
NEW_MOUNTS, NEW_HOST_NAME, NEW_PROCESSES, PRIVATE = 0x20000, 0x04000000, 0x20000000, 0x44000


@tool
def pay(amount: int) -> str:
    """Pays.

    Args:
        amount: how much
    """
    time.sleep(0.02)
    with open(folder / "paid", "a") as file:
        file.write(f"{amount}\n")
    time.sleep(0.02)
    return f"paid {amount}"


class Counting(Model):
    """A model that does what comes after so many of its own answers; it takes a moment to think."""

    def __init__(self, script: Callable[[str], list[Any]]) -> None:
        super().__init__(model_id="counting")
        self.script = script

    def generate(self, messages: list[Any], **_: Any) -> Any:
        (folder / "begun").touch()
        time.sleep(0.06)
        done = sum(message.role == MessageRole.ASSISTANT for message in messages)
        said = self.script(str(messages))[done]
        return Scripted(said).generate(messages)


def helper_script(prompt: str) -> list[Any]:
    amount = prompt.rpartition("pay just ")[2][:1]
    return [code(f"print(pay(amount={amount}))"), code(f"final_answer('did {amount}')")]


def make(kind: str) -> Any:
    """An agent that pays 1, 2, 3 …"""
    amounts = range(1, PAYMENTS + 1)
    options: dict[str, Any] = {"tools": [pay], "name": "worker", "description": "works", "verbosity_level": -1}
    if kind == "calling":
        script = [*(calls(("pay", {"amount": n})) for n in amounts), answer("done")]
        return ToolCallingAgent(model=Counting(lambda _: script), **options)
    if kind == "managed":
        model = Counting(helper_script)
        helper = CodeAgent(tools=[pay], model=model, name="helper", description="pays", verbosity_level=-1)
        options["managed_agents"] = [helper]
        script = [code(f"print(helper(task='pay just {n}'))") for n in amounts]
    else:
        script = [code(f"print(pay(amount={n}))") for n in amounts]
    return CodeAgent(model=Counting(lambda _: [*script, code("final_answer('done')")]), **options)


def work(kind: str) -> None:
    try:
        with Memory(folder / "agent.db", embedder="off") as memory:
            memory.attach(make(kind)).run("Pay")
        (folder / "worker ended").write_text("done")
    except TakenOver as error:
        (folder / "worker ended").write_text(str(error))


def resume(kind: str, patience: float) -> None:
    """Resumes the run as soon as it is free, and writes how that went."""
    deadline = time.monotonic() + patience
    with Memory(folder / "agent.db", embedder="off") as memory:
        while True:
            runs = memory.runs(managed=False)
            if not runs or runs[0].status == "finished":
                told = "nothing to resume"
                break
            try:
                told = memory.resume(make(kind), runs[0].id, unknown="skip")
                break
            except (CannotResume, Busy) as error:
                told = str(error)
                if time.monotonic() > deadline:
                    break
                time.sleep(0.1)
    (folder / "resumed").write_text(str(told))


# --- containers ------------------------------------------------------------------------------------------------------


def contained(host: str, work: Callable[[], None], *, own_proc: bool) -> int:
    """Forks a container; the process in it is the only child of the one whose id is returned."""
    container = os.fork()
    if container == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        refused = libc.unshare(NEW_HOST_NAME | NEW_PROCESSES | NEW_MOUNTS)
        if not refused:
            socket.sethostname(host)
            refused = os.waitpid(fork(lambda: _enter(libc, work, own_proc=own_proc)), 0)[1]
        os._exit(1 if refused else 0)
    return container


def _enter(libc: ctypes.CDLL, work: Callable[[], None], *, own_proc: bool) -> None:
    if own_proc and (libc.mount(b"none", b"/", None, PRIVATE, None) or libc.mount(b"proc", b"/proc", b"proc", 0, None)):
        raise OSError(ctypes.get_errno(), "mount")
    work()


def inside_of(container: int) -> int:
    """The process in a container, as its host names it."""
    while True:
        found = Path(f"/proc/{container}/task/{container}/children").read_text().split()
        if found:
            return int(found[0])
        time.sleep(0.001)


def is_permitted() -> str:
    """Why containers cannot be made here; empty if they can."""
    ended = os.waitpid(contained("try", lambda: None, own_proc=True), 0)[1]
    return "" if ended == 0 else "namespaces are not permitted"


# --- cases -----------------------------------------------------------------------------------------------------------


def begun(chance: random.Random) -> None:
    """Waits until the worker has a run, and for a random moment after that."""
    deadline = time.monotonic() + 20
    while not (folder / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(chance.uniform(0.0, 0.6))


def send(process: int, what: int) -> None:
    with suppress(ProcessLookupError):  # it is done already
        os.kill(process, what)


def case(kind: str, agent: str, chance: random.Random, number: int) -> Counter[str]:
    host, own_proc = {"shared": ("one", "one")}.get(kind, ("one", "two")), number % 2 == 0
    worker = contained(host[0], lambda: work(agent), own_proc=own_proc)
    process = inside_of(worker)
    begun(chance)
    if kind != "shared":
        send(process, signal.SIGKILL if kind == "replaced" else signal.SIGSTOP)
    if kind == "replaced":
        os.waitpid(worker, 0)
    patience = 0.3 if kind == "shared" else 20.0
    other = contained(host[1], lambda: resume(agent, patience), own_proc=own_proc)
    failed = os.waitpid(other, 0)[1]
    if kind == "stopped":
        send(process, signal.SIGCONT)
    if kind != "replaced":
        failed |= os.waitpid(worker, 0)[1]
    return outcome(kind, failed)


def outcome(kind: str, failed: int) -> Counter[str]:
    paid = Counter((folder / "paid").read_text().split()) if (folder / "paid").exists() else Counter[str]()
    told = (folder / "resumed").read_text() if (folder / "resumed").exists() else "failed"
    ended = (folder / "worker ended").read_text() if (folder / "worker ended").exists() else ""
    found = Counter({"cases": 1, "failed": int(failed != 0), "doubled": sum(paid.values()) - len(paid)})
    found[f"resumer: {told.partition(' ')[0]}"] += 1
    found["taken over"] += "was taken over by process" in ended
    with Memory(folder / "agent.db", embedder="off") as memory:
        runs = memory.runs(managed=False)
        found["unfinished"] += any(run.status != "finished" for run in runs)
        found["damaged"] += memory.verify().count
        found["unsaid"] += told == "done" and len(memory.alerts(rule="takeover")) != 1
    if kind == "shared":
        found["wrong"] += len(paid) != PAYMENTS or told == "done"
    return found


def main(kind: str, count: int, seed: int) -> dict[str, Any]:
    reason = is_permitted()
    if reason:
        return {"skipped": reason}
    if kind == "shared":
        heartbeat.LEASE_SECONDS = LIVING_LEASE_SECONDS
    warm_up()
    chance, total = random.Random(seed), Counter[str]()
    for number in range(count):
        for file in folder.iterdir():
            file.unlink()
        total += case(kind, ("code", "calling", "managed")[number % 3], chance, number)
    return dict(total)


if __name__ == "__main__":
    kind, where, count, seed = sys.argv[1:]
    folder = Path(where)
    print(json.dumps(main(kind, int(count), int(seed))))
