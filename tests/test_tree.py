"""The shape of the project: what is public, what may import what, what may not be used at all."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path

import pytest
from promises import PROMISES

import smolmem
from smolmem.agents import compat

SOURCE = Path(smolmem.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
LAYERS = (
    ("core",),
    ("store",),
    ("recall",),
    ("transfer",),
    ("agents",),
    ("policies",),
    ("memory",),  # the modules beside memory.py
    ("render", "integrations", "mcp", "inspector", "cli"),
)
"""A package may import from its own layer's packages that stand before it, and from the layers before."""
ORDER = [package for layer in LAYERS for package in layer]


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(file): file for file in FILES}


def package_of(module: str) -> str:
    return module.partition(".")[0] if module.partition(".")[0] in ORDER else "memory"


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's syntax tree, parsed once for all tests."""
    return tuple(ast.walk(ast.parse(file.read_text())))


@cache
def imports(file: Path) -> set[str]:
    """Every module that a file imports: at the top, in a function, or for types alone."""
    found: set[str] = set()
    for node in nodes(file):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def ours(file: Path) -> set[str]:
    """The modules of smolmem that a file imports."""
    named = {name.removeprefix("smolmem.") for name in imports(file) if name.startswith("smolmem.")}
    return {name for name in named if name in MODULES and not (SOURCE / name.replace(".", "/")).is_dir()}


# --- the front door -------------------------------------------------------------------------------------------------

FRONT_DOOR = {
    "CannotResume",
    "Embedder",
    "EmbeddingFunction",
    "EmbeddingServer",
    "LocalModel",
    "Memory",
    "Note",
    "Recollection",
    "Run",
    "SmolmemError",
    "Step",
    "UnknownOutcome",
    "Watch",
    "__version__",
    "stepwise",
    "views",
}
SIGNATURES = {
    "Memory.__init__": "url scope durability strict embedder vectors retain key redact secrets",
    "Memory.alerts": "scope run rule limit",
    "Memory.add_source": "source limit scope",
    "Memory.attach": "agent scope recall views watch tools trace tags",
    "Memory.backtest": "rule scope agent run since until limit",
    "Memory.backup": "path progress",
    "Memory.called_by": "runs",
    "Memory.close": "",
    "Memory.context": "question tokens limit scope",
    "Memory.detach": "agent",
    "Memory.doctor": "",
    "Memory.erase": "what scope before dry_run",
    "Memory.export": "path scope progress",
    "Memory.finish_erase": "",
    "Memory.flush": "",
    "Memory.forget": "what influenced undo",
    "Memory.import_runs": "source scope format progress",
    "Memory.index": "progress",
    "Memory.inject": "agent what title expires tokens",
    "Memory.load": "path scope trust progress",
    "Memory.note": "id",
    "Memory.notes": "scope kind tag run past limit",
    "Memory.preview": "agent task",
    "Memory.prune": "older_than scope dry_run",
    "Memory.push_to_hub": "repo scope private redact token progress",
    "Memory.purge": "origin url scope dry_run",
    "Memory.recall": "question limit scope agent run kind since until min_trust floor group rerank",
    "Memory.remember": "text kind tags expires supersedes sources scope origin",
    "Memory.resume": "agent run unknown trust placeholders",
    "Memory.run": "id",
    "Memory.runs": "scope agent model tool tag status since until text parent session managed limit",
    "Memory.scoped": "scope",
    "Memory.stats": "",
    "Memory.step": "id",
    "Memory.steps": "scope run agent status kind tool error since until text limit",
    "Memory.stepwise": "agent task unknown options",
    "Memory.trace": "run to headers prices progress",
    "Memory.verify": "",
    "Note.history": "",
    "Recollection.cited": "place",
    "Recollection.neighbours": "count",
    "Run.as_of": "event",
    "Run.diff": "other",
    "Run.distill": "model",
    "Run.events": "",
    "Run.fork": "step",
    "Run.replay": "detailed prices console",
    "Run.rerun": "agent trust",
    "Run.restore": "agent step trust",
    "Run.resume": "agent unknown trust placeholders",
    "Run.tag": "tags",
    "Run.to_messages": "tokens",
    "Run.untag": "tags",
    "Step.edit": "changes",
    "Step.history": "",
    "Step.to_smolagents": "",
    "Watch.__init__": "what name window threshold kind tool then",
}


def public_methods(cls: type) -> dict[str, str]:
    named = {name: value for name, value in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")}
    if cls in (smolmem.Memory, smolmem.Watch):
        named["__init__"] = cls.__init__  # type: ignore[misc]
    return {
        f"{cls.__name__}.{name}": " ".join(list(inspect.signature(method).parameters)[1:])
        for name, method in named.items()
    }


def test_the_front_door_is_what_the_readme_speaks_of() -> None:
    assert set(smolmem.__all__) == FRONT_DOOR
    assert all(hasattr(smolmem, name) for name in smolmem.__all__)


def test_the_methods_of_public_classes_have_these_signatures() -> None:
    classes = (smolmem.Memory, smolmem.Run, smolmem.Step, smolmem.Note, smolmem.Recollection)
    found = {name: given for cls in classes for name, given in public_methods(cls).items()}
    found["Watch.__init__"] = public_methods(smolmem.Watch)["Watch.__init__"]
    assert found == SIGNATURES


# --- layers -----------------------------------------------------------------------------------------------------------


def test_there_are_eight_layers_and_nothing_beside_them() -> None:
    assert len(LAYERS) == 8
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(ORDER) - {"memory"}


def test_imports_go_down_the_layers() -> None:
    def layer(module: str) -> int:
        return ORDER.index(package_of(module))

    inner = {name: file for name, file in MODULES.items() if name not in ("__init__", "__main__")}
    upward = {name: {used for used in ours(file) if layer(used) > layer(name)} for name, file in inner.items()}
    assert {name: used for name, used in upward.items() if used} == {}


def test_no_module_imports_itself_through_others() -> None:
    needs = {name: ours(file) - {name} for name, file in MODULES.items()}
    left = dict(needs)
    while free := {name for name, used in left.items() if not used & left.keys()}:
        left = {name: used for name, used in left.items() if name not in free}
    assert left.keys() == set(), "these modules import each other in a cycle"


def test_two_modules_never_share_a_name() -> None:
    names = [name.rpartition(".")[2] for name in MODULES if name]
    assert {name for name in names if names.count(name) > 1} <= {"__init__"}


# --- the boundary to smolagents ---------------------------------------------------------------------------------------

PRIVATE_NAMES = {
    *("_callbacks", "_path", "_tensor", "_value", "static_tools", "custom_tools", "additional_functions"),
    *("interrupt_switch", "execute_tool_call", "send_tools", "provide_final_answer", "handle_agent_output_types"),
    *("step_durations", "total_input_token_count", "total_output_token_count"),
    *("LocalPythonExecutor", "BASE_PYTHON_TOOLS", "BASE_BUILTIN_MODULES", "CallbackRegistry"),
}
PRIVATE_TEXTS = ("Execution logs:", "Last output from code snippet:", "New task:")
PATCHED = {"run", "write_memory_to_messages", "generate", "generate_stream", "send_tools", "execute_tool_call"}


def is_of_smolagents(value: ast.expr) -> bool:
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    return name in ("agent", "model", "executor", "python_executor")


def private_uses(file: Path) -> set[str]:
    """What of smolagents' private parts a file names, or assigns on an instance."""
    found: set[str] = set()
    for node in nodes(file):
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE_NAMES:
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "made")
            calls_the_executor = node.attr == "send_tools"  # documented, and only called
            found |= set() if own or calls_the_executor else {node.attr}
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.name for alias in node.names} & PRIVATE_NAMES
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {text for text in PRIVATE_TEXTS if text in node.value}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Attribute) and target.attr in PATCHED and is_of_smolagents(target.value):
                    found.add(f"{target.attr} =")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            found |= {arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant)} & PRIVATE_NAMES
    return found


def test_only_compat_names_what_smolagents_keeps_private() -> None:
    uses = {name: private_uses(file) for name, file in MODULES.items()}
    assert {"_callbacks", "_path", "static_tools", "interrupt_switch"} <= uses.pop("agents.compat")
    assert uses.pop("core.smolagents_texts") == {*PRIVATE_TEXTS}
    assert {name: used for name, used in uses.items() if used} == {}


def test_every_assumption_about_smolagents_holds_here() -> None:
    assert compat.check() == {}


# --- what may not be used --------------------------------------------------------------------------------------------


@pytest.mark.promise("S1")
def test_nothing_in_the_package_can_run_what_it_loads() -> None:
    modules = {"pickle", "marshal", "dill", "cloudpickle", "shelve", "importlib.import_module", "runpy", "code"}
    functions = {"eval", "exec", "compile", "__import__"}
    found = {}
    for name, file in MODULES.items():
        calls = {node.func.id for node in nodes(file) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        found[name] = imports(file) & modules | calls & functions
    assert {name: used for name, used in found.items() if used} == {}


def test_modules_stay_small() -> None:
    lengths = {name_of(file): len(file.read_text().splitlines()) for file in FILES}
    assert {name: length for name, length in lengths.items() if length > 500} == {}


def test_every_promise_has_a_test_and_every_test_a_promise() -> None:
    text = "".join(file.read_text() for file in Path(__file__).parent.glob("*.py"))
    named = set(re.findall(r'mark\.promise\("(\w+)"\)', text))
    assert named == set(PROMISES) == {f"D{n}" for n in range(1, 17)} | {f"S{n}" for n in range(1, 19)}
