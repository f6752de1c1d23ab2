"""The plots of docs/benchmarks.md, as SVG files that do not change when their numbers do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from report_page import HELD_BACK, PICTURES, Records, median, quality_sets

matplotlib.use("svg")
import matplotlib.pyplot as plt

matplotlib.rcParams |= {"svg.hashsalt": "smolmem", "svg.fonttype": "none", "font.size": 10, "axes.grid": True}
OURS = "#d9480f"
OTHERS = ["#1971c2", "#2f9e44", "#7048e8", "#868e96", "#e0a800", "#0c8599", "#a61e4d", "#495057"]
WAYS = {"smolmem, words": "#f59f00", "smolmem": OURS}
"""The color of recall by words, and of that with a model."""


def draw(records: Records, folder: Path) -> list[str]:
    """Draws what there are numbers for; returns the names of the files."""
    numbers = {name: record["numbers"] for name, record in records.items() if "numbers" in record}
    drawn = []
    for name, plot in PLOTS.items():
        figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
        if plot(axes, numbers):
            figure.savefig(folder / name, format="svg", metadata={"Date": None})
            drawn.append(name)
        plt.close(figure)
    assert set(PLOTS) == set(PICTURES)
    return drawn


def _line(axes: Any, name: str, place: int, xs: list[float], ys: list[float], marker: str = "") -> None:
    ours = name.startswith("smolmem")
    style = {"color": OURS, "linewidth": 2.5} if ours else {"color": OTHERS[place % len(OTHERS)], "linewidth": 1.3}
    axes.plot(xs, ys, label=name, marker=marker, zorder=3 if ours else 2, **style)


def _raw(numbers: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for name in ("growth", "crewai") for one in numbers.get(name, {}).get("raw", [])]


def step_cost(axes: Any, numbers: dict[str, Any]) -> bool:
    """CPU per step over the steps, each point the median of its surroundings."""
    for place, one in enumerate(_raw(numbers)):
        width = max(len(one["steps"]) // 40, 1)
        groups = [range(start, min(start + width, len(one["steps"]))) for start in range(0, len(one["steps"]), width)]
        xs = [median([one["steps"][index] for index in group]) for group in groups]
        ys = [median([one["cpu"][index] for index in group]) for group in groups]
        _line(axes, one["name"], place, xs, ys)
    return _finish(axes, "step of the run", "CPU to record the step, ms", log="y")


def disk(axes: Any, numbers: dict[str, Any]) -> bool:
    """Bytes over steps."""
    for place, one in enumerate(_raw(numbers)):
        sizes = sorted((int(step), size / 1e6) for step, size in one["sizes"].items())
        name = "smolmem (record)" if one["name"] == "smolmem" else one["name"]
        _line(axes, name, place, [step for step, _ in sizes], [size for _, size in sizes], "o")
        if one["name"] == "smolmem" and "bytes" in one["extra"]:
            axes.plot([sizes[-1][0]], [one["extra"]["bytes"] / 1e6], "*", color=OURS, markersize=13,
                      label="smolmem with its index")  # fmt: skip
    return _finish(axes, "steps of the run", "on disk, MB", log="y")


def recall(axes: Any, numbers: dict[str, Any]) -> bool:
    """Time of a recall, and of vector search alone, over the number of memories."""
    by_rows = numbers.get("recall", {}).get("by_rows", {})
    sizes = [int(rows) for rows in by_rows]
    if by_rows:
        _line(axes, "smolmem recall (words and vectors)", 0, sizes, [one["p50_ms"] for one in by_rows.values()], "o")
        _line(axes, "plain FTS5 (words)", 0, sizes, [one["fts5_p50_ms"] for one in by_rows.values()], "o")
    runs = sorted((one for name, one in numbers.items() if name.startswith("vectors-")), key=lambda one: one["rows"])
    for place, name in enumerate(dict.fromkeys(name for one in runs for name in one["engines"])):
        found = [(one["rows"], one["engines"].get(name, {}).get("ms", {}).get("all")) for one in runs]
        points = [(rows, median(spent)) for rows, spent in found if spent]
        if points and name != "smolmem":
            _line(axes, f"{name} (vectors)", place, [rows for rows, _ in points], [took for _, took in points], ".")
        elif points:
            axes.plot(*zip(*points, strict=True), "--", color=OURS, label="smolmem (vectors)")
    return _finish(axes, "memories", "median time, ms", log="xy")


def quality(axes: Any, numbers: dict[str, Any]) -> bool:
    """Bars: the share of the questions that were held back whose step is among the first five."""
    sets = {title: one for title, one in quality_sets(numbers).items() if one["counts"].get(HELD_BACK)}
    ways = list(dict.fromkeys(way for one in sets.values() for way in one["ways"]))
    height = 0.8 / max(len(ways), 1)
    axes.figure.set_figheight(max(4.2, 1.0 + 0.12 * len(sets) * len(ways)))
    for place, way in enumerate(ways):
        bars = [(row, one["ways"][way][HELD_BACK][0]) for row, one in enumerate(sets.values()) if way in one["ways"]]
        others = OTHERS[place % len(OTHERS)]
        color = next((color for start, color in WAYS.items() if way.startswith(start)), others)
        faded = 1.0 if way.endswith(", floor") or not way.startswith("smolmem") else 0.5
        axes.barh([row + place * height for row, _ in bars], [share for _, share in bars], height, label=way,
                  color=color, alpha=faded)  # fmt: skip
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(sets))], [title.replace(", ", "\n") for title in sets])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    return _finish(axes, "recall@5 of the questions that were held back, %", "", log="")


def _finish(axes: Any, xlabel: str, ylabel: str, log: str) -> bool:
    """Labels the axes; false if nothing is drawn."""
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
    _, names = axes.get_legend_handles_labels()
    if names:
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return bool(names)


PLOTS: dict[str, Callable[[Any, dict[str, Any]], bool]] = {
    "bench-step-cost.svg": step_cost,
    "bench-disk.svg": disk,
    "bench-recall.svg": recall,
    "bench-quality.svg": quality,
}
