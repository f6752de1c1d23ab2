"""A running agent seen from another process: its steps as they are finished, and rules over them.

The store is asked a few times a second. That costs an agent nothing: readers and writers do not wait for each other.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, cast

from smolmem.cli.command import run_of, scope_of
from smolmem.core.errors import NotFound
from smolmem.core.values import Alert, Run, Step
from smolmem.policies.attached_rules import FURTHER, MOST
from smolmem.policies.detectors import Detector, Gap, SeenStep, written
from smolmem.render.plain_values import plain, whole
from smolmem.render.replay import replay, said

if TYPE_CHECKING:
    from smolmem.cli.output import Out
    from smolmem.memory import Memory
    from smolmem.policies.watch import Watch

PAUSE = 0.25
"""Seconds between two looks."""


def wait() -> None:
    """Until the next look."""
    time.sleep(PAUSE)


# --- a run --------------------------------------------------------------------------------------------------------


class Live:
    """A run as `replay` takes it, whose steps come when they are there and end when it ends."""

    def __init__(self, memory: Memory, run: Run) -> None:
        self._memory = memory
        self._run = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    @property
    def steps(self) -> Iterator[Step]:
        """Each step once."""
        seen: set[int] = set()
        while True:
            self._run = self._memory.run(self._run.id)  # before its steps: what ended has no more
            for step in self._run.steps:
                if step.id not in seen:
                    seen.add(step.id)
                    yield step
            if self._run.status != "running":
                return
            wait()


def follow(memory: Memory, args: argparse.Namespace, out: Out) -> None:
    """Shows a run while it goes on."""
    live = Live(memory, _followed(memory, args, out))
    if out.json:
        for step in live.steps:
            out.line(_told(step, args.detailed), lambda: None)
        out.line(live._run, lambda: None)
    else:
        replay(cast(Run, live), out.console, detailed=args.detailed, prices=args.prices)


def _followed(memory: Memory, args: argparse.Namespace, out: Out) -> Run:
    """The run that is named, the newest that goes on, or the next."""
    if args.run is not None:
        return memory.run(args.run)
    try:
        newest = run_of(memory, args, None)
    except NotFound:
        newest = None
    if newest is not None and newest.status == "running":
        return newest
    out.tell("No run is going on. Waiting for the next one; Ctrl-C ends.")
    known = {run.id for run in memory.runs(scope=scope_of(args), managed=False, limit=MOST)}
    while True:
        wait()
        for run in reversed(memory.runs(scope=scope_of(args), managed=False, limit=20)):
            if run.id not in known:
                return run


def told(run: Run, detailed: bool) -> dict[str, Any]:
    """A run as plain data; in detail, with what the model was sent at each step."""
    return {**whole(run), "steps": [_told(step, detailed) for step in run.steps]}


def _told(step: Step, detailed: bool) -> dict[str, Any]:
    known: dict[str, Any] = plain(step)
    if detailed:
        sent = getattr(step.to_smolagents(), "model_input_messages", None) or []
        known["sent"] = [{"role": str(getattr(each.role, "value", each.role)), "text": said(each)} for each in sent]
    return known


# --- rules --------------------------------------------------------------------------------------------------------


class Watcher:
    """Rules over everything that is recorded from now on, whichever process does it; they do nothing but fire."""

    def __init__(self, memory: Memory, rules: Sequence[Watch], **wanted: Any) -> None:
        self._memory = memory
        self._rules = rules
        self._wanted = wanted
        self._judges: dict[tuple[Watch, str, str], Detector] = {}
        self._silent: set[tuple[Watch, str, float]] = set()
        past = memory.steps(**wanted, limit=min(MOST, FURTHER * max(rule.window for rule in rules)))
        self._last = past[0].id if past else 0
        self._see(past)

    def look(self) -> list[Alert]:
        """What has fired since the last look."""
        return self._see(self._new()) + self._silences()

    def _new(self) -> list[Step]:
        size = 64
        while True:
            found = self._memory.steps(**self._wanted, limit=size)
            new = [step for step in found if step.id > self._last]
            if len(new) < size:
                break
            size *= 4
        self._last = new[0].id if new else self._last
        return new

    def _see(self, newest_first: Sequence[Step]) -> list[Alert]:
        if not newest_first:
            return []
        notes = written(self._memory.alerts(scope=self._wanted["scope"], limit=MOST))
        fired = []
        for step in reversed(newest_first):
            live = step.to_smolagents()
            for rule in self._rules:
                if rule.about(live):
                    judge = self._judge(rule, step)
                    reason = judge.see(SeenStep(live, step.run, step.at.timestamp(), notes))[1]
                    if reason is not None:
                        fired.append(Alert(rule.name, reason, step.agent, step.run, step.number, step.at))
        return fired

    def _judge(self, rule: Watch, of: Step | Run) -> Detector:
        key = (rule, of.scope, of.agent)
        if key not in self._judges:
            self._judges[key] = rule.judge()
        return self._judges[key]

    def _silences(self) -> list[Alert]:
        """Runs in which nothing has happened for longer than a rule is patient."""
        patient = [(rule, rule.patience) for rule in self._rules if rule.patience is not None]
        if not patient:
            return []
        fired = []
        wanted = {name: value for name, value in self._wanted.items() if name in ("scope", "agent")}
        for run in self._memory.runs(**wanted, status="running", limit=MOST):
            newest = self._memory.steps(scope="*", run=run.id, limit=1)
            last = (newest[0].at if newest else run.began).timestamp()
            for rule, patience in patient:
                judge = self._judge(rule, run)
                if (
                    isinstance(judge, Gap)
                    and time.time() - last > patience
                    and (rule, run.id, last) not in self._silent
                ):
                    self._silent.add((rule, run.id, last))
                    judge.told = True
                    alert = Alert(rule.name, judge.why(time.time() - last), run.agent, run.id, None, _now())
                    fired.append(replace(alert, number=newest[0].number if newest else None))
        return fired


def _now() -> datetime:
    return datetime.now(timezone.utc)
