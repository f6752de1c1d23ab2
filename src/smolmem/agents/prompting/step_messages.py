"""The messages that a saved step is shown to a model as, kept from one prompt to the next.

smolagents makes the messages of all steps anew for each prompt. An attached agent gets those of the last prompt again,
as long as nobody changed them or the fields that they were made from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import chain
from operator import itemgetter
from types import CodeType
from typing import Any, cast

import smolagents.agents
import smolagents.memory
from smolagents.memory import ActionStep, PlanningStep, SystemPromptStep, TaskStep, ToolCall
from smolagents.models import ChatMessage

from smolmem.core.encoding.codec import live_key, original_class
from smolmem.core.prompts import rendered_messages

_Classes = tuple[list[type], list[type]]
"""The classes of the roles of messages, and of what their contents show."""


def _nothing(step: Any) -> None:
    """Of a step whose messages are made in another way."""


@dataclass(slots=True)
class StepMessages:
    """The messages of one step."""

    messages: list[Any] = field(default_factory=list)
    """Those of the last prompt: whoever got it may have changed them."""
    kept: list[dict[str, Any]] = field(default_factory=list)
    """Their fields when the step was saved; nobody else has them."""
    classes: _Classes = ([], [])
    """The classes of these fields."""
    key: str | None = None
    """The hash of messages of another shape than smolagents makes, as they were."""
    made_from: list[Any] | None = None
    """What they were made from; None if that is not known."""
    made_from_classes: list[type] = field(default_factory=list)
    read: Callable[[Any], list[Any] | None] = _nothing
    """Reads from a step what its messages are made from."""
    step_class: Any = None

    @classmethod
    def of(cls, step: Any) -> StepMessages:
        """The messages of a step as it is now; none if it cannot be rendered."""
        made = cls.keeping(rendered_messages(step))
        if (
            made.key is None
            and are_made_as_known()
            and original_class(step) in _SHOWN
            and "to_messages" not in vars(step)
        ):
            made.step_class, (_, made.read) = original_class(step), _SHOWN[original_class(step)]
            with suppress(Exception):
                made_from = made.read(step)
                if made_from and _ATOMS.issuperset(map(type, made_from)):
                    made.made_from, made.made_from_classes = made_from, list(map(type, made_from))
        return made

    @classmethod
    def keeping(cls, messages: list[Any]) -> StepMessages:
        """Messages as they are now."""
        with suppress(Exception):  # messages of the user's own: dicts, contents that are texts, objects without fields
            kept = [_copied(vars(message)) for message in messages]
            classes = _classes(kept)
            if _are_same(messages, kept, classes):
                return cls(messages, kept, classes)
        return cls(messages, key=live_key(messages))

    def for_prompt(self, step: Any) -> list[Any] | None:
        """The messages for another prompt; None if the fields of the step do not say that they are still these.

        Ask `are_made_as_known` before, and `restore_edited` afterwards.
        """
        if self.made_from is None or "to_messages" in vars(step):
            return None
        try:
            if type(step)._original_class is not self.step_class:
                return None
            now = self.read(step)
            if now is None or now != self.made_from or list(map(type, now)) != self.made_from_classes:
                return None
        except Exception:  # the user has set a field to something else
            return None
        return self.messages

    def look_like(self, messages: Sequence[Any]) -> bool:
        """Whether a model is given the same with other messages."""
        if self.key is not None:
            return live_key(list(messages)) == self.key
        try:
            return _are_same(messages, self.kept, self.classes)
        except Exception:  # messages of another shape, or values that cannot be compared
            return False


def restore_edited(used: Sequence[StepMessages]) -> bool:
    """Makes those messages anew that somebody has edited; whether there are any.

    All are compared at once, as every prompt has nearly all of them.
    """
    messages = [message for each in used for message in each.messages]
    kept = [fields for each in used for fields in each.kept]
    roles, shown = ([cls for each in used for cls in each.classes[part]] for part in (0, 1))
    with suppress(Exception):  # values that cannot be compared
        if _are_same(messages, kept, (roles, shown)):
            return False
    for each in used:
        if not each.look_like(each.messages):
            each.messages = [ChatMessage(**_copied(message)) for message in each.kept]
    return True


def _copied(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": [dict(part) for part in message["content"]]}


_role, _content = itemgetter("role"), itemgetter("content")


def _are_same(messages: Sequence[Any], kept: list[dict[str, Any]], classes: _Classes) -> bool:
    """Whether messages of smolagents have these fields; equal values of other classes can be shown otherwise.

    Raises:
        Exception: if they are not of the shape that smolagents makes.
    """
    now = list(map(vars, messages))
    return now == kept and set(map(type, messages)) <= {ChatMessage} and _classes(now) == classes


def _classes(fields: Sequence[Mapping[str, Any]]) -> _Classes:
    shown = chain.from_iterable(map(dict.values, chain.from_iterable(map(_content, fields))))
    return list(map(type, map(_role, fields))), list(map(type, shown))


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


def are_made_as_known() -> bool:
    """Whether messages can be kept: nobody has replaced anything of smolagents that makes them."""
    return _AS_KNOWN and _makers() == _MAKERS


def renders_as_documented(agent: Any) -> bool:
    """Whether the class of an agent has smolagents' own `write_memory_to_messages`, and nobody replaced it."""
    render = type(agent).write_memory_to_messages
    return getattr(render, "__globals__", None) is vars(smolagents.agents)
