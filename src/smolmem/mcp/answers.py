"""What the tools answer: one quoted text with its sources for a model, and the same as data for a program.

An answer never contains more than the scope of its memory, and nothing that was forgotten. What a client sends is a
model's choice, possibly made by a hostile text that the model read: numbers are limited here, a note of a user is never
superseded or forgotten, and nothing is erased.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from smolmem.core.errors import BudgetTooSmall, NotFound, SmolmemError
from smolmem.core.text import counted, one_line
from smolmem.core.values import Note, Recollection, Run, Step
from smolmem.memory import Memory
from smolmem.policies.transcript import to_messages
from smolmem.recall.context import CAUTION, PER_TOKEN, block, quoted, visible

NOTHING = "Nothing is remembered about that."
RECALL_TOKENS = 3_000
RUN_TOKENS = 4_000
MOST_TOKENS = 50_000
MOST_RESULTS = 50
LONGEST_QUESTION = 10_000
"""Characters of a question that are used."""
_TITLE = 200
_TOOL_WORDS = {
    "`memory.runs(scope='*')` lists them all": "recent_runs lists the newest",
    "`memory.steps()` lists the newest": "recall names steps",
    "`memory.notes()` lists all notes": "list_notes lists them",
}
"""What messages of the library suggest, and what the tools offer."""


# --- the structured content: the SDK makes the output schema of each tool from these classes ----------------------


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


# --- answers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """A text for a model, and its structured content."""

    text: str
    data: BaseModel


class Answers:
    """Answers from one memory, bounded by its scope."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def explain(self, error: SmolmemError) -> str:
        """The message of an error for a client: it names tools, and not the path of the file."""
        text = str(error).replace(self._memory._store.url, "this memory")
        for ours, theirs in _TOOL_WORDS.items():
            text = text.replace(ours, theirs)
        return text

    # --- recall ----------------------------------------------------------------------------------------------------

    def recall(self, question: str, limit: int) -> Answer:
        """The most fitting passages, quoted with their sources."""
        found = self._memory.recall(question[:LONGEST_QUESTION], _limited(limit, MOST_RESULTS))
        text, shown = block(found, RECALL_TOKENS)
        return Answer(text or NOTHING, Recalled(results=[_quote(one) for one in shown]))

    def context(self, question: str) -> str:
        """Memories for a prompt."""
        return self._memory.context(question[:LONGEST_QUESTION]) or NOTHING

    def search(self, query: str) -> Answer:
        """Results with ids, as connectors of chat programs expect them: the text is the same as JSON."""
        found = self._memory.recall(query[:LONGEST_QUESTION], 10)
        hits = Hits(results=[_hit(one) for one in found])
        return Answer(hits.model_dump_json(), hits)

    def fetch(self, id: str) -> Answer:
        """The whole text of a search result; the text is the same as JSON."""
        kind, _, name = id.removeprefix("smolmem://").partition("/")
        if kind == "run":
            made = self.read_run(name, MOST_TOKENS)
            document = _document(f"run/{self._run(name).id}", made.text.partition("\n")[0], made.text)
        elif kind == "note":
            note = self._note(name)
            document = _document(f"note/{note.id}", one_line(note.text, _TITLE), self.note(name))
        elif kind == "step" and name.isdecimal() and len(name) <= 18:
            step = self._step(int(name))
            document = _document(f"step/{step.id}", one_line(step.text, _TITLE), _step_text(step))
        else:
            raise NotFound(f"there is nothing with the id {one_line(id, 80)!r}: search returns ids such as step/17.")
        return Answer(document.model_dump_json(), document)

    # --- runs ------------------------------------------------------------------------------------------------------

    def recent_runs(self, limit: int, **filters: Any) -> Answer:
        """The newest runs that no other run called; a filter without a value is ignored."""
        given = {name: value for name, value in filters.items() if value}
        found = self._memory.runs(**given, managed=False, limit=_limited(limit, MOST_RESULTS))
        runs = [run for run in found if not self._is_forgotten(run)]
        shown = _quotes("Runs of agents, the newest first.", [(_about(run), run.title) for run in runs])
        return Answer(shown or "There are no such runs.", Recent(runs=[_run_shape(run) for run in runs]))

    def read_run(self, id: str, tokens: int) -> Answer:
        """A run as a transcript: the task, and the newest steps that fit."""
        run = self._run(id)
        steps = self._memory._recall.without_forgotten(run.steps)
        budget = max(200, _limited(tokens, MOST_TOKENS))
        try:
            transcript = str(to_messages(steps, budget))
        except BudgetTooSmall:  # a long task
            transcript = str(to_messages(steps, None))
        if len(transcript) > (most := budget * PER_TOKEN * 2):
            transcript = f"{transcript[:most]} […]"
        text = f"{_capitalized(_about(run))}. Its record follows.\n{CAUTION}\n{quoted(transcript)}\nEnd of the record."
        return Answer(text, Transcript(run=_run_shape(run), transcript=visible(transcript)))

    def _run(self, id: str) -> Run:
        run = self._memory.run(id)
        if self._is_forgotten(run):
            raise NotFound(f"run {run.id[:8]} was forgotten.")
        return run

    def _step(self, number: int) -> Step:
        step = self._memory.step(number)
        if not self._memory._recall.without_forgotten([step]):
            raise NotFound(f"step {number} was forgotten.")
        return step

    def _is_forgotten(self, run: Run) -> bool:
        return bool(self._memory._journal.store.rows("forgotten", {"what": "run", "target": run.id}))

    # --- notes -----------------------------------------------------------------------------------------------------

    def list_notes(self, kind: str | None, tag: str | None, limit: int) -> Answer:
        """Current notes, the newest first."""
        notes = self._memory.notes(kind=kind or None, tag=tag or None, limit=_limited(limit, MOST_RESULTS))
        text = _quotes("Notes, the newest first.", [(_origin(note), note.text) for note in notes])
        return Answer(text or "There are no such notes.", Listed(notes=[_note_shape(note) for note in notes]))

    def note(self, id: str) -> str:
        """One current note, quoted."""
        note = self._note(id)
        return _quotes("A note.", [(_origin(note), note.text)])

    def _note(self, id: str) -> Note:
        note = self._memory.note(id)
        if note.status != "current":
            raise NotFound(f"note {note.id[:8]} is {note.status}.")
        return note

    # --- writing ---------------------------------------------------------------------------------------------------

    def remember(self, text: str, kind: str, tags: str, supersedes: str | None) -> Answer:
        """Writes a note of a model, unless the note is junk, or would supersede a note of a user."""
        notes = self._memory._recall.notes
        junk = notes.why_junk(text, self._memory.scope, kind, [])
        past = self._note(supersedes) if supersedes else None
        if past is not None and past.origin == "user":
            junk = f"a user wrote note {past.id[:8]}, and only a user can supersede the note"
        if junk is not None:
            return Answer(f"Not remembered: {junk}.", Remembered(remembered=False, note=None, reason=junk))
        words = [word.strip() for word in tags.split(",") if word.strip()]
        note = self._memory.remember(text, kind=kind, tags=words, supersedes=past, origin="model")
        return Answer(f"Remembered as note {note.id}.", Remembered(remembered=True, note=note.id, reason=None))

    def forget(self, id: str) -> Answer:
        """Leaves a note, and the notes of this scope that were made from it, out of recall; the record keeps them."""
        note = self._note(id)
        if note.origin == "user":
            reason = "a user wrote this note, and only a user can forget it"
            return Answer(f"Not forgotten: {reason}.", Forgotten(forgotten=[], reason=reason))
        gone = self._memory._recall.notes.forget(("note", note.id), scope=self._memory.scope)
        ids = [name for _, name in gone]
        return Answer(f"Recall leaves out {', '.join(ids)} from now on.", Forgotten(forgotten=ids, reason=None))


# --- texts ------------------------------------------------------------------------------------------------------------


def _limited(value: int, most: int) -> int:
    return max(1, min(value, most))


def _quotes(title: str, entries: Sequence[tuple[str, str]]) -> str:
    """A quoted list; empty if there is nothing to quote."""
    parts = [f"[{number}] {head}\n{quoted(text)}" for number, (head, text) in enumerate(entries, 1)]
    return "\n".join([f"{title} {CAUTION}", *parts, "End of the list."]) if parts else ""


def _about(run: Run) -> str:
    took = "" if run.seconds is None else f" · {run.seconds:.0f} s"
    imported = " · imported" if run.imported else ""
    at = f"{run.began:%Y-%m-%d %H:%M}"
    steps = counted(run.step_count, "step")
    tags = f" · {one_line(' '.join(f'#{tag}' for tag in run.tags), 80)}" if run.tags else ""
    return f"run {run.id} · {one_line(run.agent, 80)} · {run.status} · {at} · {steps}{took}{tags}{imported}"


def _origin(note: Note) -> str:
    tags = f" · {one_line(', '.join(note.tags), 80)}" if note.tags else ""
    stale = " · STALE: a source of this note is no longer current" if note.stale else ""
    return f"note {note.id} · {one_line(note.kind, 80)}{tags} · {note.at:%Y-%m-%d %H:%M} · from {note.origin}{stale}"


def _step_text(step: Step) -> str:
    head = f"step {step.id} of run {step.run} · {one_line(step.agent, 80)} · {step.kind} · {step.at:%Y-%m-%d %H:%M}"
    return _quotes("A step of a run.", [(head, step.text[: MOST_TOKENS * PER_TOKEN])])


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


# --- data -------------------------------------------------------------------------------------------------------------


def _quote(one: Recollection) -> Quote:
    same = {name: getattr(one, name) for name in ("kind", "origin", "trust", "run", "step", "note", "tool", "stale")}
    agent = None if one.agent is None else visible(one.agent)
    at, score = one.at.isoformat(), round(one.score, 3)
    return Quote(**same, text=visible(one.text), source=visible(one.source), agent=agent, at=at, score=score)


def _note_shape(note: Note) -> NoteShape:
    same = {name: getattr(note, name) for name in ("id", "kind", "origin", "run", "stale")}
    return NoteShape(**same, text=visible(note.text), tags=list(note.tags), at=note.at.isoformat())


def _run_shape(run: Run) -> RunShape:
    return RunShape(
        id=run.id,
        agent=visible(run.agent),
        status=run.status,
        task=visible(run.title),
        began=run.began.isoformat(),
        seconds=run.seconds,
        steps=run.step_count,
        errors=run.error_count,
        tags=[visible(tag) for tag in run.tags],
        imported=run.imported,
    )


def _hit(one: Recollection) -> Hit:
    id = f"note/{one.note}" if one.note else f"step/{one.step}"
    return Hit(id=id, title=f"{visible(one.source)}: {one_line(visible(one.text), _TITLE)}", url=f"smolmem://{id}")


def _document(id: str, title: str, text: str) -> Document:
    return Document(id=id, title=visible(title), text=text, url=f"smolmem://{id}", metadata={"source": "smolmem"})
