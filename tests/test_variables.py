"""Snapshots of variables: always what the variables are, and no larger than what is new."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TORTURE
from scripted import code, code_agent
from smolagents import tool
from smolagents.memory import ActionStep

from smolmem import Memory
from smolmem.agents.recorder import recorder_of
from smolmem.agents.variables import Variables
from smolmem.core.encoding import chunks, codec, wire
from smolmem.core.encoding.packing import Undecodable
from smolmem.store.contents import Contents


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        yield memory


def stored(memory: Memory, agent: Any) -> dict[str, Any]:
    """The variables after the last step, as another process reads them."""
    run = memory.runs()[0]
    with Memory(memory._store.url, embedder="off") as other:
        found = other._journal.session(run.session, run.id).variables()
    values: dict[str, Any] = found["variables"]
    return values


def variables_after(memory: Memory, *steps: str, **options: Any) -> dict[str, Any]:
    agent = memory.attach(code_agent(*map(code, steps), code("final_answer(0)"), **options))
    agent.run("Go")
    return stored(memory, agent)


LONG = "[{'n': n, 'text': 'x' * 40} for n in range(200)]"


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        (["a = list(range(200))", "a[7] = 'new'", "b = 1"], "changed"),
        (["a = list(range(200))\nc = a", "c[7] = 'new'", "b = 1"], "changed"),
        (["a = list(range(200))\nc = {'inner': a}", "c['inner'][7] = 'new'\ndel c", "b = 1"], "changed"),
        (["a = list(range(200))\ndef f():\n    a[7] = 'new'", "f()", "b = 1"], "changed"),
        (["a = list(range(200))\ng = lambda: a.append('last')", "h = g", "h()", "b = 1"], "last"),
        (["a = list(range(200))\nadd = a.append", "add('last')", "b = 1"], "last"),
    ],
)
def test_a_variable_that_is_changed_under_another_name_is_stored_as_it_is(
    memory: Memory, steps: list[str], wanted: str
) -> None:
    found = variables_after(memory, *steps)["a"]
    expected: list[Any] = list(range(200))
    if wanted == "changed":
        expected[7] = "new"
    else:
        expected.append("last")
    assert found == expected


def test_a_variable_that_a_tool_keeps_and_changes_later_is_stored_as_it_is(memory: Memory) -> None:
    kept: list[Any] = []

    @tool
    def keep(items: list | None = None) -> int:
        """Keeps a list, and adds to the kept list.

        Args:
            items: the list
        """
        if items is not None:
            kept.append(items)
        kept[0].append("more")
        return 0

    found = variables_after(memory, "a = list(range(100))\nkeep(a)", "b = 1", "x = keep()", "c = 1", tools=[keep])
    assert found["a"] == [*range(100), "more", "more"]


def test_arrays_that_share_their_memory_are_stored_as_they_are(memory: Memory) -> None:
    found = variables_after(
        memory,
        "import numpy as np\na = np.arange(50)\nview = a[10:]",
        "view[0] = 99",
        "b = 1",
        additional_authorized_imports=["numpy"],
    )
    assert found["a"][10] == 99
    assert np.array_equal(found["view"], found["a"][10:])


def test_what_a_callback_changes_is_found_within_a_few_steps(memory: Memory) -> None:
    steps = ["a = [1, 2]\nother = [3]", *(f"b{n} = {n}" for n in range(6))]
    agent = code_agent(*map(code, steps), code("final_answer(0)"))

    def change(step: ActionStep, agent: Any) -> None:
        if step.step_number == 2:
            agent.python_executor.state["a"].append("outside")

    agent.step_callbacks.register(ActionStep, change)
    memory.attach(agent)
    agent.run("Go")
    assert stored(memory, agent)["a"] == [1, 2, "outside"]


def test_variables_that_share_an_object_share_it_again(memory: Memory) -> None:
    found = variables_after(memory, f"rows = {LONG}\nfirst = rows[0]\nboth = [rows, first]", "x = 1")
    assert found["first"] is found["rows"][0]
    assert found["both"][0] is found["rows"]


def test_values_that_hold_themselves_are_stored(memory: Memory) -> None:
    found = variables_after(memory, f"rows = {LONG}\nloop = {{'rows': rows}}\nloop['self'] = loop", "x = 1")
    assert found["loop"]["self"] is found["loop"]
    assert found["loop"]["rows"] is found["rows"]


def test_shared_objects_that_hold_each_other_come_back_in_a_long_chain(memory: Memory) -> None:
    found = variables_after(
        memory, "nodes = [{}]\nfor n in range(60):\n    nodes.append({'last': nodes[-1]})\nb = list(nodes)"
    )
    assert all(node["last"] is before for before, node in zip(found["nodes"], found["nodes"][1:], strict=False))
    assert found["b"][60] is found["nodes"][60]


def test_variables_that_share_an_object_come_back_from_an_earlier_record() -> None:
    joint = {"$": "alone", "v": {"": {"variables": {"a": [1], "b": {"$": "ref", "n": 3}}}}}
    old = {"$": "snapshot", "large": [], "same": [], "state": {}, "together": [joint], "variables": {}}
    found = codec.decode(wire.dumps(chunks.assembled(old, {}.__getitem__)), {}.__getitem__)
    group = found["together"][0]["variables"]
    assert group["a"] == [1]
    assert group["a"] is group["b"]


def test_what_the_agent_was_given_is_the_same_object_for_its_code(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("rows.append(1)"), code("final_answer(0)")))
    agent.run("Go", additional_args={"rows": [0] * 100})
    run = memory.runs()[0]
    found = memory._journal.session(run.session, run.id).variables()
    assert found["state"]["rows"] is found["variables"]["rows"]
    assert found["state"]["rows"] == [0] * 100 + [1]


# --- size ------------------------------------------------------------------------------------------------------------


def written(memory: Memory) -> int:
    row = memory._store.rows("contents_after", {"id": 0})
    total = 0
    while row:
        total += sum(len(one["bytes"]) for one in row)
        row = memory._store.rows("contents_after", {"id": row[-1]["id"]})
    return total


MODULES = ["collections", "datetime", "numpy", "pandas"]
IMPORTS = "import collections, datetime\nimport numpy as np\nimport pandas as pd"


@pytest.mark.parametrize(
    "grow",
    [
        "found = []|found.append(page({n}))",
        "found = []|found.append({{'n': {n}, 'text': page({n})}})",
        "found = {{}}|found['page {n}'] = page({n})",
        "found = {{'pages': [], 'done': 0}}|found['pages'].append(page({n}))",
        "found = []|found.append({{'text': page({n})}})\nfor one in found[-3:]:\n    pass",
        "found = []\nresults = {{'all': found}}|found.append(page({n}))",
        "found = []\nnamed = {{}}|found.append({{'text': page({n})}})\nnamed['{n}'] = found[-1]",
        "found = []|found = found + [page({n})]",
        "found = []|found.insert(0, page({n}))",
        "found = [page(n) for n in range(60)]|found.append(found.pop(0))",
        "found = []|found.append({{'at': datetime.date(2020, 1, 1), 'text': page({n})}})",
        "found = ()|found += (page({n}),)",
        "found = set()|found.add(page({n}))",
        "found = {{}}|found[{n}] = page({n})",
        "found = collections.deque()|found.append(page({n}))",
        "found = collections.defaultdict(list)|found['a'].append(page({n}))",
        "found = ''|found += page({n})",
        "found = np.zeros(0)|found = np.append(found, np.frombuffer(page({n}).encode(), dtype='float64'))",
        "found = pd.DataFrame({{'t': []}})|found = pd.concat([found, pd.DataFrame({{'t': [page({n})]}})])",
        "class Box:\n    pass\nfound = Box()\nfound.pages = []|found.pages.append(page({n}))",
    ],
)
def test_a_variable_that_grows_adds_what_is_new(memory: Memory, grow: str) -> None:
    steps, size = 60, 2000

    @tool
    def page(n: int) -> str:
        """A page.

        Args:
            n: its number
        """
        return random.Random(n).randbytes(size // 2).hex()

    begin, more = grow.split("|")
    lines = [f"{IMPORTS}\n{begin.format()}", *(f"{more.format(n=n)}\nprint(len(str({n})))" for n in range(steps))]
    options = {"tools": [page], "max_steps": steps + 2, "additional_authorized_imports": MODULES}
    agent = memory.attach(code_agent(*map(code, lines), code("final_answer(0)"), **options))
    before = written(memory)
    agent.run("Go")
    assert not any(getattr(step, "error", None) for step in agent.memory.steps)
    assert codec.are_alike(stored(memory, agent)["found"], agent.python_executor.state["found"])
    content = steps * size / 2  # as packed as it can be
    assert written(memory) - before < 8 * content  # calls, steps, the variable and hashes; whole lists are 30 times


LARGE = {
    "set": "{{f'{{n}} ' * 9 for n in range(3000)}}",
    "deque": "collections.deque((f'row {{n}}', {{'n': n}}, {{n}}) for n in range(3000))",
    "keys": "{{(n, 1): {{n: str(n)}} for n in range(3000)}}",
    "nested": "{{'a', tuple(range(9000)), tuple(range(8000))}}",
    "array": "np.arange(20000) * 1.7",
    "texts": "np.array([f'row {{n}}' for n in range(5000)])",
    "objects": "np.array([[n, {{'n': [n]}}] for n in range(2000)])",
    "frame": "pd.DataFrame({{'n': range(9000), 't': [f'row {{n}}' for n in range(9000)], 'c': ['u', None] * 4500}})",
    "categories": "pd.Series(['u', 'v', None] * 9000, dtype='category')",
    "series": "pd.Series([1, None] * 5000, dtype='Int64', name='s')",
    "cycle": "[{{'n': n}} for n in range(2000)]\nv.append(v)\nv.insert(0, v[5])",
    "marked": "collections.deque([{{'$': 'list', 'chunks': n, 'v': ['x' * 99]}} for n in range(500)])",
    "dicts": "collections.OrderedDict((str(n), {{str(m): ['$', m] for m in range(900)}}) for n in range(9))",
}


@pytest.mark.parametrize("kind", LARGE)
def test_a_large_value_of_any_kind_comes_back_and_can_be_erased(memory: Memory, tmp_path: Path, kind: str) -> None:
    steps = [f"{IMPORTS}\nv = {LARGE[kind].format()}", "w = [v, 'x' * 9000]", "print(len(v), len(w))"]
    agent = memory.attach(code_agent(*map(code, steps), code("final_answer(0)"), additional_authorized_imports=MODULES))
    agent.run("Go")
    assert not any(getattr(step, "error", None) for step in agent.memory.steps)
    state, found = agent.python_executor.state, stored(memory, agent)
    assert not codec.is_described(state["v"])
    assert codec.are_alike(found["v"], state["v"])
    assert found["w"][0] is found["v"]
    assert memory.verify().problems == []
    memory.export(tmp_path / "export")
    with Memory(tmp_path / "copy.db", embedder="off") as copy:
        copy.load(tmp_path / "export")
        assert codec.are_alike(stored(copy, agent)["v"], state["v"])
        assert copy.verify().problems == []
    memory.detach(agent)
    memory.erase(memory.runs()[0])
    left = [memory._journal.content(row["id"]) for row in memory._store.rows("contents_after", {"id": 0})]
    assert [data for data in left if not data.startswith(b'"[erased')] == []


def test_items_that_move_are_not_encoded_again(memory: Memory) -> None:
    made = "queue = [{'n': n, 'text': 'x' * 40} for n in range(300)]"
    changes = ["queue.pop(0)", "queue.insert(5, queue.pop())", "queue = queue[7:]", "queue.reverse()"]
    agent = memory.attach(code_agent(code(made), *map(code, changes), code("final_answer(0)")))
    recorder, encoded = recorder_of(agent), list[Any]()
    assert recorder is not None
    encode = recorder.steps._variables._values.encode

    def counted(value: Any, **shared: Any) -> Any:
        encoded.append(value)
        return encode(value, **shared)

    recorder.steps._variables._values.encode = counted
    agent.step_callbacks.register(ActionStep, lambda step, agent: encoded.clear() if step.step_number == 2 else None)
    agent.run("Go")
    assert len(encoded) < 40
    assert stored(memory, agent)["queue"] == agent.python_executor.state["queue"]


def test_a_variable_that_no_step_names_is_not_encoded_again(memory: Memory) -> None:
    agent = code_agent(code(f"rows = {LONG}"), *(code(f"x{n} = {n}") for n in range(5)), code("final_answer(0)"))
    memory.attach(agent)
    recorder, encoded = recorder_of(agent), list[int]()
    assert recorder is not None
    encode = recorder.steps._variables._values.encode

    def counted(value: Any, **shared: Any) -> Any:
        encoded.append(len(encode(value, **shared).record))
        return encode(value, **shared)

    recorder.steps._variables._values.encode = counted
    agent.step_callbacks.register(ActionStep, lambda step, agent: encoded.clear() if step.step_number == 3 else None)
    agent.run("Go")
    assert 0 < len(encoded) < 10
    assert max(encoded) < 100


# --- chunks ----------------------------------------------------------------------------------------------------------


class Agent:
    """What `Variables` reads of an agent without an interpreter."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}


def _change(chance: random.Random, value: Any) -> None:
    text = "é" * chance.choice([1, 30, 700, 5000])
    items = [text, chance.randint(0, 99), {"a": text, "b": 1}, [1, text], None, (1, "two"), {"deep": [{"x": [text]}]}]
    item = chance.choice(items)
    if isinstance(value, list):
        act = chance.choice(["append"] * 4 + ["insert", "set", "pop", "inner"])
        place = chance.randrange(len(value)) if value else 0
        if act == "append" or not value:
            value.append(item)
        elif act == "insert":
            value.insert(place, item)
        elif act == "set":
            value[place] = item
        elif act == "pop":
            value.pop(place)
        elif isinstance(value[place], (list, dict)):
            _change(chance, value[place])
    else:
        value[f"key {chance.randint(0, 60)}"] = item


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(12 if TORTURE else 4))
def test_any_sequence_of_changes_comes_back_as_it_is(memory: Memory, seed: int) -> None:
    chance, agent = random.Random(seed), Agent()
    journal, tracked = memory._journal, Variables(agent, memory._journal.encode)
    agent.state = {"list": [], "dict": {}, "text": "", "both": {"inner": [], "n": 0}}
    for turn in range(60):
        for _ in range(chance.randint(0, 6)):
            _change(chance, chance.choice([agent.state["list"], agent.state["dict"], agent.state["both"]["inner"]]))
        agent.state["text"] += "word " * chance.randint(0, 900)
        if chance.random() < 0.1:
            agent.state["dict"]["shared"] = agent.state["list"]
        if chance.random() < 0.1:
            agent.state["dict"].pop("shared", None)
        encoded = tracked.snapshot(None)
        assert encoded is not None
        if chance.random() < 0.8:  # otherwise the write failed
            number = memory._store.transact(partial(journal.keep, encoded))
            tracked.saved()
            found = Contents(memory._store).variables(number)
            assert found["state"] == agent.state, turn


def test_a_secret_across_two_chunks_of_a_text_is_not_stored(memory: Memory, tmp_path: Path) -> None:
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2
    agent = memory.attach(
        code_agent(code("text = 'word ' * 3998"), code("text += ('0 ' + key)"), code("final_answer(0)"))
    )
    agent.run("Go", additional_args={"key": token[:40]})
    memory.close()
    assert token[10:40].encode() not in (tmp_path / "agent.db").read_bytes()
    with Memory(tmp_path / "agent.db", embedder="off") as again:
        assert token[:40] not in json.dumps(stored(again, agent), default=str)


def test_chunks_of_an_erased_run_are_gone_and_those_of_others_stay(memory: Memory, tmp_path: Path) -> None:
    def pages(mark: str) -> list[str]:
        return [f"{mark} {n} " + random.Random(f"{mark}{n}").randbytes(300).hex() for n in range(60)]

    for marks in (["alone", "shared"], ["shared", "other"]):
        agent = memory.attach(code_agent(code("found = list(given)"), code("final_answer(0)")))
        agent.run("Go", additional_args={"given": [page for mark in marks for page in pages(mark)]})
        memory.detach(agent)
    newest, oldest = memory.runs()
    memory.erase(oldest)
    assert memory.verify()
    kept = memory._journal.session(newest.session, newest.id).variables()["variables"]["found"]
    assert kept == pages("shared") + pages("other")
    left = [bytes(memory._journal.content(row["id"])) for row in memory._store.rows("contents_after", {"id": 0})]
    assert not [data for data in left if b"alone 17" in data]


def test_an_export_of_one_scope_carries_the_chunks(tmp_path: Path) -> None:
    with Memory(tmp_path / "a.db", scope="one", embedder="off") as memory:
        agent = memory.attach(code_agent(code(f"rows = {LONG}"), code("final_answer(0)")))
        agent.run("Go")
        memory.export(tmp_path / "out")
    with Memory(tmp_path / "b.db", scope="one", embedder="off") as other:
        other.load(tmp_path / "out")
        run = other.runs()[0]
        found = other._journal.session(run.session, run.id).variables()["variables"]["rows"]
    assert found == [{"n": n, "text": "x" * 40} for n in range(200)]


@pytest.mark.parametrize("key", ["00" + "a" * 38, "ff" + "a" * 38])
def test_any_number_of_equal_chunks_has_few_nodes(key: str) -> None:
    tree = chunks._tree({}, [key] * 5000)
    assert len(tree["v"]) <= 32
    assert tree["depth"] <= 4


def test_chunks_that_claim_to_be_a_value_of_any_size_are_refused() -> None:
    made: dict[str, bytes] = {}

    def add(tree: Any) -> dict[str, str]:
        data = wire.dumps(tree)
        made[wire.fingerprint(data)] = data
        return {"chunk": wire.fingerprint(data)}

    below = add(["x" * 1000] * 3)
    for _ in range(8):
        below = add([below] * 30)
    part = {"$": "list", "chunks": {"depth": 8, "v": [below]}}
    tree = {"$": "snapshot", "large": [], "same": [], "state": {}, "together": [], "variables": {"x": part}}
    with pytest.raises(Undecodable, match="too large"):
        chunks.assembled(tree, made.__getitem__)
    for wrong in ({"depth": 99, "v": []}, {"depth": 0, "v": [1]}, {"depth": 0, "v": 5}, None):
        broken = {**tree, "variables": {"x": {"$": "list", "chunks": wrong}}}
        with pytest.raises((Undecodable, TypeError)):
            chunks.assembled(broken, made.__getitem__)
