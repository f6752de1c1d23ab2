"""The monitoring agent of the examples: its model, its rules, and how it deals with an incident.

    agent = memory.attach(make_agent(make_model(), get_tools(shop)), recall=5, watch=RULES)
    run = handle_incident(memory, agent, shop, describe(shop.health()))

What it found out is kept as a note, and tasks name the symptom, as a pager does: both help the next one to be reminded
of the right thing.
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
from terminal import Trouble, say, show_reminder, show_step

from smolmem import Memory, Run, Watch

NAME = "ai_monitoring_agent"
DESCRIPTION = "An agent that monitors a web application and manages its health."
HEALTH = Watch(r"health check: (5\d\d|no answer)", name="health", tools="check_health", window=5, threshold=3)
"""Three of the last five checks failed: a line in the observation tells the agent. Earlier runs count too."""
STUCK = Watch.failures(name="stuck", window=3, threshold=3, then="pause")
"""Three steps in a row went wrong: the run is paused, before a model that cannot do it burns all its steps."""
RULES = [HEALTH, STUCK]
POST_MORTEM = "post-mortem"


class Unfinished(Trouble):
    """The run stopped before its end; it can go on later."""


def make_model(llm_url: str | None = None, model: str = MODEL, api_key: str | None = None) -> Model:
    """A model on a server, or a script that plays its part."""
    return server_model(llm_url, model, api_key) if llm_url else ScriptedOperator()


def make_agent(model: Model, tools: Sequence[Tool], *, verbose: bool = False) -> ToolCallingAgent:
    """The agent that looks after the shop; quiet by default, since the examples show its steps themselves."""
    level = LogLevel.DEBUG if verbose else LogLevel.OFF
    return ToolCallingAgent(
        model=model, tools=list(tools), name=NAME, description=DESCRIPTION, max_steps=25, verbosity_level=level
    )


def label(model: Model) -> str:
    """Who plays the model's part, for a heading."""
    scripted = isinstance(model, ScriptedOperator)
    return "Model: a script that reads the conversation; no LLM" if scripted else f"Model: {model.model_id}"


def describe(health: Health) -> str:
    """A task as a pager would put it: with the symptom, which is what memory is searched for."""
    if health.ok:
        return "Watch the shop: check its health 8 times, and call a person if it keeps failing."
    return f"Customers cannot buy. The pager says: {health}. Find out what is wrong and mend it."


def handle_incident(
    memory: Memory, agent: ToolCallingAgent, shop: Shop, task: str | None = None, *, interval: float = 0.0
) -> Run:
    """Lets an attached agent work on a task, or go on with its unfinished run; shows each step, keeps the outcome.

    Raises:
        Unfinished: the model failed, or a rule paused the run.
        Trouble: all steps are used up.
    """
    for step in steps_of(memory, agent, task):
        if step.step_number == 1:
            show_reminder(step)
        show_step(step)
        time.sleep(interval)
    run = newest(memory, agent.name)
    say(f"\nAnswer: {run.answer}", "bold green" if run.status == "finished" else "bold yellow")
    if run.status != "finished":
        raise Trouble(f"{agent.model.model_id!r} came to no end within {agent.max_steps} steps. A larger model may.")
    keep(memory, run, shop)
    return run


def steps_of(memory: Memory, agent: ToolCallingAgent, task: str | None = None) -> Iterator[Any]:
    """The steps of a run as they are done; without a task, of the one that was not finished.

    A call that was cut by a kill is skipped, not repeated: to look again is cheaper than to roll back twice.

    Raises:
        Unfinished: the model failed, or a rule paused the run.
    """
    try:
        yield from memory.stepwise(agent, task, unknown="skip")
    except AgentError as error:
        raise Unfinished(why(error, agent)) from error


def newest(memory: Memory, agent: str = NAME) -> Run:
    """The run that an agent was at work on last; one that was resumed is not the one that began last."""
    return memory.run(memory.steps(agent=agent, limit=1)[0].run)


def keep(memory: Memory, run: Run, shop: Shop) -> None:
    """Writes a post-mortem, once, if the shop is well again or a person knows."""
    text = str(run.answer)
    called = {tool for step in run.steps for tool in step.tools}
    known = {note.text for note in memory.notes(kind=POST_MORTEM)}
    if text not in known and called & {"restart_application", "roll_back_release", NOTIFY} and looked_after(shop, run):
        memory.remember(text, kind=POST_MORTEM, origin="model", sources=[run.steps[-1]])


def looked_after(shop: Shop, run: Run) -> bool:
    """Whether the shop is well, or a person was called."""
    return shop.health().ok or any(NOTIFY in step.tools for step in run.steps)


def why(error: AgentError, agent: Any) -> str:
    """What ended a run, and what to do about it."""
    first = next((line for line in reversed(str(error).splitlines()) if line.strip()), "it said nothing")
    if isinstance(error, AgentGenerationError):
        return f"The model's server failed: {first} See that it is up, then try again."
    return (
        f"Paused: three steps in a row went wrong, so {agent.model.model_id!r} may not be able to call tools. Try "
        "another: --model llama3.1, qwen3, mistral-nemo …"
    )
