"""A prompt of an attached agent is the one that smolagents would make, whoever edits steps or messages."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
import smolagents
from scripted import Scripted, answer, calling_agent, calls, code_agent
from smolagents import ActionStep, PlanningStep, TaskStep
from smolagents.memory import ToolCall
from smolagents.models import ChatMessage, MessageRole
from smolagents.utils import AgentError

from smolmem import Memory
from smolmem.agents.prompting.step_messages import reads_known_fields


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory(tmp_path / "agent.db") as opened:
        yield opened


def as_smolagents_does(agent: Any) -> list[ChatMessage]:
    steps = (agent.memory.system_prompt, *agent.memory.steps)
    return [message for step in steps for message in step.to_messages()]


def words(messages: list[ChatMessage]) -> str:
    return repr(messages)


def _set_text(step: Any, rng: random.Random) -> None:
    for name in ("observations", "model_output", "task", "plan", "system_prompt"):
        if hasattr(step, name) and rng.random() < 0.5:
            setattr(step, name, f"edited {rng.random()}")


def _edit_call(step: Any, rng: random.Random) -> None:
    for call in getattr(step, "tool_calls", None) or ():
        if rng.random() < 0.3:
            call.name = f"tool_{rng.random()}"
        elif isinstance(call.arguments, dict):
            call.arguments["deep"] = rng.choice([1, 1.0, True, -0.0, 0.0, [1, {"in": rng.random()}], (1,)])


def _edit_calls(step: Any, rng: random.Random) -> None:
    if isinstance(step, ActionStep):
        call = ToolCall(name="added", arguments={"number": rng.random()}, id="more")
        step.tool_calls = [*(step.tool_calls or ()), call]


def _edit_error(step: Any, rng: random.Random) -> None:
    if isinstance(step, ActionStep) and isinstance(step.error, AgentError):
        step.error.args = (f"another text {rng.random()}",)
    elif isinstance(step, ActionStep):
        step.error = AgentError("it failed", smolagents.AgentLogger(level=-1))


def _edit_images(step: Any, rng: random.Random) -> None:
    name = {ActionStep: "observations_images", TaskStep: "task_images"}.get(
        getattr(type(step), "_original_class", None)
    )
    if name is None:
        return
    if images := getattr(step, name):
        images[0] = PIL.Image.new("RGB", (2, 2), rng.randrange(255))
    else:
        setattr(step, name, [PIL.Image.new("RGB", (1, 1))])


def _change_messages(messages: list[ChatMessage], rng: random.Random) -> None:
    message = rng.choice(messages)
    if rng.random() < 0.5 and isinstance(message.content, list):
        message.content[0]["text"] = "written by the model's class"
    elif rng.random() < 0.5:
        message.content = "all of it"
    else:
        message.role = MessageRole.SYSTEM


EDITS: list[Callable[[Any, random.Random], None]] = [_set_text, _edit_call, _edit_calls, _edit_error, _edit_images]


class ChangesWhatItIsSent(Scripted):
    """A model whose class edits the messages that it is given, and keeps how they were."""

    def __init__(self, rng: random.Random, *script: Any) -> None:
        super().__init__(*script)
        self.rng, self.seen, self.wanted = rng, list[str](), list[str]()
        self.agent: Any = None

    def generate(self, messages: list[ChatMessage], **kwargs: Any) -> ChatMessage:
        self.seen.append(words(messages))
        self.wanted.append(words(as_smolagents_does(self.agent)))
        _change_messages(messages, self.rng)
        return super().generate(messages, **kwargs)


@pytest.mark.parametrize("seed", range(12))
def test_every_prompt_is_the_one_that_smolagents_would_make(memory: Memory, seed: int) -> None:
    rng = random.Random(seed)

    def edit(step: Any, agent: Any) -> None:
        for _ in range(rng.randrange(3)):
            rng.choice(EDITS)(rng.choice([agent.memory.system_prompt, *agent.memory.steps]), rng)

    model = ChangesWhatItIsSent(rng, *(calls(("missing", {"number": i})) for i in range(14)), answer("done"))
    agent = calling_agent(max_steps=20)
    agent.model = model
    model.agent = agent
    agent.step_callbacks.register(ActionStep, edit)
    memory.attach(agent).run("look at everything")
    assert len(model.seen) == 15
    assert model.seen == model.wanted


def test_a_step_whose_class_makes_its_messages_itself_is_asked_for_each_prompt(memory: Memory) -> None:
    class Counts(TaskStep):
        def to_messages(self, summary_mode: bool = False) -> list[ChatMessage]:
            counted.append(len(counted))
            return [ChatMessage(MessageRole.USER, [{"type": "text", "text": f"asked {len(counted)} times"}])]

    counted = list[int]()
    agent = memory.attach(code_agent("<code>\nx = 1\n</code>", "<code>\nfinal_answer(x)\n</code>"))
    agent.memory.steps.append(Counts("count"))
    agent.run("go", reset=False)
    sent = [next(str(m.content) for m in prompt if "asked" in str(m.content)) for prompt in agent.model.prompts]
    assert len(set(sent)) == 2


def test_a_replaced_function_of_smolagents_makes_the_messages(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = memory.attach(code_agent("<code>\nx = 1\n</code>", "<code>\nfinal_answer(x)\n</code>"))
    original = ActionStep.to_messages

    def marked(self: ActionStep, summary_mode: bool = False) -> list[ChatMessage]:
        return [*original(self, summary_mode), ChatMessage(MessageRole.USER, [{"type": "text", "text": "marked"}])]

    agent.run("go")
    monkeypatch.setattr(ActionStep, "to_messages", marked)
    assert words(agent.write_memory_to_messages()).count("marked") == 2


def test_an_argument_that_is_an_object_is_rendered_anew(memory: Memory) -> None:
    class Total:
        def __init__(self) -> None:
            self.amount = 1

    total = Total()
    agent = memory.attach(code_agent("<code>\nfinal_answer(1)\n</code>"))
    agent.run("go")
    agent.memory.steps[-1].tool_calls[0].arguments = total
    assert "'amount': 1" in words(agent.write_memory_to_messages())
    total.amount = 2
    assert "'amount': 2" in words(agent.write_memory_to_messages())


class Shouted(str):
    """Equal to the text, and shown otherwise."""

    def __format__(self, spec: str) -> str:
        return self.upper()


EQUAL: dict[str, Callable[[Any], None]] = {
    "a number as a truth value": lambda step: setattr(step, "observations", True),
    "a number as a fraction": lambda step: setattr(step, "observations", 1.0),
    "an id": lambda step: setattr(step.tool_calls[0], "id", True),
    "a name": lambda step: setattr(step.tool_calls[0], "name", 1.0),
    "a key of the arguments": lambda step: setattr(step.tool_calls[0], "arguments", {1: 2, "pair": [1, 2]}),
    "the rendering of one call": lambda step: vars(step.tool_calls[0]).update(dict=lambda: {"shown": "otherwise"}),
    "the class of the step": lambda step: setattr(step, "__class__", Brief),
}


class Brief(ActionStep):
    def to_messages(self, summary_mode: bool = False) -> list[ChatMessage]:
        return [ChatMessage(MessageRole.USER, [{"type": "text", "text": f"in brief: {self.observations}"}])]


@pytest.mark.parametrize("edit", EQUAL.values(), ids=EQUAL)
def test_an_equal_value_of_another_class_is_shown_and_recorded_as_it_is(memory: Memory, edit: Any) -> None:
    agent = memory.attach(code_agent("<code>\nfinal_answer(1)\n</code>"))
    agent.run("go")
    step = agent.memory.steps[1]
    step.observations, step.tool_calls = 1, [ToolCall(1, {"1": 2, "pair": [1, 2]}, 1)]
    agent.write_memory_to_messages()
    edit(step)
    assert words(agent.write_memory_to_messages()) == words(as_smolagents_does(agent))
    memory.flush()
    (stored,) = memory.steps(kind="action")
    assert (type(stored.to_smolagents()).__name__, repr(stored.to_smolagents().observations)) == (
        type(step).__name__,
        repr(step.observations),
    )


def test_a_name_of_a_tool_that_shows_itself_otherwise_is_verified(memory: Memory) -> None:
    class Upper(str):
        def __str__(self) -> str:
            return self.upper()

    agent = memory.attach(code_agent("<code>\nfinal_answer(1)\n</code>"))
    agent.run("go")
    agent.memory.steps[1].tool_calls = [ToolCall(Upper("look"), {}, "1")]
    memory.flush()
    assert memory.verify()
    assert memory.steps(tool="look")


def test_a_text_of_another_class_is_shown_as_it_is(memory: Memory) -> None:
    agent = memory.attach(code_agent("<code>\nfinal_answer(1)\n</code>"))
    agent.run("go")
    agent.memory.steps[0].task = Shouted("go")
    assert "GO" in words(agent.write_memory_to_messages())


@pytest.mark.parametrize("views", [[], [lambda parts, chain: parts]], ids=["no view", "a view"])
def test_a_model_that_replaces_values_by_equal_ones_gets_fresh_messages(memory: Memory, views: list[Any]) -> None:
    class Normalizing(Scripted):
        def generate(self, messages: list[ChatMessage], **kwargs: Any) -> ChatMessage:
            seen.append(words(messages))
            for message in messages:
                message.role = message.role.value
                message.content[0]["text"] = Shouted(message.content[0]["text"])
            return super().generate(messages, **kwargs)

    seen = list[str]()
    agent = code_agent()
    agent.model = Normalizing("<code>\nx = 1\n</code>", "<code>\nfinal_answer(x)\n</code>")
    memory.attach(agent, views=views)
    assert agent.run("go") == 1
    assert "MessageRole" in seen[1]
    assert words(agent.write_memory_to_messages()) == words(as_smolagents_does(agent))


@pytest.mark.parametrize("name", ["make_json_serializable", "ChatMessage"])
def test_a_replaced_name_in_smolagents_makes_the_messages(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    agent = memory.attach(code_agent("<code>\nfinal_answer(1)\n</code>"))
    agent.run("go")
    before = words(agent.write_memory_to_messages())
    original: Any = getattr(smolagents.memory, name)
    others = {"make_json_serializable": str.upper, "ChatMessage": lambda **given: [original(**given)]}
    monkeypatch.setattr(smolagents.memory, name, others[name])
    shown = words(agent.write_memory_to_messages())
    assert shown == words(as_smolagents_does(agent)) != before


class Bare:
    """A message without fields."""

    __slots__ = ("content", "role")

    def __init__(self, content: str) -> None:
        self.role, self.content = "user", content


@pytest.mark.parametrize("views", [[], [lambda parts, chain: parts]], ids=["no view", "a view"])
@pytest.mark.parametrize(
    "make",
    [lambda text: {"role": "user", "content": text}, lambda text: {"role": "user", "content": [text]}, Bare],
    ids=["dict", "dict of texts", "object"],
)
def test_messages_of_a_users_own_shape_are_sent_and_recorded(memory: Memory, make: Any, views: list[Any]) -> None:
    class Own(TaskStep):
        def to_messages(self, summary_mode: bool = False) -> list[Any]:
            return [make(f"own: {self.task}")]

    agent = memory.attach(code_agent("<code>\nx = 1\n</code>", "<code>\nfinal_answer(x)\n</code>"), views=views)
    agent.memory.steps.append(Own("first"))
    assert agent.run("go", reset=False) == 1
    assert all(type(prompt[1]) is type(make("")) for prompt in agent.model.prompts)
    assert sorted(step.kind for step in memory.steps()) == ["action", "action", "system_prompt", "task", "task"]
    assert memory.verify()


def test_unchanged_steps_are_not_rendered_again_for_each_prompt(memory: Memory) -> None:
    agent = memory.attach(code_agent("<code>\nx = 1\n</code>", "<code>\nfinal_answer(x)\n</code>"))
    agent.run("go")
    first, second = agent.write_memory_to_messages(), agent.write_memory_to_messages()
    assert first is not second
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_messages_are_made_of_fields_that_are_compared() -> None:
    assert reads_known_fields()


def test_a_field_that_a_later_smolagents_shows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def later(self: PlanningStep, summary_mode: bool = False) -> list[Any]:
        return [self.plan, self.token_usage]

    monkeypatch.setattr(PlanningStep, "to_messages", later)
    assert not reads_known_fields()


def test_a_class_that_is_patched_after_attach_is_used(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    def traced(cls: Any, name: str) -> None:
        original = getattr(cls, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            used.append(name)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(cls, name, call)

    used = list[str]()
    agent = memory.attach(code_agent("<code>\nfinal_answer(1)\n</code>"))
    traced(smolagents.MultiStepAgent, "run")
    traced(smolagents.MultiStepAgent, "write_memory_to_messages")
    traced(smolagents.LocalPythonExecutor, "send_tools")
    traced(Scripted, "generate")
    assert agent.run("go") == 1
    assert used == ["run", "send_tools", "write_memory_to_messages", "generate"]
    assert memory.runs()[0].answer == 1


def _replaced(messages: list[ChatMessage]) -> list[ChatMessage]:
    messages[-1].content[0]["text"] += " (edited)"
    return messages


@pytest.mark.parametrize("views", [[], [lambda parts, chain: parts]], ids=["no view", "a view"])
def test_a_prompt_that_is_edited_on_its_way_is_recorded_as_it_was_sent(memory: Memory, views: list[Any]) -> None:
    agent = memory.attach(code_agent("<code>\nx = 1\n</code>", "<code>\nfinal_answer(x)\n</code>"), views=views)
    render = agent.write_memory_to_messages
    agent.write_memory_to_messages = lambda *args, **kwargs: _replaced(render(*args, **kwargs))
    agent.run("go")
    assert [words(prompt).count("(edited)") for prompt in agent.model.prompts] == [1, 1]
    sent = [step.to_smolagents().model_input_messages for step in memory.runs()[0].steps[1:]]
    assert words(sent) == words(agent.model.prompts)


@pytest.mark.parametrize("views", [[], [lambda parts, chain: parts]], ids=["no view", "a view"])
def test_a_prompt_that_a_callback_renders_and_edits_is_not_recorded(memory: Memory, views: list[Any]) -> None:
    def look(step: Any, agent: Any) -> None:
        _replaced(agent.write_memory_to_messages())

    agent = code_agent("<code>\nx = 1\n</code>", "<code>\nfinal_answer(x)\n</code>", step_callbacks=[look])
    memory.attach(agent, views=views)
    agent.run("go")
    sent = [step.to_smolagents().model_input_messages for step in memory.runs()[0].steps[1:]]
    assert "(edited)" not in words(sent)
    assert [len(prompt) for prompt in sent] == [len(prompt) for prompt in agent.model.prompts]
