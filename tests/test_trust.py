"""Corners that a hostile reviewer finds: nothing lost, nothing done twice, nothing in the user's way."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from scripted import Scripted, answer, calling_agent, calls, code, code_agent
from smolagents import AgentMemory, CodeAgent, tool

from smolmem import Memory
from smolmem.core import codec, faults
from smolmem.core.errors import StoreError
from smolmem.core.wire import Placeholder

PAID: list[int] = []


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
        kinds = [call.kind for call in memory._journal.calls(run.id, 0)]
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
        assert [call.kind for call in memory._journal.calls(run.id, 0)] == ["model", "tool"]
        memory.detach(agent)
        assert agent.model.generate == other.generate


def test_models_and_memories_of_attached_agents_are_copied_and_pickled_as_before(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("final_answer(1)")))
    agent.run("Go")
    shallow, deep = copy.copy(agent.model), copy.deepcopy(agent.model)
    for other in (shallow, deep):
        assert type(other).__name__ == type(agent.model).__name__
        assert other.generate.__self__ is other
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


def test_one_value_that_raises_at_every_look_costs_one_placeholder(memory: Memory) -> None:
    encoded = codec.encode({"good": 1, "bad": Proxy(), "list": [Proxy(), 2]})
    back = codec.decode(encoded.record, encoded.blobs.__getitem__)
    assert back["good"] == 1
    assert back["list"][1] == 2
    assert type(back["bad"]).__mro__[1] is Placeholder
    agent = memory.attach(code_agent(code("final_answer(1)"), code("final_answer(2)")))
    agent.state["request"] = Proxy()
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
        outcomes = [call.outcome() for call in memory._journal.calls(run.id, 0) if call.name == "pay"]
        assert "is unknown" in outcomes[0]
        assert all(call.ended for call in memory._journal.calls(run.id, 0))
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

            def begin(call: Any, arguments: Any, outcome: Any = None, original: Any = original) -> int:
                if call["kind"] == "tool" and outcome is None and call["name"] == "pay":
                    raise StoreError("no space left")
                return int(original(call, arguments, outcome))

            memory._journal.begin_call = begin  # type: ignore[method-assign]
            if strict:
                with pytest.raises(StoreError, match="no space left"):
                    agent.run("Pay")
            else:
                agent.run("Pay")
            made = [call.name for call in memory._journal.calls(memory.runs()[0].id, 0) if call.kind == "tool"]
        assert ([] if strict else [1]) == PAID
        assert ("pay" in made) is not strict  # once the store works again, all of the call is recorded
