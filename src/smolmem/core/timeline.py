"""Turns events into a list of steps: the only code that defines insert, remove and revise.

The live session applies each change once it is saved. Reading a session from disk, loading an export and `verify` apply
the stored events. All of them get the same list, because they use the same `Timeline`.

    insert   puts a step at a position; without a position it is the system prompt, which stands before the list.
             An insert without content puts a removed step back.
    remove   takes the step at a position off the list.
    revise   gives a step new content, wherever it stands.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from smolmem.core.rows import Act

Content = TypeVar("Content")


class Misplaced(ValueError):
    """An event that cannot have happened to this list."""


class Timeline(Generic[Content]):
    """One list of steps, by their ids, and the latest content of each step.

    A step without content of its own in this timeline belongs to the session this one is a fork of.
    """

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.system: int | None = None
        self.latest: dict[int, Content] = {}
        self.revisions: dict[int, int] = {}

    def apply(self, act: Act, step: int, position: int | None, content: Content | None) -> None:
        """Applies one event.

        Raises:
            Misplaced: if the event does not fit the list.
        """
        self.check(act, step, position, has_content=content is not None)
        if act == "insert" and position is None:
            self.system = step
        elif act == "insert" and position is not None:
            self.steps.insert(position, step)
        elif act == "remove":
            del self.steps[position or 0]
        if content is not None:
            self.latest[step] = content
            self.revisions[step] = self.revisions.get(step, -1) + 1

    def check(self, act: Act, step: int | None, position: int | None, *, has_content: bool) -> None:
        """Raises `Misplaced` if an event does not fit the list."""
        if act == "remove":
            if position is None or not 0 <= position < len(self.steps) or self.steps[position] != step:
                raise Misplaced(f"step {step} is removed from position {position}, where it does not stand")
        elif act == "revise":
            if not has_content:
                raise Misplaced("a revision without content")
        elif position is None:
            if not has_content:
                raise Misplaced("a system prompt without content")
        elif not 0 <= position <= len(self.steps):
            raise Misplaced(f"a step at position {position} of a list of {len(self.steps)}")
        elif not has_content and step in self.steps:
            raise Misplaced("a step that is on the list already is put back")

    def fork(self) -> Timeline[Content]:
        """A timeline that begins as this one is now."""
        other: Timeline[Content] = Timeline()
        other.steps, other.system = list(self.steps), self.system
        other.latest, other.revisions = dict(self.latest), dict(self.revisions)
        return other
