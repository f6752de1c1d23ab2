"""The code of an interrupted step is rehearsed before it is run again.

The process that died had run a part of that code. Calls of tools are in the ledger, effects of the code itself (a file
it appended to, a request, a process) are not. So the code first runs under the guard of `replay_guard`, with the
recorded results, up to the first call that is not recorded: so far the earlier process can have come, and no further.

    nothing is refused                  the code is run again: until there it only computes
    refused before a recorded call      the effect has happened: the code is not run again
    refused after the last one          it is unknown whether the effect has happened
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from smolmem.agents import compat
from smolmem.agents.ledger import Diverged, Unknown
from smolmem.agents.restoring import interpreter
from smolmem.agents.restoring.known_classes import classes_of
from smolmem.core.encoding.instances import NotRestored
from smolmem.core.rows import RecordedCall, StoredSession
from smolmem.core.text import one_line


class OutsideEffect(Diverged):
    """The code of an interrupted step may have had an effect outside, and the caller wants to be asked."""


class NotRunAgain(Exception):
    """The code of an interrupted step is not run again: the agent is told so, and continues with another step."""


@dataclass(frozen=True)
class Rehearsal:
    """What happens to the code of one interrupted step.

    Args:
        agent: the agent.
        calls: what was recorded of the step.
        stored: the session, to restore the variables again after the rehearsal.
        restored: how the variables were restored.
        unknown: what to do if it is unknown whether an effect has happened.
    """

    agent: Any
    calls: Sequence[RecordedCall]
    stored: StoredSession
    restored: interpreter.Restored
    unknown: Unknown

    def check(self, code: str) -> None:
        """Returns if the code can be run again.

        Raises:
            OutsideEffect: if it may have had an effect outside, and `unknown` is "raise".
            NotRunAgain: if it had one, or may have had one and `unknown` is "skip".
        """
        calls = [call for call in self.calls if call.kind == "tool"]
        reached = interpreter.reaches_outside(self.agent, code, calls, self.restored)
        interpreter.restore(self.agent, self.stored.code, self.stored.variables)
        if reached is None or (self.unknown == "rerun" and not reached.has_happened):
            return
        if self.unknown == "raise":
            raise OutsideEffect(reached.reason)
        made = [_told(self.agent, call) for call in calls]
        raise NotRunAgain(
            "The process was stopped during this step, and the step's code is not run again, because it may have had "
            f"an effect outside: {reached.reason}. Variables that it assigned are gone. "
            f"It had called: {'; '.join(made) or 'no tool'}. Find out what was done before you do it again."
        )


def _told(agent: Any, call: RecordedCall) -> str:
    given = call.arguments()
    if not call.ended:
        return f"{call.name} with {one_line(repr(given), 200)}, of which the outcome is unknown"
    try:
        outcome = repr(call.loaded(classes_of(agent)).outcome)
    except NotRestored:
        outcome = "something that could not be stored"
    return f"{call.name} with {one_line(repr(given), 200)}, which gave {one_line(outcome, 500)}"


@contextmanager
def before_code(agent: Any, check: Callable[[str], None]) -> Iterator[None]:
    """While this lasts, the local interpreter of an agent calls `check` before it runs code."""
    if compat.interpreter_of(agent) is None:
        yield
        return
    executor = agent.python_executor
    original = type(executor)

    class Checking(original):  # type: ignore[misc, valid-type]
        def __call__(self, code_action: str) -> Any:
            self.__class__ = original
            try:
                check(code_action)
            finally:
                self.__class__ = Checking
            return super().__call__(code_action)

    executor.__class__ = Checking
    try:
        yield
    finally:
        executor.__class__ = original
