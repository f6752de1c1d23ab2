"""smolagents' own surroundings with a memory: GradioUI, save and from_folder, vision agents, remote executors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pages
import pytest
from PIL import Image
from scripted import Scripted, code, code_agent, weather
from smolagents import CodeAgent, FinalAnswerTool, InferenceClientModel
from smolagents.local_python_executor import CodeOutput
from smolagents.remote_executors import RemotePythonExecutor

from smolmem import Memory
from smolmem.core.errors import InvalidArgument

ROOT = Path(__file__).parent.parent


@pytest.fixture
def memory_ui() -> Any:
    """The class `MemoryUI`. Loading Gradio takes four seconds: it is loaded where a test needs it."""
    pytest.importorskip("gradio", reason="needs smolagents[gradio]")
    from smolmem.integrations.gradio import MemoryUI

    return MemoryUI


def talker() -> CodeAgent:
    """An agent that says how many tasks it knows of, and keeps the number in a variable."""

    def think(messages: list[Any]) -> str:
        known = sum("New task:" in str(message.content) for message in messages)
        return code(f"known = {known}\nfinal_answer('I know of {known} tasks')")

    return code_agent(*[think] * 20, name="talker")


@contextmanager
def page(ui: Any) -> Iterator[Any]:
    """A client of the running page."""
    from gradio_client import Client

    app = ui.create_app()
    _, url, _ = app.launch(prevent_thread_lock=True, quiet=True, share=False, server_name="127.0.0.1")
    try:
        yield Client(url, verbose=False)
    finally:
        app.close(verbose=False)


def texts(past: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Who said what, without headings and rules."""
    return [(one["role"], one["content"][0]["text"]) for one in past if not one["metadata"].get("title")]


@pytest.mark.filterwarnings("ignore")  # of gradio itself
def test_a_conversation_survives_a_restart_and_a_reload_shows_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, memory_ui: Any
) -> None:
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
    with Memory(path) as memory, page(memory_ui(talker(), memory)) as client:
        assert client.predict(api_name="/past") == []
        said = client.predict(message="hello", api_name="/_stream_response")
        assert "I know of 1 tasks" in str(said)
        assert ("user", "hello") in texts(client.predict(api_name="/past")), "a reload shows what was said"
    agent = talker()
    with Memory(path) as memory, page(memory_ui(agent, memory)) as client:
        past = texts(client.predict(api_name="/past"))
        assert past[0] == ("user", "hello")
        assert past[-1] == ("assistant", "**Final answer:** I know of 1 tasks")
        said = client.predict(message="hello again", api_name="/_stream_response")
        assert "I know of 2 tasks" in str(said), "the agent continues the conversation"
        assert agent.python_executor.state["known"] == 2
        assert memory.verify()


def test_with_a_reset_at_each_task_or_steps_of_its_own_an_agent_continues_nothing(path: Path, memory_ui: Any) -> None:
    with Memory(path) as memory:
        memory.attach(talker()).run("hello")
        assert memory_ui(talker(), memory, reset_agent_memory=True).continued is None
        busy = talker()
        busy.run("another")
        assert memory_ui(busy, memory).continued is None
        assert memory_ui(talker(), memory.scoped("else")).continued is None, "another scope has another conversation"


def test_an_imported_conversation_is_not_continued(path: Path, tmp_path: Path, memory_ui: Any) -> None:
    with Memory(path) as memory:
        memory.attach(talker()).run("hello")
        memory.export(tmp_path / "export")
    with Memory(tmp_path / "other.db") as other:
        other.load(tmp_path / "export")
        assert memory_ui(talker(), other).continued is None, "its recorded code is not run in this process"


# --- save and from_folder ---------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of smolagents' serialization
def test_an_attached_agent_is_saved_and_a_loaded_one_continues_its_run(memory: Memory, tmp_path: Path) -> None:
    agent = memory.attach(code_agent(code("n = 41\nprint(n)"), code("final_answer(n)"), name="counter"))
    agent.run("Count")
    agent.model = InferenceClientModel("some/model")
    agent.save(tmp_path / "saved")
    assert "smolmem" not in "".join(file.read_text() for file in (tmp_path / "saved").rglob("*.py"))
    loaded = CodeAgent.from_folder(tmp_path / "saved")
    assert type(loaded.model) is InferenceClientModel
    loaded.model = Scripted(code("final_answer(n + 1)"))
    memory.attach(loaded)
    memory.runs(agent="counter")[0].restore(loaded)
    assert loaded.run("One more", reset=False) == 42


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_a_vision_agents_pictures_are_recorded_and_come_back(memory: Memory) -> None:
    picture = Image.effect_noise((64, 48), 80).convert("RGB")

    def screenshot(step: Any, agent: Any) -> None:
        step.observations_images = [picture.copy()]

    agent = memory.attach(
        code_agent(code("print('looking')"), code("final_answer('navy')"), step_callbacks=[screenshot])
    )
    agent.run("What colour?", images=[picture])
    run = memory.runs()[0]
    task, action = (step.to_smolagents() for step in run.steps if step.kind in ("task", "action") and step.number != 2)
    for back in (*task.task_images, *action.observations_images):
        assert back.size == (64, 48)
        assert back.tobytes() == picture.tobytes()


# --- code that runs elsewhere -----------------------------------------------------------------------------------------


class KernelExecutor(RemotePythonExecutor):
    """Runs code in a Jupyter kernel of its own process, as the executors for Docker, E2B and Modal do elsewhere."""

    def __init__(self, logger: Any) -> None:
        super().__init__([], logger)
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(kernel_name="python3")

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        logs: list[str] = []

        def output(message: Any) -> None:
            if message["msg_type"] == "stream":
                logs.append(message["content"]["text"])

        reply = self.client.execute_interactive(code, output_hook=output, timeout=60)["content"]
        if reply["status"] == "error" and reply["ename"] == self.FINAL_ANSWER_EXCEPTION:
            return CodeOutput(self._deserialize_final_answer(reply["evalue"]), "".join(logs), True)
        if reply["status"] == "error":
            raise RuntimeError("".join(logs) + f"{reply['ename']}: {reply['evalue']}")
        return CodeOutput(None, "".join(logs), False)

    def cleanup(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


class DyingExecutor(KernelExecutor):
    """Loses its process after a step that prints `second`, before the agent hears of it."""

    def __call__(self, code_action: str) -> CodeOutput:
        output = super().__call__(code_action)
        if "second" in output.logs:
            raise KeyboardInterrupt
        return output


@pytest.fixture
def executors() -> Iterator[Callable[[type[KernelExecutor]], KernelExecutor]]:
    pytest.importorskip("jupyter_client", reason="needs jupyter_client and ipykernel")
    from smolagents.monitoring import AgentLogger, LogLevel

    made: list[KernelExecutor] = []

    def make(kind: type[KernelExecutor]) -> KernelExecutor:
        made.append(kind(AgentLogger(level=LogLevel.OFF)))
        return made[-1]

    yield make
    for executor in made:
        executor.cleanup()
    vars(FinalAnswerTool.forward).pop("__source__", None)  # smolagents leaves it there, and saves it with other agents


@pytest.mark.filterwarnings("ignore")  # of jupyter_client
def test_of_code_that_runs_elsewhere_steps_are_recorded_and_calls_and_variables_are_not(
    memory: Memory, executors: Callable[[type[KernelExecutor]], KernelExecutor]
) -> None:
    agent = code_agent(
        code("import os\nn = 41\nprint(weather(city='Paris'))"),
        code("raise ValueError('too hot')"),
        code("final_answer(n + 1)"),
        tools=[weather],
        executor=executors(KernelExecutor),
    )
    with pytest.raises(InvalidArgument, match="runs in a remote executor, where its memory is out of reach"):
        memory.attach(agent, tools=True)
    assert memory.attach(agent, recall=3).run("Count") == 42
    run = memory.runs()[0]
    actions = [step.to_smolagents() for step in run.steps if step.kind == "action"]
    assert "sunny in Paris" in actions[0].observations
    assert "too hot" in str(actions[1].error)
    assert (run.status, run.answer, run.step_count) == ("finished", 42, 3)
    assert all(action.model_output for action in actions)
    calls = memory._journal.calls(run.id)
    assert [call.kind for call in calls] == ["model"] * 3, "a call of a tool is part of the code that ran elsewhere"
    assert not (memory._journal.session(run.session, run.id).variables() or {}).get("variables")
    assert memory.recall("weather in Paris")
    assert memory.verify()


@pytest.mark.filterwarnings("ignore")  # of jupyter_client
def test_a_resumed_run_whose_code_runs_elsewhere_repeats_its_interrupted_step_and_lacks_variables(
    memory: Memory, tmp_path: Path, executors: Callable[[type[KernelExecutor]], KernelExecutor]
) -> None:
    effects = tmp_path / "effects"
    agent = code_agent(
        code("n = 41\nprint('first')"),
        code(f"open({str(effects)!r}, 'a').write('x')\nprint('second')"),
        executor=executors(DyingExecutor),
    )
    with pytest.raises(KeyboardInterrupt):
        memory.attach(agent).run("Count")
    memory.detach(agent)
    again = code_agent(code("final_answer('n' in globals())"), executor=executors(KernelExecutor))
    assert memory.resume(again) is False
    assert effects.read_text() == "xx", "docs/smolagents.md says so"


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of gradio and of smolagents' serialization
def test_the_page_about_smolagents_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_ui: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory_ui, "launch", lambda ui, **options: ui.create_app())
    names = pages.run(ROOT / "docs/smolagents.md")
    names["memory"].close()
    assert sys.modules["smolmem.integrations.gradio"]
