"""A scripted model that operates a shop. It is not an LLM, and its name says so.

It decides from the messages it is sent, as a model does, and keeps no state between two calls, so another process can
continue the same conversation. The table `REMEDIES` says what it does: diagnose, try the least invasive remedy, check,
and try the next remedy. Its answer is a sentence that it can recognise later:

    Resolved: health check 500, no such column: currency (release 41). Remedy: roll_back_release.

If it finds such a sentence about the current symptom, in a reminder or in the messages before its task, it tries that
remedy first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from smolagents import Model
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import TokenUsage

RESTART, ROLL_BACK, NOTIFY = "restart_application", "roll_back_release", "notify_person"
REMEDIES: dict[str, tuple[str, ...]] = {
    RESTART: ("read_logs", "get_metrics"),
    ROLL_BACK: ("read_logs",),
    NOTIFY: (),
}
"""Each remedy, the least invasive first, and the tools that are called before it is tried."""
ARGUMENTS: dict[str, dict[str, Any]] = {"read_logs": {"lines": 10}}
THOUGHTS = {
    "check_health": "I check the shop's health.",
    "read_logs": "It fails. I read the log.",
    "get_metrics": "I read the metrics.",
    RESTART: "A restart is the least invasive remedy. I try it.",
    ROLL_BACK: "The restart did not help. I roll back to the previous release.",
    NOTIFY: "A person must fix this.",
}

QUOTE = "❘ "
CHECK = re.compile(r"health check: (\d+|no answer)[^,\n(]*(?:, (?:checkout fails: )?([^\n]+))?")
RESOLVED = re.compile(r"(?:Resolved|Unresolved): ([^\n]+?)\. Remedy: (\w+)")
CALLED = re.compile(r"'function': \{'name': '(\w+)'")
WATCH = re.compile(r"\b(?:watch|check)\b.*?\b(\d+) times\b", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Action:
    """The next tool call: the tool, its arguments, and the reason."""

    tool: str
    arguments: dict[str, Any]
    thought: str


@dataclass(frozen=True)
class Call:
    """A tool call since the task, and its result."""

    tool: str
    result: str = ""

    @property
    def symptom(self) -> str:
        """The problem that a health check reported; empty if there was none, or for another tool."""
        found = CHECK.search(self.result) if self.tool == "check_health" else None
        return f"health check {found[1]}, {found[2] or 'no reason given'}" if found and found[1] != "200" else ""


@dataclass(frozen=True)
class Situation:
    """The content of a conversation: the task, the calls since then, and remedies known from earlier."""

    task: str = ""
    calls: list[Call] = field(default_factory=list)
    known: list[tuple[str, str]] = field(default_factory=list)
    """Symptoms and their remedies."""

    @property
    def checks(self) -> list[Call]:
        """The health checks that have a result; a check that was interrupted has none and is repeated."""
        return [call for call in self.calls if call.tool == "check_health" and CHECK.search(call.result)]

    @property
    def symptom(self) -> str:
        """The first reported problem."""
        return next((call.symptom for call in self.checks if call.symptom), "")

    @property
    def tried(self) -> list[str]:
        """The remedies that were tried, in order."""
        return [call.tool for call in self.calls if call.tool in REMEDIES]

    @property
    def remembered(self) -> str:
        """The remedy that helped against this symptom before; numbers such as ports and releases may differ."""
        return next(
            (remedy for symptom, remedy in self.known if without_numbers(symptom) == without_numbers(self.symptom)), ""
        )

    @property
    def called_since_check(self) -> list[str]:
        """The tools that were called since the last health check."""
        last = max(number for number, call in enumerate(self.calls) if call is self.checks[-1])
        return [call.tool for call in self.calls[last:]]


# --- reading -------------------------------------------------------------------------------------------------------


def read(messages: list[ChatMessage]) -> Situation:
    """Reads a conversation. Known remedies come from messages before the task and from quoted memory only."""
    texts = [(message.role, text_of(message)) for message in messages]
    start = max((number for number, (_, text) in enumerate(texts) if text.startswith("New task:")), default=0)
    calls: list[Call] = []
    for role, text in texts[start:]:
        if role == MessageRole.TOOL_CALL:
            calls += [Call(name) for name in CALLED.findall(text)]
        elif role == MessageRole.TOOL_RESPONSE and calls:
            calls[-1] = Call(calls[-1].tool, f"{calls[-1].result}{text}\n")
    earlier = [text for role, text in texts[:start] if role != MessageRole.SYSTEM]
    quoted = [line for _, text in texts[start:] for line in text.splitlines() if line.startswith(QUOTE)]
    known = [found for text in (*quoted, *reversed(earlier)) for found in RESOLVED.findall(text)]
    return Situation(texts[start][1] if texts else "", calls, known)


def text_of(message: ChatMessage) -> str:
    """The text of a message."""
    if isinstance(message.content, list):
        return "\n".join(part["text"] for part in message.content if part.get("type") == "text")
    return message.content or ""


def without_numbers(symptom: str) -> str:
    """A symptom without its numbers, for comparison."""
    return " ".join(re.findall(r"[a-z]+", symptom.lower()))


# --- deciding ------------------------------------------------------------------------------------------------------


def decide(situation: Situation) -> Action:
    """The next action; the first condition that holds decides."""
    if any("[ALERT]" in call.result for call in situation.calls) and NOTIFY not in situation.tried:
        return act(NOTIFY, situation, "The alert reports repeated failures. I notify a person.")
    if watch := WATCH.search(situation.task):
        return act("check_health", situation) if len(situation.checks) < int(watch[1]) else answer(watched(situation))
    if not situation.checks or situation.calls[-1].tool in (RESTART, ROLL_BACK):
        return act("check_health", situation)
    if not situation.checks[-1].symptom:
        return answer(resolved(situation))
    return repair(situation)


def repair(situation: Situation) -> Action:
    """The next diagnosis or remedy for a problem that persists."""
    remembered = situation.remembered
    if remembered in REMEDIES and remembered not in situation.tried:
        return act(remembered, situation, "I remember this problem and its remedy.")
    remedy = next((remedy for remedy in REMEDIES if remedy not in situation.tried), None)
    if remedy is None or remembered == NOTIFY:
        return answer(f"Unresolved: {situation.symptom}. Remedy: {NOTIFY}.")
    diagnosis = next((tool for tool in REMEDIES[remedy] if tool not in situation.called_since_check), None)
    return act(diagnosis or remedy, situation)


def resolved(situation: Situation) -> str:
    """The answer when the shop is healthy."""
    repaired = [remedy for remedy in situation.tried if remedy != NOTIFY]
    if repaired:
        return f"Resolved: {situation.symptom}. Remedy: {repaired[-1]}."
    return "The shop is healthy: there is nothing to do."


def watched(situation: Situation) -> str:
    """The answer of a monitoring task."""
    failed = [check.symptom for check in situation.checks if check.symptom]
    summary = f"Watched the shop: {len(situation.checks)} checks, {len(failed)} of them failed"
    return f"{summary} ({situation.symptom})." if failed else f"{summary}."


def act(tool: str, situation: Situation, thought: str = "") -> Action:
    """A tool call."""
    arguments = {"message": call_for_help(situation)} if tool == NOTIFY else ARGUMENTS.get(tool, {})
    return Action(tool, arguments, thought or THOUGHTS[tool])


def call_for_help(situation: Situation) -> str:
    """The message for a person."""
    now = "It still fails" if situation.checks and situation.checks[-1].symptom else "At the moment it answers"
    tried = ", ".join(situation.tried) or "nothing yet"
    return f"The shop needs you: {situation.symptom or 'see its log'}. {now}. Tried: {tried}."


def answer(text: str) -> Action:
    """The final answer."""
    return Action("final_answer", {"answer": text}, "The task is done.")


class ScriptedOperator(Model):
    """The script as a smolagents model, for a `ToolCallingAgent`."""

    def __init__(self) -> None:
        super().__init__(model_id="scripted operator (no LLM)")

    def generate(
        self, messages: list[ChatMessage], *_: Any, tools_to_call_from: list[Any] | None = None, **__: Any
    ) -> ChatMessage:
        """Returns the next tool call; without tools (for a plan, or after the last step), it returns a text."""
        situation = read(messages)
        if tools_to_call_from is None:
            tried = ", ".join(situation.tried) or "nothing yet"
            said, calls = f"Unfinished: {situation.symptom or 'nothing is wrong so far'}. Tried: {tried}.", None
        else:
            chosen = decide(situation)
            function = ChatMessageToolCallFunction(name=chosen.tool, arguments=chosen.arguments)
            calls = [ChatMessageToolCall(function=function, id=f"call_{len(situation.calls) + 1}", type="function")]
            said = chosen.thought
        heard = sum(len(text_of(message)) for message in messages)
        spoken = len(said) + sum(len(f"{call.function.name}{call.function.arguments}") for call in calls or [])
        usage = TokenUsage(input_tokens=heard // 4, output_tokens=spoken // 4)
        return ChatMessage(MessageRole.ASSISTANT, said, tool_calls=calls, token_usage=usage)
