"""How fast the inspector is with a large memory: 10,000 runs, 1,000,000 steps, one run of 500 steps.

    make bench-inspector                                           # builds the memory in a few minutes and keeps it
    make bench-inspector ARGS="--runs 200 --steps 20000 --file small.db"

The server runs in its own process, as `smolmem ui` starts it. Each figure is the median of twenty complete HTTP
responses. Runs are written in batches, as a recorder writes them; the run of 500 steps comes from a real agent with a
scripted model. The newest `--indexed` steps are searchable, the others are not indexed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import track
from rich.table import Table
from smolagents import CodeAgent, Model
from smolagents.memory import ActionStep, TaskStep, ToolCall
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import LogLevel, Timing, TokenUsage
from smolagents.utils import AgentExecutionError

from smolmem import Memory
from smolmem.core import prompts
from smolmem.core.encoding import codec, step_facts
from smolmem.core.rows import Batch, Change, RunRow, SessionRow
from smolmem.store.journal import Journal

LONG = 500
"""The number of steps of the long run."""
AGENTS = [f"{name}_{kind}" for name in ("shop", "mail", "build", "stock") for kind in ("monitor", "clerk", "analyst")]
TOOLS = ["web_search", "query_orders", "send_mail", "check_health", "read_file", "roll_back"]
CALLED_STEPS = 30
"""Of each run, the calls of the last steps are in the ledger."""
SCOPES = ["default", "acme/alice", "acme/bob", "acme/ops", "globex/eve"]
WORDS = re.findall(
    r"\w+",
    "check the shop health after release and count orders of last week report slow queries database index mails "
    "customers invoice deploy server disk latency cache timeout build test page browser price offer stock warehouse",
)
chance = random.Random(1)


# --- building --------------------------------------------------------------------------------------------------------


def sentence(length: int) -> str:
    """Random words."""
    return " ".join(chance.choices(WORDS, k=length))


@dataclass(frozen=True)
class Prepared:
    """A step that is encoded once and written many times."""

    encoded: Any
    facts: Any
    rendered: Any


def prepared(step: Any) -> Prepared:
    """A step as a recorder encodes it."""
    encoded = codec.encode(step)
    shown = prompts.encoded_messages(
        prompts.rendered_messages(step), step, encoded, lambda messages, _: codec.encode(messages)
    )
    return Prepared(encoded, step_facts.facts(step), shown)


def action(failed: bool) -> Prepared:
    """A step of a code agent: a thought, code, and its output."""
    said = f"Thought: {sentence(12)}.\n<code>\nfor row in rows:\n    print(row)\n</code>"
    seen = "Execution logs:\n" + "\n".join(f"{chance.randint(100, 999)} {sentence(6)}" for _ in range(6))
    step = ActionStep(
        step_number=1,
        timing=Timing(0.0, round(chance.expovariate(0.5), 3)),
        model_output=said,
        code_action="for row in rows:\n    print(row)",
        tool_calls=[ToolCall("python_interpreter", "for row in rows:\n    print(row)", "call_1")],
        token_usage=TokenUsage(chance.randint(1_000, 9_000), chance.randint(20, 300)),
        observations=None if failed else seen,
    )
    if failed:
        step.error = AgentExecutionError(f"InterpreterError: {sentence(5)}", _Quiet())
    return prepared(step)


class _Quiet:
    """A logger: errors of smolagents log themselves when they are created."""

    def log_error(self, message: str) -> None:
        """Does nothing."""


def build(path: Path, runs: int, steps: int, indexed: int) -> None:
    """Builds a memory with this number of runs and steps, the newest `indexed` steps searchable."""
    part = path.with_name(f".{path.name}.part")
    for file in (part, part.with_name(f"{part.name}-wal"), part.with_name(f"{part.name}-shm")):
        file.unlink(missing_ok=True)
    with Memory(part, durability="normal", embedder="off") as memory:
        journal = memory._journal
        good, bad = [action(False) for _ in range(2_000)], [action(True) for _ in range(100)]
        sizes = _sizes(runs, steps)
        began = time.time() - 30 * 86_400
        parent = None
        for number, size in enumerate(track(sizes, "runs", console=Console(stderr=True))):
            row = _write(journal, began + number * 30 * 86_400 / runs, size, (good, bad), parent)
            parent = row if row["parent"] is None and number % 20 == 0 else None
        for run in memory.runs(scope="*", status="finished", limit=20):
            run.fork(step=1)
        _drop_pending(journal, indexed)
        memory.index()
        _long_run(memory)
    part.rename(path)


def _sizes(runs: int, steps: int) -> list[int]:
    """The number of steps of each run: most runs are short, a few are long."""
    drawn = [min(chance.paretovariate(1.2), 20) for _ in range(runs)]
    share = (steps - LONG) / sum(drawn)
    return [max(2, round(one * share)) for one in drawn]


def _write(
    journal: Journal, at: float, size: int, steps: tuple[list[Prepared], list[Prepared]], parent: RunRow | None
) -> RunRow:
    scope = chance.choice(SCOPES) if parent is None else parent["scope"]
    status = chance.choices(["finished", "failed", "max_steps", "interrupted"], [88, 6, 3, 3])[0]
    agent, title = chance.choice(AGENTS), f"{sentence(9)} {chance.randint(1, 10**6)}"
    session: SessionRow = {
        "id": os.urandom(8).hex(),
        "scope": scope,
        "agent": agent,
        "began": at,
        "fork_of": None,
        "fork_at": None,
    }
    row: RunRow = {
        "id": os.urandom(8).hex(),
        "session": session["id"],
        "scope": scope,
        "agent": agent,
        "agent_type": "CodeAgent",
        "title": title,
        "status": "running",
        "began": at,
        "ended": None,
        "parent": None if parent is None else parent["id"],
        "parent_step": None if parent is None else 1,
        "fork_of": None,
        "model": "scripted",
        "smolagents": "1.24.0",
        "max_steps": 200,
        "steps": 0,
        "errors": 0,
        "input_tokens": 0,
        "output_tokens": 0,
        "answer": None,
        "failure": None,
        "writer": "elsewhere:1:1",
        "tags": "[]",
    }
    changes = list(_changes(row, at, size, steps))
    journal.save(Batch(session, True, [row], (), changes[:1]))
    ended: RunRow = {**row, "status": status, "ended": at + 3.0 * size}  # type: ignore[typeddict-item]
    result = ("failure", {"type": "ConnectionError", "message": sentence(5), "traceback": ""})
    kept = result if status == "failed" else ("answer", sentence(12))
    results = [(row["id"], kept[0], codec.encode(kept[1]))] if status != "interrupted" else []
    journal.save(Batch(session, False, [ended], results, changes[1:]))
    _write_calls(journal, row["id"], at, size)
    return row


def _write_calls(journal: Journal, run: str, at: float, size: int) -> None:
    """The model's answer and a tool call of each of the last steps of a run."""
    content = codec.encode(sentence(4))

    def write() -> None:
        kept = {"arguments": journal.keep(content), "outcome": journal.keep(content)}
        for number in range(max(1, size - CALLED_STEPS), size):
            began = at + 3 * number - 2
            for kind, name, start, end in (("model", "", 0.0, 1.2), ("tool", chance.choice(TOOLS), 1.3, 1.8)):
                failed = int(kind == "tool" and chance.random() < 0.05)
                row = {"run": run, "turn": number, "kind": kind, "name": name, "failed": failed, "web": None, **kept}
                journal.add("call", row | {"began": began + start, "ended": began + end})

    journal.store.transact(write, sync=False)


def _changes(row: RunRow, at: float, size: int, steps: tuple[list[Prepared], list[Prepared]]) -> Iterator[Change]:
    task = prepared(TaskStep(task=row["title"]))
    yield Change("insert", row["id"], at, 0, encoded=task.encoded, facts=task.facts, rendered=task.rendered)
    for number in range(1, size):
        one = chance.choice(steps[chance.random() < 0.04])
        facts = {**one.facts, "number": number}
        yield Change(
            "insert", row["id"], at + 3 * number, number, encoded=one.encoded, facts=facts, rendered=one.rendered
        )


class Talkative(Model):
    """A scripted model that writes code at each step."""

    def __init__(self) -> None:
        super().__init__(model_id="scripted (no LLM)")
        self._number = 0

    def generate(self, messages: list[ChatMessage], **_: Any) -> ChatMessage:
        """The next message."""
        self._number += 1
        rows = [f"{{'order': {chance.randint(1, 10**6)}, 'about': {sentence(9)!r}}}" for _ in range(8)]
        body = "rows = [\n    " + ",\n    ".join(rows) + ",\n]\nfor row in rows:\n    print(row['order'], row['about'])"
        if self._number % 25 == 0:
            body += "\nprint(rows[99])"
        if self._number == LONG:
            body = "final_answer('All orders are accounted for.')"
        used = TokenUsage(1_500 + 40 * self._number, chance.randint(80, 400))
        said = f"Thought: {sentence(20)}.\n<code>\n{body}\n</code>"
        return ChatMessage(MessageRole.ASSISTANT, said, token_usage=used)


def _long_run(memory: Memory) -> None:
    agent = CodeAgent(
        tools=[], model=Talkative(), verbosity_level=LogLevel.OFF, max_steps=LONG, name="long", description="it is"
    )
    memory.attach(agent)
    agent.run("Go through the orders of the last year and account for each of them.")
    memory.detach(agent)


def _drop_pending(journal: Journal, indexed: int) -> None:
    """Takes all but the newest steps off the list of pending steps."""
    connection = journal.store._connection  # type: ignore[attr-defined]
    drop = "DELETE FROM pending WHERE step <= (SELECT max(id) FROM step) - ?"
    journal.store.transact(lambda: connection.execute(drop, (indexed,)))


# --- measuring -------------------------------------------------------------------------------------------------------

_SERVE = """
import sys, uvicorn
from smolmem import Memory
from smolmem.inspector.app import make_app
from smolmem.inspector.guard import new_access
from smolmem.inspector.serve import link_of
from smolmem.listening import hosts_of, listen
listening = listen("127.0.0.1", 0, strict=True)
port = listening.getsockname()[1]
access = new_access(hosts_of("127.0.0.1", port), read_only=False)
with Memory(sys.argv[1], embedder="off") as memory:
    print(link_of("127.0.0.1", port, access), flush=True)
    config = uvicorn.Config(make_app(memory, access), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listening])
"""


@dataclass(frozen=True)
class Figure:
    """A measurement and its target."""

    what: str
    found: float
    unit: str
    target: float | None = None
    also: str = ""

    def row(self) -> tuple[str, ...]:
        """The row of the table."""
        goal = "" if self.target is None else f"< {self.target:,.0f} {self.unit}"
        word = "" if self.target is None else "[green]met[/]" if self.found < self.target else "[bold red]missed[/]"
        return self.what, f"{self.found:,.1f} {self.unit}", self.also, goal, word


def timed(client: httpx.Client, address: str, times: int = 20) -> tuple[float, str, int]:
    """The median duration of a response in milliseconds, a text about the others, and the size in bytes."""
    took, size = [], 0
    for _ in range(times):
        began = time.perf_counter()
        answer = client.get(address)
        took.append(1_000 * (time.perf_counter() - began))
        answer.raise_for_status()
        size = len(answer.content)
    return statistics.median(took), f"first {took[0]:,.0f}, slowest {max(took):,.0f}; {size / 1000:,.0f} kB", size


def measure(path: Path) -> list[Figure]:
    """All measurements, on a server that was just started."""
    with Memory(path, embedder="off") as memory:
        run = next(run for run in memory.runs(scope="*", agent="long") if run.fork_of is None)
        steps = run.steps
        until = memory.runs(scope="*", limit=5_000)[-1].began.timestamp()
    server = subprocess.Popen([sys.executable, "-c", _SERVE, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        link = server.stdout.readline().strip()
        base = link.partition("/?")[0]
        with httpx.Client(base_url=base, timeout=600, follow_redirects=True) as client:
            client.get(link).raise_for_status()
            figures = [
                _page(client, what, address, target) for what, address, target in _pages(run.id, steps[-1].id, until)
            ]
            weight = len(client.get(f"/runs/{run.id}").content) / 1_000
        figures.append(Figure(f"page weight of the run of {LONG} steps", weight, "kB", 300))
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
        figures.append(Figure("server: peak RSS", int(peak[1]) / 1_000 if peak else 0.0, "MB"))
    finally:
        server.terminate()
        server.wait()
    return figures


def _pages(run: str, step: int, until: float) -> Iterator[tuple[str, str, float | None]]:
    yield "first page", "/", 200
    yield f"a run of {LONG} steps", f"/runs/{run}", 300
    yield "… its fragment, while it runs", f"/runs/{run}?fragment=1", 300
    yield "… its last step", f"/steps/{step}", None
    yield "… the prompt of its last step", f"/steps/{step}/prompt", None
    yield "filter: text", "/?text=warehouse+price&fragment=1", 100
    yield "filter: text that no run has", "/?text=zeppelin&fragment=1", 100
    for status in ("running", "finished", "failed", "interrupted", "max_steps"):
        yield f"filter: status {status}", f"/?status={status}&fragment=1", 100
    yield "filter: agent", f"/?agent={AGENTS[0]}&fragment=1", 100
    yield "filter: scope", "/?scope=acme%2Fops&fragment=1", 100
    yield "filter: scope and all below", "/?scope=acme%2F*&fragment=1", 100
    yield (
        "filter: text, status, agent, scope",
        f"/?text=slow&status=failed&agent={AGENTS[0]}&scope=default&fragment=1",
        100,
    )
    yield "filter: model", "/?model=scripted&fragment=1", 100
    yield "filter: tool", "/?tool=roll_back&fragment=1", 150
    yield "filter: a tool that nobody called", "/?tool=nothing&fragment=1", 150
    yield "filter: last 7 days", "/?since=7d&fragment=1", 100
    for order in ("duration", "tokens", "oldest"):
        yield f"sorted by {order}", f"/?sort={order}&fragment=1", 150
    yield "dashboard: 30 days", "/dashboard", 300
    yield "dashboard: all time", "/dashboard?period=all", 300
    yield "dashboard: one scope", "/dashboard?scope=acme%2Fops", 500
    yield "older runs: the 100th page", f"/?until={until!r}&fragment=1", 100
    yield "data version", "/data-version", None
    yield "memory page", "/memory", None
    yield "memory search, two rare words", "/memory?q=417+482&fragment=1", None
    yield "memory search, three words that every step has", "/memory?q=slow+database+index&fragment=1", None
    yield "compare page", "/compare", None
    yield f"compare: a run of {LONG} steps with itself", f"/compare?left={run}&right={run}", None
    yield "alerts page", "/alerts", None
    yield "alerts: a rule on 20,000 steps", "/alerts?rule=failures&threshold=3&window=10", None


def _page(client: httpx.Client, what: str, address: str, target: float | None) -> Figure:
    times = 3 if "20,000" in what else 20
    median, also, _ = timed(client, address, times)
    return Figure(what, median, "ms", target, also)


def main() -> None:
    """Builds the memory if needed, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--indexed", type=int, default=50_000, help="how many of the newest steps are searchable")
    parser.add_argument("--file", type=Path, help="where the memory is kept; an existing file is measured again")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    given = parser.parse_args()
    path = given.file or Path(tempfile.gettempdir()) / f"smolmem-inspector-{given.runs}-{given.steps}.db"
    began = time.perf_counter()
    if not path.exists():
        build(path, given.runs, given.steps, given.indexed)
    built = time.perf_counter() - began
    with Memory(path, embedder="off") as memory:
        counts = memory.stats()
    title = (
        f"{counts.runs:,} runs, {counts.steps:,} steps, {path.stat().st_size / 1e6:,.0f} MB; built in {built:,.0f} s"
    )
    table = Table("what", "median of 20", "and", "target", "", title=title)
    figures = measure(path)
    for figure in figures:
        table.add_row(*figure.row())
    Console().print(table)
    if given.json is not None:
        about = {"runs": counts.runs, "steps": counts.steps, "bytes": path.stat().st_size, "build_s": built}
        given.json.write_text(json.dumps(about | {"figures": [asdict(figure) for figure in figures]}, indent=1))


if __name__ == "__main__":
    main()
