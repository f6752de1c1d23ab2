"""Commands that show runs as they happen: tail, top and replay."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from smolmem.cli.commands import agent_option, command, count, flag, option, optional_run, prices_option
from smolmem.cli.environment import Environment
from smolmem.cli.output import Column, Output, failures
from smolmem.core.smolagents_texts import in_short
from smolmem.core.text import counted, duration, one_line

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
        follow = not no_follow and env.copy is None
        for step in _steps(env, memory, agent, n, follow=follow):
            if env.json:
                env.output.stream(step)
            else:
                env.output.line(_line(env, step))


def _steps(env: Environment, memory: Queries, agent: str | None, first: int, *, follow: bool) -> Iterator[Step]:
    found = memory.steps(scope=env.read_scope, agent=agent, limit=_NEWEST)
    seen = max((step.id for step in found), default=0)
    if not found:
        waiting = " Waiting for the first step; Ctrl-C stops." if follow else ""
        env.output.hint(f"{env.nothing_found('steps', {'agent': agent})}{waiting}")
    yield from reversed(found[:first])
    while follow:
        env.output.wait()
        new = [step for step in memory.steps(scope=env.read_scope, agent=agent, limit=_NEWEST) if step.id > seen]
        seen = max([seen, *(step.id for step in new)])
        yield from sorted(new, key=lambda step: step.id)


def _line(env: Environment, step: Step) -> list[tuple[str, str]]:
    called = ", ".join(tool for tool in step.tools if tool != "python_interpreter")
    tools = f"{called}: " if called else ""
    return [
        (f"{env.output.time(step.at)}  ", "dim"),
        (f"{step.reference:12}", "bold"),
        (f"  {one_line(step.agent, 20)}  {step.kind}  ", "cyan"),
        (one_line(f"{tools}{in_short(step.text)}", 400), "red" if step.error else ""),
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
        Column("steps", lambda run: f"{run.action_count:,}", right=True),
        Column("errors", lambda run: failures(run.error_count), right=True, wide=True),
        Column("tokens", lambda run: f"{run.input_tokens + run.output_tokens:,}", right=True),
        Column("agent", lambda run: run.agent, max_width=20, wide=True),
        Column("task", lambda run: run.title, rest=True),
    )


def _seconds(run: Run) -> float | None:
    return time.time() - run.began.timestamp() if run.status == "running" else run.seconds


# --- replay -------------------------------------------------------------------------------------------------------

_RECENT = 20


@command(SECTION, "smolmem replay", "smolmem replay 3f9a2c1b --detailed", "smolmem replay --follow")
@optional_run
@flag("--detailed", "Also show what the model was sent for each step.")
@flag("--follow", "Show the steps of a running agent as they are recorded.")
@prices_option("The prices of a million input and output tokens, to show the cost of each step.")
def replay(env: Environment, run: str | None, detailed: bool, follow: bool, prices: tuple[float, float] | None) -> None:
    """Show a whole run step by step; nothing is executed.

    --follow shows a run of another process live until the run ends. Without RUN, the newest run is followed if it is
    running, else the next run that starts. Ctrl-C stops.
    """
    from smolmem.render.plain_values import whole
    from smolmem.render.replay import replay as draw

    with env.look() as memory:
        if not follow:
            shown = env.run(memory, run)
            if env.json:
                env.output.result({**whole(shown), "steps": [_step(step, detailed) for step in shown.steps]})
            else:
                draw(shown, env.output.console, detailed=detailed, prices=prices)
            return
        live = LiveRun(memory, env, _to_follow(memory, env, run))
        if env.json:
            for step in live.steps:
                env.output.stream(_step(step, detailed))
            env.output.stream(live.run)
        else:
            draw(cast("Run", live), env.output.console, detailed=detailed, prices=prices)


class LiveRun:
    """A run whose steps are yielded as they are recorded; everything else is read from the newest state of the run."""

    def __init__(self, memory: Queries, env: Environment, run: Run) -> None:
        self._memory = memory
        self._env = env
        self.run = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)

    @property
    def steps(self) -> Iterator[Step]:
        """Each step once, until the run ends."""
        seen: set[int] = set()
        while True:
            self.run = self._memory.run(self.run.id)  # before the steps: a run that has ended gets no more steps
            for step in self.run.steps:
                if step.id not in seen:
                    seen.add(step.id)
                    yield step
            if self.run.status != "running":
                return
            self._env.output.wait()


def _to_follow(memory: Queries, env: Environment, id: str | None) -> Run:
    """The run with this id, else the newest run if it is running, else the next run that starts."""
    if id is not None:
        return memory.run(id)
    filters: dict[str, Any] = {"scope": env.read_scope, "managed": False, "limit": _RECENT}
    recent = memory.runs(**filters)
    if recent and recent[0].status == "running":
        return recent[0]
    env.output.hint("No run is active. Waiting for the next run; Ctrl-C stops.")
    known = {run.id for run in recent}
    while True:
        env.output.wait()
        for run in reversed(memory.runs(**filters)):
            if run.id not in known:
                return run


def _step(step: Step, detailed: bool) -> dict[str, Any]:
    from smolmem.core.text import message_role, message_text
    from smolmem.render.plain_values import plain

    fields: dict[str, Any] = plain(step)
    if detailed:
        sent = getattr(step.to_smolagents(), "model_input_messages", None) or []
        fields["sent"] = [{"role": message_role(message), "text": message_text(message)} for message in sent]
    return fields
