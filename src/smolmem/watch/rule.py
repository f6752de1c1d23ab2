"""Rules over steps: what is watched for, and what is done when it is seen.

    memory.attach(agent, watch=[Watch("HTTP 5..", threshold=3), Watch.loop(), Watch.tokens(200_000, then="pause")])

Without a store a rule is a plain step callback: `CodeAgent(…, step_callbacks=[Watch.failures()])`. The step that is
being done counts. A rule fires once when something begins, and again only after it was over. With a store it also sees
the steps of earlier runs, what it does is recorded, and `memory.backtest(rule)` tells when it would have fired.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from smolmem.arguments import count_of
from smolmem.errors import BadValue
from smolmem.patterns import found, pattern_of
from smolmem.record import codec
from smolmem.watch.following import ACTS, Act, Following
from smolmem.watch.judges import Ceiling, Drift, Gap, Judge, Repeated, Seen, calls_of

_KINDS = ("action", "planning")


class Watch:
    """A rule: a pattern in what comes back, or any test of a step, so often within so many steps.

    Ready-made rules: `Watch.failures()`, `Watch.same_error()`, `Watch.loop()`, `Watch.slow()`, `Watch.tokens(limit)`,
    `Watch.cost(limit, prices)`, `Watch.silence(seconds)`.
    """

    def __init__(
        self,
        what: str | re.Pattern[str] | Callable[[Any], Any],
        *,
        name: str | None = None,
        window: int = 10,
        threshold: int = 3,
        kinds: Sequence[str] | str = "action",
        tools: Sequence[str] | str | None = None,
        then: Act | Sequence[Act] = "note",
    ) -> None:
        """Makes a rule.

        Args:
            what: a regular expression, or a function that takes a smolagents step and tells whether it counts.
            name: what the rule is called in alerts.
            window: so many of the newest steps are looked at, of those that this rule is about.
            threshold: it fires when so many of them count.
            kinds: which steps it is about: `action`, `planning` or both.
            tools: only steps that call one of these tools.
            then: what to do: `note` (a line in the step's observation, for the agent to read), `inject` (a step of its
                own), `pause` (the run is interrupted; `memory.resume` goes on with
                it), the URL of a webhook, a function that takes an `Alert`, or several of these.
        """
        self.name: str
        if callable(what):
            self.name = name or str(getattr(what, "__name__", "a test"))
            key: Callable[[Seen], Hashable] = lambda seen: True if what(seen.step) else None  # noqa: E731
        else:
            pattern = pattern_of(what)
            self.name = name or f"pattern {pattern.pattern!r}"
            key = lambda seen: True if found(pattern, seen.text) else None  # noqa: E731
        self._set(lambda: Repeated(key, self.window, self.threshold), window, threshold, kinds, tools, then)

    def _set(self, judge: Any, window: int, threshold: int, kinds: Any, tools: Any, then: Any) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise BadValue(f"a rule's name is a text, not {self.name!r}.")
        self.judge: Callable[[], Judge] = judge
        self.window, self.threshold = count_of(window, "window"), count_of(threshold, "threshold")
        if not 1 <= self.threshold <= self.window:
            raise BadValue(f"threshold is from 1 to window ({window}), not {threshold!r}: it could never fire.")
        self.kinds = _words(kinds, "kinds") or ()
        if not self.kinds or set(self.kinds) - set(_KINDS):
            raise BadValue(f"kinds are {' and '.join(map(repr, _KINDS))}, not {kinds!r}: nothing else can be watched.")
        self.tools = _words(tools, "tools")
        acts = [then] if isinstance(then, str) or callable(then) else then
        self.then: tuple[Act, ...] = tuple(acts) if isinstance(acts, (list, tuple)) else (then,)
        for act in self.then:
            if not (callable(act) or act in ACTS or (isinstance(act, str) and act.startswith(("http://", "https://")))):
                raise BadValue(f"then is 'note', 'inject', 'pause', a URL or a function, not {act!r}.")
        self.hours: float | None = None
        self.patience: float | None = None
        self._following: weakref.WeakKeyDictionary[Any, Following] = weakref.WeakKeyDictionary()

    @classmethod
    def _made(cls, name: str, judge: Callable[[Watch], Judge], options: dict[str, Any], **given: int) -> Watch:
        rule = cls.__new__(cls)
        rule.name = options.pop("name", None) or name
        usual: dict[str, Any] = {"window": 10, "threshold": 3, "kinds": "action", "tools": None, "then": "note"}
        unknown = sorted(set(options) - set(usual))
        if unknown:
            raise BadValue(f"a rule has no {', '.join(unknown)}; it has name, {', '.join(usual)}.")
        rule._set(lambda: judge(rule), **usual | given | options)
        return rule

    # --- ready-made --------------------------------------------------------------------------------------------------

    @classmethod
    def failures(cls, **options: Any) -> Watch:
        """Steps that went wrong, whatever the error."""
        return cls._made("failures", _repeated(lambda seen: True if _error(seen) else None), options)

    @classmethod
    def same_error(cls, **options: Any) -> Watch:
        """The same error again and again; numbers in it do not count."""
        return cls._made("same error", _repeated(lambda seen: re.sub(r"\d+", "#", _error(seen))[:300] or None), options)

    @classmethod
    def loop(cls, **options: Any) -> Watch:
        """The same call with the same arguments, or the same code, again and again."""
        return cls._made("loop", _repeated(lambda seen: tuple(seen.calls) or None), options)

    @classmethod
    def slow(cls, factor: float = 3.0, **options: Any) -> Watch:
        """Steps that take `factor` times as long as they did: the newest `threshold` against those before."""
        return cls._made("slow", lambda rule: Drift(factor, rule.window, rule.threshold), options, window=20)

    @classmethod
    def tokens(cls, limit: int, *, hours: float | None = None, **options: Any) -> Watch:
        """A ceiling for tokens: of one run, or of the last `hours`."""
        return cls.cost(limit, (1e6, 1e6), hours=hours, **{"name": "tokens"} | options)

    @classmethod
    def cost(cls, limit: float, prices: tuple[float, float], *, hours: float | None = None, **options: Any) -> Watch:
        """A ceiling for money: `prices` are those of a million tokens in and out."""
        rule = cls._made("cost", lambda rule: Ceiling(limit, prices, hours), options, window=1000, threshold=1)
        rule.hours = hours
        return rule

    @classmethod
    def silence(cls, seconds: float, **options: Any) -> Watch:
        """No step for so long after a step, while a run goes on; also while you hold a run step by step."""
        if not isinstance(seconds, (int, float)) or not seconds > 0:
            raise BadValue(f"seconds is more than 0, not {seconds!r}.")
        rule = cls._made("silence", lambda rule: Gap(seconds), options, window=1, threshold=1)
        rule.patience = seconds
        return rule

    # --- at work -----------------------------------------------------------------------------------------------------

    def about(self, step: Any) -> bool:
        """Whether the rule is about such a step."""
        kind = codec.kind_of(step)
        if kind not in self.kinds:
            return False
        if self.tools is None:
            return True
        called = {name for name, _ in calls_of(step)}
        code = str(getattr(step, "code_action", None) or "")
        return any(tool in called or re.search(rf"\b{re.escape(tool)}\s*\(", code) for tool in self.tools)

    def following(self, agent: Any) -> Following:
        """What this rule knows of an agent."""
        if agent not in self._following:
            self._following[agent] = Following(self, weakref.ref(agent))
        return self._following[agent]

    def unfollow(self, agent: Any) -> None:
        """Forgets an agent."""
        following = self._following.pop(agent, None)
        if following is not None:
            following.stop()

    def __call__(self, memory_step: Any, agent: Any) -> None:
        """As a step callback."""
        self.following(agent).step(memory_step)

    def __repr__(self) -> str:
        return f"Watch({self.name!r}, window={self.window}, threshold={self.threshold})"


def _words(given: Sequence[str] | str | None, name: str) -> tuple[str, ...] | None:
    if given is None or isinstance(given, str):
        return None if given is None else (given,)
    if not isinstance(given, (list, tuple, set, frozenset)) or not all(isinstance(word, str) for word in given):
        raise BadValue(f"{name} are words, not {given!r}.")
    return tuple(given)


def _repeated(key: Callable[[Seen], Hashable]) -> Callable[[Watch], Judge]:
    return lambda rule: Repeated(key, rule.window, rule.threshold)


def _error(seen: Seen) -> str:
    error = getattr(seen.step, "error", None)
    return "" if error is None else f"{type(error).__name__}: {error}"
