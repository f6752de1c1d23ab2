"""A run that was cut goes on, in another process, as if nothing had happened."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import programs
import pytest
from conftest import TORTURE
from scripted import Scripted, answer, calling_agent, calls, code, code_agent
from smolagents import ActionStep, CodeAgent, ToolCallingAgent, tool
from smolagents.local_python_executor import LocalPythonExecutor, PythonExecutor

from smolmem import Memory
from smolmem.core.errors import CannotResume, NotFound, UnknownOutcome

HERE = Path(__file__).parent
SCENARIOS = ["code", "calling", "planning", "streaming", "max_steps", "managed_code", "managed_calls", "views"]


@pytest.mark.promise("D12")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_every_moment_resumes_and_nothing_that_ended_happens_twice(tmp_path: Path, scenario: str) -> None:
    """At every moment under torture, otherwise at one of each few."""
    done = programs.run([HERE / "resumers.py", scenario, tmp_path], timeout=1800 if TORTURE else 250)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout[done.stdout.rindex("{") :])
    assert told["killed"] > (36 if TORTURE else 4) * (2 if scenario in ("code", "calling") else 1)
    assert told["unknown"] > 0
    same = {"killed": told["killed"], "resumed": told["killed"], "unknown": told["unknown"]}
    assert told == {**same, "wrong answer": 0, "lost": 0, "doubled": 0}


def fail_at(*script: Any, **options: Any) -> CodeAgent:
    """An agent whose model fails after this script, like a server that says 429."""
    return code_agent(*script, ConnectionError("429"), **options)


def break_off(memory: Memory, agent: Any, task: str = "Go") -> None:
    memory.attach(agent)
    with pytest.raises(Exception, match="429"):
        agent.run(task)
    memory.detach(agent)


def test_a_run_that_ended_with_a_model_error_goes_on_at_the_step_that_failed(memory: Memory) -> None:
    break_off(memory, fail_at(code("x = 20"), code("x += 1\nprint(x)")))
    agent = code_agent(code("final_answer(x * 2)"))
    assert memory.resume(agent) == 42
    (run,) = memory.runs()
    assert (run.status, run.answer, run.step_count, run.failure) == ("finished", 42, 3, None)
    assert [step.number for step in run.steps] == [None, 1, 2, 3]
    assert [step.number for step in run.removed] == [3]
    assert agent.monitor.get_total_token_counts().total_tokens == 45
    assert memory.verify()


def test_the_same_agent_goes_on_in_the_same_process(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("x = 20"), ConnectionError("429"), code("final_answer(x)")))
    with pytest.raises(Exception, match="429"):
        agent.run("Go")
    assert memory.resume(agent) == 20


def test_a_second_turn_of_a_conversation_goes_on_with_the_first_in_its_context(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("y = 5\nfinal_answer('first')"), code("print(y)"), ConnectionError("429")))
    agent.run("One")
    with pytest.raises(Exception, match="429"):
        agent.run("Two", reset=False)
    memory.detach(agent)
    again = code_agent(code("final_answer(y + 1)"))
    assert memory.resume(again) == 6
    assert "One" in str(again.model.prompts[0])
    assert [(run.title, run.status) for run in memory.runs()] == [("Two", "finished"), ("One", "finished")]


def test_variables_functions_classes_and_aliasing_come_back(memory: Memory) -> None:
    made = code(
        "import math\nimport numpy as np\nimport pandas as pd\n"
        "shared = [1]\nalias = shared\n"
        "def make(n):\n    def inner(m):\n        return n + m\n    return inner\n"
        "add2 = make(2)\n"
        "class Box:\n    def __init__(self, v):\n        self.v = v\n    def double(self):\n        return self.v * 2\n"
        "box = Box(21)\nsquare = lambda n: n * n\n"
        "frame = pd.DataFrame({'a': [1, 2]})\narr = np.arange(3)\nprint('made')"
    )
    options: dict[str, Any] = {"additional_authorized_imports": ["numpy", "pandas"]}
    break_off(memory, fail_at(made, **options))
    check = code(
        "alias.append(2)\n"
        "final_answer([shared, add2(5), box.double(), square(3), math.floor(2.5), int(arr.sum()), len(frame)])"
    )
    assert memory.resume(code_agent(check, **options)) == [[1, 2], 7, 42, 9, 2, 3, 2]


def test_random_values_come_from_the_snapshot(memory: Memory) -> None:
    seen: list[str] = []
    first = fail_at(code("import random\nr = random.random()\ndef f():\n    return r\nprint(r)"))
    memory.attach(first)
    with pytest.raises(Exception, match="429"):
        first.run("Go")
    seen.append(first.memory.steps[1].observations.split("\n")[1])
    memory.detach(first)
    assert str(memory.resume(code_agent(code("final_answer(f())")))) == seen[0]


def test_what_cannot_be_brought_back_is_named_to_the_agent(memory: Memory) -> None:
    break_off(memory, fail_at(code("import time\nstarted = time.time()\ngen = (i for i in [1, 2])\nprint(started)")))
    agent = code_agent(code("final_answer(started > 0)"))
    assert memory.resume(agent) is True
    assert "these variables are gone: gen" in str(agent.model.prompts[0][-1])


def test_code_that_reaches_outside_is_not_run_again(memory: Memory, tmp_path: Path) -> None:
    options: dict[str, Any] = {"additional_authorized_imports": ["pathlib"]}
    note = tmp_path / "note"
    break_off(
        memory,
        fail_at(
            code(f"import pathlib\np = pathlib.Path({str(note)!r})\nn = p.write_text('once')\nprint(n)"), **options
        ),
    )
    note.unlink()
    assert memory.resume(code_agent(code("final_answer(n)"), **options)) == 4
    assert not note.exists()


def test_an_agents_state_comes_back(memory: Memory) -> None:
    agent = memory.attach(calling_agent(calls(("weather", {"city": "where"})), ConnectionError("429")))
    with pytest.raises(Exception, match="429"):
        agent.run("Go", additional_args={"where": "Oslo"})
    memory.detach(agent)
    again = calling_agent(calls(("weather", {"city": "where"})), answer("ok"))
    assert memory.resume(again) == "ok"
    assert again.state == {"where": "Oslo"}
    assert memory.runs()[0].steps[2].text.endswith("sunny in Oslo")


class Cut(BaseException):
    """What a killed process looks like from inside: nothing after it happens."""


def cut_in_tool(memory: Memory, kind: Any, safe: bool) -> Any:
    """A run whose tool never came back, and the tool as it is afterwards."""
    happened: list[str] = []

    @tool
    def send(to: str) -> str:
        """Sends a parcel.

        Args:
            to: where
        """
        happened.append(to)
        if len(happened) == 1:
            raise Cut
        return f"sent to {to}"

    send.safe_to_repeat = safe
    script = [code("r = send(to='Oslo')\nprint(r)")] if kind is CodeAgent else [calls(("send", {"to": "Oslo"}))]
    agent = memory.attach(kind(tools=[send], model=Scripted(*script), verbosity_level=-1))
    with pytest.raises(Cut):
        agent.run("Send it")
    memory.detach(agent)
    done = code("final_answer('ok')") if kind is CodeAgent else answer("ok")
    return kind(tools=[send], model=Scripted(done), verbosity_level=-1), happened


@pytest.mark.promise("D12")
@pytest.mark.parametrize("kind", [CodeAgent, ToolCallingAgent])
def test_a_call_that_was_cut_is_unknown_until_somebody_decides(memory: Memory, kind: Any) -> None:
    agent, happened = cut_in_tool(memory, kind, safe=False)
    with pytest.raises(UnknownOutcome, match=r"called send with .*Oslo.*unknown='rerun'.*unknown='skip'"):
        memory.resume(agent)
    assert happened == ["Oslo"]
    assert memory.resume(agent, unknown="skip") == "ok"
    assert happened == ["Oslo"]
    assert "outcome of this call of send is unknown" in memory.runs()[0].steps[1].text


@pytest.mark.promise("D12")
@pytest.mark.parametrize("kind", [CodeAgent, ToolCallingAgent])
def test_a_tool_that_is_safe_to_repeat_is_repeated(memory: Memory, kind: Any) -> None:
    agent, happened = cut_in_tool(memory, kind, safe=True)
    assert memory.resume(agent) == "ok"
    assert happened == ["Oslo", "Oslo"]
    assert "sent to Oslo" in memory.runs()[0].steps[1].text


def test_what_a_tool_says_of_itself_when_it_is_called_again_is_stored_with_the_call(memory: Memory) -> None:
    agent, _ = cut_in_tool(memory, CodeAgent, safe=True)
    agent.tools["send"].reads_web = True
    assert memory.resume(agent) == "ok"
    assert memory.verify()
    memory.index()
    assert {found.trust for found in memory.recall("sent to Oslo", kind="observation", floor=0)} == {"low"}


def test_a_finished_run_is_not_resumed(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("final_answer(1)")))
    agent.run("Done")
    with pytest.raises(CannotResume, match="is finished"):
        memory.resume(agent, memory.runs()[0].id)
    with pytest.raises(NotFound, match="no unfinished run of 'CodeAgent'"):
        memory.resume(agent)


def test_another_kind_of_agent_or_name_is_refused(memory: Memory) -> None:
    break_off(memory, fail_at(code("x = 1"), name="alpha", description="d"))
    run = memory.runs()[0].id
    with pytest.raises(CannotResume, match="is of a CodeAgent"):
        memory.resume(calling_agent(), run)
    with pytest.raises(CannotResume, match="agent 'alpha', and this agent is 'beta'"):
        memory.resume(code_agent(name="beta", description="d"), run)
    assert memory.resume(code_agent(code("final_answer(x)"), name="alpha", description="d")) == 1


def test_a_run_in_use_is_refused(memory: Memory, path: Path) -> None:
    agent = memory.attach(code_agent(*[code("x = 1")] * 3))
    events = agent.run("In use", stream=True)
    while not isinstance(next(events), ActionStep):
        pass
    with Memory(path) as other, pytest.raises(CannotResume, match="in use"):
        other.resume(code_agent(), memory.runs()[0].id)
    events.close()


def test_a_step_that_goes_another_way_is_said_so_and_the_run_stays(memory: Memory) -> None:
    def agent(stop: BaseException | None) -> CodeAgent:
        @tool
        def send(to: str) -> str:
            """Sends.

            Args:
                to: where
            """
            if to == "stop" and stop is not None:
                raise stop
            return to

        random = code("import random\nsend(to=str(random.random()))\nsend(to='stop')")
        return CodeAgent(tools=[send], model=Scripted(random), verbosity_level=-1)

    cut = memory.attach(agent(Cut()))
    with pytest.raises(Cut):
        cut.run("Fork in the road")
    memory.detach(cut)
    for _ in range(2):
        with pytest.raises(CannotResume, match="does not go the same way again: it calls send"):
            memory.resume(agent(None), unknown="rerun")
        (run,) = memory.runs()
        assert (run.status, [step.kind for step in run.steps]) == ("failed", ["task"])
    assert memory.verify()


def test_arguments_of_a_run_that_died_before_its_first_step_come_back(memory: Memory) -> None:
    agent = memory.attach(code_agent(ConnectionError("429")))
    with pytest.raises(Exception, match="429"):
        agent.run("Add", False, True, None, {"numbers": [1, 2, 3]}, 7)
    memory.detach(agent)
    assert memory.runs()[0].max_steps == 7
    assert memory.resume(code_agent(code("final_answer(sum(numbers))"))) == 6


def test_a_skipped_call_is_not_asked_about_again(memory: Memory) -> None:
    agent, _ = cut_in_tool(memory, CodeAgent, safe=False)
    agent.model.script = iter([ConnectionError("429"), code("final_answer('ok')")])
    with pytest.raises(Exception, match="429"):
        memory.resume(agent, unknown="skip")
    assert memory.resume(agent) == "ok"


def test_what_no_file_can_hold_is_named_not_faked(memory: Memory) -> None:
    import threading

    @tool
    def lock() -> object:
        """Gives a lock."""
        return threading.Lock()

    def agent(*script: Any) -> CodeAgent:
        return CodeAgent(tools=[lock], model=Scripted(*script), verbosity_level=-1)

    break_off(memory, agent(code("held = lock()\nn = 1"), ConnectionError("429")))
    again = agent(code("final_answer(n)"))
    assert memory.resume(again) == 1
    assert "these variables are gone: held" in str(again.model.prompts[0][-1])


def test_variables_of_an_earlier_run_of_the_same_agent_come_back(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("x = 40\nfinal_answer(1)"), code("y = 2"), ConnectionError("429")))
    agent.run("One")
    with pytest.raises(Exception, match="429"):
        agent.run("Two")
    memory.detach(agent)
    assert memory.resume(code_agent(code("final_answer(x + y)"))) == 42


def helped(main: list[Any], helper: list[Any], tools: list[Any]) -> CodeAgent:
    child = CodeAgent(tools=tools, model=Scripted(*helper), name="helper", description="d", verbosity_level=-1)
    return CodeAgent(tools=tools, model=Scripted(*main), managed_agents=[child], verbosity_level=-1)


@pytest.mark.promise("D12")
def test_a_managed_agent_that_is_cut_twice_does_nothing_twice(memory: Memory) -> None:
    done: list[str] = []

    @tool
    def note(text: str) -> str:
        """Notes.

        Args:
            text: what
        """
        done.append(text)
        return text

    delegate = code("r = helper('go')\nfinal_answer(r)")
    break_off(memory, helped([code("a = 1"), ConnectionError("429")], [], [note]))
    agent = helped([delegate], [code("note('one')"), Cut()], [note])
    with pytest.raises(Cut):
        memory.resume(agent)
    memory.detach(agent)
    again = helped([], [code("final_answer('second')")], [note])
    assert "second" in memory.resume(again)
    assert done == ["one"]
    assert {run.status for run in memory.runs()} == {"finished"}


@pytest.mark.promise("D12")
def test_the_same_task_given_twice_in_one_step_is_two_runs_after_a_cut_too(memory: Memory) -> None:
    twice = code("p = helper('go')\nq = helper('go')\nprint(p, q)")
    first = memory.attach(helped([twice], [code("final_answer('first')"), code("x = 1"), Cut()], []))
    with pytest.raises(Cut):
        first.run("Twice")
    memory.detach(first)
    again = helped(
        [code("final_answer(helper('go'))")], [code("final_answer('second')"), code("final_answer('third')")], []
    )
    assert "third" in memory.resume(again)
    text = memory.runs(agent="CodeAgent")[0].steps[1].text
    assert "first" in text
    assert "second" in text
    assert len(memory.runs(agent="helper")) == 3


def with_a_shared_helper(kind: type[Any], main: list[Any], middle: list[Any], helper: list[Any]) -> Any:
    """An agent that manages a helper, and an agent that manages the same helper."""
    made = {"tools": [], "description": "d", "verbosity_level": -1}
    child = CodeAgent(model=Scripted(*helper), name="helper", **made)
    between = CodeAgent(model=Scripted(*middle), name="between", managed_agents=[child], **made)
    return kind(model=Scripted(*main), managed_agents=[child, between], tools=[], verbosity_level=-1)


def test_every_call_that_was_cut_is_named_because_one_word_decides_about_all(memory: Memory) -> None:
    begun = threading.Barrier(2)

    @tool
    def pay(amount: int) -> str:
        """Pays.

        Args:
            amount: how much
        """
        begun.wait(60)
        raise Cut

    agent = memory.attach(calling_agent(calls(("pay", {"amount": 1}), ("pay", {"amount": 2})), tools=[pay]))
    with pytest.raises(Cut):
        agent.run("Pay")
    memory.detach(agent)
    with pytest.raises(UnknownOutcome) as refused:
        memory.resume(calling_agent(tools=[pay]))
    assert "'amount': 1" in str(refused.value)
    assert "'amount': 2" in str(refused.value)
    assert "call them again" in str(refused.value)


@pytest.mark.promise("D12")
def test_a_helper_of_two_managers_continues_for_the_one_that_called_it(memory: Memory) -> None:
    """By chance one or the other was taken for the caller: three in a row are hardly right by chance."""
    for _ in range(3):
        main, middle = [code("r = between('go')\nfinal_answer(r)")], [code("s = helper('on')\nfinal_answer(s)")]
        first = memory.attach(with_a_shared_helper(CodeAgent, main, middle, [code("x = 1"), Cut()]))
        with pytest.raises(Cut):
            first.run("Go")
        memory.detach(first)
        again = with_a_shared_helper(CodeAgent, [], [], [code("final_answer(x + 41)")])
        assert "42" in memory.resume(again)
        helper, between = memory.runs(agent="helper", limit=1)[0], memory.runs(agent="between", limit=1)[0]
        assert (helper.parent, helper.step_count, between.parent) == (between.id, 2, memory.runs(managed=False)[0].id)
    assert {run.status for run in memory.runs()} == {"finished"}


@pytest.mark.promise("D12")
def test_a_helper_that_waits_for_its_manager_is_not_forgotten_when_another_manager_is_done(memory: Memory) -> None:
    done = threading.Event()

    class Waiting(ToolCallingAgent):
        def execute_tool_call(self, tool_name: str, arguments: Any) -> Any:
            if tool_name == "helper" and resumed:
                assert done.wait(60)
            return super().execute_tool_call(tool_name, arguments)

    resumed = False
    both = [calls(("between", {"task": "go"}), ("helper", {"task": "on"}))]
    first = memory.attach(with_a_shared_helper(Waiting, both, [Cut()], [code("x = 1"), Cut()]))
    with pytest.raises(Cut):
        first.run("Go")
    memory.detach(first)
    resumed = True
    again = with_a_shared_helper(
        Waiting, [answer("all")], [code("y = 2"), code("final_answer(y)")], [code("final_answer(x + 41)")]
    )
    again.managed_agents["between"].step_callbacks.register(ActionStep, lambda step, agent: done.set())
    assert memory.resume(again) == "all"
    (helper,) = memory.runs(agent="helper")
    assert (helper.status, helper.step_count) == ("finished", 2)


def test_models_are_watched_however_many_agents_come_and_go(memory: Memory) -> None:
    import gc

    gc.freeze()  # what is there already is not looked through each time
    for _ in range(20):
        memory.attach(code_agent(code("final_answer(1)"))).run("Go")
        gc.collect()
    answers = [call for run in memory.runs() for call in memory._journal.calls(run.id) if call.kind == "model"]
    assert len(answers) == 20


def test_a_model_is_freed_with_its_agent(memory: Memory) -> None:
    import gc
    import weakref

    agent = memory.attach(code_agent(code("final_answer(1)")))
    agent.run("Go")
    model = weakref.ref(agent.model)
    del agent
    gc.collect()
    assert model() is None


def test_a_model_method_of_ones_own_is_given_back(memory: Memory) -> None:
    agent = code_agent()
    agent.model.generate = own = lambda messages, **_: Scripted(code("final_answer(5)")).generate(messages)
    assert memory.attach(agent).run("Go") == 5
    memory.detach(agent)
    assert agent.model.generate is own


def test_an_agent_that_lacks_a_tool_of_the_run_is_refused(memory: Memory) -> None:
    break_off(memory, calling_agent(calls(("weather", {"city": "Oslo"})), ConnectionError("429")))
    with pytest.raises(CannotResume, match="has called weather, which this agent does not have"):
        memory.resume(calling_agent(answer("ok"), tools=[]))
    assert memory.resume(calling_agent(answer("ok"))) == "ok"


def test_an_interpreter_elsewhere_is_named_and_the_run_goes_on(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    class Elsewhere(PythonExecutor):
        def __init__(self) -> None:
            self.here = LocalPythonExecutor([])

        def send_tools(self, tools: Any) -> None:
            self.here.send_tools(tools)

        def send_variables(self, variables: Any) -> None:
            self.here.send_variables(variables)

        def __call__(self, code: str) -> Any:
            return self.here(code)

    break_off(memory, fail_at(code("x = 1\nprint(x)"), executor=Elsewhere()))
    caplog.set_level("INFO", "smolmem")
    assert memory.resume(code_agent(code("final_answer(2)"), executor=Elsewhere())) == 2
    assert "Elsewhere keeps them in another process" in caplog.text
