"""The click classes of the command line: a command with examples, arguments with help, commands listed by section.

Every command takes `--db`, `--scope`, `--key-file` and `--json`, before its name and after it: the options store their
value in the `Environment` that click passes to the command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click

from smolmem.cli.environment import KEY_VARIABLE, URL_VARIABLE, Environment, names_store

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

HELP_SETTINGS = {"max_content_width": 100}
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
