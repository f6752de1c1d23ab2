"""A recorded run as OpenInference spans.

    AGENT   the run, and each run of a managed agent below the call that started it
    CHAIN   a step: `Step 3`, or `Planning`
    LLM     what the model was sent and answered, with tokens, and cost where the price is known
    TOOL    a call of a tool; for a code agent below the code that made it

Spans are made from the record, so failed, killed and resumed runs have them, too. Steps say what was done; the ledger
says when each call began and ended. Images and other media become references, and secrets stay
redacted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from smolagents.memory import ActionStep, PlanningStep, ToolCall

from smolmem.core.encoding import codec, placeholders
from smolmem.core.errors import SmolmemError
from smolmem.core.prices import Price, price_of
from smolmem.core.rows import RecordedCall
from smolmem.core.text import message_role, message_text, storable
from smolmem.core.values import Run, Step
from smolmem.store.records import Records
from smolmem.transfer.traces import spans
from smolmem.transfer.traces.spans import Raised, Span, span_id, trace_id

TEXT = 64_000
"""Characters of one text in a span."""
_METADATA = ("id", "status", "scope", "session", "fork_of", "imported", "smolagents")
MESSAGES = 100
PROMPT = 256_000
"""Messages and characters of a prompt in a span: each prompt repeats the conversation, and collectors have limits."""


class Call(NamedTuple):
    """A recorded call of a model or tool, and when it was made."""

    recorded: RecordedCall
    began: float
    ended: float | None


def root_of(records: Records, run: Run) -> Run:
    """The run that called this run, directly or through others; a trace holds all of them."""
    seen = {run.id}
    while run.parent is not None and run.parent not in seen:
        seen.add(run.parent)
        run = records.run(run.parent)
    return run


def trace_spans(
    records: Records, root: Run, prices: Price | None = None, sent: Collection[int] | None = None
) -> Iterator[tuple[Span, int | None]]:
    """The spans of a run and of the runs that it called, each with the step that it is part of.

    Args:
        records: where the run is stored.
        root: a run that no other run called.
        prices: the prices of a million input and output tokens; by default the known prices of the model.
        sent: steps whose spans were sent already, if the run is sent while it is in progress.

    Most collectors keep a span as it was sent first. So a run that failed or was interrupted, and may be resumed, is a
    trace of its own, unless it is sent while it is in progress.
    """
    whole = sent is not None or root.status not in ("failed", "interrupted")
    trace = trace_id(root.id if whole else f"{root.id} {root.status} after {root.step_count}")
    yield from _RunSpans(records, root, trace, None, prices, sent or (), root.session).all()


@dataclass
class _RunSpans:
    """The spans of one run."""

    records: Records
    run: Run
    trace: str
    parent: str | None
    prices: Price | None
    sent: Collection[int]
    session: str
    latest: float = 0.0

    def all(self) -> Iterator[tuple[Span, int | None]]:
        """Steps first, then the run itself, once it has ended: its span says how."""
        self.latest = self.run.began.timestamp()
        steps = [step for step in self.run._load_steps() if step.run == self.run.id]
        steps.sort(key=lambda step: step.id)
        for turn, step in enumerate(steps):
            if step.id not in self.sent and step.kind in ("action", "planning"):
                yield from ((span, step.id) for span in self._step(turn, step))
                yield from self._children(turn)
        yield from self._unfinished(len(steps))
        if self.run.status != "running":
            yield self._agent(), None

    # --- the run ---------------------------------------------------------------------------------------------------

    def _id(self, *part: str | int) -> str:
        return span_id(f"{self.trace} {self.run.id}", *part)

    def _agent(self) -> Span:
        run = self.run
        failure = run.failure
        ended = max(self.latest, run.ended.timestamp() if run.ended is not None else 0.0)
        attributes = {
            **_input(run.task),
            **_output(run.answer),
            spans.TASK: _cut(run.task),
            spans.MAX_STEPS: run.max_steps,
            "agent.name": run.agent,
            "smolagents.agent_type": run.agent_type,
            spans.MODEL: run.model,
            spans.TAGS: list(run.tags) or None,
            spans.METADATA: json.dumps({name: getattr(run, name) for name in _METADATA}),
        }
        raised = None if failure is None else Raised(failure.type, _cut(failure.message), _cut(failure.traceback))
        wrong = {"failed": str(failure or "failed"), "interrupted": "the run was interrupted"}
        began, message = run.began.timestamp(), _cut(wrong.get(run.status, ""))
        return self._span(
            "AGENT", self._id("agent"), self.parent, f"{run.agent}.run", began, ended, attributes, message, raised
        )

    def _span(
        self,
        kind: str,
        id: str,
        parent: str | None,
        name: str,
        began: float,
        ended: float,
        attributes: Mapping[str, Any],
        error: str = "",
        raised: Raised | None = None,
    ) -> Span:
        """A span of this run, with the attributes that group traces; `error` says what went wrong."""
        grouped = {spans.KIND: kind, **attributes, spans.SESSION: self.session, spans.USER: self.run.scope}
        given = {name: value for name, value in grouped.items() if value is not None}
        status: spans.Status = "ERROR" if error or raised is not None else "OK"
        return Span(self.trace, id, parent, name, kind, began, max(began, ended), given, status, error, raised)

    # --- steps -----------------------------------------------------------------------------------------------------

    def _step(self, turn: int, step: Step) -> Iterator[Span]:
        live = step.to_smolagents()
        calls = self._calls.get(turn, [])
        began, ended = self._times(live, step, calls)
        yield from self._model(turn, live, calls, began, ended)
        if isinstance(live, PlanningStep):
            name, output = "Planning", _output(live.plan)
        else:
            yield from self._tools(turn, live, calls, ended)
            shown = live.observations if live.observations is not None else live.action_output
            name, output = f"Step {live.step_number}", _output(shown)
        prompt = getattr(live, "model_input_messages", None)
        attributes = {**_input(message_text(prompt[-1]) if prompt else None), **output}
        yield self._span(
            "CHAIN", self._id("step", turn), self._id("agent"), name, began, ended, attributes, *_step_error(live)
        )

    def _unfinished(self, turn: int) -> Iterator[tuple[Span, int | None]]:
        """A step that never ended, because the process died in it; while it runs, only what it called has spans."""
        calls = [call for later in sorted(self._calls) if later >= turn for call in self._calls[later]]
        if not calls:
            return
        yield from self._children(turn)
        if self.run.status == "running":
            return
        began, ended = calls[0].began, max(call.ended or call.began for call in calls)
        self.latest = max(self.latest, ended)
        asked = [call for call in calls if call.recorded.kind == "model"]
        for number, call in enumerate(asked):
            id = self._id("model", turn) if call is asked[-1] else self._id("model", number, turn)
            yield self._answer(turn, id, call, ended), None
        for number, call in enumerate(call for call in calls if call.recorded.kind == "tool"):
            yield self._tool(turn, number, call, self._id("step", turn)), None
        own, name, error = self._id("step", turn), "Unfinished step", "the process ended during this step"
        yield self._span("CHAIN", own, self._id("agent"), name, began, ended, {}, error), None

    def _times(self, live: Any, step: Step, calls: Sequence[Call]) -> tuple[float, float]:
        timing = getattr(live, "timing", None)
        at = step.at.timestamp()
        began = _time(timing, "start_time") or min([at, *(call.began for call in calls)])
        ended = max(began, _time(timing, "end_time") or at)
        self.latest = max(self.latest, ended)
        return began, ended

    @cached_property
    def _calls(self) -> dict[int, list[Call]]:
        """The calls of the run by turn: how many steps the run had when the call was made."""
        calls = self.records.calls(self.run.id)  # read first: the run may continue, and each call needs a time
        times = {row["id"]: row for row in self.records.store.rows("calls", {"run": self.run.id})}
        found: dict[int, list[Call]] = {}
        for call in calls:
            row = times[call.id]
            found.setdefault(call.turn, []).append(Call(call, row["began"], row["ended"]))
        return found

    # --- models ----------------------------------------------------------------------------------------------------

    def _model(self, turn: int, live: Any, calls: Sequence[Call], began: float, ended: float) -> Iterator[Span]:
        """The model's answer, with its prompt; before it, answers that the step did not keep."""
        asked = [call for call in calls if call.recorded.kind == "model"]
        for number, call in enumerate(asked[:-1]):
            yield self._answer(turn, self._id("model", number, turn), call, ended)
        answer = getattr(live, "model_output_message", None)
        output = answer if answer is not None else getattr(live, "model_output", None)
        if output is None and not asked:
            return
        prompt = list(getattr(live, "model_input_messages", None) or [])
        began, ended = (asked[-1].began, asked[-1].ended or ended) if asked else (began, ended)
        usage = getattr(live, "token_usage", None)
        attributes = {
            **self._llm(_tokens(usage, "input_tokens"), _tokens(usage, "output_tokens")),
            **_input(message_text(prompt[-1]) if prompt else None),
            **self._messages(spans.INPUT_MESSAGES, _fitting(prompt), turn),
            **_output(_said(output)),
            **self._messages(spans.OUTPUT_MESSAGES, [] if output is None else [output], turn),
        }
        yield self._model_span(turn, self._id("model", turn), began, ended, attributes)

    def _answer(self, turn: int, id: str, call: Call, until: float) -> Span:
        """An answer of a model that only the ledger has."""
        asked = _arguments(call.recorded)
        last = message_text(asked[-1]) if isinstance(asked, list) and asked else None
        attributes = {**self._llm(None, None), **_input(last), **_output(_said(_result(call.recorded)))}
        return self._model_span(turn, id, call.began, call.ended or until, attributes)

    def _model_span(self, turn: int, id: str, began: float, ended: float, attributes: Mapping[str, Any]) -> Span:
        return self._span("LLM", id, self._id("step", turn), self.run.model or "model", began, ended, attributes)

    def _llm(self, sent: int | None, got: int | None) -> dict[str, Any]:
        costs: dict[str, Any] = {}
        prices = self.prices or price_of(self.run.model or "")
        if prices is not None and sent is not None and got is not None:
            each = sent * prices[0] / 1e6, got * prices[1] / 1e6
            costs = {"llm.cost.prompt": each[0], "llm.cost.completion": each[1], "llm.cost.total": sum(each)}
        total = None if sent is None or got is None else sent + got
        counts = {spans.PROMPT_TOKENS: sent, spans.COMPLETION_TOKENS: got, "llm.token_count.total": total}
        return {spans.MODEL: self.run.model, **counts, **costs}

    def _messages(self, prefix: str, messages: Sequence[Any], turn: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for number, message in enumerate(messages):
            reference = f"smolmem://run/{self.run.id}/step/{turn}/message/{number}/image"
            fields = message_attributes(message, reference)
            made |= {f"{prefix}.{number}.message.{name}": value for name, value in fields.items()}
        return made

    # --- tools -----------------------------------------------------------------------------------------------------

    def _tools(self, turn: int, live: ActionStep, calls: Sequence[Call], ended: float) -> Iterator[Span]:
        recorded = [call for call in calls if call.recorded.kind == "tool"]
        step = above = self._id("step", turn)
        if live.code_action is not None:
            above = self._id("code", turn)
            began = max([live_start(live, ended), *(call.ended or 0.0 for call in calls if call not in recorded)])
            attributes = {**_tool(spans.INTERPRETER), **_input(live.code_action), **_output(live.observations)}
            began = min(began, ended)
            yield self._span("TOOL", above, step, spans.INTERPRETER, began, ended, attributes, *_step_error(live))
        for number, call in enumerate(recorded):
            yield self._tool(turn, number, call, above)
        if not recorded and live.code_action is None:
            yield from self._named_tools(turn, live, ended)

    def _named_tools(self, turn: int, live: ActionStep, ended: float) -> Iterator[Span]:
        """Calls that the step names and the ledger does not have: of a remote executor, or of an imported run."""
        named = [call for call in live.tool_calls or [] if isinstance(call, ToolCall)]
        for number, call in enumerate(named):
            shown = live.observations if len(named) == 1 else None
            attributes = {**_tool(call.name, call.id), **_input(call.arguments), **_output(shown)}
            own, began = self._id("tool", number, turn), live_start(live, ended)
            yield self._span("TOOL", own, self._id("step", turn), call.name, began, ended, attributes)

    def _tool(self, turn: int, number: int, call: Call, above: str) -> Span:
        recorded, known = call.recorded, call.ended is not None
        result = _result(recorded) if known else None
        attributes = {**_tool(recorded.name), **_input(_arguments(recorded)), **_output(result)}
        error = _cut(str(result)) if recorded.failed else "" if known else "it is unknown whether the call happened"
        raised = Raised(type(result).__name__, error) if recorded.failed else None
        own, ended = self._id("tool", turn, number), call.ended or call.began
        return self._span("TOOL", own, above, recorded.name, call.began, ended, attributes, error, raised)

    # --- managed agents --------------------------------------------------------------------------------------------

    def _children(self, turn: int) -> Iterator[tuple[Span, int | None]]:
        """The runs that the calls of a turn started, each below its call."""
        for child, (called, parent) in self._called:
            if called == turn:
                below = replace(self, run=child, parent=parent)
                yield from below.all()
                self.latest = max(self.latest, below.latest)

    @cached_property
    def _called(self) -> list[tuple[Run, tuple[int, str]]]:
        """The runs that this run called, each with its turn and the span that it belongs to."""
        return [(child, self._caller(child)) for child in self.records.called_by([self.run.id])]

    def _caller(self, child: Run) -> tuple[int, str]:
        began, latest = child.began.timestamp(), max(self._calls, default=0)
        for turn, calls in self._calls.items():
            tools = [call for call in calls if call.recorded.kind == "tool"]
            for number, call in enumerate(tools):
                within = call.began <= began and (call.ended is None or began <= call.ended)
                if within and call.recorded.name == child.agent:
                    return turn, self._id("tool", turn, number)
                latest = turn if within else latest
        return latest, self._id("step", latest)


# --- attributes ------------------------------------------------------------------------------------------------------


def message_attributes(message: Any, reference: str) -> dict[str, Any]:
    """A chat message as attributes; an image becomes a reference to where it is recorded."""
    content = getattr(message, "content", message)
    made: dict[str, Any] = {"role": message_role(message) if hasattr(message, "role") else "assistant"}
    parts = content if isinstance(content, list) else []
    if any(_is_image(part) for part in parts):
        for number, part in enumerate(parts):
            head = f"contents.{number}.message_content"
            if _is_image(part):
                made |= {f"{head}.type": "image", f"{head}.image.image.url": f"{reference}/{number}"}
            else:
                made |= {f"{head}.type": "text", f"{head}.text": _cut(message_text([part]))}
    elif content is not None:
        made["content"] = _cut(message_text(message))
    for number, call in enumerate(getattr(message, "tool_calls", None) or []):
        head, function = f"tool_calls.{number}.tool_call", getattr(call, "function", None)
        made[f"{head}.id"] = storable(str(getattr(call, "id", "")))
        made[f"{head}.function.name"] = storable(str(getattr(function, "name", "")))
        made[f"{head}.function.arguments"] = _shown(getattr(function, "arguments", None))[0]
    return made


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in ("image", "image_url")


def _fitting(prompt: Sequence[Any]) -> list[Any]:
    """A prompt without the middle, if it is too long: the first two messages and the newest are kept."""
    left, start = PROMPT, len(prompt)
    while start > 2 and left > 0 and len(prompt) - start < MESSAGES:
        start -= 1
        left -= min(TEXT, len(message_text(prompt[start])))
    if start <= 2:
        return list(prompt)
    return [*prompt[:2], f"({start - 2:,} messages are left out here)", *prompt[start:]]


def _step_error(live: Any) -> tuple[str, Raised | None]:
    """What went wrong in a step, and in the code that it ran; an empty text if nothing did."""
    error = getattr(live, "error", None)
    if error is not None:
        message = _cut(placeholders.safe_text(str, error))
        return message, Raised(type(error).__name__, message)
    return ("the step was interrupted" if codec.is_interrupted(live) else ""), None


def live_start(live: Any, otherwise: float) -> float:
    """When a step began."""
    return _time(getattr(live, "timing", None), "start_time") or otherwise


def _tool(name: str, id: str | None = None) -> dict[str, Any]:
    return {spans.TOOL_NAME: storable(name), "tool_call.id": id}


def _input(value: Any) -> dict[str, Any]:
    return {} if value is None else dict(zip((spans.INPUT, spans.INPUT_TYPE), _shown(value), strict=True))


def _output(value: Any) -> dict[str, Any]:
    return {} if value is None else dict(zip((spans.OUTPUT, spans.OUTPUT_TYPE), _shown(value), strict=True))


def _said(answer: Any) -> Any:
    """The answer of a model as text; a streamed answer is a list of pieces."""
    if isinstance(answer, list) and answer and hasattr(answer[0], "content"):
        return "".join(str(piece.content) for piece in answer if piece.content is not None)
    return None if answer is None else message_text(answer)


def _shown(value: Any) -> tuple[str, str]:
    """A value as text, and the type of the text. Only plain values are printed: others can have any `str()`."""
    if isinstance(value, str):
        return _cut(str.__str__(value)), spans.TEXT_TYPE
    with suppress(TypeError, ValueError, RecursionError):
        return _cut(json.dumps(value, ensure_ascii=False, allow_nan=False)), spans.JSON_TYPE
    if isinstance(value, BaseException):
        return _cut(placeholders.safe_text(str, value)), spans.TEXT_TYPE
    is_media = hasattr(value, "to_raw") or hasattr(value, "getbands")  # printing an agent's image writes a file
    return (f"[{type(value).__name__}]" if is_media else _cut(placeholders.safe_text(repr, value))), spans.TEXT_TYPE


def _cut(text: str) -> str:
    clean = storable(text)
    return clean if len(clean) <= TEXT else f"{clean[:TEXT]}\n({len(clean) - TEXT:,} more characters are recorded)"


def _time(timing: Any, name: str) -> float | None:
    value = getattr(timing, name, None)
    return float(value) if isinstance(value, (int, float)) and value > 0 else None


def _tokens(usage: Any, name: str) -> int | None:
    value = getattr(usage, name, None)
    return value if type(value) is int and 0 <= value < 1 << 62 else None


def _arguments(call: RecordedCall) -> Any:
    """The arguments of a call; code gives a list and keywords."""
    arguments = None
    with suppress(SmolmemError, TypeError, ValueError):
        arguments = call.arguments()
    is_code = isinstance(arguments, list) and [type(each) for each in arguments] == [list, dict]
    return {"args": arguments[0], "kwargs": arguments[1]} if is_code and arguments is not None else arguments


def _result(call: RecordedCall) -> Any:
    with suppress(SmolmemError, TypeError, ValueError):
        return call.result
    return None
