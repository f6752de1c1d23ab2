"""The parser, made of the commands; help, completion and docs/cli.md are made of the parser."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import NoReturn

from smolmem.cli import keeping, looking, remembering, reviewing, starting, watching
from smolmem.cli.command import DEFAULT, VARIABLE, Command
from smolmem.core.text import sanitize

COMMANDS: tuple[Command, ...] = (
    *looking.COMMANDS,
    *reviewing.COMMANDS,
    *remembering.COMMANDS,
    *watching.COMMANDS,
    *keeping.COMMANDS,
    *starting.COMMANDS,
)
GROUPS = ("Look", "Remember", "Watch", "Keep", "Start")
CODES = {
    0: "all is well; also where a list is empty, and where whoever reads a pipe has gone",
    1: "what was asked for is not there or cannot be done, or something is wrong: `verify`, `doctor`",
    2: "wrong usage",
    3: "the memory cannot be used: no file, another program's, damaged, too new, locked, read-only",
    130: "interrupted with Ctrl-C",
}
WIDTH = 88


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong with the arguments, and ends with 2."""
        wrong = re.match(r"argument COMMAND: invalid choice: '(.*?)' \(", message, re.DOTALL)
        if wrong is not None:
            near = difflib.get_close_matches(wrong[1], [command.name for command in COMMANDS], 1)
            meant = f": did you mean {near[0]!r}?" if near else ". `smolmem --help` lists what there is."
            message = f"there is no command {wrong[1]!r}{meant}"
        else:
            message = f"{message}. `{self.prog} --help` tells how it is used."
        sys.stderr.write(f"{self.prog}: {sanitize(' '.join(message.split()))}\n")
        raise SystemExit(2)


class _Top(Parser):
    def format_help(self) -> str:
        """Commands by what one wants to do."""
        return f"{overview()}\n{_everything()}\n"


@cache
def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Top(prog="smolmem", allow_abbrev=False, description="What smolagents agents did, on disk.")
    _common(top, first=True)
    top.add_argument("--version", action="store_true", help="the version of smolmem, and nothing else")
    made = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for command in COMMANDS:
        one = made.add_parser(
            command.name,
            help=command.about,
            description=_description(command),
            epilog="\n".join(["examples:", *(f"  {example}" for example in command.examples)]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.arguments(one)
        _common(one.add_argument_group("for every command"), first=False)
        one.set_defaults(act=command.act)
    return top


def _common(to: argparse.ArgumentParser | argparse._ArgumentGroup, *, first: bool) -> None:
    """What every command takes, before its name and after it."""
    missing = None if first else argparse.SUPPRESS
    to.add_argument(
        "--db", metavar="PATH", default=missing, help=f"the memory ({VARIABLE}, or {DEFAULT} in this folder)"
    )
    to.add_argument("--scope", metavar="SCOPE", default=missing, help="only this scope; acme/* with all below (all)")
    to.add_argument("--json", action="store_true", default=False if first else missing, help="print JSON")


def _description(command: Command) -> str:
    about = f"{command.about[0].upper()}{command.about[1:]}."
    return "\n\n".join(textwrap.fill(part, WIDTH) for part in (about, command.more) if part)


def commands_of(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of the commands, by name."""
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def options_of(one: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """What a command takes, positions first; not what is hidden, and not its help."""
    shown = [action for action in one._actions if action.help != argparse.SUPPRESS and action.dest != "help"]
    shown = [action for action in shown if not isinstance(action, argparse._SubParsersAction)]
    yield from sorted(shown, key=lambda action: bool(action.option_strings))


# --- what is said without a command -------------------------------------------------------------------------------


def overview() -> str:
    """A few lines to begin with."""
    useful = {
        "smolmem runs": "what ran, the newest first",
        "smolmem replay": "the newest run, step by step",
        "smolmem replay --follow": "a running agent, live",
        "smolmem search WORDS": "what was done and noted about something",
        "smolmem ui": "the same in the browser",
        "smolmem demo": "a sample memory to look at",
        "smolmem doctor": "is anything wrong?",
    }
    lines = [f"  {command:26}{about}" for command, about in useful.items()]
    return "\n".join(["smolmem: what your agents did, on disk.", "", *lines])


def _everything() -> str:
    lines = []
    for group in GROUPS:
        lines += ["", f"{group}:"]
        lines += [f"  {command.name:12}{command.about}" for command in COMMANDS if command.group == group]
    common = f"--db PATH    the memory; else {VARIABLE}, else {DEFAULT} in this folder"
    rest = [
        "--scope S    only this scope; acme/* with all below",
        "--json       print JSON",
        "--version    the version",
    ]
    lines += ["", "For every command:", f"  {common}", *(f"  {line}" for line in rest)]
    codes = [f"  {code:<5}{about}" for code, about in CODES.items()]
    return "\n".join([*lines, "", "Exit codes:", *codes, "", "`smolmem COMMAND --help` has examples."])
