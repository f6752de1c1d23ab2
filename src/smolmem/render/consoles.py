"""Consoles that print stored text safely: one for a terminal, one for a pipe.

The same drawings are printed to both. A pipe gets their text without colours, boxes and pictures; no line is wrapped
or shortened, so that `grep` and `less` see whole lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from io import StringIO
from itertools import zip_longest
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.protocol import rich_cast
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table

from smolmem.core.display import draws
from smolmem.core.text import sanitize

_PICTURE = re.compile("[▀\n]+")


class TerminalConsole(Console):
    """A console that sends only its own styles to the terminal: no markup, link or control character of a text."""

    def __init__(self, file: IO[str], **options: Any) -> None:
        super().__init__(file=file, highlight=False, markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Sanitizes everything that rich renders."""
        for text, style, control in super().render(renderable, options):
            unlinked = style.update_link(None) if style is not None and style.link else style
            yield Segment(text if control else sanitize(text), unlinked, control)


class PipeConsole(TerminalConsole):
    """A console that prints drawings as plain text: whole lines, aligned columns."""

    def __init__(self, file: IO[str]) -> None:
        super().__init__(file, color_system=None)

    def print(self, *parts: Any, **_: Any) -> None:
        """Prints and flushes: a reader may be waiting for the line."""
        for part in parts:
            self.file.write("".join(f"{line.rstrip()}\n" for line in self._lines(part)))
        self.file.flush()

    def _lines(self, part: Any, indent: int = 0) -> list[str]:
        part = rich_cast(part)
        if isinstance(part, Group):
            lines = [line for each in part.renderables for line in self._lines(each)]
        elif isinstance(part, Panel):
            lines = [*(self._lines(part.title) if part.title else []), *self._lines(part.renderable, 2)]
        elif isinstance(part, Padding):
            lines = self._lines(part.renderable, part.left)
        elif isinstance(part, Rule):
            lines = [f"--- {' '.join(self._lines(part.title))} ---"]
        elif isinstance(part, Table):
            lines = list(self._rows(part))
        else:
            text = getattr(part, "code", None) or str(part)  # a Syntax, whose module takes long to import
            lines = [] if _PICTURE.fullmatch(text) else sanitize(text).rstrip("\n").split("\n")
        return [f"{' ' * indent}{line}" for line in lines]

    def _rows(self, table: Table) -> Iterator[str]:
        columns = [[*([column.header] if table.show_header else []), *column.cells] for column in table.columns]
        cells = [[self._lines(cell) for cell in column] for column in columns]
        widths = [max((cell_len(line) for cell in column for line in cell), default=0) for column in cells]
        right = [column.justify == "right" for column in table.columns]
        for row in zip(*cells, strict=True):
            for line in zip_longest(*row, fillvalue=""):
                spaces = [" " * (width - cell_len(text)) for width, text in zip(widths, line, strict=True)]
                yield "  ".join(f"{s}{t}" if r else f"{t}{s}" for s, t, r in zip(spaces, line, right, strict=True))


@draws("text")
def text(value: Any) -> str:
    """A value as it is printed to a pipe."""
    lines = StringIO()
    PipeConsole(lines).print(value)
    return lines.getvalue().rstrip("\n")
