"""Everything that smolmem raises on purpose, as one tree.

    SmolmemError
    ├── StoreError            the file or server cannot be used as asked
    │   ├── NotAStore         another program's file, a folder, an unknown URL
    │   ├── Damaged           the content is not what was written
    │   ├── TooNew            a later smolmem wrote it
    │   ├── Busy              another process holds it for too long
    │   ├── Unwritable        no space, no permission, an I/O error
    │   └── Undone            a server undid a transaction, or cannot be reached
    ├── EmbedderFailed        the embedding model does not answer, or not with vectors
    ├── CollectorFailed       the collector of traces does not answer, or refuses
    ├── NotFound              no such run or step, or the beginning of an id that fits several
    ├── CannotResume          the run is finished, in use, another agent's, or does not go the same way again
    │   ├── UnknownOutcome    it is unknown whether a tool was called
    │   └── TakenOver         another process continues the run
    └── InvalidArgument       an argument that is not valid
        └── BudgetTooSmall    the parts that must be sent to a model exceed the budget

A message says what happened, where, and what to do next. A driver's error is wrapped once and kept as `__cause__`.
"""

from __future__ import annotations

REPAIR = (
    "Run `smolmem doctor --repair`, which saves all that can be read, or restore the file from a backup. After a "
    "repair, `smolmem show` shows what is left of a run, and `smolmem erase` removes it."
)
"""The advice for a damaged store."""


class SmolmemError(Exception):
    """The root of all errors of smolmem."""


class StoreError(SmolmemError):
    """The file or server cannot be used as asked."""


class NotAStore(StoreError):
    """The file is not a smolmem store; it was left untouched."""


class Damaged(StoreError):
    """The stored content is not what was written."""


class TooNew(StoreError):
    """The store was written by a later smolmem; it was left untouched."""


class Busy(StoreError):
    """Another process holds the store for longer than we wait."""


class Unwritable(StoreError):
    """The store cannot be written: no space, no permission, an I/O error."""


class Undone(StoreError):
    """A server undid a transaction because of another one, or cannot be reached: that is no damage."""


class EmbedderFailed(SmolmemError):
    """The embedding model does not answer, or not with vectors; recall by words is not affected."""


class CollectorFailed(SmolmemError):
    """The collector of traces does not answer, or refuses what it is sent; the record is not affected."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
        """Whether the collector would refuse the same again."""


class NotFound(SmolmemError):
    """No such run or step, or the beginning of an id that fits several."""


class CannotResume(SmolmemError):
    """The run is finished, in use elsewhere, another agent's, or does not go the same way again."""


class UnknownOutcome(CannotResume):
    """A tool was being called when the process died: it is unknown whether the call happened."""


class TakenOver(CannotResume):
    """Another process has taken the run over: this process must not work on it any more."""


class InvalidArgument(SmolmemError, ValueError):
    """An argument is not valid."""


class BudgetTooSmall(InvalidArgument):
    """The parts that must be sent exceed the budget. Of all errors in a view, only this one ends a run."""
