"""smolmem: durable memory for smolagents.

from smolmem import Memory

memory = Memory("agent.db")
agent = memory.attach(CodeAgent(tools=[], model=model))
agent.run("Keep the shop healthy")      # every step is on disk before the next one begins
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    """A public name, fetched when it is first asked for: `smolmem --help` need not wait for smolagents."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from smolmem import errors, memory, views
    from smolmem.recall import values as recalled
    from smolmem.record import values as recorded
    from smolmem.run import stepwise
    from smolmem.watch import rule

    found = (errors, memory, recalled, recorded, stepwise, rule)
    globals().update({each: getattr(home, each) for each in __all__ for home in found if hasattr(home, each)})
    globals()["views"] = views
    return globals()[name]
