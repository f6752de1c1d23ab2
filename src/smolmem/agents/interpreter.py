"""A code agent's variables, restored in a fresh interpreter, without pickle.

The recorded code is run again with the recorded tool results, and what it prints is compared with the record. That
restores everything code can make: functions, closures, classes and their instances, aliasing. Where the output
differs (time, randomness), where it takes too long, or where the code imports modules that could reach outside, only
its definitions and imports are run, and the values come from the snapshot that was taken after the last step.
Variables that neither restores are named.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from smolmem.agents import compat
from smolmem.agents.compat import Interpreter
from smolmem.core.rows import RecordedCall, RecordedCode, StoredSession
from smolmem.core.wire import Placeholder

MAX_SECONDS = 20.0
"""How long recorded code may take before the snapshot is used instead."""

HARMLESS = compat.SAFE_MODULES | {
    *("numpy", "pandas", "scipy", "sympy", "sklearn", "PIL", "json", "decimal", "fractions", "typing", "dataclasses"),
    *("string", "functools", "operator", "copy", "enum", "bisect", "heapq", "textwrap", "base64", "hashlib", "zlib"),
}
"""Modules whose use has no effect outside the interpreter; code that imports others is not run again."""


@dataclass
class Restored:
    """How the variables were restored, and which could not be."""

    by: str = "nothing to restore"
    missing: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lost = f"; not restored: {', '.join(self.missing)}" if self.missing else ""
        return f"variables: {self.by}{lost}"


class _Differs(Exception):
    """Running the code again does not give what it gave."""


def restore(agent: Any, code: Sequence[RecordedCode], snapshot: dict[str, Any] | None) -> Restored:
    """Restores an agent's variables.

    Args:
        agent: the agent, with its tools sent to its interpreter.
        code: the code that was run, the oldest first.
        snapshot: the variables after the last step.
    """
    values = dict(snapshot or {})
    agent.state.update(_without_placeholders(values.get("state", {})))
    executor, local = getattr(agent, "python_executor", None), compat.interpreter_of(agent)
    wanted: dict[str, Any] = values.get("variables", {})
    if executor is None:
        return Restored("from the snapshot") if agent.state else Restored()
    if local is None:
        return Restored(f"none, {type(executor).__name__} keeps them in another process", sorted(wanted))
    tools = local.tools
    try:
        restored = _run_again(agent, local, code)
    except _Differs as why:
        restored = _from_snapshot(agent, local, code, wanted, str(why))
    local.tools = tools
    left = {name: value for name, value in _without_placeholders(wanted).items() if name not in local.variables}
    local.send(left)  # of an earlier run, or of code that is no longer there
    for name in [name for name, value in local.variables.items() if isinstance(value, Placeholder)]:
        del local.variables[name]
    restored.missing = sorted(name for name in [*wanted, *values.get("large", [])] if name not in local.variables)
    return restored


def restore_all(agent: Any, stored: StoredSession) -> Restored:
    """Restores an agent's variables where no run has sent its tools to the interpreter yet."""
    local = compat.interpreter_of(agent)
    if local is None:
        return restore(agent, [], stored.variables)
    local.send_tools({**agent.tools, **agent.managed_agents})
    return restore(agent, stored.code, stored.variables)


def _run_again(agent: Any, local: Interpreter, code: Sequence[RecordedCode]) -> Restored:
    strange = {name for piece in code for name in _imports(piece.code)} - HARMLESS
    if strange:
        raise _Differs(f"the code uses {', '.join(sorted(strange))}")
    local.clear(agent.state)
    deadline = time.monotonic() + MAX_SECONDS
    for piece in code:
        local.tools = _recorded_tools(local.tools, piece.calls)
        if not _as_recorded(local.run(piece.code), piece):
            raise _Differs("the code printed something else")
        if time.monotonic() > deadline:
            raise _Differs("the code takes too long")
    return Restored("by running the recorded code again" if code else "nothing to restore")


def _from_snapshot(
    agent: Any, local: Interpreter, code: Sequence[RecordedCode], values: dict[str, Any], why: str
) -> Restored:
    local.clear(agent.state)
    for piece in code:
        local.run(_definitions(piece.code))
    local.send(_without_placeholders(values))
    return Restored(f"from the snapshot, because {why}")


def _as_recorded(printed: str | None, piece: RecordedCode) -> bool:
    if printed is None or piece.failed:
        return printed is None and piece.failed
    return compat.printed_by(piece.observations, printed)


def _recorded_tools(tools: dict[str, Any], calls: Sequence[RecordedCall]) -> dict[str, Any]:
    """Tools that only return recorded results; a call that was not recorded is not made."""
    left = [call for call in calls if call.kind == "tool" and call.ended]

    def recorded(name: str) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            for made in left:
                if made.name == name:
                    left.remove(made)
                    return made.replay()
            raise _Differs(f"{name} is called once more than it was")

        return call

    def replaced(name: str, tool: Any) -> Any:
        if compat.is_builtin(name):
            return tool
        return tool.with_methods(recorded) if hasattr(tool, "with_methods") else recorded(name)

    return {name: replaced(name, tool) for name, tool in tools.items()}


def _imports(code: str) -> set[str]:
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except SyntaxError:
        return set()
    plain = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {(node.module or "").partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}


def _definitions(code: str) -> str:
    """The imports, functions and classes of a piece of code."""
    try:
        body = ast.parse(code).body
    except SyntaxError:
        return ""
    kept: list[ast.stmt] = [
        node for node in body if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef))
    ]
    return ast.unparse(ast.Module(kept, [])) if kept else ""


def _without_placeholders(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not isinstance(value, Placeholder)}
