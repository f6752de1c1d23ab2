"""A scripted stand-in for a language model that reads a monitoring history. It is no LLM, and says so.

It counts what it finds in the text of its task, nothing else: what a budget has left out, it does not know.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from scripted_operator import text_of
from smolagents import Model
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import TokenUsage

CHECK = re.compile(r"health check: (\d+|no answer)[^,\n(]*(?:, ([^\n(]+))?")
ALERT = re.compile(r"^\[ALERT\]", re.MULTILINE)


def verdict(history: str) -> str:
    """What a history tells."""
    checks = [found for found in CHECK.findall(history) if found[1] or found[0] == "200"]
    problems = Counter(problem.strip() for status, problem in checks if status != "200")
    told = f"{len(checks)} health checks, {sum(problems.values())} of them failed."
    if problems:
        told += f" Mostly: {problems.most_common(1)[0][0]}."
    told += f" Alerts: {len(ALERT.findall(history))}."
    hidden = re.search(r"\[(\d+) earlier steps", history)
    return f"{told} {hidden[1]} earlier steps were not in what I was given." if hidden else told


class ScriptedAnalyst(Model):
    """The script as a smolagents model, for a `ToolCallingAgent`."""

    def __init__(self) -> None:
        super().__init__(model_id="scripted analyst (no LLM)")

    def generate(self, messages: list[ChatMessage], *_: Any, **__: Any) -> ChatMessage:
        """Answers at once."""
        task = next(text for text in map(text_of, reversed(messages)) if text.startswith("New task:"))
        function = ChatMessageToolCallFunction(name="final_answer", arguments={"answer": verdict(task)})
        calls = [ChatMessageToolCall(function=function, id="call_1", type="function")]
        usage = TokenUsage(sum(len(text_of(message)) for message in messages) // 4, len(str(function.arguments)) // 4)
        return ChatMessage(MessageRole.ASSISTANT, "I have read it.", tool_calls=calls, token_usage=usage)
