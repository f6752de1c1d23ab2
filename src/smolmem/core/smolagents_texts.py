"""Texts that smolagents writes around what users, models and tools said, and texts without them.

`agents/compat.py` knows how smolagents behaves, and this module knows its words alone. So commands that do not load
smolagents show a step as the inspector does.
"""

from __future__ import annotations

import re

# All of them since 1.0.
EXECUTION_LOGS = "Execution logs:"
"""Begins the observation of a code step; what the code printed follows."""
LAST_OUTPUT = "Last output from code snippet:"
"""Follows what the code printed."""
NEW_TASK = "New task:"
"""Begins the message of a task."""

_LINES = frozenset({EXECUTION_LOGS, LAST_OUTPUT, "None"})
_CODE = re.compile(r"(?:<code>|```(?:py|python)\n).*?(?:</code>|```|\Z)", re.DOTALL)
_MANAGED = re.compile(
    r"You're\s+a\s+helpful\s+agent\s+named.*?---\s+Task:\s"
    r"(?:(.+)\s---\s+You're\s+helping\s+your\s+manager|(.+?)(?:\s---|$))",
    re.DOTALL,
)
_BEFORE_PLAN = re.compile(
    r"(?:I still need to solve the task I was given:\n```\n.*?\n```\n\n)?"
    r"Here are the facts I know and (?:the|my new/updated) plan of action [^\n]*:\n```\n",
    re.DOTALL,
)
_BEFORE_REPORT = re.compile(r"^Here is the final answer from your managed agent '.*':\n", re.MULTILINE)
_LONGEST = 20_000
"""Characters of a step that its one line is made from."""


def printed_by(observations: str | None, printed: str) -> bool:
    """Whether an observation says that code printed exactly this."""
    return (observations or "").startswith(f"{EXECUTION_LOGS}\n{printed}{LAST_OUTPUT}\n")


def own_lines(observations: str) -> str:
    """An observation without the lines that smolagents writes into every one."""
    return "\n".join("" if line in _LINES else line for line in observations.split("\n")).strip()


def without_label(said: str) -> str:
    """What a model said, without the "Thought:" that smolagents' prompts teach it to begin with."""
    return said.strip().removeprefix("Thought:").lstrip()


def managed_task(text: str) -> str:
    """The task of a managed agent without the text around it, also if the end of that is cut off, as in titles."""
    found = _MANAGED.match(text)
    return (found[1] or found[2]).strip() if found else text


def in_short(step_text: str) -> str:
    """The text of a step for one line of a list: what was thought and seen; the code only if there is nothing else."""
    text = managed_task(step_text[:_LONGEST])
    if found := _BEFORE_PLAN.match(text):
        text = text[found.end() :].removesuffix("\n```")
    text = _BEFORE_REPORT.sub("", text)
    line = without_label(" ".join(own_lines(_CODE.sub("\n", text)).split()))
    return line or " ".join(text.split())
