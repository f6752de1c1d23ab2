"""The values that users see: runs, steps, notes, recollections, alerts.

Values are frozen and load large content when it is read. Values from a `Memory` also have methods that act, such as
`run.fork()` and `step.edit(…)`; `smolmem.operations` implements them.
"""

# mypy: disable-error-code="no-any-return"
# the operations are in a higher layer, so their types are not known here

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, Literal

from smolmem.core.display import Drawable, Result
from smolmem.core.errors import SmolmemError
from smolmem.core.rows import Act, Origin, Status, Trust
from smolmem.core.smolagents_texts import in_short
from smolmem.core.text import counted, duration, one_line


def when(seconds: float) -> datetime:
    """A stored time as an aware datetime."""
    return datetime.fromtimestamp(seconds, timezone.utc)


def is_time(seconds: float) -> bool:
    """Whether a time from elsewhere lies between the years 1000 and 9000: others do not exist in each time zone."""
    return -30_610_224_000 < seconds < 221_845_392_000


class _Detached:
    """The operations of a value that does not come from a `Memory`: each of them raises."""

    def __getattr__(self, name: str) -> Any:
        raise SmolmemError(f"{name}() needs an open Memory: get the value from memory.runs(), run() or steps().")


_DETACHED: Any = _Detached()


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
    """One change to a list of steps: a step was inserted, removed or revised."""

    id: int
    at: datetime
    act: Act
    step: int
    position: int | None


@dataclass(frozen=True)
class Alert(Drawable):
    """A rule that fired: which rule, why, at which step of which run, and what it did."""

    rule: str
    reason: str
    agent: str
    run: str | None
    number: int | None
    at: datetime
    actions: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{self.rule}: {self.reason}"


@dataclass(frozen=True)
class Trim:
    """What a view leaves out of prompts: its trimmable parts up to and including number `last`."""

    view: str
    last: int
    parts: int
    before: int
    after: int
    """How many parts were left out, and the tokens of the prompt before and after."""
    text: str = ""
    """A summary that stands in their place, if one was written."""
    at: float = 0.0


@dataclass(frozen=True)
class Reminder:
    """Messages that remind an agent of earlier runs, and the id of the content that holds them."""

    content: int
    messages: list[Any]


@dataclass(frozen=True)
class Forgotten:
    """Something that recall no longer returns."""

    kind: Literal["note", "step", "run"]
    id: str

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


@dataclass(frozen=True)
class Revision:
    """One version of a step: when it was written, and the step as it was then."""

    at: datetime
    event: int
    _load: Callable[[], Any] = field(repr=False, compare=False)

    def to_smolagents(self) -> Any:
        """The smolagents step."""
        return self._load()


@dataclass(frozen=True)
class Diff(Result):
    """How two runs differ: `common` equal steps, then the remaining steps of each run. False if they are the same."""

    common: int
    left: list[Step]
    right: list[Step]

    def __bool__(self) -> bool:
        return bool(self.left or self.right)


@dataclass(frozen=True)
class Step(Drawable):
    """One recorded step in its latest revision."""

    id: int
    run: str
    session: str
    scope: str
    agent: str
    kind: str
    number: int | None
    position: int | None
    at: datetime
    seconds: float | None
    error: str | None
    tools: tuple[str, ...]
    input_tokens: int | None
    output_tokens: int | None
    revision: int
    text: str = field(repr=False)
    _load: Callable[[], Any] = field(repr=False, compare=False)
    _operations: Any = field(repr=False, compare=False, default=_DETACHED)

    def to_smolagents(self) -> Any:
        """The smolagents step, equal to the one that was recorded."""
        return self._load()

    @property
    def reference(self) -> str:
        """A reference for commands and `memory.step`: `646430df/3`, or `646430df/@29` for a step without a number."""
        return f"{self.run[:8]}/{self.number if self.kind == 'action' and self.number is not None else f'@{self.id}'}"

    @property
    def removed(self) -> bool:
        """Whether the agent took this step off its list; the record keeps it."""
        return self.position is None

    def edit(self, **changes: Any) -> Step:
        """Writes a new revision of this step with changed fields; `history()` keeps the original.

        Raises:
            InvalidArgument: if the step has no such field.
            CannotResume: if a living process works on the run.
        """
        return self._operations.edit(self, changes)

    def history(self) -> list[Revision]:
        """Every revision of this step, the oldest first."""
        return self._operations.step_history(self)

    def __repr__(self) -> str:
        parts = [self.kind] + ([duration(self.seconds)] if self.seconds is not None else [])
        parts += [f"tools={list(self.tools)}"] if self.tools else []
        parts += [f"error={self.error!r}"] if self.error else []
        return f"Step({self.reference!r}, {', '.join(parts)}, {one_line(in_short(self.text), 60)!r})"


@dataclass(frozen=True)
class Run(Drawable):
    """One recorded `agent.run()`: its task, its steps, and how it ended."""

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
    imported: bool
    """Whether the run was loaded from an export: its content is not trusted."""
    tags: tuple[str, ...]
    _load_steps: Callable[[], list[Step]] = field(repr=False, compare=False)
    _count_actions: Callable[[], int] = field(repr=False, compare=False)
    _load_answer: Callable[[], Any] = field(repr=False, compare=False)
    _load_failure: Callable[[], Failure | None] = field(repr=False, compare=False)
    _operations: Any = field(repr=False, compare=False, default=_DETACHED)

    @property
    def steps(self) -> list[Step]:
        """The steps in the order of the agent's list at the end of the run."""
        return [step for step in self._load_steps() if not step.removed]

    @property
    def removed(self) -> list[Step]:
        """Steps that were taken off the list during the run, the oldest first."""
        return [step for step in self._load_steps() if step.removed]

    @property
    def task(self) -> str:
        """The whole task."""
        first = next((step for step in self._load_steps() if step.kind == "task"), None)
        return self.title if first is None else first.text

    @property
    def answer(self) -> Any:
        """What `agent.run()` returned; None if it did not return."""
        return self._load_answer()

    @property
    def failure(self) -> Failure | None:
        """The exception that ended the run, if one did."""
        return self._load_failure()

    @property
    def label(self) -> str:
        """The status in words: a fork that was not resumed yet is `forked`, not `interrupted`."""
        untouched = self.fork_of is not None and self.status == "interrupted" and not self.step_count
        return "forked" if untouched and self.began == self.ended else self.status

    @cached_property
    def action_count(self) -> int:
        """How many actions the run has; unlike `step_count`, a fork includes the actions that it shares."""
        return self.step_count if self.fork_of is None else self._count_actions()

    @property
    def seconds(self) -> float | None:
        """How long the run took, if it ended."""
        return None if self.ended is None else (self.ended - self.began).total_seconds()

    # --- acting ----------------------------------------------------------------------------------------------------

    def replay(self, *, detailed: bool = False, prices: tuple[float, float] | None = None, console: Any = None) -> None:
        """Prints the whole run in the terminal; nothing is executed.

        Args:
            detailed: also print what the model was sent for each step.
            prices: the prices of a million input and output tokens, to print what each step cost.
            console: the rich console to print to.
        """
        self._operations.replay(self, detailed=detailed, prices=prices, console=console)

    def resume(
        self,
        agent: Any,
        *,
        unknown: Literal["raise", "rerun", "skip"] = "raise",
        trust: bool = False,
        placeholders: bool = False,
    ) -> Any:
        """Continues this run with an agent, and returns the answer; see `Memory.resume`."""
        return self._operations.resume(self, agent, unknown, trust=trust, placeholders=placeholders)

    def restore(self, agent: Any, *, step: int | None = None, trust: bool = False) -> Any:
        """Puts this run's steps, state and variables into an agent, up to step number `step`.

        The agent may be of another kind or name; continue with `agent.run(task, reset=False)`. An imported run is
        restored only with `trust=True`: its recorded code is run.

        Returns:
            A `Restored`, which names the variables that could not be restored.
        """
        return self._operations.restore(self, agent, step, trust=trust)

    def rerun(self, agent: Any, *, trust: bool = False) -> Any:
        """Lets an agent, with another model or prompt, work on the task again with the recorded tool results.

        No tool is called. The result is a `Rerun`: true if every step was the same, else it names the first step
        that differs, so that `assert run.rerun(agent)` is a test.
        """
        return self._operations.rerun(self, agent, trust=trust)

    def fork(self, *, step: int | None = None) -> Run:
        """A new run that shares this run's past up to step number `step`; `fork.resume(agent)` continues it.

        Raises:
            NotFound: if there is no such step.
            CannotResume: if the run was interrupted inside a step and `step` is not given.
        """
        return self._operations.fork(self, step)

    def tag(self, *tags: str) -> Run:
        """Adds tags to this run, to find it by: `memory.runs(tag="…")`. Returns the run with its new tags."""
        tagged: Run = self._operations.tag(self, add=tags)
        return tagged

    def untag(self, *tags: str) -> Run:
        """Removes tags from this run. Returns the run with its new tags."""
        tagged: Run = self._operations.tag(self, remove=tags)
        return tagged

    def diff(self, other: Run | str) -> Diff:
        """How this run and another differ."""
        return self._operations.diff(self, other)

    def to_messages(self, *, tokens: int | None = None) -> Any:
        """The run as smolagents messages, for another agent to read; `str()` of the result is a transcript.

        Args:
            tokens: the budget; the task and the newest steps are kept.
        """
        return self._operations.to_messages(self, tokens)

    def distill(self, model: Any) -> list[Note]:
        """Lets a model write notes about this run: facts, lessons, procedures, each with its source steps.

        Raises:
            InvalidArgument: if the model does not answer.
        """
        return self._operations.distill(self, model)

    def events(self) -> list[Event]:
        """Every change to the agent's list during this run, in order."""
        return self._operations.events(self)

    def as_of(self, event: int) -> list[Any]:
        """The agent's list after an event, as smolagents steps."""
        return self._operations.as_of(self, event)

    def __repr__(self) -> str:
        took = "" if self.seconds is None else f", {duration(self.seconds)}"
        return (
            f"Run({self.id[:8]!r}, {self.label}, {self.agent!r}, {one_line(self.title, 50)!r}, "
            f"{counted(self.step_count, 'step')}{' of its own' if self.fork_of else ''}{took})"
        )


@dataclass(frozen=True)
class Note(Drawable):
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
    """The steps (numbers) and notes (ids) that the note was made from."""
    status: Literal["current", "superseded", "forgotten", "expired"] = "current"
    stale: bool = False
    """Whether one of the sources is no longer current."""
    _operations: Any = field(repr=False, compare=False, default=_DETACHED)

    def history(self) -> list[Note]:
        """This note, the notes it superseded and those that superseded it, the oldest first."""
        return self._operations.note_history(self)

    def __repr__(self) -> str:
        rest = "" if self.status == "current" else f", {self.status}"
        return f"Note({self.id[:8]!r}, {self.kind}, {self.text[:60]!r}{rest}{', stale' if self.stale else ''})"


@dataclass(frozen=True)
class Excerpt:
    """A passage of a step or note, and where the words of the question stand in it."""

    kind: str
    text: str
    origin: Origin
    trust: Trust
    tool: str | None = None
    marks: tuple[tuple[int, int], ...] = ()
    """Start and end of each occurrence."""


@dataclass(frozen=True)
class Recollection(Drawable):
    """A step or note that recall returned: its most fitting passage, and where it comes from."""

    text: str
    score: float
    """From 0 to 1, and comparable between questions: unrelated questions score close to 0."""
    signals: Mapping[str, float]
    """The components of the score: lexical, semantic, neighbours, session, time, recency, reranker."""
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
    passage: int = field(repr=False)
    document: int = field(repr=False)
    """The first passage of the same step or note."""
    excerpts: tuple[Excerpt, ...] = field(repr=False, default=())
    """The most fitting passages of the step or note, the best first."""
    matched: tuple[str, ...] = ()
    """The words of the question that these passages contain."""
    copies: int = 1
    """How many steps and notes say the same; this is the best of them."""
    stale: bool = False
    _neighbours: Callable[[int], list[Recollection]] = field(repr=False, compare=False, default=lambda count: [])

    def neighbours(self, count: int = 1) -> list[Recollection]:
        """The steps just before and after this one, in order: up to `count` on each side."""
        return self._neighbours(count)

    @property
    def why(self) -> str:
        """Why it was returned, in words."""
        words = f"has {', '.join(self.matched)}" if self.matched else "has no word of the question"
        told = {
            "semantic": "says something similar",
            "neighbours": "stands beside steps that fit",
            "session": "is in a session that fits",
            "time": "is from the time that was asked for",
            "reranker": "was rated by the reranker",
        }
        signals = sorted(self.signals.items(), key=lambda signal: -signal[1])
        parts = [f"{told[name]} (+{value:.2f})" for name, value in signals if name in told and value >= 0.05]
        lexical = self.signals.get("lexical", 0.0)
        return "; ".join([f"{words} (+{lexical:.2f})" if self.matched else words, *parts])

    @property
    def source(self) -> str:
        """Where the passage comes from, in words; `memory.step` and `smolmem show` take the reference of the step."""
        return self.cited(f"note {self.note[:8]}" if self.note else f"step {(self.run or '')[:8]}/@{self.step}")

    def cited(self, place: str) -> str:
        """The source with other words for the step or note."""
        through = f" of {self.tool}" if self.tool else ""
        return f"{self.kind}{through} · {place} · {self.at:%Y-%m-%d %H:%M} · from {self.origin} · trust {self.trust}"

    def __repr__(self) -> str:
        return f"Recollection({self.score:.2f}, {self.source}, {one_line(self.text, 80)!r})"
