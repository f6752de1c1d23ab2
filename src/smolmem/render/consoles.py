"""Consoles that print stored text safely: one for a terminal, one for a pipe.

The same drawings are printed to both. Into a pipe rich prints on a line without end, so that no line is wrapped or
shortened; colours, boxes and pictures are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.protocol import rich_cast
from rich.rule import Rule
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from smolmem.core.text import sanitize

_ENDLESS = 10**9
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
        super().__init__(file, width=_ENDLESS, color_system=None)

    def print(self, *parts: Any, **_: Any) -> None:
        """Prints and flushes: a reader may be waiting for the line."""
        for part in parts:
            self.file.write("".join(f"{line.rstrip()}\n" for line in self._lines(part)))
        self.file.flush()

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Renders without frames."""
        yield from super().render(self._plain(rich_cast(renderable)), options)

    def _lines(self, part: Any, indent: int = 0) -> list[str]:
        part = self._plain(rich_cast(part))
        text = part.plain if isinstance(part, Text) else "".join(segment.text for segment in self.render(part))
        return [f"{' ' * indent}{line}" for line in sanitize(text).splitlines()]

    def _plain(self, part: Any) -> Any:
        if isinstance(part, Panel):
            return Text("\n".join([*(self._lines(part.title) if part.title else []), *self._lines(part.renderable, 2)]))
        if isinstance(part, Padding):
            return Text("\n".join(self._lines(part.renderable, part.left)))
        if isinstance(part, Rule):
            return Text.assemble("--- ", part.title, " ---")
        if isinstance(part, Syntax):
            return Text(part.code.rstrip("\n"))
        if isinstance(part, Table):
            return Text("\n".join(self._aligned(part)))
        return Group() if isinstance(part, Text) and _PICTURE.fullmatch(part.plain) else part

    def _aligned(self, table: Table) -> Iterator[str]:
        """The lines of a table. Rich would need milliseconds for each row."""
        columns = [[*([column.header] if table.show_header else []), *column.cells] for column in table.columns]
        cells = [[self._lines(cell) for cell in column] for column in columns]
        widths = [max((cell_len(line) for cell in column for line in cell), default=0) for column in cells]
        for row in zip(*cells, strict=True):
            for line in zip_longest(*row, fillvalue=""):
                spaces = [" " * (width - cell_len(text)) for width, text in zip(widths, line, strict=True)]
                right = [column.justify == "right" for column in table.columns]
                yield "  ".join(f"{s}{t}" if r else f"{t}{s}" for s, t, r in zip(spaces, line, right, strict=True))
