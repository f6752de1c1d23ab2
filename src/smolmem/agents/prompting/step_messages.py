"""The messages that a saved step is shown to a model as, kept from one prompt to the next.

smolagents makes the messages of all steps anew for each prompt. An attached agent gets those of the last prompt again,
as long as nobody changed them or the fields that they were made from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from types import CodeType
from typing import Any, cast

import smolagents.agents
import smolagents.memory
from smolagents.memory import ActionStep, PlanningStep, SystemPromptStep, TaskStep, ToolCall
from smolagents.models import ChatMessage

from smolmem.core.encoding.codec import live_key, original_class
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
    classes: list[type] = field(default_factory=list)
    """The classes of all that is in them: equal values of other classes can be shown otherwise."""
    key: str | None = None
    """The hash of messages of another shape than smolagents makes, as they were."""
    made_from: list[Any] | None = None
    """What they were made from; None if that is not known."""
    read: Callable[[Any], list[Any] | None] = _nothing
    """Reads from a step what its messages are made from."""
    step_class: Any = None

    @classmethod
    def of(cls, step: Any) -> StepMessages:
        """The messages of a step as it is now; none if it cannot be rendered."""
        messages, made_from = rendered_messages(step), None
        try:
            kept, classes = [_copied(vars(message)) for message in messages], _classes(messages)
        except Exception:  # of the user's own: dicts, contents that are texts, messages without fields
            return cls(messages, key=live_key(messages))
        read = _SHOWN[original_class(step)][1] if _is_rendered_as_known(step) else _nothing
        with suppress(Exception):
            made_from = read(step)
        known = made_from if made_from and _is_known(made_from) else None
        return cls(messages, kept, classes, None, known, read, original_class(step))

    def for_prompt(self, step: Any) -> list[Any] | None:
        """The messages for another prompt; None if the fields of the step do not say that they are still these.

        Ask `are_made_as_known` before.
        """
        if self.made_from is None or "to_messages" in vars(step) or original_class(step) is not self.step_class:
            return None
        try:
            now = self.read(step)
            if now != self.made_from or list(map(type, now or ())) != list(map(type, self.made_from)):
                return None
        except Exception:  # the user has set a field to something else
            return None
        if not self.look_like(self.messages):
            self.messages = [ChatMessage(**_copied(message)) for message in self.kept]
        return self.messages

    def look_like(self, messages: Sequence[Any]) -> bool:
        """Whether a model is given the same with other messages."""
        if self.key is not None:
            return live_key(list(messages)) == self.key
        try:
            return list(map(vars, messages)) == self.kept and _classes(messages) == self.classes
        except Exception:  # messages of another shape, or values that cannot be compared
            return False


def _copied(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": [dict(part) for part in message["content"]]}


def _classes(messages: Sequence[Any]) -> list[type]:
    """The classes of messages, of their roles, and of what their contents show.

    Raises:
        Exception: if they are not of the shape that smolagents makes, so that this is not all that is in them.
    """
    found: list[type] = []
    for message in messages:
        found += type(message), type(message.role)
        for part in message.content:
            found += map(type, part.values())
    return found


# --- what messages are made from -------------------------------------------------------------------------------------


def _of_action(step: Any) -> list[Any]:
    """An error and a call can be edited in place, and an image is shown as the object that it is.

    Of a call with arguments of any other class, this is the text that is shown.
    """
    calls, error = step.tool_calls, step.error
    found = [step.model_output, step.observations, None if error is None else str(error)]
    found.append(None if calls is None else len(calls))
    for call in calls or ():
        if type(call) is not ToolCall or "dict" in vars(call):
            raise TypeError("a call of another class can be rendered in another way each time")
        arguments = call.arguments
        found += call.id, call.name
        if type(arguments) is dict and _ATOMS.issuperset(map(type, arguments.values())):
            found += len(arguments), *arguments, *arguments.values()
        else:
            found.append(arguments if type(arguments) is str else repr(call.dict()))
    found += map(id, step.observations_images or ())
    return found


_ATOMS = {str, int, bool, type(None)}
"""Values of these classes that are equal, and of the same class, look the same."""


def _is_known(made_from: list[Any]) -> bool:
    return _ATOMS.issuperset(map(type, made_from))


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


def _makers() -> list[Any]:
    """All that makes messages: functions, the code that they have, and what they use."""
    methods = [ToolCall.dict, *(cls.to_messages for cls in _SHOWN)]
    used = [vars(smolagents.memory).get(name) for name in ("make_json_serializable", "ChatMessage", "MessageRole")]
    functions = [*methods, used[0], ChatMessage.__init__]
    return [*functions, *used, *(getattr(each, "__code__", None) for each in functions)]


_AS_KNOWN = reads_known_fields() and all(
    getattr(maker, "__globals__", None) is vars(smolagents.memory)
    for maker in (ToolCall.dict, *(cls.to_messages for cls in _SHOWN))
)
_MAKERS = _makers()


def _is_rendered_as_known(step: Any) -> bool:
    return are_made_as_known() and original_class(step) in _SHOWN and "to_messages" not in vars(step)


def are_made_as_known() -> bool:
    """Whether messages can be kept: nobody has replaced anything of smolagents that makes them."""
    return _AS_KNOWN and _makers() == _MAKERS


def renders_as_documented(render: Any) -> bool:
    """Whether a bound `write_memory_to_messages` is smolagents' own: not that of a subclass, nor a replaced one."""
    return getattr(getattr(render, "__func__", None), "__globals__", None) is vars(smolagents.agents)
