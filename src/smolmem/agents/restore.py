"""A stored run's steps, state and variables, put into an agent of the same or another kind."""

from __future__ import annotations

from smolmem.agents import interpreter
from smolmem.agents.interpreter import Restored
from smolmem.agents.recorder import Recorder
from smolmem.core.values import Run
from smolmem.store.journal import Journal


def restore(recorder: Recorder, journal: Journal, run: Run, step: int | None) -> Restored:
    """Puts a run, up to a step number, into the recorder's agent; names the variables that could not be restored."""
    agent = recorder.agent
    until, secrets = journal.event_after_step(run, step), journal.redactor.learn()
    stored = journal.session(run.session, run.id, until, secrets)
    agent.memory.reset()
    agent.memory.steps = [*(entry.step for entry in stored.entries), *agent.memory.steps]  # injections come last
    restored = interpreter.restore_all(agent, stored)
    left = sorted((stored.variables() or {}).get("variables", {}))
    if left and not hasattr(agent, "python_executor"):
        return Restored(f"{type(agent).__name__} has no interpreter; its state is restored", left)
    return restored
