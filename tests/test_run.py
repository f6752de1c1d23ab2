"""Stored runs come back to life: stepwise, restored, forked, edited, replayed, rerun."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

import PIL.Image
import pytest
from rich.console import Console
from scripted import answer, calling_agent, calls, code, code_agent
from smolagents import ActionStep
from smolagents.memory import PlanningStep

from smolmem import Memory, stepwise
from smolmem.core.errors import CannotResume, InvalidArgument, NotFound


def done(memory: Memory, *script: Any, **options: Any) -> Any:
    agent = memory.attach(code_agent(*script, **options))
    agent.run("Work")
    memory.detach(agent)
    return memory.runs()[0]


COUNT = [code("n = 1\nprint(n)"), code("n += 1\nprint(n)"), code("n += 1\nprint(n)"), code("final_answer(n)")]


def test_stepwise_needs_no_store_and_gives_every_step_once() -> None:
    agent = code_agent("plan", code("x = 1"), code("1 / 0"), code("final_answer(x)"), planning_interval=9)
    going = stepwise(agent, "Go")
    steps = list(going)
    assert [type(step).__name__ for step in steps] == ["PlanningStep", "ActionStep", "ActionStep", "ActionStep"]
    assert steps == agent.memory.steps[1:]
    assert steps[2].error is not None
    assert going.answer == 1


def test_stepwise_shows_the_last_words_of_a_run_that_has_used_up_its_steps() -> None:
    going = stepwise(code_agent(code("x = 1"), "that is all", max_steps=1), "Go")
    steps = list(going)
    assert [step.step_number for step in steps] == [1, 2]
    assert steps[1].action_output == going.answer == "that is all"


def test_stepwise_lets_the_caller_change_the_memory_between_steps(memory: Memory) -> None:
    agent = code_agent(code("print('secret')"), code("final_answer(1)"))
    for step in memory.stepwise(agent, "Go"):
        if step.step_number == 1:
            step.observations = "[redacted]"
    assert "secret" not in str(agent.model.prompts[1][-1])
    assert memory.runs()[0].steps[1].text.endswith("[redacted]")


def test_stepwise_stops_and_goes_on_with_another_agent_object(memory: Memory) -> None:
    going = memory.stepwise(code_agent(*COUNT), "Count")
    assert next(going).step_number == 1
    assert next(going).step_number == 2
    going.close()
    assert memory.runs()[0].status == "interrupted"
    later = memory.stepwise(code_agent(*COUNT[2:]))
    assert [step.step_number for step in later] == [3, 4]
    assert later.answer == 3
    assert memory.runs()[0].answer == 3


def test_restore_brings_steps_and_variables_into_another_agent(memory: Memory) -> None:
    run = done(memory, *COUNT)
    agent = code_agent(code("final_answer(n * 100)"), name="other", description="d")
    assert str(run.restore(agent, step=2)) == "variables: from the snapshot"
    assert [step.step_number for step in agent.memory.steps[1:]] == [1, 2]
    assert agent.run("Go on", reset=False) == 200
    assert "print(n)" in str(agent.model.prompts[0])


def test_restore_into_another_kind_of_agent_says_what_it_lacks(memory: Memory) -> None:
    run = done(memory, *COUNT)
    agent = calling_agent(answer("ok"))
    restored = run.restore(agent)
    assert (restored.missing, "no interpreter" in restored.by) == (["n"], True)
    assert agent.run("Go on", reset=False) == "ok"
    assert "print(n)" in str(agent.model.prompts[0])


def test_a_fork_shares_the_past_and_goes_its_own_way(memory: Memory) -> None:
    run = done(memory, *COUNT)
    before = memory.stats()
    fork = run.fork(step=2)
    after = memory.stats()
    assert (after.contents, after.steps, after.events) == (before.contents, before.steps, before.events)
    assert (fork.fork_of, fork.status, fork.title) == (run.id, "interrupted", "Work")
    assert [step.number for step in fork.steps] == [None, 1, 2]
    agent = code_agent(code("n = n * 50\nprint(n)"), code("final_answer(n)"))
    assert memory.resume(agent, fork.id) == 100
    fork = memory.run(fork.id)
    assert [step.number for step in fork.steps] == [None, 1, 2, 3, 4]
    assert [step.number for step in memory.run(run.id).steps] == [None, 1, 2, 3, 4]
    assert memory.run(run.id).answer == 3
    parted = run.diff(fork)
    assert (parted.common, len(parted.left), len(parted.right)) == (3, 2, 2)
    again = fork.fork(step=3)
    assert memory.resume(code_agent(code("final_answer(n + 1)")), again.id) == 101
    assert memory.verify()


def test_a_fork_of_a_step_that_does_not_exist_is_refused(memory: Memory) -> None:
    run = done(memory, *COUNT)
    with pytest.raises(NotFound, match="has no step 9: it has 4 steps"):
        run.fork(step=9)


def test_two_runs_of_the_same_doing_do_not_differ(memory: Memory) -> None:
    first, second = done(memory, *COUNT), done(memory, *COUNT)
    assert not first.diff(second)


def test_an_edit_is_a_revision_and_the_original_stays(memory: Memory) -> None:
    run = done(memory, *COUNT)
    step = run.steps[1]
    sent = step.to_smolagents().model_input_messages
    edited = step.edit(observations="Execution logs:\n1 (checked)\nLast output from code snippet:\nNone")
    assert edited.revision == 1
    assert edited.to_smolagents().model_input_messages == sent
    memory.step(step.id).edit(error=None)
    versions = [revision.to_smolagents().observations for revision in step.history()]
    assert ["checked" in version for version in versions] == [False, True]
    assert "checked" in memory.run(run.id).steps[1].text
    with pytest.raises(InvalidArgument, match=r"^action steps have no colour: the fields are step_number"):
        step.edit(colour="red")
    assert memory.verify()


def test_a_run_can_be_seen_as_of_any_event(memory: Memory) -> None:
    run = done(memory, *COUNT)
    run.steps[1].edit(observations="edited")
    events = run.events()
    assert [event.act for event in events] == ["insert"] * 6 + ["revise"]
    lengths = [len(run.as_of(event.id)) for event in events]
    assert lengths == [0, 1, 2, 3, 4, 5, 5]
    assert run.as_of(events[-1].id)[1].observations == "edited"
    assert run.as_of(events[-2].id)[1].observations != "edited"


def test_an_edit_of_a_forks_past_is_the_forks_alone(memory: Memory) -> None:
    run = done(memory, *COUNT)
    fork = run.fork(step=2)
    edited = fork.steps[1].edit(observations="a better past")
    assert "a better past" in edited.text
    assert "a better past" in memory.run(fork.id).steps[1].text
    assert "a better past" not in memory.run(run.id).steps[1].text
    assert len(memory.run(fork.id).steps[1].history()) == 2
    assert len(memory.run(run.id).steps[1].history()) == 1
    agent = code_agent(code("final_answer('ok')"))
    assert memory.resume(agent, fork.id) == "ok"
    assert "a better past" in str(agent.model.prompts[0])
    assert memory.verify()


def test_a_living_run_is_not_edited_behind_its_back(memory: Memory) -> None:
    going = memory.stepwise(code_agent(*COUNT), "Count")
    next(going)
    with pytest.raises(CannotResume, match="is running"):
        memory.runs()[0].steps[1].edit(observations="no")
    going.close()


@pytest.mark.promise("D11")
def test_replay_prints_the_whole_story_and_runs_nothing(memory: Memory) -> None:
    agent = memory.attach(
        code_agent(
            "the plan", code("print('\\x1b[31mred')"), code("1 / 0"), code("final_answer('end')"), planning_interval=9
        )
    )
    agent.run("Tell a story")
    memory.runs()[0].replay(console=Console(file=io.StringIO()))  # loads what printing needs
    out = io.StringIO()
    heard: list[str] = []
    listening = True
    sys.addaudithook(lambda event, _: heard.append(event) if listening else None)
    memory.run(memory.runs()[0].id[:8]).replay(detailed=True, prices=(1.0, 2.0), console=Console(file=out, width=100))
    listening = False
    story = out.getvalue()
    for told in (
        "Tell a story",
        "the plan",
        "1 / 0",
        "ZeroDivisionError",
        "final_answer",
        "answer: end",
        "Sent to the model",
        "10 tokens in",
    ):
        assert told in story
    assert "\x1b[31m" not in story
    assert not [event for event in heard if event in ("exec", "os.system", "subprocess.Popen", "socket.connect")]


def test_a_replay_ends_with_an_answer_only_if_the_run_gave_one(memory: Memory) -> None:
    for _ in memory.stepwise(code_agent(code("x = 1")), "Go"):
        break
    run = memory.runs()[0]
    forked, out = run.fork(step=1), io.StringIO()
    for each in (run, forked):
        each.replay(console=Console(file=out, width=60))
    assert "answer" not in out.getvalue()
    ends = [line.strip("─ \n") for line in out.getvalue().splitlines() if line.strip("─ ") in ("interrupted", "forked")]
    assert ends == ["interrupted", "forked"]


def test_replay_shows_pictures_in_the_terminal(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("final_answer(1)")))
    agent.run("Look", images=[PIL.Image.new("RGBA", (40, 20), (255, 0, 0, 255))])
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system="truecolor")
    memory.runs()[0].replay(console=console)
    assert "▀" * 2 in re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert "38;2;255;0;0" in out.getvalue()


def test_rerun_with_the_same_answers_goes_the_same_way_and_calls_no_tool(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [calls(("weather", {"city": "Oslo"})), calls(("weather", {"city": "nowhere"})), answer("mild")]
    memory.attach(calling_agent(*script)).run("Weather?")
    run = memory.runs()[0]
    agent = calling_agent(*script)
    monkeypatch.setattr(agent.tools["weather"], "forward", lambda city: pytest.fail("the tool was called"))
    again = run.rerun(agent)
    assert again
    assert again.answer == "mild"


def test_rerun_names_the_first_step_that_goes_another_way(memory: Memory) -> None:
    memory.attach(calling_agent(calls(("weather", {"city": "Oslo"})), answer("mild"))).run("Weather?")
    run = memory.runs()[0]
    other = run.rerun(calling_agent(calls(("weather", {"city": "Oslo"})), calls(("weather", {"city": "Rome"}))))
    assert (bool(other), other.diverged) == (False, 2)
    assert "Rome" in other.reason
    memory.attach(code_agent(code("final_answer(1)"))).run("Count")
    assert memory.runs()[0].rerun(code_agent(code("final_answer(2)"))).reason == "its code differs"
    changed = run.rerun(calling_agent(calls(("weather", {"city": "Oslo"})), answer("cold")))
    assert (changed.diverged, "tool calls" in changed.reason) == (2, True)
    code_run = done(memory, *COUNT)
    same = code_run.rerun(code_agent(*COUNT))
    assert (bool(same), same.answer) == (True, 3)


def test_every_step_class_is_handed_over_as_itself(memory: Memory) -> None:
    agent = code_agent("plan", code("final_answer(1)"), planning_interval=1)
    assert [isinstance(step, (ActionStep, PlanningStep)) for step in memory.stepwise(agent, "Go")] == [True, True]


def test_a_fork_of_a_fork_may_go_back_before_the_first(memory: Memory) -> None:
    run = done(memory, *COUNT)
    fork = run.fork(step=3)
    assert [step.number for step in fork.fork(step=1).steps] == [None, 1]
    memory.resume(code_agent(code("final_answer(n)")), fork.id)
    assert [step.number for step in fork.fork(step=3).steps] == [None, 1, 2, 3]
    agent = code_agent(code("final_answer(n)"))
    fork.restore(agent, step=1)
    assert agent.run("Go on", reset=False) == 1
    memory.resume(code_agent(code("final_answer(n)")), run.fork(step=2).fork(step=1).id)
    assert memory.verify()


def test_a_run_that_was_cut_inside_a_step_is_not_forked_at_its_end(memory: Memory) -> None:
    agent = calling_agent(calls(("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})))
    going = memory.stepwise(agent, "Go")
    agent.step_callbacks.register(ActionStep, lambda step: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        next(going)
    with pytest.raises(CannotResume, match="was interrupted inside a step that had called tools"):
        memory.runs()[0].fork()


def test_rerun_refuses_an_attached_agent_and_knows_the_arguments_of_the_run(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("final_answer(sum(numbers))")))
    assert agent.run("Add", additional_args={"numbers": [1, 2]}) == 3
    run = memory.runs()[0].id
    with pytest.raises(InvalidArgument, match="not attached"):
        memory.run(run).rerun(agent)
    again = memory.run(run).rerun(code_agent(code("final_answer(sum(numbers))")))
    assert (bool(again), again.answer) == (True, 3)


def test_a_stream_that_nobody_begins_can_still_be_resumed(memory: Memory) -> None:
    memory.stepwise(code_agent(*COUNT), "Count").close()
    assert memory.runs()[0].status == "interrupted"
    memory.stepwise(code_agent(*COUNT)).close()
    assert memory.resume(code_agent(*COUNT)) == 3


def test_a_detached_agent_needs_the_file_no_more(memory: Memory) -> None:
    agent = memory.attach(code_agent(*COUNT, code("final_answer(0)")))
    agent.run("Count")
    sent = list(agent.model.prompts)
    memory.close()
    assert [step.model_input_messages for step in agent.memory.steps[1:]] == sent
    assert len(agent.memory.get_full_steps()) == 5
    assert agent.run("More", reset=False, return_full_result=True).output == 0


def test_messages_about_wrong_arguments_name_what_is_expected(memory: Memory) -> None:
    with pytest.raises(InvalidArgument, match=r"^a smolagents agent is needed, such as a CodeAgent, not NoneType"):
        memory.resume(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"^a store is named by a path such as 'agent.db' or a URL, not 5"):
        Memory(5)  # type: ignore[arg-type]
    injected = memory.inject(code_agent(*COUNT), "The shop is closed on Sundays.", title="hours")
    assert repr(injected) == "Injection('hours', 'The shop is closed on Sundays.')"


def test_a_printed_step_begins_with_the_reference_that_the_memory_takes(memory: Memory) -> None:
    memory.attach(code_agent(code("print(1)"), code("final_answer(2)"))).run("Count")
    step = memory.runs()[0].steps[1]
    assert repr(step).startswith(f"Step('{step.run[:8]}/1', action, ")
    assert memory.step(repr(step).split("'")[1]) == step
