"""Rules over steps: what fires when, what it does, and that it never does harm."""

from __future__ import annotations

import gc
import json
import logging
import threading
import time
import weakref
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from rich.console import Console
from scripted import answer, calling_agent, calls, code, code_agent
from smolagents.memory import ActionStep, TaskStep, ToolCall
from smolagents.monitoring import Timing, TokenUsage
from smolagents.utils import AgentError

from smolmem import Memory, Watch
from smolmem.core.errors import InvalidArgument
from smolmem.policies.detectors import Ceiling, Drift, Gap, SeenStep

SICK, WELL = code("print('health check: HTTP 500')"), code("print('health check: HTTP 200')")


class Someone:
    """Stands where a rule wants an agent and does not care which."""

    name = "someone"


def step(number: int, observations: str = "", **fields: Any) -> ActionStep:
    timing = Timing(fields.pop("began", float(number)), fields.pop("ended", number + 0.5))
    return ActionStep(step_number=number, timing=timing, observations=observations, **fields)


def fired(rule: Watch, steps: list[ActionStep]) -> list[int]:
    """The numbers of the steps at which a rule fires, as a plain callback."""
    alerts: list[Any] = []
    rule.then = (alerts.append,)
    someone = Someone()
    for each in steps:
        rule(each, agent=someone)
    return [alert.number for alert in alerts]


def seen(agent: Any) -> list[str]:
    return [each.observations or "" for each in agent.memory.steps if isinstance(each, ActionStep)]


# --- what fires ------------------------------------------------------------------------------------------------------


def test_the_third_failure_is_told_in_the_third_step_and_once() -> None:
    agent = code_agent(SICK, SICK, SICK, SICK, code("final_answer(1)"), step_callbacks=[Watch("HTTP 5..")])
    agent.run("Watch")
    assert ["[ALERT]" in text for text in seen(agent)] == [False, False, True, False, False]
    assert "[ALERT] pattern 'HTTP 5..': 3 of the last 3 steps match" in seen(agent)[2]


def test_a_rule_fires_again_only_after_it_was_over() -> None:
    texts = ["bad", "bad", "ok", "ok", "ok", "bad", "bad", "bad"]
    assert fired(Watch("bad", window=3, threshold=2), [step(n, text) for n, text in enumerate(texts)]) == [1, 6]


def test_any_test_of_a_step_can_be_a_rule() -> None:
    rule = Watch(lambda each: each.step_number % 2, window=4, threshold=2, name="odd")
    assert fired(rule, [step(n) for n in range(6)]) == [3]


def test_failures_count_whatever_the_error_and_the_same_error_only_if_it_is_the_same() -> None:
    errors = [ValueError("port 1"), ValueError("port 2"), KeyError("x"), ValueError("port 3")]
    steps = [step(n, error=error) for n, error in enumerate(errors)]
    assert fired(Watch.failures(threshold=3), steps) == [2]
    assert fired(Watch.same_error(threshold=3), steps) == [3]


def test_a_loop_is_the_same_call_with_the_same_arguments() -> None:
    asked = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 3}, {"a": 1, "b": 2}]
    steps = [step(n, tool_calls=[ToolCall("look", given, str(n))]) for n, given in enumerate(asked)]
    assert fired(Watch.loop(threshold=3), steps) == [3]
    again = [step(n, code_action="x = 1") for n in range(3)]
    assert fired(Watch.loop(threshold=3), again) == [2]


def test_steps_that_become_slow_are_noticed() -> None:
    took = [1, 1, 1, 1, 1, 1, 9, 9, 9, 9, 1, 1, 1]
    steps = [step(n, began=0.0, ended=float(each)) for n, each in enumerate(took)]
    assert fired(Watch.slow(factor=3, threshold=3), steps) == [7]


def test_ceilings_hold_for_one_run_or_for_hours() -> None:
    used = [step(n % 4 + 1, token_usage=TokenUsage(100, 20), ended=n * 1800.0) for n in range(12)]
    assert fired(Watch.tokens(400), used) == [4, 4, 4]
    assert fired(Watch.tokens(400, hours=24), used) == [4]
    assert fired(Watch.cost(0.0006, (1.0, 10.0)), used) == [2, 2, 2]
    assert Ceiling(400, (1e6, 1e6), 1.0).see(SeenStep(used[0], 1))[1] is None


def test_silence_is_noticed_while_it_lasts_and_told_in_the_next_step(clock: Any) -> None:
    rang = threading.Event()

    def think_long(_: Any) -> str:
        clock.pass_by(1)
        assert rang.wait(60)
        return WELL

    def end_in_time(step: ActionStep) -> None:
        step.timing.end_time = step.step_number / 100

    rule = Watch.silence(0.05, then=["note", lambda alert: rang.set()])
    agent = code_agent(WELL, think_long, code("final_answer(1)"), step_callbacks=[end_in_time, rule])
    agent.run("Watch")
    assert ["silence: no step" in text for text in seen(agent)] == [False, True, False]


def test_a_silence_in_the_past_is_found_by_the_times_of_steps() -> None:
    gap = Gap(60)
    told = [gap.see(SeenStep(step(n, ended=at), 1))[1] for n, at in enumerate([0.5, 10.0, 200.0])]
    assert told == [None, None, "no step for 190 seconds"]


def test_a_rule_is_about_its_tools_and_kinds_only() -> None:
    rule = Watch("bad", threshold=1, window=1, tool="check")
    assert rule.applies_to(step(1, tool_calls=[ToolCall("check", {}, "1")]))
    assert rule.applies_to(step(1, code_action="print(check(1))"))
    assert not rule.applies_to(step(1, tool_calls=[ToolCall("other", {}, "1")]))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"what": "("}, "not a regular expression"),
        ({"what": "x", "threshold": 11}, "could never fire"),
        ({"what": "x", "threshold": 0}, "threshold"),
        ({"what": "x", "kind": "task"}, "nothing else can be watched"),
        ({"what": "x", "then": "explode"}, "then is"),
        ({"what": "x", "then": "file:///etc/passwd"}, "then is"),
        ({"what": "x", "tool": [1]}, "a name or a list of names"),
        ({"what": "x", "tool": 5}, "a name or a list of names"),
        ({"what": "x", "then": None}, "then is"),
        ({"what": "x", "then": 5}, "then is"),
        ({"what": "x", "name": 5}, "name is a text"),
        ({"what": b"x"}, "not a regular expression"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Watch(**wrong)


def test_an_unknown_option_of_a_ready_made_rule_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="a rule has no limit"):
        Watch.loop(limit=3)


def test_drift_needs_something_to_compare_with() -> None:
    drift = Drift(3.0, 20, 1)
    assert [drift.see(SeenStep(step(n, began=0.0, ended=9.0), 1))[1] for n in range(3)] == [None] * 3


# --- what it does ----------------------------------------------------------------------------------------------------


def test_an_alert_can_be_a_step_of_its_own(memory: Memory) -> None:
    agent = code_agent(SICK, SICK, code("final_answer(1)"))
    memory.attach(agent, watch=[Watch("500", threshold=2, then="inject")])
    agent.run("Watch")
    assert "[alert · given by a rule" in agent.model.prompts[2][-4].content[0]["text"]
    assert memory.steps(kind="injected")[0].text == "pattern '500': 2 of the last 2 steps match"
    agent.model.script = iter([code("final_answer(1)")])
    agent.run("Again")
    assert all(each.step_number for each in agent.memory.steps if isinstance(each, ActionStep))


def test_a_run_that_is_paused_goes_on_when_it_is_resumed(memory: Memory) -> None:
    agent = code_agent(SICK, SICK, SICK, code("final_answer('back')"))
    memory.attach(agent, watch=[Watch("500", threshold=2, then=["note", "pause"])])
    with pytest.raises(AgentError, match="interrupted"):
        agent.run("Watch")
    assert memory.runs()[0].status == "interrupted"
    assert memory.runs()[0].step_count == 2
    assert memory.resume(agent) == "back"
    assert len(memory.alerts()) == 1


def test_an_alert_is_posted_to_a_webhook() -> None:
    got: list[Any] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        rule = Watch("bad", window=1, threshold=1, then=f"http://127.0.0.1:{server.server_port}/")
        rule(step(7, "bad"), agent=Someone())
        for _ in range(1000):
            if got:
                break
            time.sleep(0.05)
    assert got[0]["reason"] == "1 of the last 1 steps match"
    assert got[0]["number"] == 7


def test_a_webhook_that_is_not_there_is_said_and_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    rule = Watch("bad", window=1, threshold=1, then=["http://127.0.0.1:9/", "note"])
    bad = step(1, "bad")
    with caplog.at_level(logging.WARNING, "smolmem"):
        rule(bad, agent=Someone())
        for _ in range(1000):
            if "could not be posted" in caplog.text:
                break
            time.sleep(0.05)
    assert "could not be posted to http://127.0.0.1:9/" in caplog.text
    assert "[ALERT]" in bad.observations


# --- with a store ----------------------------------------------------------------------------------------------------


def test_a_rule_sees_across_runs_and_processes(memory: Memory) -> None:
    first = calling_agent(calls(("weather", {"city": "nowhere"})), answer("bad"), name="w", description="w")
    memory.attach(first, watch=[Watch.failures(threshold=2)])
    first.run("One")
    assert memory.alerts() == []
    second = calling_agent(calls(("weather", {"city": "nowhere"})), answer("bad"), name="w", description="w")
    memory.attach(second, watch=[Watch.failures(threshold=2)])
    second.run("Two")
    (alert,) = memory.alerts()
    assert (alert.rule, alert.run, alert.number, list(alert.actions)) == ("failures", memory.runs()[0].id, 1, ["note"])
    third = memory.attach(
        calling_agent(calls(("weather", {"city": "nowhere"})), answer("bad"), name="w", description="w"),
        watch=[Watch.failures(threshold=2)],
    )
    third.run("Three")
    assert len(memory.alerts()) == 1  # still the same incident
    assert memory.verify()


def test_detach_takes_the_rules_off_and_attaching_twice_does_not_double_them(memory: Memory) -> None:
    rule = Watch("500", threshold=2, window=3)
    agent = memory.attach(code_agent(SICK, SICK, code("final_answer(1)")), watch=[rule])
    memory.attach(agent, watch=[rule])
    agent.run("Watch")
    assert len(memory.alerts()) == 1
    memory.detach(agent)
    assert not any(rule in each for each in agent.step_callbacks._callbacks.values())


def test_only_rules_can_watch(memory: Memory) -> None:
    with pytest.raises(InvalidArgument, match="watch takes a list of rules"):
        memory.attach(code_agent(), watch=["500"])


def test_a_backtest_tells_when_a_rule_would_have_fired_and_does_nothing(memory: Memory) -> None:
    agent = memory.attach(code_agent(WELL, SICK, SICK, SICK, code("final_answer(1)")))
    agent.run("Watch")
    did: list[Any] = []
    result = memory.backtest(Watch("HTTP 5", threshold=2, then=did.append))
    assert [(alert.number, alert.reason) for alert in result.alerts] == [(3, "2 of the last 3 steps match")]
    assert (result.steps, result.runs, did) == (5, 1, [])
    assert result
    assert not memory.backtest(Watch("HTTP 9"))
    console = Console(width=90, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(result)
    drawn = console.export_text()
    assert "would have fired once in 5 steps of 1 run" in drawn
    assert "··▲··" in drawn


def test_a_backtest_of_a_loop_counts_only_steps_that_repeat_an_earlier_step(memory: Memory) -> None:
    same = code("print('again')")
    memory.attach(code_agent(code("print('first')"), same, same, same, code("final_answer(1)"))).run("Repeat")
    result = memory.backtest(Watch.loop())
    assert result.counted == [False, False, True, True, False]
    assert result.fired == [False, False, False, True, False]


def test_what_a_backtest_finds_is_what_was_found_live(memory: Memory) -> None:
    script = [SICK if n % 5 in (1, 2, 3) else WELL for n in range(30)]
    agent = memory.attach(
        code_agent(*script, code("final_answer(1)")), watch=[Watch("HTTP 5", window=4, threshold=3, name="r")]
    )
    agent.run("Watch")
    live = [alert.number for alert in reversed(memory.alerts(rule="r"))]
    assert len(live) == 6
    past = memory.backtest(Watch("HTTP 5", window=4, threshold=3, name="r"))
    assert [alert.number for alert in past.alerts] == live


# --- never in the way ------------------------------------------------------------------------------------------------


def test_a_rule_that_raises_is_named_once_and_the_run_goes_on(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    def broken(each: Any) -> bool:
        raise RuntimeError("oops")

    agent = memory.attach(code_agent(SICK, SICK, code("final_answer(7)")), watch=[Watch(broken), Watch("500")])
    with caplog.at_level(logging.WARNING, "smolmem"):
        assert agent.run("Watch") == 7
    assert caplog.text.count("the rule 'broken' is skipped: RuntimeError: oops") == 1


def test_an_act_that_raises_is_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    def act(alert: Any) -> None:
        raise RuntimeError("no phone")

    agent = code_agent(SICK, code("final_answer(7)"), step_callbacks=[Watch("500", threshold=1, then=[act, "note"])])
    with caplog.at_level(logging.WARNING, "smolmem"):
        assert agent.run("Watch") == 7
    assert "no phone" in caplog.text
    assert "[ALERT]" in seen(agent)[0]


def test_a_pattern_that_takes_forever_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    rule = Watch(r"(a|aa)+$", threshold=1)
    with caplog.at_level(logging.WARNING, "smolmem"):
        began = time.process_time()
        rule(step(1, "a" * 5_000 + "!"), agent=Someone())
    assert time.process_time() - began < 5
    assert "takes too long" in caplog.text


def test_failing_calls_of_a_tool_calling_agent_are_seen(memory: Memory) -> None:
    agent = calling_agent(*[calls(("weather", {"city": "nowhere"}))] * 4, answer(1))
    memory.attach(agent, watch=[Watch.loop(), Watch.failures(tool="weather")])
    agent.run("Go")
    assert sorted(alert.rule for alert in memory.alerts()) == ["failures", "loop"]


def test_lines_that_only_look_like_alerts_count() -> None:
    steps = [step(n, f"[ALERT] HTTP 500 at /checkout {n}") for n in range(3)]
    assert fired(Watch("HTTP 5..", threshold=3), steps) == [2]


def test_a_backtest_counts_what_its_rule_cannot_judge(memory: Memory) -> None:
    def broken(each: Any) -> bool:
        raise RuntimeError("oops")

    agent = memory.attach(code_agent(SICK, code("final_answer(1)")))
    agent.run("Watch")
    result = memory.backtest(Watch(broken))
    assert (result.steps, result.skipped, result.alerts) == (0, 2, [])


def test_a_pause_in_a_managed_agent_pauses_the_one_that_called_it(memory: Memory) -> None:
    helper = code_agent(SICK, SICK, code("final_answer(1)"), name="helper", description="helps")
    agent = code_agent(code("print(helper(task='look'))"), code("final_answer(2)"), managed_agents=[helper])
    memory.attach(agent)
    memory.attach(helper, watch=[Watch("500", threshold=2, then="pause")])
    with pytest.raises(AgentError, match="interrupted"):
        agent.run("Go")
    assert {run.agent: run.status for run in memory.runs()} == {"helper": "interrupted", "CodeAgent": "interrupted"}


def test_alerts_in_a_loop_by_hand_know_their_run(memory: Memory) -> None:
    rule = Watch("500", threshold=1)
    agent = memory.attach(code_agent(SICK), watch=[rule])
    agent.memory.steps.append(TaskStep(task="By hand"))
    memory_step = step(1, "HTTP 500")
    rule(memory_step, agent=agent)
    agent.memory.steps.append(memory_step)
    assert [alert.run for alert in memory.alerts()] == [memory.runs()[0].id]


def test_rules_and_memory_do_not_keep_an_agent_alive(memory: Memory) -> None:
    rule = Watch("500")
    agent = memory.attach(code_agent(SICK, code("final_answer(1)")), watch=[rule], recall=3, tools=True)
    agent.run("Watch")
    alive = weakref.ref(agent)
    del agent
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("seconds", [0, -1, "soon", None])
def test_silence_needs_a_time(seconds: Any) -> None:
    with pytest.raises(InvalidArgument, match="more than 0"):
        Watch.silence(seconds)


def test_what_a_rule_writes_does_not_count_for_the_next(memory: Memory) -> None:
    rules = [Watch("bad", window=2, threshold=1, name="bad"), Watch("ALERT|bad:", window=2, threshold=1, name="echo")]
    agent = memory.attach(code_agent(code("print('bad')"), code("final_answer(1)")), watch=rules)
    agent.run("Watch")
    assert [alert.rule for alert in memory.alerts()] == ["bad"]
