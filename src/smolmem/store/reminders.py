"""What was brought to agents' minds: written down when it is, shown again to the letter when a run goes on.

It also tells, of each run, which words are not its own: what was recalled must not become memory a second time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from smolmem.record import codec
from smolmem.store.records import Records, seal

QUOTE = "❘ "
"""What each line of a recalled text begins with, wherever it is shown to a model."""
BEGIN = "Memories from earlier runs that may help."
END = "End of the memories."
"""How a block of them begins and ends."""


@dataclass(frozen=True)
class Reminder:
    """Messages that remind an agent, and the content they are kept as."""

    content: int
    messages: list[Any]


class Reminders:
    """The `recalled` table of a store."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def add(self, run: str, step: int | None, query: str, messages: list[Any], found: Sequence[Any]) -> Reminder:
        """Writes down what is about to be shown; `found` is what each part of it came from."""
        store = self._records.store
        with store.write():
            content = self._records.keep(codec.encode(messages))
            row = {"run": run, "step": step, "at": time.time(), "query": query, "block": content}
            row["found"] = json.dumps(list(found))
            store.do("add_recalled", row | {"hash": seal("recalled", row)})
        return Reminder(content, messages)

    def of(self, step: int) -> Reminder | None:
        """What was shown with a task."""
        for row in self._records.store.rows("task_recalled", {"step": step}):
            self._records.sealed("recalled", row)
            return Reminder(row["block"], self._records.part(row["block"]))
        return None

    def told(self, run: str) -> list[str]:
        """The words that were brought to mind in a run, in the run that called it, and in those it called."""
        rows = self._records.store.rows("family_recalled", {"run": run})
        return [line for row in rows for line in quoted(self._records.part(row["block"]))]


def quoted(messages: Sequence[Any]) -> list[str]:
    """The lines that messages quote."""
    texts = (part["text"] for message in messages for part in message.content if part.get("type") == "text")
    return [line.removeprefix(QUOTE) for text in texts for line in text.splitlines() if line.startswith(QUOTE)]
