"""A run, a step or a memory as text for another agent: quoted, to be known and not to be obeyed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from smolagents import MultiStepAgent
from smolagents.memory import MemoryStep, TaskStep

from smolmem.agents.compat import agent_name
from smolmem.agents.prompting.prompt_parts import Part, messages_of
from smolmem.agents.prompting.view_chain import ViewChain
from smolmem.core.errors import InvalidArgument
from smolmem.core.prompts import rendered_messages
from smolmem.core.text import message_role, message_text
from smolmem.core.values import Note, Recollection, Run, Step
from smolmem.policies.views import TokenBudget
from smolmem.recall.context import quoted, sources

TOKENS = 4_000
"""The budget for another agent's run, by default."""


class Messages(list[Any]):
    """smolagents messages; as text, a transcript that a model or a person can read."""

    def __str__(self) -> str:
        return "\n\n".join(f"{message_role(message)}:\n{message_text(message)}" for message in self)


def to_messages(steps: Sequence[Any], tokens: int | None) -> Messages:
    """Steps as messages, within a budget: the task, then as many of the newest steps as fit."""
    parts = []
    for step in steps:
        live = step.to_smolagents() if isinstance(step, Step) else step
        if isinstance(live, MemoryStep) and (messages := rendered_messages(live)):
            parts.append(Part(messages, "task" if isinstance(live, TaskStep) else "step", live))
    return Messages(messages_of(parts if tokens is None else TokenBudget(tokens, bite=0).show(parts, ViewChain(None))))


class Injectable(NamedTuple):
    """Something that is to be injected, as text, and the recorded steps and notes that the text was made from."""

    text: str
    title: str
    origin: str
    sources: tuple[int | str, ...] = ()


def injectable(what: Any, tokens: int, recorded: Callable[[Sequence[Any]], Iterable[int]]) -> Injectable:
    """The text of something that is to be injected, with a title, its origin and its sources.

    Args:
        what: a text, step, note, recollection, run or agent, or several of these.
        tokens: how much of a run, or of an agent's memory, is shown at most.
        recorded: the ids of those of some live steps that are recorded.

    Raises:
        InvalidArgument: if it has no text.
    """
    if isinstance(what, str):
        return Injectable(what, "history", "the user")
    if isinstance(what, (Note, Recollection)):
        source = (what.id,) if isinstance(what, Note) else tuple(sources([what]))
        return Injectable(quoted(what.text), "memory", what.origin, source)
    if isinstance(what, Iterable) and not isinstance(what, (Mapping, bytes)):
        texts = [injectable(each, tokens, recorded) for each in what]
        first = texts[0] if texts else Injectable("", "", "")
        found = (source for each in texts for source in each.sources)
        return Injectable("\n".join(each.text for each in texts), first.title, first.origin, tuple(found))
    steps, title, origin = _steps_of(what)
    stored = [step.id for step in steps if isinstance(step, Step)] or recorded(steps)
    return Injectable(quoted(str(to_messages(steps, tokens))), title, origin, tuple(stored))


def _steps_of(what: Any) -> tuple[Sequence[Any], str, str]:
    """The steps of a run, an agent or a step, with a title and an origin."""
    if isinstance(what, Run):
        title = f"run {what.id[:8]} of {what.agent}, {what.began.astimezone():%Y-%m-%d %H:%M}, {what.status}"
        return what.steps, title, f"the agent {what.agent}"
    if isinstance(what, MultiStepAgent):
        name = agent_name(what)
        return what.memory.steps, f"memory of {name}", f"the agent {name}"
    if isinstance(what, (Step, MemoryStep)):
        return [what], "history", "the user"
    raise InvalidArgument(f"inject() takes text, steps, notes, a run or an agent, not {type(what).__name__}.")
