"""A JSON file of `agent.memory.get_full_steps()`, the work-around that smolagents documents, as runs.

The format keeps the fields of each step and loses a few things: images, the arguments of some tools, and which agent it
was. A task begins a run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from smolagents.memory import ActionStep, PlanningStep, TaskStep, ToolCall
from smolagents.models import ChatMessage
from smolagents.monitoring import Timing, TokenUsage

from smolmem.transfer.chats import called
from smolmem.transfer.foreign import ForeignCall, ForeignRun, Unreadable, agent_error, role_of, tool_call

_NAMED_ANSWER = re.compile(r"\bfinal_answer\(\s*answer\s*=")
_KEYS = ({"step_number", "timing"}, {"task"}, {"plan"}, {"system_prompt"}, {"output"})


def is_steps(values: list[Any]) -> bool:
    """Whether JSON values are the steps of an agent."""
    steps = _steps(values)
    return bool(steps) and all(isinstance(step, dict) and any(keys <= step.keys() for keys in _KEYS) for step in steps)


def _steps(values: list[Any]) -> list[Any]:
    only = values[0] if len(values) == 1 else values
    if isinstance(only, dict) and isinstance(only.get("steps"), list):
        only = only["steps"]
    return only if isinstance(only, list) else []


def read_steps(values: list[Any], at: float) -> list[ForeignRun]:
    """The runs of a file, in one session; `at` is when the file was written, for steps without a time."""
    records = _steps(values)
    system = next((step["system_prompt"] for step in records if "system_prompt" in step), None)
    groups: list[list[Any]] = []
    for number, record in enumerate(records, 1):
        try:
            step = _step(record)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise Unreadable(f"step {number} cannot be read ({type(error).__name__}: {error}).") from error
        if step is not None:
            if isinstance(step, TaskStep) or not groups:
                groups.append([])
            groups[-1].append(step)
    if not groups:
        raise Unreadable("the file has no steps.")
    whole = json.dumps(records, sort_keys=True, default=str).encode("utf-8", "replace")
    session = hashlib.blake2b(whole, digest_size=16).hexdigest()
    return [_run(f"steps {session}", number, group, system, at) for number, group in enumerate(groups)]


def _run(session: str, number: int, steps: Sequence[Any], system: Any, at: float) -> ForeignRun:
    timed = [step.timing for step in steps if hasattr(step, "timing") and step.timing.start_time > 0]
    last = steps[-1]
    done = isinstance(last, ActionStep) and last.is_final_answer
    kind = "CodeAgent" if any(getattr(step, "code_action", None) for step in steps) else "ToolCallingAgent"
    return ForeignRun(
        key=f"{session} {number}",
        session=session,
        agent=kind,
        agent_type=kind,
        steps=steps,
        status="finished" if done else "interrupted",
        began=timed[0].start_time if timed else at,
        ended=max((timing.end_time or timing.start_time for timing in timed), default=at),
        answer=last.action_output if done else None,
        system=str(system) if system is not None and number == 0 else None,
        calls=[call for turn, step in enumerate(steps) for call in _final_call(turn, step)],
    )


def _final_call(turn: int, step: Any) -> list[ForeignCall]:
    """The call that ended a run. It is the only call whose result the format keeps, and code can run again with it."""
    if not getattr(step, "is_final_answer", False):
        return []
    answer, began = step.action_output, step.timing.start_time
    arguments: Any = {"answer": answer}
    if step.code_action is not None:
        named = _NAMED_ANSWER.search(step.code_action) is not None
        arguments = [[], {"answer": answer}] if named else [[answer], {}]
    return [ForeignCall(turn, "final_answer", arguments, answer, began, step.timing.end_time or began)]


def _step(record: Mapping[str, Any]) -> Any:
    if "task" in record:
        return TaskStep(_text(record["task"]))
    if "plan" in record:
        return PlanningStep(
            _messages(record.get("model_input_messages")),
            _message(record.get("model_output_message") or {}),
            _text(record["plan"]),
            _timing(record.get("timing")),
            _usage(record.get("token_usage")),
        )
    return _action(record) if "step_number" in record else None


def _action(record: Mapping[str, Any]) -> ActionStep:
    answer, error = record.get("model_output_message"), record.get("error")
    calls = [ToolCall(*called(call)) for call in record.get("tool_calls") or []]
    code = record.get("code_action")
    if code is None:  # releases before 1.20 keep code in the call alone
        code = next((call.arguments for call in calls if call.name == "python_interpreter"), None)
    output = record.get("model_output")
    return ActionStep(
        step_number=int(record["step_number"]),
        timing=_timing(record.get("timing")),
        model_input_messages=_messages(record.get("model_input_messages")) or None,
        tool_calls=calls or None,
        error=agent_error(str(error.get("type")), str(error.get("message"))) if isinstance(error, dict) else None,
        model_output_message=None if answer is None else _message(answer),
        model_output=output if output is None or isinstance(output, str) else _text(output),
        code_action=None if code is None else _text(code),
        observations=None if record.get("observations") is None else _text(record["observations"]),
        action_output=record.get("action_output"),
        token_usage=_usage(record.get("token_usage")),
        is_final_answer=bool(record.get("is_final_answer")),
    )


def _messages(given: Any) -> list[ChatMessage]:
    return [_message(each) for each in given] if isinstance(given, list) else []


def _message(given: Any) -> ChatMessage:
    record = given if isinstance(given, dict) else {"role": "assistant", "content": given}
    calls = [tool_call(*called(call)) for call in record.get("tool_calls") or []]
    usage = _usage(record.get("token_usage"))
    return ChatMessage(role_of(record.get("role", "assistant")), record.get("content"), calls or None, None, usage)


def _timing(given: Any) -> Timing:
    record = given if isinstance(given, dict) else {}
    start, end = record.get("start_time"), record.get("end_time")
    return Timing(float(start or 0.0), None if end is None else float(end))


def _usage(given: Any) -> TokenUsage | None:
    if not isinstance(given, dict):
        return None
    return TokenUsage(int(given.get("input_tokens") or 0), int(given.get("output_tokens") or 0))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
