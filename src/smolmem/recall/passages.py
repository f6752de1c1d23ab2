"""The searchable passages of a step.

A step has several parts: the model's thought, the code, the observation. Each part becomes passages of its own, with
its origin, so that "which step printed the traceback?" finds the observation and not the code. Long parts are split
at paragraph, line, sentence or word boundaries, so that a long observation is found by any part of it.

Recalled text is never indexed again: it would come back as if it were new, and multiply with each recall.
"""

from __future__ import annotations

import json
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Any

from smolagents.memory import ActionStep, MemoryStep, PlanningStep, SystemPromptStep, TaskStep, ToolCall
from smolagents.utils import AgentMaxStepsError

from smolmem.core.encoding import placeholders
from smolmem.core.rows import Origin, Passage
from smolmem.core.scripts import UNSPACED
from smolmem.core.smolagents_texts import managed_task, own_lines
from smolmem.core.text import merged, storable
from smolmem.store.side_tables import BEGIN, END, QUOTE

LONGEST = 1_000
"""Characters of a passage: about 250 tokens, half of what small embedding models read."""
OVERLAP = 100
"""Characters that a passage repeats of the one before it, so that no phrase is split."""
MOST = 500
"""Passages of one part of a step; the rest of a longer text is in the record, but not indexed."""

_WEB = re.compile(
    r"(?i:(?:[a-z0-9]+_)*(?:web|internet|wikipedia)(?:_[a-z0-9]+)*|(?:fetch|get|open|read|visit|load)_(?:url|page)s?"
    r"|\w*(?:webpage|website|browser|duckduckgo|scrape|crawl)\w*|google_search|page_(?:up|down))"
)
"""Names of tools that read the web."""
_FETCHES = re.compile(
    rf"\b({_WEB.pattern})\s*\(|\b\w*browser\s*\.|\b(?:requests|httpx|aiohttp)\s*\.\s*\w"
    r"|\burllib\s*\.\s*request\b|\burlopen\s*\("
)
"""Code that reads the web."""
_HINTS = (
    *("web", "url", "internet", "wikipedia", "duckduckgo", "browser", "scrape", "crawl", "google_", "_page", "page_"),
    *("requests", "httpx", "aiohttp"),
)
"""A quick filter: each text that one of the two expressions above matches has one of these words."""
_ASKS = re.compile(r"\bmemory\s*\.\s*(search|steps|sql|diff)\b")
_FENCE = re.compile(r"</?code>|```(?:py|python)?|<end_code>")
_BOUNDARIES = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"(?<=[.!?…。！？])\s*"), re.compile(r"\s"))


def passages_of(
    step: Any,
    *,
    asked_by: Origin = "user",
    recalled: Collection[str] = (),
    managed_agents: Collection[str] = (),
    called: Mapping[str, bool] | None = None,
) -> list[Passage]:
    """The searchable passages of a step.

    Args:
        step: a smolagents step.
        asked_by: who gives this agent its tasks.
        recalled: lines that the agent was reminded of, as `spellings` gives them; they are not indexed again.
        managed_agents: agents whose reports may repeat those lines; what other tools return is new.
        called: tools that the step called, also in ways that its code does not show, and whether they read the web.
    """
    try:
        parts = list(_parts(step, asked_by, called or {}))
    except Exception:  # a step can hold anything
        parts = [Passage("other", "agent", placeholders.safe_text(str, step))]
    asked = " ".join(part.text for part in parts if part.role in ("code", "call"))
    if _ASKS.search(asked):  # recalled data cannot be told from new results
        parts = [part for part in parts if part.role != "observation"]
    echoes = any(re.search(rf"\b{re.escape(name)}\b", asked) for name in ("recall_memory", *managed_agents))
    return [
        Passage(part.role, part.origin, text, part.tool)
        for part in parts
        for text in split(_own(part, recalled if echoes or part.origin in ("model", "agent") else ()))
    ]


def _own(part: Passage, recalled: Collection[str]) -> str:
    """The text of a passage without recalled lines; short lines of code are kept. No passage holds the rest of it."""
    text = storable(part.text[: 2 * MOST * LONGEST])
    return without_recalled(text, recalled, CODE if part.role == "code" else SHORTEST)


def _parts(step: Any, asked_by: Origin, called: Mapping[str, bool]) -> Iterator[Passage]:
    if isinstance(step, TaskStep):
        yield Passage("task", asked_by, managed_task(_text(step.task)))
    elif isinstance(step, PlanningStep):
        yield Passage("plan", "model", _text(step.plan))
    elif isinstance(step, ActionStep):
        yield from _action(step, called)
    elif not isinstance(step, SystemPromptStep):
        yield Passage(
            "other", "agent", _text(getattr(step, "text", "")) if isinstance(step, MemoryStep) else _text(step)
        )


def _action(step: ActionStep, called: Mapping[str, bool]) -> Iterator[Passage]:
    code = _text(step.code_action)
    yield Passage("thought", "model", _thought(_text(step.model_output), code))
    yield Passage("code", "model", code)
    calls = [call for call in step.tool_calls or () if isinstance(call, ToolCall) and call.name != "python_interpreter"]
    for call in calls:
        if call.name != "final_answer":
            yield Passage("call", "model", f"{call.name} {_arguments(call.arguments)}", call.name)
    tools = ", ".join(dict.fromkeys(call.name for call in calls)) or None
    origin: Origin = "web" if reads_web(step, called) else "tool"
    seen = own_lines(_text(step.observations))
    if step.is_final_answer or isinstance(step.error, AgentMaxStepsError):
        answer = _text(step.action_output) or seen
        yield Passage("answer", "model", answer)
        seen = seen.removesuffix(answer.strip()).removesuffix(placeholders.safe_text(str, step.action_output).strip())
    yield Passage("observation", origin, seen, tools)
    yield Passage("error", origin, _text(step.error), tools)


def web_tools(calls: Iterable[Mapping[str, Any]]) -> dict[str, bool]:
    """Whether tools read the web, from rows of their calls: as they say themselves, otherwise by their names."""
    found: dict[str, bool] = {}
    for call in calls:
        web = is_web_tool(call["name"]) if call["web"] is None else bool(call["web"])
        found[call["name"]] = web or found.get(call["name"], False)
    return found


def reads_web(step: Any, called: Mapping[str, bool]) -> bool:
    """Whether a step read the web, by the tools that it called and by its code."""
    calls = getattr(step, "tool_calls", None)
    names = [call.name for call in calls if isinstance(call, ToolCall)] if isinstance(calls, list) else []
    code = _text(getattr(step, "code_action", None))
    fetches = _FETCHES.finditer(code) if may_read_web(code) else ()
    return (
        any(called.values())
        or any(is_web_tool(name) for name in names if name not in called)
        or any(called.get(match[1], True) for match in fetches)
    )


@lru_cache(256)
def is_web_tool(name: Any) -> bool:
    """Whether a tool that does not say so itself reads the web, by its name."""
    return isinstance(name, str) and _WEB.fullmatch(name) is not None


def may_read_web(text: str) -> bool:
    """Whether a text may name something that reads the web: a quick filter."""
    lower = text.lower()
    return any(word in lower for word in _HINTS)


def _thought(said: str, code: str) -> str:
    """The output of a model without its code."""
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
    return placeholders.safe_text(str, value)


# --- splitting -----------------------------------------------------------------------------------------------------


def split(text: str, longest: int = LONGEST) -> list[str]:
    """Splits a text into parts of at most `longest` characters, at the best boundaries."""
    text = text.strip()
    found: list[str] = []
    start = 0
    while len(text) - start > longest and len(found) < MOST:
        end = _boundary(text, start + longest // 2, start + longest)
        found.append(text[start:end].strip())
        start = _boundary(text, end - OVERLAP, end - OVERLAP // 2)
    if text[start:].strip() and len(found) < MOST:
        found.append(text[start:].strip())
    return [part for part in found if part]


def _boundary(text: str, least: int, most: int) -> int:
    """Where to split between two positions: after a paragraph, a line, a sentence or a word, in this order."""
    for boundary in _BOUNDARIES:
        ends = [match.end() for match in boundary.finditer(text, least, most)]
        if ends and ends[-1] > least:
            return ends[-1]
    return most


# --- what was recalled ---------------------------------------------------------------------------------------------

SHORTEST, CODE = 12, 40
"""The shortest recalled text that is left out, in text and in code; shorter matches may be coincidence."""
QUOTED_WORDS = 8
"""Words in a row that are taken for a quotation of a longer recalled line."""
_JOINT = "[\u00ad\u200c\u200d\u2060\ufeff]+"
"""Characters inside a word that nobody sees: a soft hyphen, or a joiner."""
_LETTERS = rf"[^\W_{UNSPACED}]+"
_WORD = re.compile(rf"{_LETTERS}(?:{_JOINT}{_LETTERS})*|(?=[^\W_])[{UNSPACED}]")
_JOINTS = re.compile(_JOINT)
_ESCAPE = re.compile(r"\\[nrt]")


def without_recalled(text: str, recalled: Collection[str], shortest: int = SHORTEST) -> str:
    """A text without quoted memories and without recalled lines, however these are typeset.

    Only words are compared: a line break elsewhere, bold type, other punctuation or capitals make no other text.
    """
    kept = "\n".join(_unquoted(text)) if QUOTE.strip() in text else text
    if not recalled:
        return kept
    places = [(match.start(), match.end()) for match in _words_in(kept)]
    said = [_plain(kept[start:end]) for start, end in places]
    if " ".join(said) in recalled:
        return ""
    for first, end in reversed(_echoes(said, frozenset(recalled), shortest)):
        kept = f"{kept[: places[first][0]]} {kept[places[end - 1][1] :]}"
    return kept if _WORD.search(kept) else ""


def spellings(recalled: Iterable[str]) -> frozenset[str]:
    """The words of recalled lines as they are, and as Python and JSON write them."""
    told = {" ".join(line.split()) for line in recalled}
    forms = (form for line in told for form in (line, repr(line)[1:-1], json.dumps(line)[1:-1]))
    return frozenset(" ".join(plain_words(form)) for form in forms) - {""}


def plain_words(text: str) -> list[str]:
    """The words of a text without typography: no case, punctuation, markup or line breaks."""
    return [_plain(match[0]) for match in _words_in(text)]


def _words_in(text: str) -> Iterator[re.Match[str]]:
    """The words of a text; an escaped line break, as Python and JSON write it, is no part of a word."""
    return _WORD.finditer(_ESCAPE.sub("  ", text) if "\\" in text else text)


def _plain(word: str) -> str:
    return unicodedata.normalize("NFKC", word if word.isalnum() else _JOINTS.sub("", word)).casefold()


def _echoes(said: list[str], recalled: frozenset[str], shortest: int) -> list[tuple[int, int]]:
    """The first word and the word behind each part of a text that is a recalled line, or quotes many words of one."""
    known, starts = set(said), _starts(said)
    joined = f" {' '.join(said)} "
    spans = list(_quotations(said, _phrases(recalled), shortest))
    for line in recalled:
        words = line.split(" ", 2)
        if len(words) > 1 and words[1] in known and words[0] in known and len(line) >= shortest:
            spans += _found(f" {line} ", joined, starts, line.count(" ") + 1)
    return merged(spans)


def _starts(said: list[str]) -> list[int]:
    """Where each word begins in the text of all words."""
    return list(accumulate((len(word) + 1 for word in said), initial=0))


def _found(echo: str, joined: str, starts: list[int], count: int) -> Iterator[tuple[int, int]]:
    place = joined.find(echo)
    while place >= 0:
        first = bisect_left(starts, place)
        yield first, first + count
        place = joined.find(echo, place + len(echo) - 1)


def _quotations(said: list[str], phrases: set[tuple[str, ...]], shortest: int) -> Iterator[tuple[int, int]]:
    for at in range(len(said) - QUOTED_WORDS + 1):
        phrase = tuple(said[at : at + QUOTED_WORDS])
        if phrase in phrases and len(" ".join(phrase)) >= shortest:
            yield at, at + QUOTED_WORDS


@lru_cache(8)
def _phrases(recalled: frozenset[str]) -> set[tuple[str, ...]]:
    """All sequences of `QUOTED_WORDS` words in recalled lines."""
    return {phrase for line in recalled for phrase in phrases(line.split(), QUOTED_WORDS)}


def phrases(words: list[str], length: int) -> Iterator[tuple[str, ...]]:
    """All sequences of `length` words."""
    return (tuple(words[at : at + length]) for at in range(len(words) - length + 1))


def _unquoted(text: str) -> list[str]:
    """The lines of a text that are not part of a quoted block of memories."""
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


_HEAD = re.compile(r"\[\d+\] ")
