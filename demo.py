"""The main job, in a terminal: an agent works, its process is killed, and nothing that it did is lost.

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
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.text import Text
from smolagents import CodeAgent, Model, OpenAIServerModel, tool
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import TokenUsage

from smolmem import Memory
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


@tool
def read_log(line: int) -> str:
    """Reads one line of the shop's log, and takes its time.

    Args:
        line: the number of the line, from 0.
    """
    time.sleep(0.3)
    return LOG[line] if 0 <= line < len(LOG) else "(end of the log)"


class ScriptedModel(Model):
    """Plays a model that reads the log line by line; it decides from the conversation that it is sent."""

    def __init__(self) -> None:
        super().__init__(model_id="scripted (no LLM)")

    def generate(self, messages: list[ChatMessage], **_: Any) -> ChatMessage:
        """Says what to do next."""
        seen = sum(message.role == MessageRole.TOOL_RESPONSE for message in messages)
        if seen < len(LOG) + 1:
            said = f"Thought: I read line {seen}.\n<code>\nprint(read_log(line={seen}))\n</code>"
        else:
            said = (
                "Thought: the errors begin with release 41.\n<code>\n"
                "final_answer('Release 41 reads a column that does not exist, orders.currency: roll it back.')\n</code>"
            )
        return ChatMessage(MessageRole.ASSISTANT, said, token_usage=TokenUsage(len(str(messages)) // 4, len(said) // 4))


def make_agent(options: argparse.Namespace) -> CodeAgent:
    """The agent of this story."""
    if options.llm_url:
        model: Model = OpenAIServerModel(options.model, api_base=options.llm_url, api_key=options.api_key)
    else:
        model = ScriptedModel()
    return CodeAgent(
        tools=[read_log], model=model, name="shop_doctor", description="finds out what is wrong", max_steps=12
    )


def work(options: argparse.Namespace) -> None:
    """What the first process does: attach, run. One line more than without smolmem."""
    with Memory(options.db) as memory:
        agent = memory.attach(make_agent(options))
        agent.run(TASK)


def tell(options: argparse.Namespace) -> None:
    """The story: start the worker, kill it in the middle, look at what is left."""
    console.print(Rule("1  An agent works on a task", style="cyan"))
    who = f"{options.model} at {options.llm_url}" if options.llm_url else "a scripted model; no LLM is needed"
    console.print(f"[dim]Model: {who}. Memory: {options.db}[/]\n")
    worker = subprocess.Popen([sys.executable, __file__, "--work", *sys.argv[1:], "--db", str(options.db)])
    seen = wait_for_steps(options.db, worker, wanted=3)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    console.print()
    console.print(Rule(f"2  kill -9, after {seen} steps", style="red"))
    console.print(f"The process [bold]{worker.pid}[/] is gone. It had no chance to save anything.\n")
    console.print(Rule("3  Another process opens the file", style="green"))
    look(options.db)


def wait_for_steps(db: Path, worker: subprocess.Popen[bytes], wanted: int) -> int:
    """Watches the other process's run from here until it has taken so many steps."""
    with Memory(db) as memory:
        while True:
            runs = memory.runs(limit=1)
            if runs and runs[0].step_count >= wanted:
                return runs[0].step_count
            if worker.poll() is not None:
                raise SystemExit("The agent ended before it could be killed; its output above says why.")
            time.sleep(0.02)


def look(db: Path) -> None:
    """What a second process finds."""
    with Memory(db) as memory:
        (run,) = memory.runs(limit=1)
        console.print(run)
        last = run.steps[-1].to_smolagents()
        saw = inert((last.observations or str(last.error)).removeprefix("Execution logs:\n").split("\n")[0])
        console.print(Text("The last step, as a live smolagents object:", style="dim"))
        console.print(Text(f"  {type(last).__name__} {last.step_number}: {saw}"))
        console.print(Text(f"  the model had been sent {len(last.model_input_messages)} messages for it\n"))
        console.print(memory.verify())
        look = f"from smolmem import Memory; print(Memory('{db}').runs())"
        console.print(Text.assemble("\nLook for yourself: ", (f'.venv/bin/python -c "{look}"', "bold")), soft_wrap=True)


def main() -> None:
    """Reads the command line."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--llm-url", help="an OpenAI-compatible server, for instance http://localhost:11434/v1")
    reader.add_argument("--model", default="llama3.2", help="the model's name there (default: %(default)s)")
    reader.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", "none"), help="if the server wants one")
    reader.add_argument("--db", type=Path, help="where to keep the memory (default: a new temporary file)")
    reader.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = reader.parse_args()
    if options.work:
        work(options)
        return
    options.db = options.db or Path(tempfile.mkdtemp(prefix="smolmem-")) / "agent.db"
    tell(options)


if __name__ == "__main__":
    main()
