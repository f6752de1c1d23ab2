"""A run over time as SVG: the bar of each step, and the overview with all marks.

Places are in percent and there is no view box, so that texts keep their shape at any width. Colours come from classes:
the content security policy forbids inline styles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from markupsafe import Markup

from smolmem.inspector import formatting
from smolmem.inspector.marks import Mark
from smolmem.inspector.time_axis import TimeAxis
from smolmem.inspector.waterfall import Row, Span, Waterfall

LANES = (("model", 20), ("tool", 32), ("agents", 44))
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


def row_bar(row: Row, axis: TimeAxis) -> Markup:
    """The bar of one row: the whole time, and in other colours the time of the model and of tools."""
    css_class = "agents" if row.kind == "run" else "failed" if row.step is not None and row.step.error else "whole"
    bounds = _joined(_bounds(axis, *interval) for interval in row.intervals)
    parts = [_rect(css_class, left, width, 3, 6) for left, width in bounds]
    parts += [_span_rect(span, axis, 1, 10) for span in row.spans]
    return _svg("row-bar", "".join(parts), 'aria-hidden="true"')


def overview(shown: Waterfall) -> Markup:
    """The whole run on one axis: the model, the tools and the called agents each in a lane, and the marks."""
    if not any(row.ended for row in shown.rows):
        return Markup("")
    axis, places = shown.axis, dict(LANES)
    parts = [_gap(axis, gap.began, gap.ended) for gap in axis.gaps]
    parts += [_down_time(axis, killed, resumed) for killed, resumed in _down_times(shown.marks)]
    for kind in ("model", "tool"):
        spans = [span for row in shown.rows for span in row.spans if span.kind == kind and row.depth == 0]
        bounds = _joined(_bounds(axis, span.began, span.ended or span.began) for span in spans)
        parts += [_rect(kind, left, width, places[kind], LANE_HEIGHT) for left, width in bounds]
    called = [_bounds(axis, row.began, row.ended) for row in shown.rows if row.kind == "run"]
    parts += [_rect("agents", left, width, places["agents"], LANE_HEIGHT) for left, width in _joined(called)]
    parts += [_mark(mark, axis) for mark in shown.marks]
    parts += _ticks(shown.rows, axis)
    return _svg("overview", "".join(parts), f'role="img" aria-label="{escape(_summary(shown))}"')


def _summary(shown: Waterfall) -> str:
    marks = "; ".join(mark.text for mark in shown.marks[:20])
    model, tool = (formatting.seconds(each) for each in (shown.totals.model_seconds, shown.totals.tool_seconds))
    return formatting.one_line(f"The run over time: model {model}, tools {tool}. {marks}", 1_000)


def _bounds(axis: TimeAxis, began: float, ended: float) -> tuple[float, float]:
    left, right = axis.place(began), axis.place(ended)
    width = max(right - left, MIN_WIDTH)
    return min(left, 100 - width), width


def _joined(bounds: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merges bars that overlap, so that a lane has no more bars than a reader can distinguish."""
    joined: list[tuple[float, float]] = []
    for left, width in sorted(bounds):
        if joined and left <= joined[-1][0] + joined[-1][1]:
            first = joined[-1][0]
            joined[-1] = (first, max(joined[-1][1], left + width - first))
        else:
            joined.append((left, width))
    return joined


def _span_rect(span: Span, axis: TimeAxis, top: int, height: int) -> str:
    css_class = "unknown" if span.ended is None else f"{span.kind} bad" if span.failed else span.kind
    return _rect(css_class, *_bounds(axis, span.began, span.ended or span.began), top, height)


def _rect(css_class: str, left: float, width: float, top: int, height: int) -> str:
    return f'<rect class="{css_class}" x="{left:.2f}%" width="{width:.2f}%" y="{top}" height="{height}"/>'


def _gap(axis: TimeAxis, began: float, ended: float) -> str:
    left, right = axis.place(began), axis.place(ended)
    label = f'<text class="tick" x="{(left + right) / 2:.2f}%" y="68" text-anchor="middle">'
    bar = f'<rect class="gap" x="{left:.2f}%" width="{right - left:.2f}%" y="16" height="40"/>'
    return f"{bar}{label}⫽ {escape(formatting.seconds(ended - began))}</text>"


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


def _svg(css_class: str, content: str, attributes: str) -> Markup:
    return Markup(f'<svg class="{css_class}" {attributes}>{content}</svg>')  # noqa: S704  numbers and escaped text only
