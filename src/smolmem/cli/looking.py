"""Commands that list what was done: runs, show, steps."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from smolmem.cli.command import Command, count, limit, opened, run_of, scope_of, times, url_of
from smolmem.cli.output import Column, Out, one_line
from smolmem.core.errors import NotFound, StoreError

if TYPE_CHECKING:
    from smolmem.core.values import Run, Step

STATUSES = ("running", "finished", "failed", "interrupted", "max_steps")
KINDS = ("task", "action", "planning", "system_prompt", "other")
_SHORT = 8


# --- runs and steps -----------------------------------------------------------------------------------------------


def runs(args: argparse.Namespace, out: Out) -> None:
    """Lists runs."""
    if args.ids:
        _ids(args, out)
        return
    from smolmem.render.terminal import STYLES

    with opened(args) as memory:
        found = memory.runs(
            scope=scope_of(args),
            agent=args.agent,
            status=args.status,
            since=args.since,
            until=args.until,
            text=args.text,
            parent=args.parent,
            limit=args.limit,
        )
    scopes = len({run.scope for run in found}) > 1 or not out.terminal
    columns = [
        Column("run"),
        Column("status"),
        Column("began"),
        Column("took", right=True, wide=True),
        Column("steps", right=True),
        Column("errors", right=True, wide=True),
        Column("tokens", right=True, wide=True),
        *([Column("scope", most=16)] if scopes else []),
        Column("agent", most=20),
        Column("task", rest=True),
    ]

    def row(run: Run) -> list[Any]:
        return [
            (run.id[:_SHORT], "bold"),
            (run.status, STYLES[run.status]),
            out.time(run.began),
            took(run.seconds),
            f"{run.step_count:,}",
            (f"{run.error_count:,}" if run.error_count else "", "red"),
            f"{run.input_tokens + run.output_tokens:,}",
            *([run.scope] if scopes else []),
            run.agent,
            f"{'↳ ' if run.parent else '⑂ ' if run.fork_of else ''}{run.title}",
        ]

    out.many(found, columns, row)


def took(seconds: float | None) -> str:
    """A length of time, short."""
    if seconds is None:
        return ""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes / 60:,.1f} h"


def _ids(args: argparse.Namespace, out: Out) -> None:
    """The ids of the newest runs, quickly and silently: a shell asks for them at each press of the Tab key."""
    from smolmem.store.opening import open_store

    wanted = dict.fromkeys(
        ("scope", "below", "agent", "status", "since", "until", "text", "parent", "session", "roots")
    )
    try:
        url = url_of(args)
        if not os.path.isfile(url.removeprefix("sqlite:///")):
            return
        store = open_store(url)
        try:
            for row in store.rows("find_runs", {**wanted, "dead": "[]", "limit": args.limit}):
                out.text(str(row["id"])[:_SHORT])
        finally:
            store.close()
    except StoreError:
        return


def show(args: argparse.Namespace, out: Out) -> None:
    """Shows a run, or one step of it."""
    from smolmem.render.plain_values import whole

    with opened(args) as memory:
        run = run_of(memory, args, args.run)
        if args.step is not None:
            step = _numbered(run, args.step)
            out.give(step, lambda: step)
        else:
            out.give(whole(run) if out.json else None, lambda: _run(run))


def _numbered(run: Run, number: int) -> Step:
    steps = {step.number: step for step in run.steps if step.number is not None}
    if number not in steps:
        there = f"it has {min(steps)} to {max(steps)}" if steps else "it has none"
        raise NotFound(f"run {run.id[:_SHORT]} has no step {number}: {there}.")
    return steps[number]


def _run(run: Run) -> Any:
    from rich.console import Group
    from rich.text import Text

    if run.status != "finished":
        return run
    answer = Text.assemble(("answer  ", "dim"), one_line(str(run.answer), 2_000))
    return Group(run, answer)


def steps(args: argparse.Namespace, out: Out) -> None:
    """Lists steps, or shows one."""
    with opened(args) as memory:
        if args.id is not None:
            step = memory.step(args.id)
            out.give(step, lambda: step)
            return
        found = memory.steps(
            scope=args.scope or (None if args.run else "*"),
            run=args.run,
            agent=args.agent,
            status=args.status,
            kind=args.kind,
            tool=args.tool,
            error=args.error,
            since=args.since,
            until=args.until,
            text=args.text,
            limit=args.limit,
        )
        out.many(found, _STEPS, lambda step: _step(step, out))


_STEPS = (
    Column("id", right=True),
    Column("run"),
    Column("step", right=True),
    Column("kind"),
    Column("at", wide=True),
    Column("took", right=True, wide=True),
    Column("tools", most=20, wide=True),
    Column("what", rest=True),
)


def _step(step: Step, out: Out) -> list[Any]:
    return [
        (str(step.id), "dim"),
        (step.run[:_SHORT], "bold"),
        "" if step.number is None else str(step.number),
        step.kind,
        out.time(step.at),
        took(step.seconds),
        ", ".join(step.tools),
        (step.text, "red" if step.error else ""),
    ]


# --- their arguments ----------------------------------------------------------------------------------------------


def _filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", metavar="NAME", help="only of the agent of this name")
    parser.add_argument("--status", choices=STATUSES, help="only of runs with this status")
    times(parser)
    parser.add_argument("--text", metavar="WORDS", help="only where this text is found, in any case")


def _of_runs(parser: argparse.ArgumentParser) -> None:
    _filters(parser)
    parser.add_argument("--parent", metavar="RUN", help="only runs of managed agents that this run called")
    limit(parser, 20)
    parser.add_argument("--ids", action="store_true", help=argparse.SUPPRESS)


def _of_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="?", help="the beginning of its id; the newest if left out")
    parser.add_argument("--step", metavar="N", type=count, help="the whole of this step instead")


def _of_steps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="?", type=count, help="show this step: the id that is listed first")
    parser.add_argument("--run", metavar="RUN", help="only of this run")
    _filters(parser)
    parser.add_argument("--kind", choices=KINDS, help="only of this kind")
    parser.add_argument("--tool", metavar="NAME", help="only steps that call this tool")
    parser.add_argument(
        "--error", metavar="CLASS", nargs="?", const=True, help="only steps that went wrong, or wrong in this way"
    )
    parser.add_argument("--no-error", dest="error", action="store_false", default=None, help="only steps that did not")
    limit(parser, 50)


COMMANDS = (
    Command(
        "runs",
        "Look",
        "what ran, the newest first",
        runs,
        (
            "smolmem runs",
            "smolmem runs --status failed --since 7d",
            "smolmem runs --agent CodeAgent --text count --json",
        ),
        _of_runs,
        "↳ marks a run that another run called, ⑂ one that was forked from another.",
    ),
    Command(
        "show",
        "Look",
        "one run: its task, figures, steps and end",
        show,
        ("smolmem show", "smolmem show 3f9a2c1b", "smolmem show 3f9a2c1b --step 1"),
        _of_show,
    ),
    Command(
        "steps",
        "Look",
        "steps of all runs, the newest first",
        steps,
        (
            "smolmem steps --error",
            "smolmem steps --tool weather --text sunny",
            "smolmem steps --run 3f9a2c1b --json",
            "smolmem steps 3",
        ),
        _of_steps,
    ),
)
