"""Sums of time, tokens and cost: of a step, of a run, and of a run with the runs that it called."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from smolmem.core.prices import cost
from smolmem.core.values import Run


@dataclass(frozen=True)
class Totals:
    """Time, tokens and cost; `dollars` is None if no model among them has a price."""

    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float | None = None
    model_seconds: float = 0.0
    tool_seconds: float = 0.0
    steps: int = 0
    failed: int = 0
    """Failed steps."""
    runs: int = 0

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Totals) -> Totals:
        known = [each for each in (self.dollars, other.dollars) if each is not None]
        return Totals(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            sum(known) if known else None,
            self.model_seconds + other.model_seconds,
            self.tool_seconds + other.tool_seconds,
            self.steps + other.steps,
            self.failed + other.failed,
            self.runs + other.runs,
        )


def run_totals(run: Run) -> Totals:
    """The tokens, cost and steps of one run, without the runs that it called; a fork includes the steps it shares."""
    dollars = cost(run.model or "", run.input_tokens, run.output_tokens)
    counts = {"steps": run.action_count, "failed": run.error_count, "runs": 1}
    return Totals(run.input_tokens, run.output_tokens, dollars, **counts)


def summed(totals: Iterable[Totals]) -> Totals:
    """The sum of several totals."""
    return sum(totals, Totals())
