"""What is drawn for a terminal, as plain lines for a pipe: aligned, whole, without colours and boxes.

One drawing serves both. Lines are as long as they are: whoever reads them, a person in a pager or `grep`, can fold them
better than we could. Whatever text there is, it is clean: no control character and nothing that reorders a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from io import StringIO
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from smolmem.core.text import sanitize

_PICTURE = re.compile("[▀\n]+")


class Terminal(Console):
    """A console that obeys nothing but its own styles, whatever text it is given."""

    def __init__(self, file: IO[str], **options: Any) -> None:
        super().__init__(file=file, highlight=False, markup=False, emoji=False, soft_wrap=False, **options)

    def print(self, *parts: Any, **options: Any) -> None:
        """Prints; a panel's title is text, never markup."""
        for part in parts:
            if isinstance(part, Panel) and isinstance(part.title, str):
                part.title = Text(part.title)
        super().print(*parts, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The last gate before the terminal."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                style = segment.style
                yield Segment(
                    sanitize(segment.text), style.update_link(None) if style is not None and style.link else style
                )


class Pipe:
    """Prints the same drawings as plain lines."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def print(self, *parts: Any) -> None:
        """Writes what is drawn, and lets it go at once: somebody may be waiting for it."""
        for part in parts:
            for line in lines(part):
                self._file.write(f"{sanitize(line).rstrip()}\n")
        self._file.flush()


def lines(drawn: Any) -> Iterator[str]:
    """A drawing as lines of text."""
    while hasattr(drawn, "__rich__") and not isinstance(drawn, type):
        drawn = drawn.__rich__()
    draw = next((draw for kind, draw in _DRAWN.items() if isinstance(drawn, kind)), _rendered)
    yield from draw(drawn)


def _text(text: Text | str) -> Iterator[str]:
    plain = text if isinstance(text, str) else text.plain
    if not _PICTURE.fullmatch(plain):  # an image without colours is nothing
        yield from plain.rstrip("\n").split("\n")


def _group(group: Group) -> Iterator[str]:
    for part in group.renderables:
        yield from lines(part)


def _panel(panel: Panel) -> Iterator[str]:
    if panel.title:
        yield from lines(panel.title)
    yield from (f"  {line}" for line in lines(panel.renderable))


def _table(table: Table) -> Iterator[str]:
    rows = list(zip(*([list(lines(cell)) for cell in column.cells] for column in table.columns), strict=True))
    if table.show_header:
        rows.insert(0, tuple(list(lines(column.header)) for column in table.columns))
    widths = [
        max((cell_len(line) for row in rows for line in row[number]), default=0) for number in range(_width(rows))
    ]
    right = [column.justify == "right" for column in table.columns]
    for row in rows:
        for height in range(max(map(len, row), default=0)):
            cells = (cell[height] if height < len(cell) else "" for cell in row)
            yield "  ".join(
                _padded(cell, width, last) for cell, width, last in zip(cells, widths, right, strict=True)
            ).rstrip()


def _width(rows: list[tuple[list[str], ...]]) -> int:
    return len(rows[0]) if rows else 0


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - cell_len(text))
    return f"{space}{text}" if right else f"{text}{space}"


def _rendered(drawn: Any) -> Iterator[str]:
    written = StringIO()
    Console(file=written, width=200, no_color=True, highlight=False, markup=False).print(drawn)
    yield from written.getvalue().rstrip("\n").split("\n")


_DRAWN: dict[type, Callable[[Any], Iterator[str]]] = {
    str: _text,
    Text: _text,
    Group: _group,
    Panel: _panel,
    Padding: lambda padding: (f"{' ' * padding.left}{line}" for line in lines(padding.renderable)),
    Rule: lambda rule: iter([f"--- {' '.join(lines(rule.title))} ---"]),
    Syntax: lambda syntax: iter(syntax.code.rstrip("\n").split("\n")),
    Table: _table,
}
