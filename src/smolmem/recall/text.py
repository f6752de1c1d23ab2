"""What of a step is searchable, and how it is split.

A step is many things at once: what the model thought, the code it wrote, what came back. Each becomes a piece of its
own, with who said it, so that "which step printed the traceback?" finds the observation and not the code. Long pieces
are split where the text itself has a seam, so that a long observation is found by any part of it.

What was recalled is never searchable again: it would come back as if it were new, and grow with each time it is told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from smolagents.memory import ActionStep, MemoryStep, PlanningStep, SystemPromptStep, TaskStep, ToolCall
from smolagents.utils import AgentMaxStepsError

from smolmem.record import codec, wire
from smolmem.record.values import Origin, Piece
from smolmem.store.reminders import BEGIN, END, QUOTE

LONGEST = 1_000
"""Characters of a piece: about 250 tokens, half of what small embedding models read."""
OVERLAP = 100
"""Characters that a piece begins with of the one before it, so that no phrase is cut in two."""
MOST = 500
"""Pieces of one part of a step; the rest of half a million characters is in the record alone."""

_WEB = re.compile(
    r"\b(web_search|visit_webpage|wikipedia_search|google_search|duckduckgo\w*|\w*browser\w*|fetch_url)\b"
)
_ASKS = re.compile(r"\bmemory\s*\.\s*(search|steps|sql|diff)\b")
_FENCE = re.compile(r"</?code>|```(?:py|python)?|<end_code>")
_SEAMS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"(?<=[.!?…。！？])\s*"), re.compile(r"\s"))
_HEADINGS = re.compile(r"^(Execution logs:|Last output from code snippet:|None)$", re.MULTILINE)


def pieces(
    step: Any, *, asked_by: Origin = "user", recalled: Collection[str] = (), helpers: Collection[str] = ()
) -> list[Piece]:
    """The searchable pieces of a step; a step that is like no other is one piece of text.

    Args:
        step: a smolagents step.
        asked_by: who gives this agent its tasks.
        recalled: lines that were brought to the agent's mind, `spelled`; said again, they are not this step's words.
        helpers: agents that may say them too; what a tool says is news.
    """
    try:
        parts = list(_parts(step, asked_by))
    except Exception:  # a step can hold anything
        parts = [Piece("other", "agent", wire.safe_text(str, step))]
    called = " ".join(part.text for part in parts if part.role in ("code", "call"))
    if _ASKS.search(called):  # what memory gave as data cannot be told from what was made of it
        parts = [part for part in parts if part.role != "observation"]
    echoes = any(re.search(rf"\b{re.escape(name)}\b", called) for name in ("recall_memory", *helpers))
    return [
        Piece(part.role, part.origin, text, part.tool)
        for part in parts
        for text in split(_own(part, recalled if echoes or part.origin in ("model", "agent") else ()))
    ]


def _own(part: Piece, recalled: Collection[str]) -> str:
    """What a piece says itself. A short line of code is nobody's."""
    return without(codec.plain(part.text), recalled, CODE if part.role == "code" else SHORTEST)


def _parts(step: Any, asked_by: Origin) -> Iterator[Piece]:
    if isinstance(step, TaskStep):
        yield Piece("task", asked_by, _text(step.task))
    elif isinstance(step, PlanningStep):
        yield Piece("plan", "model", _text(step.plan))
    elif isinstance(step, ActionStep):
        yield from _action(step)
    elif not isinstance(step, SystemPromptStep):
        yield Piece("other", "agent", _text(getattr(step, "text", "")) if isinstance(step, MemoryStep) else _text(step))


def _action(step: ActionStep) -> Iterator[Piece]:
    code = _text(step.code_action)
    yield Piece("thought", "model", _thought(_text(step.model_output), code))
    yield Piece("code", "model", code)
    calls = [call for call in step.tool_calls or () if isinstance(call, ToolCall) and call.name != "python_interpreter"]
    for call in calls:
        if call.name != "final_answer":
            yield Piece("call", "model", f"{call.name} {_arguments(call.arguments)}", call.name)
    tools = ", ".join(dict.fromkeys(call.name for call in calls)) or None
    origin: Origin = "web" if _WEB.search(f"{code} {tools}") else "tool"
    seen = _HEADINGS.sub("", _text(step.observations)).strip()
    if step.is_final_answer or isinstance(step.error, AgentMaxStepsError):
        answer = _text(step.action_output) or seen
        yield Piece("answer", "model", answer)
        seen = seen.removesuffix(answer).removesuffix(wire.safe_text(str, step.action_output))
    yield Piece("observation", origin, seen, tools)
    yield Piece("error", origin, _text(step.error), tools)


def _thought(said: str, code: str) -> str:
    """What a model said besides the code it wrote."""
    return _FENCE.sub("", said.replace(code, "") if code else said).strip()


def _arguments(arguments: Any) -> str:
    if isinstance(arguments, dict):
        return ", ".join(f"{name}: {_text(value)}" for name, value in arguments.items())
    return _text(arguments)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (dict, list)):
        try:
            return json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            pass
    return wire.safe_text(str, value)


# --- splitting -----------------------------------------------------------------------------------------------------


def split(text: str, longest: int = LONGEST) -> list[str]:
    """A text in parts of at most `longest` characters, each cut at the best seam there is."""
    text = text.strip()
    found: list[str] = []
    start = 0
    while len(text) - start > longest and len(found) < MOST:
        end = _seam(text, start + longest // 2, start + longest)
        found.append(text[start:end].strip())
        start = _seam(text, end - OVERLAP, end - OVERLAP // 2)
    if text[start:].strip() and len(found) < MOST:
        found.append(text[start:].strip())
    return [part for part in found if part]


def _seam(text: str, least: int, most: int) -> int:
    """Where to cut between two places: after a paragraph, a line, a sentence or a word, in this order."""
    for seam in _SEAMS:
        ends = [match.end() for match in seam.finditer(text, least, most)]
        if ends and ends[-1] > least:
            return ends[-1]
    return most


# --- what was recalled ---------------------------------------------------------------------------------------------

SHORTEST, CODE = 12, 40
"""Characters of a line that, said again, is an echo; a shorter one is anybody's, unless it is all that is said."""


def without(text: str, recalled: Collection[str], shortest: int = SHORTEST) -> str:
    """A text without quoted memories, and without the lines of what was recalled, however they are woven in."""
    lines = _unquoted(text) if QUOTE.strip() in text else text.split("\n")
    if not recalled:
        return "\n".join(lines)
    if " ".join(text.split()) in recalled:
        return ""
    lines = [" ".join(line.split()) if line.strip() else "" for line in lines]
    known = set(" ".join(lines).split())
    echoes = [line for line in recalled if len(line) >= shortest and line.split()[1:2] and line.split()[1] in known]
    for echo in sorted(echoes, key=len, reverse=True):
        lines = [_cut(line, echo) if echo in line else line for line in lines]
    return "\n".join(lines)


def spelled(recalled: Iterable[str]) -> set[str]:
    """Lines as they are said, and as Python and JSON write them."""
    told = {" ".join(line.split()) for line in recalled}
    return {form for line in told for form in (line, repr(line)[1:-1], json.dumps(line)[1:-1])} - {""}


def _unquoted(text: str) -> list[str]:
    """The lines of a text that are not part of a block of memories."""
    kept: list[str] = []
    inside = False
    for line in text.split("\n"):
        head = inside and _HEAD.match(line) is not None
        quoted = line.lstrip().startswith(QUOTE) or f"\\n{QUOTE}" in line
        if not quoted and not line.startswith((BEGIN, END)) and not head:
            inside = False
            kept.append(line)
        else:
            inside = inside or line.startswith(BEGIN)
    return kept


def _cut(line: str, echo: str) -> str:
    """A line without an echo, where that is not part of a longer word."""
    start = 0
    while (found := line.find(echo, start)) >= 0:
        end = found + len(echo)
        inside = (found and _LETTER.match(line[found - 1])) or (end < len(line) and _LETTER.match(line[end]))
        line, start = (line, end) if inside else (f"{line[:found]} {line[end:]}", found + 1)
    return line


_HEAD, _LETTER = re.compile(r"\[\d+\] "), re.compile(r"\w")
