"""Small real agents with scripted models: no network, no mocks of smolagents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import quick  # noqa: F401  every program that runs these agents makes them quickly
from smolagents import CodeAgent, Model, ToolCallingAgent, tool
from smolagents.models import (
    ChatMessage,
    ChatMessageStreamDelta,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    MessageRole,
)
from smolagents.monitoring import TokenUsage


class Scripted(Model):
    """A model that says what it is told to, and raises exceptions that stand in its script."""

    def __init__(self, *script: Any) -> None:
        super().__init__(model_id="scripted-1")
        self.script = iter(script)
        self.prompts: list[list[ChatMessage]] = []

    def generate(self, messages: list[ChatMessage], **_: Any) -> ChatMessage:
        self.prompts.append(list(messages))
        said = next(self.script)
        if callable(said):
            said = said(messages)
        if isinstance(said, BaseException):
            raise said
        if isinstance(said, ChatMessage):
            return said
        return ChatMessage(role=MessageRole.ASSISTANT, content=said, token_usage=TokenUsage(10, 5))

    def generate_stream(self, messages: list[ChatMessage], **kwargs: Any) -> Iterator[ChatMessageStreamDelta]:
        said = self.generate(messages, **kwargs).content
        for start in range(0, len(said), 7):
            yield ChatMessageStreamDelta(content=said[start : start + 7])
        yield ChatMessageStreamDelta(token_usage=TokenUsage(10, 5))


class Counting(Scripted):
    """A model that counts tokens its own way: 4.3 characters, 1,105 an image, 180 for what every prompt has."""

    def generate(self, messages: list[Any], **kwargs: Any) -> Any:
        said = super().generate(messages, **kwargs)
        said.token_usage = TokenUsage(self.cost(messages), 5)
        return said

    @staticmethod
    def cost(messages: list[Any]) -> int:
        items = [item for message in messages for item in message.content]
        return 180 + int(sum(1_105 if item["type"] == "image" else len(item["text"]) / 4.3 for item in items))


def code(body: str) -> str:
    return f"Thought: on with it.\n<code>\n{body}\n</code>"


def calls(*wanted: tuple[str, dict[str, Any]]) -> ChatMessage:
    made = [
        ChatMessageToolCall(
            ChatMessageToolCallFunction(arguments=arguments, name=name), id=f"call_{i}", type="function"
        )
        for i, (name, arguments) in enumerate(wanted)
    ]
    return ChatMessage(MessageRole.ASSISTANT, content="I call.", tool_calls=made, token_usage=TokenUsage(10, 5))


def answer(value: Any) -> ChatMessage:
    return calls(("final_answer", {"answer": value}))


def code_agent(*script: Any, **options: Any) -> CodeAgent:
    options = {"tools": [], "verbosity_level": 0, "max_steps": 50} | options
    return CodeAgent(model=Scripted(*script), **options)


def calling_agent(*script: Any, **options: Any) -> ToolCallingAgent:
    options = {"tools": [weather], "verbosity_level": 0} | options
    return ToolCallingAgent(model=Scripted(*script), **options)


@tool
def weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: where
    """
    if city == "nowhere":
        raise LookupError("no such city")
    return f"sunny in {city}"


def team(memory: Any, **options: Any) -> CodeAgent:
    """An attached agent that plans, asks a helper with a tool, makes a mistake, and answers."""
    helper = code_agent(
        code("print(weather('Rome'))"),
        code("final_answer('sunny')"),
        tools=[weather],
        name="helper",
        description="helps",
    )
    boss = code_agent(
        "First ask the helper.",
        code("said = helper('How is Rome?')\nlength = len(said)\nprint(said)"),
        code("1 / 0"),
        code("final_answer(said)"),
        managed_agents=[helper],
        planning_interval=10,
    )
    return memory.attach(boss, **options)
