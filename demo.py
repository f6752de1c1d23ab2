"""The main job, in a terminal: an agent works, is killed in the middle of a tool call, and goes on where it was.

Without a model server a scripted model plays the agent's part, so that the demo runs anywhere. With
`--llm-url http://localhost:11434/v1 --model llama3.2` (Ollama, or anything that speaks OpenAI's protocol) a real one
does. Either way the agent, its tools, its steps and the kill are real.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from smolagents import CodeAgent, Model, OpenAIServerModel, tool
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import TokenUsage

from smolmem import Memory
from smolmem.errors import UnknownOutcome
from smolmem.record.show import inert

TASK = "Go through the shop's log, find out what breaks the checkout, and say how to mend it."
LOG = [
    "09:12 checkout answered 200 in 80 ms",
    "09:14 deployed release 41",
    "09:15 checkout answered 500: column orders.currency does not exist",
    "09:16 checkout answered 500: column orders.currency does not exist",
    "09:17 checkout answered 500: column orders.currency does not exist",
]
console = Console()


calls = Path("calls")
"""Where the tool notes each call, outside of all memory: the proof of how often it really happened."""


@tool
def read_log(line: int) -> str:
    """Reads one line of the shop's log, and takes its time.

    Args:
        line: the number of the line, from 0.
    """
    note(f"begin {line}")
    time.sleep(0.4)
    note(f"end {line}")
    return LOG[line] if 0 <= line < len(LOG) else "(end of the log)"


def note(text: str) -> None:
    """Adds a line to the file of calls."""
    with calls.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


class ScriptedModel(Model):
    """Plays a model that reads the log line by line; it decides from the conversation that it is sent."""

    def __init__(self) -> None:
        super().__init__(model_id="scripted (no LLM)")

    def generate(self, messages: list[ChatMessage], **_: Any) -> ChatMessage:
        """Says what to do next."""
        seen = sum(message.role == MessageRole.TOOL_RESPONSE for message in messages)
        if any("Memories from earlier runs" in str(message.content) for message in messages):
            said = self.remembering(seen)
        elif seen < len(LOG) + 1:
            said = f"Thought: I read line {seen}.\n<code>\nprint(read_log(line={seen}))\n</code>"
        else:
            said = (
                "Thought: the errors begin with release 41.\n<code>\n"
                "final_answer('Release 41 reads a column that does not exist, orders.currency: roll it back.')\n</code>"
            )
        return ChatMessage(MessageRole.ASSISTANT, said, token_usage=TokenUsage(len(str(messages)) // 4, len(said) // 4))

    def remembering(self, seen: int) -> str:
        """What to do next with a memory of what it was the last time: look there first."""
        if seen == 0:
            return "Thought: last time it was release 41, I check that.\n<code>\nprint(read_log(line=2))\n</code>"
        return (
            "Thought: it is the same again.\n<code>\n"
            "final_answer('The same as last time: orders.currency does not exist. Roll release 41 back.')\n</code>"
        )


def make_agent(options: argparse.Namespace, *, quiet: bool = False) -> CodeAgent:
    """The agent of this story."""
    if options.llm_url:
        model: Model = OpenAIServerModel(options.model, api_base=options.llm_url, api_key=options.api_key)
    else:
        model = ScriptedModel()
    about = {"name": "shop_doctor", "description": "finds out what is wrong"}
    return CodeAgent(tools=[read_log], model=model, max_steps=12, verbosity_level=0 if quiet else 1, **about)


def work(options: argparse.Namespace) -> None:
    """What the first process does: attach, run. One line more than without smolmem."""
    with Memory(options.db) as memory:
        agent = memory.attach(make_agent(options))
        agent.run(TASK)


def tell(options: argparse.Namespace) -> None:
    """The story."""
    chapter("1  An agent works on a task", "cyan")
    who = f"{options.model} at {options.llm_url}" if options.llm_url else "a scripted model; no LLM is needed"
    console.print(f"[dim]Model: {who}. Memory: {options.db}[/]\n")
    worker = subprocess.Popen([sys.executable, __file__, "--work", *sys.argv[1:], "--db", str(options.db)])
    wait_for_call(worker, wanted=4)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    chapter("2  kill -9, in the middle of a tool call", "red")
    console.print(f"The process [bold]{worker.pid}[/] is gone. It had no chance to save anything.")
    with Memory(options.db) as memory:
        chapter("3  Another process opens the file", "green")
        (run,) = memory.runs()
        console.print(run)
        go_on(memory, options)
        branch(memory, options, run.id)
        remember(memory, options, run.id)
        chapter("7  The whole story, from the record; nothing is run", "cyan")
        memory.replay(run.id, console=console)
        console.print(memory.verify())
    look = f"from smolmem import Memory; print(Memory('{options.db}').runs())"
    console.print(Text.assemble("\nLook for yourself: ", (f'.venv/bin/python -c "{look}"', "bold")), soft_wrap=True)


def go_on(memory: Memory, options: argparse.Namespace) -> None:
    """The run is resumed."""
    chapter("4  The run goes on where it was cut", "green")
    agent = make_agent(options)
    try:
        answer = memory.resume(agent)
    except UnknownOutcome as unknown:
        console.print(Text(f"UnknownOutcome: {unknown}\n", style="yellow"))
        console.print("Reading a log twice does no harm, so: [bold]memory.resume(agent, unknown='rerun')[/]\n")
        answer = memory.resume(agent, unknown="rerun")
    console.print(Text(f"\nAnswer: {inert(str(answer))}", style="bold green"))
    began, ended = (Counter(line.split()[1] for line in noted(word)) for word in ("begin", "end"))
    told = ", ".join(f"line {line}: {times}×" for line, times in sorted(began.items()))
    console.print(f"What the tool itself counted: {told}.")
    console.print(f"Calls that had ended were not made again: {max(ended.values()) == 1}.")


def branch(memory: Memory, options: argparse.Namespace, run: str) -> None:
    """The run is forked."""
    chapter("5  A second way, from step 2 on; the past is shared, not copied", "magenta")
    fork = memory.fork(run, at=2)
    console.print(f"[bold]{fork}[/]")
    answer = memory.resume(make_agent(options, quiet=True), fork.id)
    console.print(Text(f"Its answer: {inert(str(answer))}"))
    parted = memory.diff(run, fork.id)
    where = f"they part after {parted.common} steps" if parted else f"it went the same way, {parted.common} steps"
    console.print(f"Compared with the first run, {where}.")


def remember(memory: Memory, options: argparse.Namespace, before: str) -> None:
    """Another session meets the same trouble, and remembers."""
    chapter("6  Another day, the same trouble: a new agent that remembers", "yellow")
    agent = memory.attach(make_agent(options, quiet=True), recall=3)
    answer = agent.run("Customers cannot pay again. Find out what breaks the checkout.")
    reminded = agent.write_memory_to_messages()[2].content[0]["text"]
    console.print("What it was reminded of, behind its task:")
    console.print(Panel(Text(inert(reminded)), style="dim"))
    console.print(Text(f"Its answer: {inert(str(answer))}\n"))
    first, second = memory.run(before), memory.runs()[0]
    told = Table("", "steps", "tool calls", "input tokens", box=None)
    for title, run in (("without a memory of it", first), ("with", second)):
        used = sum(step.text.count("read_log(line=") for step in run.steps if step.kind == "action")
        told.add_row(title, str(run.step_count), str(used), f"{run.input_tokens:,}")
    console.print(told)
    console.print('\nThe question "why could nobody pay?", asked of everything that was ever recorded:')
    for found in memory.recall("why could nobody pay at the checkout?", 2):
        console.print(found)


def chapter(title: str, colour: str) -> None:
    """A headline."""
    console.print()
    console.print(Rule(title, style=colour))


def noted(word: str) -> list[str]:
    """The calls that the tool has noted."""
    lines = calls.read_text(encoding="utf-8").splitlines() if calls.exists() else []
    return [line for line in lines if line.startswith(word)]


def wait_for_call(worker: subprocess.Popen[bytes], wanted: int) -> None:
    """Watches the tool's notes until the other process is inside its n-th call."""
    while len(noted("begin")) < wanted:
        if worker.poll() is not None:
            raise SystemExit("The agent ended before it could be killed; its output above says why.")
        time.sleep(0.02)
    time.sleep(0.1)


def main() -> None:
    """Reads the command line."""
    global calls
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--llm-url", help="an OpenAI-compatible server, for instance http://localhost:11434/v1")
    reader.add_argument("--model", default="llama3.2", help="the model's name there (default: %(default)s)")
    reader.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", "none"), help="if the server wants one")
    reader.add_argument("--db", type=Path, help="where to keep the memory (default: a new temporary file)")
    reader.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = reader.parse_args()
    options.db = options.db or Path(tempfile.mkdtemp(prefix="smolmem-")) / "agent.db"
    calls = options.db.with_suffix(".calls")
    if options.work:
        work(options)
        return
    tell(options)


if __name__ == "__main__":
    main()
