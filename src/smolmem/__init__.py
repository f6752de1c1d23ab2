"""smolmem: durable memory for smolagents.

from smolmem import Memory

memory = Memory("agent.db")
agent = memory.attach(CodeAgent(tools=[], model=model))
agent.run("Keep the shop healthy")      # every step is on disk before the next one begins
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smolmem.core import display
from smolmem.core.version import __version__

if TYPE_CHECKING:
    from smolmem.agents.stepwise import stepwise
    from smolmem.core.errors import CannotResume, SmolmemError, UnknownOutcome
    from smolmem.core.values import Note, Recollection, Run, Step
    from smolmem.memory import Memory
    from smolmem.policies import views
    from smolmem.policies.watch import Watch
    from smolmem.recall.embedding.embedders import Embedder, EmbeddingFunction, EmbeddingServer, LocalModel

__all__ = [
    "CannotResume",
    "Embedder",
    "EmbeddingFunction",
    "EmbeddingServer",
    "LocalModel",
    "Memory",
    "Note",
    "Recollection",
    "Run",
    "SmolmemError",
    "Step",
    "UnknownOutcome",
    "Watch",
    "__version__",
    "stepwise",
    "views",
]


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used: `smolmem --help` need not wait for smolagents."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from smolmem import memory
    from smolmem.agents import stepwise
    from smolmem.core import errors, values
    from smolmem.policies import views, watch
    from smolmem.recall.embedding import embedders

    homes = (errors, values, memory, stepwise, watch, embedders)
    globals().update({each: getattr(home, each) for each in __all__ for home in homes if hasattr(home, each)})
    globals()["views"] = views
    return globals()[name]


def _load_drawings() -> None:
    from smolmem.render import consoles, replay, terminal  # noqa: F401  they register how values are drawn


display.load = _load_drawings
