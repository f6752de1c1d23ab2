"""What tools answer: texts that quote their sources for a model, and the same as data for a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator

from smolmem.core.text import counted, one_line
from smolmem.core.values import Note, Recollection, Run, Step
from smolmem.recall.context import CAUTION, PER_TOKEN, quoted, visible

MOST_TOKENS = 50_000
_TITLE = 200

# --- the structured content: the SDK makes the output schema of each tool from these classes ----------------------

Visible = Annotated[str, AfterValidator(visible)]
Moment = Annotated[str, BeforeValidator(lambda at: at if isinstance(at, str) else at.isoformat())]


class Quote(BaseModel, from_attributes=True):
    """A passage of a step or note, and where it comes from."""

    text: Visible
    source: Visible
    kind: str
    origin: str
    trust: str
    at: Moment
    score: Annotated[float, AfterValidator(lambda score: round(score, 3))]
    agent: Visible | None
    run: str | None
    step: int | None
    note: str | None
    tool: str | None
    stale: bool


class Recalled(BaseModel):
    """Passages, the best first."""

    results: list[Quote]


class NoteShape(BaseModel, from_attributes=True):
    """One note."""

    id: str
    text: Visible
    kind: str
    tags: list[str]
    origin: str
    at: Moment
    run: str | None
    stale: bool


class Listed(BaseModel):
    """Notes, the newest first."""

    notes: list[NoteShape]


class RunShape(BaseModel):
    """One run, without its steps."""

    id: str
    agent: Visible
    status: str
    task: Visible
    began: Moment
    seconds: float | None
    steps: int
    errors: int
    tags: list[Visible]
    imported: bool


class Recent(BaseModel):
    """Runs, the newest first."""

    runs: list[RunShape]


class Transcript(BaseModel):
    """One run with its transcript."""

    run: RunShape
    transcript: str


class Remembered(BaseModel):
    """Whether a note was written, its id, or why it was not written."""

    remembered: bool
    note: str | None
    reason: str | None


class Forgotten(BaseModel):
    """The ids of the notes that recall now leaves out, or why it leaves out none."""

    forgotten: list[str]
    reason: str | None


class Hit(BaseModel):
    """A search result that `fetch` opens."""

    id: str
    title: str
    url: str


class Hits(BaseModel):
    """Search results, the best first."""

    results: list[Hit]


class Document(BaseModel):
    """The whole text of a run, step or note."""

    id: str
    title: str
    text: str
    url: str
    metadata: dict[str, str]


# --- texts ------------------------------------------------------------------------------------------------------------


def quotes(title: str, entries: Sequence[tuple[str, str]]) -> str:
    """A quoted list; empty if there is nothing to quote."""
    parts = [f"[{number}] {head}\n{quoted(text)}" for number, (head, text) in enumerate(entries, 1)]
    return "\n".join([f"{title} {CAUTION}", *parts, "End of the list."]) if parts else ""


def about(run: Run) -> str:
    """A run in one line."""
    took = "" if run.seconds is None else f" · {run.seconds:.0f} s"
    imported = " · imported" if run.imported else ""
    at = f"{run.began:%Y-%m-%d %H:%M}"
    steps = counted(run.step_count, "step")
    tags = f" · {one_line(' '.join(f'#{tag}' for tag in run.tags), 80)}" if run.tags else ""
    return f"run {run.id} · {one_line(run.agent, 80)} · {run.status} · {at} · {steps}{took}{tags}{imported}"


def note_text(note: Note) -> str:
    """A note, quoted."""
    return quotes("A note.", [(origin(note), note.text)])


def origin(note: Note) -> str:
    """Where a note comes from, in one line."""
    tags = f" · {one_line(', '.join(note.tags), 80)}" if note.tags else ""
    stale = " · STALE: a source of this note is no longer current" if note.stale else ""
    return f"note {note.id} · {one_line(note.kind, 80)}{tags} · {note.at:%Y-%m-%d %H:%M} · from {note.origin}{stale}"


def step_text(step: Step) -> str:
    """A step, quoted."""
    head = f"step {step.id} of run {step.run} · {one_line(step.agent, 80)} · {step.kind} · {step.at:%Y-%m-%d %H:%M}"
    return quotes("A step of a run.", [(head, step.text[: MOST_TOKENS * PER_TOKEN])])


# --- data -------------------------------------------------------------------------------------------------------------


def run_shape(run: Run) -> RunShape:
    """A run, without its steps."""
    same = {name: getattr(run, name) for name in ("id", "agent", "status", "began", "seconds", "tags", "imported")}
    return RunShape(**same, task=run.title, steps=run.step_count, errors=run.error_count)


def hit(one: Recollection) -> Hit:
    """A search result."""
    id = f"note/{one.note}" if one.note else f"step/{one.step}"
    return Hit(id=id, title=f"{visible(one.source)}: {one_line(visible(one.text), _TITLE)}", url=f"smolmem://{id}")


def document(id: str, title: str, text: str) -> Document:
    """The whole text of a search result."""
    short = visible(one_line(title, _TITLE))
    return Document(id=id, title=short, text=text, url=f"smolmem://{id}", metadata={"source": "smolmem"})
