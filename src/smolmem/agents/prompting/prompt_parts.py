"""A rendered prompt, taken apart: which messages belong to which step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from smolagents.memory import SystemPromptStep, TaskStep

from smolmem.agents.prompting.step_messages import StepMessages
from smolmem.core.smolagents_texts import NEW_TASK
from smolmem.core.text import message_role, message_texts

Role = Literal["system", "task", "step", "reminder", "note"]


@dataclass(frozen=True)
class Part:
    """Messages of a prompt that belong together: those of one step, or a note in the place of several."""

    messages: list[Any]
    role: Role = "note"
    step: Any = None
    id: int | None = None
    """A number that grows along the list and stays with the step; the step's id, if it is recorded."""
    recorded: bool = False
    stored: int | None = None
    """The content that holds exactly these messages."""

    def showing(self, messages: list[Any]) -> Part:
        """The same part with other messages."""
        return replace(self, messages=messages, stored=None)


@dataclass(frozen=True)
class ListedStep:
    """A step on the list, and what is known of its messages."""

    step: Any
    id: int | None = None
    recorded: bool = False
    stored: int | None = None
    saved: StepMessages | None = None
    """The stored messages."""


def messages_of(parts: Iterable[Part]) -> list[Any]:
    """The messages of parts."""
    return [message for part in parts for message in part.messages]


def parts_of(messages: list[Any], listed: Sequence[ListedStep], *, summary: bool) -> list[Part]:
    """The parts of a rendered prompt, one for each step.

    An agent class of the user's own may render differently; then each message is a part by itself.
    """
    parts, position = [], 0
    for one in listed:
        saved = None if summary else one.saved
        size = 0 if saved is None else len(saved.messages)
        known = saved is not None and size > 0 and saved.look_like(messages[position : position + size])
        if not known:
            size = len(one.step.to_messages(summary_mode=summary))
        taken = messages[position : position + size]
        position += size
        parts.append(Part(taken, _role(one.step), one.step, one.id, one.recorded, one.stored if known else None))
    if position != len(messages):
        return [Part([message], _role_of_message(message), None, place) for place, message in enumerate(messages)]
    return [part for part in parts if part.messages]


def parts_of_steps(steps: Sequence[Any]) -> list[Part]:
    """The parts of a prompt of these steps alone."""
    messages = [message for step in steps for message in step.to_messages()]
    return parts_of(messages, [ListedStep(step) for step in steps], summary=False)


def _role(step: Any) -> Role:
    return "system" if isinstance(step, SystemPromptStep) else "task" if isinstance(step, TaskStep) else "step"


def _role_of_message(message: Any) -> Role:
    role = message_role(message)
    if role == "user" and "".join(message_texts(message)[:1]).startswith(NEW_TASK):
        return "task"
    return "system" if role == "system" else "step"
