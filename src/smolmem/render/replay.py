"""A whole run in the terminal, step by step. Nothing is executed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from PIL.Image import Image
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.syntax import Syntax
from rich.text import Text
from smolagents import ActionStep
from smolagents.memory import PlanningStep, TaskStep

from smolmem.core.display import draws
from smolmem.core.encoding.pictures import is_small
from smolmem.core.encoding.placeholders import safe_text
from smolmem.core.errors import StoreError
from smolmem.core.injected import Injected
from smolmem.core.rows import ANSWERED
from smolmem.core.text import duration, message_role, message_text, sanitize
from smolmem.core.values import Run
from smolmem.render.terminal import STYLES, picture

Prices = tuple[float, float]
LONGEST = 100_000
"""Characters of a value that is not a text."""


@draws("replay")
def replay(run: Run, console: Console, *, detailed: bool = False, prices: Prices | None = None) -> None:
    """Prints a whole run: what was asked, planned, done, seen, and what went wrong; see `Run.replay`."""
    head = Text.assemble((run.id[:8], "bold"), "  ", (run.label, STYLES[run.status]), "  ", sanitize(run.agent))
    console.print(Rule(head, style="cyan"))
    for step in run.steps:
        live = step.to_smolagents()
        for part in _parts(live, detailed):
            console.print(part)
        if isinstance(live, ActionStep) and not isinstance(live, Injected):
            console.print(_footer(step.seconds, step.input_tokens, step.output_tokens, prices))
    end = f"answer: {_text(run.answer)}" if run.status in ANSWERED else run.label
    end = f"failed: {run.failure}" if run.failure else end
    console.print(Rule(Text(sanitize(end), style=STYLES[run.status]), style="cyan"))


def _parts(step: Any, detailed: bool) -> Iterator[RenderableType]:
    if isinstance(step, TaskStep):
        yield Panel(Text(sanitize(_text(step.task))), title="Task", title_align="left", border_style="yellow")
    elif isinstance(step, PlanningStep):
        yield Panel(Text(sanitize(_text(step.plan))), title="Plan", title_align="left", border_style="blue")
    elif isinstance(step, Injected):
        title = Text(sanitize(f"{step.title} · given by {step.origin}"))
        yield Panel(Text(sanitize(_text(step.observations))), title=title, title_align="left", border_style="magenta")
    elif isinstance(step, ActionStep):
        yield Rule(f"Step {step.step_number}", style="dim")
        if detailed:
            sent = ((f"{message_role(each)}: ", message_text(each)) for each in step.model_input_messages or [])
            lines = (Text.assemble((role, "dim"), sanitize(text)) for role, text in sent)
            yield Panel(Group(*lines), title="Sent to the model", title_align="left", border_style="dim")
        yield from _action(step)
    else:
        yield Text(sanitize(_text(step)))


def _action(step: ActionStep) -> Iterator[RenderableType]:
    if step.model_output:
        thought = _text(step.model_output).partition("<code>")[0].strip()
        if thought:
            yield Text(sanitize(thought), style="italic")
    if step.code_action:
        yield Syntax(sanitize(_text(step.code_action)), "python", theme="ansi_dark", word_wrap=True)
    for call in step.tool_calls or []:
        if call.name != "python_interpreter":
            yield Text.assemble(("calls ", "dim"), (sanitize(call.name), "bold"), sanitize(f" {_text(call.arguments)}"))
    if step.observations:
        yield Panel(Text(sanitize(_text(step.observations))), border_style="green")
    for image in step.observations_images or []:
        yield from _image(image)
    if step.error is not None:
        yield Panel(
            Text(sanitize(_text(step.error))), title=Text(sanitize(type(step.error).__name__)), border_style="red"
        )


def _image(image: Any) -> Iterator[RenderableType]:
    """A picture if it is small, and its size; a text for a value that is not a picture or cannot be unpacked."""
    if is_small(image):
        try:
            yield picture(image)
        except (StoreError, ValueError) as error:
            yield Text(sanitize(str(error)), style="red")
    mode = f", {image.mode}" if isinstance(image, Image) else ""
    yield Text(sanitize(f"image{mode}, {_text(image)}"), style="dim")


def _text(value: Any) -> str:
    """A stored field as text; a file from somebody else can hold a value of any type."""
    return value if isinstance(value, str) else safe_text(str, value, LONGEST)


def _footer(seconds: float | None, sent: int | None, got: int | None, prices: Prices | None) -> Text:
    facts = [] if seconds is None else [duration(seconds)]
    if sent is not None:
        facts.append(f"{sent:,} tokens in, {got or 0:,} out")
    if prices is not None and sent is not None:
        facts.append(f"{(sent * prices[0] + (got or 0) * prices[1]) / 1e6:.6f}")
    return Text(" · ".join(facts), style="dim")
