"""The messages that a saved step is shown to a model as, kept from one prompt to the next.

smolagents makes the messages of all steps anew for each prompt. An attached agent gets those of the last prompt again,
as long as nobody changed them or the fields that they were made from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from types import CodeType
from typing import Any, cast

import smolagents.agents
import smolagents.memory
from smolagents.memory import ActionStep, PlanningStep, SystemPromptStep, TaskStep, ToolCall
from smolagents.models import ChatMessage

from smolmem.core.encoding.codec import original_class
from smolmem.core.prompts import rendered_messages


def _nothing(step: Any) -> None:
    """Of a step whose messages are made in another way."""


@dataclass(slots=True)
class StepMessages:
    """The messages of one step."""

    messages: list[Any] = field(default_factory=list)
    """Those of the last prompt: whoever got it may have changed them."""
    kept: list[dict[str, Any]] = field(default_factory=list)
    """Their fields when the step was saved; nobody else has them."""
    made_from: list[Any] | None = None
    """What they were made from; None if that is not known."""
    read: Callable[[Any], list[Any] | None] = _nothing
    """Reads from a step what its messages are made from."""

    @classmethod
    def of(cls, step: Any) -> StepMessages:
        """The messages of a step as it is now; none if it cannot be rendered."""
        read = _SHOWN[original_class(step)][1] if _is_rendered_as_known(step) else _nothing
        made_from = None
        with suppress(Exception):
            made_from = read(step)
        messages = rendered_messages(step)
        kept = [_copied(vars(message)) for message in messages]
        return cls(messages, kept, made_from if made_from and _is_known(made_from) else None, read)

    def for_prompt(self, step: Any) -> list[Any] | None:
        """The messages for another prompt; None if the fields of the step do not say that they are still these.

        Ask `are_made_as_known` before.
        """
        if self.made_from is None or "to_messages" in vars(step):
            return None
        try:
            if self.read(step) != self.made_from:
                return None
        except Exception:  # the user has set a field to something else
            return None
        if list(map(vars, self.messages)) != self.kept:
            self.messages = [ChatMessage(**_copied(message)) for message in self.kept]
        return self.messages

    def look_like(self, messages: Sequence[Any]) -> bool:
        """Whether a model sees the same in other messages; a rendered message never changes its role."""
        try:
            return [message.content for message in messages] == [message["content"] for message in self.kept]
        except Exception:  # messages of any class: not known
            return False


def _copied(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if type(content) is list:
        content = [dict(part) if type(part) is dict else part for part in content]
    return {**message, "content": content}


# --- what messages are made from -------------------------------------------------------------------------------------


def _of_action(step: Any) -> list[Any]:
    """An error and the arguments of a call can be edited in place, and an image is shown as the object that it is.

    An argument of another class than JSON has can change while it compares equal: json does not take it.
    """
    calls, error = step.tool_calls, step.error
    found = [step.model_output, step.observations, None if error is None else str(error)]
    found.append(None if calls is None else len(calls))
    for call in calls or ():
        if type(call) is not ToolCall:
            raise TypeError("a call of another class can be rendered in another way")
        arguments = call.arguments
        found += call.id, call.name, type(arguments) is str
        found.append(arguments if type(arguments) is str else json.dumps(arguments))
    found += map(id, step.observations_images or ())
    return found


def _is_known(made_from: list[Any]) -> bool:
    """Whether values of these classes that are equal look the same."""
    return all(type(value) in (str, int, bool, type(None)) for value in made_from)


_SHOWN: dict[Any, tuple[set[str], Callable[[Any], list[Any]]]] = {
    ActionStep: ({"model_output", "observations", "error", "tool_calls", "observations_images"}, _of_action),
    PlanningStep: ({"plan"}, lambda step: [step.plan]),
    SystemPromptStep: ({"system_prompt"}, lambda step: [step.system_prompt]),
    TaskStep: ({"task", "task_images"}, lambda step: [step.task, *map(id, step.task_images or ())]),
}
"""The fields that the messages of a step are made from, and their values."""


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def reads_known_fields() -> bool:
    """Whether smolagents makes the messages of a step from the fields that are known here."""
    return all(
        {each.name for each in fields(cls)} & {*_names(cast(Any, cls.to_messages).__code__)} <= shown
        for cls, (shown, _) in _SHOWN.items()
    )


_AS_KNOWN = reads_known_fields()


def _is_rendered_as_known(step: Any) -> bool:
    return are_made_as_known() and original_class(step) in _SHOWN and "to_messages" not in vars(step)


def are_made_as_known() -> bool:
    """Whether messages can be kept: nobody has replaced a function of smolagents that makes them."""
    makers = (ToolCall.dict, *(cls.to_messages for cls in _SHOWN))
    return _AS_KNOWN and all(getattr(maker, "__globals__", None) is vars(smolagents.memory) for maker in makers)


def renders_as_documented(render: Any) -> bool:
    """Whether a bound `write_memory_to_messages` is smolagents' own: not that of a subclass, nor a replaced one."""
    return getattr(getattr(render, "__func__", None), "__globals__", None) is vars(smolagents.agents)
