"""The shape of the project: what is public, what may import what, what may not be used at all."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from promises import PROMISES

import smolmem

SOURCE = Path(smolmem.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
ORDER = [
    *("errors", "faults", "inert", "patterns"),
    *("record.wire", "record.kinds", "record.edits", "record.injected", "record.codec", "record.writer"),
    *("record.steplist", "record.show", "record.values", "record.session", "record.variables", "record.ledger"),
    *("record.tokens", "record.prompt", "record.mind", "record.failures", "record.sink"),
    *("record.standing", "record.recorder"),
    *("store.base", "store.sqlite", "store.window", "store.fold", "store.messages", "store.records"),
    *("store.reminders", "store.traces", "store.units", "store.journal", "store.upkeep"),
    *("recall.text", "recall.values", "recall.question", "recall.models", "recall.embed", "recall.index"),
    *("recall.search", "recall.meaning", "recall.context", "recall.notes", "recall.distill", "recall.reader"),
    *("recall.recall", "recall.agent", "arguments", "views"),
    *("store.archive", "store.shapes", "store.rebuild", "store.loading", "store.transfer", "store.doctor"),
    *("watch.judges", "watch.following", "watch.rule", "watch.backtest", "watch.watching"),
    *("run.stepwise", "run.interpreter", "run.resume", "run.fork", "run.replay", "run.handover", "run.preview"),
    *("looking", "remembering", "memory", "plain", "sample"),
    *("inspector.draw", "inspector.words", "inspector.guard", "inspector.reading", "inspector.app", "inspector.serve"),
    *("cli.as_json", "cli.flat", "cli.output", "cli.command", "cli.following", "cli.looking", "cli.reviewing"),
    *("cli.watching", "cli.remembering", "cli.keeping", "cli.starting", "cli.parser", "cli.completion"),
    *("cli.reference", "cli.main"),
]
"""The data's way. A module may import what stands before it; `show` is fetched late by the values it draws."""


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(SOURCE).with_suffix("").signals)


def imports(file: Path, *, top_only: bool = True) -> set[str]:
    tree = ast.parse(file.read_text())
    nodes = tree.body if top_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_the_front_door_is_what_the_readme_speaks_of() -> None:
    assert smolmem.__all__ == [
        "Memory",
        "Note",
        "Recollection",
        "Run",
        "SmolmemError",
        "Step",
        "Watch",
        "__version__",
        "stepwise",
        "views",
    ]
    assert all(hasattr(smolmem, name) for name in smolmem.__all__)


def test_every_module_has_a_place_in_the_order() -> None:
    assert sorted(name_of(file) for file in FILES if file.name != "__init__.py") == sorted(ORDER)


@pytest.mark.parametrize("file", [file for file in FILES if file.name != "__init__.py"], ids=name_of)
def test_imports_go_one_way(file: Path) -> None:
    here = ORDER.index(name_of(file))
    ours = {name.removeprefix("smolmem.") for name in imports(file) if name.startswith("smolmem.")}
    assert {name for name in ours if name in ORDER and ORDER.index(name) >= here} == set()


@pytest.mark.promise("S1")
@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_nothing_in_the_package_can_run_what_it_loads(file: Path) -> None:
    forbidden = {"pickle", "marshal", "dill", "cloudpickle", "shelve", "importlib.import_module", "runpy", "code"}
    assert not imports(file, top_only=False) & forbidden
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"eval", "exec", "compile", "__import__"}


def test_modules_stay_small() -> None:
    lengths = {name_of(file): len(file.read_text().splitlines()) for file in FILES}
    assert {name: length for name, length in lengths.items() if length > 500} == {}


def test_every_promise_has_a_test_and_every_test_a_promise() -> None:
    text = "".join(file.read_text() for file in Path(__file__).parent.glob("*.py"))
    named = set(re.findall(r'mark\.promise\("(\w+)"\)', text))
    assert named == set(PROMISES)
