"""What an agent's variables cost: a list that grows, and a large table beside small steps.

Each case runs twice, without smolmem and with it. The figures are CPU time per step and the size of the file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from growth import words
from rich.console import Console
from rich.table import Table
from smolagents import CodeAgent, Model, tool
from smolagents.memory import ActionStep
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import TokenUsage

from smolmem import Memory

PAGE = 4000


@tool
def fetch(number: int) -> str:
    """A page.

    Args:
        number: which one
    """
    return words(f"page {number}", PAGE)


@tool
def load_table(rows: int) -> list:
    """A table.

    Args:
        rows: how many rows
    """
    return [{"id": number, "name": f"row {number}", "price": number * 1.5} for number in range(rows)]


class Scripted(Model):
    """A model that writes the given code, step by step."""

    def __init__(self, steps: list[str]) -> None:
        super().__init__(model_id="scripted")
        self.steps = iter(steps)

    def generate(self, messages: list[ChatMessage], **_: Any) -> ChatMessage:
        """The next code."""
        text = f"Thought: on.\n<code>\n{next(self.steps)}\n</code>"
        return ChatMessage(MessageRole.ASSISTANT, text, token_usage=TokenUsage(1000, 50))


def cases(steps: int) -> dict[str, tuple[list[str], int]]:
    """By name: the code of each step, and the bytes of content that its variables get."""
    grown = steps * PAGE
    return {
        "a list that grows": (["found = []", *(f"found.append(fetch({n}))" for n in range(steps))], grown),
        "a list of dicts that grows": (
            ["found = []", *(f"found.append({{'number': {n}, 'text': fetch({n})}})" for n in range(steps))],
            grown,
        ),
        "a dict that grows": (
            # smolagents shows a model the last value of its code: without the print, each text would be an observation
            ["found = {}", *(f"found['{n}'] = fetch({n})\nprint(len(found))" for n in range(steps))],
            grown,
        ),
        "40,000 rows beside small steps": (
            ["rows = load_table(40000)", *(f"total = {n} * 2" for n in range(30))],
            40_000 * 45,
        ),
    }


def run(code: list[str], path: Path | None) -> dict[str, float]:
    """CPU milliseconds per step at the end, and the size of the file."""
    steps = [*code, "final_answer('done')"]
    agent = CodeAgent(tools=[fetch, load_table], model=Scripted(steps), max_steps=len(steps) + 1, verbosity_level=0)
    memory = None if path is None else Memory(path, embedder="off")
    if memory is not None:
        memory.attach(agent)
    marks: list[float] = []
    agent.step_callbacks.register(ActionStep, lambda step, agent: marks.append(time.process_time()))
    agent.run("Collect.")
    if memory is not None:
        memory.close()
    took = [(after - before) * 1000 for before, after in itertools.pairwise(marks)]
    last = took[-max(3, len(took) // 10) :]
    return {"last": sorted(last)[len(last) // 2], "size": path.stat().st_size if path is not None else 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    table = Table(title=f"Variables, {given.steps} steps", title_justify="left")
    for heading in ("case", "plain, ms per step", "with smolmem", "more", "content, MB", "file, MB", "file / content"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    figures = {}
    for name, (code, content) in cases(given.steps).items():
        with tempfile.TemporaryDirectory() as folder:
            plain, recorded = run(code, None), run(code, Path(folder) / "agent.db")
        more = recorded["last"] - plain["last"]
        figures[name] = {
            "plain": plain["last"],
            "recorded": recorded["last"],
            "file": recorded["size"],
            "content": content,
        }
        table.add_row(
            name,
            *(f"{value:.1f}" for value in (plain["last"], recorded["last"], more)),
            *(f"{value / 1e6:.1f}" for value in (content, recorded["size"])),
            f"{recorded['size'] / content:.1f}",
        )
    Console().print(table)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
