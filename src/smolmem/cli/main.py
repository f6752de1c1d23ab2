"""The way in: parses, runs one command, and turns whatever goes wrong into one sentence and an exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from smolmem.cli.command import VARIABLE, url_of
from smolmem.cli.output import Out
from smolmem.cli.parser import overview, parser
from smolmem.core.errors import InvalidArgument, SmolmemError, StoreError
from smolmem.core.text import sanitize

_WORDS = {
    "`memory.runs(scope='*')`": "`smolmem runs`",
    "`memory.steps()`": "`smolmem steps`",
    "`memory.notes()`": "`smolmem notes`",
    "(at=…)": "(--at N)",
}
"""What the library says to programs, as it is said here."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with _log():
            code = _run([*given[1:], "--help"] if given[:1] == ["help"] else given)
            sys.stdout.flush()
            return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to be flushed at exit
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        return _say("", 130)
    except SmolmemError as error:
        return _say(
            _translated(error), 2 if isinstance(error, InvalidArgument) else 3 if isinstance(error, StoreError) else 1
        )
    except Exception as error:
        if os.environ.get("SMOLMEM_DEBUG"):
            raise
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return _say(f"this should not have happened ({what}); SMOLMEM_DEBUG=1 shows where.", 1)


def _run(given: list[str]) -> int:
    args = parser().parse_args(given)
    out = Out(args.json)
    if args.version:
        from smolmem import __version__

        out.give({"version": __version__}, lambda: __version__)
        return 0
    if args.command is None:
        out.text(overview())
        there = os.path.exists(url_of(args))
        here = f"They look at {url_of(args)}" if there else f"There is no {url_of(args)} here yet"
        out.text(f"\n{here}; --db PATH or {VARIABLE} name another. `smolmem --help` lists every command.")
        return 0
    return args.act(args, out) or 0


def _translated(error: SmolmemError) -> str:
    text = str(error)
    for ours, theirs in _WORDS.items():
        text = text.replace(ours, theirs)
    return text


def _say(text: str, code: int) -> int:
    try:
        sys.stdout.flush()
        sys.stderr.write(f"smolmem: {' '.join(sanitize(text).split())}\n" if text else "\n")
        sys.stderr.flush()
    except OSError:  # nobody is there to read it
        pass
    return code


class _Clean(logging.Handler):
    """What the library warns of, beside the results."""

    def emit(self, record: logging.LogRecord) -> None:
        """Says it."""
        _say(record.getMessage().removeprefix("smolmem: "), 0)


@contextmanager
def _log() -> Iterator[None]:
    log, handler = logging.getLogger("smolmem"), _Clean(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


if __name__ == "__main__":
    sys.exit(main())
