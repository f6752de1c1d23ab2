"""What a model is shown of an agent's memory: steps as parts of a prompt, passed through views.

A view leaves parts out, shortens them or puts a note in their place. It changes what is sent and nothing else: the list
of steps and the record keep everything. What a view has cut stays cut until it cuts again, in this process or the
next: a prompt that begins as the one before is quick, because servers keep what they have read. So cuts are written
down, each before the prompt that it shortens is sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from smolagents.memory import SystemPromptStep, TaskStep

from smolmem.errors import BadValue
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
    """Under which the step is recorded."""
    stored: int | None = None
    """The content that holds exactly these messages."""

    @property
    def key(self) -> Hashable:
        """What the part is known by from one prompt to the next."""
        return self.id if self.id is not None else ("live", id(self.step))

    def showing(self, messages: list[Any]) -> Part:
        """The same part, shown otherwise."""
        return replace(self, messages=messages, stored=None)


@dataclass(frozen=True)
class Cut:
    """What a view has left out: everything it may leave out, up to and with the part known as `last`."""

    view: str
    last: Hashable
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


class Lens:
    """What one agent's model is shown, through a list of views."""

    def __init__(self, agent: Any, sink: CutSink | None = None) -> None:
        self.agent = agent
        self.tokens = Tokens()
        self.sent: list[Any] = []
        """The prompt that was made last."""
        self._views: dict[str, View] = {}
        self._sink = sink
        self._session: str | None = None
        self._cuts: dict[str, Cut] = {}
        self._here = ""
        self._dry = False
        self._named: set[str] = set()
        self._learned: Any = None
        self._encoded: dict[Hashable, tuple[list[Any], Encoded]] = {}

    @property
    def views(self) -> list[View]:
        """The views, in order."""
        return list(self._views.values())

    @views.setter
    def views(self, views: Sequence[View]) -> None:
        self._views = {}
        for view in views:
            if not callable(getattr(view, "show", view)):
                raise BadValue(f"{view!r} is no view: it is a function of parts and a lens, or has one as `show`.")
            word = getattr(view, "__name__", type(view).__name__)
            same = sum(name.partition(" ")[0] == word for name in self._views)
            self._views[f"{word} {same + 1}" if same else word] = view

    def through(self, parts: list[Part], session: str | None = None) -> list[Part]:
        """What is shown of parts."""
        if session != self._session:
            self._session, self._encoded, self._cuts = session, {}, self._earlier(session)
        self._learn([part.step for part in parts if part.role == "step"])
        for name in self._views:
            parts = self._show(name, parts)
        if not self._dry:
            self.sent = flat(parts)
        return parts

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
        try:
            show: Callable[..., list[Part]] = getattr(view, "show", None) or view
            shown = show(parts, self)
            flat(shown)
            return list(shown)
        except BadValue:
            raise
        except Exception as error:
            self.complain(f"the view {name} is left out of a prompt: {type(error).__name__}: {error}")
            return parts

    def complain(self, about: str) -> None:
        """Says what is wrong with the view that is at work, once."""
        if self._here not in self._named:
            self._named.add(self._here)
            log.warning("smolmem: %s", about)

    # --- what views ask for ------------------------------------------------------------------------------------------

    def count(self, parts: Sequence[Part]) -> int:
        """About so many tokens are in a prompt of these parts."""
        return self.tokens.count(*(size(part.messages) for part in parts))

    @property
    def cut(self) -> Cut | None:
        """The latest cut of the view that asks."""
        return self._cuts.get(self._here)

    def cut_here(self, before: Sequence[Part], after: Sequence[Part], gone: Sequence[Part], text: str = "") -> None:
        """Keeps what the view that asks has cut just now."""
        last = next(part for part in reversed(gone) if part.role in ("step", "task"))
        cut = Cut(self._here, last.key, len(gone), self.count(before), self.count(after), text)
        self._cuts[self._here] = cut
        if self._sink is not None and self._session is not None and not self._dry and last.id is not None:
            try:
                self._sink.add_cut(self._session, cut)
            except Exception as error:  # it holds in this process
                self.complain(f"a cut of the view {self._here} could not be written down: {error}")

    @property
    def dry(self) -> bool:
        """Whether this is only a try: nothing is to be asked or written."""
        return self._dry

    @property
    def recalls(self) -> bool:
        """Whether the agent itself can bring back what is cut."""
        return "recall_memory" in getattr(self.agent, "tools", ())

    # --- around it -------------------------------------------------------------------------------------------------

    @property
    def hides(self) -> bool:
        """Whether the agent may not see all that it did."""
        return bool(self._views)

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Leaves no trace of what is shown meanwhile."""
        kept, self._dry = dict(self._cuts), True
        try:
            yield
        finally:
            self._cuts, self._dry = kept, False

    def each(self, parts: list[Part], session: str | None) -> Iterator[tuple[str, list[Part]]]:
        """What each view leaves, in order; to be asked for while trying."""
        self.through(parts, session)
        for name in self._views:
            parts = self._show(name, parts)
            yield name, parts

    def encoded(self, part: Part) -> int | Encoded:
        """A part as it is stored; what was shown before need not be encoded again."""
        if part.stored is not None:
            return part.stored
        before = self._encoded.get(part.key)
        if before is None or before[0] != part.messages:
            before = self._encoded[part.key] = (part.messages, codec.encode(part.messages))
        return before[1]

    def _learn(self, steps: Sequence[Any]) -> None:
        """The newest steps tell what their prompts cost."""
        if not steps or steps[-1] is self._learned or self._dry:
            return
        if self._learned is None:
            for step in steps[-REPORTS:]:
                self._report(step, getattr(step, codec.SENT, None))
        else:
            self._report(steps[-1], self.sent)
        self._learned = steps[-1]

    def _report(self, step: Any, sent: Sequence[Any] | None) -> None:
        used = getattr(getattr(step, "token_usage", None), "input_tokens", None)
        if isinstance(used, int) and sent:
            self.tokens.learn(size(sent), used)


def flat(parts: Sequence[Part]) -> list[Any]:
    """The messages of parts."""
    return [message for part in parts for message in part.messages]


@dataclass(frozen=True)
class Shown:
    """A step that is on the list, and what is known of how it is shown."""

    step: Any
    id: int | None = None
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
        parts.append(Part(taken, _role(one.step), one.step, one.id, one.stored if known else None))
    if at != len(messages):
        return [Part([message], _loose(message)) for message in messages]
    return [part for part in parts if part.messages]


def _role(step: Any) -> Role:
    return "system" if isinstance(step, SystemPromptStep) else "task" if isinstance(step, TaskStep) else "step"


def _loose(message: Any) -> Role:
    if str(getattr(message.role, "value", message.role)) == "system":
        return "system"
    return "task" if "New task:" in str(message.content)[:60] else "step"


# --- without a store -------------------------------------------------------------------------------------------------


def lens_of(agent: Any) -> Lens:
    """The lens of an agent; one is put in, if it has none."""
    there = getattr(agent.write_memory_to_messages, "lens", None)
    return there if isinstance(there, Lens) else _put_in(agent, Lens(agent))


def taken_over(render: Callable[..., list[Any]]) -> tuple[list[View], Callable[..., list[Any]]]:
    """The views that were put before an agent's memory without a store, and how it is rendered without them."""
    lens, original = getattr(render, "lens", None), getattr(render, "original", render)
    return (lens.views if isinstance(lens, Lens) else []), original


def _put_in(agent: Any, lens: Lens) -> Lens:
    original: Callable[..., list[Any]] = agent.write_memory_to_messages

    def render(summary_mode: bool = False) -> list[Any]:
        """What the model is shown of the memory."""
        messages = original(summary_mode=summary_mode)
        memory = agent.memory
        shown = [Shown(step) for step in (memory.system_prompt, *memory.steps)]
        return flat(lens.through(parts_of(messages, shown, summary=summary_mode)))

    vars(render).update(lens=lens, original=original)
    agent.write_memory_to_messages = render
    return lens
