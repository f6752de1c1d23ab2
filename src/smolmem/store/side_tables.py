"""Three small tables beside the steps: reminders (`recalled`), trims of views (`cut`) and alerts of rules (`alert`).

A reminder is recorded before it is shown, and shown again word for word when its run is resumed. Its lines are not
indexed again. A trim is recorded before the prompt that it shortens is sent, and applies until the view trims again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from smolmem.core.text import storable
from smolmem.core.values import Alert, Reminder, Trim, when
from smolmem.store.contents import Contents

QUOTE = "❘ "
"""Begins each line of a recalled text, wherever it is shown to a model."""
BEGIN = "Memories from earlier runs that may help."
END = "End of the memories."
"""The first and last line of a block of recalled text."""
_TRIM_COLUMNS = ("view", "last", "parts", "before", "after", "text", "at")
_ALERT_COLUMNS = ("rule", "reason", "agent", "run", "number")
_ALERT_FILTERS: dict[str, Any] = dict.fromkeys(("scope", "below", "run", "rule"))


class _SideTable:
    def __init__(self, contents: Contents, fence: Callable[[Any], None]) -> None:
        """`fence` raises `TakenOver` for runs, or for a session, that another process has taken over."""
        self._contents = contents
        self._fence = fence


class Reminders(_SideTable):
    """The reminders of a store."""

    def add(self, run: str, step: int | None, query: str, messages: list[Any], found: Sequence[Any]) -> Reminder:
        """Records a reminder before it is shown; `found` names its sources, steps and notes."""
        row = {"run": run, "step": step, "at": time.time(), "query": query, "found": json.dumps(list(found))}
        encoded = self._contents.encode(messages)

        def write() -> int:
            self._fence([run])
            content = self._contents.keep(encoded)
            self._contents.add("recalled", {**row, "block": content})
            return content

        return Reminder(self._contents.store.transact(write), messages)

    def add_within(self, run: str, at: float, block: int | None, found: Sequence[int | str]) -> None:
        """Records what an injected text was made from, as part of the caller's transaction."""
        row = {"run": run, "step": None, "at": at, "query": "", "block": block, "found": json.dumps(list(found))}
        self._contents.add("recalled", row)

    def of(self, step: int) -> Reminder | None:
        """The reminder that was shown with a task."""
        for row in self._contents.store.rows("task_recalled", {"step": step}):
            self._contents.sealed("recalled", row)
            return Reminder(row["block"], self._contents.part(row["block"]))
        return None

    def lines_recalled_in(self, run: str) -> list[str]:
        """The lines that were recalled in a run, in its callers, and in the runs it called."""
        rows = self._contents.store.rows("family_recalled", {"run": run})
        return [line for row in rows for line in quoted_lines(self._contents.part(row["block"]))]


def quoted_lines(messages: Sequence[Any]) -> list[str]:
    """The quoted lines of messages."""
    texts = (part["text"] for message in messages for part in message.content if part.get("type") == "text")
    return [line.removeprefix(QUOTE) for text in texts for line in text.splitlines() if line.startswith(QUOTE)]


class Trims(_SideTable):
    """The trims of a store."""

    def of(self, session: str) -> list[Trim]:
        """The trims of a session, in order."""
        rows = self._contents.store.rows("session_cuts", {"session": session})
        return [Trim(**{name: self._contents.sealed("cut", row)[name] for name in _TRIM_COLUMNS}) for row in rows]

    def live(self, session: str) -> list[Trim]:
        """The trims of a session, with the secrets that this process has, for an agent that continues it."""
        known = self._contents.redactor.known
        return [replace(trim, text=known.text(trim.text)) for trim in self.of(session)]

    def add(self, session: str, trim: Trim) -> None:
        """Writes a trim before the prompt that it shortens is sent."""
        row = {"session": session, **vars(trim), "text": storable(trim.text), "at": trim.at or time.time()}

        def write() -> None:
            self._fence(session)
            self._contents.add("cut", row)

        self._contents.store.transact(write, sync=False)


class Alerts(_SideTable):
    """The alerts of a store."""

    def add(self, alert: Alert, scope: str) -> None:
        """Writes that a rule fired."""

        def write() -> None:
            self._fence([alert.run])
            self.add_within(alert, scope)

        self._contents.store.transact(write, sync=False)

    def add_within(self, alert: Alert, scope: str) -> None:
        """`add` as part of the caller's transaction."""
        row = {name: getattr(alert, name) for name in _ALERT_COLUMNS}
        row |= {name: storable(row[name]) for name in ("rule", "reason", "agent")}
        row |= {"scope": scope, "at": alert.at.timestamp(), "acts": json.dumps(list(alert.actions))}
        self._contents.add("alert", row)

    def find(self, **filters: Any) -> list[Alert]:
        """Alerts, the newest first; each filter is a parameter of `find_alerts`, and open if not given."""
        rows = self._contents.store.rows("find_alerts", _ALERT_FILTERS | filters)
        return [
            Alert(
                **{name: self._contents.sealed("alert", row)[name] for name in _ALERT_COLUMNS},
                at=when(row["at"]),
                actions=tuple(json.loads(row["acts"])),
            )
            for row in rows
        ]
