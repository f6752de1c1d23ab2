"""A run, a step or a memory as text for another agent: quoted, to be known and not to be obeyed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
from smolmem.recall.context import quoted

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


def as_text(what: Any, tokens: int) -> tuple[str, str, str]:
    """The text of something that is to be injected, a title for it, and its origin.

    Raises:
        InvalidArgument: if it has no text.
    """
    if isinstance(what, str):
        return what, "history", "the user"
    if isinstance(what, Run):
        title = f"run {what.id[:8]} of {what.agent}, {what.began.astimezone():%Y-%m-%d %H:%M}, {what.status}"
        return quoted(str(to_messages(what.steps, tokens))), title, f"the agent {what.agent}"
    if isinstance(what, MultiStepAgent):
        name = agent_name(what)
        return quoted(str(to_messages(what.memory.steps, tokens))), f"memory of {name}", f"the agent {name}"
    if isinstance(what, (Note, Recollection)):
        return quoted(what.text), "memory", what.origin
    if isinstance(what, (Step, MemoryStep)):
        return quoted(str(to_messages([what], tokens))), "history", "the user"
    if isinstance(what, Iterable) and not isinstance(what, (Mapping, bytes)):
        texts = [as_text(each, tokens) for each in what]
        return "\n".join(text for text, _, _ in texts), *(texts[0][1:] if texts else ("", ""))
    raise InvalidArgument(f"inject() takes text, steps, notes, a run or an agent, not {type(what).__name__}.")
