"""A scripted model that analyzes a monitoring history. It is not an LLM, and its name says so.

It only counts what it finds in the text of its task. It does not know the steps that a token budget left out.
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


def summarize(history: str) -> str:
    """A summary of a history."""
    checks = [found for found in CHECK.findall(history) if found[1] or found[0] == "200"]
    problems = Counter(problem.strip() for status, problem in checks if status != "200")
    summary = f"{len(checks)} health checks, {sum(problems.values())} of them failed."
    if problems:
        summary += f" Mostly: {problems.most_common(1)[0][0]}."
    summary += f" Alerts: {len(ALERT.findall(history))}."
    hidden = re.search(r"\[(\d+) earlier steps", history)
    return f"{summary} {hidden[1]} earlier steps were not in the history." if hidden else summary


class ScriptedAnalyst(Model):
    """The script as a smolagents model, for a `ToolCallingAgent`."""

    def __init__(self) -> None:
        super().__init__(model_id="scripted analyst (no LLM)")

    def generate(self, messages: list[ChatMessage], *_: Any, **__: Any) -> ChatMessage:
        """Answers with the summary."""
        task = next(text for text in map(text_of, reversed(messages)) if text.startswith("New task:"))
        function = ChatMessageToolCallFunction(name="final_answer", arguments={"answer": summarize(task)})
        calls = [ChatMessageToolCall(function=function, id="call_1", type="function")]
        usage = TokenUsage(sum(len(text_of(message)) for message in messages) // 4, len(str(function.arguments)) // 4)
        return ChatMessage(MessageRole.ASSISTANT, "The analysis is done.", tool_calls=calls, token_usage=usage)
