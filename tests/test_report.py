"""The report and the fleet on paper: pages from numbers, failures that are named, extrapolation, a simulation."""

from __future__ import annotations

import argparse
import copy
import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import fleet
import pytest
import report
import report_page
import scale

BENCH = Path(__file__).parent.parent / "bench"

SAMPLE = Path(__file__).parent / "files" / "report-numbers.json"
"""Numbers of a quick report, shortened."""


@pytest.fixture
def records() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SAMPLE.read_text(encoding="utf-8"))
    return found


def page_of(records: dict[str, Any], pictures: tuple[str, ...] = ()) -> str:
    return report_page.page(records, [bench.name for bench in report.BENCHES], list(pictures), quick=False)


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_begins_with_ratios_ends_with_the_machine_and_names_every_command(records: dict[str, Any]) -> None:
    text = page_of(records)
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert heads[:3] == ["# Benchmarks", "## Ratios", "## Targets"]
    assert heads[3:-2] == [f"## {title}" for title, _ in report_page.SECTIONS.values()]
    assert heads[-2:] == ["## Not measured", "## Machine and versions"]
    assert "Machine: processor" in text
    assert "Versions: " in text
    assert all(record["command"] in text for record in records.values())


def test_ratios_are_written_without_exponents() -> None:
    shown = [report_page.ratio(value) for value in (0.000808, 0.285, 61.61, 999.4, 999.6, 1_183, 3_431_000)]
    assert shown == ["0.000808×", "0.285×", "61.6×", "999×", "1,000×", "1,180×", "3,430,000×"]


def test_losses_are_counted_and_stand_beside_wins(records: dict[str, Any]) -> None:
    figures = records["growth"]["numbers"]["figures"]
    ours = figures["smolmem"]
    records["growth"]["numbers"]["figures"] = {
        "smolmem": ours,
        "quicker": {"cpu_ms": ours["cpu_ms"] / 4},
        "slower": {"cpu_ms": ours["cpu_ms"] * 8},
    }
    text = page_of({"growth": records["growth"]})
    assert "smolmem is worse: 1 of 2." in text
    assert "| quicker | **0.25×** |" in text
    assert "| slower | 8× |" in text


def test_a_missed_target_is_counted_and_marked(records: dict[str, Any]) -> None:
    targets = records["growth"]["numbers"]["targets"]
    targets[0] |= {"measured": 2 * targets[0]["limit"]}
    targets[1] |= {"measured": targets[1]["limit"]}
    text = page_of({"growth": records["growth"]})
    assert f"| {targets[0]['says']} |" in text
    rows = {line.split(" | ")[0][2:]: line for line in text.splitlines() if line.startswith("| ")}
    assert rows[targets[0]["says"]].endswith("**missed** |")
    assert rows[targets[1]["says"]].endswith(" met |")


def test_what_was_not_measured_is_named_with_the_reason(records: dict[str, Any]) -> None:
    records["recall"] = {"command": "make bench-recall", "at": "2025-01-01", "error": "it was stopped after 360 s"}
    del records["prompts"]
    records["growth"]["numbers"]["beside"]["failed"] = {"pydantic": "ModuleNotFoundError: No module named 'x'"}
    records["vectors-small"]["numbers"]["engines"]["chroma"] = {"error": "ImportError: none"}
    text = page_of(records).partition("## Not measured")[2]
    assert "- `recall`: it was stopped after 360 s" in text
    assert "- `prompts`: it has not been run" in text
    assert "- pydantic: ModuleNotFoundError" in text
    assert "- chroma (vectors-small): ImportError: none" in text


def test_quality_is_compared_with_the_default_floor_on_enough_questions_that_no_weight_was_chosen_on(
    records: dict[str, Any],
) -> None:
    ways = {
        "BM25": {"all": [10, 10], "held back": [40, 80]},
        "smolmem, words": {"all": [90, 90], "held back": [90, 90]},
        "smolmem, words, floor": {"all": [80, 80], "held back": [50, 60]},
    }
    one = {"ways": ways, "questions": 60, "counts": {"all": 60, "held back": 30}, "milliseconds": {}, "lines": []}
    records["quality-locomo"]["numbers"] = {"chats": one}
    chats = {"quality-locomo": records["quality-locomo"]}
    text = page_of(chats)
    assert "| beside | chats: smolmem, words, recall@5 | chats: smolmem, words, recall@10 |" in text
    assert "| BM25 | 1.25× | **0.75×** |" in text
    one["counts"]["held back"] = 19
    assert "Nothing was compared." in page_of(chats)


def test_many_figures_are_rows_so_that_a_table_fits_a_page(records: dict[str, Any]) -> None:
    figures = 2 * report_page.WIDEST
    pairs = [(number / figures, f"figure {number}", "other") for number in range(1, figures + 1)]
    lines = report_page._matrix(pairs).splitlines()
    assert lines[0] == "|  | other |"
    assert lines[2:4] == ["| figure 1 | **0.0625×** |", "| figure 2 | **0.125×** |"]
    assert len(lines) == 2 + figures


@pytest.mark.parametrize("name", [bench.name for bench in report.BENCHES])
def test_the_page_can_be_written_from_any_one_benchmark(records: dict[str, Any], name: str) -> None:
    text = page_of({name: records[name]})
    assert records[name]["command"] in text
    assert text.count("it has not been run") == len(report.BENCHES) - 1


def test_a_page_without_any_numbers_says_so() -> None:
    assert "No benchmark has been measured yet" in page_of({})


def test_plots_are_the_same_for_the_same_numbers_and_show_every_contestant(
    records: dict[str, Any], tmp_path: Path
) -> None:
    plots = pytest.importorskip("report_plots", reason="matplotlib draws the plots")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert plots.draw(copy.deepcopy(records), tmp_path / "a") == list(report_page.PICTURES)
    plots.draw(records, tmp_path / "b")
    for name in report_page.PICTURES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    shown = (tmp_path / "a" / "bench-step-cost.svg").read_text(encoding="utf-8")
    assert all(name in shown for name in report_page.recorded({k: v["numbers"] for k, v in records.items()}))
    assert "](pictures/bench-disk.svg)" in page_of(records, tuple(report_page.PICTURES))
    assert plots.draw({}, tmp_path / "a") == []


# --- running ---------------------------------------------------------------------------------------------------------


def given(**changed: Any) -> argparse.Namespace:
    usual = {"quick": True, "only": None, "missing": False, "render": False, "data": None, "limit": 60.0}
    return argparse.Namespace(**usual | changed)


def script(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> report.Bench:
    """A benchmark that runs this code."""
    (folder / "bench").mkdir()
    (folder / "bench" / "some.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(report, "ROOT", folder)
    return report.Bench("some", "some.py", "bench-some", "--long", "--short")


def test_numbers_come_with_the_command_and_the_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = script(tmp_path, monkeypatch, "import sys, json; json.dump(sys.argv[1:2], open(sys.argv[-1], 'w'))")
    record = report.run(bench, given(), tmp_path / "memory.db")
    assert record["numbers"] == ["--short"]
    assert record["command"] == 'make bench-some ARGS="--short"'
    assert "smolagents" in record["versions"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ValueError('no disk')", "it failed: ValueError: no disk"),
        ("raise SystemExit(3)", "it failed: exit code 3"),
        ("import time; time.sleep(60)", "it was stopped after 1 s"),
        ("", "it wrote no numbers"),
    ],
)
def test_a_benchmark_that_fails_is_a_reason_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    bench = script(tmp_path, monkeypatch, code)
    record = report.run(bench, given(limit=1.0 if "sleep" in code else 60.0), tmp_path / "memory.db")
    assert record["error"] == reason
    assert "numbers" not in record


def test_quality_without_its_data_and_crewai_without_its_environment_are_reasons(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(report, "CREWAI", tmp_path / "none")
    by_name = {bench.name: bench for bench in report.BENCHES}
    assert "DATA=folder" in report.run(by_name["quality-locomo"], given(), tmp_path)["error"]
    assert "not installed" in report.run(by_name["crewai"], given(), tmp_path)["error"]


def test_only_and_missing_keep_the_other_numbers_and_a_whole_report_begins_anew(tmp_path: Path) -> None:
    growth, recall = {"format": report.FORMAT, "numbers": 1}, {"format": report.FORMAT, "error": "it failed"}
    report.write(tmp_path / "growth.json", growth)
    report.write(tmp_path / "recall.json", recall)
    report.write(tmp_path / "prompts.json", {"format": "of before", "numbers": 1})
    every = [bench.name for bench in report.form(quick=True)]
    assert "vectors-middle" not in every

    def chosen(**options: Any) -> list[str]:
        return [bench.name for bench in report.chosen(given(**options), tmp_path)]

    assert chosen(render=True) == []
    assert chosen(only=["recall"]) == ["recall"]
    assert chosen(missing=True) == [name for name in every if name != "growth"]
    assert report.kept(tmp_path) == {"growth": growth, "recall": recall}
    assert chosen() == every
    assert report.kept(tmp_path) == {}


def test_every_bench_can_be_imported_and_run_by_its_target() -> None:
    makefile = (BENCH.parent / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{bench.target}:" in makefile for bench in report.BENCHES)
    for name in {bench.script.removesuffix(".py") for bench in report.BENCHES}:
        pytest.importorskip(name) if name == "vectors" else importlib.import_module(name)  # it needs psutil


def test_the_benches_run_on_the_smolmem_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks use some internals: this fails when one of them changes, not only when somebody measures."""
    growth, inspector, recall, resume = map(importlib.import_module, ("growth", "inspector", "recall", "resume"))
    monkeypatch.setattr(inspector, "LONG", 8)
    result = growth.smolmem(tmp_path, 20, lambda: None)
    assert result.steps == list(range(1, 21))
    assert result.extra["bytes"] > result.extra["bytes_record"] > result.sizes[10] > 0
    assert growth.large(tmp_path, 2)["text"] > 200_000
    inspector.build(tmp_path / "looked-at.db", 3, 40, 30)
    assert set(resume.look(tmp_path / "looked-at.db", 20)) < set(resume.TARGETS)
    texts = recall.fill(tmp_path / "notes.db", 0, 20)
    assert recall.asked(tmp_path / "notes.db", texts[:2])["p50_ms"] > 0
    assert set(recall.writing(tmp_path / "written.db", 2)) == {"save_ms", "index_ms"}
    assert scale._vectors_ms(tmp_path / "notes.db", recall.clustered(1, 1)[0]) > 0


def test_the_vector_bench_finds_the_rows_that_smolmem_stores(tmp_path: Path) -> None:
    vectors = pytest.importorskip("vectors", reason="it needs NumPy and psutil")
    rows = vectors.synthetic(30)
    engine = vectors.Smolmem(tmp_path)
    engine.build(rows)
    engine.finish(rows)
    engine.open()
    assert engine.ask(rows[7], False)[0] == 7
    assert engine.ask(rows[20], True)[0] == 20
    engine.add(30, vectors.stranger())
    assert engine.ask(vectors.stranger(), False)[0] == -1
    engine.memory.close()


# --- scale -----------------------------------------------------------------------------------------------------------


def test_bytes_are_extrapolated_along_a_line_and_times_by_a_power() -> None:
    assert scale.line({1_000: 5_000.0, 2_000: 6_000.0}, 10_000) == pytest.approx(14_000)
    assert scale.power({100: 1.0, 10_000: 10.0}, 1_000_000) == pytest.approx(100)
    assert scale.power({100: 3.0, 10_000: 2.0}, 1_000_000) == 2.0  # a time that fell does not fall for ever
    assert scale.cell({10: 1.0, 100: 2.0}, 100, "ms") == "2.00 ms"
    assert scale.cell({10: 1.0, 100: 2.0}, 1_000, "ms") == "*4.00 ms*"
    assert scale.cell({10: 1.0, 100: 2.0}, 50, "ms") == "–"


def test_the_load_of_a_fleet_is_what_its_agents_write() -> None:
    small = fleet.Fleet(agents=600, busy=0.5, seconds_per_step=3, steps=8_640_000, record_bytes=10, index_bytes=5)
    load = fleet.load(small)
    assert load["steps per second"] == 100
    assert load["bytes written per second"] == 1_500
    assert load["days until all steps are kept"] == 1
    assert load["bytes of the record"] == 86_400_000
    assert fleet.limits(small)["commits of the servers"] == pytest.approx(fleet.capacity(small) / 200)


def test_commits_wait_only_when_the_servers_are_nearly_full() -> None:
    usual = fleet.Fleet()
    assert fleet.waiting(usual, 5)["p99"] == 0
    full = replace(usual, agents=int(usual.agents * 0.99 * fleet.limits(usual)["commits of the servers"]))
    assert fleet.waiting(full, 3)["p99"] > 1
    assert fleet.waiting(replace(full, servers=4), 3)["p99"] == 0
    assert fleet.waiting(replace(usual, agents=0), 5) == {"commits": 0, "p50": 0.0, "p99": 0.0}


def test_a_vector_takes_as_much_ram_as_the_index_holds() -> None:
    from smolmem.recall import vectors

    index = vectors.Index("default", "model/384", 384)
    arrays = (index._ids, index._facts, index._alive)
    fixed = sum(array.itemsize for array in arrays)
    assert fleet.vector_bytes(384) == fixed + 384 * index._numbers.itemsize + 8 * len(index._bits)


def test_the_page_of_scale_marks_what_is_extrapolated_and_uses_the_measured_bytes() -> None:
    step = {"cpu_ms": 3.0, "bytes": 0, "runs_ms": 1.0, "steps_ms": 2.0, "run_ms": 1.0, "recall_ms": 9.0}
    note = {"cpu_ms": 1.0, "bytes": 100.0, "open_ms": 5.0, "p50_ms": 4.0, "p95_ms": 6.0, "vectors_ms": 0.5}
    found = {
        "machine": {"processor": "a processor"},
        "run": 50,
        "steps": {
            "1000": step | {"bytes_record": 3e6, "bytes_index": 2e6},
            "10000": step | {"bytes_record": 30e6, "bytes_index": 11e6},
        },
        "notes": {"100": note, "10000": note | {"bytes": 10_000.0}},
    }
    measured = scale.measured_fleet(found)
    assert measured == {"record_bytes": 3_000, "index_bytes": 1_000, "scan_ns_per_vector": 50.0}
    text = scale.page(found, replace(fleet.Fleet(), **measured))
    assert "| 10,000 | 3.00 ms | 30.0 MB | 11.0 MB |" in text
    assert "| 1,000,000 | *3.00 ms* | *3.0 GB* | *1.0 GB* |" in text
    assert "| record bytes | 3,000 |" in text
    assert "is full already" in text
