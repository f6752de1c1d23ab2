"""The command that prints a whole run, also while an agent works on the run in another process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from smolmem.cli.commands import command
from smolmem.cli.environment import Environment
from smolmem.cli.options import flag, optional_run, prices_option

if TYPE_CHECKING:
    from smolmem.core.values import Run, Step
    from smolmem.queries import Queries

_RECENT = 20


@command("Runs and steps", "smolmem replay", "smolmem replay 3f9a2c1b --detailed", "smolmem replay --follow")
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
