"""Where a command's results are printed: drawn on a terminal, as plain lines into a pipe, or as JSON.

Results go to standard output. Hints, progress and questions go to standard error, so that a pipe holds only results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from smolmem.core.text import counted, one_line, sanitize

if TYPE_CHECKING:
    from rich.table import Table

    from smolmem.store.base import Progress

CELL_LENGTH = 400
"""The maximum number of characters of a cell."""
PROGRESS_AFTER = 0.5
"""Seconds before a progress bar appears."""
WIDE = 100
"""The columns of a wide terminal."""
POLL_SECONDS = 0.25
"""Seconds between two reads of a store that is followed."""


Cell = str | tuple[str, str]
"""A text, or a text and its style."""


@dataclass(frozen=True)
class Column:
    """A column of a list: `cell` is what it shows of a value.

    A `wide` column is left out on a narrow terminal, a `rest` column takes the space left.
    """

    name: str
    cell: Callable[[Any], Cell]
    right: bool = False
    rest: bool = False
    wide: bool = False
    max_width: int | None = None
    shown: bool = True


class Output:
    """The output of one command."""

    def __init__(self, json: bool) -> None:
        self.json = json
        self.terminal = not json and sys.stdout.isatty()
        self._console: Any = None

    @property
    def console(self) -> Any:
        """The console that drawings are printed to."""
        if self._console is None:
            from smolmem.render import terminal  # noqa: F401  registers how values are drawn
            from smolmem.render.consoles import PipeConsole, TerminalConsole

            self._console = TerminalConsole(sys.stdout) if self.terminal else PipeConsole(sys.stdout)
        return self._console

    @property
    def narrow(self) -> bool:
        """Whether the terminal is narrow."""
        return self.terminal and self.console.width < WIDE

    def result(self, value: Any, draw: Callable[[], Any] | None = None, *, indent: int | None = 2) -> None:
        """Prints a result: the value as JSON, or the drawing of it; a list of drawings one below the other."""
        if self.json:
            from smolmem.render.plain_values import as_json, plain

            ascii_only = not (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
            self._write(as_json(plain(value), ascii_only=ascii_only, indent=indent))
        else:
            drawn = value if draw is None else draw()
            for part in drawn if isinstance(drawn, list) else [drawn]:
                self.console.print(part)

    def line(self, parts: Sequence[tuple[str, str]]) -> None:
        """Prints texts in their styles as one line, shortened to the width of a terminal, and complete in a pipe."""
        from rich.text import Text

        text = Text.assemble(*((sanitize(part), style) for part, style in parts))
        self.console.print(text, no_wrap=True, overflow="ellipsis" if self.terminal else "ignore", crop=self.terminal)
        sys.stdout.flush()

    def stream(self, value: Any) -> None:
        """Prints one of many results as soon as it is known: as one line of JSON, or drawn."""
        self.result(value, indent=None)

    def rows(
        self,
        values: Sequence[Any],
        columns: Sequence[Column],
        empty: str = "There is nothing to show.",
        limit: int | None = None,
        draw: Callable[[], Any] | None = None,
    ) -> None:
        """Prints a list, one line for each value, or as `draw` draws it.

        Standard error gets the sentence `empty` for an empty list, and a hint if the list has as many values as
        `--limit` allows.
        """
        if not values and not self.json:
            self.hint(empty)
            return
        self.result(values, draw or (lambda: self.table(values, columns)))
        if len(values) == limit and not self.json:
            self.hint(f"Only {counted(limit, 'result')} shown: --limit N shows more.")

    def text(self, text: str) -> None:
        """Prints text without wrapping its lines."""
        self._write(sanitize(text))

    def hint(self, text: str) -> None:
        """Prints a sentence to standard error."""
        sys.stdout.flush()
        click.echo(sanitize(text), err=True)

    def confirm(self, question: str) -> bool:
        """Asks before something is changed; without a terminal the answer is yes."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return True
        return click.confirm(sanitize(question), err=True)

    def time(self, moment: datetime) -> str:
        """A time in the local time zone."""
        return f"{moment.astimezone():%m-%d %H:%M}" if self.narrow else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"

    def wait(self) -> None:
        """Waits until the store is read again."""
        time.sleep(POLL_SECONDS)

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress | None]:
        """A progress bar on standard error for long work; only on a terminal."""
        if not sys.stderr.isatty():
            yield None
            return
        began, bars = time.monotonic(), list[Any]()

        def update(done: int, total: int) -> None:
            if not bars and time.monotonic() - began > PROGRESS_AFTER:
                bars.append(_bar(title))
            for bar in bars:
                bar.update(bar.task_ids[0], completed=done, total=total)

        try:
            yield update
        finally:
            for bar in bars:
                bar.stop()

    def _write(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def table(self, values: Sequence[Any], columns: Sequence[Column]) -> Table:
        """A table that fits the terminal, or has its full width in a pipe."""
        from rich.table import Table
        from rich.text import Text

        shown = [column for column in columns if column.shown and not (column.wide and self.narrow)]
        expand = self.terminal and any(column.rest for column in shown)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=expand)
        for column in shown:
            table.add_column(
                column.name,
                justify="right" if column.right else "left",
                no_wrap=True,
                overflow="ellipsis",
                max_width=column.max_width if self.terminal else None,
                ratio=1 if column.rest else None,
            )
        for value in values:
            cells = ((cell, "") if isinstance(cell, str) else cell for cell in (column.cell(value) for column in shown))
            table.add_row(*(Text(one_line(text, CELL_LENGTH), style) for text, style in cells))
        return table


def failures(count: int) -> Cell:
    """How many steps failed; empty if none did."""
    return (f"{count:,}" if count else "", "red")


def _bar(title: str) -> Any:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from smolmem.render.consoles import TerminalConsole

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=TerminalConsole(sys.stderr), transient=True)
    bar.add_task(sanitize(title), total=None)
    bar.start()
    return bar
