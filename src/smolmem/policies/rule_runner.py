"""Runs one rule on one agent: the rule sees each step while it is being made, and acts when it fires.

A rule never ends a run by accident: an error in a rule is logged once, and the run continues.
"""

from __future__ import annotations

import json
import logging
import threading
import urllib.request
import weakref
from collections.abc import Callable, Hashable, Iterable
from datetime import datetime, timezone
from typing import Any

from smolagents.memory import ActionStep, FinalAnswerStep, PlanningStep

from smolmem.agents.compat import agent_name
from smolmem.core import clock
from smolmem.core.injected import Injected, injected
from smolmem.core.values import Alert
from smolmem.policies.detectors import ALERT, Detector, Gap, SeenStep

log = logging.getLogger("smolmem")

ACTS = ("note", "inject", "pause")
Act = str | Callable[[Alert], Any]


class Alarm:
    """Calls `ring` when it was not set for some seconds: one thread, from the first step until it is stopped."""

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

    def __init__(self, rule: Any, agent: weakref.ref[Any]) -> None:
        """`rule` is a `Watch`, whose module imports this one."""
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
        """Notes for the next step, where there was no step to write them into."""

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
                put = agent.memory.steps.append if recorder is None else recorder.put
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
