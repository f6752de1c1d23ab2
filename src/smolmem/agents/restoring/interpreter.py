"""A code agent's variables, restored in a fresh interpreter, without pickle.

The values come from the snapshot that was taken after the last step, if it holds all that the code has made.

Otherwise the recorded code is run again with the recorded tool results, and what it prints is compared with the record.
That restores everything code can make: functions, closures, classes and their instances. The code runs under a guard
(`replay_guard`): as soon as it would reach outside, the attempt is dropped. Then, or where the code prints something
else or takes too long, only its definitions and imports are run, and the values come from the snapshot.

After the code was run again, each variable is compared with the snapshot. Where they differ (a random id, a time), the
snapshot's value is used. Variables that could not be restored, or not as they were, are named.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, NoReturn

from smolmem.agents import compat, variables
from smolmem.agents.compat import Interpreter
from smolmem.agents.restoring.known_classes import classes_of, classes_of_tools, methods_of
from smolmem.agents.restoring.replay_guard import SILENT, Guard, is_confined, is_seen
from smolmem.core.encoding import codec
from smolmem.core.encoding.chunks import ATOMS
from smolmem.core.encoding.instances import NotRestored
from smolmem.core.encoding.placeholders import Placeholder
from smolmem.core.rows import LoadedOutcome, RecordedCall, RecordedCode, StoredSession
from smolmem.core.smolagents_texts import printed_by

Load = Callable[..., "dict[str, Any] | None"]

MAX_SECONDS = 20.0
"""How long recorded code may take before the snapshot is used instead."""


@dataclass
class Restored:
    """How the variables were restored; which could not be, and which are not as they were."""

    by: str = "nothing to restore"
    missing: list[str] = field(default_factory=list)
    corrected: list[str] = field(default_factory=list)
    """Variables that had another value when the code was run again, and have the snapshot's value now."""
    partial: list[str] = field(default_factory=list)
    """Variables that hold a placeholder somewhere inside."""
    playback: _Playback | None = None
    """The tools that functions of the restored code call."""

    def __str__(self) -> str:
        named = (
            ("from the snapshot, because running the code again gave another value", self.corrected),
            ("not restored", self.missing),
            ("with placeholders inside", self.partial),
        )
        return f"variables: {self.by}" + "".join(f"; {what}: {', '.join(names)}" for what, names in named if names)

    @property
    def is_complete(self) -> bool:
        """Whether every variable is as it was."""
        return not (self.missing or self.partial)


class _Differs(Exception):
    """Running the code again gives another result."""


def restore(agent: Any, code: Sequence[RecordedCode], load: Load) -> Restored:
    """Restores an agent's variables.

    Args:
        agent: the agent, with its tools sent to its interpreter.
        code: the code that was run, the oldest first.
        load: reads the variables after the last step.
    """
    values = _snapshot(agent, load)
    state: dict[str, Any] = values.get("state", {})
    agent.state.update(_without_placeholders(state))
    executor, local = getattr(agent, "python_executor", None), compat.interpreter_of(agent)
    wanted: dict[str, Any] = values.get("variables", {})
    if executor is None:
        return _named(Restored("from the snapshot" if agent.state else "nothing to restore"), agent.state, state)
    if local is None:
        return Restored(f"none, {type(executor).__name__} keeps them in another process", sorted(wanted))
    tools = local.tools
    try:
        if _holds_all(values, code):
            restored = _defined(agent, local, code, "from the snapshot")
            local.send(wanted)
        else:
            restored = _run_again(agent, local, code)
            values = _snapshot(agent, load)  # once more: the code may have made classes
            _settle(restored, agent, local, values)
    except _Differs as why:
        local.tools = tools
        restored = _defined(agent, local, code, f"from the snapshot, because {why}")
        values = _snapshot(agent, load)
        local.send(_without_placeholders(values.get("variables", {})))
    local.tools, wanted = tools, values.get("variables", {})
    left = {name: value for name, value in _without_placeholders(wanted).items() if name not in local.variables}
    local.send(left)  # of an earlier run, or of code that is no longer there
    for name in [name for name, value in local.variables.items() if isinstance(value, Placeholder)]:
        del local.variables[name]
    return _named(restored, local.variables, {**state, **wanted, **dict.fromkeys(values.get("large", []))})


def restore_all(agent: Any, stored: StoredSession) -> Restored:
    """Restores an agent's variables where no run has sent its tools to the interpreter yet."""
    local = compat.interpreter_of(agent)
    if local is None:
        return restore(agent, [], stored.variables)
    local.send_tools({**agent.tools, **agent.managed_agents})
    return restore(agent, stored.code, stored.variables)


def _snapshot(agent: Any, load: Load) -> dict[str, Any]:
    return load(classes=classes_of(agent)) or {}


def _named(restored: Restored, now: dict[str, Any], wanted: dict[str, Any]) -> Restored:
    """Names the variables that are missing, and those that hold placeholders."""
    restored.missing = sorted({*restored.missing, *(name for name in wanted if name not in now)})
    restored.partial = sorted(name for name in wanted if name in now and codec.holds_placeholder(now[name]))
    return restored


# --- running the code again ------------------------------------------------------------------------------------------


def _run_again(agent: Any, local: Interpreter, code: Sequence[RecordedCode]) -> Restored:
    given = {name: value for name, value in agent.state.items() if not codec.is_described(value)}
    _check_names([piece.code for piece in code], agent.state.keys() - given.keys())
    local.clear({name: codec.copy(value) for name, value in given.items()})  # code may change its arguments
    playback, deadline = _Playback(local), time.monotonic() + MAX_SECONDS
    local.tools = playback.tools
    confined = _is_confined([piece.code for piece in code]) and _are_plain(given)
    of_tools = classes_of_tools(agent)
    classes, methods = of_tools, methods_of(of_tools.values())
    for piece in code:
        now = classes_of(agent, of_tools)
        if now != classes:  # the code has made a class
            classes, methods = now, methods_of(now.values())
        playback.answer(piece.calls, classes)
        confined = confined and playback.is_plain
        guard = playback.guard = Guard(deadline - time.monotonic(), local.stop, traced=not confined, methods=methods)
        printed = guard.run(partial(local.run, piece.code))
        if guard.reason is not None:
            raise _Differs(guard.reason)
        if not _as_recorded(printed, piece):
            raise _Differs("the code printed something else")
    playback.is_over = True
    return Restored("by running the recorded code again" if code else "nothing to restore", playback=playback)


def _check_names(code: Sequence[str], foreign: Set[str]) -> None:
    """Looks for uses that the guard could not judge: modules it does not see, and objects that the agent was given."""
    nodes = [node for piece in code for node in _nodes(piece)]
    strange = sorted({name for node in nodes for name in _imported(node) if not is_seen(name)})
    if strange:
        raise _Differs(f"the code uses {', '.join(strange)}")
    silent = sorted({name for node in nodes for name in _attributes(node)} & SILENT)
    if silent:
        raise _Differs(f"the code calls {', '.join(silent)}")
    used = sorted({node.id for node in nodes if isinstance(node, ast.Name)} & foreign)
    if used:
        raise _Differs(f"the code uses {', '.join(used)}, which the agent was given")


def _is_confined(code: Sequence[str]) -> bool:
    return all(is_confined(name) for piece in code for node in _nodes(piece) for name in _imported(node))


def _are_plain(values: Any, limit: int = 10_000) -> bool:
    """Whether values are plain data, whose methods are Python's own."""
    coming, seen = [values], set[int]()
    while coming:
        value = coming.pop()
        if type(value) in ATOMS or id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) not in (dict, list, tuple, set, frozenset) or len(seen) + len(value) > limit:
            return False
        coming += [*value, *value.values()] if type(value) is dict else value
    return True


def _as_recorded(printed: str | None, piece: RecordedCode) -> bool:
    if printed is None or piece.failed:
        return printed is None and piece.failed
    return printed_by(piece.observations, printed)


class _Playback:
    """The tools of an interpreter while code is run again: they return recorded results, and are never called.

    Functions that the code defines keep these tools, so the tools themselves are called once `is_over` is set.
    """

    def __init__(self, local: Interpreter) -> None:
        self.is_over = self.has_refused = False
        self.tools = {name: self._replaced(name, tool) for name, tool in local.tools.items()}
        self.guard: Guard
        self._left: list[tuple[str, LoadedOutcome | None]] = []

    def answer(self, calls: Sequence[RecordedCall], classes: Mapping[str, type]) -> None:
        """From now on returns the results of these calls; a call that is not among them is refused."""
        self._left = [(call.name, _loaded(call, classes)) for call in calls if call.kind == "tool" and call.ended]

    @property
    def calls_left(self) -> int:
        """How many recorded calls were not made yet."""
        return len(self._left)

    @property
    def is_plain(self) -> bool:
        """Whether the results are plain data."""
        return all(outcome is None or _are_plain(outcome.outcome) for _, outcome in self._left)

    def _replaced(self, name: str, tool: Any) -> Any:
        if compat.is_builtin(name):
            return tool
        if hasattr(tool, "with_methods"):
            return tool.with_methods(lambda method: self._recorded(method, getattr(tool, method.partition(".")[2])))
        return self._recorded(name, tool)

    def _recorded(self, name: str, tool: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **given: Any) -> Any:
            if self.is_over:
                return tool(*args, **given)
            place = next((place for place, (made, _) in enumerate(self._left) if made == name), None)
            if place is None:
                self._refuse(f"{name} is called once more than it was")
            outcome = self._left.pop(place)[1]
            if outcome is None:
                self._refuse(f"the outcome of {name} could not be stored")
            try:
                return outcome.replay([*args, *given.values()])
            except NotRestored:
                self._refuse(f"{name} is given other objects than it was, and had changed them")

        return call

    def _refuse(self, reason: str) -> NoReturn:
        self.has_refused = True
        self.guard.refuse(reason)


class Outside(NamedTuple):
    """What code would do outside; `has_happened` if it is known that the code came so far."""

    reason: str
    has_happened: bool


def reaches_outside(agent: Any, code: str, calls: Sequence[RecordedCall], restored: Restored) -> Outside | None:
    """What the code of an interrupted step does outside before it makes a call that is not recorded.

    The interpreter is left as the code leaves it: restore the variables again. The agent's state is not changed.
    """
    local, playback = compat.interpreter_of(agent), restored.playback
    if local is None or playback is None:
        return None
    foreign = {name for name, value in agent.state.items() if codec.is_described(value)}
    local.variables.update({name: codec.copy(agent.state[name]) for name in agent.state.keys() - foreign})
    try:
        _check_names([code], foreign)
    except _Differs as why:
        return Outside(str(why), has_happened=bool(calls))
    tools, local.tools, playback.is_over = local.tools, playback.tools, False  # functions of earlier code call these
    classes = classes_of(agent)
    playback.answer(calls, classes)
    guard = playback.guard = Guard(MAX_SECONDS, local.stop, methods=methods_of(classes.values()))
    guard.run(partial(local.run, code))
    local.tools = tools
    if guard.reason is None or playback.has_refused:
        return None
    return Outside(guard.reason, has_happened=playback.calls_left > 0 or any(not call.ended for call in calls))


def _loaded(call: RecordedCall, classes: Mapping[str, type]) -> LoadedOutcome | None:
    try:
        return call.loaded(classes)
    except NotRestored:
        return None


def _settle(restored: Restored, agent: Any, local: Interpreter, snapshot: dict[str, Any]) -> None:
    """Gives each variable the value that the snapshot has, where running the code again gave another one."""
    wanted: dict[str, Any] = snapshot.get("variables", {})
    for name, value in agent.state.items():
        if name not in local.variables or codec.are_alike(local.variables[name], value):
            local.variables[name] = value  # the object itself, which tools may see, too
    for name in [name for name in wanted if name in local.variables]:
        if codec.are_alike(local.variables[name], wanted[name]):
            continue
        if codec.holds_placeholder(wanted[name]):
            del local.variables[name]
        else:
            local.variables[name] = wanted[name]
            restored.corrected.append(name)
    made = variables.visible(local.variables).keys() - wanted.keys() - agent.state.keys()
    for name in sorted(made - set(snapshot.get("large", []))) if snapshot else ():
        del local.variables[name]
        restored.corrected.append(name)


# --- from the snapshot -----------------------------------------------------------------------------------------------


def _holds_all(snapshot: dict[str, Any], code: Sequence[RecordedCode]) -> bool:
    """Whether a snapshot holds all that the code has made, as it was: plain data only. Imports are made again."""
    values = {**snapshot.get("state", {}), **snapshot.get("variables", {})}
    made = [_made_names(piece.code) for piece in code]
    is_known = not snapshot.get("large") and all(names is not None and names <= values.keys() for names in made)
    return is_known and _are_plain(values, limit=1_000_000)


def _made_names(code: str) -> set[str] | None:
    """The variables that code assigns; None if it makes something that no snapshot holds."""
    made, in_comprehensions = set[str](), set[ast.AST]()
    for statement in _statements(code):
        for node in ast.walk(statement):  # a comprehension comes before its target
            match node:
                case ast.Name(id=name, ctx=ast.Store()):
                    if node not in in_comprehensions:
                        made.add(name)
                case ast.comprehension():
                    in_comprehensions.update(ast.walk(node.target))
                case ast.ExceptHandler(name=str(name)):
                    made.add(name)
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Lambda() | ast.Match():
                    return None
                case ast.Import() | ast.ImportFrom() if node is not statement:
                    return None
    return made


def _defined(agent: Any, local: Interpreter, code: Sequence[RecordedCode], by: str) -> Restored:
    """An interpreter with the imports and definitions of the code, and no other variables."""
    local.clear(agent.state)
    playback = _Playback(local)
    return Restored(by, _define(local, code, playback), playback=playback)


def _define(local: Interpreter, code: Sequence[RecordedCode], playback: _Playback) -> list[str]:
    """Makes the imports, functions and classes of the code; returns the names of classes that could not be made.

    The body of a class is code: a class whose body calls something is left out, and the others are made under a guard.
    """
    lost = dict[str, bool]()
    local.tools = playback.tools
    for node in [node for piece in code for node in _statements(piece.code)]:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            local.run(ast.unparse(node))
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            guard = playback.guard = Guard(MAX_SECONDS, local.stop)
            made = not _calls(node) and guard.run(partial(local.run, ast.unparse(node))) is not None
            lost[node.name] = not made
    playback.is_over = True
    return [name for name, gone in lost.items() if gone]


def _calls(definition: ast.AST) -> bool:
    """Whether making a class calls something: in its bases or its body, outside of functions."""
    if isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return False
    return isinstance(definition, ast.Call) or any(map(_calls, ast.iter_child_nodes(definition)))


def _statements(code: str) -> list[ast.stmt]:
    try:
        return ast.parse(code).body
    except (SyntaxError, ValueError):
        return []


def _nodes(code: str) -> Iterator[ast.AST]:
    return (node for statement in _statements(code) for node in ast.walk(statement))


def _attributes(node: ast.AST) -> list[str]:
    """The attributes that code uses, with and without the name that they are of; names imported from a module, too."""
    if isinstance(node, ast.Attribute):
        of = node.value.id if isinstance(node.value, ast.Name) else ""
        return [node.attr, f"{of}.{node.attr}"]
    if isinstance(node, ast.ImportFrom):
        return [name for alias in node.names for name in (alias.name, f"{node.module}.{alias.name}")]
    renamed = isinstance(node, ast.Import) and [alias.name for alias in node.names if alias.asname]
    return [f"{name}.write" for name in renamed or ()]


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [(node.module or "").partition(".")[0]] if isinstance(node, ast.ImportFrom) else []


def _without_placeholders(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not isinstance(value, Placeholder)}
