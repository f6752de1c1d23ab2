"""Injected steps: history, a known issue, a baseline, another agent's run.

smolagents drops injected steps at the next `run()`. Here an injection is at the beginning of every run until it
is withdrawn or expires. A step that is injected while no run is active belongs to the next run; until that begins,
the list is recorded without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smolmem.core.injected import Injected, copy_of, expired


class Injections:
    """The injections of one agent."""

    def __init__(self) -> None:
        self.standing: list[Injected] = []
        self._waiting: list[Injected] = []

    def for_new_list(self) -> list[Injected]:
        """The steps that a new list begins with."""
        self.standing = [step for step in self.standing if not expired(step)]
        return [copy_of(step) for step in self.standing]

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
