"""Whatever code does to variables that share objects, a snapshot of them is what they are, at every step."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import TORTURE
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scripted import code_agent
from smolagents import tool

from smolmem import Memory
from smolmem.agents import compat, variables
from smolmem.agents.variables import Variables
from smolmem.store.contents import Contents

NAMES = ("a", "b", "c", "d")

_MADE = (
    "{v} = 7",
    "{v} = 'text'",
    "{v} = 'long ' * 200",
    "{v} = []",
    "{v} = {{}}",
    "{v} = list(range(40))",
    "{v} = [{{'n': n, 'tags': [n]}} for n in range(40)]",
    "{v} = [{{'n': n, 'text': 'x' * 600}} for n in range(5)]",
    "{v} = {{str(n): [n] for n in range(40)}}",
    "{v} = {{'rows': list(range(50)), 'more': {{'rows': [[1]] * 3}}}}",
    "{v} = [2 ** 70, -2 ** 70, 1.5, True, None]",
    "{v} = ('one', [1])",
    "{v} = {{1, 2, 3}}",
)
_SHARED = (
    "{v} = {w}",
    "{v} = [{w}]",
    "{v} = [{w}, {x}] + [0] * 40",
    "{v} = {{'k': {w}, 'rows': {x}}}",
    "{v} = list({w})",
    "{v} = {w}[:3]",
    "{v} = {w}[0]",
    "{v} = {w}['k']",
    "{v} = {w}['rows']",
    "{v} = [item for item in {w}]",
    "{v} = {{str(place): item for place, item in enumerate({w})}}",
    "for {v} in {w}:\n    pass",
    "{v} = ({w}, 1)",
    "{v}, {w} = {w}, {v}",
)
_CHANGED = (
    "{v}.append({w})",
    "{v}.append(1)",
    "{v}.append({{'n': 1, 'tags': [{w}]}})",
    "{v}.insert(0, {w})",
    "{v}.insert(1, 'new')",
    "{v}.pop()",
    "{v}.pop(0)",
    "{v}.clear()",
    "{v}.reverse()",
    "{v}.add(9)",
    "{v}[0] = {w}",
    "{v}[-1] = 'set'",
    "{v}['k'] = {w}",
    "{v}['17'] = 3",
    "{v}[0]['n'] = 'changed'",
    "{v}[2]['tags'].append('deep')",
    "{v}['k'].append('below')",
    "{v}['rows'][0] = 'row'",
    "{v}['more']['rows'][1].append(2)",
    "{v}[0].append('inner')",
    "{v}[1][0] = 'in a tuple'",
    "{v} += [5]",
    "{v}.update({{'n': 2}})",
    "del {v}",
    "del {v}[0]",
)
_HIDDEN = ("_{v} = {w}", "_{v}.append('hidden')", "_{v}[0] = {w}", "{v} = _{w}", "_{v}['k'] = 'hidden'")
_TOOLS = ("keep({v})", "{v} = kept()", "change()", "{v} = [kept()]")
_FOREIGN = (
    "{v} = np.arange(30)",
    "{v} = np.zeros((4, 5))",
    "{v} = {w}[1:]",
    "{v} = {w}.T",
    "{v} = [{w}, {w}]",
    "{v}[0] = 99",
    "{v}[0][0] = 98",
    "{v} += 1",
    "{v} = np.array([{w}, 1, []], dtype=object)",
    "{v} = bytearray(b'0123456789')",
    "{v} = np.frombuffer({w}, dtype='uint8')",
    "{v} = pd.DataFrame({{'x': [1, 2, 3], 'y': ['p', 'q', 'r']}})",
    "{v}.loc[0, 'x'] = 7",
    "{v} = {w}['x']",
    "{v} = {w}.values",
    "{v}['z'] = [1, 2, 3]",
    "{v} = deque([{w}, 2])",
    "{v}.append(3)",
)
_OBJECTS = (
    "class Box:\n    def __init__(self, x):\n        self.item = x\n    def __eq__(self, other):\n        return 1 / 0",
    "{v} = Box({w})",
    "{v}.item = {w}",
    "{v}.item.append(4)",
    "{v} = {w}.item",
    "def f(value={w}):\n    {v}.append(value)",
    "f()",
    "f({w})",
    "{v} = lambda: {w}.append(5)",
    "{v}()",
    "{v} = iter({w})",
    "{v} = next({w})",
)
_KINDS = {"plain": (), "hidden": _HIDDEN, "tools": _TOOLS, "foreign": _FOREIGN, "objects": _OBJECTS}


@st.composite
def programs(draw: st.DrawFn) -> list[str]:
    """The code of some steps, each of one or two lines."""
    kinds = _MADE + 2 * _SHARED + 2 * _CHANGED + 3 * _KINDS[draw(st.sampled_from(sorted(_KINDS)))]
    name = st.sampled_from(NAMES)
    line = st.builds(lambda form, v, w, x: form.format(v=v, w=w, x=x), st.sampled_from(kinds), name, name, name)
    begun = [f"{one} = {form}" for one, form in zip(NAMES, draw(st.permutations(_BEGUN)), strict=False)]
    return ["\n".join(begun), *draw(st.lists(st.lists(line, min_size=1, max_size=2).map("\n".join), max_size=14))]


_BEGUN = (
    "[{'n': n, 'tags': [n]} for n in range(40)]",
    "{'k': [1, 2], 'rows': list(range(40))}",
    "[[1], 'x' * 700]",
    "{}",
    "[]",
)


class Same:
    """Compares values with their copies: contents, types, and which objects are shared."""

    def __init__(self) -> None:
        self._pairs: dict[int, int] = {}
        self._back: dict[int, int] = {}

    def __call__(self, value: Any, copy: Any) -> bool:
        if type(value) in (int, float, str, bool, type(None), bytes):
            return type(copy) is type(value) and bool(copy == value)
        if type(copy).__name__ == "cycle":
            return True
        if id(value) in self._pairs:
            return self._pairs[id(value)] == id(copy)
        if type(value) is not type(copy):
            return self._described(value, copy)
        if type(value) not in (tuple, frozenset):
            if id(copy) in self._back:
                return False
            self._pairs[id(value)], self._back[id(copy)] = id(copy), id(value)
        return self._inside(value, copy)

    def _inside(self, value: Any, copy: Any) -> bool:
        if isinstance(value, dict):
            return list(value) == list(copy) and all(self(item, copy[key]) for key, item in value.items())
        if isinstance(value, (list, tuple, deque)):
            return len(value) == len(copy) and all(map(self, value, copy))
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            return value.shape == copy.shape and all(map(self, value.ravel(), copy.ravel()))
        if isinstance(value, np.ndarray):
            return value.dtype == copy.dtype and np.array_equal(value, copy)
        if isinstance(value, (pd.DataFrame, pd.Series)):
            return bool(value.equals(copy))
        return bool(value == copy)

    def _described(self, value: Any, copy: Any) -> bool:
        """An object comes back as its description, with its attributes; a deque or tuple cannot hold itself."""
        item = vars(value).get("item") if hasattr(value, "__dict__") else None
        return item is None or self(item, copy.item)


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Memory(Path(tmp_path_factory.mktemp("changes")) / "agent.db", embedder="off") as memory:
        yield memory


def toolbox() -> list[Any]:
    """Tools that share what they are given."""
    held: list[Any] = [[0]]

    @tool
    def keep(item: Any) -> None:
        """Keeps a value.

        Args:
            item: the value
        """
        held[0] = item

    @tool
    def kept() -> Any:
        """The value that was kept."""
        return held[0]

    @tool
    def change() -> None:
        """Changes the value that was kept."""
        held[0].append("by a tool")

    return [keep, kept, change]


def check(memory: Memory, program: list[str], lost: list[bool]) -> None:
    """Runs code as an agent does, and compares the snapshot after each step with the variables."""
    agent = code_agent(tools=toolbox(), additional_authorized_imports=["*"])
    tracked, run = Variables(agent, memory._journal.encode), agent.python_executor
    with compat.Patches() as patches:
        patches.tool_calls(agent, tracked.touched.calling(lambda name, arguments, act, values: act()))
        run.send_tools(agent.tools)
        run.send_variables({"np": np, "pd": pd, "deque": deque})
        for turn, step in enumerate(program):
            with suppress(Exception):  # code of agents fails, after it has changed something
                run(step)
            encoded = tracked.snapshot(step)
            if encoded is None or lost[turn % len(lost)]:  # a write that failed
                continue
            number = memory._store.transact(partial(memory._journal.keep, encoded), sync=False)
            tracked.saved()
            compare(Contents(memory._store).variables(number), variables.visible(run.state), (turn, program))


def compare(found: dict[str, Any], live: dict[str, Any], shown: tuple[Any, ...]) -> None:
    assert found["variables"].keys() == live.keys(), shown
    same = Same()
    for name, value in live.items():
        assert same(value, found["variables"][name]), (*shown, name, value, found["variables"][name])


@pytest.mark.promise("D8")
@settings(
    max_examples=2_000 if TORTURE else 40,
    deadline=None,
    database=None,
    derandomize=not TORTURE,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # shrinking takes minutes
)
@given(programs(), st.lists(st.sampled_from([False, False, False, True]), min_size=1, max_size=5))
def test_a_snapshot_is_what_the_variables_are_after_any_changes(
    memory: Memory, program: list[str], lost: list[bool]
) -> None:
    check(memory, program, lost)
