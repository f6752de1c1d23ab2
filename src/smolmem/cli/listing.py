"""Commands that read runs and steps: runs, show, steps, diff, stats and sql; and tag and fork, which change them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from smolmem.cli.commands import (
    STEP_KINDS,
    argument,
    choice,
    command,
    count,
    filter_options,
    flag,
    limit_option,
    option,
    run_argument,
    run_id,
    run_option,
    step_reference,
)
from smolmem.cli.environment import Environment
from smolmem.cli.output import CELL_LENGTH, Column, failures
from smolmem.core.errors import InvalidArgument, NotFound
from smolmem.core.smolagents_texts import in_short
from smolmem.core.text import counted, duration, one_line

if TYPE_CHECKING:
    from smolmem.core.totals import Totals
    from smolmem.core.values import Diff, Run, Step
    from smolmem.queries import Queries

SECTION = "Runs and steps"


# --- runs ---------------------------------------------------------------------------------------------------------


@command(
    SECTION,
    "smolmem runs",
    "smolmem runs --status failed --since 7d",
    "smolmem runs --tool weather --since yesterday",
    "smolmem runs --agent CodeAgent --text count --json",
)
@filter_options
@option("--model", "NAME", "Only runs with this model.")
@option("--tool", "NAME", "Only runs that called this tool.")
@option("--tag", "TAG", "Only runs with this tag.")
@run_option("Only runs of managed agents that this run called.", "--parent")
@limit_option(20)
def runs(env: Environment, **filters: Any) -> None:
    """List runs, the newest first.

    ↳ marks a run that was called by the run above, ↱ a run that was forked from another run. Steps, errors, tokens
    and cost include the runs that a run called. Prices are those of well-known models; the JSON file that
    SMOLMEM_PRICES names adds others, as in {"my-model": [0.5, 1.5]}: dollars for a million input and output tokens.
    """
    with env.look() as memory:
        _print_runs(env, list(_nested(memory, env.read_scope, filters)), filters)


class Listed(NamedTuple):
    """A run in a list: how far it is indented below the run that called it, and the runs that it called."""

    run: Run
    depth: int
    called: list[Run]

    @property
    def totals(self) -> Totals:
        """What the run used together with the runs that it called."""
        from smolmem.core.totals import run_totals, summed

        return summed(map(run_totals, (self.run, *self.called)))

    def as_json(self) -> dict[str, Any]:
        """The run, and what it used together with the runs that it called."""
        from smolmem.render.plain_values import plain

        used = self.totals
        totals = {"total_steps": used.steps, "total_errors": used.failed, "total_tokens": used.tokens}
        return {**plain(self.run), **totals, "total_cost": used.dollars}


def _nested(memory: Queries, scope: str, filters: dict[str, Any]) -> Iterator[Listed]:
    """Runs, the newest first; each run of a managed agent below the run that called it, if that is listed."""
    found = memory.runs(scope=scope, **filters)
    called = memory.called_by(found)
    listed = {run.id for run in found}
    below = {run.id for id in listed for run in called[id]}
    for run in found:
        if run.id in below:
            continue
        depths = {run.id: 0}
        yield Listed(run, 0, called[run.id])
        for each in called[run.id]:
            depths[each.id] = depths.get(str(each.parent), 0) + 1
            if each.id in listed:
                yield Listed(each, depths[each.id], called[each.id])


def _print_runs(env: Environment, found: list[Listed], filters: dict[str, Any]) -> None:
    from smolmem.render.terminal import STYLES

    out = env.output
    if out.json:
        out.result([each.as_json() for each in found])
        return
    priced = any(each.totals.dollars is not None for each in found)
    scopes = len({each.run.scope for each in found}) > 1 or not out.terminal
    columns = (
        Column("run", lambda each: (each.run.id[:8], "bold")),
        Column("status", lambda each: (each.run.label, STYLES[each.run.status])),
        Column("began", lambda each: out.time(each.run.began)),
        Column("took", lambda each: duration(each.run.seconds), right=True, wide=True),
        Column("steps", lambda each: f"{each.totals.steps:,}", right=True),
        Column("errors", lambda each: failures(each.totals.failed), right=True, wide=True),
        Column("tokens", lambda each: f"{each.totals.tokens:,}", right=True, wide=True),
        Column("cost", lambda each: _dollars(each.totals.dollars), right=True, shown=priced),
        Column("scope", lambda each: each.run.scope, max_width=16, shown=scopes),
        Column("agent", lambda each: each.run.agent, max_width=20, wide=True),
        Column("task", _task, rest=True),
    )
    out.rows(found, columns, env.nothing_found("runs", filters), filters["limit"])


def _dollars(amount: float | None) -> str:
    return "" if amount is None else f"${amount:.4f}"


def _task(each: Listed) -> str:
    run = each.run
    sign = "↳ " if run.parent else "↱ " if run.fork_of else ""
    return f"{'· ' * (each.depth - 1)}{sign}{run.title}{''.join(f'  #{tag}' for tag in run.tags)}"


@command(SECTION, "smolmem show", "smolmem show 3f9a2c1b", "smolmem show 3f9a2c1b/1", "smolmem show agent.db 3f9a2c1b")
@run_argument(
    "run", "[RUN]", "The beginning of the run's id, or RUN/N for one step (default: the newest run).", required=False
)
@option("--step", "N", "Show only the step with this number, with its whole text.", type=count)
def show(env: Environment, run: str | None, step: int | None) -> None:
    """Show one run: task, figures, steps and answer; or one step.

    RUN/N, as `smolmem search` and `smolmem steps` print it, is step N of the run.
    """
    from smolmem.render.plain_values import whole

    with env.look() as memory:
        if run is not None and "/" in run:
            env.output.result(memory.step(run))
            return
        shown = env.run(memory, run)
        if step is not None:
            env.output.result(_numbered(memory, shown, step))
        elif env.json:
            env.output.result(whole(shown))
        else:
            called = memory.called_by([shown])[shown.id]
            env.output.result(shown, lambda: _with_answer(shown, called))


def _numbered(memory: Queries, run: Run, number: int) -> Step:
    """The step of a run with a number, else with that id."""
    by_id = {step.id: step for step in run.steps}
    try:
        return memory.step(f"{run.id}/{number}")
    except NotFound:
        if number in by_id:
            return by_id[number]
        raise


def _with_answer(run: Run, called: list[Run]) -> Any:
    """The run, then the figures of the runs that it called, then its answer."""
    from rich.text import Text

    from smolmem.core.rows import ANSWERED

    lines = []
    if called:
        used = Listed(run, 0, called).totals
        figures = f"{counted(used.steps, 'step')} and {used.tokens:,} tokens with {counted(len(called), 'run')}"
        lines.append(Text.assemble(("total  ", "dim"), f"{figures} of managed agents"))
    if run.status in ANSWERED:
        lines.append(Text.assemble(("answer  ", "dim"), one_line(str(run.answer), 2_000)))
    return [run, *lines]


@command(SECTION, "smolmem tag 3f9a2c1b release-41 good", "smolmem tag 3f9a2c1b good --remove")
@run_argument("run", "RUN", "The beginning of the run's id.", type=run_id)
@argument("tags", "TAG...", "The tags.", nargs=-1, required=True)
@flag("--remove", "Remove the tags.")
def tag(env: Environment, run: str, tags: tuple[str, ...], remove: bool) -> None:
    """Add tags to a run, to find it by, or remove them."""
    with env.open() as memory:
        found = memory.run(run)
        tagged = found.untag(*tags) if remove else found.tag(*tags)
        now = f"has the tags: {', '.join(tagged.tags)}" if tagged.tags else "has no tags"
        env.output.result(tagged, lambda: f"{tagged.id[:8]} {now}")


@command(SECTION, "smolmem fork 3f9a2c1b --step 1", "smolmem fork 3f9a2c1b/1")
@run_argument("run", "RUN", "The beginning of the run's id, or RUN/N.")
@option("--step", "N", "Share the steps up to this number (default: all steps).", type=count)
def fork(env: Environment, run: str, step: int | None) -> None:
    """Make a new run that shares the steps of another run, and can be resumed."""
    run, _, number = run.partition("/")
    with env.open() as memory:
        forked = memory.run(run).fork(step=count(number) if number else step)
        shared = forked.action_count
    lines = (
        "from smolmem import Memory",
        f"Memory({env.shown!r}).resume(agent, {forked.id[:8]!r})  # agent: with the same tools as before",
    )
    env.output.result({"run": forked, "python": list(lines)}, lambda: _forked(forked, shared, lines))


def _forked(run: Run, shared: int, lines: tuple[str, ...]) -> Any:
    from rich.syntax import Syntax
    from rich.text import Text

    text = f"  shares {counted(shared, 'step')} with {(run.fork_of or '')[:8]}. Resume the new run with:"
    head = Text.assemble((run.id[:8], "bold"), text)
    return [head, Text(), Syntax("\n".join(lines), "python", theme="ansi_dark", word_wrap=True)]


# --- steps --------------------------------------------------------------------------------------------------------

ANY_ERROR = "any"


@command(
    SECTION,
    "smolmem steps --error",
    "smolmem steps --tool weather --text sunny",
    "smolmem steps --run 3f9a2c1b --json",
    "smolmem steps 3f9a2c1b/1",
)
@argument(
    "id", "[STEP]", "Show this step: the first column of the list, or an id.", type=step_reference, required=False
)
@run_option("Only steps of this run.")
@filter_options
@choice("--kind", STEP_KINDS, "Only steps of this kind.")
@option("--tool", "NAME", "Only steps that call this tool.")
@option("--error", "[CLASS]", "Only steps that failed, or failed with this error.", is_flag=False, flag_value=ANY_ERROR)
@flag("--no-error", "Only steps that did not fail.")
@limit_option(50)
def steps(env: Environment, id: int | str | None, error: str | None, no_error: bool, **filters: Any) -> None:
    """List steps of all runs, the newest first, or show one step."""
    if error and no_error:
        raise click.UsageError("--error and --no-error exclude each other.", click.get_current_context())
    failed = False if no_error else True if error == ANY_ERROR else error
    with env.look() as memory:
        if id is not None:
            env.output.result(memory.step(id))
            return
        scope = env.scope or (None if filters["run"] else "*")
        found = memory.steps(scope=scope, error=failed, **filters)
    columns = (
        Column("step", lambda step: (step.reference, "bold")),
        Column("id", lambda step: (str(step.id), "dim"), right=True, wide=True),
        Column("kind", lambda step: step.kind),
        Column("at", lambda step: env.output.time(step.at), wide=True),
        Column("took", lambda step: duration(step.seconds), right=True, wide=True),
        Column("tools", lambda step: ", ".join(step.tools), max_width=20, wide=True),
        Column("text", lambda step: (in_short(step.text), "red" if step.error else ""), rest=True),
    )
    filtered = {**filters, "error": failed}
    env.output.rows(found, columns, env.nothing_found("steps", filtered), filters["limit"])


# --- comparing and counting ---------------------------------------------------------------------------------------


@command(SECTION, "smolmem diff 3f9a2c1b 8d2e01aa")
@run_argument("left", "RUN", "The beginning of a run's id.")
@run_argument("right", "OTHER", "The beginning of another run's id.")
def diff(env: Environment, left: str, right: str) -> None:
    """Show where two runs begin to differ."""
    with env.read() as memory:
        runs = memory.run(left), memory.run(right)
        found = runs[0].diff(runs[1])
        env.output.result(found, lambda: found if env.output.terminal or not found else _unified(found, *runs))


def _unified(found: Diff, left: Run, right: Run) -> Any:
    """The differing steps in the form of `diff -u`."""
    from rich.text import Text

    lines = [f"{counted(found.common, 'step')} in common, then"]
    for sign, run, steps in (("-", left, found.left), ("+", right, found.right)):
        lines.append(f"{sign * 3} {run.id[:8]}")
        for step in steps:
            number = "" if step.number is None else f" {step.number}"
            lines += [f"{sign} [{step.kind}{number}]", *(f"{sign} {line}" for line in step.text.splitlines())]
    return Text("\n".join(lines))


@command(SECTION, "smolmem stats", "smolmem stats --json")
def stats(env: Environment) -> None:
    """Show how much is stored."""
    with env.read() as memory:
        env.output.result(replace(memory.stats(), url=env.shown))


# --- SQL ----------------------------------------------------------------------------------------------------------

FORMATS = ("table", "csv", "json", "ndjson", "markdown")
LEGIBLE = 8
"""Characters of a value below which a column says too little."""
SECONDS, BYTES = 60.0, 1 << 30
"""How long a SELECT may take, and how much it may return."""


@command(
    SECTION,
    "smolmem sql 'select agent, count(*) as runs from runs group by agent'",
    'smolmem sql "select run, number, text from steps where error is not null" --format csv',
    "smolmem sql 'select * from notes' -n 10 --format markdown",
)
@argument("statement", "SELECT", "A SELECT over the tables runs, steps and notes.")
@choice("--format", FORMATS, "How the rows are printed (default: table).", default="table")
@limit_option(1_000)
def sql(env: Environment, statement: str, format: str, limit: int) -> None:
    """Query runs, steps and notes with SQL; nothing can be changed.

    The tables are `runs` (id, scope, agent, agent_type, title, status, began, ended, parent, fork_of, model, steps,
    errors, input_tokens, output_tokens, tags), `steps` (id, run, scope, agent, kind, number, at, seconds, error, tools,
    input_tokens, output_tokens, text) and `notes` (id, scope, kind, text, tags, origin, run, at, expires). Forgotten
    runs, steps and notes are left out. Times are in UTC. The SELECT is stopped after a minute. The SQL is SQLite's. For
    a store on PostgreSQL it is PostgreSQL's: LIKE ignores case there, too, and few functions can be called.
    """
    from smolmem.store.base import Limits

    limits = Limits(limit, SECONDS, BYTES, any_function=True)
    try:
        with env.open_journal() as journal:
            rows = journal.store.select(env.read_scope, statement, limits)
    except InvalidArgument as error:
        raise InvalidArgument(f"{error} `smolmem sql --help` lists the columns.") from None
    _print(env, rows, "json" if env.json else format, limit)


def _print(env: Environment, rows: Sequence[dict[str, Any]], format: str, limit: int) -> None:
    from smolmem.render.plain_values import as_json, plain

    out, names = env.output, list(rows[0]) if rows else []
    if format in ("json", "ndjson"):
        values = [rows] if format == "json" else rows
        out.text("\n".join(as_json(plain(each), indent=2 if format == "json" else None) for each in values))
    elif format == "csv":
        import csv
        import io

        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([names, *(row.values() for row in rows)] if rows else [])
        out.text(text.getvalue().rstrip("\n"))
    elif format == "markdown":
        lines = [names, ["---"] * len(names), *([_cell(value) for value in row.values()] for row in rows)]
        out.text("\n".join(f"| {' | '.join(line)} |" for line in lines) if rows else "")
    else:
        numeric = {name for name in names if all(isinstance(row[name], (int, float, type(None))) for row in rows)}
        shown = {name: lambda row, name=name: _text(row[name]) for name in names}
        widths = [max(map(len, (name, *(_text(row[name]) for row in rows)))) for name in names]
        fitting = _fitting(widths, out.console.width - 2 * len(names)) if out.terminal and rows else widths
        columns = [Column(n, shown[n], n in numeric, max_width=width) for n, width in zip(names, fitting, strict=True)]
        narrow = any(fits < min(width, LEGIBLE) for width, fits in zip(widths, fitting, strict=True))
        draw = (lambda: _records(rows)) if narrow else None
        out.rows(rows, columns, "The query returned no rows.", limit, draw)


def _records(rows: Sequence[dict[str, Any]]) -> Any:
    """Each value on a line of its own, where the terminal is too narrow for the columns."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    for number, row in enumerate(rows):
        if number:
            grid.add_row("", "")
        for name, value in row.items():
            grid.add_row(Text(name), Text(one_line(_text(value), CELL_LENGTH)))
    return grid


def _fitting(widths: Sequence[int], available: int) -> list[int]:
    """The widths of columns that fit: narrow columns keep their width, wide columns share the rest equally."""
    fitting, left = dict[int, int](), available
    for done, (width, index) in enumerate(sorted((width, index) for index, width in enumerate(widths))):
        fitting[index] = min(width, max(1, left // (len(widths) - done)))
        left -= fitting[index]
    return [fitting[index] for index in range(len(widths))]


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _cell(value: Any) -> str:
    """A value in a cell of a Markdown table."""
    return one_line(_text(value), 2_000).replace("\\", "\\\\").replace("|", "\\|")
