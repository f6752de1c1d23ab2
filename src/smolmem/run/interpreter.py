"""A code agent's variables, brought back in a fresh interpreter, without pickle.

The recorded code is run again, with recorded tool results, and what it prints is compared with the record. That
brings back everything code can make: functions, closures, classes and their instances, aliasing. Where the output
differs (time, randomness), where it takes too long, or where the code could reach outside (it imports more than modules
known to be harmless), only its definitions and imports are run, and the values come from the snapshot that was taken
after the last step. What neither brings back is named.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from smolagents.local_python_executor import BASE_BUILTIN_MODULES, BASE_PYTHON_TOOLS, LocalPythonExecutor

from smolmem.record.values import PastCall, PastCode
from smolmem.record.wire import Marked

PATIENCE = 20.0
"""Seconds of recorded code that are run again before the snapshot is taken instead."""

HARMLESS = frozenset(BASE_BUILTIN_MODULES) | {
    *("numpy", "pandas", "scipy", "sympy", "sklearn", "PIL", "json", "decimal", "fractions", "typing", "dataclasses"),
    *("string", "functools", "operator", "copy", "enum", "bisect", "heapq", "textwrap", "base64", "hashlib", "zlib"),
}
"""Modules whose use leaves no trace outside the interpreter; code that imports others is not run again."""


@dataclass
class Restored:
    """How the variables came back, and which did not."""

    by: str = "nothing to restore"
    missing: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lost = f"; not brought back: {', '.join(self.missing)}" if self.missing else ""
        return f"variables: {self.by}{lost}"


class _Differs(Exception):
    """Running the code again does not give what it gave."""


def restore(agent: Any, past: Sequence[PastCode], kept: dict[str, Any] | None) -> Restored:
    """Brings an agent's variables back.

    Args:
        agent: the agent, with its tools sent to its interpreter.
        past: the code that was run, oldest first.
        kept: the snapshot after the last step, decoded.
    """
    values = dict(kept or {})
    agent.state.update(_sound(values.get("state", {})))
    executor = getattr(agent, "python_executor", None)
    if executor is None:
        return Restored("from the snapshot") if agent.state else Restored()
    if not isinstance(executor, LocalPythonExecutor):
        return Restored(
            f"none, {type(executor).__name__} keeps them in another process", sorted(values.get("variables", {}))
        )
    tools = executor.static_tools
    try:
        restored = _run_again(agent, executor, past)
    except _Differs as why:
        restored = _from_snapshot(agent, executor, past, values, str(why))
    executor.static_tools = tools
    wanted = values.get("variables", {})
    left = {name: value for name, value in _sound(wanted).items() if name not in executor.state}
    executor.send_variables(left)  # of a run before this one, or of code that is no longer there
    for name in [name for name, value in executor.state.items() if isinstance(value, Marked)]:
        del executor.state[name]
    restored.missing = sorted(name for name in [*wanted, *values.get("large", [])] if name not in executor.state)
    return restored


def _run_again(agent: Any, executor: LocalPythonExecutor, past: Sequence[PastCode]) -> Restored:
    strange = {name for piece in past for name in _imports(piece.code)} - HARMLESS
    if strange:
        raise _Differs(f"the code uses {', '.join(sorted(strange))}")
    _clear(agent, executor)
    deadline = time.monotonic() + PATIENCE
    for piece in past:
        executor.static_tools = _cassette(executor.static_tools or {}, piece.calls)
        printed = _execute(executor, piece.code)
        if not _as_recorded(printed, piece):
            raise _Differs("the code printed something else")
        if time.monotonic() > deadline:
            raise _Differs("the code takes too long")
    return Restored("by running the recorded code again" if past else "nothing to restore")


def _from_snapshot(
    agent: Any, executor: LocalPythonExecutor, past: Sequence[PastCode], values: dict[str, Any], why: str
) -> Restored:
    _clear(agent, executor)
    for piece in past:
        _execute(executor, _definitions(piece.code))
    executor.send_variables(_sound(values.get("variables", {})))
    return Restored(f"from the snapshot, because {why}")


def _clear(agent: Any, executor: LocalPythonExecutor) -> None:
    executor.state = {"__name__": "__main__"}
    executor.custom_tools = {}
    executor.send_variables(agent.state)


def _execute(executor: LocalPythonExecutor, code: str) -> str | None:
    """What code prints; None if it fails, as it may have done the first time."""
    try:
        return str(executor(code).logs)
    except Exception:
        return None


def _as_recorded(printed: str | None, piece: PastCode) -> bool:
    if printed is None or piece.failed:
        return printed is None and piece.failed
    return (piece.observations or "").startswith(f"Execution logs:\n{printed}Last output from code snippet:\n")


def _cassette(tools: dict[str, Any], calls: Sequence[PastCall]) -> dict[str, Any]:
    """Tools that only play back; what was not recorded is not called."""
    left = [call for call in calls if call.kind == "tool" and call.ended]

    def played(name: str) -> Callable[..., Any]:
        def play(*_: Any, **__: Any) -> Any:
            for call in left:
                if call.name == name:
                    left.remove(call)
                    return call.again()
            raise _Differs(f"{name} is called once more than it was")

        return play

    def taped(name: str, tool: Any) -> Any:
        if name in BASE_PYTHON_TOOLS:
            return tool
        return tool.on_tape(played) if hasattr(tool, "on_tape") else played(name)

    return {name: taped(name, tool) for name, tool in tools.items()}


def _imports(code: str) -> set[str]:
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except SyntaxError:
        return set()
    plain = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {(node.module or "").partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}


def _definitions(code: str) -> str:
    """The imports, functions and classes of a piece of code: what makes names without doing anything."""
    try:
        body = ast.parse(code).body
    except SyntaxError:
        return ""
    kept: list[ast.stmt] = [
        node for node in body if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef))
    ]
    return ast.unparse(ast.Module(kept, [])) if kept else ""


def _sound(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not isinstance(value, Marked)}
