"""What a long run costs in prompts, side by side: plain smolagents, the documented callback, and views.

Two hundred steps, a screenshot every second step. The model is scripted and counts tokens as a small vision model
might: 4.3 characters each, 1,105 an image, 180 for what every prompt has. `read again` is what a server that keeps the
longest beginning it has seen would have to read. Then what twenty rules cost a step.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table
from smolagents import CodeAgent, Model
from smolagents.memory import ActionStep, ToolCall
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import Timing, TokenUsage

from smolmem import Memory, Watch
from smolmem.policies import views

BUDGET = 8_000
console = Console(width=110)


class Reader(Model):
    """Reads page after page."""

    def __init__(self, steps: int) -> None:
        super().__init__(model_id="scripted")
        self.steps = steps
        self.prompts: list[list[ChatMessage]] = []

    def generate(self, messages: list[ChatMessage], **_: Any) -> ChatMessage:
        """The next page, or the end."""
        self.prompts.append(list(messages))
        page = len(self.prompts)
        act = f"print('page {page}: ' + 'lorem ipsum dolor ' * 30)" if page < self.steps else "final_answer('read')"
        said = f"Thought: on with page {page}.\n<code>\n{act}\n</code>"
        return ChatMessage(MessageRole.ASSISTANT, said, token_usage=TokenUsage(cost(messages), 30))


def cost(messages: list[ChatMessage]) -> int:
    """The tokens of a prompt."""
    items = [item for message in messages for item in message.content]
    return 180 + int(sum(1_105 if item["type"] == "image" else len(item["text"]) / 4.3 for item in items))


def screenshot(step: ActionStep, agent: Any) -> None:
    """Takes a picture, every second step."""
    if step.step_number % 2 == 0:
        step.observations_images = [Image.new("RGB", (1024, 768), (step.step_number % 255, 10, 20))]


def prune(step: ActionStep, agent: Any) -> None:
    """The documented callback: older pictures are removed from memory."""
    for earlier in agent.memory.steps:
        if isinstance(earlier, ActionStep) and earlier.step_number <= step.step_number - 2:
            earlier.observations_images = None


def run(steps: int, callbacks: list[Any], shown: list[Any] | None) -> tuple[list[list[ChatMessage]], int]:
    """A run; its prompts, and how many of its pictures can still be looked at afterwards."""
    model = Reader(steps)
    agent = CodeAgent(tools=[], model=model, verbosity_level=0, max_steps=steps, step_callbacks=callbacks)
    with tempfile.TemporaryDirectory() as folder, Memory(Path(folder) / "agent.db", embedder="off") as memory:
        if shown is not None:
            memory.attach(agent, views=shown)
        agent.run("Read all pages and report.")
        left = sum(bool(getattr(step, "observations_images", None)) for step in agent.memory.steps)
    return model.prompts, left


def read_again(prompts: list[list[ChatMessage]]) -> int:
    """Tokens behind what each prompt has in common with the one before."""
    total = cost(prompts[0])
    for before, after in pairwise(prompts):
        pairs = enumerate(zip(before, after, strict=False))
        same = next((place for place, (then, now) in pairs if then != now), min(len(before), len(after)))
        total += cost(after[same:]) - 180
    return total


def compare(steps: int) -> dict[str, dict[str, float]]:
    """Prints the table; returns its numbers."""
    ways: dict[str, tuple[list[Any], list[Any] | None]] = {
        "plain smolagents": ([screenshot], None),
        "the documented callback": ([screenshot, prune], None),
        "KeepImages(2)": ([screenshot], [views.KeepImages(2)]),
        "KeepImages(2, slack=4)": ([screenshot], [views.KeepImages(2, slack=4)]),
        "KeepImages(2) and budget": ([screenshot], [views.KeepImages(2), views.TokenBudget(BUDGET)]),
        "the same with summaries": (
            [screenshot],
            [views.KeepImages(2), views.Summarize(), views.TokenBudget(BUDGET)],
        ),
    }
    table = Table("", "largest prompt", "all prompts", "of plain", "read again", "of plain", "pictures left", box=None)
    whole = again = 0
    figures = dict[str, dict[str, float]]()
    for name, (callbacks, shown) in track(ways.items(), "running", console=console, transient=True):
        prompts, left = run(steps, callbacks, shown)
        total, anew = sum(map(cost, prompts)), read_again(prompts)
        whole, again = whole or total, again or anew
        most = max(map(cost, prompts))
        shares = (f"{total:,}", f"{total / whole:.1%}", f"{anew:,}", f"{anew / again:.1%}")
        table.add_row(name, f"{most:,}", *shares, f"{left} of {steps // 2}")
        figures[name] = {"largest": most, "all": total, "read_again": anew, "pictures": left}
    console.print(table)
    return figures


def rules(steps: int) -> float:
    """Prints and returns the milliseconds that twenty rules add to a step."""
    watched = [Watch(rf"HTTP 5\d\d|error {number}|timeout") for number in range(12)]
    watched += [Watch.failures(), Watch.same_error(), Watch.loop(), Watch.slow(), Watch.silence(600)]
    watched += [Watch.tokens(10**9), Watch.cost(1e9, (1.0, 2.0)), Watch.tokens(10**9, hours=24)]
    agent = CodeAgent(tools=[], model=Reader(1), verbosity_level=0)
    began = time.perf_counter()
    for number in range(steps):
        step = ActionStep(
            step_number=number + 1,
            timing=Timing(number, number + 0.5),
            observations="health check: 200 OK, latency 12 ms, all is well. " * 20,
            tool_calls=[ToolCall("check_health", {"number": number}, "1")],
            token_usage=TokenUsage(1_000, 10),
        )
        for rule in watched:
            rule(step, agent=agent)
    took = (time.perf_counter() - began) / steps * 1_000
    console.print(f"\n{len(watched)} rules, {steps:,} steps: {took:.2f} ms a step")
    return took


def main() -> None:
    """Reads the command line."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--steps", type=int, default=200)
    reader.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = reader.parse_args()
    figures = {"steps": options.steps, "ways": compare(options.steps), "rules_ms": rules(10_000)}
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
