"""Commands that look back: replay, diff, alerts, stats."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from smolmem.cli.command import Command, limit, opened, prices, run_of, scope_of
from smolmem.cli.looking import STATUSES
from smolmem.cli.output import Column, Out, one_line

if TYPE_CHECKING:
    from smolmem.core.values import Alert
    from smolmem.memory import Memory
    from smolmem.store.verify import Stats

_SHORT = 8


def replay(args: argparse.Namespace, out: Out) -> None:
    """Shows a whole run, step by step; with `--follow`, while it goes on."""
    from smolmem.cli.following import follow, told

    with opened(args) as memory:
        if args.follow:
            follow(memory, args, out)
            return
        run = run_of(memory, args, args.run)
        if out.json:
            out.give(told(run, args.detailed), lambda: None)
        else:
            memory.replay(run.id, detailed=args.detailed, prices=args.prices, console=out.console)


def diff(args: argparse.Namespace, out: Out) -> None:
    """Shows where two runs part."""
    with opened(args) as memory:
        found = memory.diff(args.left, args.right)
        out.give(found, lambda: found if out.terminal else _sides(memory, args, found))


def _sides(memory: Memory, args: argparse.Namespace, found: Any) -> Any:
    """As `diff -u` would have it."""
    from rich.console import Group
    from rich.text import Text

    if not found:
        return found
    lines = [f"{found.common} steps in common, then"]
    for sign, given, side in (("-", args.left, found.left), ("+", args.right, found.right)):
        lines.append(f"{sign * 3} {memory.run(given).id[:_SHORT]}")
        for step in side:
            number = "" if step.number is None else f" {step.number}"
            lines.append(f"{sign} [{step.kind}{number}]")
            lines += [f"{sign} {line}" for line in step.text.splitlines()]
    return Group(*map(Text, lines))


# --- alerts and figures -------------------------------------------------------------------------------------------


def alerts(args: argparse.Namespace, out: Out) -> None:
    """Lists when rules fired."""
    with opened(args) as memory:
        found = memory.alerts(scope=scope_of(args), run=args.run, rule=args.rule, limit=args.limit)
    columns = (
        Column("at"),
        Column("rule", most=30),
        Column("run"),
        Column("step", right=True),
        Column("agent", most=20, wide=True),
        Column("done", most=20, wide=True),
        Column("why", rest=True),
    )

    def row(alert: Alert) -> list[Any]:
        return [
            out.time(alert.at),
            (alert.rule, "bold"),
            (alert.run or "")[:_SHORT],
            "" if alert.number is None else str(alert.number),
            alert.agent,
            ", ".join(alert.acts),
            alert.reason,
        ]

    out.many(found, columns, row)


def stats(args: argparse.Namespace, out: Out) -> None:
    """Shows how much is stored."""
    with opened(args) as memory:
        figures = memory.stats()
        out.give(figures, lambda: _figures(figures, out))


def _figures(figures: Stats, out: Out) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from smolmem.render.terminal import STYLES

    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(justify="right")
    grid.add_column()
    for status in (*STATUSES, *(set(figures.statuses) - set(STATUSES))):
        held = figures.statuses.get(status, 0)
        if held:
            bar = ("█" if out.terminal else "#") * max(1, round(30 * held / max(1, figures.runs)))
            grid.add_row(Text(one_line(status)), Text(f"{held:,}"), Text(bar, STYLES.get(status, "")))
    rest = Table.grid(padding=(0, 2))
    for name, fact in (
        ("runs", f"{figures.runs:,} in {figures.sessions:,} sessions"),
        (
            "steps",
            f"{figures.steps:,}, {figures.events:,} events, {figures.calls:,} calls, {figures.prompts:,} prompts",
        ),
        ("tokens", f"{figures.input_tokens:,} in, {figures.output_tokens:,} out"),
        ("memory", f"{figures.notes:,} notes, {figures.units:,} pieces to find, {figures.vectors:,} vectors"),
        ("file", f"{figures.bytes / 1e6:,.1f} MB, of which {figures.content_bytes / 1e6:,.1f} MB contents"),
        ("engine", f"{figures.engine}, durability {figures.durability}"),
    ):
        rest.add_row(Text(name, "dim"), Text(fact))
    return Group(Text(figures.url, "bold"), rest, Text(), grid)


# --- their arguments ----------------------------------------------------------------------------------------------


def _of_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="?", help="the beginning of its id; the newest if left out")
    parser.add_argument("--detailed", action="store_true", help="also what the model was sent for each step")
    parser.add_argument("--follow", action="store_true", help="go on with a running agent's steps as they are finished")
    parser.add_argument("--prices", metavar="IN,OUT", type=prices, help="of a million tokens, to show what steps cost")


def _of_diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("left", metavar="A", help="a run")
    parser.add_argument("right", metavar="B", help="another")


def _of_alerts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", metavar="RUN", help="only in this run")
    parser.add_argument("--rule", metavar="NAME", help="only of the rule of this name")
    limit(parser, 50)


COMMANDS = (
    Command(
        "replay",
        "Look",
        "a whole run, step by step; nothing is executed",
        replay,
        ("smolmem replay", "smolmem replay 3f9a2c1b --detailed", "smolmem replay --follow"),
        _of_replay,
        "With --follow a run that is going on in another process is shown live, until it ends. Without RUN that is "
        "the newest run if it is going on, and the next one to begin if not. Ctrl-C ends it.",
    ),
    Command(
        "diff",
        "Look",
        "where two runs part",
        diff,
        ("smolmem diff 3f9a2c1b 8d2e01aa",),
        _of_diff,
    ),
    Command(
        "stats",
        "Look",
        "how much is stored",
        stats,
        ("smolmem stats", "smolmem stats --json"),
    ),
    Command(
        "alerts",
        "Watch",
        "when rules fired, the newest first",
        alerts,
        ("smolmem alerts", "smolmem alerts --rule failures --limit 5"),
        _of_alerts,
    ),
)
