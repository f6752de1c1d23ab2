"""Drawings for the terminal. Stored text is sanitized: it cannot move the cursor or set colours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from rich.color import Color
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

from smolmem.core.display import draws
from smolmem.core.smolagents_texts import in_short
from smolmem.core.text import byte_size, counted, duration, one_line, sanitize

if TYPE_CHECKING:
    import PIL.Image

    from smolmem.agents.prompting.preview import Preview
    from smolmem.core.values import Alert, Diff, Excerpt, Note, Recollection, Run, Step
    from smolmem.doctor import Diagnosis
    from smolmem.exchange import Traced
    from smolmem.policies.recorded_rules import Backtest
    from smolmem.recall.purge import Purged
    from smolmem.store.erasure.erase import Erased
    from smolmem.store.verify import Report, Stats
    from smolmem.transfer.export import Exported
    from smolmem.transfer.load import Imported

STYLES = {
    "running": "bold cyan",
    "finished": "green",
    "failed": "bold red",
    "interrupted": "yellow",
    "max_steps": "yellow",
}


@draws("Run")
def run(value: Run) -> RenderableType:
    """A run and its steps."""
    head = Text.assemble((value.id[:8], "bold"), "  ", (value.label, STYLES[value.status]), "  ", sanitize(value.agent))
    grid = _grid(
        {
            "task": sanitize(value.title),
            "began": _time(value.began),
            "took": duration(value.seconds),
            "steps": f"{value.action_count}"
            + (f", {counted(value.error_count, 'error')}" if value.error_count else ""),
            "tokens": f"{value.input_tokens:,} in, {value.output_tokens:,} out",
            "model": sanitize(value.model or ""),
            "tags": sanitize(", ".join(value.tags)),
            "failure": "" if value.failure is None else sanitize(str(value.failure)),
        }
    )
    return _panel(head, grid, steps(value.steps))


def steps(values: Iterable[Step]) -> RenderableType:
    """Steps, a line each."""
    text = Column("text", overflow="ellipsis", no_wrap=True, ratio=1)
    numbers = (Column("step", justify="right"), "kind", Column("took", justify="right"))
    table = Table(*numbers, text, box=None, pad_edge=False, expand=True)
    for value in values:
        line = Text(one_line(in_short(value.text), 400), style="red" if value.error else "")
        table.add_row("" if value.number is None else str(value.number), value.kind, duration(value.seconds), line)
    return table


@draws("Step")
def step(value: Step) -> RenderableType:
    """One step with all of its text."""
    number = "" if value.number is None else f" {value.number}"
    head = Text.assemble((f"{value.kind}{number}", "bold"), f"  run {value.run[:8]}")
    facts = {
        "at": _time(value.at),
        "took": duration(value.seconds),
        "tools": ", ".join(sanitize(tool) for tool in value.tools),
        "error": sanitize(value.error or ""),
        "revision": str(value.revision) if value.revision else "",
    }
    return _panel(head, _grid(facts), Text(), Text(sanitize(value.text)))


@draws("Diff")
def diff(value: Diff) -> RenderableType:
    """How two runs differ, side by side."""
    common, left, right = value.common, value.left, value.right
    if not left and not right:
        return Text(f"the same, {counted(common, 'step')}", style="green")
    table = Table(Column("left", ratio=1), Column("right", ratio=1), expand=True)
    for pair in zip_longest(left, right):
        table.add_row(*(Text("" if step is None else sanitize(step.text)) for step in pair))
    return Group(Text(f"{counted(common, 'step')} in common, then"), table)


def picture(image: PIL.Image.Image, columns: int = 48) -> RenderableType:
    """An image in half blocks, two pixels a character: every terminal with colours can show that."""
    width = max(1, min(columns, image.width))
    height = max(2, round(width * image.height / max(1, image.width)) // 2 * 2)
    small = image.convert("RGB").resize((width, min(height, 2 * columns)))
    lines = Text()
    for row in range(0, small.height - 1, 2):
        for column in range(width):
            lines.append("▀", Style(color=_colour(small, column, row), bgcolor=_colour(small, column, row + 1)))
        lines.append("\n")
    return lines


def _colour(image: PIL.Image.Image, column: int, row: int) -> Color:
    red, green, blue = image.crop((column, row, column + 1, row + 1)).tobytes()
    return Color.from_rgb(red, green, blue)


@draws("Report")
def report(value: Report) -> RenderableType:
    """The report of `verify`."""
    verdict = (counted(value.count, "problem"), "bold red") if value.count else ("intact", "green")
    checked = {_SINGULAR.get(what, what.removesuffix("s")): number for what, number in value.checked.items()}
    problems = (Text(f"  {sanitize(problem)}") for problem in value.problems)
    return Group(Text.assemble(f"{sanitize(value.url)}: ", verdict), Text(_counted(checked)), *problems)


@draws("Stats")
def stats(value: Stats) -> RenderableType:
    """How much is stored, and a bar for each status of runs."""
    facts = {
        "runs": f"{value.runs:,} in {counted(value.sessions, 'session')}",
        "steps": f"{value.steps:,}",
        "records": _counted({"event": value.events, "call": value.calls, "prompt": value.prompts}),
        "tokens": f"{value.input_tokens:,} in, {value.output_tokens:,} out",
        "recall": _counted({"note": value.notes, "passage": value.passages, "vector": value.vectors}),
        "size": f"{byte_size(value.bytes)}, of which {byte_size(value.content_bytes)} are content",
        "engine": f"{value.engine}, durability {value.durability}",
        "failed writes": f"{value.failed_writes:,}" if value.failed_writes else "",
    }
    statuses = Table.grid("", Column(justify="right"), "", padding=(0, 2))
    for status in sorted(value.statuses, key=[*STYLES, *value.statuses].index):
        bar = "█" * max(1, round(30 * value.statuses[status] / max(1, value.runs)))
        runs = Text(f"{value.statuses[status]:,}")
        statuses.add_row(Text(one_line(status, 40)), runs, Text(bar, STYLES.get(status, "")))
    bars: list[RenderableType] = [Text(), statuses] if value.statuses else []
    return Group(Text(sanitize(value.url), "bold"), _grid(facts), *bars)


def _panel(head: Text, *parts: RenderableType) -> Panel:
    return Panel(Group(*parts), title=head, title_align="left")


def _time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def _done(what: str, result: str) -> Text:
    return Text.assemble(("✓ ", "green"), (sanitize(what), "bold"), f"  {result}")


def _grid(facts: Mapping[str, str]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, fact in facts.items():
        if fact:
            grid.add_row(Text(name, style="dim"), Text(fact))
    return grid


@draws("Note")
def note(value: Note) -> RenderableType:
    """A note."""
    style = "green" if value.status == "current" else "yellow"
    head = Text.assemble((value.id[:8], "bold"), "  ", (value.status, style), "  ", sanitize(value.kind))
    about = {
        "tags": sanitize(", ".join(value.tags)),
        "from": value.origin,
        "at": _time(value.at),
        "expires": _time(value.expires),
        "stale": "yes: a source of this note is no longer current" if value.stale else "",
    }
    return _panel(head, Text(sanitize(value.text)), _grid(about))


@draws("Recollection")
def recollection(value: Recollection) -> RenderableType:
    """A recollection, and why it was returned."""
    copies = f"  ×{value.copies}" if value.copies > 1 else ""
    head = Text.assemble((f"{value.score:.2f}", "bold"), "  ", sanitize(value.source), copies)
    excerpts = [highlighted(excerpt) for excerpt in value.excerpts] or [Text(sanitize(value.text))]
    return _panel(head, *excerpts, Text(sanitize(value.why), style="dim"))


def highlighted(excerpt: Excerpt, lines: int = 40) -> Text:
    """A passage with the words of the question in bold; of a long one, the lines around most of these words."""
    shown = Text()
    place = 0
    for start, end in excerpt.marks:
        shown.append(sanitize(excerpt.text[place:start])).append(sanitize(excerpt.text[start:end]), "bold yellow")
        place = end
    shown.append(sanitize(excerpt.text[place:]))
    listed = shown.split("\n")
    marked = [excerpt.text.count("\n", 0, start) for start, _ in excerpt.marks]
    begins = [max(0, min(line - lines // 4, len(listed) - lines)) for line in marked]
    begin = max(begins, key=lambda begin: sum(begin <= line < begin + lines for line in marked), default=0)
    before, after = [Text("…")] * (begin > 0), [Text("…")] * (begin + lines < len(listed))
    return Text("\n").join([*before, *listed[begin : begin + lines], *after])


@draws("Alert")
def alert(value: Alert) -> RenderableType:
    """A rule that fired."""
    where = "" if value.run is None else f"  run {value.run[:8]}"
    number = "" if value.number is None else f", step {value.number}"
    head = Text.assemble(("▲ ", "bold red"), (sanitize(value.rule), "bold"), f"  {_time(value.at)}")
    acts = f"  → {', '.join(value.actions)}" if value.actions else ""
    return Group(
        head, Text(f"  {sanitize(value.reason)}"), Text(sanitize(f"  {value.agent}{where}{number}{acts}"), "dim")
    )


@draws("Backtest")
def backtest(value: Backtest, columns: int = 72) -> RenderableType:
    """When a rule would have fired, over time."""
    times = "once" if len(value.alerts) == 1 else f"{len(value.alerts):,} times"
    verdict = f"would have fired {times}" if value.alerts else "would not have fired"
    head = Text.assemble(
        (sanitize(value.rule), "bold"), f" {verdict} in {counted(value.steps, 'step')} of {counted(value.runs, 'run')}"
    )
    if not value.steps:
        return Text.assemble((sanitize(value.rule), "bold"), ": there are no recorded steps to test the rule on")
    share = max(1, -(-len(value.counted) // columns))
    places = range(0, len(value.counted), share)
    bars, marks = Text("counts  "), Text("fires   ")
    for place in places:
        part = value.counted[place : place + share]
        bars.append(" ▁▂▃▄▅▆▇█"[-(-8 * sum(part) // len(part))], "yellow")
        marks.append("▲" if any(value.fired[place : place + share]) else "·", "bold red")
    skipped = [Text(f"{counted(value.skipped, 'step')} skipped", "yellow")] if value.skipped else []
    return Group(head, bars, marks, *skipped, *(alert(each) for each in value.alerts[-20:]))


@draws("Preview")
def preview(value: Preview) -> RenderableType:
    """A preview of a prompt."""
    numbers = (Column(name, justify="right") for name in ("tokens", "trims"))
    table = Table("view", *numbers, box=None, pad_edge=False)
    table.add_row("everything", f"{value.whole:,}", "")
    for view in value.views:
        table.add_row(sanitize(view.name), f"{view.tokens:,}", f"{view.trimmed:,}" if view.trimmed else "")
    head = Text.assemble(
        "the next prompt: ", (f"{counted(len(value.messages), 'message')}, about {value.tokens:,} tokens", "bold")
    )
    known = value.tokens - value.read_again
    tail = f"{known:,} of them are unchanged since the last prompt; about {value.read_again:,} are processed again"
    return Group(head, table, Text(tail, "dim"))


@draws("Exported")
def exported(value: Exported) -> RenderableType:
    """The result of an export."""
    head = _done(value.path, f"{byte_size(value.bytes)}, {counted(value.media, 'attached file')}")
    return Group(head, *([Text(f"  {_counted(value.written)}", "dim")] if value.written else []))


@draws("ImportedDocuments")
def imported_documents(value: Any) -> RenderableType:
    """The result of an import of documents."""
    head = _done(value.source, counted(value.added, "document"))
    left = [(value.skipped, "here already"), (value.empty, "without text")]
    rest = ", ".join(f"{count:,} {why}" for count, why in left if count)
    return Group(head, *([Text(f"  {rest}", "dim")] if rest else []))


@draws("Imported")
def imported(value: Imported) -> RenderableType:
    """The result of a load."""
    lines = [_done(value.path, _counted(value.added) or "nothing new")]
    if value.skipped:
        lines.append(Text(f"  here already: {_counted(value.skipped)}", "dim"))
    if value.differing:
        text = f"  {counted(value.differing, 'session')} differ from the file, and stay unchanged here:"
        lines += [Text(text, "yellow"), Text("  → load the file into a new store to see the other versions", "dim")]
    return Group(*lines)


@draws("Traced")
def traced(value: Traced) -> RenderableType:
    """A trace that was sent."""
    head = Text.assemble(("✓ ", "green"), (f"{value.spans:,} spans", "bold"))
    head.append(f" of {counted(value.runs, 'run')} → {sanitize(value.to)}")
    return Group(head, Text(f"  trace {value.trace}", "dim"))


@draws("Erased")
def erased(value: Erased) -> RenderableType:
    """The receipt of an erase or a dry run."""
    if not value:
        return Text("There is nothing to erase.", "dim")
    counts = ("runs", "steps", "notes")
    named = _counted({name[:-1]: value.counts[name] for name in counts if value.counts.get(name)}) or "rows"
    rest = {name: count for name, count in value.counts.items() if name not in counts}
    details = _counted({_SINGULAR.get(name, name.removesuffix("s")): count for name, count in rest.items()})
    if value.dry_run:
        head = Text.assemble(("• ", "cyan"), "would erase ", (named, "bold"))
    else:
        head = Text.assemble(("✓ ", "green"), "erased ", (named, "bold"), f"  {byte_size(value.bytes_freed)} freed")
    lines = [head, Text(f"  {details}", "dim")]
    if not value.finished:
        text = "  another process is reading the file, or the disk is full: erased bytes may still be there:"
        lines += [Text(text, "yellow"), Text("  → run `smolmem erase --finish` afterwards", "dim")]
    return Group(*lines)


@draws("Purged")
def purged(value: Purged) -> RenderableType:
    """The result of a purge."""
    if not value:
        return Text("No recorded source matches: nothing is erased.", "dim")
    lines = []
    for head, found in (("sources", value.sources), ("made from them", value.derived)):
        lines.append(Text(f"{head}: {len(found):,}", "bold"))
        lines += [
            Text.assemble(
                (f"  {one.kind} {one.id[:8]}", "cyan"), f"  {sanitize(one.why)}  ", (sanitize(one.text), "dim")
            )
            for one in found[:_LISTED]
        ]
        if len(found) > _LISTED:
            lines.append(Text(f"  … and {len(found) - _LISTED:,} more", "dim"))
    return Group(*lines, erased(value.receipt))


_LISTED = 20
_SIGNS = {"ok": ("✓", "green"), "hint": ("•", "cyan"), "warning": ("▲", "yellow"), "problem": ("✗", "bold red")}


@draws("Diagnosis")
def diagnosis(value: Diagnosis) -> RenderableType:
    """The findings of `doctor`."""
    table = Table.grid(padding=(0, 1))
    for finding in value.findings:
        sign, style = _SIGNS[finding.level]
        text = Text(sanitize(finding.text))
        if finding.repair:
            text.append(f"\n→ {sanitize(finding.repair)}", "dim")
        table.add_row(Text(sign, style), text)
    return Group(Text(sanitize(value.url), "bold"), table)


_SINGULAR = {
    "recalled": "recall",
    "forgotten": "forgotten item",
    "cut": "trim",
    "replaced": "replaced content",
    "exposures": "low-trust source",
}
"""The names of rows and lines that are not nouns of the documentation."""


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(counted(count, _SINGULAR.get(name, name)) for name, count in counts.items())
