"""Commands that follow all agents at work: tail and top."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from smolmem.cli.commands import command
from smolmem.cli.environment import Environment
from smolmem.cli.options import agent_option, count, flag, option
from smolmem.cli.output import Column, Output, duration, failures
from smolmem.core.text import counted, one_line

if TYPE_CHECKING:
    from smolmem.core.values import Run, Step
    from smolmem.queries import Queries

SECTION = "Runs and steps"
_NEWEST = 500
"""The newest steps that are read each time: more than agents record in a quarter of a second."""
_SHOWN_RUNS = 15
_RATE_SECONDS = 10.0
"""The time over which steps and tokens per second are averaged."""


@command(SECTION, "smolmem tail", "smolmem tail -n 3 --agent monitor", "smolmem tail --no-follow -n 1 --json")
@agent_option
@option("-n", "N", "How many steps to begin with (default: 10).", type=count, default=10)
@flag("--no-follow", "Print the newest steps and stop.")
def tail(env: Environment, agent: str | None, n: int, no_follow: bool) -> None:
    """Print the newest steps of all agents, then each new step.

    The steps of all processes are shown. Ctrl-C stops.
    """
    with env.look() as memory:
        for step in _steps(env, memory, agent, n, follow=not no_follow and env.copy is None):
            if env.json:
                env.output.stream(step)
            else:
                env.output.line(_line(env, step))


def _steps(env: Environment, memory: Queries, agent: str | None, first: int, *, follow: bool) -> Iterator[Step]:
    found = memory.steps(scope=env.read_scope, agent=agent, limit=_NEWEST)
    seen = max((step.id for step in found), default=0)
    yield from reversed(found[:first])
    while follow:
        env.output.wait()
        new = [step for step in memory.steps(scope=env.read_scope, agent=agent, limit=_NEWEST) if step.id > seen]
        seen = max([seen, *(step.id for step in new)])
        yield from sorted(new, key=lambda step: step.id)


def _line(env: Environment, step: Step) -> list[tuple[str, str]]:
    tools = f"{', '.join(step.tools)}: " if step.tools else ""
    return [
        (f"{env.output.time(step.at)}  ", "dim"),
        (f"{step.reference:12}", "bold"),
        (f"  {one_line(step.agent, 20)}  {step.kind}  ", "cyan"),
        (one_line(f"{tools}{step.text}", 400), "red" if step.error else ""),
    ]


@command(SECTION, "smolmem top", "smolmem top --once", "smolmem top --once --json")
@flag("--once", "Print the present state and stop.")
def top(env: Environment, once: bool) -> None:
    """Show agents at work, live: runs, steps and tokens per second; Ctrl-C stops."""
    with env.look() as memory:
        if once or env.json or not env.output.terminal or env.copy:
            state = _state(memory, env.read_scope)
            env.output.result(state, lambda: _drawn(state, None, env.output))
            return
        _live(env, memory)


def _live(env: Environment, memory: Queries) -> None:
    from rich.live import Live

    samples: deque[tuple[float, int, int]] = deque()
    with Live(console=env.output.console, screen=True, auto_refresh=False) as live:
        while True:
            state = _state(memory, env.read_scope)
            now = time.monotonic()
            samples.append((now, state["steps"], state["tokens"]))
            while now - samples[0][0] > _RATE_SECONDS:
                samples.popleft()
            live.update(_drawn(state, _rate(samples), env.output), refresh=True)
            env.output.wait()


def _rate(samples: deque[tuple[float, int, int]]) -> tuple[float, float]:
    """Steps and tokens per second."""
    (began, steps, tokens), (ended, more_steps, more_tokens) = samples[0], samples[-1]
    seconds = max(ended - began, 1.0)
    return max(0, more_steps - steps) / seconds, max(0, more_tokens - tokens) / seconds


def _state(memory: Queries, scope: str) -> dict[str, Any]:
    running = memory.runs(scope=scope, status="running", limit=_SHOWN_RUNS)
    recent = memory.runs(scope=scope, limit=_SHOWN_RUNS)
    shown = {run.id: run for run in (*running, *recent)}
    runs = list(shown.values())[:_SHOWN_RUNS]
    return {
        "at": time.time(),
        "running": len(running),
        "steps": sum(run.step_count for run in runs),
        "tokens": sum(run.input_tokens + run.output_tokens for run in runs),
        "runs": runs,
    }


def _drawn(state: dict[str, Any], rate: tuple[float, float] | None, out: Output) -> Any:
    from rich.console import Group
    from rich.text import Text

    speed = "" if rate is None else f" · {rate[0]:.1f} steps and {rate[1]:,.0f} tokens per second"
    head = Text(f"{counted(state['running'], 'run')} in progress{speed}", "bold")
    runs = state["runs"]
    return Group(head, out.table(runs, _columns()) if runs else Text("There are no runs yet."))


def _columns() -> tuple[Column, ...]:
    from smolmem.render.terminal import STYLES

    return (
        Column("run", lambda run: (run.id[:8], "bold")),
        Column("status", lambda run: (run.label, STYLES[run.status])),
        Column("time", lambda run: duration(_seconds(run)), right=True),
        Column("steps", lambda run: f"{run.step_count:,}", right=True),
        Column("errors", lambda run: failures(run.error_count), right=True, wide=True),
        Column("tokens", lambda run: f"{run.input_tokens + run.output_tokens:,}", right=True),
        Column("agent", lambda run: run.agent, max_width=20, wide=True),
        Column("task", lambda run: run.title, rest=True),
    )


def _seconds(run: Run) -> float | None:
    return time.time() - run.began.timestamp() if run.status == "running" else run.seconds
