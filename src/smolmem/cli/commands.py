"""What commands are made of: click classes, types of values, and options that several commands share.

A command has examples, an argument has a help text, and commands are listed by section. Every command takes `--db`,
`--scope`, `--key-file` and `--json`, before its name and after it: the options store their value in the `Environment`
that click passes to the command.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from smolmem.cli.environment import KEY_VARIABLE, URL_VARIABLE, Environment, names_store, stores_in
from smolmem.core.arguments import to_timestamp
from smolmem.core.errors import InvalidArgument, StoreError
from smolmem.core.text import one_line

SECTIONS = ("Runs and steps", "Recall and notes", "Rules and alerts", "Maintenance", "Getting started")
EXIT_CODES = {
    0: "success, also for an empty list, and when the reader of a pipe has closed it",
    1: "not found, not possible, or `verify` or `doctor` found a problem",
    2: "wrong usage",
    3: "the store cannot be used: missing, not a smolmem file, damaged, too new, locked or read-only",
    130: "interrupted with Ctrl-C",
}
OVERVIEW = """\
smolmem: the recorded runs of your smolagents agents.

  smolmem runs              list runs, the newest first
  smolmem replay            show the newest run step by step
  smolmem replay --follow   show a running agent live
  smolmem search WORDS      search everything that was done and noted
  smolmem tail              show each step as any agent records it
  smolmem ui                open the inspector in the browser
  smolmem demo              create a sample store
  smolmem doctor            check the store and its environment
"""

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
HELP_SETTINGS = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}
COMPLETION_VARIABLE = "_SMOLMEM_COMPLETE"
"""The environment variable by which the shell asks for completions."""

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]


class Argument(click.Argument):
    """A positional argument with a help text."""

    def __init__(self, *declarations: Any, help: str, **options: Any) -> None:
        super().__init__(*declarations, **options)
        self.description = help

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """The name and the help text."""
        return str(self.metavar), self.description

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """The values of the argument, and the stores that the word can name instead."""
        found = super().shell_complete(ctx, incomplete)
        return found if isinstance(self.type, click.Choice | click.Path) else [*found, *complete_store(ctx, incomplete)]


def argument(name: str, metavar: str, help: str, **options: Any) -> Decorator:
    """Adds a positional argument to a command."""
    return click.argument(name, cls=Argument, metavar=metavar, help=help, **options)


def _store(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    if value:
        setattr(ctx.ensure_object(Environment), str(option.name), value)


def common_options() -> list[click.Option]:
    """The options of every command."""
    stored: dict[str, Any] = {"expose_value": False, "callback": _store}
    where = f"The store; also the first word after the command (default: {URL_VARIABLE}, else the only store here)."
    key = f"A file with the key of an encrypted store (default: {KEY_VARIABLE}, else asked for)."
    return [
        click.Option(["--db"], metavar="PATH", type=click.Path(), help=where, **stored),
        click.Option(["--scope"], metavar="SCOPE", help="Only this scope; acme/* includes all scopes in it.", **stored),
        click.Option(["--key-file"], metavar="PATH", type=click.Path(), help=key, **stored),
        click.Option(["--json"], is_flag=True, help="Print JSON.", **stored),
    ]


class Command(click.Command):
    """A command of smolmem."""

    def __init__(self, *given: Any, section: str, examples: tuple[str, ...], **options: Any) -> None:
        super().__init__(*given, **options)
        self.section = section
        self.examples = examples
        self.own_params = list(self.params)
        self.params += common_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Takes the store from the first word, if it names one and the words that the command needs are left."""
        words = list(self._words(args))
        needed = sum(param.required for param in self.own_params if isinstance(param, Argument))
        if len(words) > needed and names_store(args[words[0]]):
            ctx.ensure_object(Environment).db = args[words[0]]
            args = args[: words[0]] + args[words[0] + 1 :]
        return super().parse_args(ctx, args)

    def _words(self, args: list[str]) -> Iterator[int]:
        """Where the arguments stand that are neither options nor values of options."""
        takes_value = {
            name
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag
            for name in param.opts
        }
        skip = False
        for place, word in enumerate(args):
            if skip:
                skip = False
            elif word == "--":
                yield from range(place + 1, len(args))
                return
            elif word.startswith("-") and word != "-":
                skip = word in takes_value
            else:
                yield place

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """The options, and the stores, of a command that takes no further argument."""
        return [*super().shell_complete(ctx, incomplete), *complete_store(ctx, incomplete)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Arguments, options, and the options of every command."""
        arguments = [param for param in self.own_params if isinstance(param, Argument)]
        options = [param for param in self.own_params if param not in arguments]
        common = [param for param in self.get_params(ctx) if param not in self.own_params]
        for title, params in (("Arguments", arguments), ("Options", options), ("Options of every command", common)):
            records = [param.get_help_record(ctx) for param in params]
            if records:
                with formatter.section(title):
                    formatter.write_dl([record for record in records if record is not None])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, each on one line."""
        formatter.write("\n".join(["\nExamples:", *(f"  {example}" for example in self.examples), ""]))


class CommandGroup(click.Group):
    """All commands; a misspelt command gets a suggestion."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.params[:0] = common_options()

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Finds the command that the first argument names, in the singular or the plural."""
        if args and args[0] not in self.commands:
            other = args[0].removesuffix("s") if args[0].endswith("s") else f"{args[0]}s"
            args = [other, *args[1:]] if other in self.commands else args
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            import difflib

            similar = difflib.get_close_matches(args[0], self.commands, 1)
            hint = f"did you mean {similar[0]!r}?" if similar else "`smolmem --help` lists all commands."
            if names_store(args[0]):
                hint = f"a command comes first, as in `smolmem runs {args[0]}`."
            raise NoSuchCommand(f"there is no command {args[0]!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The most useful commands, all commands by section, the common options and the exit codes."""
        formatter.write(OVERVIEW)
        for section in SECTIONS:
            lines = [
                f"  {command.name:12}{command.get_short_help_str(90)}"
                for command in self.commands.values()
                if isinstance(command, Command) and command.section == section
            ]
            formatter.write("\n".join([f"\n{section}:", *lines, ""]))
        with formatter.section("Options of every command"):
            records = (param.get_help_record(ctx) for param in self.get_params(ctx))
            formatter.write_dl([record for record in records if record is not None])
        codes = [f"  {code:<5}{when}" for code, when in EXIT_CODES.items()]
        formatter.write("\n".join(["\nExit codes:", *codes, "", "`smolmem COMMAND --help` shows examples.", ""]))


class NoSuchCommand(click.UsageError):
    """No command has this name; the message says what to do."""


def command(section: str, *examples: str) -> Callable[[Function], Command]:
    """Makes a command of a function whose first argument is the `Environment`; its docstring is the help text."""

    def make(function: Function) -> Command:
        made = click.command(cls=Command, section=section, examples=examples, context_settings=HELP_SETTINGS)
        return made(click.pass_obj(function))

    return make


# --- types of values ----------------------------------------------------------------------------------------------


def count(value: str | int) -> int:
    """A number of things, written in digits."""
    if not re.fullmatch(r"\d{1,15}", str(value), re.ASCII):
        raise click.BadParameter(f"{value!r} is not a whole number such as 0 or 20")
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
    if not re.fullmatch(r"\d{1,15}", text, re.ASCII):
        raise click.BadParameter(
            f"{text!r} is not a step: give a run and a number such as 3f9a2c1b/2, or an id such as 29"
        )
    return int(text)


def run_id(value: str) -> str:
    """The beginning of a run's id, also of a reference to one of its steps."""
    return value.partition("/")[0]


# --- completion ---------------------------------------------------------------------------------------------------


def complete_store(ctx: click.Context, incomplete: str) -> list[Any]:
    """The stores in this folder, until one is named."""
    from click.shell_completion import CompletionItem

    env = ctx.find_object(Environment)
    if env is not None and env.db:
        return []
    return [CompletionItem(path.name) for path in stores_in(Path()) if path.name.startswith(incomplete)]


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


_or_newest = "The beginning of the run's id (default: the newest run)."
optional_run = run_argument("run", "[RUN]", _or_newest, required=False, type=run_id)
agent_option = option("--agent", "NAME", "Only runs and steps of the agent with this name.")


def together(*decorators: Decorator) -> Decorator:
    """Several options as one decorator; the help text has them in this order."""

    def decorate(function: Function) -> Function:
        for each in reversed(decorators):
            function = each(function)
        return function

    return decorate


def limit_option(default: int, help: str = "The maximum number of results") -> Decorator:
    """`--limit`."""
    help = f"{help} (default: {default:,})."
    return click.option("-n", "--limit", "limit", metavar="N", help=help, type=count, default=default)


def prices_option(help: str) -> Decorator:
    """`--prices`."""
    return option("--prices", "IN,OUT", help, type=prices)


def time_options(prefix: str = "Only") -> Decorator:
    """`--since` and `--until`."""
    return together(
        option("--since", "TIME", f"{prefix} from this time on: 2025-03-31T12:00, yesterday, 2h.", type=past),
        option("--until", "TIME", f"{prefix} before this time.", type=past),
    )


filter_options = together(
    agent_option,
    choice("--status", STATUSES, "Only runs with this status."),
    time_options(),
    option("--text", "TEXT", "Only results that contain this text, in upper or lower case."),
)
"""The filters of both runs and steps."""
