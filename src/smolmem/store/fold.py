"""From events to the list they leave behind."""

from __future__ import annotations

from smolmem.store.base import Row


class Fold:
    """Events, applied in order, give a session's list and the latest revision of each step."""

    def __init__(self) -> None:
        self.listed: list[int] = []
        self.latest: dict[int, Row] = {}
        self.revisions: dict[int, int] = {}
        self.system: int | None = None
        self.inserted: set[int] = set()
        self.count = 0

    def is_new_step(self, event: Row) -> bool:
        """Whether an event, applied just now, put a step on the list for the first time."""
        return event["act"] == "insert" and event["record"] is not None and event["place"] is not None

    def apply(self, event: Row, *, own: bool = True) -> None:
        """Takes one more event into account; `own`: of this session, not of the one it is a fork of."""
        step, place = event["step"], event["place"]
        self.count += own
        if event["act"] == "remove":
            del self.listed[place : place + 1]
        elif event["act"] == "insert" and place is not None:
            self.listed.insert(place, step)
        elif event["act"] == "insert":
            self.system = step
        if event["act"] == "insert" and event["record"] is not None:
            self.inserted.add(step)
        if event["record"] is not None:
            self.revisions[step] = self.revisions.get(step, -1) + 1
            self.latest[step] = event
