"""Options that several commands share, and the types of option values."""

from __future__ import annotations

import os
import re
import time
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from smolmem.cli.commands import Decorator, Function, argument
from smolmem.cli.environment import Environment
from smolmem.core.arguments import to_timestamp
from smolmem.core.errors import InvalidArgument, StoreError
from smolmem.core.text import one_line

STATUSES = ("running", "finished", "failed", "interrupted", "max_steps")
STEP_KINDS = ("task", "planning", "action", "injected", "system_prompt", "final_answer", "other")
TRUST = ("low", "medium", "high")
ORIGINS = ("user", "model", "tool", "web", "import", "agent")
"""Written out here, because `core/rows.py` takes a tenth of the time of `--help`; a test compares them."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d{1,9})([smhdw])", re.ASCII)
_DAYS = {"today": 0, "yesterday": -1, "tomorrow": 1}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MOST_COMPLETIONS = 50


# --- types of values ----------------------------------------------------------------------------------------------


def count(value: str | int) -> int:
    """A number of things, written in digits."""
    if not re.fullmatch(r"\d{1,15}", str(value), re.ASCII):
        raise click.BadParameter(f"{value!r} is not a count")
    return int(value)


def port(value: str | int) -> int:
    """The number of a port; 0 for any free port."""
    number = count(value)
    if number > 65_535:
        raise click.BadParameter(f"{number} is not a port: ports are numbers up to 65535")
    return number


def past(value: str) -> float:
    """A time such as `2025-03-31T12:00`, or a duration such as `2h` before now, as a timestamp."""
    return _timestamp(value, -1)


def future(value: str) -> float:
    """A time, or a duration from now, as a timestamp."""
    return _timestamp(value, +1)


def duration(value: str) -> float:
    """A duration such as `90d`, in seconds."""
    found = _DURATION.fullmatch(value)
    if found is None:
        raise click.BadParameter(f"{value!r} is not a duration such as 12h, 90d or 52w")
    return int(found[1]) * _SECONDS[found[2]]


def _timestamp(value: str, direction: int) -> float:
    today = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    word = value.strip().lower()
    if word in _WEEKDAYS:
        return (today - timedelta(days=(today.weekday() - _WEEKDAYS.index(word)) % 7)).timestamp()
    if word in _DAYS:
        return (today + timedelta(days=_DAYS[word])).timestamp()
    if _DURATION.fullmatch(value):
        return time.time() + direction * duration(value)
    try:
        return to_timestamp(value) or 0.0
    except InvalidArgument:
        example = "give a time such as 2025-03-31T12:00, a day such as yesterday, or a duration such as 2h or 3d"
        raise click.BadParameter(f"{value!r} is not a time: {example}") from None


def prices(value: str) -> tuple[float, float]:
    """The prices of a million input and output tokens."""
    try:
        price_in, price_out = map(float, value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a pair of prices such as 0.5,1.5") from None
    return price_in, price_out


def step_reference(value: str | int) -> int | str:
    """The id of a step, or a reference such as `646430df/3`."""
    text = str(value)
    if re.fullmatch(r"[0-9a-fA-F]+/@?\d{1,15}", text, re.ASCII):
        return text
    return count(text)


def run_id(value: str) -> str:
    """The beginning of a run's id, also of a reference to one of its steps."""
    return value.partition("/")[0]


# --- completion ---------------------------------------------------------------------------------------------------


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """The ids of the newest runs. The store is read without smolagents, and never created or migrated."""
    from click.shell_completion import CompletionItem

    from smolmem.store.base import migrations
    from smolmem.store.records import Records
    from smolmem.store.sqlite.encryption import resolve_key
    from smolmem.store.sqlite.header import read_version
    from smolmem.store.sqlite.sqlite_store import SqliteStore

    env = ctx.find_object(Environment) or Environment()
    env.asks = False
    try:
        key = resolve_key(env.key)
        if not os.path.isfile(env.path) or read_version(Path(env.path), key) != len(migrations("sqlite")):
            return []
        with closing(SqliteStore(env.path, key=key)) as store:
            runs = Records(store).find_runs(limit=_MOST_COMPLETIONS)
    except (StoreError, InvalidArgument):
        return []
    found = [(run.id, one_line(run.title, 60)) for run in runs]
    return [CompletionItem(id[:8], help=title) for id, title in found if id.startswith(incomplete)]


# --- options and arguments ----------------------------------------------------------------------------------------


def option(name: str, metavar: str, help: str, **options: Any) -> Decorator:
    """An option with a value."""
    return click.option(name, metavar=metavar, help=help, **options)


def flag(name: str, help: str) -> Decorator:
    """An option without a value."""
    return click.option(name, is_flag=True, help=help)


def choice(name: str, choices: tuple[str, ...], help: str, **options: Any) -> Decorator:
    """An option whose value is one of a few words."""
    return click.option(name, type=click.Choice(choices), metavar=f"{{{','.join(choices)}}}", help=help, **options)


def run_option(help: str, name: str = "--run", **options: Any) -> Decorator:
    """An option whose value is the beginning of a run's id."""
    return option(name, "RUN", help, shell_complete=complete_run, type=run_id, **options)


def run_argument(name: str, metavar: str, help: str, **options: Any) -> Decorator:
    """An argument that is the beginning of a run's id."""
    return argument(name, metavar, help, shell_complete=complete_run, **options)


def optional_run(function: Function) -> Function:
    """`[RUN]`."""
    help = "The beginning of the run's id (default: the newest run)."
    return run_argument("run", "[RUN]", help, required=False, type=run_id)(function)


def limit_option(default: int, help: str = "The maximum number of results") -> Decorator:
    """`--limit`."""
    help = f"{help} (default: {default:,})."
    return click.option("-n", "--limit", "limit", metavar="N", help=help, type=count, default=default)


def agent_option(function: Function) -> Function:
    """`--agent`."""
    return option("--agent", "NAME", "Only runs and steps of the agent with this name.")(function)


def prices_option(help: str) -> Decorator:
    """`--prices`."""
    return option("--prices", "IN,OUT", help, type=prices)


def time_options(prefix: str = "Only") -> Decorator:
    """`--since` and `--until`."""

    def decorate(function: Function) -> Function:
        since = option("--since", "TIME", f"{prefix} from this time on: 2025-03-31T12:00, yesterday, 2h.", type=past)
        until = option("--until", "TIME", f"{prefix} before this time.", type=past)
        return since(until(function))

    return decorate


def filter_options(function: Function) -> Function:
    """The filters of both runs and steps."""
    status = choice("--status", STATUSES, "Only runs with this status.")
    text = option("--text", "TEXT", "Only results that contain this text, in upper or lower case.")
    return agent_option(status(time_options()(text(function))))
