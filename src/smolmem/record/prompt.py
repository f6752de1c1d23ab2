"""What a model is shown of an agent's memory: steps as parts of a prompt, passed through views.

A view leaves parts out, shortens them or puts a note in their place. It changes what is sent and nothing else: the list
of steps and the record keep everything. What a view has cut stays cut until it cuts again, in this process or the
next: a prompt that begins as the one before is quick, because servers keep what they have read. So cuts are written
down, each before the prompt that it shortens is sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from smolagents.memory import SystemPromptStep, TaskStep
from smolagents.models import ChatMessage

from smolmem.errors import BadValue, CannotFit
from smolmem.record import codec
from smolmem.record.codec import Encoded
from smolmem.record.tokens import REPORTS, Tokens, size

log = logging.getLogger("smolmem")

Role = Literal["system", "task", "step", "reminder", "note"]


@dataclass(frozen=True)
class Part:
    """Messages of a prompt that belong together: what one step is shown as, or a note in the place of several."""

    messages: list[Any]
    role: Role = "note"
    step: Any = None
    id: int | None = None
    """A number that grows along the list and stays with the step; that of its record, if it is recorded."""
    recorded: bool = False
    stored: int | None = None
    """The content that holds exactly these messages."""

    def showing(self, messages: list[Any]) -> Part:
        """The same part, shown otherwise."""
        return replace(self, messages=messages, stored=None)


@dataclass(frozen=True)
class Cut:
    """What a view has left out: whatever it may leave out of the parts up to and with number `last`."""

    view: str
    last: int
    parts: int
    before: int
    after: int
    """How many parts that were, and the tokens of the prompt before and after."""
    text: str = ""
    """What is shown in their place, if that was written for it."""
    at: float = field(default_factory=time.time)


class CutSink(Protocol):
    """Where cuts are written down."""

    def cuts(self, session: str) -> Sequence[Cut]:
        """The cuts of a session, in order."""
        ...

    def add_cut(self, session: str, cut: Cut) -> None:
        """Writes one down."""
        ...


View = Any
"""A function of parts and a `Lens`, or an object that has one as `show`."""
OURS = "smolmem.views"
"""Where the views come from that change no message in place."""


class Lens:
    """What one agent's model is shown, through a list of views."""

    def __init__(self, agent: Any, sink: CutSink | None = None) -> None:
        self.agent = agent
        self.tokens = Tokens()
        self.dry = False
        """Whether this is only a try: nothing is to be asked or written."""
        self.sent: list[Any] = []
        """The prompt that was made last."""
        self._views: dict[str, View] = {}
        self._sink = sink
        self._session: str | None = None
        self._cuts: dict[str, Cut] = {}
        self._here = ""
        self._named: set[tuple[str, str]] = set()
        self._learned: Any = None
        self._encoded: dict[tuple[int, str], tuple[list[Any], Encoded]] = {}

    @property
    def views(self) -> list[View]:
        """The views, in order."""
        return list(self._views.values())

    @views.setter
    def views(self, views: Sequence[View]) -> None:
        named: dict[str, View] = {}
        for view in _list(views):
            if isinstance(view, type) or not callable(getattr(view, "show", view)):
                raise BadValue(f"{view!r} is no view: it is a function of parts and a lens, or has one as `show`.")
            word = getattr(view, "__name__", type(view).__name__)
            same = sum(name.partition(" ")[0] == word for name in named)
            named[f"{word} {same + 1}" if same else word] = view
        self._views = named

    @property
    def hides(self) -> bool:
        """Whether the agent may not see all that it did."""
        return bool(self._views)

    def trial(self) -> Lens:
        """A lens that shows what this one would, and leaves no trace."""
        other = Lens(self.agent)
        other._views, other._session, other._cuts = self._views, self._session, dict(self._cuts)
        other.tokens, other._learned, other.sent, other._named = (
            self.tokens.copy(),
            self._learned,
            self.sent,
            self._named,
        )
        other._sink, other.dry = self._sink, True
        return other

    # --- showing -----------------------------------------------------------------------------------------------------

    def through(self, parts: list[Part], session: str | None = None) -> list[Part]:
        """What is shown of parts."""
        return self.each(parts, session)[-1][1]

    def each(self, parts: list[Part], session: str | None = None) -> list[tuple[str, list[Part]]]:
        """What each view leaves, in order; first everything."""
        if session != self._session:
            self._session, self._encoded, self._cuts = session, {}, self._earlier(session)
        self._learn([part.step for part in parts if part.role == "step"])
        shown = [("everything", parts)]
        for name in self._views:
            shown.append((name, self._show(name, shown[-1][1])))
        if not self.dry:
            self.sent = flat(shown[-1][1])
        return shown

    def _earlier(self, session: str | None) -> dict[str, Cut]:
        if self._sink is None or session is None:
            return {}
        try:
            return {cut.view: cut for cut in self._sink.cuts(session)}
        except Exception as error:  # they are made anew
            log.warning("smolmem: what views have cut before cannot be read: %s", error)
            return {}

    def _show(self, name: str, parts: list[Part]) -> list[Part]:
        view, self._here = self._views[name], name
        show: Callable[..., Any] = getattr(view, "show", None) or view
        try:
            shown = list(show(list(parts), self))
            if not shown or not all(isinstance(part, Part) for part in shown):
                raise TypeError("it must return parts, and not none")
            if not all(isinstance(message, ChatMessage) for message in flat(shown)):
                raise TypeError("a part's messages must be ChatMessages")
            size(flat(shown))
        except CannotFit:
            raise
        except Exception as error:
            self.complain("raised", f"the view {name} is left out of a prompt: {type(error).__name__}: {error}")
            return parts
        if type(view).__module__ != OURS:  # it may have changed messages in place
            shown = [replace(part, stored=None) for part in shown]
        return shown

    def complain(self, about: str, words: str) -> None:
        """Says what is wrong with the view that is at work, once for each kind of trouble."""
        if (self._here, about) not in self._named:
            self._named.add((self._here, about))
            log.warning("smolmem: %s", words)

    # --- what views ask for ------------------------------------------------------------------------------------------

    def count(self, parts: Sequence[Part]) -> int:
        """About so many tokens are in a prompt of these parts."""
        return self.tokens.count(size(flat(parts)))

    @property
    def cut(self) -> Cut | None:
        """The latest cut of the view that asks."""
        return self._cuts.get(self._here)

    def is_cut(self, part: Part) -> bool:
        """Whether the view that asks has cut a part already, if it may."""
        return self.cut is not None and part.id is not None and part.id <= self.cut.last

    def cut_here(
        self, before: Sequence[Part], after: Sequence[Part], gone: Sequence[Part], text: str = "", many: int = 0
    ) -> None:
        """Keeps what the view that asks has cut just now: `many` parts in all, or as many as are gone."""
        last = max((part for part in gone if part.id is not None), key=lambda part: part.id or 0, default=None)
        if last is None or last.id is None:
            return
        cut = Cut(self._here, last.id, many or len(gone), self.count(before), self.count(after), text)
        self._cuts[self._here] = cut
        if self._sink is not None and self._session is not None and not self.dry and last.recorded:
            try:
                self._sink.add_cut(self._session, cut)
            except Exception as error:  # it holds in this process
                self.complain("unwritten", f"a cut of the view {self._here} could not be written down: {error}")

    @property
    def recalls(self) -> bool:
        """Whether the agent itself can bring back what is cut."""
        return "recall_memory" in getattr(self.agent, "tools", ())

    # --- around it ---------------------------------------------------------------------------------------------------

    def outgoing(self, messages: list[Any]) -> list[Any]:
        """What is really sent: some prompts hold texts that are not rendered from the memory, a plan's task for one."""
        for name, view in self._views.items():
            if callable(getattr(view, "outgoing", None)):
                self._here = name
                messages = view.outgoing(messages, self)
        return messages

    def encoded(self, part: Part) -> int | Encoded:
        """A part as it is stored; what was shown before need not be encoded again."""
        if part.stored is not None:
            return part.stored
        if part.id is None:
            return codec.encode(part.messages)
        before = self._encoded.get((part.id, part.role))
        if before is None or before[0] != part.messages:
            before = self._encoded[part.id, part.role] = (part.messages, codec.encode(part.messages))
        return before[1]

    def _learn(self, steps: Sequence[Any]) -> None:
        """The newest steps tell what their prompts cost."""
        if not steps or steps[-1] is self._learned:
            return
        for step in steps[-REPORTS:] if self._learned is None else steps[-1:]:
            used = getattr(getattr(step, "token_usage", None), "input_tokens", None)
            sent = getattr(step, codec.SENT, None)
            if isinstance(used, int) and sent:
                self.tokens.learn(size(self.sent if len(self.sent) == len(sent) else sent), used)
        self._learned = steps[-1]


def _list(views: Any) -> list[Any]:
    if isinstance(views, (str, bytes)) or not isinstance(views, Sequence):
        raise BadValue(f"views is a list of views, not {views!r}.")
    return list(views)


def flat(parts: Sequence[Part]) -> list[Any]:
    """The messages of parts."""
    return [message for part in parts for message in part.messages]


@dataclass(frozen=True)
class Shown:
    """A step that is on the list, and what is known of how it is shown."""

    step: Any
    id: int | None = None
    recorded: bool = False
    stored: int | None = None
    size: int | None = None


def parts_of(messages: list[Any], shown: Sequence[Shown], *, summary: bool) -> list[Part]:
    """A rendered prompt, taken apart into what each step is shown as.

    An agent class of a user's own may render otherwise: then each message is a part by itself.
    """
    parts, at = [], 0
    for one in shown:
        known = one.size is not None and not summary
        own = one.size if known else len(one.step.to_messages(summary_mode=summary))
        taken = messages[at : at + (own or 0)]
        at += own or 0
        parts.append(Part(taken, _role(one.step), one.step, one.id, one.recorded, one.stored if known else None))
    if at != len(messages):
        return [Part([message], _loose(message), None, place) for place, message in enumerate(messages)]
    return [part for part in parts if part.messages]


def _role(step: Any) -> Role:
    return "system" if isinstance(step, SystemPromptStep) else "task" if isinstance(step, TaskStep) else "step"


def _loose(message: Any) -> Role:
    role = str(getattr(message.role, "value", message.role))
    first = message.content[0] if isinstance(message.content, list) and message.content else {"text": message.content}
    if role == "user" and str(first.get("text", "")).startswith("New task:"):
        return "task"
    return "system" if role == "system" else "step"


# --- without a store -------------------------------------------------------------------------------------------------


def lens_of(agent: Any) -> Lens:
    """The lens of an agent; one is put in, if it has none."""
    there = getattr(agent.write_memory_to_messages, "lens", None)
    return there if isinstance(there, Lens) else _put_in(agent, Lens(agent))


def taken_over(render: Callable[..., list[Any]]) -> tuple[list[View], Callable[..., list[Any]]]:
    """The views that were put before an agent's memory without a store, and how it is rendered without them."""
    lens, original = getattr(render, "lens", None), getattr(render, "original", render)
    return (lens.views if isinstance(lens, Lens) else []), original


class _Numbers:
    """Numbers the steps of a list in the order they come, for as long as it is the same list."""

    def __init__(self) -> None:
        self.lists = 0
        self._steps: dict[int, tuple[Any, int]] = {}  # by id(), which stays theirs while they are held here

    def of(self, steps: Sequence[Any]) -> list[Shown]:
        """The steps of a list, each with its number."""
        if not any(id(step) in self._steps for step in steps):
            self._steps, self.lists = {}, self.lists + 1
        for step in steps:
            self._steps.setdefault(id(step), (step, len(self._steps)))
        return [Shown(step, self._steps[id(step)][1]) for step in steps]


def _put_in(agent: Any, lens: Lens) -> Lens:
    original: Callable[..., list[Any]] = agent.write_memory_to_messages
    numbers = _Numbers()

    def render(summary_mode: bool = False) -> list[Any]:
        """What the model is shown of the memory."""
        messages = original(summary_mode=summary_mode)
        memory = agent.memory
        shown = [Shown(memory.system_prompt), *numbers.of(memory.steps)]
        return flat(lens.through(parts_of(messages, shown, summary=summary_mode), str(numbers.lists)))

    vars(render).update(lens=lens, original=original)
    agent.write_memory_to_messages = render
    return lens
