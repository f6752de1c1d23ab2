"""The views of one agent, applied in order to each prompt.

A view leaves parts out, shortens them or puts a note in their place. It changes only the prompt: the list of
steps and the record keep everything. A trim applies until the view trims again, in this process or the next: servers
cache prompts, so a prompt that begins like the previous one is fast. Therefore each trim is recorded before the prompt
that it shortens is sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any

from smolagents.models import ChatMessage

from smolmem.agents.ledger import Fenced
from smolmem.agents.prompting.prompt_parts import Part, messages_of
from smolmem.agents.prompting.step_messages import StepMessages
from smolmem.core.encoding import codec
from smolmem.core.encoding.codec import Encoded
from smolmem.core.errors import BudgetTooSmall, InvalidArgument, TakenOver
from smolmem.core.tokens import REPORTS, Tokens, size
from smolmem.core.values import Trim
from smolmem.store.side_tables import Trims

log = logging.getLogger("smolmem")

View = Any
"""A function of parts and a `ViewChain`, or an object that has one as `show`."""


class ViewChain:
    """The views of one agent; a view gets it as its second argument, to count tokens and to trim."""

    def __init__(self, agent: Any, trims: Trims | None = None) -> None:
        self.agent = agent
        self.tokens = Tokens()
        self.dry_run = False
        """Whether this is only a preview: views must not ask a model, and nothing is recorded."""
        self.sent: list[Any] = []
        """The messages of the last prompt."""
        self._views: dict[str, View] = {}
        self._trims = trims
        self._session: str | None = None
        self._latest: dict[str, Trim] = {}
        self._view = ""
        self._warned: set[tuple[str, str]] = set()
        self._learned: Any = None
        self._encoded: dict[tuple[int, str], tuple[StepMessages, Encoded]] = {}

    @property
    def views(self) -> list[View]:
        """The views, in order."""
        return list(self._views.values())

    @views.setter
    def views(self, views: Sequence[View]) -> None:
        named: dict[str, View] = {}
        for view in _listed(views):
            if isinstance(view, type) or not callable(getattr(view, "show", view)):
                raise InvalidArgument(
                    f"{view!r} is not a view: a view is a function of parts and a chain, or has `show`."
                )
            name = getattr(view, "__name__", type(view).__name__)
            same = sum(other.partition(" ")[0] == name for other in named)
            named[f"{name} {same + 1}" if same else name] = view
        self._views = named

    def preview(self) -> ViewChain:
        """A copy of this chain that records nothing."""
        other = copy(self)
        other._latest, other.tokens, other.dry_run = dict(self._latest), self.tokens.copy(), True
        return other

    # --- showing -----------------------------------------------------------------------------------------------------

    def show(self, parts: list[Part], session: str | None = None) -> list[Part]:
        """The parts that are sent."""
        return self.show_each(parts, session)[-1][1]

    def show_each(self, parts: list[Part], session: str | None = None) -> list[tuple[str, list[Part]]]:
        """The parts after each view, in order, beginning with all parts."""
        if session != self._session:
            self._session, self._encoded, self._latest = session, {}, self._recorded_trims(session)
        self._learn([part.step for part in parts if part.role == "step"])
        shown = [("everything", parts)]
        for name in self._views:
            shown.append((name, self._show(name, shown[-1][1])))
        if not self.dry_run:
            self.sent = messages_of(shown[-1][1])
        return shown

    def _recorded_trims(self, session: str | None) -> dict[str, Trim]:
        if self._trims is None or session is None:
            return {}
        try:
            return {trim.view: trim for trim in self._trims.live(session)}
        except Exception as error:  # the views trim again
            log.warning("smolmem: the recorded trims of views cannot be read: %s", error)
            return {}

    def _show(self, name: str, parts: list[Part]) -> list[Part]:
        view, self._view = self._views[name], name
        show: Callable[..., Any] = getattr(view, "show", None) or view
        try:
            shown = list(show(list(parts), self))
            if not shown or not all(isinstance(part, Part) for part in shown):
                raise TypeError("a view must return at least one part, and nothing but parts")
            given = {id(message) for message in messages_of(parts)}  # a step class of the user's own may write others
            if not all(isinstance(each, ChatMessage) or id(each) in given for each in messages_of(shown)):
                raise TypeError("the messages of a part must be ChatMessages")
            size(messages_of(shown))
        except BudgetTooSmall:
            raise
        except Exception as error:
            self.warn_once("raised", f"the view {name} is not applied: {type(error).__name__}: {error}")
            return parts
        if not getattr(view, "keeps_messages", False):  # a user's own view may have changed messages in place
            shown = [replace(part, stored=None) for part in shown]
        return shown

    def warn_once(self, about: str, text: str) -> None:
        """Logs a warning about the active view, once for each `about`."""
        if (self._view, about) not in self._warned:
            self._warned.add((self._view, about))
            log.warning("smolmem: %s", text)

    # --- what views ask for ------------------------------------------------------------------------------------------

    def count(self, parts: Sequence[Part]) -> int:
        """About how many tokens a prompt of these parts has."""
        return self.tokens.count(size(messages_of(parts)))

    @property
    def last_trim(self) -> Trim | None:
        """The last trim of the active view."""
        return self._latest.get(self._view)

    def is_trimmed(self, part: Part) -> bool:
        """Whether the active view has trimmed a part already."""
        return self.last_trim is not None and part.id is not None and part.id <= self.last_trim.last

    def trim(
        self, before: Sequence[Part], after: Sequence[Part], gone: Sequence[Part], text: str = "", total: int = 0
    ) -> None:
        """Records what the active view trims: `total` parts in all, or as many as are gone."""
        last = max((part for part in gone if part.id is not None), key=lambda part: part.id or 0, default=None)
        if last is None or last.id is None:
            return
        trim = Trim(
            self._view, last.id, total or len(gone), self.count(before), self.count(after), text, at=time.time()
        )
        self._latest[self._view] = trim
        if self._trims is not None and self._session is not None and not self.dry_run and last.recorded:
            try:
                self._trims.add(self._session, trim)
            except TakenOver as error:
                raise Fenced(error) from error
            except Exception as error:  # it holds in this process
                self.warn_once("unrecorded", f"a trim of the view {self._view} could not be recorded: {error}")

    @property
    def can_recall(self) -> bool:
        """Whether the agent can read trimmed steps again."""
        return "recall_memory" in getattr(self.agent, "tools", ())

    # --- around it ---------------------------------------------------------------------------------------------------

    def outgoing(self, messages: list[Any]) -> list[Any]:
        """What is sent: some prompts hold texts that are not rendered from the memory, such as a plan's task."""
        for name, view in self._views.items():
            if callable(getattr(view, "outgoing", None)):
                self._view = name
                messages = view.outgoing(messages, self)
        return messages

    def encoded(self, part: Part, encode: Callable[[Any], Encoded]) -> int | Encoded:
        """A part as it is stored; messages that were sent before are not encoded again."""
        if part.stored is not None:
            return part.stored
        if part.id is None:
            return encode(part.messages)
        before = self._encoded.get((part.id, part.role))
        if before is None or not before[0].look_like(part.messages):
            kept = StepMessages.keeping(part.messages)
            before = self._encoded[part.id, part.role] = (kept, encode(part.messages))
        return before[1]

    def _learn(self, steps: Sequence[Any]) -> None:
        """Learns from the newest steps how many tokens their prompts had."""
        if not steps or steps[-1] is self._learned:
            return
        for step in steps[-REPORTS:] if self._learned is None else steps[-1:]:
            used = getattr(getattr(step, "token_usage", None), "input_tokens", None)
            sent = getattr(step, codec.MODEL_INPUT, None)
            if isinstance(used, int) and sent:
                with suppress(AttributeError):  # contents that smolagents does not make cannot be counted
                    self.tokens.learn(size(self.sent if len(self.sent) == len(sent) else sent), used)
        self._learned = steps[-1]


def _listed(views: Any) -> list[Any]:
    if isinstance(views, (str, bytes)) or not isinstance(views, Sequence):
        raise InvalidArgument(f"views is a list of views, not {views!r}.")
    return list(views)
