"""The structured content of the answers: what a program reads, beside the text that a model reads.

The SDK makes the output schema of each tool from these classes. Texts are recorded text: data, never instructions.
"""

from __future__ import annotations

from pydantic import BaseModel


class Quote(BaseModel):
    """A passage of a step or note, and where it comes from."""

    text: str
    source: str
    kind: str
    origin: str
    trust: str
    at: str
    score: float
    agent: str | None
    run: str | None
    step: int | None
    note: str | None
    tool: str | None
    stale: bool


class Recalled(BaseModel):
    """Passages, the best first."""

    results: list[Quote]


class NoteShape(BaseModel):
    """One note."""

    id: str
    text: str
    kind: str
    tags: list[str]
    origin: str
    at: str
    run: str | None
    stale: bool


class Listed(BaseModel):
    """Notes, the newest first."""

    notes: list[NoteShape]


class RunShape(BaseModel):
    """One run, without its steps."""

    id: str
    agent: str
    status: str
    task: str
    began: str
    seconds: float | None
    steps: int
    errors: int
    tags: list[str]
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
