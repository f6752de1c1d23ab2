"""The command for a user's own SELECT, and the forms its rows are printed in."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from smolmem.cli.commands import argument, command
from smolmem.cli.environment import Environment
from smolmem.cli.options import choice, limit_option
from smolmem.cli.output import Column
from smolmem.core.errors import InvalidArgument
from smolmem.core.text import one_line

FORMATS = ("table", "csv", "json", "ndjson", "markdown")
SECONDS = 60.0
BYTES = 1 << 30


@command(
    "Runs and steps",
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
    _print(env, rows, "json" if env.json else format)


def _print(env: Environment, rows: Sequence[dict[str, Any]], format: str) -> None:
    from smolmem.render.as_json import as_json
    from smolmem.render.plain_values import plain

    out, names = env.output, list(rows[0]) if rows else []
    if format in ("json", "ndjson"):
        values = [rows] if format == "json" else rows
        out.text("\n".join(as_json(plain(each), indent=2 if format == "json" else None) for each in values))
    elif format == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([names, *(row.values() for row in rows)] if rows else [])
        out.text(text.getvalue().rstrip("\n"))
    elif format == "markdown":
        lines = [names, ["---"] * len(names), *([_cell(value) for value in row.values()] for row in rows)]
        out.text("\n".join(f"| {' | '.join(line)} |" for line in lines) if rows else "")
    else:
        numeric = {name for name in names if all(isinstance(row[name], (int, float, type(None))) for row in rows)}
        cells = {name: lambda row, name=name: _text(row[name]) for name in names}
        out.rows(rows, [Column(name, cells[name], name in numeric, rest=name == names[-1]) for name in names])


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _cell(value: Any) -> str:
    """A value in a cell of a Markdown table."""
    return one_line(_text(value), 2_000).replace("\\", "\\\\").replace("|", "\\|")
