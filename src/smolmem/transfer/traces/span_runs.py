"""OpenInference spans as runs: what an instrumented agent did, as steps that can be searched, replayed and restored.

An AGENT span is a run. Its CHAIN spans `Step 1`, `Step 2`, … are action steps; the LLM span in a step is the model's
prompt and answer, the TOOL spans are calls. A model that is asked outside a step makes a plan. Traces of other
frameworks have no such steps: there each answer of a model begins a step. Spans whose agent is missing, because its
process died before it was sent, are one run for each trace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from smolagents.memory import ActionStep, PlanningStep, TaskStep, ToolCall
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import Timing, TokenUsage

from smolmem.core.rows import ANSWERED, Status
from smolmem.core.values import Failure
from smolmem.transfer.foreign import ForeignCall, ForeignRun, agent_error, parse_json, role_of, tool_call
from smolmem.transfer.traces import spans
from smolmem.transfer.traces.spans import INTERPRETER, Raised, Span

FINAL = "final_answer"
_STEP = re.compile(r"Step (\d{1,6})|Unfinished step")
_CODE = re.compile(r"<code>\s*\n?(.*?)\n?\s*</code>|```(?:py|python)?[ \t]*\n(.*?)\n?```", re.DOTALL)


def runs_of(found: Sequence[Span]) -> list[ForeignRun]:
    """Spans as runs, callers first."""
    tree = _Tree(found)
    runs = [_Run(tree, agent).made() for agent in tree.agents]
    for trace, orphans in tree.orphans().items():
        first = orphans[0]
        whole = Span(trace, f"{trace} without agent", None, "agent.run", "AGENT", first.began, _end(orphans))
        runs.append(_Run(tree, whole, orphans).made())
    return runs


class _Tree:
    """Spans with the spans below them, in order of time."""

    def __init__(self, found: Sequence[Span]) -> None:
        self.all = sorted(found, key=lambda span: (span.began, span.ended, span.id))
        self._by_id: dict[tuple[str, str | None], Span] = {(span.trace, span.id): span for span in self.all}
        self._below: dict[tuple[str, str | None], list[Span]] = {}
        for span in self.all:
            self._below.setdefault((span.trace, span.parent), []).append(span)
        self.agents = [span for span in self.all if span.kind == "AGENT"]

    def below(self, span: Span) -> list[Span]:
        """The spans directly below a span."""
        return self._below.get((span.trace, span.id), [])

    def above(self, span: Span) -> Iterable[Span]:
        """The spans that a span is in, the nearest first."""
        at = self._by_id.get((span.trace, span.parent))
        while at is not None:
            yield at
            at = self._by_id.get((at.trace, at.parent))

    def inside(self, span: Span) -> list[Span]:
        """All spans in a span, but for those of an agent in it, in order of time."""
        found, waiting = [], list(self.below(span))
        while waiting:
            each = waiting.pop()
            if each.kind != "AGENT":
                found.append(each)
                waiting.extend(self.below(each))
        return sorted(found, key=lambda each: (each.began, each.ended))

    def orphans(self) -> dict[str, list[Span]]:
        """The topmost models, tools and steps that are in no agent, by trace."""
        found: dict[str, list[Span]] = {}
        for span in self.all:
            above = list(self.above(span))
            if _acts(span) and not any(each.kind == "AGENT" or _acts(each) for each in above):
                found.setdefault(span.trace, []).append(span)
        return found


def _acts(span: Span) -> bool:
    return span.kind in ("LLM", "TOOL") or _is_step(span)


def _is_step(span: Span) -> bool:
    return _STEP.fullmatch(span.name) is not None or (span.kind == "CHAIN" and span.name == "Planning")


def _end(found: Sequence[Span]) -> float:
    return max(span.ended for span in found)


@dataclass
class _Run:
    """One run, as it is made from its span."""

    tree: _Tree
    span: Span
    orphans: Sequence[Span] = ()

    def made(self) -> ForeignRun:
        """The run."""
        task, span = self._task(), self.span
        self.steps: list[Any] = [TaskStep(task)]
        self.calls: list[ForeignCall] = []
        for unit in self._units():
            self._add(unit)
        status, failure = self._status()
        caller = next((each for each in self.tree.above(span) if each.kind == "AGENT"), None)
        step = next((each for each in self.tree.above(span) if _STEP.fullmatch(each.name)), None)
        models = [each.attributes.get(spans.MODEL) for each in (span, *self.tree.inside(span))]
        tags = span.attributes.get(spans.TAGS)
        return ForeignRun(
            key=f"trace {span.trace} {span.id}",
            session=f"trace {span.trace} {span.id}",
            agent=str(span.attributes.get("agent.name") or span.name.removesuffix(".run") or "agent"),
            agent_type=self._agent_type(),
            steps=self.steps,
            status=status,
            began=span.began,
            ended=span.ended,
            answer=_output(span) if status in ANSWERED else None,
            failure=failure,
            parent=None if caller is None else f"trace {caller.trace} {caller.id}",
            parent_step=None if caller is None or step is None else _number(step, 1),
            model=next((str(model) for model in models if model), None),
            max_steps=_count(span.attributes.get(spans.MAX_STEPS)),
            tags=[tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else [],
            calls=self.calls,
        )

    @cached_property
    def has_steps(self) -> bool:
        """Whether the steps of the run are spans of their own, as those of smolagents are."""
        return any(_STEP.fullmatch(each.name) for each in self.orphans or self.tree.below(self.span))

    def _task(self) -> str:
        given = _input(self.span)
        named = given.get("task") if isinstance(given, dict) else None
        if named is None and isinstance(given, str) and given.startswith("{"):
            parsed = parse_json(given)
            named = parsed.get("task") if isinstance(parsed, dict) else None
        task = named or given or self.span.attributes.get(spans.TASK) or f"(the task of {self.span.name} is not known)"
        return task if isinstance(task, str) else json.dumps(task, ensure_ascii=False)

    def _status(self) -> tuple[Status, Failure | None]:
        if self.orphans:
            return "interrupted", None
        about = parse_json(self.span.attributes.get(spans.METADATA))
        recorded = about.get("status") if isinstance(about, dict) else self.span.attributes.get("metadata.status")
        if self.span.status != "ERROR":
            return ("max_steps" if recorded == "max_steps" else "finished"), None
        if recorded == "interrupted":
            return "interrupted", None
        kind, _, text = self.span.message.partition(": ")
        raised = self.span.exception or Raised(kind, text)
        return "failed", Failure(raised.type, raised.message, raised.traceback)

    def _agent_type(self) -> str:
        recorded = self.span.attributes.get("smolagents.agent_type")
        if recorded:
            return str(recorded)
        name = self.span.name.removesuffix(".run")
        if name in ("CodeAgent", "ToolCallingAgent"):
            return name
        has_code = any(getattr(step, "code_action", None) for step in self.steps)
        return "CodeAgent" if has_code else "ToolCallingAgent"

    # --- steps -----------------------------------------------------------------------------------------------------

    def _units(self) -> list[tuple[Span, list[Span]]]:
        """The spans that become steps, each with the spans in it."""
        below = list(self.orphans) or self.tree.below(self.span)
        if any(_is_step(each) for each in below):
            acting = [each for each in below if _is_step(each) or each.kind == "LLM"]
            return [(each, [each, *self.tree.inside(each)]) for each in acting]
        units: list[tuple[Span, list[Span]]] = []
        inside = self.tree.inside(self.span) if not self.orphans else list(self.orphans)
        for each in inside:
            if each.kind == "LLM" or (each.kind == "TOOL" and not units):
                units.append((each, [each]))
            elif each.kind == "TOOL":
                units[-1][1].append(each)
        return units

    def _add(self, unit: tuple[Span, list[Span]]) -> None:
        step, inside = unit
        models = [each for each in inside if each.kind == "LLM"]
        self._record_answers(models)
        if step.name == "Planning" or (step.kind == "LLM" and self.has_steps):
            self.steps.append(_planning(step, models[-1] if models else step))
        else:
            self.steps.append(self._action(step, models, [each for each in inside if each.kind == "TOOL"]))

    def _action(self, step: Span, models: Sequence[Span], tools: Sequence[Span]) -> ActionStep:
        model = models[-1] if models else None
        answer = None if model is None else _answer(model)
        output = answer.content if answer is not None else None
        code = next((_text(each, spans.INPUT) for each in tools if each.name == INTERPRETER), None)
        if code is None and isinstance(output, str) and not (answer is not None and answer.tool_calls):
            blocks = [(first or second).strip("\n") for first, second in _CODE.findall(output)]
            code = "\n\n".join(blocks) or None
        tools = [each for each in tools if each.name != INTERPRETER]
        self._record(tools, is_code=code is not None)
        final = next((each for each in tools if _tool_name(each) == FINAL), None)
        results = [text for text in (_text(each, spans.OUTPUT) for each in tools) if text is not None]
        shown = ("\n".join(results) or None) if step.kind == "LLM" else _text(step, spans.OUTPUT)
        return ActionStep(
            step_number=_number(step, len(self.steps)),
            timing=Timing(step.began, _end([step, *tools])),
            model_input_messages=(_messages(model, spans.INPUT_MESSAGES) or None) if model is not None else None,
            tool_calls=_calls(code, answer, tools),
            error=_error(step),
            model_output_message=answer,
            model_output=output,
            code_action=code,
            observations=shown,
            action_output=None if final is None else _output(final),
            token_usage=None if model is None else _usage(model),
            is_final_answer=final is not None,
        )

    def _record_answers(self, models: Sequence[Span]) -> None:
        for each in models:
            asked, answer = _messages(each, spans.INPUT_MESSAGES), _answer(each)
            if answer is not None:
                question = [len(asked), asked[-1] if asked else None]
                turn = len(self.steps)
                self.calls.append(ForeignCall(turn, "", question, answer, each.began, each.ended, kind="model"))

    def _record(self, tools: Sequence[Span], *, is_code: bool) -> None:
        for each in tools:
            arguments = _input(each)
            arguments = parse_json(arguments) if isinstance(arguments, str) and arguments.startswith("{") else arguments
            args, named = (
                (arguments.get("args"), arguments.get("kwargs")) if isinstance(arguments, dict) else (None, None)
            )
            if isinstance(args, list) and isinstance(named, dict):
                arguments = [args, named] if is_code else named
            failed = each.status == "ERROR"
            result = _error(each) if failed else _output(each)
            turn = len(self.steps)
            self.calls.append(ForeignCall(turn, _tool_name(each), arguments, result, each.began, each.ended, failed))


def _planning(step: Span, model: Span) -> PlanningStep:
    answer = _answer(model) or ChatMessage(MessageRole.ASSISTANT, "")
    plan = _text(step, spans.OUTPUT) or str(answer.content or "")
    messages = _messages(model, spans.INPUT_MESSAGES)
    return PlanningStep(messages, answer, plan, Timing(step.began, step.ended), _usage(model))


def _calls(code: str | None, answer: ChatMessage | None, tools: Sequence[Span]) -> list[ToolCall] | None:
    if code is not None:
        return [ToolCall(INTERPRETER, code, "call_1")]
    if answer is not None and answer.tool_calls:
        return [ToolCall(call.function.name, call.function.arguments, call.id) for call in answer.tool_calls]
    calls = [ToolCall(_tool_name(each), _input(each), each.id) for each in tools]
    return calls or None


def _error(span: Span) -> Exception | None:
    raised = span.exception or Raised(span.message.partition(":")[0], span.message)
    return agent_error(raised.type, raised.message) if span.status == "ERROR" else None


# --- attributes ------------------------------------------------------------------------------------------------------


def _answer(model: Span) -> ChatMessage | None:
    messages = _messages(model, spans.OUTPUT_MESSAGES)
    if messages:
        return messages[0]
    text = _text(model, spans.OUTPUT)
    parsed = parse_json(text) if text is not None and text.startswith("{") else None
    if isinstance(parsed, dict) and isinstance(parsed.get("content"), str):
        text = parsed["content"]
    return None if text is None else ChatMessage(MessageRole.ASSISTANT, text)


def _numbered(fields: Mapping[str, Any], prefix: str, part: str) -> list[dict[str, Any]]:
    """Fields such as `llm.input_messages.0.message.content` as a list of objects, here with `content`."""
    grouped: dict[int, dict[str, Any]] = {}
    for name, value in fields.items():
        found = re.fullmatch(rf"{re.escape(prefix)}\.(\d{{1,6}})\.{part}\.(.+)", name)
        if found is not None:
            grouped.setdefault(int(found[1]), {})[found[2]] = value
    return [each for _, each in sorted(grouped.items())]


def _messages(model: Span, prefix: str) -> list[ChatMessage]:
    is_answer = prefix == spans.OUTPUT_MESSAGES
    return [_message(fields, is_answer=is_answer) for fields in _numbered(model.attributes, prefix, "message")]


def _message(fields: Mapping[str, Any], *, is_answer: bool) -> ChatMessage:
    content: Any = fields.get("content")
    parts = _numbered(fields, "contents", "message_content")
    if content is None and parts:
        images = (
            f"[image {str(part['image.image.url'])[:100]}]" if "image.image.url" in part else "" for part in parts
        )
        texts = (str(part["text"]) if "text" in part else image for part, image in zip(parts, images, strict=True))
        content = "\n".join(text for text in texts if text)
    text = None if content is None else content if isinstance(content, str) else json.dumps(content)
    calls = [
        tool_call(str(each.get("function.name", "")), each.get("function.arguments"), str(each.get("id", "")))
        for each in _numbered(fields, "tool_calls", "tool_call")
    ]
    shown: Any = text if is_answer or text is None else [{"type": "text", "text": text}]
    return ChatMessage(role_of(fields.get("role", "assistant")), shown, calls or None)


def _usage(model: Span) -> TokenUsage | None:
    counts = [_count(model.attributes.get(name)) for name in (spans.PROMPT_TOKENS, spans.COMPLETION_TOKENS)]
    return None if counts == [None, None] else TokenUsage(counts[0] or 0, counts[1] or 0)


def _count(value: Any) -> int | None:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1 << 62
    return int(value) if fits else None


def _number(step: Span, otherwise: int) -> int:
    found = _STEP.fullmatch(step.name)
    return int(found[1]) if found is not None and found[1] else otherwise


def _tool_name(span: Span) -> str:
    return str(span.attributes.get(spans.TOOL_NAME) or span.name)


def _text(span: Span, name: str) -> str | None:
    value = span.attributes.get(name)
    return None if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _input(span: Span) -> Any:
    return _value(span, spans.INPUT, spans.INPUT_TYPE)


def _output(span: Span) -> Any:
    return _value(span, spans.OUTPUT, spans.OUTPUT_TYPE)


def _value(span: Span, name: str, kind: str) -> Any:
    """A value; JSON is parsed where the span says that it is JSON."""
    value = span.attributes.get(name)
    if isinstance(value, str) and "json" in str(span.attributes.get(kind, "")):
        parsed = parse_json(value)
        return value if parsed is None else parsed
    return value
