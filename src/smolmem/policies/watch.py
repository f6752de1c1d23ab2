"""Rules over steps: the condition to watch for, and the action to take.

    memory.attach(agent, watch=[Watch("HTTP 5..", threshold=3), Watch.loop(), Watch.tokens(200_000, then="pause")])

Without a store a rule is a plain step callback: `CodeAgent(…, step_callbacks=[Watch.failures()])`. The current step
counts. A rule fires once when a condition begins, and again only after the condition was over. With a store it also
sees the steps of earlier runs, its alerts are recorded, and `memory.backtest(rule)` tells when it would have fired.

A rule never ends a run by accident: an error in a rule is logged once, and the run continues.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import urllib.request
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

from smolagents.memory import ActionStep, FinalAnswerStep, PlanningStep

from smolmem.agents.compat import agent_name
from smolmem.core import clock
from smolmem.core.arguments import check_count
from smolmem.core.encoding import codec
from smolmem.core.errors import InvalidArgument
from smolmem.core.injected import Injected, injected
from smolmem.core.patterns import found, pattern_of
from smolmem.core.values import Alert
from smolmem.policies.detectors import ALERT, Ceiling, Detector, Drift, Gap, Repeated, SeenStep, calls_of

log = logging.getLogger("smolmem")

ACTS = ("note", "inject", "pause")
Act = str | Callable[[Alert], Any]
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
            raise InvalidArgument(
                f"threshold is between 1 and window ({window}), not {threshold!r}: the rule could never fire."
            )
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


# --- a rule on an agent -----------------------------------------------------------------------------------------------


class Alarm:
    """Calls `ring` if `set` was not called for some seconds: one thread, from the first step until `stop`."""

    def __init__(self, seconds: float, ring: Callable[[], bool]) -> None:
        """Does not wait yet; `ring` returns whether to continue waiting."""
        self._seconds, self._ring = seconds, ring
        self._set = 0.0
        self._stopped = threading.Event()
        self._stopped.set()

    def set(self) -> None:
        """Starts the wait again."""
        self._set = clock.elapsed()
        if self._stopped.is_set():
            self._stopped = threading.Event()
            threading.Thread(target=self._wait, args=(self._stopped,), name="smolmem-silence", daemon=True).start()

    def stop(self) -> None:
        """Stops waiting."""
        self._stopped.set()

    def _wait(self, stopped: threading.Event) -> None:
        rung = 0.0
        while not stopped.wait(self._seconds if rung == self._set else self._left()):
            if rung != self._set and self._left() <= 0:
                rung = self._set
                if not self._ring():
                    stopped.set()

    def _left(self) -> float:
        return max(0.0, self._set + self._seconds - clock.elapsed())


_alert_lines: dict[int, list[str]] = {}
"""The lines that rules have written into living steps, by the steps' id()."""


class RuleRunner:
    """One rule, running on one agent."""

    def __init__(self, rule: Watch, agent: weakref.ref[Any]) -> None:
        self.rule = rule
        self._agent = agent
        self._recorder: Callable[[], Any] = lambda: None
        self._record: Callable[..., None] | None = None
        self._detector: Detector = rule.detector()
        self._warned: set[str] = set()
        self._turn = 0
        self._number: int | None = None
        self._alarm = None if rule.silent_seconds is None else Alarm(rule.silent_seconds, self._silent)
        self._late: list[str] = []
        """Notes for the next step, for alerts that fired while no step was in progress."""

    def attach(self, recorder: weakref.ref[Any], record: Callable[..., None]) -> None:
        """The agent is recorded: the run is known, and alerts are recorded."""
        self._recorder, self._record = recorder, record

    def learn(self, steps: Iterable[SeenStep]) -> None:
        """Shows the rule earlier steps; it does not act on them."""
        for seen in steps:
            self._see(seen)

    def step(self, step: Any) -> None:
        """Shows the rule the current step, and acts if it fires."""
        if isinstance(step, FinalAnswerStep) or getattr(step, "is_final_answer", False):
            self.stop()
        if not self.rule.applies_to(step):
            return
        reason = self._see(SeenStep(step, self._run(step), notes=_alert_lines.get(id(step), ())))
        while self._late:
            _write_note(step, self._late.pop(0))
        if reason is not None:
            self._fire(reason, step)
        if self._alarm is not None and not getattr(step, "is_final_answer", False):
            self._alarm.set()

    def stop(self) -> None:
        """Stops waiting."""
        if self._alarm is not None:
            self._alarm.stop()

    def _run(self, step: Any) -> Hashable:
        """The active run; without a store a new run is recognised by the step numbers."""
        known = self._known_run()
        number = getattr(step, "step_number", None)
        if isinstance(number, int):
            if self._number is not None and number <= self._number:
                self._turn += 1
            self._number = number
        return known if known is not None else self._turn

    def _known_run(self) -> str | None:
        recorder = self._recorder()
        return None if recorder is None else recorder.runs.run_at_work()

    def _see(self, seen: SeenStep) -> str | None:
        try:
            return self._detector.see(seen)[1]
        except TimeoutError:
            self._warn_once("slow", "is skipped: its pattern takes too long")
        except Exception as error:
            self._warn_once("raised", f"is skipped: {type(error).__name__}: {error}")
        return None

    def _warn_once(self, about: str, words: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            log.warning("smolmem: the rule %r %s", self.rule.name, words)

    def _silent(self) -> bool:
        """No step for too long; returns whether the run is active."""
        detector = self._detector
        over = self._recorder() is not None and self._known_run() is None
        if over or self._agent() is None or not isinstance(detector, Gap):
            return False
        detector.reported = True
        self._fire(detector.why(detector.seconds), None)
        return True

    # --- acting ------------------------------------------------------------------------------------------------------

    def _fire(self, reason: str, step: Any) -> None:
        agent = self._agent()
        if agent is None:
            return
        name = agent_name(agent)
        number = getattr(step, "step_number", None)
        words = tuple(act if isinstance(act, str) else getattr(act, "__name__", "function") for act in self.rule.then)
        run = self._known_run()
        alert = Alert(self.rule.name, reason, name, run, number, datetime.now(timezone.utc), words)
        log.info("smolmem: %s", alert)
        for act in self.rule.then:
            self._try(act, alert, step, agent)
        recorder = self._recorder()
        if self._record is not None and recorder is not None:
            try:
                self._record(alert, recorder.scope)
            except Exception as error:
                self._warn_once("unwritten", f"fired, but its alert could not be recorded: {error}")

    def _try(self, act: Act, alert: Alert, step: Any, agent: Any) -> None:
        try:
            recorder = self._recorder()
            if callable(act):
                act(alert)
            elif act == "pause":
                (agent.interrupt if recorder is None else recorder.runs.interrupt)()
            elif act == "inject":
                put = agent.memory.steps.append if recorder is None else recorder.steps.put
                put(injected(str(alert), "alert", "a rule"))
            elif act == "note" and step is None:
                self._late.append(f"{ALERT} {alert}")
            elif act == "note":
                _write_note(step, f"{ALERT} {alert}")
            else:
                threading.Thread(target=_post, args=(act, alert), daemon=True).start()
        except Exception as error:
            self._warn_once("acting", f"fired, and its action failed: {type(error).__name__}: {error}")


def _write_note(step: Any, text: str) -> None:
    name = "plan" if isinstance(step, PlanningStep) else "observations"
    if isinstance(step, (ActionStep, PlanningStep)) and not isinstance(step, Injected):
        before = getattr(step, name, None)
        setattr(step, name, f"{before}\n{text}" if before else text)
        if id(step) not in _alert_lines:
            weakref.finalize(step, _alert_lines.pop, id(step), None)
        _alert_lines.setdefault(id(step), []).append(text)


def _post(url: str, alert: Alert) -> None:
    body = json.dumps({**vars(alert), "at": alert.at.isoformat()}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310  a user's own URL
    try:
        with urllib.request.urlopen(request, timeout=10):  # noqa: S310
            pass
    except Exception as error:
        log.warning("smolmem: the alert %r could not be posted to %s: %s", str(alert), url, error)
