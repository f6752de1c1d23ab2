"""Charts with many bars as SVG: the steps of a run, and the backtest of a rule. `_charts.html` has the other charts.

The SVG has classes and attributes but no inline styles or scripts, as the content security policy requires. All bars of
one class share a single path, so that the chart of a run of 500 steps takes a few kilobytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from markupsafe import Markup

from smolmem.inspector.page_data import StepSummary
from smolmem.inspector.waterfall import Row, TimeAxis

Rectangle = tuple[float, float, float, float]
"""Left, top, width and height."""
MAX_SPARK_WIDTH, MAX_BAR_WIDTH = 8.0, 40.0
"""The bars of a short run are no wider, so that they look like bars."""
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


def run_chart(bars: Sequence[StepSummary]) -> Markup:
    """The input and output tokens of each step; the page's script maps a bar to its step."""
    if not bars:
        return Markup("")
    width, height = 960, 120
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


def backtest_chart(counted: Sequence[bool], fired: Sequence[bool]) -> Markup:
    """A rule on recorded steps: the steps that counted (bars), and where the rule would have fired (triangles)."""
    if not counted:
        return Markup("")
    width, height = 960, 56
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


def rect(css_class: str, bounds: tuple[float, float], top: float, height: float, title: str = "") -> Markup:
    """A bar of a chart over time; written here, because a macro takes longer and a page has a thousand bars."""
    inside = f"<title>{escape(title)}</title>" if title else ""
    return Markup(  # noqa: S704  numbers and escaped text only
        f'<rect class="{escape(css_class)}" x="{bounds[0]:.2f}%" width="{bounds[1] - bounds[0]:.2f}%" '
        f'y="{top:g}" height="{height:g}">{inside}</rect>'
    )


def ticks(rows: Sequence[Row], axis: TimeAxis) -> list[tuple[float, str]]:
    """The times below an axis, each with its anchor; an axis with gaps has the lengths of its gaps instead."""
    timed = [row for row in rows if row.ended]
    if not timed:
        return []
    began, ended = min(row.began for row in timed), max(row.ended for row in timed)
    total = ended - began
    distance = next((each for each in TICK_SECONDS if total <= each * MAX_TICKS), total)
    between = [] if axis.gaps else [began + distance * tick for tick in range(1, int(0.78 * total / distance) + 1)]
    return [(began, "start"), *((at, "middle") for at in between), (ended, "end")]
