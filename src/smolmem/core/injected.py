"""Injected steps: history, a known issue, a baseline, another agent's run.

An injected step is an `ActionStep` with number 0, as in the documented way to inject, so that all code that reads steps
can read it. It has a timing, so that no such code fails on it, and it says where it comes from.

smolagents drops injected steps at the next `run()`. Here an injection is at the beginning of every run until it
is withdrawn or expires. A step that is injected while no run is active belongs to the next run; until that begins,
the list is recorded without it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
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
    sources: tuple[int | str, ...] = ()
    """The recorded steps and notes that the text was made from."""

    def dict(self) -> dict[str, Any]:
        """The fields of an action, with title and origin."""
        return {**super().dict(), "title": self.title, "origin": self.origin}

    def to_messages(self, summary_mode: bool = False) -> list[Any]:
        """One user message that begins with the origin; it is also shown when plans are made."""
        at = datetime.fromtimestamp(self.timing.start_time).astimezone()
        head = f"[{self.title} · given by {self.origin} · {at:%Y-%m-%d %H:%M}]"
        return [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": f"{head}\n{self.observations}"}])]


def injected(
    text: str, title: str, origin: str, until: float | None = None, sources: Sequence[int | str] = ()
) -> Injected:
    """A new injected step."""
    now, name = clock.now(), secrets.token_hex(8)
    given: dict[str, Any] = {"title": title, "origin": origin, "until": until, "sources": tuple(sources)}
    return Injected(0, Timing(now, now), observations=text, name=name, **given)


def copy_of(step: Injected) -> Injected:
    """A copy of an injected step, for another list."""
    made = injected(step.observations, step.title, step.origin, step.until, step.sources)
    made.timing, made.name = Timing(step.timing.start_time, step.timing.end_time), step.name
    return made


def expired(step: Any) -> bool:
    """Whether a step is an injection that has expired."""
    return isinstance(step, Injected) and step.until is not None and step.until <= clock.now()


class Injections:
    """The injections of one agent."""

    def __init__(self) -> None:
        self.standing: list[Injected] = []
        self._waiting: list[Injected] = []

    def for_new_list(self) -> list[Injected]:
        """The steps that a new list begins with."""
        self.standing = [step for step in self.standing if not expired(step)]
        return [copy_of(step) for step in self.standing]

    def drop_erased(self, has_all: Callable[[Sequence[int | str]], bool]) -> None:
        """Withdraws injections whose sources were erased; `has_all` says whether the store has steps and notes."""
        self.standing = [step for step in self.standing if not step.sources or has_all(step.sources)]

    def wait(self, step: Injected) -> None:
        """Keeps a step for the next run."""
        self._waiting.append(step)

    def is_waiting(self, step: Any) -> bool:
        """Whether a step belongs to the next run."""
        return any(step is other for other in self._waiting)

    def without_waiting(self, steps: list[Any]) -> list[Any]:
        """A list without the steps that belong to the next run."""
        return [step for step in steps if not self.is_waiting(step)] if self._waiting else steps

    def take_waiting(self) -> list[Injected]:
        """The steps that wait for the next run, which is beginning."""
        waiting, self._waiting = self._waiting, []
        return waiting

    @staticmethod
    def expired_positions(steps: Sequence[Any]) -> list[int]:
        """The positions of expired injections on a list, the last first."""
        return [position for position, step in enumerate(steps) if expired(step)][::-1]
