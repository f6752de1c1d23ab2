"""The rows of the tables, and the batches that the recorder passes to the store.

The recorder turns an agent's work into a `Batch` of `Change`s. The store saves a batch in one transaction and returns
the new ids (`Saved`). A `StoredSession` is read to resume a killed run: all that the run needs, as plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from smolmem.core.encoding.instances import NotRestored
from smolmem.core.encoding.mutations import Outcome, applied, can_be_applied

if TYPE_CHECKING:  # the codec imports smolagents, which takes a second
    from smolmem.core.encoding.codec import Encoded
    from smolmem.core.encoding.step_facts import Facts

Act = Literal["insert", "remove", "revise"]
Origin = Literal["user", "model", "tool", "web", "import", "agent"]
ORIGINS: tuple[Origin, ...] = ("user", "model", "tool", "web", "import", "agent")
"""Who said something. The sources of a text lower its trust and never change its origin."""
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
Status = Literal["running", "finished", "failed", "interrupted", "max_steps"]
STATUSES: tuple[Status, ...] = ("running", "finished", "failed", "interrupted", "max_steps")
ANSWERED: tuple[Status, ...] = ("finished", "max_steps")
"""The statuses of runs that returned an answer."""
STEP_KINDS = ("task", "planning", "action", "injected", "system_prompt", "final_answer", "other")
"""The kinds of steps that are stored and can be filtered by."""


def trust_in(origin: Origin) -> Trust:
    """How far an origin is trusted: anyone can write a web page."""
    return _TRUSTED[origin]


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
    """A model's answer or a tool's call; `ended` is None while it is unknown whether the call happened."""

    run: str
    turn: int
    kind: Literal["model", "tool"]
    name: str
    began: float
    ended: float | None
    failed: int
    web: int | None
    """Whether the tool said that it reads the web."""


class RunResult(TypedDict):
    """The columns of a run that are set when it ends; `answer` and `failure` are content ids."""

    steps: int
    errors: int
    input_tokens: int
    output_tokens: int
    answer: int | None
    failure: int | None


NO_RESULT = RunResult(steps=0, errors=0, input_tokens=0, output_tokens=0, answer=None, failure=None)


class RunRow(RunResult):
    """One `agent.run()`."""

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
    writer: str
    tags: str


class NoteRow(TypedDict):
    """A note as it is stored; `tags` and `sources` are JSON lists."""

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


# --- what the recorder writes -------------------------------------------------------------------------------------


class SharedPrompt(NamedTuple):
    """A prompt of `size` messages: the first `keep` parts of the prompt `parent`, then `suffix`.

    A part is a list of messages, usually those of one step: the id of stored content, or new content.
    """

    parent: int | None
    keep: int
    suffix: Sequence[int | Encoded]
    size: int


class Change(NamedTuple):
    """One change to a session's list.

    `step` is the id of a step that is stored already. `encoded` and `facts` are given where the content is new.
    `rendered` holds the messages that the step is shown to a model as. `last` says that no step follows it. `sources`
    are the steps and notes that the text of an injected step was made from.
    """

    act: Act
    run: str
    at: float
    position: int | None = None
    step: int | None = None
    encoded: Encoded | None = None
    facts: Facts | None = None
    rendered: Encoded | None = None
    prompt: SharedPrompt | int | None = None
    last: bool = True
    variables: Encoded | None = None
    sources: tuple[int | str, ...] = ()


class Batch(NamedTuple):
    """What is saved in one transaction, or not at all.

    `shared_events` is how many events a new session shares with the session that it is a fork of, where that is known.
    """

    session: SessionRow
    new_session: bool
    runs: Sequence[RunRow] = ()
    results: Sequence[tuple[str, str, Encoded]] = ()
    changes: Sequence[Change] = ()
    shared_events: int = 0


class Saved(NamedTuple):
    """The ids that a change was given: its step, its rendered messages, its prompt and the new parts of that prompt."""

    step: int
    rendered: int | None = None
    prompt: int | None = None
    suffix: tuple[int, ...] = ()


class Passage(NamedTuple):
    """A searchable piece of a step or note: its role, who said it, and through which tool."""

    role: str
    origin: Origin
    text: str
    tool: str | None = None
    exposed: bool = False
    """Whether it may have been made from text of low trust."""

    @property
    def trust(self) -> Trust:
        """The trust of its origin, or low if it was made from text of low trust; a user's text keeps its trust."""
        return "low" if self.exposed and self.origin != "user" else trust_in(self.origin)


# --- what a resumed run reads -------------------------------------------------------------------------------------


class RecordedCall(NamedTuple):
    """A model or tool call that an earlier process recorded."""

    id: int
    turn: int
    kind: str
    name: str
    ended: bool
    failed: bool
    key: Callable[[], str]
    """Reads the hash of the arguments."""
    arguments: Callable[[], Any]
    outcome: Callable[..., Any]
    """Reads the outcome; takes `classes` and `exact` as `codec.decode` does."""
    contents: tuple[int | None, ...] = ()
    """The contents of its arguments and its outcome."""

    def is_of(self, key: str, encode: Callable[[Any], Encoded]) -> bool:
        """Whether `key` is the hash of these arguments; processes may redact them differently."""
        return key == self.key() or key == encode(self.arguments()).key

    @property
    def result(self) -> Any:
        """What the call returned or raised, perhaps with placeholders."""
        outcome = self.outcome()
        return outcome.result if isinstance(outcome, Outcome) else outcome

    def loaded(self, classes: Mapping[str, type]) -> LoadedOutcome:
        """The outcome, read from the store.

        Raises:
            NotRestored: if the outcome could not be stored as it was.
        """
        outcome = self.outcome(classes=classes, exact=not self.failed)
        if not can_be_applied(outcome):
            raise NotRestored("the arguments that it changed")
        return LoadedOutcome(outcome, self.failed)


class LoadedOutcome(NamedTuple):
    """The outcome of a recorded call, ready to be played back."""

    outcome: Any
    failed: bool

    def replay(self, values: Iterable[Any]) -> Any:
        """Returns what the call returned, or raises what it raised; changes its arguments as it did.

        Raises:
            NotRestored: if these arguments cannot be changed as the recorded ones were.
        """
        outcome = self.outcome
        if isinstance(outcome, Outcome):
            outcome = applied(outcome, values)
        if self.failed and isinstance(outcome, BaseException):
            raise outcome
        return outcome


class RecordedCode(NamedTuple):
    """One piece of code that was run, what it printed, and the calls it made."""

    code: str
    observations: str | None
    failed: bool
    calls: Sequence[RecordedCall]


class StoredEntry(NamedTuple):
    """A step as it is stored: the smolagents step, its ids, and the hash of its record.

    `lacking` is the content of the step, if secrets may have been taken out of it.
    """

    step: Any
    id: int
    run: str
    key: str
    prompt: int | None
    rendered: int | None
    lacking: int | None = None


class StoredSession(NamedTuple):
    """The state of a session: its list, its code and variables, and how far one of its runs came.

    The run has had `turns` steps. Calls from turn `done` on belong to a step that is not done.
    """

    row: SessionRow
    entries: Sequence[StoredEntry]
    system: StoredEntry | None
    events: int
    turns: int
    done: int
    code: Sequence[RecordedCode]
    variables: Callable[..., dict[str, Any] | None]
    """Reads the snapshot of the variables; takes `classes` as `codec.decode` does."""
    calls: Sequence[RecordedCall] = ()
    """The model and tool calls of the run."""
    snapshot: int | None = None
    """The content of the variables."""
