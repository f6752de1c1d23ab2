"""The entry point: runs one command, and turns every error into one sentence and an exit code."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from smolmem.cli import listing
from smolmem.cli.commands import COMPLETION_VARIABLE, HELP_SETTINGS, OVERVIEW, CommandGroup, NoSuchCommand
from smolmem.cli.environment import URL_VARIABLE, Environment
from smolmem.core.errors import InvalidArgument, SmolmemError, StoreError
from smolmem.core.text import sanitize
from smolmem.core.version import __version__

_COMMAND_LINE_WORDS = {
    "`memory.runs(scope='*')`": "`smolmem runs`",
    "`memory.steps()`": "`smolmem steps`",
    "`memory.notes()`": "`smolmem notes`",
    "(step=…)": "(--step N)",
    "a store is opened with Memory(path)": "`smolmem runs --db PATH` reads a store",
    "open the memory once with embedder='local'": "run `smolmem model use e5-small-v2`",
    "embedder='off' or `smolmem model use off`": "`smolmem model use off`",
}
"""How messages of the library name things, and how the command line names them."""


@click.group("smolmem", cls=CommandGroup, invoke_without_command=True, context_settings=HELP_SETTINGS)
@click.option("--version", is_flag=True, help="Print the version.")
@click.pass_context
def group(ctx: click.Context, version: bool) -> None:
    """Read and maintain the recorded runs of smolagents agents."""
    env = ctx.ensure_object(Environment)
    if version:
        env.output.text(json.dumps({"version": __version__}) if env.json else __version__)
        ctx.exit()
    if ctx.invoked_subcommand is None:
        env.output.text(f"{OVERVIEW}\n{_store_found(env)} `smolmem --help` lists all commands.")


def _store_found(env: Environment) -> str:
    """The store that commands would use, in words."""
    env.asks = False
    try:
        is_there = "://" in env.path or os.path.exists(env.path)
    except StoreError as several:
        return str(several)
    state = f"The store is {env.shown}" if is_there else f"There is no store {env.place}"
    return f"{state}; --db PATH or {URL_VARIABLE} names another store."


for each in (listing.runs, listing.show, listing.steps):
    group.add_command(each)


def all_commands() -> click.Group:
    """The group with every command. `runs`, `show` and `steps` do not wait for the modules of the others."""
    from smolmem.cli import erasing, exchanging, live, maintenance, searching, start, watching

    for each in (
        *(live.replay, listing.diff, listing.fork, listing.tag, listing.stats, live.tail, live.top, listing.sql),
        *(searching.search, searching.context, searching.notes, searching.remember, searching.forget),
        *(exchanging.trace, searching.model, start.mcp),
        *(watching.alerts, watching.watch),
        *(maintenance.export, maintenance.load, exchanging.import_, maintenance.index, maintenance.backup),
        *(exchanging.copy, exchanging.roles),
        *(erasing.erase, erasing.prune, erasing.purge),
        *(maintenance.verify, maintenance.doctor, maintenance.migrate),
        *(maintenance.encrypt, maintenance.decrypt, maintenance.rekey),
        *(start.ui, start.demo, start.completion),
    ):
        group.add_command(each)
    return group


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    env = Environment()
    try:
        with _warnings_on_stderr(), env.closing:
            code = _run(words, env)
            sys.stdout.flush()
            return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit does not fail
        return 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _report("", 130)
    except click.ClickException as error:
        return _report(_usage(error), 2)
    except SmolmemError as error:
        code = 2 if isinstance(error, InvalidArgument) else 3 if isinstance(error, StoreError) else 1
        return _report(_in_command_line_words(str(error).replace(env.copy or "\0", env.path if env.copy else "")), code)
    except Exception as error:
        if os.environ.get("SMOLMEM_DEBUG"):
            raise
        name = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return _report(f"unexpected error ({name}); SMOLMEM_DEBUG=1 shows the traceback.", 1)


def _run(words: list[str], env: Environment) -> int:
    instruction = os.environ.get(COMPLETION_VARIABLE)
    commands = group if words and words[0] in group.commands and not instruction else all_commands()
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(commands, {}, "smolmem", COMPLETION_VARIABLE, instruction)
    args = [*words[1:], "--help"] if words[:1] == ["help"] else words
    with commands.make_context("smolmem", args, obj=env) as ctx:
        return commands.invoke(ctx) or 0


def _usage(error: click.ClickException) -> str:
    if isinstance(error, NoSuchCommand):
        return error.format_message()
    command = getattr(getattr(error, "ctx", None), "command_path", "smolmem")
    message = error.format_message()
    return f"{message}{'' if message.endswith(('.', '?', ')')) else '.'} `{command} --help` shows the usage."


def _in_command_line_words(text: str) -> str:
    for library, command_line in _COMMAND_LINE_WORDS.items():
        text = text.replace(library, command_line)
    return text


def _report(text: str, code: int) -> int:
    try:
        sys.stdout.flush()
        sys.stderr.write(f"smolmem: {' '.join(sanitize(text).split())}\n" if text else "\n")
        sys.stderr.flush()
    except OSError:  # standard error is closed
        pass
    return code


class _Warnings(logging.Handler):
    """Prints the library's warnings to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Prints one warning."""
        _report(_in_command_line_words(record.getMessage().removeprefix("smolmem: ").removeprefix("smolmem ")), 0)


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    log, handler = logging.getLogger("smolmem"), _Warnings(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
