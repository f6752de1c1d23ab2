"""The `recalled` table: what agents were reminded of or asked for.

A reminder is recorded before it is shown, and shown again word for word when its run is resumed. The table also tells
which lines of a run were recalled: those are not indexed again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from smolmem.core.values import Reminder
from smolmem.store.contents import Contents

QUOTE = "❘ "
"""Begins each line of a recalled text, wherever it is shown to a model."""
BEGIN = "Memories from earlier runs that may help."
END = "End of the memories."
"""The first and last line of a block of recalled text."""


class Reminders:
    """The reminders of a store."""

    def __init__(self, contents: Contents, fence: Callable[[Sequence[str]], None]) -> None:
        """`fence` raises `TakenOver` for runs that another process has taken over."""
        self._contents = contents
        self._fence = fence

    def add(self, run: str, step: int | None, query: str, messages: list[Any], found: Sequence[Any]) -> Reminder:
        """Records what is about to be shown; `found` names the sources, steps and notes."""
        row = {"run": run, "step": step, "at": time.time(), "query": query, "found": json.dumps(list(found))}
        encoded = self._contents.encode(messages)

        def write() -> int:
            self._fence([run])
            content = self._contents.keep(encoded)
            self._contents.add("recalled", {**row, "block": content})
            return content

        return Reminder(self._contents.store.transact(write), messages)

    def of(self, step: int) -> Reminder | None:
        """What was shown with a task."""
        for row in self._contents.store.rows("task_recalled", {"step": step}):
            self._contents.sealed("recalled", row)
            return Reminder(row["block"], self._contents.part(row["block"]))
        return None

    def lines_recalled_in(self, run: str) -> list[str]:
        """The lines that were recalled in a run, in the runs that called it, and in those it called."""
        rows = self._contents.store.rows("family_recalled", {"run": run})
        return [line for row in rows for line in quoted_lines(self._contents.part(row["block"]))]


def quoted_lines(messages: Sequence[Any]) -> list[str]:
    """The quoted lines of messages."""
    texts = (part["text"] for message in messages for part in message.content if part.get("type") == "text")
    return [line.removeprefix(QUOTE) for text in texts for line in text.splitlines() if line.startswith(QUOTE)]
