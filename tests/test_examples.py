"""The examples run as their README says, print what they promise, and fail with clear messages."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import programs
import pytest
from smolagents import ToolCallingAgent
from smolagents.models import ChatMessage, MessageRole

from smolmem import Memory

EXAMPLES = Path(__file__).parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

from monitoring import RULES, make_agent  # noqa: E402
from scripted_operator import ScriptedOperator  # noqa: E402
from shop.control import FAULTS, Shop  # noqa: E402
from shop_tools import get_tools  # noqa: E402

OLDEST = Path(sys.prefix) / "oldest"
"""Where `make` installs the oldest supported smolagents."""
PROGRAMS = ("simple_memory_example.py", "05-main.py", "06-memory_example.py")


def begin(*words: object, on: Path | None = None) -> Any:
    """Starts a program in the examples folder, without the log of smolagents; packages in `on` come first."""
    if words[0] == "05-main.py" and "--verbosity_level" not in words:
        words = (*words, "--verbosity_level", "-1")
    env = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"} | {"COLUMNS": "200"}
    env |= {} if on is None else {"PYTHONPATH": os.pathsep.join([str(on), str(EXAMPLES.parent / "src")])}
    loaded = ["openai"] if "--llm_url" in words else []
    return programs.start(words, cwd=EXAMPLES, env=env, stderr=programs.STDOUT, loaded=loaded)


def run(*words: object, code: int = 0, **options: Any) -> str:
    """Runs a program to its end; returns its output as one line."""
    with begin(*words, **options) as process:
        told = process.communicate(timeout=100)[0]
    assert process.returncode == code, told
    assert "Traceback" not in told
    return " ".join(told.split())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[list[object]]:
    """The folder of the shop and the memory file, as command-line arguments."""
    yield ["--folder", tmp_path / "shop", "--db", tmp_path / "agent.db"]
    Shop(tmp_path / "shop").stop()


def steps(told: str) -> list[int]:
    """The number of steps of each run, from the table at the end."""
    return [int(number) for number in re.findall(r"(\d+) \d+ [\d,]+ [\d,]+ [\d.]+ (?:finished|max_steps)", told)]


# --- as documented -------------------------------------------------------------------------------------------------


def test_the_simple_example_runs_every_chapter(tmp_path: Path) -> None:
    told = run("simple_memory_example.py", "--db", tmp_path / "agent.db")
    for line in (
        "Model: a script that reads the conversation; no LLM",
        "Answer: 6765",
        "view: the step is Execution logs",
        "appended to agent.memory.steps: I know of no outage",
        "memory.inject(agent, …): 2 hours yesterday",
        "in the next run too: 2 hours yesterday",
        "missing 1 required positional argument: 'timing'",
        "The run is recorded as interrupted. Another agent resumes it: memory.resume(agent) Answer: 6765",
        "its steps equal the original steps: True",
        "And the Fibonacci number after that? 10946",
        "Analysis: 2 steps, no error; it ended with 6765",
        "fact from user: On Sunday the system was down for 20 minutes",
        "How long was the system down on Sunday? I know of no outage",
        "The same with attach(agent, recall=1): 20 minutes",
        "PlanningStep: 1. Add up the numbers from the beginning.",
        "memory.steps(kind='planning'): 1 recorded",
        "How long was the system down yesterday? 2 hours yesterday 5 steps now, 3 in the agent that they come from",
        ": intact",
    ):
        assert line in told, line
    assert re.search(r"the model reads \[\d\d:\d\d:\d\d\] Observation", told)
    assert re.search(r"callback: the step is \[\d\d:\d\d:\d\d\] Execution logs", told)


def test_the_second_incident_takes_fewer_steps_and_fires_the_rule(place: list[object]) -> None:
    first = run("05-main.py", "--fault", "errors", *place)
    assert "no LLM" in first
    assert (
        "Answer: Resolved: health check 500, no such column: currency (release 41). Remedy: roll_back_release." in first
    )
    assert "The shop now: health check: 200 OK (release 40)" in first
    second = run("05-main.py", "--fault", "errors", *place)
    assert "Reminded of ❘" in second
    assert "▲ [ALERT] health: 3 of the last 4 steps match" in second
    assert "📟 to the person on call" in second
    assert steps(first) == [9]
    assert steps(second) == [9, 5]


@pytest.mark.skipif(not OLDEST.exists(), reason="`make test` fetches the oldest smolagents")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["simple_memory_example.py"], "memory.inject(agent, …): 2 hours yesterday"),
        (["05-main.py", "--fault", "errors"], "Remedy: roll_back_release."),
        (["06-memory_example.py", "--demo_mode", "step_by_step"], "7 steps, finished; resumed after a kill."),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_the_programs_run_on_the_oldest_smolagents_too(
    words: list[str], told: str, place: list[object], tmp_path: Path
) -> None:
    where = place if words[0] != "simple_memory_example.py" else ["--db", tmp_path / "agent.db"]
    assert told in run(*words, *where, on=OLDEST)


def test_a_flapping_shop_is_noticed_by_the_rule(place: list[object]) -> None:
    told = run("05-main.py", "--fault", "flapping", *place)
    assert "check its health 8 times" in told
    assert "▲ [ALERT] health: 3 of the last 5 steps match" in told
    assert "8 checks, 4 of them failed" in told


def test_a_plain_callback_notices_it_too(place: list[object]) -> None:
    told = run("05-main.py", "--fault", "flapping", "--patterns", "callback", "--verbosity_level", "2", *place)
    assert "[ALERT] Pattern detected: 3 failures in the last 10 steps" in told
    assert "▲ health" not in told, "the rule does not watch"
    assert "Step 1" in told, "smolagents logs"


@pytest.mark.skipif(
    not shutil.which("chromium") or not shutil.which("chromedriver"), reason="chromium or chromedriver is not installed"
)
def test_screenshots_leave_ram_and_stay_in_the_record(tmp_path: Path) -> None:
    quick = "import vision_browser; vision_browser.PAUSE = 0.0; vision_browser.main()"  # no page of it is animated
    told = run("-c", quick, "--db", tmp_path / "agent.db", "--verbosity_level", "-1")
    assert "Answer: The red mug, 9 euros" in told
    assert "step 1: 0 in RAM, 1 in the record" in told
    assert "Screenshots in each prompt: 0, 1, 2, 2, 2" in told
    with Memory(tmp_path / "agent.db") as memory:
        first = memory.steps(kind="action")[-1]
        (image,) = first.history()[0].to_smolagents().observations_images
        assert image.getpixel((5, 300))[:3] == (231, 240, 228), "the colour of the page: a real browser drew it"


def test_without_a_browser_the_web_agent_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = run("vision_browser.py", "--db", tmp_path / "agent.db", code=1)
    assert "Chromium is not installed: pip install selenium, and apt install chromium chromium-driver." in told


def test_the_folder_works_where_it_was_copied_to(tmp_path: Path) -> None:
    copied = shutil.copytree(EXAMPLES, tmp_path / "copied", ignore=shutil.ignore_patterns("__pycache__"))
    needed = [line.split("#")[0].strip() for line in (copied / "requirements.txt").read_text().splitlines()]
    assert {re.split(r"[<>=]", name)[0] for name in needed if name} == {"smolmem", "openai", "selenium"}
    done = programs.run(["simple_memory_example.py", "--db", tmp_path / "agent.db"], cwd=copied)
    assert done.returncode == 0, done.stderr


def test_the_shop_keeps_running_on_request_and_is_stopped_otherwise(place: list[object], tmp_path: Path) -> None:
    assert "The shop is still running at" in run(
        "05-main.py", *place, "--task", "Watch the shop: check it 2 times", "--keep"
    )
    assert Shop(tmp_path / "shop").running()
    assert "The shop is still running at" in run("05-main.py", *place), "it was running before, so it keeps running"
    Shop(tmp_path / "shop").stop()
    run("05-main.py", *place)
    assert not Shop(tmp_path / "shop").running()


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_run_is_resumed_with_the_flag(kind: signal.Signals, place: list[object], tmp_path: Path) -> None:
    with begin("05-main.py", "--fault", "errors", "--interval", "0.3", *place) as process:
        wait_for(lambda: recorded(tmp_path / "agent.db") >= 5)
        process.send_signal(kind)
        said = process.communicate(timeout=120)[0]
    assert process.returncode == (130 if kind == signal.SIGINT else -kind)
    assert "Traceback" not in said
    assert ("05-main.py --resume" in said) is (kind == signal.SIGINT)
    assert Shop(tmp_path / "shop").running(), "the resumed run finds the shop as it was"
    told = run("05-main.py", "--resume", *place)
    assert "The agent resumes its run" in told
    assert "1 check_health" not in told
    assert "Answer: Resolved: health check 500" in told
    assert steps(told) == [9]
    assert not Shop(tmp_path / "shop").running()


def test_without_an_unfinished_run_there_is_nothing_to_resume(place: list[object]) -> None:
    assert "no unfinished run" in run("05-main.py", "--resume", *place, code=1)


def test_the_agent_is_made_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    agent = runpy.run_path(str(EXAMPLES / "05-main.py"))["create_agent"](None, "llama3.2")
    assert (type(agent), agent.name, agent.logger.level) == (ToolCallingAgent, "ai_monitoring_agent", 2)
    assert agent.description == "An agent that monitors a web application and manages its health."
    assert {"check_health", "restart_application", "notify_person"} < set(agent.tools)


def recorded(db: Path) -> int:
    if not db.exists():
        return 0
    with Memory(db) as memory:
        return len(memory.steps(kind="action"))


def wait_for(true: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


REPLAYED = (
    "two in a row would have fired 2 times",
    "Step 10",
    "answer: Watched the shop",
    "8 health checks, 4 of them failed",
    "agent.replay(): the last run of an agent, from RAM",
    "Replaying the agent's steps:",
    "agent.write_memory_to_messages(): everything, from RAM",
)
INJECTED = "Injected: previous session, known issue, baseline"
RESUMED = (
    "kill -9: process",
    "7 steps, finished; resumed after a kill.",
    "in the run: 6. Counted by the shop itself: 6.",
)


def test_replay_shows_patterns_the_run_and_its_analysis(place: list[object]) -> None:
    told = run("06-memory_example.py", "--demo_mode", "replay", *place)
    for line in (
        *REPLAYED,
        "▲ [ALERT] health",
        "8 health checks, 4 failed; 0 steps",
        "steps were not in the history",
    ):
        assert line in told, line
    detailed = told.split("agent.replay(detailed=True)")[1].split("run.replay()")[0]
    assert '"role"' in detailed or "'role'" in detailed, "the prompts are shown"


@pytest.mark.long
def test_full_is_the_default_and_shows_everything(place: list[object]) -> None:
    told = run("06-memory_example.py", *place)
    for line in (*REPLAYED, f"{INJECTED}, maintenance window", *RESUMED, "Second time: 5 steps fewer."):
        assert line in told, line
    assert steps(told) == [9, 4, 9, 9, 4], "a known issue that was injected, not appended, saves five steps"
    assert (told.count(INJECTED), told.count("maintenance window")) == (2, 1), "it expires before the next task"


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_explains_itself(program: str) -> None:
    assert "--llm_url" in run(program, "--help")


# --- servers -------------------------------------------------------------------------------------------------------

Say = Callable[[dict[str, Any]], dict[str, Any]]


@contextmanager
def server(say: Say, models: Any = None) -> Iterator[str]:
    """A small OpenAI-compatible server; `say` returns the answer to a request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.give(200, {"data": [{"id": "tiny:latest"}]} if models is None else models)

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                message = {"role": "assistant", **say(asked)}
            except ConnectionError as error:
                self.give(500, {"error": {"message": str(error)}})
                return
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
            about = {"id": "1", "object": "chat.completion", "created": 1, "model": "tiny"}
            self.give(200, about | {"choices": [choice], "usage": usage})

        def give(self, code: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}/v1"
        finally:
            listening.shutdown()
            thread.join()


PARTS = re.compile(r"^(?=New task:|Calling tools:|Observation:)", re.MULTILINE)
ROLES = {"Calling tools:": MessageRole.TOOL_CALL, "Observation:": MessageRole.TOOL_RESPONSE}


def operate(asked: dict[str, Any]) -> dict[str, Any]:
    """The scripted operator as a server; smolagents has merged messages and renamed roles."""
    talk = []
    for message in asked["messages"]:
        text = "".join(part["text"] for part in message["content"])
        for part in PARTS.split(text) if message["role"] != "system" else [text]:
            role = next((role for begin, role in ROLES.items() if part.startswith(begin)), MessageRole(message["role"]))
            talk.append(ChatMessage(role, [{"type": "text", "text": part}]))
    said = ScriptedOperator().generate(talk, tools_to_call_from=asked.get("tools"))
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.function.name, "arguments": json.dumps(call.function.arguments)},
        }
        for call in said.tool_calls or ()
    ]
    return {"content": said.content, "tool_calls": calls or None}


def test_a_model_on_a_server_does_the_same_work(place: list[object]) -> None:
    with server(operate) as url:
        told = run("05-main.py", "--fault", "errors", "--llm_url", url, "--model", "tiny", *place)
    assert "Model: tiny" in told
    assert "no LLM" not in told
    assert steps(told) == [9]


def test_a_model_on_a_server_is_resumed_after_a_kill(place: list[object]) -> None:
    with server(operate) as url:
        told = run("06-memory_example.py", "--demo_mode", "step_by_step", "--llm_url", url, "--model", "tiny", *place)
    for line in RESUMED:
        assert line in told, line
    assert told.count(" 3 check_health") == 1


def test_a_failing_server_is_reported_and_the_run_is_resumed_later(place: list[object]) -> None:
    asked = []

    def fail_later(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request)
        if len(asked) > 4:
            raise ConnectionError("out of memory")
        return operate(request)

    with server(fail_later) as url:
        told = run("05-main.py", "--fault", "errors", "--llm_url", url, "--model", "tiny", *place, code=1)
    assert "The model server failed: Error code: 500" in told
    assert "To resume this run: python 05-main.py --resume" in told
    told = run("05-main.py", "--resume", *place)
    assert "Answer: Resolved: health check 500" in told


# --- what can go wrong ---------------------------------------------------------------------------------------------


def unused() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_absent_server_is_one_plain_sentence(program: str, tmp_path: Path) -> None:
    told = run(program, "--llm_url", unused(), "--db", tmp_path / "agent.db", code=1)
    assert re.fullmatch(r"✖ No model server answers at http://127.0.0.1:\d+/v1 \(.*\)\. Start it, .*", told)
    assert not (tmp_path / "agent.db").exists()


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        (None, "has no model 'llama3.2'; it has tiny:latest. Choose one with --model"),
        ([], "answers, but not as an OpenAI-compatible server"),
        ({"data": [{"name": "x"}]}, "answers, but not as an OpenAI-compatible server"),
    ],
)
def test_a_server_without_the_model_says_what_it_has(models: Any, sentence: str, place: list[object]) -> None:
    with server(operate, models) as url:
        assert sentence in run("05-main.py", "--llm_url", url, *place, code=1)


def test_an_invalid_address_is_reported(place: list[object]) -> None:
    told = run("05-main.py", "--llm_url", "localhost:11434", *place, code=1)
    assert "use one such as http://localhost:11434/v1" in told


@pytest.mark.parametrize(("program", "content"), list(zip(PROGRAMS, ["Bananas are a fruit.", "", None], strict=True)))
def test_a_model_that_talks_nonsense_is_stopped_and_reported(program: str, content: str | None, tmp_path: Path) -> None:
    words = [program, "--db", tmp_path / "agent.db", "--model", "tiny"]
    if program != PROGRAMS[0]:
        words += ["--folder", tmp_path / "shop"]
    with server(lambda _: {"content": content}) as url:
        told = run(*words, "--llm_url", url, code=1)
    assert (
        "'tiny' needed more than" in told or "'tiny' may not be able to call tools" in told or "server failed" in told
    )
    Shop(tmp_path / "shop").stop()


def test_a_false_claim_that_the_shop_is_repaired_is_detected(place: list[object]) -> None:
    function = {"name": "final_answer", "arguments": '{"answer": "All is well."}'}
    with server(
        lambda _: {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    ) as url:
        told = run("05-main.py", "--fault", "errors", "--llm_url", url, "--model", "tiny", *place, code=1)
    assert "the shop still fails and no person was notified" in told
    with Memory(Path(str(place[3]))) as memory:
        assert memory.notes() == [], "no note is kept of a false claim"


def test_unusable_folders_and_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("taken")
    told = run("05-main.py", "--folder", tmp_path / "file", "--db", tmp_path / "agent.db", code=1)
    assert "cannot be used: Not a directory. Choose another folder with --folder." in told
    told = run("05-main.py", "--folder", tmp_path / "shop", "--db", tmp_path / "file", code=1)
    assert f"✖ {tmp_path / 'file'}" in told
    assert not Shop(tmp_path / "shop").running()


# --- the page ------------------------------------------------------------------------------------------------------


def test_the_readme_names_what_is_there() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for command in re.findall(r"python ([\w/-]+\.py)", page):
        assert (EXAMPLES / command).exists(), command
    flags = "".join(run(program, "--help") for program in (*PROGRAMS, "vision_browser.py"))
    for flag in set(re.findall(r"(?<![\w-])--[a-z_]+", page)):
        assert flag in flags, flag
    assert all(f"| `{fault}` |" in page for fault in FAULTS)
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", page):
        assert (EXAMPLES / target).exists(), target


def test_the_readmes_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 5
    with Memory("agent.db") as memory:
        agent = make_agent(ScriptedOperator(), get_tools(Shop("nowhere")))
        names = {"create_agent": lambda *_: agent, "llm_url": None, "model": "", "RULES": RULES, "memory": memory}
        exec(blocks[0], names)
        agent.run("Watch the shop: check its health 2 times")
        names["run"] = memory.runs()[0]
        for block in blocks[1:]:
            exec(block, names)
