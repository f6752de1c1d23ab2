"""Everything of smolagents that is private, undocumented or patched, in this one file.

smolmem needs more than smolagents documents. No other module names any of these things; a test reads the syntax trees.
The texts that smolagents writes are in `core.smolagents_texts`.
`check()` tests the assumptions at the first `attach` of a process and in `smolmem doctor`: where one no longer holds,
one sentence says which feature is off. These are patched, on instances only, and restored by `Patches.close()`:

    agent.run                        to know where a run begins and how it ends
    agent.write_memory_to_messages   to apply views and reminders, and to know which saved messages a prompt consists of
    agent.memory.__class__           so that the list of steps reports every change
    step.__class__                   so that setting a field of a recorded step is noticed (`observed_steps`)
    model.__class__                  so that `generate` and `generate_stream` record an answer before it is acted on
    executor.send_tools              to record the calls of a code agent's tools
    agent.execute_tool_call          to record the calls of a tool-calling agent
"""

from __future__ import annotations

import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial, update_wrapper, wraps
from importlib.metadata import version
from typing import Any, NamedTuple

import PIL.Image
from smolagents import ActionStep, AgentMemory, CodeAgent, MultiStepAgent, agent_types
from smolagents.agents import RunResult, ToolCallingAgent
from smolagents.local_python_executor import BASE_PYTHON_TOOLS, LocalPythonExecutor, evaluate_import
from smolagents.memory import CallbackRegistry, TaskStep
from smolagents.monitoring import Monitor, Timing
from smolagents.utils import AgentMaxStepsError

from smolmem.agents.prompting import step_messages
from smolmem.core.encoding import codec, pictures, placeholders
from smolmem.core.encoding.decoder import Decoder
from smolmem.core.encoding.encoder import Encoder
from smolmem.core.encoding.type_codecs import NotExact
from smolmem.core.encoding.wire import Json
from smolmem.core.injected import Injected

log = logging.getLogger("smolmem")

SMOLAGENTS = version("smolagents")
OLDEST, NEWEST = (1, 24), (1, 26)
"""The releases that smolmem is tested with."""
IMPORTING = evaluate_import.__code__
"""The code that imports a module for an interpreter and copies its attributes (since 1.0)."""

# --- assumptions -----------------------------------------------------------------------------------------------------


class Assumption(NamedTuple):
    """An assumption about smolagents, the feature that needs it, and whether it holds."""

    about: str
    off: str
    holds: Callable[[], bool]


def _takes(function: Any, *names: str) -> bool:
    return set(names) <= set(inspect.signature(function).parameters)


ASSUMPTIONS: dict[str, Assumption] = {
    "memory": Assumption(
        "AgentMemory keeps its steps in a list that reset() replaces",
        "each step is saved when the next prompt is made, not at once",
        lambda: "steps" in vars(AgentMemory("")) and hasattr(AgentMemory, "reset"),
    ),
    "run": Assumption(
        "agent.run() takes task, stream, reset, images and max_steps",
        "runs cannot be resumed",
        lambda: _takes(MultiStepAgent.run, "task", "stream", "reset", "images", "max_steps"),
    ),
    "prompts": Assumption(
        "agent.write_memory_to_messages() renders the memory",
        "views and reminders are not applied",
        lambda: callable(getattr(MultiStepAgent, "write_memory_to_messages", None)),
    ),
    "messages": Assumption(
        "the messages of a step are made from its output, calls, observations, images and error, its task or its plan",
        "the messages of all steps are made anew for each prompt",
        step_messages.reads_known_fields,
    ),
    "callbacks": Assumption(
        "CallbackRegistry keeps its callbacks in lists by class",
        "the first step of a resumed run has the wrong number in callbacks",
        lambda: isinstance(getattr(CallbackRegistry(), "_callbacks", None), dict),
    ),
    "interpreter": Assumption(
        "LocalPythonExecutor has state, static_tools, custom_tools, additional_functions and timeout_seconds",
        "variables are not saved, and calls of a code agent's tools are not in the ledger",
        lambda: (
            {"state", "static_tools", "custom_tools", "additional_functions", "timeout_seconds"}
            <= vars(LocalPythonExecutor([])).keys()
        ),
    ),
    "tool calls": Assumption(
        "ToolCallingAgent.execute_tool_call() takes a tool's name and arguments",
        "calls of a tool-calling agent's tools are not in the ledger",
        lambda: _takes(ToolCallingAgent.execute_tool_call, "tool_name", "arguments"),
    ),
    "monitor": Assumption(
        "agent.monitor counts durations and tokens",
        "the token counts of agent.monitor start at 0 after a resume",
        lambda: (
            {"step_durations", "total_input_token_count", "total_output_token_count"}
            <= vars(Monitor(None, None)).keys()
        ),
    ),
    "final answer": Assumption(
        "agent.provide_final_answer() answers from the memory",
        "a run that was killed after its last step cannot give its last words",
        lambda: _takes(MultiStepAgent.provide_final_answer, "task"),
    ),
    "images": Assumption(
        "AgentImage and AgentAudio keep a path and their content",
        "images and audio of agents come back as placeholders",
        lambda: "_path" in vars(agent_types.AgentImage(PIL.Image.new("L", (1, 1)))),
    ),
}


@cache
def check() -> dict[str, str]:
    """The assumptions that do not hold for the installed smolagents: a sentence for each, logged once."""
    broken: dict[str, str] = {}
    for name, assumption in ASSUMPTIONS.items():
        with suppress(Exception):
            if assumption.holds():
                continue
        text = f"smolagents {SMOLAGENTS} differs: not true that {assumption.about}. {assumption.off.capitalize()}."
        broken[name] = text
        log.warning("smolmem: %s", text)
    return broken


def holds(name: str) -> bool:
    """Whether an assumption holds."""
    return name not in check()


# --- patching --------------------------------------------------------------------------------------------------------


class ClassMethod:
    """The method that the class of an object has when it is called: tracers replace methods of classes at any time."""

    def __init__(self, owner: Any, name: str) -> None:
        update_wrapper(self, getattr(owner, name))
        self._owner, self._name = owner, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls it."""
        return getattr(type(self._owner), self._name).__get__(self._owner)(*args, **kwargs)


class Patches(ExitStack):
    """The patches on instances; closing it undoes them in reverse order."""

    def method(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> Any:
        """Replaces a method on one instance by `wrap(method)`; returns the original."""
        own = vars(owner).get(name)
        original = ClassMethod(owner, name) if own is None else own
        vars(owner)[name] = wrap(original)
        self.callback(_restore_attribute, owner, name, own)
        return original

    def run(self, agent: Any, wrap: Callable[[Any], Any]) -> Callable[..., Any]:
        """`agent.run` (public since 1.0): no callback tells that a run begins, or how it ended."""
        original: Callable[..., Any] = self.method(agent, "run", wrap)
        return original

    def rendering(self, agent: Any, wrap: Callable[[Any], Any]) -> None:
        """`agent.write_memory_to_messages` (public since 1.9): the one place where the memory becomes a prompt."""
        if holds("prompts"):
            self.method(agent, "write_memory_to_messages", wrap)

    def memory(self, observe: Callable[[], None], unobserve: Callable[[], None]) -> None:
        """The class of `agent.memory`: no callback fires for a task, and callbacks fire before the append."""
        if holds("memory"):
            observe()
            self.callback(unobserve)

    def tool_calls(self, agent: Any, call: Callable[[str, Any, Callable[[], Any], Any], Any]) -> None:
        """Every call of a tool or managed agent passes through `call(name, arguments, act, what the tool is given)`.

        `executor.send_tools` hands a code agent's tools to its interpreter at each run (since 1.5);
        `execute_tool_call` makes the calls of a tool-calling agent (since 1.16).
        """
        executor = getattr(agent, "python_executor", None)
        if isinstance(executor, LocalPythonExecutor) and holds("interpreter"):
            self.method(executor, "send_tools", lambda send: lambda tools: send(_passed_through(tools, call)))
        elif hasattr(agent, "execute_tool_call") and holds("tool calls"):
            self.method(agent, "execute_tool_call", lambda execute: _executing(agent, execute, call))

    def model(self, model: Any, observe: Callable[[Any], None], unobserve: Callable[[Any], None]) -> None:
        """The class of a model (public since 1.15): replaced with its first agent, and restored with its last."""
        users = _model_users.setdefault(id(model), [model, 0])
        with suppress(TypeError):  # a model can hold gigabytes, and goes with its agents
            users[0] = weakref.ref(model, partial(_model_users.pop, id(model)))
        users[1] += 1
        if users[1] == 1:
            observe(model)
        self.callback(_release_model, model, unobserve)

    def register(self, agent: Any, cls: type, callback: Any) -> bool:
        """Registers a step callback; false if it is registered already (`CallbackRegistry._callbacks`, since 1.20)."""
        if callback in _callbacks(agent, cls):
            return False
        agent.step_callbacks.register(cls, callback)
        self.callback(_unregister, agent, cls, callback)
        return True


def _restore_attribute(owner: Any, name: str, own: Any) -> None:
    vars(owner).pop(name, None)
    vars(owner).update({} if own is None else {name: own})


_model_users: dict[int, list[Any]] = {}
"""References to the models of attached agents, by id(), and how many agents use each."""


def _release_model(model: Any, unobserve: Callable[[Any], None]) -> None:
    users = _model_users[id(model)]
    users[1] -= 1
    if not users[1]:
        del _model_users[id(model)]
        unobserve(model)


def _passed_through(tools: dict[str, Any], call: Callable[..., Any]) -> dict[str, Any]:
    def passing(name: str, tool: Any) -> Callable[..., Any]:
        def passed(*args: Any, **given: Any) -> Any:
            return call(name, [list(args), given], lambda: tool(*args, **given), [*args, *given.values()])

        passed.__name__ = name
        own = getattr(tool, "__dict__", None)
        if isinstance(own, dict):  # code can read what the tool or agent has itself, such as its name
            passed.__dict__ = own if not hasattr(tool, "run") else {key: own[key] for key in own if key != "run"}
        return passed

    return {name: passing(name, tool) for name, tool in tools.items()}


def _executing(agent: Any, execute: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """An argument that is the name of a variable in `agent.state` stands for that variable (since 1.0)."""

    @wraps(execute)
    def passed(tool_name: str, arguments: Any) -> Any:
        given = list(arguments.values()) if isinstance(arguments, dict) else [arguments]
        values = [agent.state.get(value, value) if isinstance(value, str) else value for value in given]
        return call(tool_name, arguments, lambda: execute(tool_name, arguments), values)

    return passed


def _callbacks(agent: Any, cls: type) -> list[Any]:
    registered: dict[type, list[Any]] = getattr(agent.step_callbacks, "_callbacks", {})
    return registered.get(cls, [])


def _unregister(agent: Any, cls: type, callback: Any) -> None:
    callbacks = _callbacks(agent, cls)
    callbacks[:] = [other for other in callbacks if other is not callback]


# --- a run -----------------------------------------------------------------------------------------------------------


def agent_name(agent: Any) -> str:
    """The recorded name of an agent: its name, or its class if it has none."""
    return str(agent.name or type(agent).__name__)


def run_arguments(run: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Names the arguments of a call of `agent.run`, whose order is not documented."""
    signature = inspect.signature(run)
    return lambda *args, **given: dict(signature.bind_partial(*args, **given).arguments)


def answer_of(result: Any) -> Any:
    """The answer that `agent.run` returned: with `return_full_result` it is inside a `RunResult` (since 1.17)."""
    return result.output if isinstance(result, RunResult) else result


def was_interrupted(agent: Any) -> bool:
    """Whether `agent.interrupt()` was called in this run; the switch exists from the first run on (since 1.10)."""
    return bool(getattr(agent, "interrupt_switch", False))


def reached_max_steps(agent: Any) -> bool:
    """Whether the last step says that the steps are used up: the run returns as if it had finished (since 1.17)."""
    steps = agent.memory.steps
    return isinstance(getattr(steps[-1], "error", None), AgentMaxStepsError) if steps else False


def start_without_task(run: Callable[..., Any], agent: Any, task: TaskStep, max_steps: int) -> Any:
    """Starts a run that continues from the steps on the list, and returns its events.

    There is no documented way to run without a new task. `run(stream=True)` appends the task at once and starts
    nothing before the first event is asked for (since 1.0), so the task can be taken off again.
    """
    events = run(task.task, stream=True, reset=False, images=task.task_images, max_steps=max_steps)
    agent.memory.steps.pop()
    return events


@contextmanager
def continued_numbering(agent: Any, number: int, *, planned: bool, corrected: Callable[[], None]) -> Iterator[None]:
    """Makes the first step of a run step `number`, with the budget and planning interval that belong to it.

    Temporarily adjusts max_steps and planning_interval, because smolagents restarts numbering at 1 (since 1.0). The
    first callback of the first step sets the right number; it must come first, so that other callbacks see it.

    Args:
        agent: the agent.
        number: the number of the first step.
        planned: whether the plan for that step was made already.
        corrected: called once the number is right.
    """
    interval, budget = agent.planning_interval, agent.max_steps
    due = interval is not None and (number == 1 or (number - 1) % interval == 0) and not planned
    agent.planning_interval = interval if due else None
    agent.max_steps = budget - number + 1
    first = [True]

    def correct(step: Any, agent: Any) -> None:
        if first and first.pop():
            step.step_number = agent.step_number = number
            agent.planning_interval, agent.max_steps = interval, budget
            corrected()

    if holds("callbacks"):
        agent.step_callbacks._callbacks.setdefault(ActionStep, []).insert(0, correct)
    else:
        agent.step_callbacks.register(ActionStep, correct)
    try:
        yield
    finally:
        _unregister(agent, ActionStep, correct)
        agent.planning_interval, agent.max_steps = interval, budget


def last_words(agent: Any, task: str, number: int, now: Callable[[], float]) -> ActionStep:
    """Lets an agent without steps left answer from its memory, as `run()` does at that point (since 1.0)."""
    began = now()
    said = agent.provide_final_answer(task)
    step = ActionStep(step_number=number, timing=Timing(began, now()), token_usage=said.token_usage)
    step.error, step.action_output = AgentMaxStepsError("Reached max steps.", agent.logger), said.content
    agent.step_callbacks.callback(step, agent=agent)
    agent.memory.steps.append(step)
    return step


def typed_answer(answer: Any) -> Any:
    """An answer as `run()` returns it: images and texts become AgentImage and AgentText (since 1.0)."""
    return agent_types.handle_agent_output_types(answer)


def restore_monitor(agent: Any, steps: Sequence[Any]) -> None:
    """Sets the durations and token counts of `agent.monitor` to those of the steps (since 1.2)."""
    agent.monitor.reset()
    if not holds("monitor"):
        return
    for step in steps:
        if isinstance(step, ActionStep) and not isinstance(step, Injected) and step.timing is not None:
            agent.monitor.step_durations.append(step.timing.duration)
            if step.token_usage is not None:
                agent.monitor.total_input_token_count += step.token_usage.input_tokens
                agent.monitor.total_output_token_count += step.token_usage.output_tokens


# --- the interpreter of a code agent ---------------------------------------------------------------------------------


class Interpreter:
    """The local Python interpreter of a code agent: attributes without documentation, as they are since 1.13."""

    def __init__(self, executor: LocalPythonExecutor) -> None:
        self._executor = executor

    @property
    def variables(self) -> dict[str, Any]:
        """The variables that code assigned, and those that were sent."""
        state: dict[str, Any] = self._executor.state
        return state

    @property
    def tools(self) -> dict[str, Any]:
        """The tools that code can call."""
        return self._executor.static_tools or {}

    @tools.setter
    def tools(self, tools: dict[str, Any]) -> None:
        self._executor.static_tools = tools

    @property
    def functions(self) -> dict[str, Any]:
        """Functions that are sent along with the tools."""
        return self._executor.additional_functions  # type: ignore[no-any-return]

    def defines(self, name: str) -> bool:
        """Whether code has defined a function of that name."""
        return name in self._executor.custom_tools

    def clear(self, state: dict[str, Any]) -> None:
        """Forgets everything that code has made."""
        self._executor.state = {"__name__": "__main__"}
        self._executor.custom_tools = {}
        self._executor.send_variables(state)

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Gives code these tools."""
        self._executor.send_tools(tools)

    def send(self, values: dict[str, Any]) -> None:
        """Assigns variables."""
        self._executor.send_variables(values)

    def run(self, code: str) -> str | None:
        """Runs code and returns its output; None if it fails. Runs in this thread: a time limit would need another."""
        limit, self._executor.timeout_seconds = self._executor.timeout_seconds, None
        try:
            return str(self._executor(code).logs)
        except Exception:
            return None
        finally:
            self._executor.timeout_seconds = limit

    def stop(self) -> None:
        """Ends the code that runs: the interpreter takes it to have used up its operations (since 1.0)."""
        self._executor.state.get("_operations_count", {})["counter"] = sys.maxsize


def interpreter_of(agent: Any) -> Interpreter | None:
    """The local interpreter of a code agent; None if it has none in this process."""
    executor = getattr(agent, "python_executor", None)
    return Interpreter(executor) if isinstance(executor, LocalPythonExecutor) and holds("interpreter") else None


def is_builtin(name: str) -> bool:
    """Whether a name in the interpreter is one of Python's own functions, which need no recording."""
    return name in BASE_PYTHON_TOOLS


def runs_code_locally(agent: Any) -> bool:
    """Whether an agent writes code that runs in this process."""
    return isinstance(agent, CodeAgent) and interpreter_of(agent) is not None


# --- images and audio ------------------------------------------------------------------------------------------------


def _encode_image(encoder: Encoder, value: Any) -> Json:
    """`AgentImage._path` (since 1.0): asking for the path in the documented way would write a file."""
    pixels = value.to_raw()
    if not isinstance(pixels, PIL.Image.Image):
        raise NotExact
    return {"$": "AgentImage", "path": encoder(value._path), "pixels": encoder(pixels)}


def _decode_image(decoder: Decoder, stored: dict[str, Json]) -> Any:
    path = decoder(stored["path"])
    made = agent_types.AgentImage(decoder(stored["pixels"]))
    made._path = path
    return made


def _encode_audio(encoder: Encoder, value: Any) -> Json:
    """`AgentAudio._path`, `_tensor` and `_value` (since 1.0): its constructor needs PyTorch."""
    tensor = None if value._tensor is None else value._tensor.cpu().detach().numpy()
    made = {"text": str.__str__(value), "rate": encoder(value.samplerate), "path": encoder(value._path)}
    return {"$": "AgentAudio", **made, "samples": encoder(tensor)}


def _decode_audio(decoder: Decoder, stored: dict[str, Json]) -> Any:
    made = str.__new__(agent_types.AgentAudio, stored["text"])
    made.samplerate, made._path = decoder(stored["rate"]), decoder(stored["path"])
    made._tensor = decoder(stored["samples"])
    made._value = made._path
    return made


def _describe_image(value: Any) -> str:
    """`str` of an `AgentImage` unpacks the picture and writes a file (since 1.0)."""
    return "<a picture>" if value._raw is None else pictures.describe(value._raw)


codec.register(agent_types.AgentImage, "AgentImage", _encode_image, _decode_image)
placeholders.descriptions[agent_types.AgentImage] = _describe_image
codec.register(agent_types.AgentAudio, "AgentAudio", _encode_audio, _decode_audio)
