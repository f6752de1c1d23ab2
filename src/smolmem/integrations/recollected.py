"""What the adapters for other libraries share: recollections as plain facts, and conversations as notes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smolmem.core.rows import Origin
from smolmem.core.values import Note, Recollection

if TYPE_CHECKING:
    from smolmem.memory import Memory

MESSAGE = "message"
"""The kind of notes that are messages of a conversation."""
ALL = 1_000_000
_ORIGINS: dict[str, Origin] = {
    "human": "user",
    "user": "user",
    "ai": "model",
    "assistant": "model",
    "tool": "tool",
    "function": "tool",
}


def identity(one: Recollection) -> str:
    """The id of a recollection as other libraries take it."""
    return f"note:{one.note}" if one.note else f"step:{one.step}"


def facts(one: Recollection) -> dict[str, Any]:
    """Where a recollection comes from, as plain values."""
    named = {name: getattr(one, name) for name in ("kind", "origin", "trust", "scope", "agent", "run", "step", "note")}
    named |= {"at": one.at.isoformat(), "score": round(one.score, 4), "source": one.source}
    return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class Conversation:
    """The messages of one conversation: notes with its key as a tag, so that recall finds them."""

    memory: Memory
    key: str
    scope: str | None = None

    def add(self, role: str, text: str, whole: Callable[[], dict[str, Any]], *, plain: bool) -> None:
        """Adds a message: its text if the message is `plain`, and JSON if it is more than its text."""
        is_plain = plain and text == text.strip() != ""
        kept = text if is_plain else json.dumps(whole(), ensure_ascii=False)
        tags = (self.key, role, "text" if is_plain else "json")
        origin = _ORIGINS.get(role, "agent")
        self.memory.remember(kept, kind=MESSAGE, tags=tags, origin=origin, scope=self.scope)

    def notes(self) -> list[Note]:
        """The notes of all messages, the oldest first."""
        found = self.memory.notes(kind=MESSAGE, tag=self.key, scope=self.scope, limit=ALL)
        return [note for note in reversed(found) if note.tags[0] == self.key]

    def forget(self, note: Note) -> None:
        """Takes a message out of the conversation; the record keeps it."""
        self.memory.forget(note)


def read(note: Note) -> tuple[str, str | None, dict[str, Any] | None]:
    """The role of a message, and its text or all of it."""
    _, role, form = note.tags
    return (role, note.text, None) if form == "text" else (role, None, json.loads(note.text))
