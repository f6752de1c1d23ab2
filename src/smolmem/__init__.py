"""smolmem: durable memory for smolagents.

from smolmem import Memory

memory = Memory("agent.db")
agent = memory.attach(CodeAgent(tools=[], model=model))
agent.run("Keep the shop healthy")      # every step is on disk before the next one begins
"""

from smolmem import views
from smolmem.errors import SmolmemError
from smolmem.memory import Memory
from smolmem.recall.values import Note, Recollection
from smolmem.record.values import Run, Step
from smolmem.run.stepwise import stepwise
from smolmem.watch.rule import Watch

__version__ = "0.1.0"

__all__ = [
    "Memory",
    "Note",
    "Recollection",
    "Run",
    "SmolmemError",
    "Step",
    "Watch",
    "__version__",
    "stepwise",
    "views",
]
