"""Charts as SVG: the steps of a run, a run over time, figures over time, and the backtest of a rule.

The SVG has classes and attributes but no inline styles or scripts, as the content security policy requires. All bars of
one class share a single path, so that the chart of a run of 500 steps takes a few kilobytes. Charts over time have
places in percent and no view box, so that texts keep their shape at any width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from markupsafe import Markup

from smolmem.inspector import formatting
from smolmem.inspector.page_data import StepSummary
from smolmem.inspector.waterfall import Mark, Row, Span, TimeAxis, Waterfall, merged

Rectangle = tuple[float, float, float, float]
"""Left, top, width and height."""
MAX_SPARK_WIDTH, MAX_BAR_WIDTH = 8.0, 40.0
"""The bars of a short run are no wider, so that they look like bars."""
LANES = {"model": 20, "tool": 32, "agents": 44}
"""The lanes of the overview and where each begins."""
LANE_HEIGHT = 9
MIN_WIDTH = 0.25
"""The least width of a bar, in percent."""
TICK_SECONDS = (
    *(unit * power for power in (0.001, 0.01, 0.1, 1) for unit in (1, 2, 5)),
    *(10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400),
)
"""Distances between the ticks of an axis."""
MAX_TICKS = 6


def sparkline(bars: Sequence[tuple[float, bool]], label: str, width: int = 96, height: int = 20) -> Markup:
    """A small chart of a run: the duration of each step, and in another colour the steps that failed."""
    if not bars:
        return Markup("")
    slowest = max(max(seconds for seconds, _ in bars), 1e-9)
    step = min(width / len(bars), MAX_SPARK_WIDTH)
    passed, failed = list[Rectangle](), list[Rectangle]()
    for index, (seconds, is_failed) in enumerate(bars):
        bar_height = max(1.5, (height - 2) * (seconds / slowest) ** 0.5)
        bar = (index * step, height - bar_height, max(0.6, step - 0.6), bar_height)
        (failed if is_failed else passed).append(bar)
    return _svg(width, height, "sparkline", label, _path("bar", passed) + _path("failed", failed))


def run_chart(bars: Sequence[StepSummary], width: int = 960, height: int = 120) -> Markup:
    """The input and output tokens of each step; the page's script maps a bar to its step."""
    if not bars:
        return Markup("")
    most = max(max(bar.input_tokens + bar.output_tokens for bar in bars), 1)
    floor, step = height - 1, width / len(bars)
    room, bar_width = floor - 4, min(max(0.8, step * 0.85), MAX_BAR_WIDTH)
    passed, failed, output = list[Rectangle](), list[Rectangle](), list[Rectangle]()
    for index, bar in enumerate(bars):
        x = index * step + (step - bar_width) / 2
        input_height, output_height = room * bar.input_tokens / most, room * bar.output_tokens / most
        (failed if bar.error else passed).append((x, floor - input_height, bar_width, input_height))
        output.append((x, floor - input_height - output_height, bar_width, output_height))
    content = (
        f'<line class="axis" x1="0" y1="{floor}" x2="{width}" y2="{floor}"/>'
        + _path("bar", passed)
        + _path("failed", failed)
        + _path("output", output)
        + f'<rect class="selected" y="0" height="{floor}" width="0"/>'
    )
    return _svg(width, height, "run-chart", "tokens of each step", content, f'data-bar-width="{step:.4f}"')


def run_chart_caption(bars: Sequence[StepSummary]) -> str:
    """The caption of `run_chart`."""
    if not bars:
        return ""
    return f"tokens of each step, at most {max(bar.input_tokens + bar.output_tokens for bar in bars):,}"


def columns(
    parts: Sequence[Sequence[float]], classes: Sequence[str], label: str, names: Sequence[str], height: int = 84
) -> Markup:
    """Stacked columns, one per bucket; each part of a column has its class, each column a name to point at."""
    highest = max((sum(column) for column in parts), default=0) or 1
    step = 100 / max(len(parts), 1)
    content = f'<line class="axis" x1="0" x2="100%" y1="{height - 0.5}" y2="{height - 0.5}"/>'
    for index, (column, name) in enumerate(zip(parts, names, strict=True)):
        top, values = float(height), " + ".join(f"{value:,.4g}" for value in column if value > 0)
        content += f"<g><title>{escape(name)}: {values or 0}</title>"
        for value, css_class in zip(column, classes, strict=True):
            if value > 0:
                part = max(1.0, (height - 4) * value / highest)
                top -= part
                content += (
                    f'<rect class="{css_class}" x="{index * step + step * 0.1:.2f}%" width="{step * 0.8:.2f}%" '
                    f'y="{top:.1f}" height="{part:.1f}"/>'
                )
        content += "</g>"
    return Markup(f'<svg class="columns" role="img" aria-label="{escape(label)}">{content}</svg>')  # noqa: S704


def share(value: float, most: float) -> Markup:
    """A bar whose width is a value's share of the largest value."""
    width = 100 * value / most if most else 0
    bar = f'<rect class="whole" x="0" width="{width:.1f}%" y="1" height="8"/>'
    return Markup(f'<svg class="share" aria-hidden="true">{bar}</svg>')  # noqa: S704  a number


def backtest_chart(counted: Sequence[bool], fired: Sequence[bool], width: int = 960, height: int = 56) -> Markup:
    """A rule on recorded steps: the steps that counted (bars), and where the rule would have fired (triangles)."""
    if not counted:
        return Markup("")
    group_size = max(1, -(-len(counted) // (width // 4)))
    starts = range(0, len(counted), group_size)
    step = width / len(starts)
    bars, triangles = list[Rectangle](), list[str]()
    for index, start in enumerate(starts):
        group = counted[start : start + group_size]
        bar_height = (height - 20) * sum(group) / len(group)
        bars.append((index * step, height - 14 - bar_height, step, bar_height))
        if any(fired[start : start + group_size]):
            triangles.append(f"M{index * step:.1f} {height}l4 -10l4 10z")
    content = _path("bar", bars) + f'<path class="failed" d="{"".join(triangles)}"/>'
    return _svg(width, height, "backtest-chart", "where the rule would have fired", content)


def _path(css_class: str, rectangles: Iterable[Rectangle]) -> str:
    data = "".join(f"M{x:.1f} {y:.1f}h{w:.1f}v{h:.1f}h-{w:.1f}z" for x, y, w, h in rectangles)
    return f'<path class="{css_class}" d="{data}"/>' if data else ""


def _svg(width: int, height: int, css_class: str, label: str, content: str, attributes: str = "") -> Markup:
    return Markup(  # noqa: S704  numbers and escaped text only
        f'<svg class="{css_class}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}" '
        f'preserveAspectRatio="none" {attributes}>{content}</svg>'
    )


# --- a run over time --------------------------------------------------------------------------------------------------


def row_bar(row: Row, axis: TimeAxis) -> Markup:
    """The bar of one row: the whole time, and in other colours the time of the model and of tools."""
    css_class = "agents" if row.kind == "run" else "failed" if row.step is not None and row.step.error else "whole"
    bounds = merged(_bounds(axis, *interval) for interval in row.intervals)
    parts = [_rect(css_class, left, right, 3, 6) for left, right in bounds]
    parts += [_span_rect(span, axis, 1, 10) for span in row.spans]
    return Markup(f'<svg class="row-bar" aria-hidden="true">{"".join(parts)}</svg>')  # noqa: S704  numbers only


def overview(shown: Waterfall) -> Markup:
    """The whole run on one axis: the model, the tools and the called agents each in a lane, and the marks."""
    if not any(row.ended for row in shown.rows):
        return Markup("")
    axis = shown.axis
    parts = [_gap(axis, gap.began, gap.ended) for gap in axis.gaps]
    parts += [_down_time(axis, killed, resumed) for killed, resumed in _down_times(shown.marks)]
    for kind in ("model", "tool"):
        spans = [span for row in shown.rows for span in row.spans if span.kind == kind and row.depth == 0]
        bounds = merged(_bounds(axis, span.began, span.ended or span.began) for span in spans)
        parts += [_rect(kind, left, right, LANES[kind], LANE_HEIGHT) for left, right in bounds]
    called = [_bounds(axis, row.began, row.ended) for row in shown.rows if row.kind == "run"]
    parts += [_rect("agents", left, right, LANES["agents"], LANE_HEIGHT) for left, right in merged(called)]
    parts += [_mark(mark, axis) for mark in shown.marks]
    parts += _ticks(shown.rows, axis)
    label = escape(_summary(shown))
    return Markup(f'<svg class="overview" role="img" aria-label="{label}">{"".join(parts)}</svg>')  # noqa: S704


def _summary(shown: Waterfall) -> str:
    marks = "; ".join(mark.text for mark in shown.marks[:20])
    model, tool = (formatting.seconds(each) for each in (shown.totals.model_seconds, shown.totals.tool_seconds))
    return formatting.one_line(f"The run over time: model {model}, tools {tool}. {marks}", 1_000)


def _bounds(axis: TimeAxis, began: float, ended: float) -> tuple[float, float]:
    """Left and right of a bar, which is wide enough to be seen."""
    left, right = axis.place(began), axis.place(ended)
    left = min(left, 100 - MIN_WIDTH)
    return left, max(right, left + MIN_WIDTH)


def _span_rect(span: Span, axis: TimeAxis, top: int, height: int) -> str:
    css_class = "unknown" if span.ended is None else f"{span.kind} bad" if span.failed else span.kind
    return _rect(css_class, *_bounds(axis, span.began, span.ended or span.began), top, height)


def _rect(css_class: str, left: float, right: float, top: int, height: int) -> str:
    return f'<rect class="{css_class}" x="{left:.2f}%" width="{right - left:.2f}%" y="{top}" height="{height}"/>'


def _gap(axis: TimeAxis, began: float, ended: float) -> str:
    left, right = axis.place(began), axis.place(ended)
    label = f'<text class="tick" x="{(left + right) / 2:.2f}%" y="68" text-anchor="middle">'
    return f"{_rect('gap', left, right, 16, 40)}{label}⫽ {escape(formatting.seconds(ended - began))}</text>"


def _down_times(marks: Sequence[Mark]) -> list[tuple[float, float]]:
    """The times from each kill to the resume that follows it."""
    killed, resumed = ([mark.at for mark in marks if mark.kind == kind] for kind in ("killed", "resumed"))
    return list(zip(killed, resumed, strict=False))  # the last kill may have no resume


def _down_time(axis: TimeAxis, killed: float, resumed: float) -> str:
    left, right = axis.place(killed), axis.place(resumed)
    text = f"No process worked on the run for {formatting.seconds(resumed - killed)}."
    return (
        f'<rect class="down" x="{left:.2f}%" width="{right - left:.2f}%" y="16" height="40">'
        f"<title>{escape(text)}</title></rect>"
    )


def _mark(mark: Mark, axis: TimeAxis) -> str:
    place = axis.place(mark.at)
    anchor = "end" if place > 98 else "start" if place < 2 else "middle"
    return (
        f'<g class="mark {mark.kind}"><title>{escape(formatting.one_line(mark.text, 200))}</title>'
        f'<line x1="{place:.2f}%" x2="{place:.2f}%" y1="14" y2="56"/>'
        f'<text x="{place:.2f}%" y="11" text-anchor="{anchor}">{mark.symbol}</text></g>'
    )


def _ticks(rows: Sequence[Row], axis: TimeAxis) -> list[str]:
    """Times since the beginning; an axis with gaps has the lengths of its gaps instead."""
    timed = [row for row in rows if row.ended]
    began, ended = min(row.began for row in timed), max(row.ended for row in timed)
    total = ended - began
    distance = next((each for each in TICK_SECONDS if total <= each * MAX_TICKS), total)
    between = [] if axis.gaps else [began + distance * tick for tick in range(1, int(0.78 * total / distance) + 1)]
    marks = [began, *between, ended]
    anchors = ["start", *["middle"] * len(between), "end"]
    return [
        f'<text class="tick" x="{axis.place(at):.2f}%" y="68" text-anchor="{anchor}">'
        f"{escape(formatting.seconds(at - began))}</text>"
        for at, anchor in zip(marks, anchors, strict=True)
    ]
