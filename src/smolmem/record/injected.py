"""A step that somebody put before an agent's eyes: history, a known issue, a baseline, another agent's run.

It is an `ActionStep`, number 0, as the documented way to inject has it, so that everything that reads steps can read
it. It has a timing, so nothing breaks on it, and it says where it comes from.
"""

from __future__ import annotations

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

    def to_messages(self, summary_mode: bool = False) -> list[Any]:
        """One message from the user's side that begins with its origin; plans are made with it in mind too."""
        at = datetime.fromtimestamp(self.timing.start_time).astimezone()
        head = f"[{self.title} · given by {self.origin} · {at:%Y-%m-%d %H:%M}]"
        return [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": f"{head}\n{self.observations}"}])]


def injected(text: str, title: str, origin: str, at: float | None = None) -> Injected:
    """A new step of this kind."""
    began = time.time() if at is None else at
    return Injected(0, Timing(began, began), observations=text, title=title, origin=origin)


def again(step: Injected) -> Injected:
    """The same once more, for another list."""
    return injected(step.observations, step.title, step.origin, step.timing.start_time)
