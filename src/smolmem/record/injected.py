"""A step that somebody put before an agent's eyes: history, a known issue, a baseline, another agent's run.

It is an `ActionStep`, number 0, as the documented way to inject has it, so that everything that reads steps can read
it. It has a timing, so nothing breaks on it, and it says where it comes from.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from smolagents.memory import ActionStep
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import Timing


@dataclass
class Injected(ActionStep):  # type: ignore[misc]
    """What was injected: its text is in `observations`."""

    title: str = ""
    origin: str = "user"
    until: float | None = None
    """When it is no longer true."""
    name: str = ""
    """What it is known by, in whichever list it stands."""

    def dict(self) -> dict[str, Any]:
        """As an action, with its origin."""
        return {**super().dict(), "title": self.title, "origin": self.origin}

    def to_messages(self, summary_mode: bool = False) -> list[Any]:
        """One message from the user's side that begins with its origin; plans are made with it in mind too."""
        at = datetime.fromtimestamp(self.timing.start_time).astimezone()
        head = f"[{self.title} · given by {self.origin} · {at:%Y-%m-%d %H:%M}]"
        return [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": f"{head}\n{self.observations}"}])]


def injected(text: str, title: str, origin: str, until: float | None = None) -> Injected:
    """A new step of this kind."""
    now = time.time()
    return Injected(
        0, Timing(now, now), observations=text, title=title, origin=origin, until=until, name=secrets.token_hex(8)
    )


def again(step: Injected) -> Injected:
    """The same once more, for another list."""
    made = injected(step.observations, step.title, step.origin, step.until)
    made.timing, made.name = Timing(step.timing.start_time, step.timing.end_time), step.name
    return made


def expired(step: Any) -> bool:
    """Whether a step was injected for a time that is over."""
    return isinstance(step, Injected) and step.until is not None and step.until <= time.time()
