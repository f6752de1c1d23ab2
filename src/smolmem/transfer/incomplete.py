"""Sessions and runs of which only a part has arrived: during a load, and between the batches of a copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from smolmem.store.base import Row, Store
from smolmem.store.writer import COPYING

NOT_ENDED = dict.fromkeys(("ended", "answer", "failure", "parent", "parent_step", "fork_of"))
NOT_ENDED |= {"status": "running", "writer": COPYING}
"""Columns of a run while its session is incomplete."""


@dataclass
class CopiedPart:
    """What a batch of a copy can refer to: rows of earlier batches, by their numbers in the target."""

    contents: Mapping[str, int] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    prompts: dict[int, int] = field(default_factory=dict)
    skip: Mapping[str, int] = field(default_factory=dict)
    """How many events of each session earlier batches hold."""
    forks: dict[int, tuple[str, int] | None] = field(default_factory=dict)
    """The events that forks begin after, each with its session and its number in the target: None for an event that
    comes later, 0 for one that the target lacks."""
    is_last: bool = True
    """Whether the sessions of the batch are complete with it."""


def is_incomplete(store: Store, session: str) -> bool:
    """Whether an interrupted copy wrote only a part of the events of a session."""
    return {"writer": COPYING} in store.rows("session_writers", {"session": session})


def awaited_run(run: str, session: str, began: float) -> Row:
    """A run whose line comes after lines that refer to it, until then; without its scope and agent."""
    unknown = dict.fromkeys(("model", "max_steps")) | dict.fromkeys(("agent_type", "title", "smolagents"), "")
    counts = dict.fromkeys(("steps", "errors", "input_tokens", "output_tokens"), 0)
    return {"id": run, "session": session, "began": began, "tags": "[]", **unknown, **counts, **NOT_ENDED}
