"""`GradioUI` with a memory: conversations survive a restart, and a reloaded page shows them.

smolagents' own page keeps a conversation in the browser and in the running agent. After a restart the agent has
forgotten it. Here the agent gets the steps of its newest session back, and the page shows what the agent has in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from smolagents import MultiStepAgent
from smolagents.gradio_ui import GradioUI, pull_messages_from_step
from smolagents.memory import ActionStep, FinalAnswerStep, PlanningStep, TaskStep

from smolmem.agents.compat import agent_name
from smolmem.core.errors import SmolmemError
from smolmem.core.values import Run
from smolmem.memory import Memory

log = logging.getLogger("smolmem")


class MemoryUI(GradioUI):  # type: ignore[misc]
    """A page to talk to an agent whose conversation is recorded, and continued after a restart.

    As with `GradioUI`, all visitors of the page talk to one agent and share its memory.

    Args:
        agent: the agent; it is attached to the memory.
        memory: where the conversation is recorded.
        **options: options of `GradioUI`. With `reset_agent_memory=True` nothing is continued.
    """

    def __init__(self, agent: MultiStepAgent, memory: Memory, **options: Any) -> None:
        super().__init__(agent, **options)
        memory.attach(agent)
        self.continued = None if self.reset_agent_memory else continue_newest(memory, agent)

    def create_app(self) -> Any:
        """The page; it shows the conversation when it is loaded."""
        app = super().create_app()
        with app:
            app.load(self.past, outputs=[app.chatbot], api_name="past")
        return app

    def past(self) -> list[Any]:
        """The conversation that the agent has in memory, as messages."""
        return list(messages(self.agent))


def continue_newest(memory: Memory, agent: MultiStepAgent) -> Run | None:
    """Gives an agent the steps, state and variables of its newest run; returns the run, or None if there is none.

    An agent that has steps already, a run that is still in progress and an imported run are left alone.
    """
    newest = memory.runs(agent=agent_name(agent), managed=False, limit=1)
    if agent.memory.steps or not newest or newest[0].imported or newest[0].status == "running":
        return None
    try:
        newest[0].restore(agent)
    except SmolmemError as error:
        log.warning("smolmem: the page begins without the newest conversation. %s", error)
        return None
    return newest[0]


def messages(agent: MultiStepAgent) -> Iterator[Any]:
    """What an agent has in memory as messages of a gradio chat."""
    import gradio

    for step in agent.memory.steps:
        if isinstance(step, TaskStep):
            yield gradio.ChatMessage(role="user", content=step.task)
        elif isinstance(step, (ActionStep, PlanningStep)):
            yield from pull_messages_from_step(step)
            if isinstance(step, ActionStep) and step.is_final_answer:
                yield from pull_messages_from_step(FinalAnswerStep(output=step.action_output))
