"""Commands to begin with: ui, demo, completion."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING

from smolmem.cli.command import Command, count, opened, url_of
from smolmem.core.errors import InvalidArgument, SmolmemError, Unwritable

if TYPE_CHECKING:
    from smolmem.cli.output import Out

SHELLS = ("bash", "zsh", "fish")
HOST = "127.0.0.1"
SAMPLE = "smolmem-demo.db"


def ui(args: argparse.Namespace, out: Out) -> None:
    """Starts the inspector."""
    opened(args).close()  # a file that cannot be used is told here, not in the browser
    _serve(args, url_of(args))


def _serve(args: argparse.Namespace, url: str) -> None:
    try:
        from smolmem.inspector.serve import serve
    except ImportError as error:
        raise SmolmemError(f"the inspector lacks {error.name}: pip install 'smolmem[ui]'.") from error
    try:
        serve(
            url,
            host=args.host,
            port=args.port,
            read_only=args.read_only,
            open_browser=not args.no_browser,
            scope=args.scope or "default",
        )
    except InvalidArgument as error:  # the port is in use
        raise SmolmemError(str(error)) from error


def demo(args: argparse.Namespace, out: Out) -> None:
    """Makes a sample memory to look at."""
    from smolmem.cli.sample import fill

    path = args.path or args.db or SAMPLE
    if os.path.lexists(path):
        raise Unwritable(f"{path} is there already, and was left as it is: give another path, or look at it with --db.")
    out.tell("Agents are at work…")
    fill(path)
    tries = [
        f"smolmem {rest} --db {shlex.quote(path)}" for rest in ("runs", "replay", "search checkout", "stats", "ui")
    ]
    shown = "\n".join([f"{path} holds sample runs. To look at them:", "", *(f"  {line}" for line in tries)])
    out.give({"path": path, "try": tries}, lambda: shown)
    if not args.no_ui and not out.json:
        _serve(args, path)


def completion(args: argparse.Namespace, out: Out) -> None:
    """Prints a script for a shell."""
    from smolmem.cli.completion import script
    from smolmem.cli.parser import parser

    text = script(args.shell, parser())
    if out.json:
        out.give({"shell": args.shell, "script": text}, lambda: None)
    else:
        out.text(text)


def _of_ui(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default=HOST, help=f"where to listen ({HOST}: this machine alone)")
    parser.add_argument("--port", metavar="N", type=count, help="the port (8265, or any that is free)")
    parser.add_argument("--read-only", action="store_true", help="nothing can be changed from the page")
    parser.add_argument("--no-browser", action="store_true", help="print the address and open nothing")


def _of_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", nargs="?", help=f"the file to make ({SAMPLE})")
    parser.add_argument("--no-ui", action="store_true", help="do not start the inspector")
    _of_ui(parser)


def _of_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")


COMMANDS = (
    Command(
        "ui",
        "Start",
        "the inspector: the same in the browser",
        ui,
        ("smolmem ui", "smolmem ui --read-only --port 9000 --no-browser"),
        _of_ui,
    ),
    Command(
        "demo",
        "Start",
        "makes a sample memory to look at, and opens it",
        demo,
        ("smolmem demo", "smolmem demo sample.db --no-ui"),
        _of_demo,
    ),
    Command(
        "completion",
        "Start",
        "prints a script that completes commands, options and run ids in your shell",
        completion,
        (
            "smolmem completion bash > ~/.local/share/bash-completion/completions/smolmem",
            "smolmem completion fish > ~/.config/fish/completions/smolmem.fish",
            "smolmem completion zsh > ~/.zfunc/_smolmem",
        ),
        _of_completion,
    ),
)
