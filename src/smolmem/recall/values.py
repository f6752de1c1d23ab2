"""What is remembered and what recall returns, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypedDict

from smolmem.record.values import Origin

if TYPE_CHECKING:
    from rich.console import RenderableType

Trust = Literal["low", "medium", "high"]
TRUST: dict[Trust, int] = {"low": 1, "medium": 2, "high": 3}
_TRUSTED: dict[Origin, Trust] = {
    "user": "high",
    "model": "medium",
    "tool": "medium",
    "agent": "medium",
    "import": "low",
    "web": "low",
}


def trust_in(origin: Origin) -> Trust:
    """How far what comes from there is trusted: whoever can write a web page can write it."""
    return _TRUSTED[origin]


class NoteRow(TypedDict):
    """A note as it is stored."""

    id: str
    scope: str
    kind: str
    text: str
    tags: str
    origin: Origin
    run: str | None
    at: float
    expires: float | None
    supersedes: str | None
    sources: str


@dataclass(frozen=True)
class Note:
    """Something remembered on purpose."""

    id: str
    scope: str
    kind: str
    text: str
    tags: tuple[str, ...]
    origin: Origin
    run: str | None
    at: datetime
    expires: datetime | None
    supersedes: str | None
    sources: tuple[int | str, ...]
    """The steps (numbers) and notes (ids) it was made from."""
    status: Literal["current", "superseded", "forgotten", "expired"] = "current"
    stale: bool = False
    """Whether something it was made from is no longer current."""

    def __repr__(self) -> str:
        rest = "" if self.status == "current" else f", {self.status}"
        return f"Note({self.id[:8]!r}, {self.kind}, {self.text[:60]!r}{rest}{', stale' if self.stale else ''})"

    def __rich__(self) -> RenderableType:
        from smolmem.record import show

        return show.note(self)


@dataclass(frozen=True)
class Recollection:
    """A piece of the past that answers a question, and where it comes from."""

    text: str
    score: float
    parts: Mapping[str, float]
    """What the score is made of: words, meaning, around (its neighbours), time, recent, reranker."""
    kind: str
    """task, plan, thought, code, call, observation, error, answer, or the kind of a note."""
    origin: Origin
    trust: Trust
    scope: str
    at: datetime
    agent: str | None
    run: str | None
    step: int | None
    note: str | None
    tool: str | None
    unit: int = field(repr=False)
    copies: int = 1
    """How many pieces said the same; this is the best of them."""
    stale: bool = False
    _neighbours: Callable[[int], list[Recollection]] = field(repr=False, compare=False, default=lambda count: [])

    def neighbours(self, count: int = 1) -> list[Recollection]:
        """What was said just before and after it, in order; up to `count` pieces on each side."""
        return self._neighbours(count)

    @property
    def source(self) -> str:
        """Where it comes from, in words."""
        place = f"note {self.note[:8]}" if self.note else f"run {(self.run or '')[:8]} step {self.step}"
        through = f" of {self.tool}" if self.tool else ""
        return f"{self.kind}{through} · {place} · {self.at:%Y-%m-%d %H:%M} · from {self.origin} · trust {self.trust}"

    def __repr__(self) -> str:
        return f"Recollection({self.score:.2f}, {self.source}, {' '.join(self.text.split())[:80]!r})"

    def __rich__(self) -> RenderableType:
        from smolmem.record import show

        return show.recollection(self)
