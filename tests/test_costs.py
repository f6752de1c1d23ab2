"""What recording costs, counted in syncs, statements and encodings: times would depend on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from recalling import concepts
from scripted import code, code_agent, team
from smolagents import tool
from smolagents.memory import ActionStep
from smolagents.models import ChatMessage

from smolmem import Memory, Watch
from smolmem.agents.restoring import interpreter, known_classes
from smolmem.core.encoding import pictures
from smolmem.core.errors import StoreError
from smolmem.store.sqlite.sqlite_store import SqliteStore


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        yield memory


@tool
def send(text: str) -> str:
    """Sends a text.

    Args:
        text: the text
    """
    return f"sent {text}"


@tool
def look_up(text: str) -> str:
    """Looks a text up.

    Args:
        text: the text
    """
    return f"found {text}"


look_up.safe_to_repeat = True


def syncs_of(memory: Memory, monkeypatch: pytest.MonkeyPatch, body: str) -> int:
    """The synced transactions of a run that has this code in its first step."""
    synced: list[bool] = []
    transact = memory._store.transact

    def counted(run: Any, *, sync: bool = True) -> Any:
        synced.append(sync)
        return transact(run, sync=sync)

    agent = memory.attach(code_agent(code(body), code("final_answer('done')"), tools=[send, look_up]))
    with monkeypatch.context() as patched:
        patched.setattr(memory._store, "transact", counted)
        agent.run("Do it.")
    return sum(synced)


def test_a_step_is_synced_once_and_a_call_that_may_have_effects_once_before_it_is_made(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = {"print(1 + 1)": 0, "print(look_up('a'))": 0, "print(send('a'))": 1, "print(send('a'), send('b'))": 2}
    without = syncs_of(memory, monkeypatch, "x = 1")
    for body, more in bodies.items():
        assert syncs_of(memory, monkeypatch, body) - without == more, body


def test_while_nobody_else_writes_no_statement_looks_for_another_writer(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    rows, do = memory._store.rows, memory._store.do

    def counting_rows(name: str, *args: Any) -> Any:
        asked[name] += 1
        return rows(name, *args)

    def counting_do(name: str, values: Any) -> Any:
        asked[name] += 1
        return do(name, values)

    monkeypatch.setattr(memory._store, "rows", counting_rows)
    monkeypatch.setattr(memory._store, "do", counting_do)
    agent = memory.attach(code_agent(*(code(f"print({n})") for n in range(12)), code("final_answer('done')")))
    agent.run("Count.")
    assert asked["add_event"] >= 13
    assert asked["other_writer"] <= 1
    assert asked["content_link"] == 0
    with Memory(tmp_path / "agent.db", embedder="off") as other:

        def interfere(step: Any, agent: Any) -> None:
            other.remember(f"note {step.step_number}")

        agent = memory.attach(code_agent(code("print(1)"), code("print(2)"), code("final_answer('done')")))
        agent.step_callbacks.register(ActionStep, interfere)
        asked.clear()
        agent.run("Again.")
    assert asked["other_writer"] >= 3
    assert asked["content_link"] >= 2
    assert memory.verify().problems == []


def failing(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on, every write of steps fails; the list gets the number of changes of each attempt."""
    attempts: list[int] = []

    def fail(batch: Any) -> Any:
        attempts.append(len(batch.changes))
        raise StoreError("the disk is full")

    monkeypatch.setattr(memory._journal, "save", fail)
    return attempts


def test_steps_that_cannot_be_saved_are_encoded_once_and_tried_less_and_less_often(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: Counter[int] = Counter()
    messages: list[int] = []
    encode = memory._journal.encode

    def counted(value: Any, made_from: Any = None, **options: Any) -> Any:
        if isinstance(value, ActionStep):
            encoded[value.step_number] += 1
        if isinstance(value, ChatMessage):
            messages.append(len(encoded))
        return encode(value, made_from, **options)

    monkeypatch.setattr(memory._journal, "encode", counted)
    steps = [code(f"found = {'found' if n else '[]'} + ['page {n}' * 99]\nprint('page {n}')") for n in range(40)]
    agent = code_agent(*steps, code("final_answer('done')"), max_steps=50)
    save, attempts = memory._journal.save, list[list[int]]()

    def break_store(step: Any, agent: Any) -> None:
        if step.step_number == 2:
            attempts.append(failing(memory, monkeypatch))

    memory.attach(agent)
    agent.step_callbacks.register(ActionStep, break_store)
    assert agent.run("Read.") == "done"
    assert set(encoded.values()) == {1}
    assert len(messages) < 6 * 42  # the question, the answer, and what the next prompts show of each step
    assert len(attempts[0]) < 20
    monkeypatch.setattr(memory._journal, "save", save)
    memory.flush()
    run = memory.runs()[0]
    assert [step.number for step in run.steps if step.kind == "action"] == list(range(1, 42))
    assert memory.verify().problems == []
    prompts = memory._store.rows("prompts_before", {"id": 1 << 62})
    assert sum(len(json.loads(prompt["suffix"])) for prompt in prompts) < 8 * 42
    assert stored_variables(memory)["found"] == agent.python_executor.state["found"]
    for step, sent in zip(agent.memory.steps[1:], agent.model.prompts, strict=True):
        assert [message.content for message in step.model_input_messages] == [message.content for message in sent]


def stored_variables(memory: Memory) -> dict[str, Any]:
    run = memory.runs()[0]
    variables: dict[str, Any] = memory._journal.session(run.session, run.id).variables()["variables"]
    return variables


def test_an_edit_of_a_step_that_could_not_be_saved_is_saved(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    save = memory._journal.save
    failing(memory, monkeypatch)
    agent = memory.attach(code_agent(code("print('before')"), code("final_answer('done')")))
    agent.run("Read.")
    agent.memory.steps[1].observations = "after"
    monkeypatch.setattr(memory._journal, "save", save)
    memory._failures._retry_at = 0.0
    agent.memory.steps.extend([])
    texts = [step.text for step in memory.runs()[0].steps if step.number == 1]
    assert len(texts) == 1
    assert texts[0].endswith("after")


def test_opening_a_memory_imports_nothing_that_only_other_tasks_need(tmp_path: Path) -> None:
    program = (
        "import sys; from smolmem import Memory; Memory(sys.argv[1]).close();"
        "rare = ('regex', 'rich.progress', 'smolmem.render', 'smolmem.transfer.export',"
        "        'smolmem.transfer.traces.run_spans');"
        "print([name for name in rare if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "new.db")], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_resume_looks_for_the_classes_of_tools_once_however_many_steps_there_are(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = Counter[str]()
    for module in (interpreter, known_classes):
        for name in ("classes_of_tools", "methods_of"):
            original = getattr(module, name)

            def counting(given: Any, name: str = name, original: Any = original) -> Any:
                looked[name] += 1
                return original(given)

            monkeypatch.setattr(module, name, counting)

    def resumed(steps: int) -> Counter[str]:
        written = [code(f"x = {number}\nprint(send('{number}'))") for number in range(steps)]
        agent = memory.attach(code_agent(*written, ConnectionError("gone"), tools=[send], max_steps=30))
        with pytest.raises(Exception, match="gone"):
            agent.run(f"Send {steps}.")
        memory.detach(agent)
        looked.clear()
        assert memory.resume(code_agent(code("final_answer(x)"), tools=[send], max_steps=30)) == steps - 1
        return Counter(looked)

    assert resumed(3) == resumed(20)


def test_the_actions_of_a_fork_are_counted_without_reading_its_steps(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = memory.attach(code_agent(*(code(f"x = {number}") for number in range(4)), code("final_answer(x)")))
    agent.run("Count.")
    fork = memory.runs()[0].fork(step=3)
    memory.resume(code_agent(code("y = 1"), code("final_answer(y)")), fork)
    fork_of_fork = memory.run(fork.id).fork(step=4)
    expected = [sum(step.kind == "action" for step in run.steps) for run in memory.runs()]
    read, rows = Counter[str](), memory._store.rows

    def counted(name: str, *given: Any) -> Any:
        read[name] += 1
        return rows(name, *given)

    monkeypatch.setattr(memory._store, "rows", counted)
    assert [run.action_count for run in memory.runs()] == expected
    assert memory.run(fork_of_fork.id).action_count == 4
    assert not read["run_steps"]
    assert not read["session_events"]


def test_a_backtest_decodes_only_steps_of_which_the_rule_asks_for_more_than_their_columns(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = memory.attach(code_agent(code("1 / 0"), code("print('HTTP 500')"), code("1 / 0"), code("final_answer(1)")))
    agent.run("Look.")
    decoded, step_of = list[int](), memory._journal.step_of

    def counted(row: Any) -> Any:
        decoded.append(row["number"])
        return step_of(row)

    monkeypatch.setattr(memory._journal, "step_of", counted)
    asked = {
        "failures": (Watch.failures(threshold=3), 2, []),
        "slow": (Watch.slow(), 0, []),
        "tokens": (Watch.tokens(1_000_000), 0, []),
        "same error": (Watch.same_error(threshold=3), 1, [1, 3]),
        "pattern": (Watch("HTTP 5"), 1, [1, 2, 3, 4]),
    }
    for name, (rule, count, read) in asked.items():
        decoded.clear()
        found = memory.backtest(rule)
        assert (found.steps, sum(found.counted), decoded) == (4, count, read), name


@tool
def fetch_url(url: str) -> str:
    """Reads a page of the web.

    Args:
        url: the page
    """
    return f"a page about {url}"


def record(memory: Memory) -> None:
    """A run that is reminded, calls another agent, reads the web, fails, and answers; a note; and all is indexed."""
    agent = team(memory, recall=2)
    agent.tools["fetch_url"] = fetch_url
    ask = code("page = fetch_url('rome')\nsaid = helper('How is Rome?')\nprint(page, said)")
    agent.model.script = iter(["First ask the helper.", ask, code("1 / 0"), code("final_answer(said)")])
    agent.run("How is Rome?")
    memory.detach(agent)
    memory.remember("Rome is sunny.")
    memory.index()


GROWING = {"exposed_before", "add_document_words", "count_documents", "beside", "fitting_passages"}
"""Statements whose cost may grow: with the runs of this process, with merges of full text, and with what a search
finds, of which it reads a limited number."""


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What each statement cost at most, in operations of SQLite's virtual machine."""
    most: dict[str, int] = {}

    def count(original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(store: SqliteStore, name: str, *given: Any) -> Any:
            operations: list[int] = []
            connection = store._live()
            connection.set_progress_handler(lambda: operations.append(1) is not None, 1)
            try:
                return original(store, name, *given)
            finally:
                connection.set_progress_handler(None)
                most[name] = max(most.get(name, 0), len(operations))

        return counted

    for method in ("do", "rows"):
        monkeypatch.setattr(SqliteStore, method, count(getattr(SqliteStore, method)))
    return most


def test_recording_and_indexing_a_run_costs_the_same_however_many_runs_the_file_has(
    memory: Memory, costs: dict[str, int]
) -> None:
    for _ in range(4):
        costs.clear()
        record(memory)
    few = dict(costs)
    for _ in range(12):
        costs.clear()
        record(memory)
    dearer = {name: (few.get(name), most) for name, most in costs.items() if most > 1.2 * few.get(name, 0)}
    assert dearer.keys() <= GROWING, dearer


def test_new_passages_get_vectors_without_a_look_at_those_that_have_theirs(
    tmp_path: Path, costs: dict[str, int]
) -> None:
    with Memory(tmp_path / "agent.db", embedder=concepts) as memory:
        for count in (1, 100):
            for number in range(count):
                memory.remember(f"Rome was asked about for the {number}th time.")
            memory.index()
        costs.clear()
        memory.remember("Rome is sunny.")
        assert memory.index() >= 1
        assert memory.stats().vectors == memory.stats().passages
    assert max(costs["unembedded"], costs["count_unembedded"]) < 100


OF_A_RUN = {"run_counts", "task_before", "tool_calls"}
"""Statements that read a whole run: when it ends, for its answer, and once for each batch of steps."""
LIMITED = {"low_passages", "any_unindexed", "passages"}
"""Statements that read text of low trust, up to a limit."""


def test_recording_and_indexing_a_step_costs_the_same_however_long_its_run_is(
    memory: Memory, costs: dict[str, int]
) -> None:
    few: dict[str, int] = {}
    for steps in (20, 120):
        costs.clear()
        script = [code(f"print(look_up('{number}'), fetch_url('{number}'))") for number in range(steps)]
        agent = code_agent(*script, code("final_answer(1)"), tools=[look_up, fetch_url], max_steps=steps + 1)
        memory.attach(agent).run("Look it all up.")
        memory.index()
        few = few or dict(costs)
    dearer = {name: (few.get(name), most) for name, most in costs.items() if most > 1.2 * few.get(name, 0) + 20}
    assert dearer.keys() <= GROWING | OF_A_RUN | LIMITED, dearer


def test_a_picture_is_packed_once_and_not_again_when_the_agent_is_detached(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, pack = list[Any](), pictures._png

    def counted(picture: Any) -> bytes:
        packed.append(picture)
        return pack(picture)

    monkeypatch.setattr(pictures, "_png", counted)
    agent = memory.attach(code_agent(*(code(f"print({number})") for number in range(6)), code("final_answer(1)")))

    def look(step: Any, agent: Any) -> None:
        step.observations_images = [PIL.Image.new("RGB", (9, 9), (step.step_number, 0, 0))]

    agent.step_callbacks.register(ActionStep, look)
    agent.run("Look.")
    assert len(packed) == 7
    pictures._images.clear()
    edited = agent.memory.steps[3].observations_images[0]
    edited.putpixel((1, 1), (9, 9, 9))
    memory.detach(agent)
    assert packed[7:] == [edited]
    assert memory.runs()[0].steps[3].to_smolagents().observations_images == [edited]


def test_the_messages_of_a_plan_are_encoded_once_however_many_plans_show_them(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, encode = list[Any](), memory._journal.encode

    def counted(value: Any, *options: Any, **named: Any) -> Any:
        encoded.extend([value] if isinstance(value, ChatMessage) else [])
        return encode(value, *options, **named)

    monkeypatch.setattr(memory._journal, "encode", counted)
    said = [text for number in range(20) for text in (f"Plan {number}.", code(f"print({number})"))]
    agent = code_agent(*said, "The last plan.", code("final_answer(1)"), planning_interval=1)
    memory.attach(agent).run("Count.")
    assert len(encoded) < 10 * 21
    recorded = [step for step in memory.runs()[0].steps if step.kind == "planning"]
    for step, sent in zip(recorded, agent.model.prompts[::2], strict=True):
        shown = step.to_smolagents().model_input_messages
        assert [message.content for message in shown] == [message.content for message in sent]
