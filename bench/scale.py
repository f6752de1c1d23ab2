"""What many steps and notes cost, measured as far as minutes allow, and a fleet of agents on paper.

    make scale                                                  # measures, then writes docs/scale.md; some minutes
    make scale ARGS="--steps 1000,10000,100000 --notes 100,1000,10000,100000"    # measures more, in half an hour
    make scale ARGS="--render --agents 2000 --servers 4"        # another fleet, with the measurements of before

A scripted agent records runs of fifty steps into one file; notes are written one by one with vectors that are made
beforehand. Sizes beyond the measured ones are extrapolated and marked as such.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fleet import Fleet, capacity, limits, load, vector_bytes, waiting
from report_page import amount, ratio, table
from rich.console import Console
from rich.progress import Progress

ROOT = Path(__file__).parent.parent
RUN = 50
"""Steps of a run."""
STEPS = [10**power for power in range(3, 7)]
NOTES = [10**power for power in range(2, 7)]

Points = dict[int, float]


# --- measuring -------------------------------------------------------------------------------------------------------


def measure(steps: list[int], notes: list[int]) -> dict[str, Any]:
    """The figures of both, by size."""
    from report import machine

    with tempfile.TemporaryDirectory() as folder, Progress(console=Console(stderr=True)) as bar:
        found = {
            "run": RUN,
            "steps": measure_steps(Path(folder) / "steps.db", sorted(steps), bar),
            "notes": measure_notes(Path(folder) / "notes.db", sorted(notes), bar),
        }
    return found | {"machine": machine() | {"load": f"{os.getloadavg()[0]:.1f}"}}


def measure_steps(path: Path, sizes: list[int], bar: Progress) -> dict[str, Any]:
    """One file that grows: CPU per step, bytes per step, and how long it takes to look."""
    import growth

    from smolmem import Memory

    class Reader(growth.Scripted):
        """Reads other pages in each run, so that no text is stored only once."""

        def generate(self, messages: list[Any], **_: Any) -> Any:
            """The next reply."""
            self.said += 1
            text = growth.reply(self.steps - RUN + self.said, self.steps)
            return growth.ChatMessage(growth.MessageRole.ASSISTANT, text, token_usage=growth.TokenUsage(1_000, 50))

    found, before, row = dict[str, Any](), 0, bar.add_task("steps", total=sizes[-1])
    for size in sizes:
        began, runs = time.process_time(), max((size - before) // RUN, 1)
        with Memory(path, durability="normal", embedder="off") as memory:
            for number in range(1, runs + 1):
                agent = memory.attach(growth.new_agent(RUN))
                agent.model = Reader(before + number * RUN)
                agent.run(growth.TASK)
                memory.detach(agent)
                bar.advance(row, RUN)
            memory.index()
        spent = time.process_time() - began
        found[str(size)] = {
            "cpu_ms": 1_000 * spent / (runs * RUN),
            **growth.finished(path),
            **_looks(path, growth.words("page 7", 60)),
        }
        before = size
    return found


def _looks(path: Path, question: str) -> dict[str, float]:
    from smolmem import Memory

    with Memory(path, embedder="off") as memory:
        memory.recall("page")
        newest = memory.runs()[0]
        return {
            "runs_ms": _median_ms(lambda: memory.runs(limit=10)),
            "steps_ms": _median_ms(lambda: memory.steps(limit=10)),
            "run_ms": _median_ms(lambda: newest.steps),
            "recall_ms": _median_ms(lambda: memory.recall(question)),
        }


def _median_ms(act: Any, times: int = 7) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        took.append(1_000 * (time.perf_counter() - began))
    return statistics.median(took)


def measure_notes(path: Path, sizes: list[int], bar: Progress) -> dict[str, Any]:
    """One file that grows: CPU per note with its vector, bytes per note, and how long a recall takes."""
    import recall

    from smolmem import Memory

    found, before, row = dict[str, Any](), 0, bar.add_task("notes", total=sizes[-1])
    for size in sizes:
        vectors = recall.clustered(size - before, size)
        began = time.process_time()
        with Memory(path, durability="normal", embedder=recall.Given(vectors)) as memory:
            for _ in range(before, size):
                memory.remember(recall.sentence())
                bar.advance(row)
            memory.index()
        spent = time.process_time() - began
        asked = recall.asked(path, [recall.sentence(8) for _ in range(20)])
        about = {"bytes": path.stat().st_size, "vectors_ms": _vectors_ms(path, vectors[0])}
        found[str(size)] = {"cpu_ms": 1_000 * spent / (size - before), **about, **asked}
        before = size
    return found


def _vectors_ms(path: Path, vector: Any) -> float:
    """The time of the vector search alone."""
    from smolmem import Memory
    from smolmem.recall.vectors import Index

    with Memory(path, embedder="off") as memory:
        index = Index("default", f"given/{len(vector)}", len(vector))
        index.update(memory._store)
        return _median_ms(lambda: index.search(vector, 10), 20)


# --- extrapolating ---------------------------------------------------------------------------------------------------


def line(points: Points, size: int) -> float:
    """A straight line through the last two points: for bytes, which have a fixed part."""
    (first, low), (last, high) = sorted(points.items())[-2:]
    return high + (high - low) / (last - first) * (size - last)


def power(points: Points, size: int) -> float:
    """A power of the size, fitted to all points and put through the last, at least constant: for times."""
    logs = [(math.log(place), math.log(value)) for place, value in points.items() if value > 0]
    slope = statistics.linear_regression(*zip(*logs, strict=True)).slope if len(logs) > 1 else 0.0
    last = max(points)
    return points[last] * (size / last) ** max(slope, 0.0)


def column(found: dict[str, Any], key: str) -> Points:
    """A figure by size."""
    return {int(size): float(one[key]) for size, one in found.items()}


def cell(points: Points, size: int, unit: str) -> str:
    """The measured number, or the extrapolated one in italics."""
    if size in points:
        return amount(points[size], unit)
    if len(points) < 2 or size < max(points):
        return "–"
    return f"*{amount(line(points, size) if unit == 'bytes' else power(points, size), unit)}*"


# --- the page --------------------------------------------------------------------------------------------------------


def page(found: dict[str, Any], fleet: Fleet) -> str:
    """docs/scale.md."""
    about = "; ".join(f"{name}: {value}" for name, value in found["machine"].items())
    steps = [("CPU per step: agent, recording, indexing", "cpu_ms", "ms"), ("record", "bytes_record", "bytes"),
             ("index", "bytes_index", "bytes"), ("`runs(limit=10)`", "runs_ms", "ms"),
             ("`steps(limit=10)`", "steps_ms", "ms"),
             ("the steps of one run", "run_ms", "ms"), ("`recall()` by words", "recall_ms", "ms")]  # fmt: skip
    notes = [("CPU per note, with its vector", "cpu_ms", "ms"), ("file", "bytes", "bytes"),
             ("open and first recall", "open_ms", "ms"), ("`recall()` p50", "p50_ms", "ms"),
             ("p95", "p95_ms", "ms"), ("vector search alone", "vectors_ms", "ms")]  # fmt: skip
    parts = [
        "# Scale",
        "What many steps and notes cost, and what a fleet of agents would need. *Numbers in italics are extrapolated*: "
        "bytes by a straight line through the two largest measured sizes, times by a power of the size fitted to all. "
        f"The others are measured by `make scale`, which writes this page.\n\nMachine: {about}.",
        "## Steps in one SQLite file",
        f"Runs of {found['run']} steps of a scripted agent, all indexed.",
        _sizes(found["steps"], STEPS, steps),
        "## Notes in one scope",
        "Each note has twenty words and a vector of 384 numbers; the time of the embedding model is not included.",
        _sizes(found["notes"], NOTES, notes),
        "## A fleet on PostgreSQL",
        _fleet(fleet),
        "## Where it stops",
        _stops(found, fleet),
        "## Change it",
        "Every assumption is an option of `bench/scale.py` and a field of `Fleet` in `bench/fleet.py`:\n\n"
        '    make scale ARGS="--render --agents 2000 --seconds-per-step 2 --servers 4"\n\n'
        "`waiting(Fleet(…))` simulates the commits one by one, for other arrival times than these.",
    ]
    return "\n\n".join(parts) + "\n"


def _sizes(found: dict[str, Any], sizes: list[int], shown: list[tuple[str, str, str]]) -> str:
    every = sorted({*sizes, *(int(size) for size in found)})
    rows = [(f"{size:,}", *(cell(column(found, key), size, unit) for _, key, unit in shown)) for size in every]
    return table(("", *(label for label, _, _ in shown)), rows)


def _fleet(fleet: Fleet) -> str:
    assumed = ((field.name.replace("_", " "), f"{getattr(fleet, field.name):,.10g}") for field in fields(fleet))
    now, wait = load(fleet), waiting(fleet)
    results = [(name, _shown(name, value)) for name, value in now.items()]
    results.append(("a commit waits for a connection, p50 / p99", f"{wait['p50']:.2f} / {wait['p99']:.2f} ms"))
    return (
        "Steps are partitioned by time, and each scope is searched alone. Bytes per step and the time of a vector "
        "search come from the measurements above; what a commit costs a server is an assumption, not a measurement, "
        "and so are the servers.\n\n"
        f"{table(('assumption', 'value'), assumed)}\n\n{table(('result', 'value'), results)}"
    )


def _shown(name: str, value: float) -> str:
    if "bytes" in name or "RAM" in name or "B-trees" in name:
        return amount(value, "bytes")
    return f"{value:.1%}" if "share" in name else f"{value:,.4g}" if value < 1_000 else f"{value:,.0f}"


def _stops(found: dict[str, Any], fleet: Fleet) -> str:
    rows = sorted(limits(fleet).items(), key=lambda pair: pair[1])
    told = table(("resource", "full at"), ((name, f"{ratio(share)} this fleet") for name, share in rows))
    first, share = rows[0]
    full = "is full already" if share < 1 else f"is full first, at {ratio(share)} this fleet"
    cpu = column(found["steps"], "cpu_ms")
    one_file = 1_000 / max(cpu[max(cpu)], 0.001)
    return (
        f"{told}\n\nOf these, *{first}* {full}.\n\n"
        f"- **One SQLite file has one writer at a time.** The CPU above allows about {one_file:,.0f} steps per second "
        "of one process, agents included, if the disk syncs fast enough; a disk that needs 5 ms for a sync allows 100 "
        "steps with tool calls. Agents on several machines need PostgreSQL.\n"
        f"- **A vector index is in the RAM of each process that recalls**: {vector_bytes(fleet.dimensions)} bytes for "
        "a vector, for the scopes that are searched. Search compares every vector of the scope, so its time grows with "
        "the scope, not with the store. Scopes with millions of passages need an index outside of smolmem "
        "(`smolmem[faiss]`, `smolmem[chroma]`).\n"
        f"- **A PostgreSQL server commits {capacity(fleet):,.0f} times a second here** by assumption: measure yours "
        "with `pgbench`. More servers mean more stores, each with its own scopes; smolmem does not spread one scope.\n"
        "- **Words that stand in every step** are ranked among all documents of a scope; the search is bounded in time "
        "and returns what it has found by then."
    )


# --- the command -----------------------------------------------------------------------------------------------------


def measured_fleet(found: dict[str, Any]) -> dict[str, float]:
    """What the measurements say about a fleet: the bytes of a step, and the time of a vector search."""
    record, index = column(found["steps"], "bytes_record"), column(found["steps"], "bytes_index")
    scan = column(found["notes"], "vectors_ms")
    most = {"scan_ns_per_vector": round(1e6 * scan[max(scan)] / max(scan), 1)}
    if len(record) < 2:
        return most
    largest = max(record)
    per_step = {"record_bytes": line(record, largest + 1_000), "index_bytes": line(index, largest + 1_000)}
    grown = {"record_bytes": record[largest], "index_bytes": index[largest]}
    return most | {name: round((value - grown[name]) / 1_000) for name, value in per_step.items()}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What many steps and notes cost, and a fleet on paper.")
    parser.add_argument("--steps", default="1000,3000,10000", help="numbers of steps, with commas: %(default)s")
    parser.add_argument("--notes", default="100,1000,10000,30000", help="numbers of notes, with commas: %(default)s")
    parser.add_argument("--render", action="store_true", help="measure nothing, use the numbers of before")
    parser.add_argument(
        "--numbers", type=Path, default=ROOT / "bench/numbers/scale.json", help="where numbers are kept"
    )
    parser.add_argument("--page", type=Path, default=ROOT / "docs/scale.md", help="where the page goes")
    for field in fields(Fleet):
        kind = int if isinstance(field.default, int) else float
        name = "kept-steps" if field.name == "steps" else field.name.replace("_", "-")
        parser.add_argument(f"--{name}", dest=f"fleet_{field.name}", type=kind, help=f"fleet: {field.default:,}")
    return parser.parse_args()


def main() -> None:
    given = options()
    if not given.render:
        sizes = ([int(size) for size in text.split(",")] for text in (given.steps, given.notes))
        given.numbers.parent.mkdir(parents=True, exist_ok=True)
        given.numbers.write_text(json.dumps(measure(*sizes), indent=1))
    found = json.loads(given.numbers.read_text())
    chosen = {field.name: getattr(given, f"fleet_{field.name}") for field in fields(Fleet)}
    changed = {name: value for name, value in chosen.items() if value is not None}
    fleet = replace(Fleet(), **(measured_fleet(found) | changed))
    given.page.write_text(page(found, fleet), encoding="utf-8")
    print(f"{given.page} is written.")


if __name__ == "__main__":
    main()
