"""Everything that smolmem raises on purpose, as one tree.

    SmolmemError
    ├── StoreError         the file or server cannot be used as asked
    │   ├── NotAStore      it is something else: another program's file, a folder, an unknown URL
    │   ├── Damaged        its content is not what was written
    │   ├── TooNew         a later smolmem wrote it
    │   ├── Busy           somebody else holds it for too long
    │   └── Unwritable     no space, no permission, an I/O error
    ├── NotFound           no such run or step, or a prefix that fits several
    ├── CannotResume       the run is finished, in use, another agent's, or went another way
    │   └── UnknownOutcome nobody knows whether a tool was called
    └── InvalidArgument           an argument that cannot be meant
        └── BudgetTooSmall      what must be sent to a model is more than may be sent

A message says what happened, where, and what to do next. An error of a driver is wrapped once and kept as
`__cause__`.
"""

from __future__ import annotations


class SmolmemError(Exception):
    """The root: catch this to catch all of ours."""


class StoreError(SmolmemError):
    """The file or server cannot be used as asked."""


class NotAStore(StoreError):
    """What was given is not a smolmem store; it was left untouched."""


class Damaged(StoreError):
    """The stored content is not what was written."""


class TooNew(StoreError):
    """The store was written by a later smolmem; it was left untouched."""


class Busy(StoreError):
    """Another process holds the store for longer than we wait."""


class Unwritable(StoreError):
    """The store cannot be written: no space, no permission, an I/O error."""


class NotFound(SmolmemError):
    """No such run or step, or a prefix that fits several."""


class CannotResume(SmolmemError):
    """The run is finished, in use elsewhere, another agent's, or does not go the same way again."""


class UnknownOutcome(CannotResume):
    """A tool was being called when the process died: nobody knows whether that happened."""


class InvalidArgument(SmolmemError, ValueError):
    """An argument that cannot be meant."""


class BudgetTooSmall(InvalidArgument):
    """What must be sent is more than may be sent. Of all that a view may raise, this alone ends a run."""
