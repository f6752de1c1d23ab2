"""The list of steps is computed in one way: live, from disk and by `verify`."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from same import same
from scripted import code, code_agent
from smolagents import ActionStep, TaskStep
from smolagents.memory import SystemPromptStep
from smolagents.monitoring import Timing

from smolmem import Memory
from smolmem.core.encoding import codec
from smolmem.core.timeline import Misplaced, Timeline

TORTURE = bool(os.environ.get("SMOLMEM_TORTURE"))


def timeline(*events: tuple[Any, int, int | None, str | None]) -> Timeline[str]:
    made: Timeline[str] = Timeline()
    for event in events:
        made.apply(*event)
    return made


THREE = [("insert", 1, 0, "a"), ("insert", 2, 1, "b"), ("insert", 3, 2, "c")]


def test_steps_are_inserted_at_their_positions() -> None:
    made = timeline(*THREE, ("insert", 4, 0, "first"), ("insert", 5, 2, "middle"))
    assert made.steps == [4, 1, 5, 2, 3]
    assert made.latest == {1: "a", 2: "b", 3: "c", 4: "first", 5: "middle"}
    assert set(made.revisions.values()) == {0}


def test_a_removed_step_leaves_the_list_and_keeps_its_content() -> None:
    made = timeline(*THREE, ("remove", 2, 1, None))
    assert made.steps == [1, 3]
    assert made.latest[2] == "b"


def test_a_removed_step_is_put_back_where_it_is_wanted_as_it_was() -> None:
    made = timeline(*THREE, ("remove", 1, 0, None), ("insert", 1, 2, None))
    assert made.steps == [2, 3, 1]
    assert (made.latest[1], made.revisions[1]) == ("a", 0)


def test_a_step_is_revised_on_the_list_and_off_it() -> None:
    made = timeline(*THREE, ("revise", 2, None, "b2"), ("remove", 3, 2, None), ("revise", 3, None, "c2"))
    assert made.steps == [1, 2]
    assert made.latest == {1: "a", 2: "b2", 3: "c2"}
    assert made.revisions == {1: 0, 2: 1, 3: 1}


def test_the_system_prompt_stands_before_the_list_and_is_replaced() -> None:
    made = timeline(("insert", 1, None, "you are"), ("insert", 2, 0, "task"), ("insert", 3, None, "you are now"))
    assert (made.system, made.steps) == (3, [2])


def test_a_fork_goes_its_own_way() -> None:
    made = timeline(("insert", 9, None, "system"), *THREE)
    fork = made.fork()
    fork.apply("remove", 3, 2, None)
    fork.apply("revise", 1, None, "other")
    made.apply("insert", 4, 3, "d")
    assert (fork.system, fork.steps, fork.latest[1], fork.revisions[1]) == (9, [1, 2], "other", 1)
    assert (made.steps, made.latest[1], made.revisions[1]) == ([1, 2, 3, 4], "a", 0)


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (("remove", 2, 0, None), "step 2 is removed from position 0, where it does not stand"),
        (("remove", 2, 3, None), "position 3"),
        (("remove", 2, -2, None), "position -2"),
        (("remove", 2, None, None), "position None"),
        (("revise", 2, None, None), "a revision without content"),
        (("insert", 4, None, None), "a system prompt without content"),
        (("insert", 4, 4, "d"), "a step at position 4 of a list of 3"),
        (("insert", 4, -1, "d"), "a step at position -1 of a list of 3"),
        (("insert", 2, 0, None), "on the list already"),
    ],
)
def test_an_event_that_cannot_have_happened_is_refused_and_changes_nothing(event: Any, told: str) -> None:
    made = timeline(*THREE)
    with pytest.raises(Misplaced, match=told):
        made.apply(*event)
    assert (made.steps, made.latest) == ([1, 2, 3], {1: "a", 2: "b", 3: "c"})


def change(steps: list[Any], gone: list[Any], chance: random.Random, number: int) -> None:
    """One of the ways in which a list of steps changes."""
    kind = chance.choice(["append", "insert", "delete", "revise", "put back", "replace", "reverse", "slice"])
    fresh = ActionStep(number, Timing(0.0), observations=f"change {number}")
    position = chance.randrange(len(steps)) if steps else 0
    if kind == "append" or not steps:
        steps.append(fresh)
    elif kind == "insert":
        steps.insert(chance.randrange(len(steps) + 1), fresh)
    elif kind == "delete":
        gone.append(steps.pop(position))
    elif kind == "revise" and isinstance(steps[position], ActionStep):
        steps[position].observations = f"revised by change {number}"
    elif kind == "put back" and gone:
        steps.insert(position, gone.pop(chance.randrange(len(gone))))
    elif kind == "replace":
        gone.append(steps[position])
        steps[position] = fresh
    elif kind == "reverse":
        steps.reverse()
    elif kind == "slice":
        gone.extend(steps[position : position + 2])
        steps[position : position + 2] = [fresh, ActionStep(number, Timing(0.0), observations=f"also {number}")]


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(200 if TORTURE else 4))
def test_random_edits_give_the_same_list_live_and_from_disk_at_every_event(memory: Memory, seed: int) -> None:
    chance = random.Random(seed)
    agent = memory.attach(code_agent())
    agent.memory.steps.append(TaskStep("Edit me"))
    gone: list[Any] = []
    seen: list[tuple[int, list[Any]]] = []
    for number in range(40):
        change(agent.memory.steps, gone, chance, number)
        if chance.random() < 0.2:
            agent.memory.system_prompt = SystemPromptStep(f"You are number {number}.")
        memory.flush()
        copies = [codec.encode(step) for step in agent.memory.steps]
        last = max(event.id for run in memory.runs() for event in run.events())
        seen.append((last, copies))
    run = memory.runs()[0]  # a task that is put on the list again begins another run of the same session
    assert {each.session for each in memory.runs()} == {run.session}
    assert same(run.as_of(last), list(agent.memory.steps))
    for event, copies in seen:
        assert [codec.encode(step).key for step in run.as_of(event)] == [copy.key for copy in copies]
    assert memory.verify()


def test_a_resume_decodes_each_stored_step_once(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 60
    script = [code(f"x = {number}\nprint('step', x)") for number in range(count)]
    going = memory.stepwise(code_agent(*script, max_steps=count + 5), "Count")
    for _ in range(count):
        next(going)
    going.close()
    (run,) = memory.runs()
    assert (run.status, run.step_count) == ("interrupted", count)
    decoded: list[str] = []
    real = codec.decode

    def counted(record: bytes, *rest: Any, **options: Any) -> Any:
        made = real(record, *rest, **options)
        decoded.append(type(made).__name__)
        return made

    monkeypatch.setattr(codec, "decode", counted)
    assert memory.resume(code_agent(code("final_answer(x)"), max_steps=count + 5)) == count - 1
    assert decoded.count("TaskStep") <= 2
    assert count <= decoded.count("ActionStep") <= count + 3
