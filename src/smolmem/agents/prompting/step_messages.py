"""The messages that a saved step is shown to a model as, kept from one prompt to the next.

smolagents makes the messages of all steps anew for each prompt. An attached agent gets those of the last prompt again,
as long as nobody changed them or the fields that they were made from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from types import CodeType
from typing import Any, cast

import smolagents.agents
import smolagents.memory
from smolagents.memory import ActionStep, PlanningStep, SystemPromptStep, TaskStep, ToolCall
from smolagents.models import ChatMessage

from smolmem.core.encoding.codec import original_class
from smolmem.core.prompts import rendered_messages


@dataclass(slots=True)
class StepMessages:
    """The messages of one step."""

    messages: list[Any] = field(default_factory=list)
    """Those of the last prompt: whoever got it may have changed them."""
    kept: list[dict[str, Any]] = field(default_factory=list)
    """Their fields when the step was saved; nobody else has them."""
    made_from: Any = None
    """What they were made from; None if that is not known."""

    @classmethod
    def of(cls, step: Any) -> StepMessages:
        """The messages of a step as it is now; none if it cannot be rendered."""
        made_from = _shown_fields(step) if are_made_as_known() else None
        messages = rendered_messages(step)
        return cls(messages, [_copied(vars(message)) for message in messages], made_from)

    def for_prompt(self, step: Any) -> list[Any] | None:
        """The messages for another prompt; None if the fields of the step do not say that they are still these.

        Ask `are_made_as_known` before.
        """
        if self.made_from is None or _shown_fields(step) != self.made_from:
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


def _of_action(step: Any) -> tuple[Any, ...]:
    """An error and the arguments of a call can be edited in place, and an image is shown as the object that it is."""
    calls, error, images = step.tool_calls, step.error, step.observations_images
    return (
        _text(step.model_output),
        _text(step.observations),
        None if error is None else str(error),
        calls and [*map(_of_call, calls)],
        images and [*map(id, images)],
    )


def _of_call(call: Any) -> tuple[Any, ...]:
    if type(call) is not ToolCall:
        raise _NotKnown
    arguments = call.arguments
    return call.id, call.name, arguments if type(arguments) is str else json.dumps(arguments)


def _of_task(step: Any) -> tuple[Any, ...]:
    return _text(step.task), [*map(id, step.task_images or ())]


def _text(value: Any) -> Any:
    if value is None or type(value) is str:
        return value
    raise _NotKnown


class _NotKnown(Exception):
    """An object of another class can change while it compares equal, or is shown in another way."""


_SHOWN: dict[Any, tuple[set[str], Callable[[Any], Any]]] = {
    ActionStep: ({"model_output", "observations", "error", "tool_calls", "observations_images"}, _of_action),
    PlanningStep: ({"plan"}, lambda step: _text(step.plan)),
    SystemPromptStep: ({"system_prompt"}, lambda step: _text(step.system_prompt)),
    TaskStep: ({"task", "task_images"}, _of_task),
}
"""The fields that the messages of a step are made from, and their values."""


def _shown_fields(step: Any) -> Any:
    shown = _SHOWN.get(original_class(step))
    if shown is None or "to_messages" in vars(step):
        return None
    try:
        return shown[1](step)
    except Exception:
        return None


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


def are_made_as_known() -> bool:
    """Whether messages can be kept: nobody has replaced a function of smolagents that makes them."""
    makers = (ToolCall.dict, *(cls.to_messages for cls in _SHOWN))
    return _AS_KNOWN and all(getattr(maker, "__globals__", None) is vars(smolagents.memory) for maker in makers)


def renders_as_documented(render: Any) -> bool:
    """Whether a bound `write_memory_to_messages` is smolagents' own: not that of a subclass, nor a replaced one."""
    return getattr(getattr(render, "__func__", None), "__globals__", None) is vars(smolagents.agents)
