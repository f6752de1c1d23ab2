"""Corners that a hostile reviewer finds: nothing lost, nothing done twice, nothing in the user's way."""

from __future__ import annotations

import copy
import faulthandler
import json
import os
import pickle
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from conftest import TORTURE
from scripted import Scripted, answer, calling_agent, calls, code, code_agent
from smolagents import AgentMemory, CodeAgent, Model, Tool, ToolCallingAgent, tool
from smolagents.memory import FinalAnswerStep
from smolagents.models import ChatMessage, MessageRole
from smolagents.utils import AgentGenerationError
from workers import fork

from smolmem import Memory, Watch
from smolmem.core import faults
from smolmem.core.encoding import codec
from smolmem.core.encoding.placeholders import Placeholder
from smolmem.core.errors import CannotResume, Damaged, InvalidArgument, NotFound, StoreError, UnknownOutcome, Unwritable
from smolmem.core.text import message_text
from smolmem.doctor import examine_path
from smolmem.recall import indexer
from smolmem.store.sqlite.header import is_plain

PAID: list[int] = []
WITNESS: list[Path] = []


@tool
def pay(amount: int) -> str:
    """Pays.

    Args:
        amount: how much.
    """
    PAID.append(amount)
    return f"paid {amount}"


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    PAID.clear()


class Killed(BaseException):
    """Ends a run as a kill would: nothing that smolmem does afterwards is written."""


# --- models and memories that are replaced --------------------------------------------------------------------------


@pytest.mark.promise("D12")
def test_a_model_that_is_swapped_after_attach_is_in_the_ledger(path: Path) -> None:
    first = calling_agent(calls(("pay", {"amount": 1})), answer("done"), tools=[pay])
    with Memory(path, strict=True) as memory:
        memory.attach(first)
        first.model = Scripted(calls(("pay", {"amount": 2})), answer("done"))
        first.run("Pay")
        run = memory.runs()[0]
        kinds = [call.kind for call in memory._journal.calls(run.id)]
        assert kinds.count("model") == 2
        assert PAID == [2]


@pytest.mark.promise("D12")
def test_a_method_that_is_set_on_a_model_after_attach_is_in_the_ledger(path: Path) -> None:
    agent = code_agent(code("final_answer(1)"))
    with Memory(path, strict=True) as memory:
        memory.attach(agent)
        other = Scripted(code("final_answer(2)"))
        agent.model.generate = other.generate
        assert agent.run("Go") == 2
        run = memory.runs()[0]
        assert [call.kind for call in memory._journal.calls(run.id)] == ["model", "tool"]
        memory.detach(agent)
        assert agent.model.generate == other.generate


def test_a_model_is_called_by_the_name_of_its_parameter_as_before(memory: Memory) -> None:
    class Renamed(Scripted):
        def generate(self, prompt: Any, **kwargs: Any) -> Any:
            return super().generate(prompt, **kwargs)

    agent = code_agent()
    agent.model = Renamed(code("final_answer(1)"), "said")
    assert memory.attach(agent).run("Go") == 1
    assert agent.model.generate(prompt=[]).content == "said"


def test_code_reads_what_a_tool_and_a_managed_agent_have_as_before(memory: Memory) -> None:
    read = "print(count.calls, count(1), count.calls, helper.name, helper.description)"
    made = []
    for attach in (lambda agent: agent, memory.attach):
        helper = code_agent(name="helper", description="helps")
        agent = code_agent(code(read), code("final_answer(1)"), tools=[Count()], managed_agents=[helper])
        attach(agent).run("Read")
        made.append(agent.memory.steps[1].observations)
    assert made[0] == made[1]
    assert "0 1 1 helper helps" in made[0]


class Count(Tool):  # type: ignore[misc]
    name, description, output_type = "count", "counts its calls", "integer"
    inputs = {"by": {"type": "integer", "description": "how much to add"}}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, by: int) -> int:
        self.calls += by
        return self.calls


class MadeOf(Model):  # type: ignore[misc]
    """A model whose instances are made of an argument, also in pickles."""

    made_of: str

    def __new__(cls, made_of: str) -> Any:
        made = super().__new__(cls)
        made.made_of = made_of
        return made

    def __init__(self, made_of: str) -> None:
        super().__init__(model_id="made")

    def __getnewargs__(self) -> tuple[str]:
        return (self.made_of,)


def test_models_and_memories_of_attached_agents_are_copied_and_pickled_as_before(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("final_answer(1)")))
    agent.run("Go")
    shallow, deep = copy.copy(agent.model), copy.deepcopy(agent.model)
    for other in (shallow, deep):
        assert type(other).__name__ == type(agent.model).__name__
        assert other.generate.__self__ is other
    model = memory.attach(CodeAgent(tools=[], model=MadeOf("a"), verbosity_level=0)).model
    for other in (pickle.loads(pickle.dumps(model)), copy.copy(model), copy.deepcopy(model)):
        assert type(other) is type(MadeOf("a"))
        assert (other.model_id, other.made_of) == ("made", "a")
    plain = pickle.loads(pickle.dumps(agent.memory))
    assert type(plain) is type(copy.deepcopy(agent.memory)) is AgentMemory
    assert [type(step).__name__ for step in plain.steps] == ["TaskStep", "ActionStep"]
    assert type(plain.steps) is list


def test_an_agent_whose_memory_is_replaced_is_still_recorded(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("final_answer(1)")))
    agent.run("First")
    agent.memory = AgentMemory(agent.memory.system_prompt.system_prompt)
    agent.model = Scripted(code("final_answer(2)"))
    agent.run("Second")
    assert [run.title for run in memory.runs()] == ["Second", "First"]
    assert [step.kind for step in memory.runs()[0].steps] == ["task", "action"]
    memory.detach(agent)
    assert type(agent.memory) is AgentMemory
    assert memory.verify()


def test_a_list_kept_from_before_its_agent_was_detached_is_an_ordinary_list(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("final_answer(1)")))
    agent.run("Go")
    kept = agent.memory.steps
    memory.detach(agent)
    kept.append(kept[0])
    del kept[0]
    assert len(kept) == 2


def test_steps_of_an_agent_that_shares_the_memory_are_no_part_of_the_next_run(memory: Memory) -> None:
    one = memory.attach(code_agent(code("final_answer(1)"), code("final_answer(3)"), name="one", description="d"))
    two = memory.attach(code_agent(code("final_answer(2)"), name="two", description="d"))
    one.run("First")
    two.memory = one.memory
    two.run("Second", reset=False)
    one.run("Third")
    assert memory.runs()[0].title == "Third"
    assert [step.kind for step in memory.runs()[0].steps] == ["task", "action"]
    assert memory.verify()


def test_an_agent_that_no_longer_shares_a_memory_is_not_reset_with_it(memory: Memory, tmp_path: Path) -> None:
    with Memory(tmp_path / "other.db", embedder="off") as other:
        script = [code(f"final_answer({number})") for number in range(3)]
        owner, guest = other.attach(code_agent(*script)), memory.attach(code_agent(*script))
        owner.run("Owner 1")
        guest.memory = owner.memory
        guest.run("Guest 0", reset=False)
        owner.run("Owner 2", reset=False)
        guest.memory = AgentMemory("You help.")
        guest.run("Guest 1")
        owner.run("Owner 3")
        guest.run("Guest 2", reset=False)
        runs = memory.runs()
        assert [run.title for run in runs] == ["Guest 2", "Guest 1", "Owner 2", "Guest 0", "Owner 1"]
        assert [run.step_count for run in runs] == [1, 1, 1, 1, 1]
        assert runs[0].session == runs[1].session != runs[2].session
        assert memory.verify()
        assert other.verify()


def test_a_memory_that_was_missing_for_a_while_is_recorded_again(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("final_answer(1)"), code("final_answer(2)")))
    agent.run("First")
    agent.memory = None
    with pytest.raises(AttributeError):
        agent.run("Nowhere")
    agent.memory = AgentMemory("You help.")
    agent.run("Second")
    assert [run.title for run in memory.runs()] == ["Second", "First"]


def test_two_agents_that_share_one_memory_are_recorded_under_their_own_names(memory: Memory) -> None:
    one = memory.attach(code_agent(code("final_answer(1)"), name="one", description="d"))
    two = memory.attach(code_agent(code("final_answer(2)"), name="two", description="d"))
    one.run("First")
    two.memory = one.memory
    two.run("Second", reset=False)
    assert len(one.memory.steps) == len(two.memory.steps) == 4
    assert {run.title: run.agent for run in memory.runs() if "hand" not in run.title} == {
        "Second": "two",
        "First": "one",
    }
    memory.detach(two)
    memory.detach(one)
    assert type(one.memory) is AgentMemory
    assert memory.verify()


# --- values and answers ---------------------------------------------------------------------------------------------


class Proxy:
    """As a web framework's local proxy outside a request: every look at it raises."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("working outside of request context")

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("working outside of request context")

    def __repr__(self) -> str:
        raise RuntimeError("working outside of request context")


class Nameless(type):
    """As a class that is made on first use: it raises when it is asked for its module."""

    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("not loaded")


class OfNamelessClass(metaclass=Nameless):
    pass


def test_one_value_that_raises_at_every_look_costs_one_placeholder(memory: Memory) -> None:
    encoded = codec.encode({"good": 1, "bad": Proxy(), "list": [Proxy(), 2, OfNamelessClass(), OfNamelessClass]})
    back = codec.decode(encoded.record, encoded.blobs.__getitem__)
    assert back["good"] == 1
    assert back["list"][1] == 2
    assert type(back["bad"]).__mro__[1] is Placeholder
    agent = memory.attach(code_agent(code("final_answer(1)"), code("final_answer(2)")))
    agent.state["request"], agent.state["lazy"] = Proxy(), OfNamelessClass()
    agent.run("One")
    agent.run("Two")
    assert [run.status for run in memory.runs()] == ["finished", "finished"]
    assert [run.step_count for run in memory.runs()] == [1, 1]


def test_an_answer_that_is_a_generator_ends_the_run(memory: Memory) -> None:
    class Numbers(CodeAgent):  # type: ignore[misc]
        def run(self, *args: Any, **kwargs: Any) -> Any:
            super().run(*args, **kwargs)
            return (number for number in (1, 2))

    agent = Numbers(tools=[], model=Scripted(code("final_answer(1)")), verbosity_level=0)
    memory.attach(agent)
    assert list(agent.run("Go")) == [1, 2]
    assert memory.runs()[0].status == "finished"


# --- the ledger -----------------------------------------------------------------------------------------------------


@pytest.mark.promise("D12")
def test_a_skipped_call_is_skipped_again_after_a_second_kill(path: Path) -> None:
    script = calls(("pay", {"amount": 1})), calls(("pay", {"amount": 2})), answer("done")
    with Memory(path) as memory:
        agent = memory.attach(calling_agent(*script, tools=[pay]))

        def die(point: str) -> None:
            if point == "write.begun" and PAID:
                raise Killed

        faults.hook = die
        with pytest.raises(Killed):
            agent.run("Pay")
        faults.hook = None
        assert PAID == [1]
    with Memory(path) as memory:
        memory._journal.release(memory._journal.run_row(memory.runs()[0].id))
        again = calling_agent(*script[1:], tools=[pay])
        moment = memory.stepwise(again, unknown="skip")
        next(moment)
        moment.close()
        run = memory.runs()[0]
        outcomes = [call.outcome() for call in memory._journal.calls(run.id) if call.name == "pay"]
        assert "is unknown" in outcomes[0]
        assert all(call.ended for call in memory._journal.calls(run.id))
    assert PAID == [1]


@pytest.mark.promise("D5")
def test_strict_does_not_make_a_call_whose_beginning_cannot_be_recorded(path: Path) -> None:
    for strict in (True, False):
        PAID.clear()
        with Memory(path, strict=strict) as memory:
            model = Scripted(calls(("pay", {"amount": 1})), answer("done"))
            agent = memory.attach(calling_agent(tools=[pay]))
            agent.model = model
            original = memory._journal.begin_call

            def begin(
                call: Any, arguments: Any, outcome: Any = None, original: Any = original, *, sync: bool = True
            ) -> int:
                if call["kind"] == "tool" and outcome is None and call["name"] == "pay":
                    raise StoreError("no space left")
                return int(original(call, arguments, outcome, sync=sync))

            memory._journal.begin_call = begin  # type: ignore[method-assign]
            if strict:
                with pytest.raises(StoreError, match="no space left"):
                    agent.run("Pay")
            else:
                agent.run("Pay")
            made = [call.name for call in memory._journal.calls(memory.runs()[0].id) if call.kind == "tool"]
        assert ([] if strict else [1]) == PAID
        assert ("pay" in made) is not strict  # once the store works again, all of the call is recorded


@pytest.mark.promise("D5")
def test_a_run_that_could_not_be_saved_leaves_no_calls_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Memory(path, embedder="off") as memory:
        monkeypatch.setattr(memory._journal, "save", failing("no space left"))
        agent = memory.attach(calling_agent(calls(("pay", {"amount": 1})), answer("done"), tools=[pay]))
        assert agent.run("Pay") == "done"
        assert memory._store.rows("counts", {})[0]["calls"] == 0
        monkeypatch.undo()


@pytest.mark.promise("D5")
def test_recall_finds_what_is_indexed_while_nothing_can_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Memory(path, embedder="off") as memory:
        memory.remember("Deploys happen on Tuesdays")
        memory.index()
        memory.attach(code_agent(code("final_answer('Rollbacks happen on Wednesdays')"))).run("When do we roll back?")
        monkeypatch.setattr(indexer, "_index_within", failing("no space left"))
        assert [found.text for found in memory.recall("deploys")] == ["Deploys happen on Tuesdays"]


def failing(reason: str) -> Any:
    def fail(*args: Any, **options: Any) -> Any:
        raise Unwritable(reason)

    return fail


# --- managed agents ---------------------------------------------------------------------------------------------------


@tool
def pay_slowly(amount: int) -> str:
    """Pays.

    Args:
        amount: how much.
    """
    time.sleep(0.05)
    PAID.append(amount)
    for folder in WITNESS:  # of a process that is killed
        (folder / f"paid-{amount}").touch()
    return f"paid {amount}"


class Payer(Scripted):
    """Pays the amount that its task names, whichever task that is."""

    def generate(self, messages: list[Any], **_: Any) -> Any:
        text = "\n".join(message_text(message) for message in messages)
        amount = re.findall(r"pay (\d+)", text)[-1]
        done = f"paid {amount}" in text
        return Scripted(code(f"final_answer('done {amount}')" if done else f"print(pay_slowly({amount}))")).generate(
            messages
        )


class Manager(Scripted):
    """Has both amounts paid at once, and then is done."""

    def generate(self, messages: list[Any], **_: Any) -> Any:
        text = "\n".join(message_text(message) for message in messages)
        both = calls(("payer", {"task": "pay 11"}), ("payer", {"task": "pay 22"}))
        return Scripted(answer("done") if "done 22" in text else both).generate(messages)


def manager_of_one_payer() -> Any:
    payer = CodeAgent(tools=[pay_slowly], model=Payer(code("1")), name="payer", description="pays", verbosity_level=0)
    return ToolCallingAgent(tools=[], model=Manager(), managed_agents=[payer], verbosity_level=0)


@pytest.mark.promise("D12")
def test_parallel_calls_of_one_managed_agent_each_do_their_own_task_and_are_recorded(path: Path) -> None:
    with Memory(path, strict=True) as memory:
        memory.attach(manager_of_one_payer()).run("Pay both")
        assert sorted(PAID) == [11, 22]
        children = memory.runs(agent="payer")
        assert sorted(str(child.answer) for child in children) == ["done 11", "done 22"]
        for child in children:
            amount = re.search(r"pay (\d+)", child.task)[1]  # type: ignore[index]
            made = [call for call in memory._journal.calls(child.id) if call.name == "pay_slowly"]
            assert [call.outcome() for call in made] == [f"paid {amount}"]
        assert memory.verify()


@pytest.mark.promise("D12")
@pytest.mark.parametrize("moment", range(2, 26, 3 if TORTURE else 6))
def test_a_kill_among_parallel_calls_of_one_managed_agent_pays_nothing_twice(path: Path, moment: int) -> None:
    def work() -> None:
        left = [moment]

        def die(point: str) -> None:
            left[0] -= point == "write.committed"
            if left[0] <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

        signal.alarm(20)
        WITNESS.append(path.parent)
        faults.hook = die
        with Memory(path) as memory:
            memory.attach(manager_of_one_payer()).run("Pay both")

    child = fork(work)
    os.waitpid(child, 0)
    before = sorted(file.name.split("-")[1] for file in path.parent.glob("paid-*"))
    with Memory(path) as memory:
        if not memory.runs(managed=False) or memory.runs(managed=False)[0].status == "finished":
            return
        agent = manager_of_one_payer()
        try:
            memory.resume(agent)
        except UnknownOutcome:
            memory.resume(manager_of_one_payer(), unknown="skip")
        assert len({*before, *map(str, PAID)}) == len(before) + len(PAID), "a payment that had ended was made again"


@pytest.mark.promise("D12")
def test_of_two_workers_that_resume_one_run_the_second_is_refused_and_changes_nothing(path: Path) -> None:
    def make() -> Any:
        return code_agent(code("print(1)"), code("print(2)"), code("final_answer(3)"))

    with Memory(path, strict=True) as memory, Memory(path, strict=True) as other:
        for _ in memory.stepwise(make(), "Count"):
            break
        run = memory.runs()[0]
        order: list[str] = []
        session, claim = memory._journal.session, memory._journal.claim
        memory._journal.session = lambda *args, **given: order.append("load") or session(*args, **given)  # type: ignore[func-returns-value, method-assign]
        memory._journal.claim = lambda *args: order.append("claim") or claim(*args)  # type: ignore[func-returns-value, method-assign]
        first = memory.stepwise(code_agent(code("print(2)"), code("final_answer(3)")))
        assert order == ["claim", "load"]
        with pytest.raises(CannotResume, match="in use"):
            other.resume(make(), run.id)
        assert [step.step_number for step in first] == [2, 3]
        assert other.run(run.id).answer == 3
        assert other.verify()


# --- prompts, variables, order, forks ---------------------------------------------------------------------------------


@pytest.mark.promise("D7")
def test_an_unreadable_store_does_not_cost_the_answer(path: Path) -> None:
    with Memory(path) as memory:
        agent = memory.attach(code_agent(code("print(1)"), code("final_answer(2)")))
        agent.run("Go")

        def unreadable(*_: Any) -> Any:
            raise StoreError("the disk is gone")

        memory._journal.messages = unreadable  # type: ignore[method-assign]
        agent.model = Scripted(code("final_answer(3)"))
        assert agent.run("Again", return_full_result=True, reset=False).output == 3
        assert "cannot be read" in str(agent.memory.get_full_steps()[1]["model_input_messages"])
        agent.replay(detailed=True)


def planning_agent() -> Any:
    return code_agent("a plan", code("x = 1"), code("final_answer(7)"), planning_interval=5)


def managing_agent() -> Any:
    helper = code_agent(code("final_answer(7)"), name="helper", description="helps")
    return code_agent(code("final_answer(int(helper(task='go')[-1]))"), managed_agents=[helper])


def streamed(agent: Any) -> Any:
    return [event for event in agent.run("Go", stream=True) if isinstance(event, FinalAnswerStep)][-1].output


WAYS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "code": (lambda: code_agent(code("x = 1"), code("final_answer(7)")), lambda agent: agent.run("Go")),
    "calling": (lambda: calling_agent(calls(("weather", {"city": "Oslo"})), answer(7)), lambda agent: agent.run("Go")),
    "planning": (planning_agent, lambda agent: agent.run("Go")),
    "managed": (managing_agent, lambda agent: agent.run("Go")),
    "streamed": (lambda: code_agent(code("x = 1"), code("final_answer(7)")), streamed),
    "full result": (
        lambda: code_agent(code("x = 1"), code("final_answer(7)")),
        lambda agent: agent.run("Go", return_full_result=True).output,
    ),
}


@pytest.mark.promise("D16")
@pytest.mark.parametrize(("make", "run"), WAYS.values(), ids=WAYS)
def test_a_store_that_fails_at_any_moment_costs_no_answer(
    path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None], make: Any, run: Any
) -> None:
    left = [0]

    def failing(original: Any) -> Any:
        def operation(*args: Any, **given: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise StoreError("the disk is gone")
            return original(*args, **given)

        return operation

    memory = Memory(path, embedder="off")
    for name in ("rows", "do", "transact"):
        monkeypatch.setattr(memory._journal.store, name, failing(getattr(memory._journal.store, name)))
    cases, step = 0, 1 if os.environ.get("SMOLMEM_TORTURE") else 11
    while left[0] <= 0:  # until nothing fails any more
        left[0] = 10**6
        agent = memory.attach(make())
        left[0] = cases * step
        assert run(agent) == 7
        cases += 1
        left[0], still = 10**6, left[0]
        memory.detach(agent)
        left[0] = still
    record_property("cases", cases)
    left[0] = 10**6
    memory.close()


def test_a_run_killed_after_its_last_step_gives_its_variables_too(path: Path) -> None:
    with Memory(path) as memory:
        agent = memory.attach(code_agent(code("total = 41"), code("final_answer(total)")))
        agent.run("Go")
        row = memory._journal.run_row(memory.runs()[0].id)
        memory._journal.release({**row, "status": "running"})
    with Memory(path) as memory:
        again = code_agent(code("final_answer(total + 1)"))
        assert memory.resume(again) == 41
        assert again.run("And one more", reset=False) == 42


def test_resume_takes_the_run_that_was_written_last_whatever_the_clock_says(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memory(path) as memory:
        for task, clock in (("older", 2_000_000_000.0), ("newer", 1_000_000_000.0)):
            with monkeypatch.context() as patched:
                patched.setattr(time, "time", lambda clock=clock: clock)
                for _ in memory.stepwise(code_agent(code("print(1)"), code("final_answer(1)")), task):
                    break
        agent = code_agent(code("final_answer(2)"))
        memory.resume(agent)
        assert agent.task == "newer"


def test_a_fork_while_an_agent_works_does_not_hang_and_records_apart(path: Path) -> None:
    forked = threading.Event()

    @tool
    def is_over() -> bool:
        """Whether all children were forked."""
        return forked.is_set()

    memory, endless = Memory(path), [code("if is_over():\n    final_answer(1)")] * 5000
    agent = memory.attach(code_agent(*endless, tools=[is_over], max_steps=5000))
    worker = threading.Thread(target=lambda: agent.run("Work"))
    worker.start()
    try:
        for _ in range(5):
            time.sleep(0.03)  # the agent may be anywhere in a step

            def look() -> None:
                faulthandler.dump_traceback_later(60, exit=True)
                assert memory.runs()[0].status == "running"
                memory.remember("from the child")
                memory.close()

            child = fork(look)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        forked.set()
        worker.join()
    assert [run.status for run in memory.runs()] == ["finished"]
    assert len(memory.notes()) == 5
    assert memory.verify()
    memory.close()


@pytest.mark.promise("D12")
def test_a_child_that_closes_the_memory_leaves_no_copy_of_the_parents_run_to_resume(path: Path) -> None:
    memory = Memory(path)
    agent = memory.attach(
        code_agent(code("print(1)"), code("print(2)"), code("final_answer(3)"), code("final_answer(4)"))
    )
    steps = iter(memory.stepwise(agent, "Work"))
    for _ in range(2):
        next(steps)
        assert os.waitpid(fork(memory.close), 0)[1] == 0
    assert len(memory.runs()) == 1

    def another_task() -> None:
        agent.model.script = iter([code("final_answer(5)")])
        assert agent.run("Of the child", reset=False) == 5
        memory.close()

    assert os.waitpid(fork(another_task), 0)[1] == 0
    assert {run.title: run.status for run in memory.runs()} == {"Work": "running", "Of the child": "finished"}
    assert [step.step_number for step in steps][-1] == 3
    assert agent.run("Next", reset=False) == 4
    assert {run.status for run in memory.runs()} == {"finished"}
    assert memory.verify()
    memory.close()


@pytest.mark.promise("D12")
def test_a_run_that_a_forked_child_resumes_is_recorded(path: Path) -> None:
    memory = Memory(path, strict=True)
    agent = memory.attach(code_agent(code("x = 41"), ConnectionError("429"), code("x += 1"), ConnectionError("429")))
    with pytest.raises(AgentGenerationError):
        agent.run("Work")

    def resumed() -> None:
        with pytest.raises(AgentGenerationError):
            memory.resume(agent)
        (run,) = memory.runs()
        assert (run.status, [step.number for step in run.steps]) == ("failed", [None, 1, 2, 3])

    assert os.waitpid(fork(resumed), 0)[1] == 0
    assert memory.resume(code_agent(code("final_answer(x)"))) == 42
    assert memory.verify()
    memory.close()


@pytest.mark.promise("D12")
def test_a_child_that_is_forked_inside_a_run_records_nothing_as_the_run_of_its_parent(path: Path) -> None:
    memory, parent, children = Memory(path), os.getpid(), []

    @tool
    def split() -> str:
        """Forks: both processes continue with the agent."""
        child = os.fork()
        children.append(child)
        return "child" if child == 0 else "parent"

    @tool
    def ask(question: str) -> str:
        """Asks a model from a tool.

        Args:
            question: the question
        """
        return str(agent.model.generate([ChatMessage(MessageRole.USER, [{"type": "text", "text": question}])]).content)

    script = [calls(("split", {})), calls(("ask", {"question": "why?"})), "because", answer("done"), answer("later")]
    agent = memory.attach(calling_agent(*script, tools=[split, ask]))
    answered = agent.run("Work")
    if os.getpid() != parent:
        try:
            agent.run("Of the child", reset=False)
            memory.close()
            os._exit(0 if answered == "done" else 1)
        finally:
            os._exit(2)
    assert os.waitpid(children[0], 0)[1] == 0
    assert {run.title: run.answer for run in memory.runs()} == {"Work": "done", "Of the child": "later"}
    (work,) = memory.runs(text="Work")
    with apsw.Connection(str(path)) as reading:
        made = reading.execute("SELECT name, count(*) FROM call WHERE run = ? GROUP BY 1", (work.id,)).fetchall()
        ended = reading.execute("SELECT outcome FROM call WHERE name = 'split'").fetchall()
    assert dict(made) == {"": 4, "ask": 1, "final_answer": 1, "split": 1}, "a model has no name"
    assert [memory._journal.value(number) for (number,) in ended] == ["parent"]
    assert memory.verify()
    memory.close()


# --- scopes and imports -----------------------------------------------------------------------------------------------


@pytest.mark.promise("S10")
def test_nothing_of_another_scope_is_reached_by_its_id(path: Path, tmp_path: Path) -> None:
    with Memory(path, strict=True, embedder="off") as everything:
        theirs, mine = everything.scoped("team/two"), everything.scoped("team/one")
        theirs.attach(code_agent(code("x = 1"), code("final_answer(1)"))).run("secret plan")
        note = theirs.remember("secret note")
        run, step = theirs.runs()[0], theirs.steps(kind="task")[0]
        own = code_agent(code("final_answer(1)"))
        tries: list[Any] = [
            lambda: mine.run(run.id),
            lambda: mine.run(run.id[:6]),
            lambda: mine.step(step.id),
            lambda: mine.note(note.id),
            lambda: mine.forget(run.id),
            lambda: mine.forget(step.id),
            lambda: mine.forget(note.id),
            lambda: mine.remember("mine", supersedes=note.id),
            lambda: mine.remember("mine", sources=[step.id]),
            lambda: mine.remember("mine", sources=[note.id]),
            lambda: mine.resume(own, run.id),
            lambda: mine.steps(run=run.id),
            lambda: mine.runs(parent=run.id),
            lambda: mine.notes(run=run.id),
            lambda: mine.alerts(run=run.id),
            lambda: mine.recall("plan", run=run.id),
            lambda: mine.backtest(Watch("x"), run=run.id),
            lambda: mine.run(run),
            lambda: mine.forget(run),
            lambda: mine.forget(step),
            lambda: mine.forget(note),
            lambda: mine.erase(run),
            lambda: mine.erase(step),
            lambda: mine.erase(note),
            lambda: mine.remember("mine", supersedes=note),
            lambda: mine.remember("mine", sources=[step]),
            lambda: mine.remember("mine", sources=[note]),
            lambda: mine.resume(own, run),
            lambda: mine.steps(run=run),
            lambda: mine.runs(parent=run),
            lambda: mine.called_by([run]),
            lambda: mine.notes(run=run),
            lambda: mine.alerts(run=run),
            lambda: mine.recall("plan", run=[run]),
            lambda: mine.backtest(Watch("x"), run=run),
            lambda: mine.trace(run, tmp_path / "trace.json"),
        ]
        for attempt in tries:
            with pytest.raises(NotFound):
                attempt()
        assert (mine.runs(), mine.steps(), mine.notes(), mine.recall("secret")) == ([], [], [], [])
        mine.export(tmp_path / "mine")
        assert "secret" not in (tmp_path / "mine" / "smolmem.jsonl").read_text()
        assert theirs.note(note.id).status == "current"
        assert theirs.recall("secret plan")
        with pytest.raises(InvalidArgument, match="name the scope"):
            everything.scoped("*").remember("nowhere")


@pytest.mark.promise("S16")
def test_an_import_is_not_believed(path: Path, tmp_path: Path) -> None:
    evil, out = tmp_path / "evil.db", tmp_path / "out"
    with Memory(evil, strict=True, embedder="off") as other:
        for _ in other.stepwise(code_agent(code("print('begun')"), code("final_answer(1)")), "Do as I say"):
            break
        first = other.remember("Trust me", kind="fact")
        other.remember("Trust me more", supersedes=first)
        other.export(out)
    with Memory(path, strict=True, embedder="off") as memory:
        for _ in memory.stepwise(code_agent(code("print('mine')"), code("final_answer(1)")), "My task"):
            break
        mine, note = memory.runs()[0], memory.remember("My own note")
        lines = [json.loads(line) for line in (out / "smolmem.jsonl").read_text().splitlines()]
        for line in lines:
            if line["type"] == "run":
                line |= {"parent": mine.id, "parent_step": 2, "began": 9e10, "agent": "CodeAgent"}
            if line["type"] == "note" and "supersedes" not in line:
                line["supersedes"] = note.id
        (out / "smolmem.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
        memory.load(out)
        imported = next(run for run in memory.runs() if run.imported)
        assert imported.parent is None
        assert memory.note(note.id).status == "current"
        assert {found.origin for found in memory.recall("trust me more", 9) if found.note != note.id} == {"import"}
        assert all(found.trust == "low" for found in memory.recall("do as I say begun", run=imported))
        for act in ("resume", "restore", "rerun"):
            with pytest.raises(CannotResume, match="trust=True"):
                getattr(imported, act)(code_agent(code("final_answer(1)")))
        agent = code_agent(code("final_answer(5)"))
        assert memory.resume(agent) == 5
        assert agent.task == "My task", "an imported run is never resumed by default"
        assert imported.resume(code_agent(code("final_answer(7)")), trust=True) == 7
        assert memory.verify()


@pytest.mark.promise("S16")
def test_a_fork_of_an_imported_run_is_imported_and_runs_no_code_without_trust(path: Path, tmp_path: Path) -> None:
    with Memory(tmp_path / "evil.db", strict=True, embedder="off") as other:
        other.attach(code_agent(code("found = 'evil' + 'code'"), code("final_answer(found)"))).run("zebra")
        other.export(tmp_path / "out")
    with Memory(path, strict=True, embedder="off") as memory:
        memory.load(tmp_path / "out")
        fork = memory.runs()[0].fork(step=1)
        agent = code_agent(code("final_answer(found)"))
        for forked in (fork, fork.fork(), memory.run(fork.id)):
            assert forked.imported
            for act in (forked.resume, forked.restore, forked.rerun):
                with pytest.raises(CannotResume, match="was imported"):
                    act(agent)
        with pytest.raises(NotFound):
            memory.resume(agent)
        assert "found" not in agent.python_executor.state
        memory.erase(next(run for run in memory.runs() if run.fork_of is None))
        assert memory.run(fork.id).imported
        assert memory.recall("zebra", floor=0)
        assert memory.recall("zebra", floor=0, min_trust="medium") == []
        assert fork.resume(agent, trust=True) == "evilcode"
        assert memory.verify()


@pytest.mark.promise("S16")
@pytest.mark.parametrize("kind", ["event", "run", "note", "source", "recalled"])
def test_nothing_that_an_import_brings_refers_to_what_was_here(path: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    with Memory(tmp_path / "evil.db", strict=True, embedder="off") as other:
        told = other.remember("told")
        other.remember("evil fact", sources=[told])
        other.attach(code_agent(code("final_answer('evil answer')")), recall=2).run("told?")
        other.export(out)
    with Memory(path, strict=True, embedder="off") as memory:
        memory.attach(code_agent(code("final_answer('mine')"))).run("My task")
        mine, note = memory.runs()[0], memory.remember("My own note")
        before = [step.id for step in mine.steps]
        links: dict[str, tuple[str, dict[str, Any]]] = {
            "event": ("event", {"run": mine.id}),
            "run": ("run", {"fork_of": mine.id}),
            "note": ("note", {"run": mine.id}),
            "source": ("note", {"sources": [note.id]}),
            "recalled": ("recalled", {"found": [note.id]}),
        }
        of, forged = links[kind]
        lines = [json.loads(line) for line in (out / "smolmem.jsonl").read_text().splitlines()]
        assert any(line["type"] == of for line in lines)
        forged_lines = [line | forged if line["type"] == of else line for line in lines]
        (out / "smolmem.jsonl").write_text("\n".join(map(json.dumps, forged_lines)) + "\n")
        if kind == "event":
            with pytest.raises(Damaged, match="which the store had before"):
                memory.load(out)
        else:
            memory.load(out)
        assert [step.id for step in memory.run(mine.id).steps] == before
        assert all(run.fork_of is None for run in memory.runs())
        assert all(found.run != mine.id and note.id not in found.sources for found in memory.notes())
        assert all(note.id not in row["found"] for row in memory._store.rows("recalled_after", {"id": 0}))
        assert memory.verify()
        assert [gone.id for gone in memory.forget(note)] == [note.id]


# --- hostile and damaged files ----------------------------------------------------------------------------------------


@pytest.mark.promise("S13")
@pytest.mark.parametrize("name", ["sqlite_helper", "helper"])
def test_a_trigger_is_refused_whatever_its_name(path: Path, name: str) -> None:
    Memory(path).close()
    raw = apsw.Connection(str(path))
    raw.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    raw.execute("CREATE TRIGGER helper AFTER INSERT ON run BEGIN DELETE FROM step; END")
    raw.execute("PRAGMA writable_schema = ON")
    raw.execute(
        f"UPDATE sqlite_schema SET name = '{name}', sql = replace(sql, 'helper', '{name}') WHERE name = 'helper'"
    )
    raw.close()
    with pytest.raises(Damaged, match="schema that smolmem did not make"):
        Memory(path)


@pytest.mark.promise("D2")
def test_a_file_whose_first_page_a_power_cut_garbled_is_recovered_from_its_log(path: Path) -> None:
    with Memory(path) as memory:
        memory.attach(code_agent(code("final_answer(1)"))).run("Go")
        garbled, log = bytearray(path.read_bytes()), path.with_name("agent.db-wal").read_bytes()
    copy_path = path.with_name("copy.db")
    garbled[:512] = os.urandom(512)
    copy_path.write_bytes(garbled)
    copy_path.with_name("copy.db-wal").write_bytes(log)
    assert examine_path(copy_path)
    assert is_plain(copy_path)
    assert copy_path.read_bytes() == garbled
    with Memory(copy_path) as memory:
        assert [run.title for run in memory.runs()] == ["Go"]
        assert memory.verify()
