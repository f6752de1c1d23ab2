"""Which step was it? Recall on agents' runs instead of chat: questions whose answer is one step of one run.

    make bench-runs

Real smolagents agents, played by scripted models, work through everyday incidents: a missing column, a full disk, a
merge conflict, a wrong unit. Each kind of incident happens to ten different things, so that words alone do not tell
which step is meant, and the questions use other words than the steps. A hit is the step that the question is about.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from smolagents import CodeAgent, Model, Tool
from smolagents.models import ChatMessage, MessageRole

from smolmem import Memory

THINGS = "invoices payroll inventory telemetry newsletter checkout payments catalogue archive backups".split()  # noqa: SIM905

INCIDENTS: list[tuple[str, list[tuple[str, str]], dict[int, list[str]]]] = [
    (
        "Add up the amounts in {t}.csv",
        [
            ("I read the file.", "print(open_csv('{t}.csv').columns)\n>>Index(['id', 'when', 'cost'])"),
            (
                "I sum the column.",
                "df['amount'].sum()\n>>Traceback (last call first): KeyError: 'amount' in {t}.csv",
            ),
            ("The column has another name.", "df['cost'].sum()\n>>18234.5"),
        ],
        {
            1: ["which step printed the traceback about the missing column in the {t} table?"],
            2: ["where did the total of {t} finally come out?"],
        },
    ),
    (
        "The {t} server answers slowly, find out why",
        [
            ("I look at the load.", "top('{t}-1')\n>>load average 0.4, memory 31 % used"),
            ("Then the disk.", "df('{t}-1')\n>>/dev/sda1 100% used, 0 bytes available on {t}-1"),
            ("I remove old logs.", "clean('{t}-1')\n>>freed 41 GB"),
        ],
        {
            1: ["when did we see that the storage of the {t} machine was exhausted?"],
            2: ["how was space made on the {t} host?"],
        },
    ),
    (
        "Merge the {t} branch",
        [
            ("I try it.", "git('merge {t}')\n>>CONFLICT (content): Merge conflict in {t}/settings.toml"),
            ("Both sides changed the timeout.", "git('checkout --theirs {t}/settings.toml')\n>>Updated 1 path"),
            ("Now it goes through.", "git('commit')\n>>[main 4fd2] Merge {t}"),
        ],
        {0: ["the step in which two people's edits of {t} clashed"], 2: ["when was {t} integrated into main?"]},
    ),
    (
        "Check whether {t} is healthy",
        [
            (
                "I ask it.",
                "get('https://{t}.example/health')\n>>503: upstream {t}-db refused connection",
            ),
            ("The database is down, I restart it.", "restart('{t}-db')\n>>{t}-db is running, pid 4711"),
            ("Again.", "get('https://{t}.example/health')\n>>200 OK"),
        ],
        {
            0: ["which check showed that {t} could not reach its database?"],
            1: ["what was rebooted to repair {t}?"],
        },
    ),
    (
        "How warm was it in the {t} room in May?",
        [
            ("I load the sensor.", "load('{t}-sensor')\n>>744 rows, mean 71.2"),
            ("71 degrees cannot be Celsius.", "meta('{t}-sensor')\n>>unit: Fahrenheit"),
            ("I convert.", "(71.2 - 32) / 1.8\n>>21.8"),
        ],
        {1: ["where did it turn out that the {t} thermometer used the American scale?"]},
    ),
]


class Played(Model):
    """Says what stands in its script."""

    def __init__(self, script: list[str]) -> None:
        super().__init__(model_id="scripted")
        self.script = iter(script)

    def generate(self, messages: list[ChatMessage], **_: object) -> ChatMessage:
        """The next line."""
        return ChatMessage(MessageRole.ASSISTANT, next(self.script))


class Shell(Tool):
    """Does what it is asked to, by the script."""

    name = "shell"
    description = "Runs something."
    inputs = {"command": {"type": "string", "description": "what"}}  # noqa: RUF012
    output_type = "string"

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, str] = {}

    def forward(self, command: str) -> str:
        """The result that stands in the script."""
        return self.results[command]


def live(memory: Memory) -> list[tuple[str, int]]:
    """Lets all incidents happen; returns the questions and the steps they are about."""
    asked: list[tuple[str, int]] = []
    for task, steps, questions in INCIDENTS:
        for thing in THINGS:
            script, tool = [], Shell()
            for thought, work in steps:
                asked_for, seen = work.replace("{t}", thing).split("\n>>")
                tool.results[asked_for] = seen
                script.append(f"{thought}\n<code>\nprint(shell({asked_for!r}))\n</code>")
            script.append("That is it.\n<code>\nfinal_answer('done')\n</code>")
            agent = memory.attach(CodeAgent(tools=[tool], model=Played(script), verbosity_level=0))
            agent.run(task.replace("{t}", thing))
            memory.detach(agent)
            actions = [step.id for step in memory.runs()[0].steps if step.kind == "action"]
            asked += [
                (question.replace("{t}", thing), actions[number])
                for number, several in questions.items()
                for question in several
            ]
    return asked


def measure(rerank: bool) -> dict[str, Any]:
    """By way of searching: how often the step that is meant comes first, and among the first five."""
    ways = {"words": ("off", False), "words and meaning": ("local", False)}
    if rerank:
        ways["words and meaning, reranked"] = ("local", True)
    figures = dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        with Memory(path, durability="normal", embedder="off") as memory:
            asked = live(memory)
        for title, (embedder, reranked) in ways.items():
            with Memory(path, durability="normal", embedder=embedder) as memory:
                memory.index()
                found = [[one.step for one in memory.recall(text, 5, rerank=reranked)] for text, _ in asked]
            pairs = list(zip(found, (gold for _, gold in asked), strict=True))
            figures[title] = {
                "questions": len(asked),
                "first": 100 * sum(steps[:1] == [gold] for steps, gold in pairs) / len(asked),
                "five": 100 * sum(gold in steps for steps, gold in pairs) / len(asked),
            }
    return figures


def main() -> None:
    """Prints how often the step that is meant comes first, and among the first five."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rerank", action="store_true", help="also with the model that ranks again")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    given = parser.parse_args()
    figures = measure(given.rerank)
    table = Table("recall by", "questions", "first", "among five")
    for title, one in figures.items():
        table.add_row(title, str(one["questions"]), f"{one['first']:.1f} %", f"{one['five']:.1f} %")
    Console().print(table)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
