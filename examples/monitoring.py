"""The monitoring agent of the examples: its model, its rules, and how it handles an incident.

    agent = memory.attach(make_agent(make_model(), get_tools(shop)), recall=5, watch=RULES)
    run = handle_incident(memory, agent, shop, describe(shop.health()))

The outcome is kept as a note, and each task names the symptom, as a pager message does. Both help recall to find the
right incident later.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from llm import MODEL, server_model
from scripted_operator import NOTIFY, ScriptedOperator
from shop.control import Health, Shop
from smolagents import LogLevel, Model, Tool, ToolCallingAgent
from smolagents.utils import AgentError, AgentGenerationError
from terminal import ExampleError, say, show_reminder, show_step

from smolmem import Memory, Run, Watch

NAME = "ai_monitoring_agent"
DESCRIPTION = "An agent that monitors a web application and manages its health."
HEALTH = Watch(r"health check: (5\d\d|no answer)", name="health", tool="check_health", window=5, threshold=3)
"""Fires when three of the last five checks failed, in this run or earlier: adds a line to the observation."""
STUCK = Watch.failures(name="stuck", window=3, threshold=3, then="pause")
"""Pauses the run when three steps in a row failed, before a weak model uses up all its steps."""
RULES = [HEALTH, STUCK]
POST_MORTEM = "post-mortem"


class Unfinished(ExampleError):
    """The run stopped early; it can be resumed."""


def make_model(llm_url: str | None = None, model: str = MODEL, api_key: str | None = None) -> Model:
    """A model on a server, or the scripted model."""
    return server_model(llm_url, model, api_key) if llm_url else ScriptedOperator()


def make_agent(model: Model, tools: Sequence[Tool], *, verbosity_level: int = LogLevel.OFF) -> ToolCallingAgent:
    """The agent that monitors the shop; it does not log by default, because the examples print its steps."""
    return ToolCallingAgent(
        model=model,
        tools=list(tools),
        name=NAME,
        description=DESCRIPTION,
        max_steps=25,
        verbosity_level=verbosity_level,
    )


def label(model: Model) -> str:
    """The name of the model, for a heading."""
    scripted = isinstance(model, ScriptedOperator)
    return "Model: a script that reads the conversation; no LLM" if scripted else f"Model: {model.model_id}"


def describe(health: Health) -> str:
    """A task like a pager message: it contains the symptom, which recall searches for."""
    if health.ok:
        return "Watch the shop: check its health 8 times, and call a person if it keeps failing."
    return f"Customers cannot buy. The pager says: {health}. Find the cause and fix it."


def handle_incident(
    memory: Memory, agent: ToolCallingAgent, shop: Shop, task: str | None = None, *, interval: float = 0.0
) -> Run:
    """Lets an attached agent work on a task, or resume its unfinished run; prints each step and keeps the outcome.

    Raises:
        Unfinished: if the model failed, or a rule paused the run.
        ExampleError: if all steps are used up.
    """
    for step in steps_of(memory, agent, task):
        if step.step_number == 1:
            show_reminder(step)
        show_step(step)
        time.sleep(interval)
    run = newest(memory, agent.name)
    say(f"\nAnswer: {run.answer}", "bold green" if run.status == "finished" else "bold yellow")
    if run.status != "finished":
        raise ExampleError(f"{agent.model.model_id!r} did not finish in {agent.max_steps} steps. Try a larger model.")
    keep(memory, run, shop)
    return run


def steps_of(memory: Memory, agent: ToolCallingAgent, task: str | None = None) -> Iterator[Any]:
    """Yields the steps of a run when they are done; without a task, resumes the unfinished run.

    A call that a kill interrupted is skipped, not repeated: another health check is cheaper than a second rollback.

    Raises:
        Unfinished: if the model failed, or a rule paused the run.
    """
    try:
        yield from memory.stepwise(agent, task, unknown="skip")
    except AgentError as error:
        raise Unfinished(why(error, agent)) from error


def newest(memory: Memory, agent: str = NAME) -> Run:
    """The run with the newest step of an agent: after a resume, that is not the run that began last."""
    return memory.run(memory.steps(agent=agent, limit=1)[0].run)


def keep(memory: Memory, run: Run, shop: Shop) -> None:
    """Writes a post-mortem, once, if the shop is healthy again or a person was notified."""
    text = str(run.answer)
    called = {tool for step in run.steps for tool in step.tools}
    known = {note.text for note in memory.notes(kind=POST_MORTEM)}
    if text not in known and called & {"restart_application", "roll_back_release", NOTIFY} and is_handled(shop, run):
        memory.remember(text, kind=POST_MORTEM, origin="model", sources=[run.steps[-1]])


def is_handled(shop: Shop, run: Run) -> bool:
    """Whether the shop is healthy, or a person was notified."""
    return shop.health().ok or any(NOTIFY in step.tools for step in run.steps)


def why(error: AgentError, agent: Any) -> str:
    """The reason that ended a run, and what to do about it."""
    first = next((line for line in reversed(str(error).splitlines()) if line.strip()), "no message")
    if isinstance(error, AgentGenerationError):
        return f"The model server failed: {first} Check that it is running, then try again."
    return (
        f"Paused: three steps in a row failed, so {agent.model.model_id!r} may not be able to call tools. Try "
        "another model: --model llama3.1, qwen3, mistral-nemo …"
    )
