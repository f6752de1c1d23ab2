"""Runs that are killed at many moments, and resumed: `resumers.py SCENARIO FOLDER [SERVER]`, one JSON line.

A moment is: a model call beginning or ending, a tool call beginning or ending, a transaction begun, done, committed. A
control run tells what the model is asked and answers; a resumed run whose model is asked anything else fails.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scripted import Scripted, answer, calls, code
from smolagents import CodeAgent, ToolCallingAgent, tool
from smolagents.monitoring import TokenUsage
from workers import fork, warm_up

from smolmem import Memory
from smolmem.agents.prompting.prompt_renderer import chain_of
from smolmem.core import faults
from smolmem.core.errors import NotFound, UnknownOutcome
from smolmem.policies import views

TORTURE = bool(os.environ.get("SMOLMEM_TORTURE"))
TASK = "Work, and do not do anything twice."
moments = [-1]
folder = Path()
server = ""
token = secrets.token_hex(4)
attempts = [0]


def store() -> str:
    """A file, or a schema of the server, for each attempt."""
    return f"{server}&schema=k{token}_{attempts[0]}" if server else str(folder / "agent.db")


def moment(*_: Any) -> None:
    """The process dies here, if this is the moment it was told."""
    if moments[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    moments[0] -= 1


@tool
def pay(amount: int) -> str:
    """Pays.

    Args:
        amount: how much
    """
    moment()
    with open(folder / "paid", "a") as file:
        file.write(f"{amount}\n")
    moment()
    if amount == 13:
        raise ValueError("unlucky")
    return f"paid {amount}"


class Known(Scripted):
    """A model that knows what the control run was asked and answered; it dies when told so."""

    def __init__(self, script: list[Any], table: list[tuple[str, Any]] | None) -> None:
        super().__init__(*script)
        self.table = table

    def generate(self, messages: list[Any], **kwargs: Any) -> Any:
        moment()
        if self.table is None:
            said = super().generate(messages, **kwargs)
            said.token_usage = TokenUsage(sum(len(str(message.content)) for message in messages) // 4, 5)
        else:
            said = next((said for asked, said in self.table if asked == str(messages)), None)
            if said is None:
                raise AssertionError("the model is asked something that it was not asked in the control run")
            self.prompts.append(messages)
        moment()
        return said


def scripts() -> dict[str, tuple[Callable[..., Any], list[Any], list[Any]]]:
    steps = [
        code("x = [1]\ny = x\ndef f(n):\n    return n + len(x)\nprint(pay(amount=1))"),
        code("y.append(2)\nprint(f(1), pay(amount=2), pay(amount=3))"),
        code("pay(amount=13)"),
        code("final_answer(f(10) + len(x))"),
    ]
    two = [
        calls(("pay", {"amount": 1})),
        calls(("pay", {"amount": 2}), ("pay", {"amount": 3})),
        calls(("pay", {"amount": 13})),
        answer("done"),
    ]
    child = [code("a = pay(amount=5)\nprint(a)"), code("final_answer(a)")]
    manage_code = [code("r = helper(task='buy')\nprint(r)"), code("print(pay(amount=6))\nfinal_answer(r)")]
    manage_calls = [calls(("helper", {"task": "buy"})), calls(("pay", {"amount": 6})), answer("managed")]
    six = [code(f"print(pay(amount={n}), 'because it was due ' * 40)") for n in range(1, 6)]
    return {
        "views": (CodeAgent, [*six, code("final_answer('seen')")], []),
        "code": (CodeAgent, steps, []),
        "calling": (ToolCallingAgent, two, []),
        "planning": (CodeAgent, ["plan 1", steps[0], "plan 2", steps[1], "plan 3", steps[3]], []),
        "streaming": (CodeAgent, steps, []),
        "max_steps": (CodeAgent, [steps[0], steps[1], "out of steps"], []),
        "managed_code": (CodeAgent, manage_code, child),
        "managed_calls": (ToolCallingAgent, manage_calls, child),
    }


def make(name: str, tables: list[Any] | None) -> Any:
    kind, script, child_script = scripts()[name]
    options: dict[str, Any] = {"verbosity_level": -1, "max_steps": 2 if name == "max_steps" else 9}
    if name == "planning":
        options["planning_interval"] = 1
    if name == "streaming":
        options["stream_outputs"] = True
    if child_script:
        model = Known(child_script, tables and tables[1])
        options["managed_agents"] = [
            CodeAgent(tools=[pay], model=model, name="helper", description="helps", verbosity_level=-1)
        ]
    model = Known(script, tables and tables[0])
    agent = kind(tools=[pay], model=model, name="worker", description="works", **options)
    if name == "views":
        chain_of(agent).views = [views.TrimObservations(600), views.Summarize(keep_last=2), views.TokenBudget(2_900)]
    return agent


def control(name: str) -> tuple[str, list[Any], list[str]]:
    """An uninterrupted run: its answer, what its models were asked and said, and what it paid."""
    said: list[list[Any]] = [[], []]
    agent = make(name, None)
    models = [agent.model, *(helper.model for helper in agent.managed_agents.values())]
    for model, table in zip(models, said, strict=False):
        original = model.generate

        def tell(messages: Any, original: Any = original, table: Any = table, **kwargs: Any) -> Any:
            asked = str(messages)
            table.append((asked, original(messages, **kwargs)))
            return table[-1][1]

        model.generate = tell
    result = str(agent.run(TASK))
    paid = (folder / "paid").read_text().split()
    return result, said, paid


def work(name: str, tables: list[Any], die_at: int) -> None:
    moments[0] = die_at
    faults.hook = moment
    with Memory(store(), strict=True) as memory:
        (folder / "answer").write_text(str(memory.attach(make(name, tables)).run(TASK)))


def go_on(name: str, tables: list[Any]) -> None:
    with Memory(store(), strict=True) as memory:
        agent = make(name, tables)
        try:
            result = memory.resume(agent)
        except UnknownOutcome:
            runs = memory.runs()
            cut = [call for run in runs for call in memory._journal.calls(run.id) if not call.ended]
            (folder / "unknown").write_text(str(sum(call.name == "pay" for call in cut)))
            result = memory.resume(agent, unknown="rerun")
        except NotFound:
            done = memory.runs(agent="worker")
            result = done[0].answer if done else memory.attach(agent).run(TASK)
        (folder / "answer").write_text(str(result))
        root = memory.runs(agent="worker")[0]
        numbers = [step.number for step in root.steps if step.kind == "action"]
        assert numbers == list(range(1, len(numbers) + 1)), numbers
        assert root.status in ("finished", "max_steps"), root.status
        report = memory.verify()
        assert report, report.problems


def every(name: str) -> int:
    """Of so many moments in a row one is tried: every moment under torture, and both plain agents at more of them."""
    return 1 if TORTURE else 16 if server else 6 if name in ("code", "calling") else 10


def moments_to_try(name: str, sample: int) -> Iterator[int]:
    """One of each few moments, without a rhythm, which could meet the same point of each transaction."""
    chance, size = random.Random(f"{name} {sample}"), every(name)
    return (first + chance.randrange(size) for first in range(0, 1000, size))


def main(name: str) -> dict[str, Any]:
    expected, tables, paid = control(name)
    outcome: Counter[str] = Counter()
    warm_up()
    for sample in range(10):
        for die_at in moments_to_try(name, sample):
            if not killed_at(die_at, name, tables, outcome):
                break
            if (folder / "answer").exists():
                outcome["resumed"] += 1  # it had its answer already
            elif os.waitpid(fork(lambda: go_on(name, tables)), 0)[1] != 0:
                outcome[f"failed at {die_at}"] += 1
            else:
                count(outcome, expected, paid)
        if outcome["unknown"]:  # a sample of moments may meet no call that is in progress
            break
    return dict(+outcome) | {key: outcome[key] for key in ("wrong answer", "lost", "doubled")}


def killed_at(die_at: int, name: str, tables: list[Any], outcome: Counter[str]) -> bool:
    """Runs the agent until a moment; false if the run ended before."""
    attempts[0] += 1
    for file in folder.iterdir():
        file.unlink()
    ended = os.waitpid(fork(lambda: work(name, tables, die_at)), 0)[1]
    killed = os.WIFSIGNALED(ended)
    outcome["killed"] += killed
    outcome["failed without being killed"] += ended != 0 and not killed
    return killed


def count(outcome: Counter[str], expected: str, paid: list[str]) -> None:
    """Counts a resumed run: whether its answer is right, and whether payments were repeated or lost."""
    done = Counter((folder / "paid").read_text().split())
    unknown = int((folder / "unknown").read_text()) if (folder / "unknown").exists() else 0
    outcome["unknown"] += bool(unknown)
    outcome["wrong answer"] += (folder / "answer").read_text() != expected
    outcome["doubled"] += sum((done - Counter(paid)).values()) > unknown
    outcome["lost"] += bool(Counter(paid) - done)
    outcome["resumed"] += 1


if __name__ == "__main__":
    folder, server = Path(sys.argv[2]), "".join(sys.argv[3:])
    print(json.dumps(main(sys.argv[1])))
