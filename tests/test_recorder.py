"""An agent is attached, and nothing it does is lost or changed."""

from __future__ import annotations

import copy
import pickle
import time
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from conftest import TORTURE
from same import same
from scripted import Scripted, answer, calling_agent, calls, code, code_agent, weather
from smolagents import ActionStep, AgentMemory, CodeAgent, TaskStep, ToolCallingAgent, tool
from smolagents.memory import FinalAnswerStep, PlanningStep
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import Timing
from smolagents.utils import AgentError, AgentGenerationError

from smolmem import Memory, Run
from smolmem.core.errors import InvalidArgument, NotFound


def recorded(run: Run) -> list[Any]:
    return [step.to_smolagents() for step in run.steps]


def only(memory: Memory, **wanted: Any) -> Run:
    (run,) = memory.runs(**wanted)
    return run


def test_a_code_agents_run_comes_back_step_by_step(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("x = 6 * 7\nprint(x)"), code("1 / 0"), code("final_answer((x, {'a': 1}))")))
    assert agent.run("Multiply") == (42, {"a": 1})
    run = only(memory)
    assert (run.status, run.agent, run.agent_type, run.model) == ("finished", "CodeAgent", "CodeAgent", "scripted-1")
    assert (run.step_count, run.error_count, run.input_tokens, run.output_tokens) == (3, 1, 30, 15)
    assert run.answer == (42, {"a": 1})
    assert run.task == "Multiply"
    assert [step.kind for step in run.steps] == ["task", "action", "action", "action"]
    assert same(recorded(run), list(agent.memory.steps))
    assert memory.verify()


def test_a_tool_calling_agents_answer_is_kept_where_smolagents_keeps_only_its_text(memory: Memory) -> None:
    agent = memory.attach(
        calling_agent(calls(("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})), answer([1, 2]))
    )
    assert agent.run("Weather?") == [1, 2]
    run = only(memory)
    assert run.answer == [1, 2]
    assert run.steps[1].tools == ("weather", "weather")
    assert "sunny in Rome" in run.steps[1].text
    assert same(recorded(run), list(agent.memory.steps))


def test_the_system_prompt_is_recorded_too(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("final_answer(1)")))
    agent.run("Go")
    (system,) = memory.steps(kind="system_prompt")
    assert system.to_smolagents() == agent.memory.system_prompt


def test_planning_steps_are_recorded_with_what_the_model_was_sent(memory: Memory) -> None:
    agent = memory.attach(
        code_agent("the plan", code("x = 1"), "a new plan", code("final_answer(x)"), planning_interval=1)
    )
    agent.run("Plan it")
    sent = agent.model.prompts
    steps = only(memory).steps
    assert [step.kind for step in steps] == ["task", "planning", "action", "planning", "action"]
    assert [step.to_smolagents().model_input_messages for step in steps[1:]] == sent
    assert only(memory).input_tokens == 40


def test_streaming_is_recorded_as_it_goes(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("print(1)"), code("final_answer('done')"), stream_outputs=True))
    seen = []
    for event in agent.run("Stream", stream=True):
        if isinstance(event, ActionStep):
            seen.append(len(only(memory).steps))
        last = event
    assert seen == [2, 3]
    assert isinstance(last, FinalAnswerStep)
    assert (only(memory).status, only(memory).answer) == ("finished", "done")


def test_a_stream_that_its_reader_leaves_is_interrupted(memory: Memory) -> None:
    agent = memory.attach(code_agent(*[code("print(1)")] * 9))
    events = agent.run("Leave early", stream=True)
    for event in events:
        if isinstance(event, ActionStep):
            break
    events.close()
    assert only(memory).status == "interrupted"
    assert len(only(memory).steps) == 2


def test_an_edit_between_streamed_steps_is_on_disk_before_the_model_is_asked_again(memory: Memory) -> None:
    def look(messages: list[ChatMessage]) -> str:
        assert "edited" in only(memory).steps[1].text
        return code("final_answer(1)")

    agent = memory.attach(code_agent(code("print(1)"), look))
    for event in agent.run("Edit", stream=True):
        if isinstance(event, ActionStep) and event.step_number == 1:
            event.observations = "edited"
    sent = only(memory).steps[2].to_smolagents().model_input_messages
    assert sent == agent.model.prompts[1]
    assert sent[-1].content[0]["text"] == "Observation:\nedited"


def test_an_interrupted_run_says_so(memory: Memory) -> None:
    agent = code_agent(code("x = 1"), code("x = 2"))
    agent.step_callbacks.register(ActionStep, lambda step, agent: agent.interrupt())
    memory.attach(agent)
    with pytest.raises(AgentError, match="interrupted"):
        agent.run("Stop me")
    assert only(memory).status == "interrupted"
    assert only(memory).failure is not None


def test_max_steps_keep_their_answer(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("x = 1"), "sorry, out of steps", max_steps=1))
    assert agent.run("Too long") == "sorry, out of steps"
    run = only(memory)
    assert (run.status, run.answer, run.max_steps) == ("max_steps", "sorry, out of steps", 1)
    assert run.steps[-1].error == "AgentMaxStepsError"


def test_the_exception_that_ended_a_run_is_kept(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("x = 1"), ConnectionError("429: slow down")))
    with pytest.raises(AgentGenerationError):
        agent.run("Fail")
    run = only(memory)
    assert run.status == "failed"
    assert run.failure is not None
    assert (run.failure.type, "429: slow down" in run.failure.message) == ("AgentGenerationError", True)
    assert "ConnectionError" in run.failure.traceback
    assert run.answer is None


def test_keyboard_interrupt_is_recorded_and_raised(memory: Memory) -> None:
    agent = memory.attach(code_agent(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        agent.run("Ctrl-C")
    assert only(memory).status == "interrupted"


def test_reset_begins_a_new_session_and_loses_nothing(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("final_answer(1)"), code("final_answer(2)"), code("final_answer(3)")))
    agent.run("one")
    agent.run("two")
    agent.run("three", reset=False)
    three, two, one = memory.runs()
    assert (one.title, two.title, three.title) == ("one", "two", "three")
    assert one.session != two.session == three.session
    assert [len(run.steps) for run in (one, two, three)] == [2, 2, 2]
    assert len(agent.memory.steps) == 4
    assert memory.runs(session=two.session) == [three, two]


def test_full_results_and_replay_show_what_was_dropped_from_ram(memory: Memory) -> None:
    script = [code("print('first')"), code("final_answer('x')")]
    plain = code_agent(*script)
    plain.run("Full")
    agent = memory.attach(code_agent(*script))
    result = agent.run("Full", return_full_result=True)
    assert only(memory).answer == "x"

    def sent(steps: list[dict[str, Any]]) -> list[Any]:
        return [step.get("model_input_messages") for step in steps]

    assert sent(result.steps) == sent(agent.memory.get_full_steps()) == sent(plain.memory.get_full_steps())
    agent.replay(detailed=True)
    assert agent.memory.return_full_code() == plain.memory.return_full_code()


def test_images_are_recorded_once_and_come_back(memory: Memory) -> None:
    picture = PIL.Image.effect_noise((120, 90), 50)
    agent = memory.attach(code_agent(*[code("print(1)")] * 9, code("final_answer(1)")))
    agent.run("Look", images=[picture])
    steps = recorded(only(memory))
    assert all(step.observations_images == [picture] for step in steps[1:])
    assert steps[0].task_images == [picture]
    assert memory.stats().content_bytes < 60_000


def test_the_documented_screenshot_callback_is_seen(memory: Memory) -> None:
    def update_screenshot(memory_step: ActionStep, agent: CodeAgent) -> None:
        for previous in agent.memory.steps:
            if isinstance(previous, ActionStep) and previous.step_number <= memory_step.step_number - 2:
                previous.observations_images = None
        memory_step.observations_images = [PIL.Image.new("RGB", (4, 4), (memory_step.step_number, 0, 0))]

    agent = code_agent(*[code("print(1)")] * 4, code("final_answer(1)"), step_callbacks=[update_screenshot])
    memory.attach(agent).run("Browse")
    run = only(memory)
    assert same(recorded(run), list(agent.memory.steps))
    assert [step.revision for step in run.steps] == [0, 1, 1, 1, 0, 0]
    assert [step.to_smolagents().model_input_messages for step in run.steps[1:]] == agent.model.prompts


def test_in_place_edits_of_lists_are_found(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("print(1)"), code("final_answer(1)")))
    for event in agent.run("Edit", images=[PIL.Image.new("L", (2, 2))], stream=True):
        if isinstance(event, ActionStep) and event.step_number == 1:
            event.observations_images.clear()
    assert recorded(only(memory))[1].observations_images == []


def test_edits_deep_inside_a_step_are_found_by_flush(memory: Memory) -> None:
    agent = memory.attach(calling_agent(calls(("weather", {"city": "Oslo"})), answer(1)))
    agent.run("Deep")
    agent.memory.steps[1].tool_calls[0].arguments["city"] = "Bergen"
    memory.flush()
    assert recorded(only(memory))[1].tool_calls[0].arguments == {"city": "Bergen"}


def test_every_way_to_change_the_list_is_recorded(memory: Memory) -> None:
    agent = memory.attach(code_agent(*[code("print(1)")] * 5, code("final_answer(1)")))
    agent.run("List")
    steps = agent.memory.steps
    note = ActionStep(0, Timing(0.0), observations="note")

    def check() -> None:
        assert memory.verify()
        assert [step.to_smolagents() for step in only(memory, text="List").steps] == list(agent.memory.steps)

    steps.insert(2, note)
    check()
    del steps[1]
    check()
    steps[1:3] = [copy.deepcopy(note), steps[2]]
    check()
    steps.reverse()
    check()
    steps[0] = ActionStep(9, Timing(0.0), observations="set")
    check()
    assert steps.pop().task == "List"
    steps += [copy.deepcopy(note)]
    steps.remove(note)
    steps.extend([ActionStep(8, Timing(0.0)), ActionStep(7, Timing(0.0))])
    steps.sort(key=lambda step: getattr(step, "step_number", -1))
    check()
    agent.memory.steps = [step for step in steps if step.step_number > 1]
    check()
    steps = agent.memory.steps
    steps.clear()
    check()
    assert len(only(memory).removed) > 5


def test_steps_that_change_places_or_stand_on_the_list_twice_are_recorded(memory: Memory) -> None:
    agent = memory.attach(code_agent(*[code("print(1)")] * 4, code("final_answer(1)")))
    agent.run("List")
    steps, first = agent.memory.steps, agent.memory.steps[1]
    steps[1], steps[2] = steps[2], steps[1]
    steps.insert(4, steps.pop(0))
    steps.append(first)
    first.observations = "edited at both places"
    memory.flush()
    assert memory.verify()
    assert recorded(only(memory)) == list(steps)
    steps *= 2
    memory.flush()
    assert recorded(only(memory)) == list(steps)


def test_memory_can_be_handed_from_agent_to_agent(memory: Memory) -> None:
    first = memory.attach(code_agent(code("print('found it')"), code("final_answer(1)"), name="first", description="d"))
    first.run("Search")
    second = memory.attach(code_agent(code("final_answer(2)"), name="second", description="d"))
    second.memory.steps = first.memory.steps
    second.run("Go on", reset=False)
    assert "found it" in str(second.model.prompts[0])
    newest, handed = memory.runs(agent="second")
    assert recorded(handed) == recorded(only(memory, agent="first"))
    assert (newest.session, handed.status) == (handed.session, "finished")
    assert newest.steps[-1].to_smolagents().model_input_messages == second.model.prompts[0]


@pytest.mark.parametrize(
    "agent",
    [
        code_agent(code("print(1)"), code("final_answer(13)")),
        calling_agent(calls(("weather", {"city": "Rome"})), answer(13)),
    ],
    ids=["code", "calls"],
)
def test_the_documented_loop_ends_its_run_with_the_final_answer(memory: Memory, agent: Any) -> None:
    """Otherwise the run is interrupted once the process ends, and `resume` asks the model again."""
    memory.attach(agent)
    if isinstance(agent, CodeAgent):
        agent.python_executor.send_tools({**agent.tools})
    agent.memory.steps.append(TaskStep(task="What is the seventh Fibonacci number?"))
    given, number = None, 1
    while given is None and number <= 10:
        step = ActionStep(step_number=number, timing=Timing(start_time=time.time()), observations_images=[])
        output = agent.step(step)
        given = output.output if output.is_final_answer else None
        agent.memory.steps.append(step)
        assert memory.runs()[0].status == ("running" if given is None else "finished")
        number += 1
    run = memory.runs()[0]
    assert (given, run.answer, run.step_count) == (13, 13, 2)
    assert run.ended is not None
    with pytest.raises(NotFound):
        memory.resume(agent)


def test_steps_put_on_the_list_by_hand_are_a_run_of_their_own(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("final_answer(1)")))
    agent.memory.steps.append(TaskStep(task="Previous monitoring session"))
    agent.memory.steps.append(ActionStep(step_number=0, observations="down for 2 hours", timing=None))
    assert (only(memory).status, len(only(memory).steps)) == ("running", 2)
    agent.run("Now", reset=False)
    now, by_hand = memory.runs()
    assert (by_hand.title, by_hand.status) == ("Previous monitoring session", "finished")
    assert "down for 2 hours" in str(now.steps[1].to_smolagents().model_input_messages)


def test_what_an_agent_did_before_it_was_attached_is_recorded(memory: Memory) -> None:
    agent = code_agent(code("final_answer(1)"), code("final_answer(2)"))
    agent.run("Before")
    memory.attach(agent)
    assert recorded(only(memory)) == list(agent.memory.steps)
    agent.run("After", reset=False)
    assert [run.title for run in memory.runs()] == ["After", "Before"]


def managed(*script: Any, parent: Any = ToolCallingAgent, child_script: Any = ()) -> Any:
    child = code_agent(*child_script, name="helper", description="helps")
    return parent(tools=[], model=Scripted(*script), managed_agents=[child], verbosity_level=0)


@pytest.mark.parametrize(
    ("parent", "script"),
    [
        (ToolCallingAgent, [calls(("helper", {"task": "a"})), calls(("helper", {"task": "b"})), answer("ok")]),
        (CodeAgent, [code("helper(task='a')"), code("helper(task='b')"), code("final_answer('ok')")]),
    ],
)
def test_each_call_of_a_managed_agent_is_a_run_with_its_parent_and_step(
    memory: Memory, parent: Any, script: Any
) -> None:
    agent = memory.attach(
        managed(*script, parent=parent, child_script=[code("final_answer(1)"), code("final_answer(2)")])
    )
    agent.run("Delegate")
    root = only(memory, agent=parent.__name__)
    second, first = memory.runs(parent=root.id)
    assert [(run.agent, run.parent_step) for run in (first, second)] == [("helper", 1), ("helper", 2)]
    assert [run.answer for run in (first, second)] == [1, 2]
    assert all(run.parent == root.id for run in (first, second))
    assert root.parent is None


def test_parallel_calls_of_one_managed_agent_are_two_runs(memory: Memory) -> None:
    both = calls(("helper", {"task": "AAA"}), ("helper", {"task": "BBB"}))
    agent = memory.attach(managed(both, answer("ok"), child_script=[code("final_answer(1)")] * 2))
    agent.run("Twice at once")
    children = memory.runs(agent="helper")
    assert len(children) == 2
    assert {"AAA" in run.title for run in children} == {True, False}
    assert all(run.parent == only(memory, agent="ToolCallingAgent").id for run in children)
    assert all(run.status == "finished" and run.step_count == 1 for run in children)
    assert memory.verify()


def test_a_managed_agent_called_alone_has_no_parent(memory: Memory) -> None:
    agent = memory.attach(managed(answer("ok"), child_script=[code("final_answer(1)")]))
    agent.run("Nothing to delegate")
    agent.managed_agents["helper"].run("Alone")
    assert only(memory, agent="helper").parent is None


def test_detach_gives_the_agent_back_as_it_was(memory: Memory) -> None:
    agent = code_agent(code("print(1)"), code("final_answer(1)"), code("final_answer(2)"))
    held, before = agent.memory, dict(vars(agent))
    memory.attach(agent)
    agent.run("Recorded")
    memory.detach(agent)
    assert agent.memory is held
    assert type(agent.memory) is AgentMemory
    assert type(agent.memory.steps) is list
    assert all(type(step) in (TaskStep, ActionStep) for step in agent.memory.steps)
    assert vars(agent).keys() - {"interrupt_switch"} == before.keys()
    agent.run("Not recorded")
    assert [run.title for run in memory.runs()] == ["Recorded"]


@pytest.mark.parametrize("leave", ["detach", "close"])
def test_a_run_that_is_left_unrecorded_in_its_middle_is_interrupted(memory: Memory, path: Path, leave: str) -> None:
    @tool
    def off() -> str:
        """Ends the recording."""
        memory.detach(agent) if leave == "detach" else memory.close()
        return "off"

    agent = memory.attach(
        calling_agent(calls(("off", {})), calls(("weather", {"city": "Rome"})), answer("done"), tools=[off, weather])
    )
    assert agent.run("Go") == "done"
    with Memory(path) as again:
        run = only(again)
        assert (run.status, len(run.steps)) == ("interrupted", 1)
        assert [call.name for call in again._journal.calls(run.id) if call.kind == "tool"] == ["off"]
        again.erase(run)


@pytest.mark.parametrize("name", [None, 5, b"weather", ""])
def test_a_call_of_a_tool_whose_name_is_no_text_is_the_models_mistake_as_before(memory: Memory, name: Any) -> None:
    agent = memory.attach(calling_agent(calls((name, {})), answer("done")))
    assert agent.run("Go") == "done"
    assert "Unknown tool" in (only(memory).steps[1].text)


def test_attaching_twice_changes_nothing_and_elsewhere_is_refused(memory: Memory, tmp_path: Any) -> None:
    agent = memory.attach(code_agent(code("final_answer(1)")))
    assert memory.attach(agent) is agent
    with Memory(tmp_path / "other.db") as other, pytest.raises(InvalidArgument, match="another Memory"):
        other.attach(agent)
    agent.run("Once")
    assert len(memory.runs()) == 1


def test_a_memory_class_of_ones_own_keeps_its_methods(memory: Memory) -> None:
    class Counting(AgentMemory):
        def count(self) -> int:
            return len(self.steps)

    agent = code_agent(code("final_answer(1)"))
    agent.memory = Counting(agent.system_prompt)
    memory.attach(agent).run("Count")
    assert agent.memory.count() == 2 == len(only(memory).steps)


def test_a_recorded_step_is_what_it_was_to_everybody_else(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("print(1)"), code("final_answer(1)")))
    agent.run("Look at me")
    step = agent.memory.steps[1]
    assert isinstance(step, ActionStep)
    assert type(step).__name__ == "ActionStep"
    assert repr(step).startswith("ActionStep(step_number=1")
    twin = copy.deepcopy(step)
    assert type(twin) is ActionStep
    assert type(twin.model_input_messages) is list
    assert (twin == step, step == twin) == (True, True)
    assert type(pickle.loads(pickle.dumps(copy.copy(agent.memory.steps)))) is list
    twin.observations = "other"
    assert twin != step


def test_a_step_class_that_compares_and_hashes_in_its_own_way_still_does(memory: Memory) -> None:
    class ByText(TaskStep):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, TaskStep) and self.task.lower() == other.task.lower()

        def __hash__(self) -> int:
            return hash(self.task.lower())

    agent, step = memory.attach(code_agent(code("final_answer(1)"))), ByText("Look")
    agent.memory.steps.append(step)
    agent.run("Go", reset=False)
    assert step == TaskStep("LOOK")
    assert len({step, ByText("look")}) == 1


def test_the_messages_of_a_recorded_step_behave_like_the_list_they_replace(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("print(1)"), code("final_answer(1)")))
    agent.run("Messages")
    sent, stored = agent.model.prompts[1], agent.memory.steps[2].model_input_messages
    assert len(stored) == len(sent) == 5
    assert (stored == sent, sent == stored, stored[0] == sent[0], stored[1:] == sent[1:]) == (True,) * 4
    assert [*stored] == [] + stored == stored + [] == sent
    assert stored.copy() == copy.deepcopy(stored) == sent
    assert stored[0].role == MessageRole.SYSTEM


def test_an_agent_that_writes_its_own_prompts_is_recorded_exactly(memory: Memory) -> None:
    class Forgetful(CodeAgent):
        def write_memory_to_messages(self, summary_mode: bool = False) -> list[ChatMessage]:
            messages = super().write_memory_to_messages(summary_mode)
            return [messages[0], *messages[-2:]]

    agent = Forgetful(tools=[], model=Scripted(*[code("print(1)")] * 4, code("final_answer(1)")), verbosity_level=0)
    memory.attach(agent).run("Forget")
    steps = only(memory).steps[1:]
    assert [step.to_smolagents().model_input_messages for step in steps] == agent.model.prompts


def test_objects_that_are_no_steps_are_recorded_too(memory: Memory) -> None:
    agent = memory.attach(code_agent())
    agent.memory.steps.append({"step": 1, "observations": "from a JSON file"})
    (step,) = memory.steps(kind="other")
    assert step.to_smolagents() == {"step": 1, "observations": "from a JSON file"}


@pytest.mark.promise("D11")
def test_two_hundred_stored_runs_give_back_what_the_model_was_sent(memory: Memory) -> None:
    count = 200 if TORTURE else 21  # each length with each interval
    for number in range(count):
        interval = [None, 1, 2][number % 3]
        script = [
            "plan" if interval and i % (interval + 1) == 0 else code(f"print({number}, {i})") for i in range(number % 7)
        ]
        agent = memory.attach(
            code_agent(*script, "last plan", *[code("final_answer(0)")] * 9, planning_interval=interval)
        )
        agent.run(f"Run {number}")
        steps = memory.runs(limit=1)[0].steps
        sent = [step.to_smolagents().model_input_messages for step in steps if step.kind in ("action", "planning")]
        assert sent == agent.model.prompts
        rebuilt = [message for step in steps for message in step.to_smolagents().to_messages()]
        assert rebuilt == agent.write_memory_to_messages()[1:]
        memory.detach(agent)
    assert memory.stats().runs == count


def test_planning_step_is_a_planning_step(memory: Memory) -> None:
    agent = memory.attach(code_agent("plan", code("final_answer(1)"), planning_interval=3))
    agent.run("Plan")
    assert isinstance(only(memory).steps[1].to_smolagents(), PlanningStep)
