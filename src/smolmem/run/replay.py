"""A stored run in the terminal, and a run played again from its record.

`replay` only reads: nothing is executed. `rerun` lets an agent, with another model or prompt, work on the same task
while its tools only play back what they did; it tells where the new run parts from the old one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.syntax import Syntax
from rich.text import Text
from smolagents import ActionStep, MultiStepAgent
from smolagents.memory import PlanningStep, TaskStep

from smolmem.inert import inert
from smolmem.recall.agent import MEMORY, give
from smolmem.record import codec, ledger
from smolmem.record.injected import Injected
from smolmem.record.show import STYLES, picture
from smolmem.record.values import PastCall, Run
from smolmem.run.stepwise import stepwise

Prices = tuple[float, float]


def replay(run: Run, console: Console, *, detailed: bool = False, prices: Prices | None = None) -> None:
    """Prints a whole run: what was asked, planned, done, seen, and what went wrong.

    Args:
        run: the run.
        console: where to.
        detailed: also what the model was sent for each step.
        prices: of a million input and output tokens, to show what each step cost.
    """
    head = Text.assemble((run.id[:8], "bold"), "  ", (run.status, STYLES[run.status]), "  ", inert(run.agent))
    console.print(Rule(head, style="cyan"))
    for step in run.steps:
        live = step.to_smolagents()
        for part in _parts(live, detailed):
            console.print(part)
        if isinstance(live, ActionStep) and not isinstance(live, Injected):
            console.print(_footer(step.seconds, step.input_tokens, step.output_tokens, prices))
    end = f"failed: {run.failure}" if run.failure else f"answer: {run.answer}"
    console.print(Rule(Text(inert(end), style=STYLES[run.status]), style="cyan"))


def _parts(step: Any, detailed: bool) -> Iterator[RenderableType]:
    if isinstance(step, TaskStep):
        yield Panel(Text(inert(step.task)), title="Task", title_align="left", border_style="yellow")
    elif isinstance(step, PlanningStep):
        yield Panel(Text(inert(step.plan)), title="Plan", title_align="left", border_style="blue")
    elif isinstance(step, Injected):
        title = Text(inert(f"{step.title} · given by {step.origin}"))
        yield Panel(Text(inert(step.observations)), title=title, title_align="left", border_style="magenta")
    elif isinstance(step, ActionStep):
        yield Rule(f"Step {step.step_number}", style="dim")
        if detailed:
            yield _sent(step.model_input_messages or [])
        yield from _action(step)
    else:
        yield Text(inert(str(step)))


def _sent(messages: Any) -> RenderableType:
    lines = [
        Text.assemble((f"{getattr(each.role, 'value', each.role)}: ", "dim"), inert(said(each))) for each in messages
    ]
    return Panel(Group(*lines), title="Sent to the model", title_align="left", border_style="dim")


def said(message: Any) -> str:
    """A message as text."""
    parts = message.content if isinstance(message.content, list) else [{"type": "text", "text": str(message.content)}]
    return "".join(part.get("text") or f"[{part.get('type')}]" for part in parts)


def _action(step: ActionStep) -> Iterator[RenderableType]:
    if step.model_output:
        thought = str(step.model_output).partition("<code>")[0].strip()
        if thought:
            yield Text(inert(thought), style="italic")
    if step.code_action:
        yield Syntax(inert(step.code_action), "python", theme="ansi_dark", word_wrap=True)
    for call in step.tool_calls or []:
        if call.name != "python_interpreter":
            yield Text.assemble(("calls ", "dim"), (inert(call.name), "bold"), inert(f" {call.arguments}"))
    if step.observations:
        yield Panel(Text(inert(step.observations)), border_style="green")
    for image in step.observations_images or []:
        yield picture(image)
        yield Text(f"image, {image.mode}, {image.width} × {image.height}", style="dim")
    if step.error is not None:
        yield Panel(Text(inert(str(step.error))), title=Text(inert(type(step.error).__name__)), border_style="red")


def _footer(seconds: float | None, sent: int | None, got: int | None, prices: Prices | None) -> Text:
    told = [] if seconds is None else [f"{seconds:.2f} s"]
    if sent is not None:
        told.append(f"{sent:,} tokens in, {got or 0:,} out")
    if prices is not None and sent is not None:
        told.append(f"{(sent * prices[0] + (got or 0) * prices[1]) / 1e6:.6f}")
    return Text(" · ".join(told), style="dim")


# --- the cassette --------------------------------------------------------------------------------------------------


class _Unrecorded(BaseException):
    """The agent calls a tool as it did not before: there is nothing to play back."""


class _Cassette:
    """Plays recorded results to whoever makes the same calls, in whatever order."""

    def __init__(self, calls: list[PastCall]) -> None:
        self._left = [call for call in calls if call.kind == "tool" and call.ended]

    def tool(self, name: str, arguments: Any, act: Any) -> Any:
        """The recorded result of a call; never the call itself, but for the final answer, which does nothing."""
        key = codec.encode(arguments).key
        for call in self._left:
            if (call.name, call.key) == (name, key):
                self._left.remove(call)
                return call.again()
        if name == "final_answer":
            return act()
        raise _Unrecorded(f"it calls {name} with {arguments!r}")


@dataclass
class Rerun:
    """How a run went when it was played again; true where it went the same way."""

    answer: Any = None
    diverged: int | None = None
    reason: str = ""
    steps: list[Any] = field(default_factory=list, repr=False)

    def __bool__(self) -> bool:
        return self.diverged is None


def rerun(agent: MultiStepAgent, run: Run, calls: list[PastCall]) -> Rerun:
    """Lets an agent work on a run's task with recorded tool results, up to the first step that differs."""
    cassette = _Cassette(calls)
    undo = [ledger.watch_calls(agent, cassette)]  # type: ignore[arg-type]
    if any(call.name.partition(".")[0] in MEMORY for call in calls):
        undo += give(agent, None, lambda name: lambda *args, **kwargs: cassette.tool(name, [list(args), kwargs], None))
    before = [step.to_smolagents() for step in run.steps if step.kind == "action"]
    task = next(step.to_smolagents() for step in run.steps if step.kind == "task")
    result = Rerun()
    going = stepwise(agent, task.task, images=task.task_images)
    try:
        for step in going:
            if isinstance(step, ActionStep) and not codec.is_cut(step):
                result.steps.append(step)
                _compare(result, step, before)
                if not result:
                    break
        result.answer = going.answer
    except _Unrecorded as why:
        result.diverged, result.reason = len(result.steps) + 1, str(why)
    finally:
        going.close()
        for take_back in undo:
            take_back()
    if result and len(result.steps) < len(before):
        result.diverged, result.reason = len(result.steps) + 1, "it ends where the run went on"
    return result


def _compare(result: Rerun, step: ActionStep, before: list[Any]) -> None:
    number = len(result.steps)
    if number > len(before):
        result.diverged, result.reason = number, "it goes on where the run had ended"
        return
    for what in ("code_action", "tool_calls", "observations"):
        if getattr(step, what) != getattr(before[number - 1], what):
            result.diverged, result.reason = number, f"its {what.replace('_', ' ')} differ"
            return
