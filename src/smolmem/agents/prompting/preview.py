"""A preview of the next prompt: its tokens, how much each view trims, and how much the server must read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from smolagents.memory import TaskStep

from smolmem.agents.prompting.prompt_parts import Part, messages_of, parts_of_steps
from smolmem.agents.recorder import Recorder
from smolmem.core.display import Drawable
from smolmem.core.prompts import common_length
from smolmem.core.text import counted
from smolmem.core.tokens import size


class Viewed(NamedTuple):
    """The effect of one view: the tokens after it, and how many tokens it trims."""

    name: str
    tokens: int
    trimmed: int


@dataclass(frozen=True)
class Preview(Drawable):
    """A prompt that was not sent."""

    messages: list[Any]
    tokens: int
    whole: int
    """The tokens without any view."""
    views: list[Viewed]
    read_again: int
    """The tokens after the part that the prompt shares with the previous one."""

    def __repr__(self) -> str:
        trimmed = f", {self.whole:,} without views" if self.whole != self.tokens else ""
        return f"Preview({counted(len(self.messages), 'message')}, {counted(self.tokens, 'token')}{trimmed})"


def preview(recorder: Recorder, task: str | None) -> Preview:
    """The prompt that the agent's next call would send; with a task, that of the first call of `run(task)`."""
    prompts = recorder.prompts
    chain, before = prompts.chain.preview(), prompts.chain.sent
    if task is None:
        shown = chain.show_each(prompts.parts_before_views(), prompts.session_id)
    else:
        shown = chain.show_each(_first_prompt(recorder, task))
    counts = [chain.count(parts) for _, parts in shown]
    views = [Viewed(name, now, then - now) for (name, _), then, now in zip(shown[1:], counts, counts[1:], strict=False)]
    messages = messages_of(shown[-1][1])
    same = common_length(before, messages)
    known = chain.tokens.count(size(messages[:same])) if same else 0
    return Preview(messages, counts[-1], counts[0], views, max(0, counts[-1] - known))


def set_views(recorder: Recorder, views: Sequence[Any]) -> None:
    """Sets the views of an agent, after trying each on the system prompt, so that a view that cannot work fails now.

    Raises:
        InvalidArgument: if a view cannot work; the earlier views stay.
    """
    trial = recorder.prompts.chain.preview()
    trial.views = views
    trial.show(parts_of_steps([recorder.agent.memory.system_prompt]))
    recorder.prompts.chain.views = views


def _first_prompt(recorder: Recorder, task: str) -> list[Part]:
    return parts_of_steps(
        [recorder.agent.memory.system_prompt, *recorder.steps.injections.for_new_list(), TaskStep(task=task)]
    )
