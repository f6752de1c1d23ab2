"""The `cut` table: what views left out of an agent's prompts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from smolmem.core.text import storable
from smolmem.core.values import Trim
from smolmem.store.contents import Contents

_COLUMNS = ("view", "last", "parts", "before", "after", "text", "at")


class Trims:
    """The trims of a store; a trim holds until the same view trims again."""

    def __init__(self, contents: Contents, fence: Callable[[str], None]) -> None:
        """`fence` raises `TakenOver` for a session that another process has taken over."""
        self._contents = contents
        self._fence = fence

    def of(self, session: str) -> list[Trim]:
        """The trims of a session, in order."""
        rows = self._contents.store.rows("session_cuts", {"session": session})
        return [Trim(**{name: self._contents.sealed("cut", row)[name] for name in _COLUMNS}) for row in rows]

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
