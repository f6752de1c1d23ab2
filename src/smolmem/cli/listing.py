"""Commands that read runs and steps: runs, show, steps, diff, stats, and fork, which makes a new run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from smolmem.cli.commands import argument, command
from smolmem.cli.environment import Environment
from smolmem.cli.options import (
    STATUSES,
    STEP_KINDS,
    choice,
    count,
    filter_options,
    flag,
    limit_option,
    option,
    optional_run,
    run_argument,
    run_option,
)
from smolmem.cli.output import Column, Output, duration
from smolmem.core.errors import NotFound
from smolmem.core.text import byte_size, one_line

if TYPE_CHECKING:
    from smolmem.core.values import Diff, Run, Step
    from smolmem.store.verify import Stats

SECTION = "Runs and steps"


# --- runs ---------------------------------------------------------------------------------------------------------


@command(
    SECTION,
    "smolmem runs",
    "smolmem runs --status failed --since 7d",
    "smolmem runs --agent CodeAgent --text count --json",
)
@filter_options
@run_option("Only runs of managed agents that this run called.", "--parent")
@limit_option(20)
def runs(env: Environment, **filters: Any) -> None:
    """List runs, the newest first.

    ↳ marks a run that was called by another run, ⑂ a run that was forked from another run.
    """
    from smolmem.render.terminal import STYLES

    out = env.output
    with env.open() as memory:
        found = memory.runs(scope=env.read_scope, **filters)
    scopes = len({run.scope for run in found}) > 1 or not out.terminal
    columns = [
        Column("run"),
        Column("status"),
        Column("began"),
        Column("took", right=True, wide=True),
        Column("steps", right=True),
        Column("errors", right=True, wide=True),
        Column("tokens", right=True, wide=True),
        *([Column("scope", max_width=16)] if scopes else []),
        Column("agent", max_width=20),
        Column("task", rest=True),
    ]

    def row(run: Run) -> list[Any]:
        return [
            (run.id[:8], "bold"),
            (run.status, STYLES[run.status]),
            out.time(run.began),
            duration(run.seconds),
            f"{run.step_count:,}",
            (f"{run.error_count:,}" if run.error_count else "", "red"),
            f"{run.input_tokens + run.output_tokens:,}",
            *([run.scope] if scopes else []),
            run.agent,
            f"{'↳ ' if run.parent else '⑂ ' if run.fork_of else ''}{run.title}",
        ]

    out.rows(found, columns, row)


@command(SECTION, "smolmem show", "smolmem show 3f9a2c1b", "smolmem show 3f9a2c1b --step 1")
@optional_run
@option("--step", "N", "Show only the step with this number, with its whole text.", type=count)
def show(env: Environment, run: str | None, step: int | None) -> None:
    """Show one run: task, figures, steps and answer."""
    from smolmem.render.plain_values import whole

    with env.open() as memory:
        shown = env.run(memory, run)
        if step is not None:
            env.output.result(_numbered(shown, step))
        elif env.json:
            env.output.result(whole(shown))
        else:
            env.output.result(shown, lambda: _with_answer(shown))


def _numbered(run: Run, number: int) -> Step:
    steps = {step.number: step for step in run.steps if step.number is not None}
    if number not in steps:
        known = f"the run has steps {min(steps)} to {max(steps)}" if steps else "the run has no numbered steps"
        raise NotFound(f"run {run.id[:8]} has no step {number}: {known}.")
    return steps[number]


def _with_answer(run: Run) -> Any:
    from rich.console import Group
    from rich.text import Text

    if run.status != "finished":
        return run
    return Group(run, Text.assemble(("answer  ", "dim"), one_line(str(run.answer), 2_000)))


@command(SECTION, "smolmem fork 3f9a2c1b --step 1")
@run_argument("run", "RUN", "The beginning of the run's id.")
@option("--step", "N", "Share the steps up to this number (default: all steps).", type=count)
def fork(env: Environment, run: str, step: int | None) -> None:
    """Make a new run that shares the steps of another run, and can be resumed."""
    with env.open() as memory:
        forked = memory.run(run).fork(step=step)
        shared = sum(each.kind == "action" for each in forked.steps)
    lines = (
        "from smolmem import Memory",
        f"Memory({env.shown!r}).resume(agent, {forked.id[:8]!r})  # agent: with the same tools as before",
    )
    env.output.result({"run": forked, "python": list(lines)}, lambda: _forked(forked, shared, lines))


def _forked(run: Run, shared: int, lines: tuple[str, ...]) -> Any:
    from rich.console import Group
    from rich.syntax import Syntax
    from rich.text import Text

    text = f"  shares {shared:,} steps with {(run.fork_of or '')[:8]}. Resume the new run with:"
    head = Text.assemble((run.id[:8], "bold"), text)
    return Group(head, Text(), Syntax("\n".join(lines), "python", theme="ansi_dark", word_wrap=True))


# --- steps --------------------------------------------------------------------------------------------------------

ANY_ERROR = "any"
_STEP_COLUMNS = (
    Column("id", right=True),
    Column("run"),
    Column("step", right=True),
    Column("kind"),
    Column("at", wide=True),
    Column("took", right=True, wide=True),
    Column("tools", max_width=20, wide=True),
    Column("text", rest=True),
)


@command(
    SECTION,
    "smolmem steps --error",
    "smolmem steps --tool weather --text sunny",
    "smolmem steps --run 3f9a2c1b --json",
    "smolmem steps 3",
)
@argument("id", "[ID]", "Show the step with this id, the first column of the list.", type=count, required=False)
@run_option("Only steps of this run.")
@filter_options
@choice("--kind", STEP_KINDS, "Only steps of this kind.")
@option("--tool", "NAME", "Only steps that call this tool.")
@option("--error", "[CLASS]", "Only steps that failed, or failed with this error.", is_flag=False, flag_value=ANY_ERROR)
@flag("--no-error", "Only steps that did not fail.")
@limit_option(50)
def steps(env: Environment, id: int | None, error: str | None, no_error: bool, **filters: Any) -> None:
    """List steps of all runs, the newest first, or show one step."""
    if error and no_error:
        raise click.UsageError("--error and --no-error exclude each other.", click.get_current_context())
    failed = False if no_error else True if error == ANY_ERROR else error
    with env.open() as memory:
        if id is not None:
            env.output.result(memory.step(id))
            return
        scope = env.scope or (None if filters["run"] else "*")
        found = memory.steps(scope=scope, error=failed, **filters)
        env.output.rows(found, _STEP_COLUMNS, lambda step: _step(step, env.output))


def _step(step: Step, out: Output) -> list[Any]:
    return [
        (str(step.id), "dim"),
        (step.run[:8], "bold"),
        "" if step.number is None else str(step.number),
        step.kind,
        out.time(step.at),
        duration(step.seconds),
        ", ".join(step.tools),
        (step.text, "red" if step.error else ""),
    ]


# --- comparing and counting ---------------------------------------------------------------------------------------


@command(SECTION, "smolmem diff 3f9a2c1b 8d2e01aa")
@run_argument("left", "A", "The beginning of a run's id.")
@run_argument("right", "B", "The beginning of another run's id.")
def diff(env: Environment, left: str, right: str) -> None:
    """Show where two runs begin to differ."""
    with env.open() as memory:
        runs = memory.run(left), memory.run(right)
        found = runs[0].diff(runs[1])
        env.output.result(found, lambda: found if env.output.terminal or not found else _unified(found, *runs))


def _unified(found: Diff, left: Run, right: Run) -> Any:
    """The differing steps in the form of `diff -u`."""
    from rich.text import Text

    lines = [f"{found.common} steps in common, then"]
    for sign, run, steps in (("-", left, found.left), ("+", right, found.right)):
        lines.append(f"{sign * 3} {run.id[:8]}")
        for step in steps:
            number = "" if step.number is None else f" {step.number}"
            lines += [f"{sign} [{step.kind}{number}]", *(f"{sign} {line}" for line in step.text.splitlines())]
    return Text("\n".join(lines))


@command(SECTION, "smolmem stats", "smolmem stats --json")
def stats(env: Environment) -> None:
    """Show how much is stored."""
    with env.open() as memory:
        figures = memory.stats()
        env.output.result(figures, lambda: _figures(figures, env.output))


def _figures(figures: Stats, out: Output) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from smolmem.render.terminal import STYLES

    counts = Table.grid(padding=(0, 2))
    for name, text in (
        ("runs", f"{figures.runs:,} in {figures.sessions:,} sessions"),
        ("steps", f"{figures.steps:,}"),
        ("records", f"{figures.events:,} events, {figures.calls:,} calls, {figures.prompts:,} prompts"),
        ("tokens", f"{figures.input_tokens:,} in, {figures.output_tokens:,} out"),
        ("recall", f"{figures.notes:,} notes, {figures.passages:,} passages, {figures.vectors:,} vectors"),
        ("size", f"{byte_size(figures.bytes)}, of which {byte_size(figures.content_bytes)} contents"),
        ("engine", f"{figures.engine}, durability {figures.durability}"),
    ):
        counts.add_row(Text(name, "dim"), Text(text))
    statuses = Table.grid(padding=(0, 2))
    statuses.add_column()
    statuses.add_column(justify="right")
    for status in (*STATUSES, *(set(figures.statuses) - set(STATUSES))):
        runs = figures.statuses.get(status, 0)
        if runs:
            bar = ("█" if out.terminal else "#") * max(1, round(30 * runs / max(1, figures.runs)))
            statuses.add_row(Text(one_line(status, 40)), Text(f"{runs:,}"), Text(bar, STYLES.get(status, "")))
    return Group(Text(figures.url, "bold"), counts, Text(), statuses)
