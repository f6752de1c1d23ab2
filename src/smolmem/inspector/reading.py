"""What the pages show, read from a memory. Light where there is much: a list reads no more than it shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import unified_diff
from functools import cached_property
from typing import Any

from smolagents.memory import ActionStep, PlanningStep, TaskStep

from smolmem.inspector.draw import Bar
from smolmem.memory import Memory
from smolmem.recall.values import Note
from smolmem.record.injected import Injected
from smolmem.record.values import Run, Step, when
from smolmem.store.messages import StoredMessages
from smolmem.store.units import ids

PAGE = 50


@dataclass(frozen=True)
class Listed:
    """A run in the list, with those that it called."""

    run: Run
    bars: list[Bar]
    children: list[Listed] = field(default_factory=list)


def runs(memory: Memory, **wanted: Any) -> list[Listed]:
    """A page of runs, the newest first, each with what it called."""
    found = memory.runs(**wanted, limit=PAGE)
    journal = memory._journal
    called: dict[str, list[Run]] = {}
    for row in journal.store.rows("children", {"runs": _names(found)}):
        child = journal.run(row["id"])
        called.setdefault(str(child.parent), []).append(child)
    everything = [*found, *(child for group in called.values() for child in group)]
    bars = sparks(memory, everything)
    return [
        Listed(run, bars.get(run.id, []), [Listed(child, bars.get(child.id, [])) for child in called.get(run.id, ())])
        for run in found
    ]


def _names(runs: Sequence[Run]) -> str:
    return json.dumps([run.id for run in runs])


def sparks(memory: Memory, runs: Sequence[Run]) -> dict[str, list[Bar]]:
    """The steps of runs, as bars."""
    bars: dict[str, list[Bar]] = {}
    for row in memory._journal.store.rows("sparks", {"runs": _names(runs)}):
        bars.setdefault(row["run"], []).append(_bar(row))
    return bars


def _bar(row: Any) -> Bar:
    return Bar(row["input_tokens"] or 0, row["output_tokens"] or 0, row["seconds"] or 0.0, row["error"] is not None)


def choices(memory: Memory) -> dict[str, list[str]]:
    """What a list can be filtered by."""
    store = memory._journal.store
    return {
        "agents": [row["agent"] for row in store.rows("agents", {})],
        "scopes": [row["scope"] for row in store.rows("run_scopes", {})],
    }


def pulse(memory: Memory) -> str:
    """A word that changes whenever something was written that a page shows."""
    return "-".join(str(value) for value in memory._journal.store.rows("pulse", {})[0].values())


# --- a run -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A step in the outline of a run."""

    id: int
    kind: str
    number: int | None
    seconds: float | None
    tokens: int
    output: int
    error: str | None
    tools: list[str]
    revision: int
    removed: bool
    text: str

    @property
    def label(self) -> str:
        """What it did, in a word."""
        tool = self.tools[0] if self.tools else self.kind
        return "code" if tool == "python_interpreter" else tool

    @property
    def bar(self) -> Bar:
        """The same in the plot."""
        return Bar(self.tokens, self.output, self.seconds or 0.0, self.error is not None)


def outline(memory: Memory, run: Run) -> list[Line]:
    """The steps of a run, a line each; a fork's begin with what it shares."""
    rows = memory._journal.store.rows("outline", {"run": run.id})
    if run.fork_of is not None:
        own = {row["id"] for row in rows}
        rows = [_row(step) for step in run.steps if step.id not in own] + rows
    return [_line(row) for row in rows]


def _row(step: Step) -> dict[str, Any]:
    names = ("id", "kind", "number", "place", "seconds", "error", "input_tokens", "output_tokens", "revision")
    return {name: getattr(step, name) for name in names} | {"tools": json.dumps(step.tools), "text": step.text[:200]}


def _line(row: dict[str, Any]) -> Line:
    same = ("id", "kind", "number", "seconds", "error", "revision")
    return Line(
        **{name: row[name] for name in same},
        tokens=row["input_tokens"] or 0,
        output=row["output_tokens"] or 0,
        tools=json.loads(row["tools"]),
        removed=row["place"] is None,
        text=" ".join(row["text"].split()).removeprefix("Thought: "),
    )


def family(memory: Memory, run: Run) -> dict[str, list[Run]]:
    """Runs that belong to a run: what it called, and its forks."""
    journal = memory._journal
    called = [journal.run(row["id"]) for row in journal.store.rows("children", {"runs": _names([run])})]
    forks = [journal.run(row["id"]) for row in journal.store.rows("forks", {"run": run.id})]
    return {"called": called, "forks": forks}


def reminded(memory: Memory, run: Run) -> list[dict[str, Any]]:
    """What a run was reminded of, or asked for, and where each of it came from."""
    journal = memory._journal
    rows = [journal.sealed("recalled", row) for row in journal.store.rows("run_recalled", {"run": run.id})]
    return [
        {
            "at": when(row["at"]),
            "query": row["query"],
            "asked": row["step"] is None,
            "found": json.loads(row["found"]),
            "text": [] if row["block"] is None else _texts(journal.part(row["block"])),
        }
        for row in rows
    ]


def _texts(messages: Sequence[Any]) -> list[str]:
    return [item["text"] for message in messages for item in message.content if item.get("type") == "text"]


# --- a step ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Detail:
    """A step as its page shows it."""

    step: Step
    live: Any

    @property
    def editable(self) -> list[str]:
        """Fields that a person can correct: its texts."""
        names = ("task", "plan", "model_output", "observations")
        return [name for name in names if isinstance(getattr(self.live, name, None), str)]

    @cached_property
    def kind(self) -> str:
        """What is drawn."""
        kinds = ((TaskStep, "task"), (PlanningStep, "plan"), (Injected, "injected"), (ActionStep, "action"))
        return next((word for cls, word in kinds if isinstance(self.live, cls)), "other")

    @property
    def calls(self) -> list[tuple[str, Any]]:
        """Tools that were called; a code agent's interpreter is no tool."""
        made = getattr(self.live, "tool_calls", None) or ()
        return [(str(call.name), call.arguments) for call in made if call.name != "python_interpreter"]

    @property
    def images(self) -> int:
        """How many pictures there are."""
        return len(pictures(self.live))

    @property
    def sent(self) -> int:
        """How many messages the model was sent."""
        messages = getattr(self.live, "model_input_messages", None)
        return 0 if messages is None else len(messages)


def pictures(live: Any) -> list[Any]:
    """The pictures of a step."""
    return list(getattr(live, "observations_images", None) or getattr(live, "task_images", None) or ())


def detail(memory: Memory, number: int) -> Detail:
    """A step with all that it holds."""
    step = memory.step(number)
    return Detail(step, step.to_smolagents())


def unseen(memory: Memory, found: Detail) -> list[str]:
    """Earlier steps that the model was not shown as they were: what views cut."""
    sent = getattr(found.live, "model_input_messages", None)
    if not isinstance(sent, StoredMessages) or found.step.place is None:
        return []
    journal = memory._journal
    parts = set(journal.prompt(sent.number))
    rows = journal.store.rows("shown_before", {"session": found.step.session, "place": found.step.place})
    latest: dict[int, tuple[set[int], str]] = {}
    for row in rows:
        word = row["kind"] if row["number"] is None else f"{row['kind']} {row['number']}"
        latest.setdefault(row["step"], (set(), word))[0].add(row["shown"])
    return [word for shown, word in latest.values() if not shown & parts]


_TEXTS = ("task", "plan", "model_output", "code_action", "observations", "error", "observations_images")


@dataclass(frozen=True)
class Version:
    """One version of a step: when, by whom as far as that can be told, and what it changed, line by line."""

    at: datetime
    whose: str
    changes: list[tuple[str, str]]


def versions(memory: Memory, number: int) -> list[Version]:
    """Every version of a step, each compared with the one before."""
    step = memory.step(number)
    run = memory.run(step.run)
    made, before = list[Version](), ""
    for revision in memory.history(step):
        text = _whole(revision.to_smolagents())
        lines = unified_diff(before.splitlines(), text.splitlines(), lineterm="", n=2)
        changes = [(line[:1], line[1:]) for line in lines if not line.startswith(("---", "+++"))][:400]
        later = run.ended is not None and revision.at > run.ended
        whose = "recorded" if not made else "edited after the run" if later else "changed during the run"
        made.append(Version(revision.at, whose, changes))
        before = text
    return made


def _whole(live: Any) -> str:
    """All texts of a step, under their names."""
    found = [(name, getattr(live, name, None)) for name in _TEXTS]
    shown = [
        (name, f"{len(value)} pictures" if isinstance(value, list) else str(value)) for name, value in found if value
    ]
    return "\n".join(f"{name.replace('_', ' ')}:\n{value}" for name, value in shown)


# --- memories ----------------------------------------------------------------------------------------------------


def influenced(memory: Memory, what: Note | int) -> list[dict[str, Any]]:
    """Runs that were reminded of something."""
    key = what.id if isinstance(what, Note) else what
    return [row | {"at": when(row["at"])} for row in memory._journal.store.rows("influenced", {"what": key})]


def step_places(memory: Memory, numbers: Sequence[int]) -> dict[int, str]:
    """The runs of steps, to link to them."""
    rows = memory._journal.store.rows("step_runs", {"ids": ids(numbers)})
    return {row["id"]: row["run"] for row in rows}
