"""A sample store: runs of small smolagents agents with scripted models, one for each feature of smolmem.

A new user can try every command before recording runs of their own. No LLM is used, and the recorded model id says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw
from smolagents import CodeAgent, Model, ToolCallingAgent, tool
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import LogLevel, TokenUsage

from smolmem.memory import Memory
from smolmem.policies import views
from smolmem.policies.watch import Watch


class Script(Model):  # type: ignore[misc]
    """A model that gives prepared replies in order, and then repeats the last reply.

    A reply is a text, an exception to raise, or a tool call: name, arguments and thought.
    """

    pace = 0.0
    """How many seconds a reply or a tool takes: with some, timelines show where the time goes."""

    def __init__(self, *replies: Any) -> None:
        super().__init__(model_id="scripted (no LLM)")
        self._replies: Iterator[Any] = chain(replies, repeat(replies[-1]))

    def generate(self, messages: list[ChatMessage], **_: Any) -> ChatMessage:
        """Gives the next reply."""
        reply = next(self._replies)
        time.sleep(self.pace)
        if isinstance(reply, Exception):
            raise reply
        used = TokenUsage(sum(len(str(message.content)) for message in messages) // 4, 40)
        if isinstance(reply, tuple):
            name, arguments, thought = reply
            call = ChatMessageToolCall(
                ChatMessageToolCallFunction(name=name, arguments=arguments), id="1", type="function"
            )
            return ChatMessage(MessageRole.ASSISTANT, thought, tool_calls=[call], token_usage=used)
        return ChatMessage(MessageRole.ASSISTANT, reply, token_usage=used)


def fill(path: str | Path, key: str | None = None, *, pace: float = 0.0) -> None:
    """Fills a new file with sample runs; each reply of a model and each tool takes `pace` seconds."""
    Script.pace = pace
    with Memory(path, embedder="off", key=key) as memory:
        _forecast(memory)
        _browse(memory)
        _incident(memory)
        _research(memory)
        _failure(memory)
        _unfinished(memory)


def _code(thought: str, body: str) -> str:
    return f"Thought: {thought}\n<code>\n{body}\n</code>"


def _agent(kind: Any, name: str, *script: Any, **options: Any) -> Any:
    """An agent whose model gives the replies of a script."""
    usual = {"tools": [], "description": name, "verbosity_level": LogLevel.OFF, "max_steps": 30}
    return kind(model=Script(*script), name=name, **usual | options)


def _forecast(memory: Memory) -> None:
    """A code agent that makes a mistake and corrects it; then a fork of the run with another ending."""
    script = [
        _code(
            "I load the sales of the last weeks.",
            "sales = [120, 132, 101, 134, 190, 230, 210]\nprint(len(sales), 'weeks')",
        ),
        _code("The average first.", "average = sum(sales) / (len(sales) - 7)\nprint(average)"),
        _code(
            "That divided by zero. I divide by the number of weeks.",
            "average = sum(sales) / len(sales)\nprint(round(average, 1))",
        ),
        _code(
            "Now the trend of the last three weeks.",
            "def trend(values):\n    # how much the last is above the first\n"
            "    return (values[-1] - values[0]) / values[0]\n\n"
            "print(f'{trend(sales[-3:]):.0%}')",
        ),
        _code("That is enough.", "final_answer(f'About {sales[-1] * (1 + trend(sales[-3:])):.0f} next week')"),
    ]
    agent = memory.attach(_agent(CodeAgent, "forecaster", *script))
    agent.run("How many mugs will we sell next week?")
    memory.detach(agent)
    fork = memory.runs()[0].fork(step=3)
    other = _code("I take the average instead of the trend.", "final_answer(f'About {average:.0f} next week')")
    memory.resume(_agent(CodeAgent, "forecaster", other), fork.id)


COLOURS = ("blue", "red", "green", "white", "black", "grey")


@tool  # type: ignore[untyped-decorator]
def open_page(number: int) -> str:
    """Opens a page of the shop in a browser.

    Args:
        number: the number of the page.
    """
    time.sleep(Script.pace)
    offers = [f"{colour} for ${3 + (7 * number + place) % 11}" for place, colour in enumerate(COLOURS)]
    kind = ["Mugs", "Cups", "Bowls", "Plates", "Jugs"][number % 5]
    return f"Opened page {number}: {kind}, {20 + number} offers: {', '.join(offers)}, …"


def _picture(step: Any, agent: Any) -> None:
    """Adds a drawn screenshot of a browser to a step."""
    image = Image.new("RGB", (640, 400), "#f4f1ea")
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 0, 640, 36), fill="#d9d2c3")
    pen.rectangle((90, 8, 520, 28), fill="white")
    pen.text((100, 12), f"shop.example/page/{step.step_number}", fill="#333")
    for place in range(6):
        left, top = 30 + place % 3 * 200, 60 + place // 3 * 160
        pen.rounded_rectangle((left, top, left + 170, top + 130), 10, fill="white", outline="#c9bfa8")
        pen.ellipse(
            (left + 50, top + 20, left + 120, top + 90),
            fill=f"hsl({(step.step_number * 40 + place * 30) % 360}, 45%, 60%)",
        )
    step.observations_images = [image]


def _browse(memory: Memory) -> None:
    """An agent whose screenshots and old steps are trimmed by views."""
    pages = [("open_page", {"number": number}, f"On to page {number}.") for number in range(1, 14)]
    answer = ("final_answer", {"answer": "Jugs on page 9 are the best offer."}, "I have seen enough.")
    agent = _agent(ToolCallingAgent, "browser", *pages, answer, tools=[open_page], step_callbacks=[_picture])
    memory.attach(agent, views=[views.KeepImages(last=2), views.TokenBudget(1_900)])
    agent.run("Look through the shop and tell me the best offer.")


@tool  # type: ignore[untyped-decorator]
def check_health() -> str:
    """Checks the shop."""
    time.sleep(Script.pace)
    return "health check: 500 Internal Server Error, no such column: currency (release 41)"


@tool  # type: ignore[untyped-decorator]
def roll_back() -> str:
    """Restores the previous release."""
    time.sleep(Script.pace)
    return "rolled back: release 40 is up"


def _incident(memory: Memory) -> None:
    """A rule that fires, an injected message, a note, and a second run that recalls the note."""
    check: Any = ("check_health", {}, "I check the shop's health.")
    answer = ("final_answer", {"answer": "Release 41 reads a column that does not exist. Rolled back."}, "Done.")
    rule = Watch("health check: 5..", name="health", threshold=3)
    repair: Any = ("roll_back", {}, "Three failures: back to the last release.")
    tools = [check_health, roll_back]
    first = _agent(ToolCallingAgent, "monitor", check, check, check, repair, answer, tools=tools)
    memory.attach(first, watch=[rule], tags=["incident"])
    memory.inject(first, "p95 of /checkout is 80 ms", title="baseline")
    first.run("Customers cannot buy. The pager says: health check 500, no such column: currency.")
    memory.remember(
        "Health check 500 with 'no such column: currency': release 41 is broken, roll it back.",
        kind="lesson",
        tags=["shop"],
        origin="model",
        sources=[memory.runs()[0].steps[-1]],
    )
    memory.remember("Deploys happen on Tuesdays", kind="fact")
    memory.detach(first)
    known: Any = ("roll_back", {}, "I remember this one.")
    second = _agent(ToolCallingAgent, "monitor", check, known, answer, tools=tools)
    memory.attach(second, recall=8, watch=[rule], tags=["incident"])
    second.run("The shop's health check fails again: no such column: currency. Repair it.")


def _research(memory: Memory) -> None:
    """An agent that plans, and calls a managed agent."""
    lookup = _code("I look it up.", "print('SQLite: one file, no server')")
    found = _code("That is it.", "final_answer('SQLite keeps everything in one file')")
    librarian = _agent(CodeAgent, "librarian", lookup, found, description="finds things in books")
    script = [
        "1. Ask the librarian about SQLite.\n2. Say what follows for us.",
        _code("I ask the librarian.", "found = librarian(task='What is SQLite?')\nprint(found)"),
        _code("Now the conclusion.", "final_answer('One file is enough for a laptop.')"),
    ]
    agent = _agent(CodeAgent, "researcher", *script, managed_agents=[librarian], planning_interval=5)
    memory.attach(agent)
    agent.run("Do we need a database server?")


def _failure(memory: Memory) -> None:
    """A run that fails because the model's server fails."""
    begin = _code("I begin.", "total = 0\nprint('counting')")
    agent = _agent(CodeAgent, "counter", begin, ConnectionError("the model's server answered 503"))
    memory.attach(agent)
    with suppress(Exception):
        agent.run("Count everything in the warehouse.")


def _unfinished(memory: Memory) -> None:
    """A run that was interrupted, and a run that reached its maximum number of steps."""
    lines = [_code(f"Line {number}.", f"print('line {number} of the log: all is well')") for number in range(20)]
    agent = memory.attach(_agent(CodeAgent, "reader", *lines))
    for number, _ in enumerate(memory.stepwise(agent, "Read the whole log and tell me what is unusual.")):
        if number == 5:
            break
    short = memory.attach(_agent(CodeAgent, "reader", *lines[:4], "I ran out of steps.", max_steps=3))
    short.run("Read another log.")
