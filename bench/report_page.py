"""The numbers of the benchmarks → docs/benchmarks.md: ratios first, then targets, then each benchmark.

Every function returns Markdown and takes plain numbers, so that a page can be written again without measuring.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

Record = dict[str, Any]
Records = dict[str, Record]

RATIOS = (
    ("CPU per step", "cpu_ms", "ms"),
    ("CPU per step at the end", "cpu_ms_last", "ms"),
    ("wall time per step", "wall_ms", "ms"),
    ("disk at the end", "bytes", "bytes"),
    ("disk per step at the end", "bytes_per_step_late", "bytes"),
)
HELD_BACK, FEW = "held back", 20
"""The half of the questions that no weight was chosen on, and how many of them are too few to compare."""
WIDEST = 8
"""Figures that fit beside each other in a table."""
VARIABLE_TARGETS = {"40,000 rows beside small steps": (1.0, None)}
"""At most so many milliseconds more per step, and so many times the content on disk; the others: 2 and 3."""


def page(records: Records, names: list[str], pictures: list[str], quick: bool) -> str:
    """The whole page."""
    numbers = {name: record["numbers"] for name, record in records.items() if "numbers" in record}
    measured = [records[name] for name in numbers]
    small = "The sizes are small: targets that are shares of a long run are missed for that reason alone."
    parts = ["# Benchmarks", _about(measured, quick), *_pictures("top", pictures)]
    parts += ["## Ratios", _ratios(numbers), "## Targets"]
    parts += [small if quick else "", _targets(numbers)]
    for name, (title, show) in SECTIONS.items():
        found = {key: record for key, record in records.items() if _section(key) == name}
        if any("numbers" in record for record in found.values()):
            parts += [f"## {title}", *_pictures(name, pictures), show(numbers), _commands(found)]
    parts += ["## Not measured", _missing(records, names, numbers)]
    parts += ["## Machine and versions", _machine(measured)] if measured else []
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _section(name: str) -> str:
    """Several benchmarks can be one section."""
    return "growth" if name == "crewai" else name.partition("-")[0]


# --- Markdown --------------------------------------------------------------------------------------------------------


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; the first column to the left, the others to the right."""
    head = list(heads)
    lines = [head, ["---", *("---:" for _ in head[1:])], *map(list, rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def amount(value: float | None, unit: str) -> str:
    """A number with its unit, short."""
    if value is None:
        return "–"
    if unit == "bytes":
        for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
            if abs(value) >= size:
                return f"{value / size:,.1f} {name}"
        return f"{value:,.0f} B"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}".strip()


def ratio(value: float) -> str:
    """A ratio with three digits that count: `0.285×`, `61.6×`, `1,180×`."""
    return f"{value:.3g}×" if abs(value) < 999.5 else f"{float(f'{value:.3g}'):,.0f}×"


def times(value: float | None, ours: float | None) -> str:
    """How many times smolmem's a number is."""
    return "–" if value is None or not ours else ratio(value / ours)


def _pictures(name: str, pictures: list[str]) -> list[str]:
    return [f"![{_ALT[picture]}](pictures/{picture})" for picture in pictures if PICTURES.get(picture) == name]


PICTURES = {
    "bench-step-cost.svg": "top",
    "bench-disk.svg": "growth",
    "bench-recall.svg": "recall",
    "bench-quality.svg": "top",
}
_ALT = {
    "bench-step-cost.svg": "CPU time to record a step over the length of a run",
    "bench-disk.svg": "size on disk over the steps of a run",
    "bench-recall.svg": "time of a recall over the number of memories",
    "bench-quality.svg": "share of the questions whose step is among the first five",
}


def _commands(found: Records) -> str:
    lines = []
    for record in found.values():
        if "numbers" in record:
            load = f", load {record['load'][0]:.1f}" if "load" in record else ""
            lines.append(f"    {record['command']}    # {record.get('seconds', 0):.0f} s on {record['at'][:10]}{load}")
    return "\n".join(lines)


# --- the top ---------------------------------------------------------------------------------------------------------


def _about(measured: list[Record], quick: bool) -> str:
    if not measured:
        return "No benchmark has been measured yet: `make report`."
    form = "**This is the quick form, with small sizes: `make report` measures the usual sizes.** " if quick else ""
    again = "make report ARGS=--quick" if quick else "make report"
    load = max(record.get("load", [0])[0] for record in measured)
    busy = f" The machine was busy (load up to {load:.1f}): compare ratios, not times." if load > 3 else ""
    return (
        f"What smolmem costs, and how well it finds, beside what one would use instead. {form}Written by `{again}`, "
        "which runs every benchmark on the same machine and in the same way. Milliseconds depend on the machine; "
        f"compare the ratios.{busy} How each number is measured: [bench/README.md](../bench/README.md)."
    )


def _machine(measured: list[Record]) -> str:
    machine = "; ".join(f"{name}: {value}" for name, value in measured[-1]["machine"].items())
    versions = {name: version for record in measured for name, version in record.get("versions", {}).items()}
    listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return f"Machine: {machine}.\n\nVersions: {listed}."


def _ratios(numbers: dict[str, Any]) -> str:
    """Every comparison, as a ratio; what is worse with smolmem stands in bold."""
    groups = [_recording_ratios(numbers), _vector_ratios(numbers), _quality_ratios(numbers)]
    every = [than for group in groups for than, *_ in group]
    if not every:
        return "Nothing was compared."
    worse = sum(than < 1 for than in every)
    intro = (
        "Each ratio is the other's figure divided by smolmem's (for recall the other way round): above 1, smolmem is "
        f"faster, smaller or more often right. **Below 1, in bold, smolmem is worse: {worse} of {len(every)}.**"
    )
    return "\n\n".join([intro, *(_matrix(group) for group in groups if group)])


def _matrix(group: Compared) -> str:
    """A row for each contestant and a column for each figure; many figures are rows."""
    cells = {(name, label): ratio(than) if than >= 1 else f"**{ratio(than)}**" for than, label, name in group}
    names, labels = (list(dict.fromkeys(part)) for part in zip(*cells, strict=True))
    if len(labels) <= WIDEST:
        return table(("beside", *labels), ((name, *(cells.get((name, one), "–") for one in labels)) for name in names))
    return table(("", *names), ((one, *(cells.get((name, one), "–") for name in names)) for one in labels))


Compared = list[tuple[float, str, str]]
"""A ratio, what it is of, and beside whom."""


def recorded(numbers: dict[str, Any]) -> dict[str, Any]:
    """The figures of all contestants that record runs."""
    return {**numbers.get("growth", {}).get("figures", {}), **numbers.get("crewai", {}).get("figures", {})}


def _recording_ratios(numbers: dict[str, Any]) -> Compared:
    figures = recorded(numbers)
    ours = figures.get("smolmem", {})
    return [
        (value / mine, label, name)
        for name, one in figures.items()
        for label, key, _ in RATIOS
        if name != "smolmem" and (value := one.get(key)) and (mine := ours.get(key))
    ]


def largest_vectors(numbers: dict[str, Any]) -> dict[str, Any]:
    """The numbers of the benchmark of vectors with most rows."""
    found = [one for name, one in numbers.items() if name.startswith("vectors-")]
    return max(found, key=lambda one: int(one["rows"]), default={})


def median(values: list[float]) -> float:
    """The middle of some numbers."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _vector_ratios(numbers: dict[str, Any]) -> Compared:
    biggest = largest_vectors(numbers)
    engines = biggest.get("engines", {})
    pairs: Compared = []
    for name, one in engines.items():
        for label, _, value_of in VECTOR_FIGURES:
            value, mine = value_of(one), value_of(engines.get("smolmem", {}))
            if name != "smolmem" and value and mine:
                pairs.append((value / mine, label, f"{name}, {biggest['rows']:,} vectors"))
    return pairs


def _p50(kind: str) -> Callable[[Record], float | None]:
    return lambda one: median(one["ms"][kind]) if one.get("ms", {}).get(kind) else None


VECTOR_FIGURES: tuple[tuple[str, str, Callable[[Record], float | None]], ...] = (
    ("the ten nearest", "ms", _p50("all")),
    ("the ten nearest of one row in ten", "ms", _p50("tenth")),
    ("building", "s", lambda one: one.get("build_s")),
    ("on disk", "bytes", lambda one: one.get("bytes")),
    ("RAM", "bytes", lambda one: one.get("ram")),
)


def quality_sets(numbers: dict[str, Any]) -> dict[str, Any]:
    """The sets of all benchmarks of quality, each asked in two ways."""
    return {
        title: one for name, found in numbers.items() if _section(name) == "quality" for title, one in found.items()
    }


def _quality_ratios(numbers: dict[str, Any]) -> Compared:
    """With the default floor, on the questions that no weight was chosen on; few questions are not compared."""
    pairs: Compared = []
    for title, one in quality_sets(numbers).items():
        if one["counts"].get(HELD_BACK, 0) < FEW:
            continue
        ours = {name.removesuffix(", floor"): way for name, way in one["ways"].items() if name.endswith(", floor")}
        beside = {name: way for name, way in one["ways"].items() if not name.startswith("smolmem")}
        for (own, mine), (name, way) in itertools.product(ours.items(), beside.items()):
            shares = zip(("recall@5", "recall@10"), mine[HELD_BACK], way[HELD_BACK], strict=True)
            pairs += [(found / other, f"{title}: {own}, {depth}", name) for depth, found, other in shares if other]
    return pairs


# --- targets ---------------------------------------------------------------------------------------------------------


def _targets(numbers: dict[str, Any]) -> str:
    rows = [*_growth_targets(numbers), *_variable_targets(numbers), *_resume_targets(numbers)]
    rows += _inspector_targets(numbers)
    missed = sum(row[-1] == "**missed**" for row in rows)
    if not rows:
        return "Nothing was measured."
    intro = f"{missed} of {len(rows)} targets are missed." if missed else f"All {len(rows)} targets are met."
    return f"{intro}\n\n" + table(("target", "at most", "measured", ""), sorted(rows, key=lambda row: row[-1]))


def _verdict(measured: float, limit: float) -> str:
    return "met" if measured <= limit else "**missed**"


def _growth_targets(numbers: dict[str, Any]) -> list[tuple[str, ...]]:
    found = numbers.get("growth", {}).get("targets", [])
    return [
        (one["says"], f"{one['limit']:g}", f"{one['measured']:,.3g}", _verdict(one["measured"], one["limit"]))
        for one in found
        if one["measured"] is not None
    ]


def _variable_targets(numbers: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for name, one in numbers.get("variables", {}).items():
        slow, big = VARIABLE_TARGETS.get(name, (2.0, 3.0))
        more = one["recorded"] - one["plain"]
        rows.append((f"variables, {name}: more per step", f"{slow:g} ms", f"{more:.2f} ms", _verdict(more, slow)))
        if big is not None:
            share = one["file"] / one["content"]
            rows.append((f"variables, {name}: file", f"{big:g}× content", f"{share:.2f}×", _verdict(share, big)))
    return rows


def _resume_targets(numbers: dict[str, Any]) -> list[tuple[str, ...]]:
    found = numbers.get("resume", {})
    return [
        (what, f"{limit:,.0f} ms", amount(took, "ms"), _verdict(took, limit))
        for what, limit in found.get("targets", {}).items()
        if (took := found["figures"].get(what)) is not None
    ]


def _inspector_targets(numbers: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (f"inspector: {one['what']}", amount(one["target"], one["unit"]), amount(one["found"], one["unit"]),
         _verdict(one["found"], one["target"]))
        for one in numbers.get("inspector", {}).get("figures", [])
        if one["target"] is not None
    ]  # fmt: skip


# --- the sections ----------------------------------------------------------------------------------------------------


def _growth(numbers: dict[str, Any]) -> str:
    found, figures = numbers.get("growth", {}), recorded(numbers)
    ours = figures.get("smolmem", {})
    steps = (found or numbers["crewai"])["steps"]
    rows = []
    for label, key, unit in (*RATIOS, ("RAM of the steps", "ram", "bytes")):
        cells = (f"{amount(one.get(key), unit)} ({times(one.get(key), ours.get(key))})" for one in figures.values())
        rows.append((label, *cells))
    text = [f"A run of {steps:,} steps; in brackets: times smolmem's.", table(("", *figures), rows)]
    text += _growth_parts(found, ours)
    keeps = {one["name"]: one["keeps"] for name in ("growth", "crewai") for one in numbers.get(name, {}).get("raw", [])}
    if keeps:
        text.append("They do not keep the same: " + "; ".join(f"{name}: {what}" for name, what in keeps.items()) + ".")
    notes = [
        f"- {one['name']}: {note}." for name in ("growth", "crewai") for one in numbers.get(name, {}).get("raw", [])
        for note in one["notes"]
    ]  # fmt: skip
    return "\n\n".join([*text, "\n".join(notes)])


def _growth_parts(found: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """What the file of smolmem consists of, and the case of long observations."""
    text = []
    if "bytes_record" in ours:
        parts = (
            f"{amount(ours['bytes_record'], 'bytes')} record, {amount(ours['bytes_index'], 'bytes')} index for recall"
        )
        text.append(f"The file of smolmem: {parts}.")
    large = found.get("beside", {}).get("large")
    if large:
        text.append(
            f"{large['steps']} observations of 100,000 characters ({amount(large['text'], 'bytes')} of text): the file "
            f"is {large['bytes'] / large['text']:.2f}× the text (record {amount(large['bytes_record'], 'bytes')}, "
            f"index {amount(large['bytes_index'], 'bytes')}); the run took {large['run_s']:.1f} s, closing the memory "
            f"{large['close_s']:.1f} s."
        )
    return text


def _variables(numbers: dict[str, Any]) -> str:
    rows = [
        (name, *(amount(one[key], "ms") for key in ("plain", "recorded")),
         *(amount(one[key], "bytes") for key in ("content", "file")), f"{one['file'] / one['content']:.2f}×")
        for name, one in numbers["variables"].items()
    ]  # fmt: skip
    heads = ("case", "plain, CPU per step", "with smolmem", "content", "file", "file / content")
    return table(heads, rows)


def _resume(numbers: dict[str, Any]) -> str:
    found = numbers["resume"]
    intro = (
        f"A run of {found['steps']:,} steps is resumed in a new process; looking is done in a memory of "
        f"{found['looked_at']:,} steps, the backtest on {found['backtest']:,} of them."
    )
    rows = ((what, amount(took, "ms")) for what, took in found["figures"].items())
    return f"{intro}\n\n" + table(("what", "time"), rows)


def _recall(numbers: dict[str, Any]) -> str:
    found = numbers["recall"]
    rows = [
        (f"{int(count):,}", *(amount(one[key], "ms") for key in ("open_ms", "p50_ms", "p95_ms", "fts5_p50_ms")),
         amount(one["bytes"], "bytes"))
        for count, one in found["by_rows"].items()
    ]  # fmt: skip
    heads = ("memories", "open and first recall", "recall p50", "p95", "plain FTS5 p50", "file")
    model = amount(found["model_ms"], "ms") if found["model_ms"] is not None else "not measured, it is not installed"
    return (
        "A recall ranks by words and by vectors, checks that what it found still exists and returns it with its "
        "surroundings; plain FTS5 only ranks by words.\n\n" + table(heads, rows) + "\n\n"
        f"The local model takes for a question: {model}. Saving a step: {amount(found['save_ms'], 'ms')} of CPU; "
        f"making it findable: {amount(found['index_ms'], 'ms')}."
    )


def _vectors(numbers: dict[str, Any]) -> str:
    text = []
    for _, one in sorted(((one["rows"], one) for name, one in numbers.items() if name.startswith("vectors-")),
                         key=lambda pair: pair[0]):  # fmt: skip
        rows = []
        for name, engine in one["engines"].items():
            if "error" in engine:
                rows.append((name, f"not measured: {engine['error'][:80]}", *("–" for _ in range(6))))
                continue
            recalls = (f"{engine['recall'].get(kind, 0):.3f}" for kind in ("all", "tenth"))
            rows.append((name, *(amount(value_of(engine), unit) for _, unit, value_of in VECTOR_FIGURES), *recalls))
        heads = ("", *(label for label, _, _ in VECTOR_FIGURES), "recall@10", "recall@10, one in ten")
        text += [f"{one['rows']:,} vectors:", table(heads, rows)]
    return "\n\n".join([*text, f"Data: {largest_vectors(numbers)['data']}."])


def _quality(numbers: dict[str, Any]) -> str:
    text = []
    for title, one in quality_sets(numbers).items():
        groups = [group for group in ("all", HELD_BACK) if group in one["counts"]]
        rows = [
            (name, *(" / ".join(f"{share:.1f}" for share in way[group]) for group in groups),
             amount(one["milliseconds"].get(name), "ms"))
            for name, way in one["ways"].items()
        ]  # fmt: skip
        heads = ("recall@5 / @10, %", *(f"{group} ({one['counts'][group]})" for group in groups), "time per question")
        text += [f"{title}:", table(heads, rows), *one["lines"]]
    intro = (
        "A hit is the exact step that the data names. The weights of the ranking were chosen on every second run or "
        "chat (those of the floor on all); the others are *held back*, and only those are compared above. `assistants` "
        "is part of this project: runs and notes of three users' agents, with questions that were written before any "
        "result was seen; one weight was chosen on it since (how much few words weigh). `floor` is the default: "
        "smolmem then leaves questions unanswered that it finds nothing sure for. Without it, it returns everything "
        "that matches, as the others do."
    )
    return "\n\n".join([intro, *text])


def _runs(numbers: dict[str, Any]) -> str:
    rows = ((way, str(one["questions"]), f"{one['first']:.1f} %", f"{one['five']:.1f} %")
            for way, one in numbers["runs"].items())  # fmt: skip
    intro = "Scripted agents, ten things for each kind of incident, questions in other words than the steps."
    return f"{intro}\n\n" + table(("recall by", "questions", "first", "among five"), rows)


def _prompts(numbers: dict[str, Any]) -> str:
    found = numbers["prompts"]
    plain = next(iter(found["ways"].values()))
    rows = [
        (name, f"{one['largest']:,}", *(f"{one[key] / plain[key]:.1%}" for key in ("all", "read_again")),
         str(one["pictures"]))
        for name, one in found["ways"].items()
    ]  # fmt: skip
    heads = ("", "largest prompt, tokens", "all prompts, of plain", "read again, of plain", "pictures left")
    return (
        f"A run of {found['steps']} steps with a screenshot at every second step.\n\n{table(heads, rows)}\n\n"
        f"Twenty rules cost {amount(found['rules_ms'], 'ms')} per step."
    )


def _inspector(numbers: dict[str, Any]) -> str:
    found = numbers["inspector"]
    size = amount(found["bytes"], "bytes")
    intro = f"{found['runs']:,} runs, {found['steps']:,} steps, {size}; median of twenty answers."
    rows = ((one["what"], amount(one["found"], one["unit"]), one["also"]) for one in found["figures"])
    return f"{intro}\n\n" + table(("page", "time or size", "also"), rows)


def _postgres(numbers: dict[str, Any]) -> str:
    found = numbers["postgres"]
    rows = [
        (f"{name}, {case}", amount(one["ms"], "ms"), f"{one['messages']:.1f}", amount(one["bytes"], "bytes"))
        for case, stores in found["cases"].items()
        for name, one in stores.items()
    ]
    intro = (
        f"The same run of {found['steps']} steps of a scripted agent in both stores, synced; the time is that of the "
        f"agent and of recording. The server is on the same machine. Median of {found['rounds']} rounds."
    )
    return f"{intro}\n\n" + table(("store", "wall time per step", "messages to the server per step", "store"), rows)


SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "growth": ("Recording a run", _growth),
    "postgres": ("PostgreSQL beside SQLite", _postgres),
    "variables": ("Variables of a code agent", _variables),
    "resume": ("Opening, resuming, looking", _resume),
    "recall": ("Recall", _recall),
    "vectors": ("The nearest vectors", _vectors),
    "quality": ("Quality of recall", _quality),
    "runs": ("Quality of recall on scripted incidents", _runs),
    "prompts": ("Prompts", _prompts),
    "inspector": ("Inspector", _inspector),
}


def _missing(records: Records, names: list[str], numbers: dict[str, Any]) -> str:
    """What could not be measured, and why."""
    lines = [f"- `{name}`: {record['error']}" for name, record in records.items() if "error" in record]
    lines += [f"- `{name}`: it has not been run" for name in names if name not in records]
    for name in ("growth", "crewai"):
        failed = numbers.get(name, {}).get("beside", {}).get("failed", {})
        lines += [f"- {one}: {reason}" for one, reason in failed.items() if one != "crewai" or name == "crewai"]
    for name, one in numbers.items():
        engines = one.get("engines", {}) if name.startswith("vectors-") else {}
        lines += [f"- {engine} ({name}): {found['error']}" for engine, found in engines.items() if "error" in found]
    for title, one in quality_sets(numbers).items():
        lines += [f"- {title}: {line}" for line in one["lines"] if "not measured" in line]
    return "\n".join(lines) or "Everything was measured."
