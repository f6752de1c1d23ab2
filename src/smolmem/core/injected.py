"""An injected step: history, a known issue, a baseline, another agent's run.

It is an `ActionStep` with number 0, as in the documented way to inject, so that everything that reads steps can read
it. It has a timing, so that nothing fails on it, and it says where it comes from.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from smolagents.memory import ActionStep
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import Timing

from smolmem.core import clock


@dataclass
class Injected(ActionStep):  # type: ignore[misc]
    """An injected text, in `observations`."""

    title: str = ""
    origin: str = "user"
    until: float | None = None
    """When it expires."""
    name: str = ""
    """The same for every copy of one injection, in whatever list."""

    def dict(self) -> dict[str, Any]:
        """The fields of an action, with title and origin."""
        return {**super().dict(), "title": self.title, "origin": self.origin}

    def to_messages(self, summary_mode: bool = False) -> list[Any]:
        """One user message that begins with the origin; it is also shown when plans are made."""
        at = datetime.fromtimestamp(self.timing.start_time).astimezone()
        head = f"[{self.title} · given by {self.origin} · {at:%Y-%m-%d %H:%M}]"
        return [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": f"{head}\n{self.observations}"}])]


def injected(text: str, title: str, origin: str, until: float | None = None) -> Injected:
    """A new injected step."""
    now = clock.now()
    return Injected(
        0, Timing(now, now), observations=text, title=title, origin=origin, until=until, name=secrets.token_hex(8)
    )


def copy_of(step: Injected) -> Injected:
    """A copy of an injected step, for another list."""
    made = injected(step.observations, step.title, step.origin, step.until)
    made.timing, made.name = Timing(step.timing.start_time, step.timing.end_time), step.name
    return made


def expired(step: Any) -> bool:
    """Whether a step is an injection that has expired."""
    return isinstance(step, Injected) and step.until is not None and step.until <= clock.now()
