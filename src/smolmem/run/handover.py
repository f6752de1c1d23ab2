"""From one mind to another: what is put before an agent's eyes, and a run as messages for somebody else to read.

What is injected stands at the beginning of every run until it is withdrawn. smolagents itself drops injected steps at
the next `run()`. What another agent did comes as quoted text: it is to be known, not to be obeyed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from smolagents import MultiStepAgent
from smolagents.memory import MemoryStep, TaskStep

from smolmem.errors import BadValue
from smolmem.inert import inert
from smolmem.recall.context import quoted
from smolmem.recall.values import Note, Recollection
from smolmem.record.injected import Injected, injected
from smolmem.record.prompt import Lens, Part, flat
from smolmem.record.recorder import Recorder
from smolmem.record.values import Run, Step
from smolmem.store.reminders import QUOTE
from smolmem.views import TokenBudget

TOKENS = 4_000
"""What another agent's run may cost, if nothing else is said."""


class Messages(list[Any]):
    """Messages of smolagents; as text, a transcript that a model or a person can read."""

    def __str__(self) -> str:
        return "\n\n".join(f"{_role(message)}:\n{_text(message)}" for message in self)


@dataclass(frozen=True)
class Injection:
    """Something that stands in an agent's memory."""

    step: Injected
    _recorder: Recorder

    def withdraw(self) -> None:
        """Takes it off the list, now and in later runs; the record keeps that it was there."""
        recorder, name = self._recorder, self.step.name
        recorder.standing.always = [step for step in recorder.standing.always if step.name != name]
        for step in list(recorder.agent.memory.steps):
            if isinstance(step, Injected) and step.name == name:
                with suppress(ValueError):  # somebody else has taken it off meanwhile
                    recorder.agent.memory.steps.remove(step)


def inject(recorder: Recorder, what: Any, title: str | None, until: float | None, tokens: int) -> Injection:
    """Puts something before an agent's eyes, now and at the beginning of each run."""
    text, about, origin = _told(what, tokens)
    if not text.replace(QUOTE.strip(), "").strip():
        raise BadValue("there is nothing to inject: the text is empty.")
    step = injected(text, _heading(title or about), _heading(origin), until)
    recorder.standing.always.append(step)
    recorder.put(step)
    return Injection(step, recorder)


def _heading(text: str) -> str:
    """Words that can stand in a heading, and cannot end it."""
    return " ".join(inert(text).split()).replace("[", "(").replace("]", ")")


def _told(what: Any, tokens: int) -> tuple[str, str, str]:
    """The text of what is given, a title for it, and who says so."""
    if isinstance(what, str):
        return what, "history", "the user"
    if isinstance(what, Run):
        about = f"run {what.id[:8]} of {what.agent}, {what.began.astimezone():%Y-%m-%d %H:%M}, {what.status}"
        return quoted(str(to_messages(what.steps, tokens))), about, f"the agent {what.agent}"
    if isinstance(what, MultiStepAgent):
        name = what.name or type(what).__name__
        return quoted(str(to_messages(what.memory.steps, tokens))), f"memory of {name}", f"the agent {name}"
    if isinstance(what, (Note, Recollection)):
        return quoted(what.text), "memory", what.origin
    if isinstance(what, (Step, MemoryStep)):
        return quoted(str(to_messages([what], tokens))), "history", "the user"
    if isinstance(what, Iterable) and not isinstance(what, (Mapping, bytes)):
        told = [_told(each, tokens) for each in what]
        return "\n".join(text for text, _, _ in told), *(told[0][1:] if told else ("", ""))
    raise BadValue(f"inject() takes text, steps, notes, a run or an agent, not {type(what).__name__}.")


def to_messages(steps: Sequence[Any], tokens: int | None) -> Messages:
    """Steps as messages, within a budget: the task, then as many of the newest as fit."""
    parts = []
    for step in steps:
        live = step.to_smolagents() if isinstance(step, Step) else step
        if isinstance(live, MemoryStep) and (shown := _shown(live)):
            parts.append(Part(shown, "task" if isinstance(live, TaskStep) else "step", live))
    return Messages(flat(parts if tokens is None else TokenBudget(tokens, bite=0).show(parts, Lens(None))))


def _shown(step: Any) -> list[Any]:
    """What a step is shown as; one that was made by hand may lack what that needs."""
    try:
        return list(step.to_messages())
    except Exception:
        return []


def _role(message: Any) -> str:
    return str(getattr(message.role, "value", message.role))


def _text(message: Any) -> str:
    if not isinstance(message.content, list):
        return str(message.content or "")
    return "\n".join(str(item.get("text", f"({item.get('type')})")) for item in message.content)
