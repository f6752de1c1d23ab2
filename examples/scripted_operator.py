"""A scripted stand-in for a language model that looks after a shop. It is no LLM, and says so.

It reads the conversation that it is sent, as a model would, and decides from that alone: it keeps nothing between two
calls, so another process can go on with the same conversation. What it does is a table, `LADDER`: look, try the
gentlest remedy, check, and try the next. Its last word is a sentence that it can recognise later:

    Resolved: health check 500, no such column: currency (release 41). Remedy: roll_back_release.

When it finds such a sentence about the trouble that it sees (in a memory that it was reminded of, or in what came
before its task), it takes that remedy first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from smolagents import Model
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import TokenUsage

RESTART, ROLL_BACK, NOTIFY = "restart_application", "roll_back_release", "notify_person"
LADDER: dict[str, tuple[str, ...]] = {
    RESTART: ("read_logs", "get_metrics"),
    ROLL_BACK: ("read_logs",),
    NOTIFY: (),
}
"""Each remedy, the gentlest first, and what is looked at before it is tried."""
ARGUMENTS: dict[str, dict[str, Any]] = {"read_logs": {"lines": 10}}
THOUGHTS = {
    "check_health": "I check the shop's health.",
    "read_logs": "It fails: what does the log say?",
    "get_metrics": "And the figures?",
    RESTART: "A restart does the least harm: I try that.",
    ROLL_BACK: "A restart was not enough: I go back to the release before.",
    NOTIFY: "This needs a person.",
}

QUOTE = "❘ "
CHECK = re.compile(r"health check: (\d+|no answer)[^,\n(]*(?:, (?:checkout fails: )?([^\n]+))?")
RESOLVED = re.compile(r"(?:Resolved|Unresolved): ([^\n]+?)\. Remedy: (\w+)")
CALLED = re.compile(r"'function': \{'name': '(\w+)'")
WATCH = re.compile(r"\b(?:watch|check)\b.*?\b(\d+) times\b", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Act:
    """What to do next: a tool, its arguments, and why."""

    tool: str
    arguments: dict[str, Any]
    thought: str


@dataclass(frozen=True)
class Call:
    """A tool that was called since the task, and what it answered."""

    tool: str
    answer: str = ""

    @property
    def symptom(self) -> str:
        """What a health check complained of; empty if it did not, or if this is something else."""
        found = CHECK.search(self.answer) if self.tool == "check_health" else None
        return f"health check {found[1]}, {found[2] or 'no reason given'}" if found and found[1] != "200" else ""


@dataclass(frozen=True)
class Story:
    """What a conversation tells: the task, what was done about it, and what is known from earlier."""

    task: str = ""
    calls: list[Call] = field(default_factory=list)
    known: list[tuple[str, str]] = field(default_factory=list)
    """Symptoms and their remedies."""

    @property
    def checks(self) -> list[Call]:
        """The health checks that told something; one that was cut tells nothing and is made again."""
        return [call for call in self.calls if call.tool == "check_health" and CHECK.search(call.answer)]

    @property
    def symptom(self) -> str:
        """What was wrong at first."""
        return next((call.symptom for call in self.checks if call.symptom), "")

    @property
    def tried(self) -> list[str]:
        """The remedies that were taken, in turn."""
        return [call.tool for call in self.calls if call.tool in LADDER]

    @property
    def remembered(self) -> str:
        """The remedy that helped against this symptom earlier; numbers (a port, a release) may differ."""
        return next((remedy for symptom, remedy in self.known if words(symptom) == words(self.symptom)), "")

    @property
    def looked_at(self) -> list[str]:
        """What was called since the last health check."""
        last = max(number for number, call in enumerate(self.calls) if call is self.checks[-1])
        return [call.tool for call in self.calls[last:]]


# --- reading -------------------------------------------------------------------------------------------------------


def read(messages: list[ChatMessage]) -> Story:
    """Reads a conversation. Knowledge is what came before the task, and quoted memory; not what tools say now."""
    texts = [(message.role, text_of(message)) for message in messages]
    start = max((number for number, (_, text) in enumerate(texts) if text.startswith("New task:")), default=0)
    calls: list[Call] = []
    for role, text in texts[start:]:
        if role == MessageRole.TOOL_CALL:
            calls += [Call(name) for name in CALLED.findall(text)]
        elif role == MessageRole.TOOL_RESPONSE and calls:
            calls[-1] = Call(calls[-1].tool, f"{calls[-1].answer}{text}\n")
    earlier = [text for role, text in texts[:start] if role != MessageRole.SYSTEM]
    quoted = [line for _, text in texts[start:] for line in text.splitlines() if line.startswith(QUOTE)]
    known = [found for text in (*quoted, *reversed(earlier)) for found in RESOLVED.findall(text)]
    return Story(texts[start][1] if texts else "", calls, known)


def text_of(message: ChatMessage) -> str:
    """All text of a message."""
    if isinstance(message.content, list):
        return "\n".join(part["text"] for part in message.content if part.get("type") == "text")
    return message.content or ""


def words(symptom: str) -> str:
    """A symptom without its numbers."""
    return " ".join(re.findall(r"[a-z]+", symptom.lower()))


# --- deciding ------------------------------------------------------------------------------------------------------


def decide(story: Story) -> Act:
    """The next act. The order of these lines is the operator's whole character."""
    if any("[ALERT]" in call.answer for call in story.calls) and NOTIFY not in story.tried:
        return act(NOTIFY, story, "The alert says that this happens again and again: a person should know.")
    if watch := WATCH.search(story.task):
        return act("check_health", story) if len(story.checks) < int(watch[1]) else answer(watched(story))
    if not story.checks or story.calls[-1].tool in (RESTART, ROLL_BACK):
        return act("check_health", story)
    if not story.checks[-1].symptom:
        return answer(ended_well(story))
    return mend(story)


def mend(story: Story) -> Act:
    """The next look or remedy against what is still there."""
    remembered = story.remembered
    if remembered in LADDER and remembered not in story.tried:
        return act(remembered, story, "I remember this one, and what helped.")
    remedy = next((remedy for remedy in LADDER if remedy not in story.tried), None)
    if remedy is None or remembered == NOTIFY:
        return answer(f"Unresolved: {story.symptom}. Remedy: {NOTIFY}.")
    look = next((look for look in LADDER[remedy] if look not in story.looked_at), None)
    return act(look or remedy, story)


def ended_well(story: Story) -> str:
    """The last word on a healthy shop."""
    mended = [remedy for remedy in story.tried if remedy != NOTIFY]
    if mended:
        return f"Resolved: {story.symptom}. Remedy: {mended[-1]}."
    return "The shop is healthy: there is nothing to do."


def watched(story: Story) -> str:
    """The last word on a watch."""
    failed = [check.symptom for check in story.checks if check.symptom]
    told = f"Watched the shop: {len(story.checks)} checks, {len(failed)} of them failed"
    return f"{told} ({story.symptom})." if failed else f"{told}."


def act(tool: str, story: Story, thought: str = "") -> Act:
    """A call of a tool."""
    arguments = {"message": call_for_help(story)} if tool == NOTIFY else ARGUMENTS.get(tool, {})
    return Act(tool, arguments, thought or THOUGHTS[tool])


def call_for_help(story: Story) -> str:
    """What a person has to know."""
    now = "It still fails" if story.checks and story.checks[-1].symptom else "At the moment it answers"
    tried = ", ".join(story.tried) or "nothing yet"
    return f"The shop needs you: {story.symptom or 'see its log'}. {now}. Tried: {tried}."


def answer(text: str) -> Act:
    """The end of a task."""
    return Act("final_answer", {"answer": text}, "That is all.")


class ScriptedOperator(Model):
    """The script as a smolagents model, for a `ToolCallingAgent`."""

    def __init__(self) -> None:
        super().__init__(model_id="scripted operator (no LLM)")

    def generate(
        self, messages: list[ChatMessage], *_: Any, tools_to_call_from: list[Any] | None = None, **__: Any
    ) -> ChatMessage:
        """Says what to do next; in plain words where no tools are offered, as for a plan or after the last step."""
        story = read(messages)
        if tools_to_call_from is None:
            tried = ", ".join(story.tried) or "nothing yet"
            said, calls = f"Unfinished: {story.symptom or 'nothing is wrong so far'}. Tried: {tried}.", None
        else:
            chosen = decide(story)
            function = ChatMessageToolCallFunction(name=chosen.tool, arguments=chosen.arguments)
            calls = [ChatMessageToolCall(function=function, id=f"call_{len(story.calls) + 1}", type="function")]
            said = chosen.thought
        heard = sum(len(text_of(message)) for message in messages)
        spoken = len(said) + sum(len(f"{call.function.name}{call.function.arguments}") for call in calls or [])
        usage = TokenUsage(input_tokens=heard // 4, output_tokens=spoken // 4)
        return ChatMessage(MessageRole.ASSISTANT, said, tool_calls=calls, token_usage=usage)
