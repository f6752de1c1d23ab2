"""A span: one part of a trace, as OpenTelemetry and OpenInference describe what an agent did.

Runs become spans in `run_spans.py` and are sent by `otlp.py`. Files of spans are read by `span_files.py` and become
runs in `span_runs.py`. All four use this value, so that a run that was sent can be read back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["UNSET", "OK", "ERROR"]

KIND = "openinference.span.kind"
INPUT, INPUT_TYPE = "input.value", "input.mime_type"
OUTPUT, OUTPUT_TYPE = "output.value", "output.mime_type"
JSON_TYPE, TEXT_TYPE = "application/json", "text/plain"
INPUT_MESSAGES, OUTPUT_MESSAGES = "llm.input_messages", "llm.output_messages"
MODEL, TOOL_NAME = "llm.model_name", "tool.name"
PROMPT_TOKENS, COMPLETION_TOKENS = "llm.token_count.prompt", "llm.token_count.completion"
TASK, MAX_STEPS = "smolagents.task", "smolagents.max_steps"
SESSION, USER, METADATA, TAGS = "session.id", "user.id", "metadata", "tag.tags"
INTERPRETER = "python_interpreter"
"""The tool that smolagents names for code that an agent runs."""


@dataclass(frozen=True)
class Raised:
    """An exception that a span reports."""

    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True)
class Span:
    """One part of a trace; times are in seconds, ids are hexadecimal."""

    trace: str
    id: str
    parent: str | None
    name: str
    kind: str
    began: float
    ended: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    status: Status = "UNSET"
    message: str = ""
    exception: Raised | None = None


def trace_id(run: str) -> str:
    """The id of the trace of a run. Ids are hashes: a run that is sent twice is one trace."""
    return hashlib.blake2b(f"smolmem trace {run}".encode(), digest_size=16).hexdigest()


def span_id(where: str, *part: str | int) -> str:
    """The id of a part of a run; `where` names the trace and the run."""
    return hashlib.blake2b(f"smolmem span {where} {part}".encode(), digest_size=8).hexdigest()
