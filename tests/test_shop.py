"""The shop of the examples runs, breaks and is repaired; the scripted operator monitors it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import programs
import pytest
from rich.console import Console
from smolagents import ActionStep, TaskStep, ToolCallingAgent
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import Timing

EXAMPLES = Path(__file__).parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

from scripted_operator import ScriptedOperator, read, without_numbers  # noqa: E402
from shop.control import FAULTS, Shop, ShopError  # noqa: E402
from shop_tools import get_tools  # noqa: E402

TASK = "Customers complain about the shop. Find the cause and fix it."
BAD_RELEASE = "health check 500, no such column: currency (release 41)"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with Shop(tmp_path / "shop") as running:
        yield running


def elsewhere(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs code in another process that knows only the folder."""
    begin = f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}); from shop.control import Shop; "
    begin += f"shop = Shop({str(folder)!r}); "
    return programs.run(["-c", begin + code])


def get(shop: Shop, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(shop.url.removeprefix("http://"), timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


# --- the shop ------------------------------------------------------------------------------------------------------


def test_a_healthy_shop_sells_counts_and_logs(shop: Shop) -> None:
    assert str(shop.health()) == "health check: 200 OK (release 40)"
    status, page = get(shop, "/")
    assert (status, "<h1>The little shop</h1>" in page, "Lamp" in page) == (200, True, True)
    assert shop.checkout("lamp") == {"order": 1, "item": "lamp", "price": 45.0}
    assert json.loads(get(shop, "/checkout?item=mug")[1])["order"] == 2, "the health check's order was taken back"
    assert get(shop, "/checkout?item=moon")[0] == 404
    figures = shop.metrics()
    assert figures["requests"] == 6
    assert (figures["errors"], figures["release"]) == (0, 40)
    assert figures["memory_bytes"] > 1_000_000
    assert 0 < figures["disk_used_bytes"] < figures["disk_quota_bytes"]
    assert "POST /checkout 200" in shop.log()
    assert "GET /checkout 404" in shop.log(2)


@pytest.mark.parametrize(
    ("fault", "symptom", "by_restart", "by_rollback"),
    [
        ("crash", "no answer, the shop does not answer at http://127.0.0.1:", True, True),
        ("errors", "500 Internal Server Error, checkout fails: no such column: currency (release 41)", False, True),
        ("leak", "503 Service Unavailable, memory 1", True, True),
        ("disk", "503 Service Unavailable, disk quota exceeded: 4000 kB of 4000 kB used", False, False),
    ],
)
def test_each_fault_is_real_and_fixed_by_its_own_remedy(
    shop: Shop, fault: str, symptom: str, by_restart: bool, by_rollback: bool
) -> None:
    shop.fault(fault)
    assert symptom in str(shop.health())
    shop.restart()
    assert shop.health().ok is by_restart
    shop.rollback()
    assert shop.health().ok is by_rollback
    shop.clear()
    assert shop.health().ok
    assert shop.release == 40
    assert shop.checkout()["item"] == "mug"


def test_every_fault_is_tested() -> None:
    assert set(FAULTS) == {"crash", "errors", "leak", "disk", "flapping"}


def test_a_flapping_shop_alternates_between_healthy_and_failing(shop: Shop) -> None:
    shop.fault("flapping")
    assert [shop.health().ok for _ in range(8)] == [True, True, False, False] * 2
    shop.restart()
    assert all(shop.health().ok for _ in range(4))


def test_a_leak_takes_memory_and_time(shop: Shop) -> None:
    before = shop.metrics()
    shop.fault("leak")
    after = shop.metrics()
    assert after["memory_bytes"] > before["memory_bytes"] + 50_000_000
    assert after["latency_p95_ms"] > before["latency_p95_ms"]


def test_errors_of_the_bad_release_are_in_the_log(shop: Shop) -> None:
    shop.deploy(41)
    with pytest.raises(ShopError, match="checkout answered 500: no such column: currency"):
        shop.checkout()
    assert "POST /checkout 500" in shop.log(1)
    assert shop.log(1).endswith("ms no such column: currency")
    assert shop.metrics()["errors"] == 1


# --- control -------------------------------------------------------------------------------------------------------


def test_a_shop_outlives_the_process_that_started_it_and_is_found_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    try:
        done = elsewhere("import os, signal; shop.fault('errors'); os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
        assert "no shop is running" in done.stderr
        done = elsewhere("import os, signal; shop.start(); os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
        assert done.returncode == -signal.SIGKILL
        assert shop.running()
        assert shop.health().ok
        url, pid = shop.url, shop.pid
        shop.start()
        assert (shop.url, shop.pid) == (url, pid), "a running shop is not started again"
        shop.deploy(41)
        assert shop.url == url
        assert "(release 41)" in elsewhere("print(shop.health()); shop.rollback(); shop.stop()", tmp_path).stdout
        assert not shop.running()
        assert shop.release == 40
    finally:
        shop.stop()


def test_a_dead_shop_is_reported_clearly(shop: Shop, tmp_path: Path) -> None:
    url = shop.url
    os.kill(shop.pid or 0, signal.SIGKILL)
    while shop.running():
        time.sleep(0.01)
    dead = f"the shop does not answer at {url}: connection refused"
    assert str(shop.health()) == f"health check: no answer, {dead} (release 40)"
    assert shop.pid is None
    with pytest.raises(ShopError, match=dead):
        shop.metrics()
    with pytest.raises(ShopError, match=dead):
        shop.fault("leak")
    tools = {tool.name: tool for tool in get_tools(shop)}
    assert tools["get_metrics"]() == f"no metrics: {dead}"
    assert "no shop is running in" in str(Shop(tmp_path / "nowhere").health())
    assert not (tmp_path / "nowhere").exists()
    shop.stop()


def test_no_process_is_left_behind(shop: Shop) -> None:
    pids = [shop.pid]
    shop.fault("crash")
    shop.restart()
    pids.append(shop.pid)
    Shop(shop.folder).stop()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid or 0, 0)


def test_a_stale_state_never_hits_another_process(shop: Shop) -> None:
    shop.stop()
    with subprocess.Popen(["sleep", "30"]) as stranger:
        (shop.folder / "state.json").write_text(json.dumps({"pid": stranger.pid, "port": 1, "release": 40}))
        shop.stop()
        shop.restart()
        assert stranger.poll() is None
        stranger.kill()
    assert shop.health().ok


def test_a_rollback_wins_against_a_shop_that_a_killed_process_was_starting(shop: Shop) -> None:
    for delay in (0.0, 0.03, 0.06, 0.1):
        shop.deploy(41)
        shop.stop()
        shop._spawn(0)
        time.sleep(delay)  # the other shop starts before, while or after this one does
        shop.rollback()
        assert (shop.release, shop.health().status) == (40, 200)


def test_a_shop_that_cannot_start_says_why(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with pytest.raises(ShopError, match=r"the shop did not start: .*invalid choice: 77"):
        shop.deploy(77)
    shop.clear()
    assert shop.health().ok
    shop.stop()


def test_rollback_ends_at_the_first_release_and_faults_have_names(shop: Shop) -> None:
    shop.rollback()
    with pytest.raises(ShopError, match="there is no release before 39"):
        shop.rollback()
    with pytest.raises(ShopError, match="there is no fault 'fire': choose one of crash"):
        shop.fault("fire")


def test_a_web_page_cannot_break_the_shop(shop: Shop) -> None:
    assert get(shop, "/faults?name=crash", "POST")[0] == 403
    assert get(shop, "/faults?name=crash", "GET", **{"X-Shop": "control"})[0] == 403
    assert get(shop, "/a%0Ab<script>")[0] == 404
    assert "<script>" not in shop.log()
    assert shop.health().ok
    assert "/faults" not in shop.log(), "fault injection is not logged"


def test_the_command_line_runs_and_breaks_the_shop(tmp_path: Path) -> None:
    def control(*words: str) -> subprocess.CompletedProcess[str]:
        command = [EXAMPLES / "shop/control.py", *words, "--folder", tmp_path / "shop"]
        return programs.run(command, env=os.environ | {"COLUMNS": "200"})

    try:
        assert "● health check: 200 OK (release 40)" in control("start").stdout
        assert "○ health check: 500" in control("fault", "errors").stdout
        assert "● health check: 200 OK (release 40)" in control("rollback").stdout
        unknown = control("fault", "fire")
        assert (unknown.returncode, unknown.stderr) == (1, "")
        assert control("stop").stdout == "The shop is stopped.\n"
        dead = control("status")
        assert "connection refused" in dead.stdout
        assert dead.stderr == ""
    finally:
        Shop(tmp_path / "shop").stop()


# --- the operator --------------------------------------------------------------------------------------------------


def operate(shop: Shop, task: str = TASK, before: tuple[Any, ...] = (), **options: Any) -> tuple[str, list[str]]:
    """Runs a plain agent; returns its answer and the tools it called."""
    tools = get_tools(shop, Console(file=StringIO()))
    options = {"verbosity_level": 0, "max_steps": 25} | options
    agent = ToolCallingAgent(tools=tools, model=ScriptedOperator(), **options)
    agent.memory.steps.extend(before)
    answer = str(agent.run(task, reset=False))
    steps = [step for step in agent.memory.steps[len(before) :] if isinstance(step, ActionStep)]
    assert all(step.error is None for step in steps)
    assert all(step.token_usage and step.token_usage.input_tokens > 100 for step in steps)
    return answer, [call.name for step in steps for call in step.tool_calls or []]


def history(sentence: str) -> tuple[Any, ...]:
    """The documented way to inject history."""
    timing = Timing(start_time=0.0, end_time=1.0)
    return TaskStep(task="An earlier night"), ActionStep(step_number=0, timing=timing, observations=sentence)


DIAGNOSE = ["check_health", "read_logs", "get_metrics", "restart_application", "check_health"]
ROLLED_BACK = [*DIAGNOSE, "read_logs", "roll_back_release", "check_health"]


@pytest.mark.parametrize(
    ("fault", "calls", "verdict", "remedy"),
    [
        ("crash", DIAGNOSE, "Resolved: health check no answer, the shop does not", "restart_application"),
        ("leak", DIAGNOSE, "Resolved: health check 503, memory 1", "restart_application"),
        ("errors", ROLLED_BACK, f"Resolved: {BAD_RELEASE}", "roll_back_release"),
        ("disk", [*ROLLED_BACK, "notify_person"], "Unresolved: health check 503, disk quota", "notify_person"),
    ],
)
def test_without_knowledge_the_operator_diagnoses_tries_and_checks(
    shop: Shop, fault: str, calls: list[str], verdict: str, remedy: str
) -> None:
    shop.fault(fault)
    answer, called = operate(shop)
    assert called == [*calls, "final_answer"]
    assert answer.startswith(verdict)
    assert answer.endswith(f". Remedy: {remedy}.")
    assert shop.health().ok is (fault != "disk")
    assert (shop.folder / "notifications.txt").exists() is (fault == "disk")


@pytest.mark.parametrize(
    ("fault", "sentence", "remedy"),
    [
        ("errors", f"Resolved: {BAD_RELEASE}. Remedy: roll_back_release.", "roll_back_release"),
        (
            "crash",
            "Resolved: health check no answer, the shop does not answer at http://127.0.0.1:9: connection refused "
            "(release 12). Remedy: restart_application.",
            "restart_application",
        ),
        (
            "disk",
            "Unresolved: health check 503, disk quota exceeded: 9 kB of 9 kB used (release 3). Remedy: notify_person.",
            "notify_person",
        ),
    ],
)
def test_with_a_remembered_sentence_it_tries_that_remedy_first(
    shop: Shop, fault: str, sentence: str, remedy: str
) -> None:
    shop.fault(fault)
    answer, called = operate(shop, before=history(sentence))
    checked = [] if remedy == "notify_person" else ["check_health"]
    assert called == ["check_health", remedy, *checked, "final_answer"]
    assert answer.endswith(f"Remedy: {remedy}.")


def test_a_memory_of_another_problem_or_of_a_wrong_remedy_changes_little(shop: Shop) -> None:
    shop.fault("errors")
    other = "Resolved: health check 503, memory 120 MB of 96 MB allowed (release 40). Remedy: roll_back_release."
    assert operate(shop, before=history(other))[1] == [*ROLLED_BACK, "final_answer"]
    shop.fault("errors")
    wrong = f"Resolved: {BAD_RELEASE}. Remedy: restart_application."
    answer, called = operate(shop, before=history(wrong))
    assert called[:4] == ["check_health", "restart_application", "check_health", "read_logs"]
    assert answer.endswith("Remedy: roll_back_release.")


def test_in_one_conversation_the_second_time_is_quicker(shop: Shop) -> None:
    agent = ToolCallingAgent(tools=get_tools(shop), model=ScriptedOperator(), verbosity_level=0)
    taken = []
    for _ in range(2):
        shop.fault("errors")
        before = len(agent.memory.steps)
        agent.run(TASK, reset=False)
        taken.append(len(agent.memory.steps) - before - 1)
    assert taken == [9, 4]


def test_a_healthy_shop_is_left_alone(shop: Shop) -> None:
    assert operate(shop) == ("The shop is healthy: there is nothing to do.", ["check_health", "final_answer"])


def alarm(step: ActionStep, agent: Any) -> None:
    """The documented callback: counts failures in the last ten steps."""
    failures = sum("500" in (past.observations or "") for past in agent.memory.steps[-10:] if hasattr(past, "error"))
    if step.observations and "health check" in step.observations and failures >= 3:
        step.observations += f"\n[ALERT] Pattern detected: {failures} failures in last 10 checks"


def test_a_watch_of_a_flapping_shop_calls_a_person_once(shop: Shop) -> None:
    shop.fault("flapping")
    answer, called = operate(shop, "Watch the shop: check its health 12 times.", step_callbacks=[alarm])
    assert called.count("check_health") == 12
    assert called.count("notify_person") == 1
    assert called[-1] == "final_answer"
    failing = "health check 500, Cannot operate on a closed database (release 40)"
    assert answer == f"Watched the shop: 12 checks, 6 of them failed ({failing})."
    (note,) = (shop.folder / "notifications.txt").read_text().splitlines()
    assert note.endswith(f"The shop needs you: {failing}. It still fails. Tried: nothing yet.")


def test_after_an_alert_the_operator_continues_the_repair(shop: Shop) -> None:
    shop.fault("errors")
    failing = [ActionStep(step_number=n, timing=Timing(0.0, 1.0), observations="health check: 500") for n in range(3)]
    answer, called = operate(shop, before=(TaskStep(task="Watch"), *failing), step_callbacks=[alarm])
    assert called.count("notify_person") == 1
    assert called.index("notify_person") < called.index("restart_application")
    assert answer == f"Resolved: {BAD_RELEASE}. Remedy: roll_back_release."


def test_when_its_steps_are_used_up_it_reports_its_progress(shop: Shop) -> None:
    shop.fault("disk")
    agent = ToolCallingAgent(tools=get_tools(shop), model=ScriptedOperator(), verbosity_level=0, max_steps=4)
    told = str(agent.run(TASK))
    assert told.startswith("Unfinished: health check 503, disk quota exceeded")
    assert told.endswith("Tried: restart_application.")


def say(role: MessageRole, text: str) -> ChatMessage:
    return ChatMessage(role, [{"type": "text", "text": text}])


def test_knowledge_is_taken_from_quoted_memory_and_never_from_what_tools_say() -> None:
    sentence = f"Resolved: {BAD_RELEASE}. Remedy: roll_back_release."
    task = say(MessageRole.USER, f"New task:\n{TASK}")
    block = say(MessageRole.USER, f"Memories from earlier runs that may help. …\n[1] a run\n❘ {sentence}\nEnd.")
    called = say(MessageRole.TOOL_CALL, "Calling tools:\n[{'id': 'a', 'function': {'name': 'read_logs'}}]")
    logged = say(MessageRole.TOOL_RESPONSE, f"Observation:\n{sentence}")
    assert read([task, block]).known == [(BAD_RELEASE, "roll_back_release")]
    assert read([task, called, logged]).known == []
    assert without_numbers(BAD_RELEASE) == without_numbers(BAD_RELEASE.replace("41", "57"))


def test_the_operator_keeps_nothing_between_calls_and_says_what_it_is() -> None:
    one, other = ScriptedOperator(), ScriptedOperator()
    assert "no LLM" in one.model_id
    talk = [
        say(MessageRole.USER, f"New task:\n{TASK}"),
        say(MessageRole.TOOL_CALL, "Calling tools:\n[{'id': 'a', 'function': {'name': 'check_health'}}]"),
        say(MessageRole.TOOL_RESPONSE, "Observation:\n[2025-01-01T09:00] health check: 500 Oops, it hurts (release 1)"),
    ]
    first = one.generate(talk, tools_to_call_from=[])
    one.generate(talk[:1], tools_to_call_from=[])
    assert first == one.generate(talk, tools_to_call_from=[]) == other.generate(talk, tools_to_call_from=[])
    assert [call.function.name for call in first.tool_calls or []] == ["read_logs"]
    heard = sum(len(message.content[0]["text"]) for message in talk)
    assert first.token_usage is not None
    assert first.token_usage.input_tokens == heard // 4
