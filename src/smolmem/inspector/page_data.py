"""The data of the pages, read from a memory.

The only module of the inspector that reaches into the journal and the store of a `Memory`. Lists read summaries, never
whole steps, so that a page costs the same in a large memory as in a small one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import unified_diff
from functools import cached_property
from typing import Any, NamedTuple

from smolagents.memory import ActionStep, PlanningStep, TaskStep

from smolmem.core import pictures
from smolmem.core.errors import NotFound
from smolmem.core.injected import Injected
from smolmem.core.values import Note, Run, Step, Trim, when
from smolmem.core.wire import safe_text
from smolmem.inspector import formatting
from smolmem.inspector.charts import Bar
from smolmem.memory import Memory
from smolmem.store.passage_rows import json_list
from smolmem.store.stored_messages import StoredMessages

RUNS_PER_PAGE = 50
SPARKLINE_BARS = 48


def database_url(memory: Memory) -> str:
    """The file or URL of a memory."""
    return memory._store.url


def data_version(memory: Memory) -> str:
    """A text that changes whenever something is written that a page shows."""
    written = memory._journal.store.rows("pulse", {})[0].values()
    running = memory.runs(scope="*", status="running", limit=200)  # a killed process writes nothing, but runs end
    return "-".join([*map(str, written), str(len(running))])


def filter_choices(memory: Memory) -> dict[str, list[str]]:
    """The agents and scopes that a list can be filtered by."""
    store = memory._journal.store
    return {
        "agents": [row["agent"] for row in store.rows("agents", {})],
        "scopes": [row["scope"] for row in store.rows("run_scopes", {})],
    }


# --- the list of runs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunSummary:
    """A run in the list: the run, the bars of its sparkline, and the runs that it called."""

    run: Run
    bars: list[tuple[float, bool]]
    called: list[RunSummary] = field(default_factory=list)


def list_runs(memory: Memory, **filters: Any) -> list[RunSummary]:
    """One page of runs, the newest first."""
    found = memory.runs(**filters, limit=RUNS_PER_PAGE)
    called: dict[str, list[Run]] = {}
    for child in memory._journal.called_by(run.id for run in found):
        called.setdefault(str(child.parent), []).append(child)
    bars = _sparkline_bars(memory, [*found, *(child for group in called.values() for child in group)])
    return [
        RunSummary(
            run,
            bars.get(run.id, []),
            [RunSummary(child, bars.get(child.id, [])) for child in called.get(run.id, ())],
        )
        for run in found
    ]


def start_timestamp(memory: Memory, run: Run) -> float:
    """When a run began, unrounded: the next page lists the runs before this moment."""
    return memory._journal.run_row(run.id)["began"]


def _sparkline_bars(memory: Memory, runs: Sequence[Run]) -> dict[str, list[tuple[float, bool]]]:
    """The duration of each step, and whether the step failed; one bar covers several steps of a long run."""
    bars: dict[str, list[tuple[float, bool]]] = {}
    parameters = {"runs": json_list(run.id for run in runs), "bars": SPARKLINE_BARS}
    for row in memory._journal.store.rows("sparks", parameters):
        bars.setdefault(row["run"], []).append((max(0.0, row["seconds"] or 0.0), bool(row["failed"])))
    return bars


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepSummary:
    """A step in the list of a run's steps."""

    id: int
    kind: str
    number: int | None
    seconds: float | None
    input_tokens: int
    output_tokens: int
    error: str | None
    tools: list[str]
    revision: int
    removed: bool
    text: str

    @property
    def label(self) -> str:
        """The tool that the step called, `code`, or the kind of the step."""
        label = self.tools[0] if self.tools else self.kind
        return "code" if label == "python_interpreter" else label

    @property
    def bar(self) -> Bar:
        """The step in the run's chart."""
        return Bar(self.input_tokens, self.output_tokens, max(0.0, self.seconds or 0.0), self.error is not None)


def step_summaries(memory: Memory, run: Run) -> list[StepSummary]:
    """The steps of a run, in order; those of a fork begin with the steps that it shares with its origin."""
    memory._journal.check_steps(run.id, run.session)
    rows = memory._journal.store.rows("outline", {"run": run.id})
    if run.fork_of is not None:
        own = {row["id"] for row in rows}
        rows = [_outline_row(step) for step in run.steps if step.id not in own] + rows
    return [_step_summary(row) for row in rows]


def _outline_row(step: Step) -> dict[str, Any]:
    names = ("id", "kind", "number", "seconds", "error", "input_tokens", "output_tokens", "revision")
    return {name: getattr(step, name) for name in names} | {
        "tools": json.dumps(step.tools),
        "text": step.text[:200],
        "place": step.position,
    }


def _step_summary(row: dict[str, Any]) -> StepSummary:
    unchanged = ("id", "kind", "number", "seconds", "error", "revision")
    return StepSummary(
        **{name: row[name] for name in unchanged},
        input_tokens=row["input_tokens"] or 0,
        output_tokens=row["output_tokens"] or 0,
        tools=json.loads(row["tools"]),
        removed=row["place"] is None,
        text=" ".join(row["text"].split()).removeprefix("Thought: "),
    )


def related_runs(memory: Memory, run: Run) -> dict[str, list[Run]]:
    """The runs that a run called, and the forks of the run."""
    journal = memory._journal
    return {"called": journal.called_by([run.id]), "forks": journal.forks_of(run.id)}


def trims(memory: Memory, run: Run) -> list[Trim]:
    """What views left out of the prompts of a run's session, in order."""
    return memory._journal.trims.of(run.session)


@dataclass(frozen=True)
class Recall:
    """One recall during a run: at the beginning of a task, or by a query of the agent."""

    query: str
    by_agent: bool
    sources: list[Any]
    """The ids of the steps (numbers) and notes (texts) that were recalled."""
    texts: list[str]


def recalls(memory: Memory, run: Run) -> list[Recall]:
    """What was recalled during a run, in order."""
    journal = memory._journal
    rows = [journal.sealed("recalled", row) for row in journal.store.rows("run_recalled", {"run": run.id})]
    return [
        Recall(
            query=row["query"],
            by_agent=row["step"] is None,
            sources=list(dict.fromkeys(json.loads(row["found"]))),
            texts=[formatting.message_text(message) for message in _block(memory, row["block"])],
        )
        for row in rows
    ]


def _block(memory: Memory, content: int | None) -> Sequence[Any]:
    """The messages of a recalled block."""
    return () if content is None else memory._journal.part(content)


def runs_of_steps(memory: Memory, sources: Iterable[Any]) -> dict[int, str]:
    """The run of each step among some sources, to link to the step."""
    ids = json_list(source for source in sources if isinstance(source, int))
    return {row["id"]: row["run"] for row in memory._journal.store.rows("step_runs", {"ids": ids})}


# --- one step ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """A text of a step, with its heading and CSS class; `remaining` counts the characters that are left out."""

    title: str
    css_class: str
    text: str
    remaining: int = 0


@dataclass(frozen=True)
class StepDetail:
    """A step with everything that its page shows. Stored fields can hold values of any type."""

    step: Step
    original: Any
    """The smolagents step."""

    @property
    def editable_fields(self) -> list[str]:
        """The fields that can be edited: texts that are not too long for a form."""
        names = ("task", "plan", "model_output", "observations")
        values = ((name, getattr(self.original, name, None)) for name in names)
        return [name for name, value in values if isinstance(value, str) and len(value) <= formatting.MAX_TEXT]

    @cached_property
    def kind(self) -> str:
        """The kind of the step, which decides its sections."""
        kinds = ((TaskStep, "task"), (PlanningStep, "plan"), (Injected, "injected"), (ActionStep, "action"))
        return next((kind for cls, kind in kinds if isinstance(self.original, cls)), "other")

    @property
    def sections(self) -> list[Section]:
        """The texts of the step, in order."""
        original, made = self.original, list[Section]()
        if self.kind == "injected":
            return [_section(f"{original.title} · origin: {original.origin}", "text", original.observations)]
        for name, title, css_class in _SECTIONS.get(self.kind, ()):
            if name == "observations":
                made += [_section(f"Call: {tool}", "text", arguments) for tool, arguments in self.calls]
            value = getattr(original, name, None)
            if value is not None and (value != "" or name == "observations"):
                made.append(_section(title, css_class, value))
        if self.kind == "action" and getattr(original, "is_final_answer", False):
            made.append(_section("Answer", "answer", getattr(original, "action_output", None)))
        return made or [_section("", "text", self.step.text)]

    @property
    def calls(self) -> list[tuple[str, Any]]:
        """The tool calls with their arguments; the interpreter of a code agent is not a tool."""
        calls = _as_sequence(getattr(self.original, "tool_calls", None))
        named = [(getattr(call, "name", "?"), getattr(call, "arguments", call)) for call in calls]
        return [(str(name), arguments) for name, arguments in named if name != "python_interpreter"]

    @property
    def pictures(self) -> list[Any]:
        """The pictures of the step; a text for each picture that cannot be shown."""
        original = self.original
        found = _as_sequence(getattr(original, "observations_images", None))
        found = found or _as_sequence(getattr(original, "task_images", None))
        return [each if pictures.is_small(each) else formatting.one_line(formatting.text(each), 80) for each in found]

    @property
    def prompt_size(self) -> int:
        """The number of messages in the prompt."""
        return len(_as_sequence(getattr(self.original, "model_input_messages", None)))

    @property
    def prompt(self) -> list[Any]:
        """The messages that were sent to the model."""
        return list(getattr(self.original, "model_input_messages", None) or ())


_SECTIONS = {
    "task": [("task", "Task", "text")],
    "plan": [("plan", "Plan", "text")],
    "action": [
        ("model_output", "Model output", "text"),
        ("code_action", "Code", "code"),
        ("observations", "Observations", "observations"),
        ("error", "Error", "failed"),
    ],
}


def _section(title: str, css_class: str, value: Any) -> Section:
    text = formatting.text(value)
    remaining = max(0, len(text) - formatting.MAX_TEXT)
    return Section(formatting.one_line(title, 80), css_class, text[: formatting.MAX_TEXT], remaining)


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else ()


def step_detail(memory: Memory, id: int, run: Run | None = None) -> StepDetail:
    """A step, decoded; for a fork that shares the step, as it is in the fork."""
    step = memory.step(id)
    if run is not None and step.run != run.id:
        step = next((each for each in run.steps if each.id == id), step)
    return StepDetail(step, step.to_smolagents())


def trimmed_steps(memory: Memory, detail: StepDetail) -> list[str]:
    """The earlier steps that views left out of a step's prompt, or shortened there."""
    prompt = getattr(detail.original, "model_input_messages", None)
    if not isinstance(prompt, StoredMessages) or detail.step.position is None:
        return []
    journal = memory._journal
    parts = set(journal.prompt(prompt.number))
    parameters = {"session": detail.step.session, "place": detail.step.position}
    rendered: dict[int, tuple[set[int], str]] = {}
    for row in journal.store.rows("shown_before", parameters):
        name = row["kind"] if row["number"] is None else f"{row['kind']} {row['number']}"
        rendered.setdefault(row["step"], (set(), name))[0].add(row["shown"])
    return [name for contents, name in rendered.values() if not contents & parts]


@dataclass(frozen=True)
class StepVersion:
    """One version of a step: when and how it came about, and its changes to the version before, line by line."""

    at: datetime
    label: str
    changes: list[tuple[str, str]]


def step_versions(memory: Memory, id: int) -> list[StepVersion]:
    """Every version of a step, the oldest first."""
    step = memory.step(id)
    run = memory.run(step.run)
    versions, before = list[StepVersion](), ""
    for revision in step.history():
        text = _all_texts(revision.to_smolagents())
        lines = unified_diff(before.splitlines(), text.splitlines(), lineterm="", n=2)
        changes = [(line[:1], line[1:]) for line in lines if not line.startswith(("---", "+++"))][:400]
        after_run = run.ended is not None and revision.at > run.ended
        label = "recorded" if not versions else "edited after the run" if after_run else "changed during the run"
        versions.append(StepVersion(revision.at, label, changes))
        before = text
    return versions


_COMPARED = ("task", "plan", "model_output", "code_action", "observations", "error", "observations_images")


def _all_texts(original: Any) -> str:
    """All texts of a step, each under the name of its field."""
    values = [(name, getattr(original, name, None)) for name in _COMPARED]
    texts = [
        (name, f"{len(value)} pictures" if isinstance(value, list) else _shortened(value))
        for name, value in values
        if value is not None
    ]
    return "\n".join(f"{name.replace('_', ' ')}:\n{value}" for name, value in texts)


def _shortened(value: Any) -> str:
    return formatting.text(safe_text(str, value, formatting.MAX_TEXT))[: formatting.MAX_TEXT]


# --- notes ------------------------------------------------------------------------------------------------------------


def runs_that_recalled(memory: Memory, note: Note) -> list[dict[str, Any]]:
    """The runs that recalled a note, the newest first."""
    rows = memory._journal.store.rows("influenced", {"what": note.id})
    return [row | {"at": when(row["at"])} for row in rows]


# --- erasing ------------------------------------------------------------------------------------------------------


class EraseTarget(NamedTuple):
    """A run, note or step that is to be erased: its kind, its id, its text, and the page to go back to."""

    what: Run | Note | Step
    kind: str
    target: str
    text: str
    back: str


def erase_target(memory: Memory, id: str | int) -> EraseTarget:
    """The step with a number, or the run or note whose id begins with a text.

    Raises:
        NotFound: there is none.
    """
    if isinstance(id, int):
        step = memory.step(id)
        return EraseTarget(step, "step", str(step.id), step.text, f"/runs/{step.run}?step={step.id}")
    try:
        note = memory.note(id)
        return EraseTarget(note, "note", note.id, note.text, f"/notes/{note.id}")
    except NotFound:
        run = memory.run(id)
        return EraseTarget(run, "run", run.id, run.title, f"/runs/{run.id}")


def counted(counts: Mapping[str, int]) -> str:
    """Counts as a list in words."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "nothing"
