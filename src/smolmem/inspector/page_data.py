"""The data of the pages, read from a memory.

Lists read summaries, never whole steps, so that a page costs the same in a large memory as in a small one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from smolmem.core.errors import NotFound
from smolmem.core.smolagents_texts import in_short
from smolmem.core.values import Note, Run, Step, when
from smolmem.inspector import formatting, parameters
from smolmem.memory import Memory
from smolmem.store.passage_rows import json_list


def data_version(memory: Memory) -> str:
    """A text that changes whenever something is written that a page shows."""
    written = memory._journal.store.rows("pulse", {})[0].values()
    running = memory.runs(scope="*", status="running", limit=200)  # a killed process writes nothing, but runs end
    return "-".join([*map(str, written), str(len(running)), *(["vanished"] if memory._store.has_vanished else [])])


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepSummary:
    """A step in the list of a run's steps."""

    id: int
    run: str
    kind: str
    number: int | None
    at: float
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


def step_summaries(memory: Memory, run: Run) -> list[StepSummary]:
    """The steps of a run, in order; those of a fork begin with the steps that it shares with its origin."""
    memory._journal.check_steps(run.id, run.session)
    own = outlines(memory, [run]).get(run.id, [])
    if run.fork_of is None:
        return own
    known = {step.id for step in own}
    names = ("id", "run", "kind", "number", "seconds", "error", "input_tokens", "output_tokens", "revision")
    shared = [
        {name: getattr(step, name) for name in names}
        | {"at": step.at.timestamp(), "tools": json.dumps(step.tools), "text": step.text[:200], "place": step.position}
        for step in run.steps
        if step.id not in known
    ]
    return [_step_summary(row) for row in shared] + own


def outlines(memory: Memory, runs: Sequence[Run]) -> dict[str, list[StepSummary]]:
    """The steps of each run, in order."""
    steps: dict[str, list[StepSummary]] = {}
    for row in memory._journal.store.rows("outline", {"runs": json_list(run.id for run in runs)}):
        steps.setdefault(row["run"], []).append(_step_summary(row))
    return steps


def _step_summary(row: dict[str, Any]) -> StepSummary:
    unchanged = ("id", "run", "kind", "number", "at", "seconds", "error", "revision")
    return StepSummary(
        **{name: row[name] for name in unchanged},
        input_tokens=row["input_tokens"] or 0,
        output_tokens=row["output_tokens"] or 0,
        tools=json.loads(row["tools"]),
        removed=row["place"] is None,
        text=in_short(row["text"]),
    )


def related_runs(memory: Memory, run: Run) -> dict[str, Any]:
    """The forks of a run, and how many runs share its session."""
    session = len(memory.runs(scope="*", session=run.session))
    return {"forks": memory._journal.forks_of(run.id), "session": session}


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
            texts=[formatting.message_text(each) for each in (journal.part(row["block"]) if row["block"] else ())],
        )
        for row in rows
    ]


def runs_of_steps(memory: Memory, sources: Iterable[Any]) -> dict[int, str]:
    """The run of each step among some sources, to link to the step."""
    ids = json_list(source for source in sources if isinstance(source, int))
    return {row["id"]: row["run"] for row in memory._journal.store.rows("step_runs", {"ids": ids})}


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


def erase_target(memory: Memory, form: Mapping[str, str]) -> EraseTarget:
    """The step that a form names, or the note or run whose id begins as its `id`."""
    number, id = parameters.number(form.get("step"), "step"), form.get("id", "")
    if number is not None:
        step = memory.step(number)
        return EraseTarget(step, "step", str(step.id), step.text, f"/runs/{step.run}?step={step.id}")
    try:
        note = memory.note(id)
        return EraseTarget(note, "note", note.id, note.text, f"/notes/{note.id}")
    except NotFound:
        run = memory.run(id)
        return EraseTarget(run, "run", run.id, run.title, f"/runs/{run.id}")


def counted(counts: Mapping[str, int]) -> str:
    """Counts as a list: `2 runs, 5 steps`."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "nothing"
