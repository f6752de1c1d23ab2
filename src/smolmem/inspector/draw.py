"""Pictures of runs as SVG: attributes only, no styles and no scripts, so that the strictest page can show them.

A bar is a few numbers in a path, not an element of its own: a run of five hundred steps is a picture of some kilobytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

Box = tuple[float, float, float, float]
"""Left, top, width, height."""


@dataclass(frozen=True)
class Bar:
    """One step: what it cost, how long it took, whether it went wrong."""

    tokens: int
    output: int
    seconds: float
    failed: bool


def spark(bars: Sequence[tuple[float, bool]], label: str, width: int = 96, height: int = 20) -> Markup:
    """A run in a line: how long its steps took; red where one failed."""
    if not bars:
        return Markup("")
    slowest = max(max(seconds for seconds, _ in bars), 1e-9)
    step = width / len(bars)
    good, bad = list[Box](), list[Box]()
    for place, (seconds, failed) in enumerate(bars):
        tall = max(1.5, (height - 2) * (seconds / slowest) ** 0.5)
        (bad if failed else good).append((place * step, height - tall, max(0.6, step - 0.6), tall))
    return _svg(width, height, "spark", label, _boxes("bar", good) + _boxes("bad", bad))


def plot(bars: Sequence[Bar], width: int = 960, height: int = 120) -> Markup:
    """Tokens (bars) and time (a line) of each step. The page knows which bar belongs to which step."""
    if not bars:
        return Markup("")
    most = max(max(bar.tokens + bar.output for bar in bars), 1)
    slowest = max(max(bar.seconds for bar in bars), 1e-9)
    floor, step = height - 1, width / len(bars)
    room, wide = floor - 4, max(0.8, step - max(0.3, step * 0.15))
    good, bad, out = list[Box](), list[Box](), list[Box]()
    points = []
    for place, bar in enumerate(bars):
        x = place * step
        tall, more = room * bar.tokens / most, room * bar.output / most
        (bad if bar.failed else good).append((x, floor - tall, wide, tall))
        out.append((x, floor - tall - more, wide, more))
        points.append(f"{x + wide / 2:.1f},{floor - room * bar.seconds / slowest:.0f}")
    inside = (
        f'<line class="axis" x1="0" y1="{floor}" x2="{width}" y2="{floor}"/>'
        + _boxes("bar", good)
        + _boxes("bad", bad)
        + _boxes("out", out)
        + f'<polyline class="line" points="{" ".join(points)}"/><rect class="here" y="0" height="{floor}" width="0"/>'
    )
    data = f'data-step="{step:.4f}"'
    return _svg(width, height, "plot", "tokens and time of each step", inside, data)


def timeline(counted: Sequence[bool], fired: Sequence[bool], width: int = 960, height: int = 56) -> Markup:
    """A rule on the past: where steps counted, and where it would have fired."""
    if not counted:
        return Markup("")
    share = max(1, -(-len(counted) // (width // 4)))
    places = range(0, len(counted), share)
    step = width / len(places)
    good, marks = list[Box](), list[str]()
    for number, place in enumerate(places):
        group = counted[place : place + share]
        tall = (height - 20) * sum(group) / len(group)
        good.append((number * step, height - 14 - tall, step, tall))
        if any(fired[place : place + share]):
            marks.append(f"M{number * step:.1f} {height}l4 -10l4 10z")
    inside = _boxes("bar", good) + f'<path class="bad" d="{"".join(marks)}"/>'
    return _svg(width, height, "timeline", "where the rule would have fired", inside)


def _boxes(kind: str, boxes: Iterable[Box]) -> str:
    drawn = "".join(f"M{x:.1f} {y:.1f}h{w:.1f}v{h:.1f}h-{w:.1f}z" for x, y, w, h in boxes)
    return f'<path class="{kind}" d="{drawn}"/>' if drawn else ""


def _svg(width: int, height: int, kind: str, label: str, inside: str, data: str = "") -> Markup:
    return Markup(  # noqa: S704  numbers and escaped text only
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}" '
        f'preserveAspectRatio="none" {data}>{inside}</svg>'
    )


def caption(bars: Sequence[Bar]) -> str:
    """What is to be seen in a plot."""
    if not bars:
        return ""
    most, slowest = max(bar.tokens + bar.output for bar in bars), max(bar.seconds for bar in bars)
    return f"bars: tokens of each step, up to {most:,} · line: time, up to {slowest:,.2f} s"
