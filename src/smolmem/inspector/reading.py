"""What the pages show, read from a memory. Light where there is much: a list reads no more than it shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from difflib import unified_diff
from functools import cached_property
from typing import Any

import PIL.Image
from smolagents.memory import ActionStep, PlanningStep, TaskStep

from smolmem.core import type_codecs, wire
from smolmem.core.injected import Injected
from smolmem.core.values import Note, Run, Step, when
from smolmem.inspector import words
from smolmem.inspector.draw import Bar
from smolmem.memory import Memory
from smolmem.store.passage_rows import json_list
from smolmem.store.stored_messages import StoredMessages

PAGE = 50
PIXELS = 6_000_000
"""Of the largest picture that is shown."""
BYTES = 32_000_000
"""Of the largest content that is unpacked to be looked at."""
BARS = 48


@dataclass(frozen=True)
class Listed:
    """A run in the list, with those that it called."""

    run: Run
    bars: list[tuple[float, bool]]
    children: list[Listed] = field(default_factory=list)


def runs(memory: Memory, **wanted: Any) -> list[Listed]:
    """A page of runs, the newest first, each with what it called."""
    found = memory.runs(**wanted, limit=PAGE)
    called: dict[str, list[Run]] = {}
    for child in memory._journal.called_by(run.id for run in found):
        called.setdefault(str(child.parent), []).append(child)
    everything = [*found, *(child for group in called.values() for child in group)]
    bars = sparks(memory, everything)
    return [
        Listed(run, bars.get(run.id, []), [Listed(child, bars.get(child.id, [])) for child in called.get(run.id, ())])
        for run in found
    ]


def began(memory: Memory, run: Run) -> float:
    """When a run began, to the last digit: where the next page goes on."""
    return float(memory._journal.store.rows("run_row", {"id": run.id})[0]["began"])


def sparks(memory: Memory, runs: Sequence[Run]) -> dict[str, list[tuple[float, bool]]]:
    """How long the steps of runs took, and whether one failed; several at a time where there are many."""
    bars: dict[str, list[tuple[float, bool]]] = {}
    for row in memory._journal.store.rows("sparks", {"runs": json.dumps([run.id for run in runs]), "bars": BARS}):
        bars.setdefault(row["run"], []).append((max(0.0, row["seconds"] or 0.0), bool(row["failed"])))
    return bars


def choices(memory: Memory) -> dict[str, list[str]]:
    """What a list can be filtered by."""
    store = memory._journal.store
    return {
        "agents": [row["agent"] for row in store.rows("agents", {})],
        "scopes": [row["scope"] for row in store.rows("run_scopes", {})],
    }


def pulse(memory: Memory) -> str:
    """A word that changes whenever something was written that a page shows."""
    written = memory._journal.store.rows("pulse", {})[0].values()
    return "-".join([*map(str, written), str(len(memory.runs(scope="*", status="running", limit=200)))])


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
        return Bar(self.tokens, self.output, max(0.0, self.seconds or 0.0), self.error is not None)


def outline(memory: Memory, run: Run) -> list[Line]:
    """The steps of a run, a line each; a fork's begin with what it shares."""
    rows = memory._journal.store.rows("outline", {"run": run.id})
    if run.fork_of is not None:
        own = {row["id"] for row in rows}
        rows = [_row(step) for step in run.steps if step.id not in own] + rows
    return [_line(row) for row in rows]


def _row(step: Step) -> dict[str, Any]:
    names = ("id", "kind", "number", "seconds", "error", "input_tokens", "output_tokens", "revision")
    return {name: getattr(step, name) for name in names} | {
        "tools": json.dumps(step.tools),
        "text": step.text[:200],
        "place": step.position,
    }


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
    return {"called": journal.called_by([run.id]), "forks": journal.forks_of(run.id)}


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
class Passage:
    """A text of a step: under what heading, what kind it is, and how much more of it there is."""

    title: str
    kind: str
    text: str
    more: int = 0


@dataclass(frozen=True)
class Detail:
    """A step as its page shows it."""

    step: Step
    live: Any

    @property
    def editable(self) -> list[str]:
        """Fields that a person can correct: its texts, where they are not too long for a form."""
        names = ("task", "plan", "model_output", "observations")
        found = ((name, getattr(self.live, name, None)) for name in names)
        return [name for name, value in found if isinstance(value, str) and len(value) <= words.LONG]

    @cached_property
    def kind(self) -> str:
        """What is drawn."""
        kinds = ((TaskStep, "task"), (PlanningStep, "plan"), (Injected, "injected"), (ActionStep, "action"))
        return next((word for cls, word in kinds if isinstance(self.live, cls)), "other")

    @property
    def passages(self) -> list[Passage]:
        """All that there is to read, in order. What is stored may be anything, so nothing here is taken for granted."""
        live, made = self.live, list[Passage]()
        for name, title, kind in _PASSAGES.get(self.kind, ()):
            value = getattr(live, name, None)
            if value is not None and (value != "" or name == "observations"):
                made.append(_passage(title, kind, value))
        if self.kind == "injected":
            made = [_passage(f"{live.title} · given by {live.origin}", "text", live.observations)]
        if self.kind == "action":
            made[2:2] = [_passage(f"Calls {name}", "text", arguments) for name, arguments in self.calls]
            if getattr(live, "is_final_answer", False):
                made.append(_passage("Answer", "good", getattr(live, "action_output", None)))
        return made or [_passage("", "text", self.step.text)]

    @property
    def calls(self) -> list[tuple[str, Any]]:
        """Tools that were called; a code agent's interpreter is no tool."""
        made = getattr(self.live, "tool_calls", None)
        named = [(getattr(call, "name", "?"), getattr(call, "arguments", call)) for call in _listed(made)]
        return [(str(name), arguments) for name, arguments in named if name != "python_interpreter"]

    @property
    def pictures(self) -> list[str]:
        """What is said where a picture cannot be shown; nothing where it can."""
        return [each if isinstance(each, str) else "" for each in pictures(self.live)]

    @property
    def sent(self) -> int:
        """How many messages the model was sent."""
        return len(_listed(getattr(self.live, "model_input_messages", None)))


_PASSAGES = {
    "task": [("task", "Task", "text")],
    "plan": [("plan", "Plan", "text")],
    "action": [
        ("model_output", "What the model said", "text"),
        ("code_action", "Code", "code"),
        ("observations", "What came back", "seen"),
        ("error", "What went wrong", "failed"),
    ],
}


def _passage(title: str, kind: str, value: Any) -> Passage:
    whole = words.text(value)
    return Passage(words.short(title, 80), kind, whole[: words.LONG], max(0, len(whole) - words.LONG))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else ()


def pictures(live: Any) -> list[Any]:
    """The pictures of a step; where one is too large to be unpacked, what is said of it."""
    found = _listed(getattr(live, "observations_images", None)) or _listed(getattr(live, "task_images", None))
    return [each if isinstance(each, PIL.Image.Image) else words.short(each, 80) for each in found]


@contextmanager
def glancing() -> Iterator[None]:
    """While this lasts, nothing large is unpacked: a few bytes on disk can claim any size."""
    pixels, size = type_codecs.largest.set(PIXELS), wire.largest.set(BYTES)
    try:
        yield
    finally:
        type_codecs.largest.reset(pixels)
        wire.largest.reset(size)


def detail(memory: Memory, number: int, run: Run | None = None) -> Detail:
    """A step with all that it holds; in a fork, as the fork has it."""
    step = memory.step(number)
    if run is not None and step.run != run.id:
        step = next((each for each in run.steps if each.id == number), step)
    with glancing():
        return Detail(step, step.to_smolagents())


def unseen(memory: Memory, found: Detail) -> list[str]:
    """Earlier steps that the model was not shown as they were: what views cut."""
    sent = getattr(found.live, "model_input_messages", None)
    if not isinstance(sent, StoredMessages) or found.step.position is None:
        return []
    journal = memory._journal
    parts = set(journal.prompt(sent.number))
    rows = journal.store.rows("shown_before", {"session": found.step.session, "place": found.step.position})
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
    for revision in step.history():
        with glancing():
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
        (name, f"{len(value)} pictures" if isinstance(value, list) else words.text(str(value))[: words.LONG])
        for name, value in found
        if value is not None
    ]
    return "\n".join(f"{name.replace('_', ' ')}:\n{value}" for name, value in shown)


# --- memories ----------------------------------------------------------------------------------------------------


def influenced(memory: Memory, what: Note | int) -> list[dict[str, Any]]:
    """Runs that were reminded of something."""
    key = what.id if isinstance(what, Note) else what
    return [row | {"at": when(row["at"])} for row in memory._journal.store.rows("influenced", {"what": key})]


def step_places(memory: Memory, numbers: Sequence[int]) -> dict[int, str]:
    """The runs of steps, to link to them."""
    rows = memory._journal.store.rows("step_runs", {"ids": json_list(numbers)})
    return {row["id"]: row["run"] for row in rows}
