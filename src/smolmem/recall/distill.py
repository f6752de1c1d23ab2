"""Notes that a model writes about a run: facts, lessons, procedures, beside the record and never in its place.

Each note names the steps it was made from, is stale when one of them is forgotten, and can be forgotten without loss.
Junk is refused: notes that say nothing, that are known already, or that were recalled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from smolagents.models import ChatMessage, MessageRole

from smolmem.core.errors import InvalidArgument
from smolmem.core.text import message_text
from smolmem.core.values import Note, Run, Step
from smolmem.recall.context import PER_TOKEN, quoted
from smolmem.recall.notes import Notes

MAX_NOTES = 5
TOKENS = 6_000
"""The tokens of a run that the model is shown; the middle of long steps is left out."""

_ASK = """Below is the record of an agent's run, quoted. Write down what would help in later runs, at most {most} lines,
each of them understandable by itself, each in this form:
fact [steps]: something that is true of the world or the system
lesson [steps]: something that went wrong and how to avoid it
procedure [steps]: a way to do something that worked
where [steps] are the numbers in brackets of the steps it comes from, such as [3, 5]. Nothing else. If there is
nothing worth knowing, write nothing.

"""
_LINE = re.compile(r"^[\W\d]*(fact|lesson|procedure)\s*\[([\d,\s]*)\]\W*:\W*(.+)$", re.IGNORECASE)


def distill(notes: Notes, run: Run, model: Any, recalled: Sequence[str]) -> list[Note]:
    """Lets a model write notes about a run, and returns the notes that were kept.

    Raises:
        InvalidArgument: if the model does not answer.
    """
    steps = run.steps
    prompt = _ASK.format(most=MAX_NOTES) + _transcript(steps)
    try:
        answer = model.generate([ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": prompt}])])
    except Exception as error:
        raise InvalidArgument(
            f"the model did not answer ({type(error).__name__}: {error}); nothing was noted."
        ) from error
    known = {step.id for step in steps}
    kept: list[Note] = []
    for line in message_text(answer).splitlines():
        found = _LINE.match(line.strip())
        if found is None or len(kept) >= MAX_NOTES:
            continue
        kind, said = found[1].lower(), found[3].strip()
        sources = [int(number) for number in re.findall(r"\d{1,18}", found[2]) if int(number) in known]
        if notes.why_junk(said, run.scope, kind, list(recalled)) is None:
            kept.append(
                notes.add(
                    said,
                    scope=run.scope,
                    kind=kind,
                    tags=("distilled",),
                    origin="model",
                    run=run.id,
                    sources=sources or sorted(known),
                )
            )
    return kept


def _transcript(steps: Sequence[Step]) -> str:
    shown = [step for step in steps if step.text]
    each = max(200, TOKENS * PER_TOKEN // max(1, len(shown)))
    return "\n".join(f"[{step.id}] {step.kind}\n{quoted(_shortened(step.text, each))}" for step in shown)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}\n[…]\n{text[-most // 2 :]}"
