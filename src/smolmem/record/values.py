"""What is recorded, as values that know nothing of files, and the rows they are stored as.

The recorder turns what an agent did into a `Batch` of `Change`s; a store saves it as a whole and answers with the ids
it gave (`Saved`). Reading goes the other way: rows become `Run` and `Step`, which fetch what is large only when
it is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from smolmem.record.codec import Encoded, Facts

if TYPE_CHECKING:
    from rich.console import RenderableType

Act = Literal["insert", "remove", "revise"]
Origin = Literal["user", "model", "tool", "web", "import", "agent"]
ORIGINS: tuple[Origin, ...] = ("user", "model", "tool", "web", "import", "agent")
"""Who said it: fixed when it is written, and inherited by what is made from it."""
Status = Literal["running", "finished", "failed", "interrupted", "max_steps"]
STATUSES: tuple[Status, ...] = ("running", "finished", "failed", "interrupted", "max_steps")

# --- rows ---------------------------------------------------------------------------------------------------------


class SessionRow(TypedDict):
    """One memory list, from one reset to the next."""

    id: str
    scope: str
    agent: str
    began: float
    fork_of: str | None
    fork_at: int | None


class CallRow(TypedDict):
    """A model's answer or a tool's call; `ended` is None while nobody knows whether it happened."""

    run: str
    turn: int
    kind: Literal["model", "tool"]
    name: str
    began: float
    ended: float | None
    failed: int


class RunRow(TypedDict):
    """One `agent.run()`. `answer` and `failure` are content ids, and the counts are filled in, once it has ended."""

    id: str
    session: str
    scope: str
    agent: str
    agent_type: str
    title: str
    status: Status
    began: float
    ended: float | None
    parent: str | None
    parent_step: int | None
    fork_of: str | None
    model: str | None
    smolagents: str
    max_steps: int | None
    steps: int
    errors: int
    input_tokens: int
    output_tokens: int
    answer: int | None
    failure: int | None
    writer: str


# --- what the recorder hands over ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sent:
    """A prompt of `size` messages: the first `keep` parts of prompt `parent`, then `suffix`.

    A part is a list of messages, usually those that one step is shown as; known by its content id, or new.
    """

    parent: int | None
    keep: int
    suffix: Sequence[int | Encoded]
    size: int


@dataclass(frozen=True)
class Piece:
    """A part of a step that can be found by itself: what it is, who said it, and through which tool."""

    role: str
    origin: Origin
    text: str
    tool: str | None = None


@dataclass(frozen=True)
class Change:
    """One thing that happened to a session's list.

    `step` is the id of a step that is stored already; `encoded` and `facts` are given where its content is new;
    `shown` is the list of messages that the step is shown to a model as; `last` says that no step stands behind it.
    """

    act: Act
    run: str
    at: float
    place: int | None = None
    step: int | None = None
    encoded: Encoded | None = None
    facts: Facts | None = None
    shown: Encoded | None = None
    sent: Sent | int | None = None
    last: bool = True
    state: Encoded | None = None


@dataclass(frozen=True)
class Batch:
    """What is saved in one transaction, or not at all."""

    session: SessionRow
    new_session: bool
    runs: Sequence[RunRow] = ()
    results: Sequence[tuple[str, str, Encoded]] = ()
    changes: Sequence[Change] = ()


@dataclass(frozen=True)
class PastCall:
    """A call that an earlier process wrote down."""

    id: int
    turn: int
    kind: str
    name: str
    key: str
    ended: bool
    failed: bool
    arguments: Callable[[], Any] = field(repr=False, compare=False)
    outcome: Callable[[], Any] = field(repr=False, compare=False)

    def again(self) -> Any:
        """Ends as the call ended: returns what it returned, or raises what it raised."""
        outcome = self.outcome()
        if self.failed and isinstance(outcome, BaseException):
            raise outcome
        return outcome


@dataclass(frozen=True)
class PastCode:
    """One piece of code that was run, what it printed, and the calls it made."""

    code: str
    observations: str | None
    failed: bool
    calls: Sequence[PastCall]


@dataclass(frozen=True)
class Saved:
    """The ids a change was given: its step, the messages it is shown as, its prompt and what is new in that."""

    step: int
    shown: int | None = None
    sent: int | None = None
    suffix: tuple[int, ...] = ()


# --- what a user looks at -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure:
    """The exception that ended a run."""

    type: str
    message: str
    traceback: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


@dataclass(frozen=True)
class Event:
    """Something that happened to a list of steps: one was inserted, removed or revised."""

    id: int
    at: datetime
    act: Act
    step: int
    place: int | None


@dataclass(frozen=True)
class Alert:
    """A rule fired: which, why, at which step of which run, and what was done about it."""

    rule: str
    reason: str
    agent: str
    run: str | None
    number: int | None
    at: datetime
    acts: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{self.rule}: {self.reason}"

    def __rich__(self) -> RenderableType:
        from smolmem.record import show

        return show.alert(self)


@dataclass(frozen=True)
class Step:
    """One recorded step, as it stands now."""

    id: int
    run: str
    session: str
    scope: str
    agent: str
    kind: str
    number: int | None
    place: int | None
    at: datetime
    seconds: float | None
    error: str | None
    tools: tuple[str, ...]
    input_tokens: int | None
    output_tokens: int | None
    revision: int
    text: str = field(repr=False)
    _load: Callable[[], Any] = field(repr=False, compare=False)

    def to_smolagents(self) -> Any:
        """The live smolagents object, equal to the one that was recorded."""
        return self._load()

    @property
    def removed(self) -> bool:
        """Whether the agent took this step off its list; the record keeps it."""
        return self.place is None

    def __repr__(self) -> str:
        parts = [f"{self.kind}{'' if self.number is None else f' {self.number}'}", f"run={self.run[:8]!r}"]
        parts += [f"{self.seconds:.1f} s"] if self.seconds is not None else []
        parts += [f"tools={list(self.tools)}"] if self.tools else []
        parts += [f"error={self.error!r}"] if self.error else []
        return f"Step({self.id}, {', '.join(parts)}, {_short(self.text, 60)!r})"

    def __rich__(self) -> RenderableType:
        from smolmem.record import show

        return show.step(self)


@dataclass(frozen=True)
class Run:
    """One recorded `agent.run()`: what was asked, how far it came, how it ended."""

    id: str
    session: str
    scope: str
    agent: str
    agent_type: str
    title: str
    status: Status
    began: datetime
    ended: datetime | None
    parent: str | None
    parent_step: int | None
    fork_of: str | None
    model: str | None
    smolagents: str
    max_steps: int | None
    step_count: int
    error_count: int
    input_tokens: int
    output_tokens: int
    _load_steps: Callable[[], list[Step]] = field(repr=False, compare=False)
    _load_answer: Callable[[], Any] = field(repr=False, compare=False)
    _load_failure: Callable[[], Failure | None] = field(repr=False, compare=False)

    @property
    def steps(self) -> list[Step]:
        """Its steps in order, as the agent's list held them at the end."""
        return [step for step in self._load_steps() if not step.removed]

    @property
    def removed(self) -> list[Step]:
        """Steps that were taken off the list while the agent ran, oldest first."""
        return [step for step in self._load_steps() if step.removed]

    @property
    def task(self) -> str:
        """The whole task, as given."""
        first = next((step for step in self._load_steps() if step.kind == "task"), None)
        return self.title if first is None else first.text

    @property
    def answer(self) -> Any:
        """What `agent.run()` returned; None if it did not."""
        return self._load_answer()

    @property
    def failure(self) -> Failure | None:
        """The exception that ended the run, if one did."""
        return self._load_failure()

    @property
    def seconds(self) -> float | None:
        """How long it took, if it ended."""
        return None if self.ended is None else (self.ended - self.began).total_seconds()

    def __repr__(self) -> str:
        took = "" if self.seconds is None else f", {self.seconds:.1f} s"
        return (
            f"Run({self.id[:8]!r}, {self.status}, {self.agent!r}, {_short(self.title, 50)!r}, "
            f"{self.step_count} steps{took})"
        )

    def __rich__(self) -> RenderableType:
        from smolmem.record import show

        return show.run(self)


def when(seconds: float) -> datetime:
    """A stored time as an aware datetime."""
    return datetime.fromtimestamp(seconds, timezone.utc)


def _short(text: str, length: int) -> str:
    line = " ".join(text[: length * 4].split())
    return line if len(line) <= length else f"{line[: length - 1]}…"
