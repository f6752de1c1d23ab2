"""Terminal output of the examples: headings, one line per step, a table of runs, and error messages."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from itertools import compress, pairwise
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from smolagents.utils import AgentError

from smolmem import Run, SmolmemError
from smolmem.core.text import sanitize
from smolmem.render.terminal import STYLES
from smolmem.store.side_tables import BEGIN, QUOTE

console = Console(highlight=False)
FAILING = re.compile(r"health check: (?!200)")


class ExampleError(Exception):
    """An error that the user can fix; the message says what happened and what to do next."""


def run_program(main: Callable[[], None], *expected: type[Exception]) -> None:
    """Runs a program. Expected errors are printed without a traceback and end it with exit code 1."""
    try:
        main()
    except (ExampleError, SmolmemError, AgentError, *expected) as error:
        message = str(error)
        if isinstance(error, OSError) and error.filename:
            message = f"{error.filename} cannot be used: {error.strerror}. Choose another folder with --folder."
        console.print(Text(f"\n✖ {sanitize(message)}", style="bold red"), soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("\nStopped.")
        sys.exit(130)


def chapter(title: str, about: str = "") -> None:
    """Prints a heading, and a line about the chapter."""
    console.print()
    console.print(Rule(Text(title, style="bold"), align="left", style="cyan"))
    if about:
        console.print(Text(about, style="dim"))


def say(text: str, style: str = "") -> None:
    """Prints a line; control characters in it are shown, not interpreted."""
    console.print(Text(sanitize(text), style=style))


def show_step(step: Any) -> None:
    """Prints a step in one line: its number, its tool calls and the result; alerts follow."""
    calls = ", ".join(call.name for call in getattr(step, "tool_calls", None) or ()) or "(no call)"
    if step.error is not None:
        result, style = f"failed: {step.error}", "red"
    else:
        result = "" if step.is_final_answer else str(step.observations or step.action_output or "")
        style = "red" if FAILING.search(result) else "green" if "health check: 200" in result else ""
    lines = [" ".join(line.split()) for line in sanitize(result).splitlines() if line.strip()] or [""]
    head = Text.assemble((f"{step.step_number:>4}  ", "dim"), (f"{calls:<21}", "bold"), (lines[0], style))
    console.print(head, no_wrap=True, overflow="ellipsis")
    for line in lines:
        if line.startswith("[ALERT]"):
            console.print(Text(f"      ▲ {line}", style="bold yellow"))


def show_reminder(step: Any) -> None:
    """Prints the reminder that followed the task: the first line of each recalled memory."""
    texts = (part.get("text", "") for message in step.model_input_messages or () for part in message.content or ())
    lines = [line for text in texts if text.startswith(BEGIN) for line in text.splitlines()]
    begins = [line.startswith(QUOTE) and not before.startswith(QUOTE) for before, line in pairwise(["", *lines])]
    for number, line in enumerate(compress(lines, begins)):
        head = "" if number else "Reminded of"
        console.print(Text(f"{head:<12}{sanitize(line)}", style="magenta"), no_wrap=True, overflow="ellipsis")


def figures(runs: Iterable[tuple[str, Run]]) -> Table:
    """A table of runs: steps, calls, tokens and time."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for name in ("steps", "tool calls", "tokens in", "tokens out", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("ended")
    for title, run in runs:
        calls = sum(len(step.tools) for step in run.steps)
        seconds = "" if run.seconds is None else f"{run.seconds:.1f}"
        numbers = (str(run.step_count), str(calls), f"{run.input_tokens:,}", f"{run.output_tokens:,}", seconds)
        table.add_row(Text(sanitize(title)), *numbers, Text(run.status, style=STYLES[run.status]))
    return table
