"""One rule at work on one agent: it is shown each step while that is being done, and acts when it fires.

A rule never ends a run by accident: whatever goes wrong in it is said once, and the run goes on.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.request
import weakref
from collections.abc import Callable, Hashable, Iterable
from datetime import datetime, timezone
from typing import Any, Protocol

from smolagents.memory import ActionStep, FinalAnswerStep, PlanningStep

from smolmem.record.injected import Injected, injected
from smolmem.record.values import Alert
from smolmem.watch.judges import ALERT, Gap, Judge, Seen

log = logging.getLogger("smolmem")

ACTS = ("note", "inject", "pause")
Act = str | Callable[[Alert], Any]


class Rule(Protocol):
    """What is watched for, and what is to be done."""

    name: str
    then: tuple[Act, ...]
    patience: float | None

    @property
    def judge(self) -> Callable[[], Judge]:
        """Makes a judge that knows nothing yet."""
        ...

    def about(self, step: Any) -> bool:
        """Whether the rule is about such a step."""
        ...


class Alarm:
    """Rings when it was not set for so long: one thread, from the first step until it is stopped."""

    def __init__(self, seconds: float, ring: Callable[[], bool]) -> None:
        """Waits for nothing yet; `ring` tells whether there is more to wait for."""
        self._seconds, self._ring = seconds, ring
        self._set = 0.0
        self._stopped = threading.Event()
        self._stopped.set()

    def set(self) -> None:
        """From now on it is waited again."""
        self._set = time.monotonic()
        if self._stopped.is_set():
            self._stopped = threading.Event()
            threading.Thread(target=self._wait, args=(self._stopped,), name="smolmem-silence", daemon=True).start()

    def stop(self) -> None:
        """Nothing is waited for any more."""
        self._stopped.set()

    def _wait(self, stopped: threading.Event) -> None:
        rung = 0.0
        while not stopped.wait(self._seconds if rung == self._set else self._left()):
            if rung != self._set and self._left() <= 0:
                rung = self._set
                if not self._ring():
                    stopped.set()

    def _left(self) -> float:
        return max(0.0, self._set + self._seconds - time.monotonic())


_written: dict[int, list[str]] = {}
"""The lines that rules have written into steps that are still there, by the steps' id()."""


class Following:
    """One rule at work on one agent."""

    def __init__(self, rule: Rule, agent: weakref.ref[Any]) -> None:
        self.rule = rule
        self._agent = agent
        self._recorder: Callable[[], Any] = lambda: None
        self._record: Callable[..., None] | None = None
        self._judge = rule.judge()
        self._named: set[str] = set()
        self._turn = 0
        self._number: int | None = None
        self._alarm = None if rule.patience is None else Alarm(rule.patience, self._silent)
        self._late: list[str] = []
        """Notes for the next step: there was none to write them into."""

    def tie(self, recorder: weakref.ref[Any], record: Callable[..., None]) -> None:
        """The agent is attached: the run is known, and what the rule does is recorded."""
        self._recorder, self._record = recorder, record

    def past(self, steps: Iterable[Seen]) -> None:
        """Shows the rule what was before; it learns and does nothing."""
        for seen in steps:
            self._see(seen)

    def step(self, step: Any) -> None:
        """Shows the rule a step that is being done, and acts if it fires."""
        if isinstance(step, FinalAnswerStep) or getattr(step, "is_final_answer", False):
            self.stop()
        if not self.rule.about(step):
            return
        reason = self._see(Seen(step, self._run(step), notes=_written.get(id(step), ())))
        while self._late:
            _note(step, self._late.pop(0))
        if reason is not None:
            self._fire(reason, step)
        if self._alarm is not None and not getattr(step, "is_final_answer", False):
            self._alarm.set()

    def stop(self) -> None:
        """Nothing is waited for any more."""
        if self._alarm is not None:
            self._alarm.stop()

    def _run(self, step: Any) -> Hashable:
        """The run that goes on; without a store it is told from the next by the numbers of steps."""
        known = self._known_run()
        number = getattr(step, "step_number", None)
        if isinstance(number, int):
            if self._number is not None and number <= self._number:
                self._turn += 1
            self._number = number
        return known if known is not None else self._turn

    def _known_run(self) -> str | None:
        recorder = self._recorder()
        return None if recorder is None else recorder.run_at_work()

    def _see(self, seen: Seen) -> str | None:
        try:
            return self._judge.see(seen)[1]
        except TimeoutError:
            self._complain("slow", "is left out: its pattern takes too long, and is stopped")
        except Exception as error:
            self._complain("raised", f"is left out: {type(error).__name__}: {error}")
        return None

    def _complain(self, about: str, words: str) -> None:
        if about not in self._named:
            self._named.add(about)
            log.warning("smolmem: the rule %r %s", self.rule.name, words)

    def _silent(self) -> bool:
        """Nothing was done for long; tells whether the run goes on."""
        judge = self._judge
        over = self._recorder() is not None and self._known_run() is None
        if over or self._agent() is None or not isinstance(judge, Gap):
            return False
        judge.told = True
        self._fire(judge.why(judge.seconds), None)
        return True

    # --- acting ------------------------------------------------------------------------------------------------------

    def _fire(self, reason: str, step: Any) -> None:
        agent = self._agent()
        if agent is None:
            return
        name = str(agent.name or type(agent).__name__)
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
                self._complain("unwritten", f"has fired, and that could not be written down: {error}")

    def _try(self, act: Act, alert: Alert, step: Any, agent: Any) -> None:
        try:
            recorder = self._recorder()
            if callable(act):
                act(alert)
            elif act == "pause":
                (agent.interrupt if recorder is None else recorder.pause)()
            elif act == "inject":
                put = agent.memory.steps.append if recorder is None else recorder.put
                put(injected(str(alert), "alert", "a rule"))
            elif act == "note" and step is None:
                self._late.append(f"{ALERT} {alert}")
            elif act == "note":
                _note(step, f"{ALERT} {alert}")
            else:
                threading.Thread(target=_post, args=(act, alert), daemon=True).start()
        except Exception as error:
            self._complain("acting", f"has fired, and then: {type(error).__name__}: {error}")


def _note(step: Any, text: str) -> None:
    name = "plan" if isinstance(step, PlanningStep) else "observations"
    if isinstance(step, (ActionStep, PlanningStep)) and not isinstance(step, Injected):
        before = getattr(step, name, None)
        setattr(step, name, f"{before}\n{text}" if before else text)
        if id(step) not in _written:
            weakref.finalize(step, _written.pop, id(step), None)
        _written.setdefault(id(step), []).append(text)


def _post(url: str, alert: Alert) -> None:
    body = json.dumps({**vars(alert), "at": alert.at.isoformat()}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310  a user's own URL
    try:
        with urllib.request.urlopen(request, timeout=10):  # noqa: S310
            pass
    except Exception as error:
        log.warning("smolmem: the alert %r could not be posted to %s: %s", str(alert), url, error)
