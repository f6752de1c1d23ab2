"""The data of a step's page: its texts, calls and pictures, its prompt, and its versions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import unified_diff
from functools import cached_property
from typing import Any

from smolagents.memory import ActionStep, PlanningStep, TaskStep

from smolmem.core.encoding import pictures
from smolmem.core.encoding.placeholders import safe_text
from smolmem.core.errors import NotFound
from smolmem.core.injected import Injected
from smolmem.core.prices import cost
from smolmem.core.smolagents_texts import without_label
from smolmem.core.values import Run, Step
from smolmem.inspector import formatting
from smolmem.memory import Memory
from smolmem.store.stored_messages import StoredMessages


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
    run: Run
    """The run that the step is shown in: its own run, or a fork that shares the step."""

    @property
    def label(self) -> str:
        """The heading of the step."""
        return f"Step {self.step.number}" if self.kind == "action" else KIND_LABELS.get(self.kind, "Step")

    @property
    def dollars(self) -> float | None:
        """What the step cost, if the price of the model is known."""
        return cost(self.run.model or "", self.step.input_tokens or 0, self.step.output_tokens or 0)

    @property
    def editable_fields(self) -> list[str]:
        """The fields that can be edited: texts that are not too long for a form."""
        values = ((name, getattr(self.original, name, None)) for name in FIELD_LABELS)
        return [name for name, value in values if isinstance(value, str) and len(value) <= formatting.MAX_TEXT]

    @cached_property
    def kind(self) -> str:
        """The kind of the step, which decides its sections."""
        kinds = ((TaskStep, "task"), (PlanningStep, "plan"), (Injected, "injected"), (ActionStep, "action"))
        return next((kind for cls, kind in kinds if isinstance(self.original, cls)), "other")

    @property
    def sections(self) -> list[Section]:
        """The texts of the step, in order."""
        original, sections = self.original, list[Section]()
        if self.kind == "injected":
            return [_section(f"{original.title} · origin: {original.origin}", "text", original.observations)]
        for name, title, css_class in _SECTIONS.get(self.kind, ()):
            if name == "observations":
                sections += [_section(f"Call: {tool}", "text", arguments) for tool, arguments in self.calls]
            value = self._thought if name == "model_output" else getattr(original, name, None)
            if value is not None and (value != "" or name == "observations"):
                sections.append(_section(title, css_class, value))
        if self.kind == "action" and getattr(original, "is_final_answer", False):
            sections.append(_section("Answer", "answer", getattr(original, "action_output", None)))
        return sections or [_section("", "text", self.step.text)]

    @property
    def _thought(self) -> Any:
        """The model's output, without the code: the page shows the code in a section of its own."""
        said, code = getattr(self.original, "model_output", None), getattr(self.original, "code_action", None)
        if not isinstance(said, str) or not isinstance(code, str) or not code.strip():
            return said
        return _without_code(said, code.strip())

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


KIND_LABELS = {"task": "Task", "plan": "Plan", "injected": "Injected message"}
FIELD_LABELS = {"task": "Task", "plan": "Plan", "model_output": "Model output", "observations": "Observation"}
_SECTIONS = {
    "task": [("task", "Task", "text")],
    "plan": [("plan", "Plan", "text")],
    "action": [
        ("model_output", FIELD_LABELS["model_output"], "text"),
        ("code_action", "Code", "code"),
        ("observations", FIELD_LABELS["observations"], "observations"),
        ("error", "Error", "failed"),
    ],
}


_BEFORE_CODE = re.compile(r"(?:<code>|```(?:python|py)?)?\s*$", re.IGNORECASE)
_AFTER_CODE = re.compile(r"^\s*(?:</code>|```)?", re.IGNORECASE)


def _without_code(said: str, code: str) -> str:
    """A model's text without its block of code, if the block is there as it was run."""
    before, found, after = said.partition(code)
    if not found:
        return said
    rest = (_BEFORE_CODE.sub("", before).rstrip(), _AFTER_CODE.sub("", after).strip())
    return without_label("\n\n".join(part for part in rest if part))


def _section(title: str, css_class: str, value: Any) -> Section:
    text = formatting.text(value)
    remaining = max(0, len(text) - formatting.MAX_TEXT)
    return Section(formatting.one_line(title, 80), css_class, text[: formatting.MAX_TEXT], remaining)


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else ()


def step_detail(memory: Memory, id: int, run: Run | None = None) -> StepDetail:
    """A step, decoded; for a fork that shares the step, as it is in the fork."""
    step, shared = memory.step(id), list[Step]()
    if run is not None and step.run != run.id:
        shared = [each for each in run.steps if each.id == id and run.fork_of is not None]
        run = run if shared else None
    step = shared[0] if shared else step
    return StepDetail(step, step.to_smolagents(), run or memory.run(step.run))


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
    event: int
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
        versions.append(StepVersion(revision.at, revision.event, label, changes))
        before = text
    return versions


def restore_version(step: Step, event: int) -> Step:
    """Makes the texts of an earlier version the texts of a step again; a new revision, as any edit."""
    revision = next((each for each in step.history() if each.event == event), None)
    if revision is None:
        raise NotFound(f"step {step.id} has no version {event}.")
    earlier, now = revision.to_smolagents(), step.to_smolagents()
    names = [name for name in FIELD_LABELS if hasattr(now, name) and hasattr(earlier, name)]
    return step.edit(**{name: getattr(earlier, name) for name in names})


_COMPARED = ("task", "plan", "model_output", "code_action", "observations", "error", "observations_images")


def _all_texts(original: Any) -> str:
    """All texts of a step, each under the name of its field."""
    values, most = [(name, getattr(original, name, None)) for name in _COMPARED], formatting.MAX_TEXT
    texts = [
        (
            name,
            f"{len(value)} pictures"
            if isinstance(value, list)
            else formatting.text(safe_text(str, value, most))[:most],
        )
        for name, value in values
        if value is not None
    ]
    return "\n".join(f"{name.replace('_', ' ')}:\n{value}" for name, value in texts)
