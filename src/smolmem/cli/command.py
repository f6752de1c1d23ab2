"""What a command is, and the arguments that many of them take."""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smolmem.core.errors import InvalidArgument, NotAStore, NotFound

if TYPE_CHECKING:
    from smolmem.cli.output import Out
    from smolmem.core.values import Run
    from smolmem.memory import Memory

DEFAULT = "smolmem.db"
VARIABLE = "SMOLMEM_URL"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True)
class Command:
    """A command: what it is for, what it takes, what it does, and how it is used."""

    name: str
    group: str
    about: str
    act: Callable[[argparse.Namespace, Out], int | None]
    examples: tuple[str, ...]
    arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    more: str = ""


# --- the store ----------------------------------------------------------------------------------------------------


def url_of(args: argparse.Namespace) -> str:
    """The memory that is meant: `--db`, the environment, or the file of this folder."""
    return str(args.db or os.environ.get(VARIABLE) or DEFAULT)


def opened(args: argparse.Namespace, *, create: bool = False, **options: Any) -> Memory:
    """Opens the memory that is meant; one that is not there is made only where that was asked for.

    Raises:
        NotAStore: it is not there.
        StoreError: it cannot be used.
    """
    url = url_of(args)
    path = url.removeprefix("sqlite:///")
    if not create and "://" not in path and "\0" not in path and not os.path.lexists(path):
        raise NotAStore(
            f"There is no memory at {path}: name one with --db PATH or in {VARIABLE}, "
            "or make one to look at with `smolmem demo`."
        )
    from smolmem.memory import Memory

    return Memory(url, **options)


def scope_of(args: argparse.Namespace) -> str:
    """The scope that is looked at: all of them, unless one is named."""
    return args.scope or "*"


def run_of(memory: Memory, args: argparse.Namespace, given: str | None) -> Run:
    """A run by the beginning of its id, or the newest that no other run has called.

    Raises:
        NotFound: there is none.
    """
    if given is not None:
        return memory.run(given)
    found = memory.runs(scope=scope_of(args), managed=False, limit=1)
    if not found:
        raise NotFound(f"there are no runs yet in {url_of(args)}: `smolmem demo` makes some to look at.")
    return found[0]


# --- arguments ----------------------------------------------------------------------------------------------------


def count(text: str) -> int:
    """How many."""
    if not re.fullmatch(r"\d{1,15}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a count")
    return int(text)


def number(text: str) -> float:
    """An amount."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def past(text: str) -> float:
    """A time: `2025-03-31`, `2025-03-31T12:00`, or so long ago: `90m`, `2h`, `3d`, `1w`."""
    return _moment(text, -1)


def future(text: str) -> float:
    """A time, or so long from now."""
    return _moment(text, +1)


def _moment(text: str, direction: int) -> float:
    length = re.fullmatch(r"(\d{1,9})([smhdw])", text, re.ASCII)
    if length is not None:
        return time.time() + direction * int(length[1]) * _UNITS[length[2]]

    try:
        return time_of(text) or 0.0
    except InvalidArgument:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: give one such as 2025-03-31T12:00, or a length such as 2h or 3d"
        ) from None


def prices(text: str) -> tuple[float, float]:
    """Two amounts."""
    try:
        sent, got = map(float, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are not two prices such as 0.5,1.5") from None
    return sent, got


def times(parser: argparse.ArgumentParser) -> None:
    """`--since` and `--until`."""
    parser.add_argument("--since", metavar="TIME", type=past, help="only from then on: 2025-03-31T12:00, or 2h, 3d ago")
    parser.add_argument("--until", metavar="TIME", type=past, help="only before then")


def limit(parser: argparse.ArgumentParser, most: int) -> None:
    """`--limit`."""
    parser.add_argument("--limit", metavar="N", type=count, default=most, help=f"how many at most ({most})")
