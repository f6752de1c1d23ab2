"""Writes `docs/torture.md`: for each promise how many cases ran, with which seeds, and what failed.

A pytest plugin (`-p torture`, see `make torture`). `--promise D1 S12` runs all tests of these promises and no others.
Results are kept by test in `docs/torture.json`, with their day and commit, so that a run of some promises replaces
their results alone. That file is not in the repository: the page keeps its rows of promises that have no results there.

A test that tries many cases reports them with `record_property("cases", 250)` and `record_property("seeds", "0–249")`;
any other test is one case. smolagents' own tests are run by `smolagents_suite.py`, whose results are on the page, too.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import apsw
import pytest
from promises import PROMISES

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "torture.json"
PAGE = ROOT / "docs" / "torture.md"
Result = dict[str, Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--promise", nargs="+", default=[], choices=PROMISES, help="run the tests of these promises alone")


def pytest_configure(config: pytest.Config) -> None:
    if not os.environ.get("SMOLMEM_TORTURE"):
        raise pytest.UsageError("the report is of the long figures: set SMOLMEM_TORTURE=1, as `make torture` does.")
    if not hasattr(config, "workerinput"):  # not in a worker of xdist, which reports to the main process
        config.pluginmanager.register(Collector(), "torture-collector")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = set(config.getoption("--promise"))
    for item in items.copy():
        promises = [str(mark.args[0]) for mark in item.iter_markers("promise")]
        item.user_properties += [("promise", name) for name in promises if not wanted or name in wanted]
        if wanted and wanted.isdisjoint(promises):
            items.remove(item)


class Collector:
    """Gathers the results of all tests that hold the code to a promise."""

    def __init__(self) -> None:
        self.found: dict[str, Result] = {}
        self.run = this_run()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: dict[str, Any] = dict(report.user_properties)
        promises = [str(value) for name, value in report.user_properties if name == "promise"]
        if not promises or (report.when != "call" and report.outcome == "passed"):
            return
        was = self.found.get(report.nodeid, {})
        self.found[report.nodeid] = {
            "promises": promises,
            "outcome": "failed" if "failed" in (was.get("outcome"), report.outcome) else report.outcome,
            "cases": int(properties.get("cases", 1)),
            "seeds": str(properties.get("seeds", "")),
            "seconds": was.get("seconds", 0.0) + report.duration,
            "error": _first_line(report) if report.failed else was.get("error", ""),
            "run": self.run,
        }

    def pytest_sessionfinish(self) -> None:
        if self.found:
            add(self.found)


def add(found: dict[str, Result]) -> None:
    """Adds results to those of earlier runs, and writes the page."""
    results: dict[str, Result] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, one in found.items():  # a test of two promises keeps the rows of both
        known = results.get(name, {}).get("promises", [])
        results[name] = one | {"promises": sorted({*one["promises"], *known})}
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True))
    PAGE.write_text(page(results, PAGE.read_text() if PAGE.exists() else ""))


def this_run() -> str:
    """The day and the commit that is tested; the commit has a `+` if the code or the tests differ from it."""
    commit = _git("rev-parse", "--short", "HEAD")
    changed = "+" if commit and _git("status", "--porcelain", "src", "tests") else ""
    return f"{time.strftime('%Y-%m-%d')} {commit}{changed}".strip()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = getattr(crash, "message", None) or str(report.longrepr)
    return " ".join(str(text).split())[:200]


# --- the page -------------------------------------------------------------------------------------------------------


def page(results: dict[str, Result], before: str = "") -> str:
    """The report as Markdown; of promises without results, with the rows of the page before."""
    by_promise = {name: [one for one in results.values() if name in one["promises"]] for name in _all_promises()}
    lines = before.splitlines()
    rows = {match[1]: line for line in lines if (match := re.match(r"\| ([DS]\d+) \|", line)) and "not run" not in line}
    kept = {name: rows[name] for name, ran in by_promise.items() if not ran and name in rows}
    failed = {name: one for name, one in sorted(results.items()) if one["outcome"] == "failed"}
    failures = [f"- `{name}` ({', '.join(one['promises'])}): {one['error']}" for name, one in failed.items()]
    failures += [line for line in lines if (match := re.match(r"- `.*?` \(([DS]\d+)", line)) and match[1] in kept]
    table = _table(by_promise, kept)
    return "\n".join([*_head(table), *table, "", *_failures(failures)]).rstrip() + "\n"


def _all_promises() -> list[str]:
    return sorted(PROMISES, key=lambda name: (name[0], int(name[1:])))


def _head(table: list[str]) -> list[str]:
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[2:] if "not run" not in line]
    cases, failed = sum(int(row[3].replace(",", "")) for row in cells), sum(int(row[5].strip("*")) for row in cells)
    days = sorted({day for row in cells for day in re.findall(r"\d{4}-\d\d-\d\d", row[7])})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    versions = ", ".join(
        [
            f"Python {platform.python_version()}",
            *(f"{name} {metadata.version(name)}" for name in ("smolagents", "apsw")),
            f"SQLite {apsw.sqlite_lib_version()}",
            f"{platform.system()} {platform.release()} ({platform.machine()}, {os.cpu_count()} cores)",
        ]
    )
    return [
        "# Torture report",
        "",
        "`make torture` runs the tests of each promise at their long figures, and writes this page. It holds what ran,",
        'and nothing else. Each row names the day and the commit of its run. `make torture ARGS="--promise D1"` runs',
        "one row again; D7 also counts smolagents' own tests, which `make torture-smolagents` runs.",
        "",
        f"- {when}; {versions}",
        f"- {cases:,} cases; {_many(failed, 'test')} failed",
        "",
    ]


def _table(by_promise: dict[str, list[Result]], kept: dict[str, str]) -> list[str]:
    lines = [
        "| id | promise | tests | cases | seeds | failed | time | run |",
        "|---|---|---:|---:|---|---:|---:|---|",
    ]
    for name, results in by_promise.items():
        ran = [one for one in results if one["outcome"] != "skipped"]
        said = PROMISES[name]
        if name in kept:
            lines.append(kept[name])
        elif not ran:
            lines.append(f"| {name} | {said} | **not run** | | | | | |")
        else:
            skipped = len(results) - len(ran)
            tests = f"{len(ran):,}" + (f" ({skipped} skipped)" if skipped else "")
            wrong = sum(one["outcome"] == "failed" for one in ran)
            cells = [
                *(name, said, tests, f"{sum(one['cases'] for one in ran):,}", _seeds(ran)),
                *(f"**{wrong}**" if wrong else "0", _duration(sum(one["seconds"] for one in ran))),
                ", ".join(sorted({one["run"] for one in ran})),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _seeds(results: Iterable[Result]) -> str:
    """Ranges that touch are written as one."""
    ranges, others = [], set()
    for said in {one["seeds"] for one in results if one["seeds"]}:
        first, dash, last = said.partition("–")
        if dash and first.isdigit() and last.isdigit():
            ranges.append((int(first), int(last)))
        else:
            others.add(said)
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return ", ".join([*(f"{first}–{last}" for first, last in merged), *sorted(others)])


def _failures(lines: list[str]) -> list[str]:
    return ["## Failures", "", *lines, ""] if lines else []


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


if __name__ == "__main__":  # writes the page again from the results that are kept
    PAGE.write_text(page(json.loads(RESULTS.read_text()), PAGE.read_text()))
    sys.exit(0)
