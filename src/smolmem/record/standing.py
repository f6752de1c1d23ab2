"""What stands on every list of an agent's steps, and what was put on one while nobody worked.

The latter belongs to the run that comes next, which is not there yet: until then the list is recorded without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smolmem.record.injected import Injected, again, expired


class Standing:
    """The injections of one agent."""

    def __init__(self) -> None:
        self.always: list[Injected] = []
        self.waiting: list[Injected] = []

    def anew(self) -> list[Injected]:
        """What a new list begins with."""
        self.always = [step for step in self.always if not expired(step)]
        return [again(step) for step in self.always]

    def waits(self, step: Any) -> bool:
        """Whether a step belongs to the run that comes next."""
        return any(step is other for other in self.waiting)

    def without(self, steps: list[Any]) -> list[Any]:
        """A list as far as it belongs to a run."""
        return [step for step in steps if not self.waits(step)] if self.waiting else steps

    def take(self) -> list[Injected]:
        """What waits; whoever takes it puts it somewhere."""
        waiting, self.waiting = self.waiting, []
        return waiting

    @staticmethod
    def over(steps: Sequence[Any]) -> list[int]:
        """Where on a list something stands that is no longer true, the last first."""
        return [place for place, step in enumerate(steps) if expired(step)][::-1]
