"""Rules over steps: the condition to watch for, and the action to take.

    memory.attach(agent, watch=[Watch("HTTP 5..", threshold=3), Watch.loop(), Watch.tokens(200_000, then="pause")])

Without a store a rule is a plain step callback: `CodeAgent(…, step_callbacks=[Watch.failures()])`. The current step
counts. A rule fires once when a condition begins, and again only after the condition was over. With a store it also
sees the steps of earlier runs, its alerts are recorded, and `memory.backtest(rule)` tells when it would have fired.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from smolmem.core.arguments import check_count
from smolmem.core.encoding import codec
from smolmem.core.errors import InvalidArgument
from smolmem.core.patterns import found, pattern_of
from smolmem.policies.detectors import Ceiling, Detector, Drift, Gap, Repeated, SeenStep, calls_of
from smolmem.policies.rule_runner import ACTS, Act, RuleRunner

_KINDS = ("action", "planning")
_OPTIONS = ("name", "window", "threshold", "kind", "tool", "then")


class Watch:
    """A rule: a pattern in observations, or any test of a step, `threshold` times within `window` steps.

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
        kind: Sequence[str] | str = "action",
        tool: Sequence[str] | str | None = None,
        then: Act | Sequence[Act] = "note",
    ) -> None:
        """Makes a rule.

        Args:
            what: a regular expression, or a function that takes a smolagents step and tells whether it counts.
            name: the name of the rule in alerts.
            window: how many of the newest steps that the rule applies to are considered.
            threshold: how many of them must count for the rule to fire.
            kind: the kind of steps it applies to: `action`, `planning` or both.
            tool: only steps that call this tool, or one of these tools.
            then: what to do: `note` (a line in the step's observation, for the agent to read), `inject` (a step of its
                own), `pause` (the run is interrupted, and `memory.resume` continues it), the URL of a webhook, a
                function that takes an `Alert`, or several of these.
        """
        pattern = None if callable(what) else pattern_of(what)
        usual = getattr(what, "__name__", "a test") if pattern is None else f"pattern {pattern.pattern!r}"
        self.name = name or str(usual)

        def key(seen: SeenStep) -> Hashable:
            counts = what(seen.step) if callable(what) else found(pattern, seen.text)
            return True if counts else None

        self.detector: Callable[[], Detector] = lambda: Repeated(key, self.window, self.threshold)
        self._set(window, threshold, kind, tool, then)

    def _set(self, window: int, threshold: int, kind: Any, tool: Any, then: Any) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise InvalidArgument(f"a rule's name is a text, not {self.name!r}.")
        self.window, self.threshold = check_count(window, "window"), check_count(threshold, "threshold")
        if not 1 <= self.threshold <= self.window:
            raise InvalidArgument(f"threshold is from 1 to window ({window}), not {threshold!r}: it could never fire.")
        self.kinds = _names(kind, "kind") or ()
        if not self.kinds or set(self.kinds) - set(_KINDS):
            raise InvalidArgument(
                f"kind is {' or '.join(map(repr, _KINDS))}, not {kind!r}: nothing else can be watched."
            )
        self.tools = _names(tool, "tool")
        acts = [then] if isinstance(then, str) or callable(then) else then
        self.then: tuple[Act, ...] = tuple(acts) if isinstance(acts, (list, tuple)) else (then,)
        for act in self.then:
            if not (callable(act) or act in ACTS or (isinstance(act, str) and act.startswith(("http://", "https://")))):
                raise InvalidArgument(f"then is 'note', 'inject', 'pause', a URL or a function, not {act!r}.")
        self.hours: float | None = None
        self.silent_seconds: float | None = None
        self._runners: weakref.WeakKeyDictionary[Any, RuleRunner] = weakref.WeakKeyDictionary()

    @classmethod
    def _made(cls, name: str, detector: Callable[[Watch], Detector], options: dict[str, Any], **given: int) -> Watch:
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise InvalidArgument(f"a rule has no {', '.join(unknown)}; it has {', '.join(_OPTIONS)}.")
        rule = cls(lambda step: False, **given | options | {"name": options.get("name") or name})
        rule.detector = lambda: detector(rule)
        return rule

    # --- ready-made --------------------------------------------------------------------------------------------------

    @classmethod
    def failures(cls, **options: Any) -> Watch:
        """Steps that failed, whatever the error."""
        return cls._made("failures", _repeated(lambda seen: seen.failed or None), options)

    @classmethod
    def same_error(cls, **options: Any) -> Watch:
        """The same error again and again; numbers in it do not count."""
        return cls._made("same error", _repeated(lambda seen: re.sub(r"\d+", "#", seen.error)[:300] or None), options)

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
        """A limit on tokens: of one run, or of the last `hours`."""
        return cls.cost(limit, (1e6, 1e6), hours=hours, **{"name": "tokens"} | options)

    @classmethod
    def cost(cls, limit: float, prices: tuple[float, float], *, hours: float | None = None, **options: Any) -> Watch:
        """A limit on cost; `prices` are those of a million input and output tokens."""
        rule = cls._made("cost", lambda rule: Ceiling(limit, prices, hours), options, window=1000, threshold=1)
        rule.hours = hours
        return rule

    @classmethod
    def silence(cls, seconds: float, **options: Any) -> Watch:
        """No step for `seconds` after a step, while a run is active; also while you run the agent step by step."""
        if not isinstance(seconds, (int, float)) or not seconds > 0:
            raise InvalidArgument(f"seconds is more than 0, not {seconds!r}.")
        rule = cls._made("silence", lambda rule: Gap(seconds), options, window=1, threshold=1)
        rule.silent_seconds = seconds
        return rule

    # --- running -----------------------------------------------------------------------------------------------------

    def applies_to(self, step: Any) -> bool:
        """Whether the rule applies to a step."""
        kind = codec.kind_of(step)
        if kind not in self.kinds:
            return False
        if self.tools is None:
            return True
        called = {name for name, _ in calls_of(step)}
        code = str(getattr(step, "code_action", None) or "")
        return any(tool in called or re.search(rf"\b{re.escape(tool)}\s*\(", code) for tool in self.tools)

    def runner(self, agent: Any) -> RuleRunner:
        """The runner of this rule on an agent."""
        if agent not in self._runners:
            self._runners[agent] = RuleRunner(self, weakref.ref(agent))
        return self._runners[agent]

    def forget(self, agent: Any) -> None:
        """Stops running this rule on an agent."""
        runner = self._runners.pop(agent, None)
        if runner is not None:
            runner.stop()

    def __call__(self, memory_step: Any, agent: Any) -> None:
        """As a step callback."""
        self.runner(agent).step(memory_step)

    def __repr__(self) -> str:
        return f"Watch({self.name!r}, window={self.window}, threshold={self.threshold})"


def _names(given: Sequence[str] | str | None, name: str) -> tuple[str, ...] | None:
    if given is None or isinstance(given, str):
        return None if given is None else (given,)
    if not isinstance(given, (list, tuple, set, frozenset)) or not all(isinstance(word, str) for word in given):
        raise InvalidArgument(f"{name} is a name or a list of names, not {given!r}.")
    return tuple(given)


def _repeated(key: Callable[[SeenStep], Hashable]) -> Callable[[Watch], Detector]:
    return lambda rule: Repeated(key, rule.window, rule.threshold)
