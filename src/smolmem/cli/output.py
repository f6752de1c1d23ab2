"""Where a command's results go: drawn on a terminal, as plain lines into a pipe, or as JSON.

Results go to standard output. Whatever else is said, hints, progress, questions, goes to standard error, so that a pipe
holds nothing but results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from smolmem.core.text import sanitize
from smolmem.render.as_json import as_json

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from smolmem.store.base import Progress

LONGEST = 400
"""Characters of a cell."""
QUICK = 0.5
"""Seconds that nobody needs a progress bar for."""
WIDE = 100
"""Columns from which on a terminal is wide."""


@dataclass(frozen=True)
class Column:
    """A column of a list; a `wide` one is left out where a terminal is narrow."""

    name: str
    right: bool = False
    rest: bool = False
    wide: bool = False
    most: int | None = None


Cell = str | tuple[str, str]
"""A text, or a text and its style."""


class Out:
    """One command's way out."""

    def __init__(self, json: bool) -> None:
        self.json = json
        self.terminal = not json and sys.stdout.isatty()
        self._console: Any = None

    @property
    def console(self) -> Any:
        """What drawings are printed to."""
        if self._console is None:
            from smolmem.render.plain_text import Pipe, Terminal

            self._console = Terminal(sys.stdout) if self.terminal else Pipe(sys.stdout)
        return self._console

    @property
    def narrow(self) -> bool:
        """Whether there is little room."""
        return self.terminal and self.console.width < WIDE

    def give(self, value: Any, draw: Callable[[], Any]) -> None:
        """A result: as JSON, or as it is drawn."""
        if self.json:
            from smolmem.render.plain_values import plain

            self._write(as_json(plain(value), ascii_only=_ascii(sys.stdout)))
        else:
            self.console.print(draw())

    def line(self, value: Any, draw: Callable[[], Any]) -> None:
        """One of many results that come while somebody waits: as one line of JSON, or as it is drawn."""
        if self.json:
            from smolmem.render.plain_values import plain

            self._write(as_json(plain(value), ascii_only=_ascii(sys.stdout), indent=None))
        else:
            self.console.print(draw())

    def many(self, values: Sequence[Any], columns: Sequence[Column], row: Callable[[Any], Sequence[Cell]]) -> None:
        """A list, a line each; where there is nothing to list, that is said beside the results."""
        if not values and not self.json:
            self.tell("There is nothing to show.")
        else:
            self.give(values, lambda: self._table(columns, [row(value) for value in values]))

    def text(self, text: str) -> None:
        """Text as it is, however long its lines are."""
        self._write(sanitize(text))

    def tell(self, text: str) -> None:
        """Something beside the results: a hint, or what is being done."""
        sys.stdout.flush()
        sys.stderr.write(f"{sanitize(text)}\n")
        sys.stderr.flush()

    def ask(self, question: str) -> bool:
        """Asks before something is done; where nobody can answer, it is done."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return True
        sys.stderr.write(f"{sanitize(question)} [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def time(self, moment: datetime) -> str:
        """A time of this place."""
        return f"{moment.astimezone():%m-%d %H:%M}" if self.narrow else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"

    @contextmanager
    def progress(self, about: str) -> Iterator[Progress | None]:
        """A bar for long work, beside the results and only on a terminal."""
        if not sys.stderr.isatty():
            yield None
            return
        began, bars = time.monotonic(), list[Any]()

        def told(done: int, total: int) -> None:
            if not bars and time.monotonic() - began > QUICK:
                bars.append(_bar(about))
            for bar in bars:
                bar.update(bar.task_ids[0], completed=done, total=total)

        try:
            yield told
        finally:
            for bar in bars:
                bar.stop()

    def _write(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def _table(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=self.terminal)
        shown = [number for number, column in enumerate(columns) if not (column.wide and self.narrow)]
        for column in (columns[number] for number in shown):
            table.add_column(
                column.name,
                justify="right" if column.right else "left",
                no_wrap=True,
                overflow="ellipsis",
                max_width=column.most if self.terminal else None,
                ratio=1 if column.rest else None,
            )
        for row in rows:
            table.add_row(*(_cell(row[number]) for number in shown))
        return table


def _bar(about: str) -> Any:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from smolmem.render.plain_text import Terminal

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Terminal(sys.stderr), transient=True)
    bar.add_task(sanitize(about), total=None)
    bar.start()
    return bar


def _cell(cell: Cell) -> Text:
    from rich.text import Text

    text, style = (cell, "") if isinstance(cell, str) else cell
    return Text(one_line(text), style)


def one_line(text: str, longest: int = LONGEST) -> str:
    """Text as one clean line."""
    line = " ".join(sanitize(text[: 4 * longest]).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _ascii(stream: Any) -> bool:
    return not (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf")
