"""Injects a text into an agent's memory, and withdraws it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from smolmem.agents.recorder import Recorder
from smolmem.core.errors import InvalidArgument
from smolmem.core.injected import Injected, injected
from smolmem.core.text import one_line, sanitize
from smolmem.store.side_tables import QUOTE


@dataclass(frozen=True, repr=False)
class Injection:
    """An injected text."""

    step: Injected
    _recorder: Recorder

    def __repr__(self) -> str:
        return f"Injection({self.step.title!r}, {one_line(self.step.observations or '', 60)!r})"

    def withdraw(self) -> None:
        """Removes the text from the list, now and in later runs; the record keeps it."""
        recorder, name = self._recorder, self.step.name
        recorder.steps.injections.standing = [step for step in recorder.steps.injections.standing if step.name != name]
        for step in list(recorder.agent.memory.steps):
            if isinstance(step, Injected) and step.name == name:
                with suppress(ValueError):  # it was removed meanwhile
                    recorder.agent.memory.steps.remove(step)


def inject(
    recorder: Recorder, text: str, title: str, origin: str, until: float | None, sources: Sequence[int | str]
) -> Injection:
    """Injects a text now and at the beginning of each run; `sources` are the steps and notes that it was made from.

    Raises:
        InvalidArgument: if the text is empty.
    """
    if not text.replace(QUOTE.strip(), "").strip():
        raise InvalidArgument("there is nothing to inject: the text is empty.")
    step = injected(text, _heading(title), _heading(origin), until, sources)
    recorder.steps.injections.standing.append(step)
    recorder.steps.put(step)
    return Injection(step, recorder)


def _heading(text: str) -> str:
    """A text that can stand in a heading and cannot end it."""
    return " ".join(sanitize(text).split()).replace("[", "(").replace("]", ")")
