"""Recorded runs as OpenInference spans: a real collector gets them over OTLP, afterwards or while they are recorded."""

from __future__ import annotations

import base64
import gc
import json
import logging
import os
import socket
import sys
import textwrap
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pages
import PIL.Image
import programs
import pytest
import requests
from collectors import Collected, collector, phoenix
from conftest import TORTURE
from scripted import answer, calling_agent, calls, code, code_agent, team, weather
from smolagents import tool

from smolmem import Memory, SmolmemError
from smolmem.agents import live_trace
from smolmem.cli.main import main
from smolmem.core.errors import CollectorFailed, InvalidArgument, NotFound
from smolmem.transfer.traces import otlp, run_spans

ROOT = Path(__file__).parent.parent
CLOSED = "http://127.0.0.1:1"


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory(tmp_path / "agent.db", embedder="off") as opened:
        yield opened


@pytest.fixture
def collected() -> Iterator[Collected]:
    with collector() as opened:
        yield opened


# --- what is sent ----------------------------------------------------------------------------------------------------


def test_a_run_is_a_tree_of_spans_with_its_managed_agents_below_the_calls(memory: Memory, collected: Collected) -> None:
    team(memory).run("Find the weather")
    sent = memory.trace(memory.runs(managed=False)[0], collected.url)
    model = ("scripted-1", [])
    helped = [
        ("Step 1", [model, ("python_interpreter", [("weather", [])])]),
        ("Step 2", [model, ("python_interpreter", [("final_answer", [])])]),
    ]
    assert collected.tree() == [
        (
            "CodeAgent.run",
            [
                ("Planning", [model]),
                ("Step 1", [model, ("python_interpreter", [("helper", [("helper.run", helped)])])]),
                ("Step 2", [model, ("python_interpreter", [])]),
                ("Step 3", [model, ("python_interpreter", [("final_answer", [])])]),
            ],
        )
    ]
    assert (sent.runs, sent.spans, sent.to) == (2, len(collected.spans), f"{collected.url}/v1/traces")
    assert {span.trace_id.hex() for span in collected.spans.values()} == {sent.trace}
    assert collected.projects == {"default"}


def test_spans_carry_prompts_answers_tokens_results_and_errors(memory: Memory, collected: Collected) -> None:
    team(memory).run("Find the weather")
    run = memory.runs(managed=False)[0]
    memory.trace(run.id[:8], collected.url, prices=(1.0, 2.0))
    [agent] = collected.named("CodeAgent.run")
    about = collected.attributes(agent)
    assert (about["openinference.span.kind"], about["input.value"]) == ("AGENT", "Find the weather")
    assert about["output.value"] == run.answer
    assert about["session.id"] == run.session
    assert json.loads(about["metadata"])["status"] == "finished"
    assert agent.status.code == 1
    models = [collected.attributes(span) for span in collected.named("scripted-1")]
    assert all(each["openinference.span.kind"] == "LLM" for each in models)
    assert sum(each["llm.token_count.total"] for each in models) == 6 * 15
    assert models[0]["llm.cost.total"] == pytest.approx((10 * 1 + 5 * 2) / 1e6)
    last = models[-1]
    assert last["llm.input_messages.0.message.role"] == "system"
    assert last["llm.output_messages.0.message.content"] == code("final_answer(said)")
    [called] = collected.named("weather")
    assert json.loads(collected.attributes(called)["input.value"]) == {"args": ["Rome"], "kwargs": {}}
    assert collected.attributes(called)["output.value"] == "sunny in Rome"
    failed = [span for span in collected.spans.values() if span.status.code == 2]
    assert sorted(span.name for span in failed) == ["Step 2", "python_interpreter"]
    [event] = failed[0].events
    assert "ZeroDivisionError" in {item.key: item.value.string_value for item in event.attributes}["exception.message"]


def test_costs_are_those_of_the_model_unless_prices_are_given(memory: Memory, collected: Collected) -> None:
    agent = memory.attach(code_agent(code("final_answer(1)")))
    agent.model.model_id = "openai/gpt-4o-mini"
    agent.run("go")
    memory.trace(memory.runs()[0], collected.url)
    [model] = [collected.attributes(span) for span in collected.named("openai/gpt-4o-mini")]
    assert model["llm.cost.total"] == pytest.approx((10 * 0.15 + 5 * 0.6) / 1e6)
    assert model["llm.cost.prompt"] == pytest.approx(10 * 0.15 / 1e6)


def test_every_span_lies_within_the_time_of_the_span_above_it(memory: Memory, collected: Collected) -> None:
    team(memory).run("Find the weather")
    memory.trace(memory.runs()[0], collected.url)
    for span in collected.spans.values():
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        if span.parent_span_id:
            above = collected.spans[span.parent_span_id.hex()]
            assert above.start_time_unix_nano - 1e6 <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= above.end_time_unix_nano + 1e6


def test_a_run_of_a_managed_agent_is_sent_with_the_run_that_called_it(memory: Memory, collected: Collected) -> None:
    team(memory).run("Find the weather")
    helper = next(run for run in memory.runs() if run.agent == "helper")
    assert memory.trace(helper, collected.url).run == helper.parent


def test_a_run_that_is_sent_twice_is_one_trace(memory: Memory, tmp_path: Path, collected: Collected) -> None:
    team(memory).run("Find the weather")
    first = memory.trace(memory.runs(managed=False)[0], collected.url)
    spans = dict(collected.spans)
    memory.export(tmp_path / "export.zip")
    with Memory(tmp_path / "other.db", embedder="off") as other:  # where its steps have other numbers
        other.attach(code_agent(code("final_answer(1)"))).run("Something else")
        other.load(tmp_path / "export.zip")
        again = other.trace(first.run, collected.url)
    assert again == first
    assert collected.spans.keys() == spans.keys()


def test_tool_calls_of_a_tool_calling_agent_have_their_arguments_and_failures(
    memory: Memory, collected: Collected
) -> None:
    agent = calling_agent(calls(("weather", {"city": "nowhere"})), calls(("weather", {"city": "Oslo"})), answer("ok"))
    memory.attach(agent).run("Say it")
    memory.trace(memory.runs()[0], collected.url)
    lost, found = sorted(collected.named("weather"), key=lambda span: span.start_time_unix_nano)
    assert json.loads(collected.attributes(found)["input.value"]) == {"city": "Oslo"}
    assert "no such city" in lost.status.message
    llm = collected.attributes(min(collected.named("scripted-1"), key=lambda span: span.start_time_unix_nano))
    head = "llm.output_messages.0.message.tool_calls.0.tool_call"
    assert llm[f"{head}.function.name"] == "weather"
    assert json.loads(llm[f"{head}.function.arguments"]) == {"city": "nowhere"}


def test_a_call_that_failed_without_a_message_is_an_error(memory: Memory, collected: Collected) -> None:
    @tool
    def silent() -> str:
        """Fails and does not say why."""
        raise LookupError

    memory.attach(calling_agent(calls(("silent", {})), answer("ok"), tools=[silent])).run("Say it")
    memory.trace(memory.runs()[0], collected.url)
    (span,) = collected.named("silent")
    assert span.status.code == span.status.STATUS_CODE_ERROR
    assert [event.name for event in span.events] == ["exception"]


def test_a_failed_run_has_its_root_span_with_the_exception(memory: Memory, collected: Collected) -> None:
    agent = memory.attach(calling_agent(calls(("weather", {"city": "Oslo"})), RuntimeError("the model is down")))
    with pytest.raises(Exception, match="the model is down"):
        agent.run("Say it")
    memory.trace(memory.runs()[0], collected.url)
    [root] = collected.named("ToolCallingAgent.run")
    named = {item.key: item.value.string_value for item in root.events[0].attributes}
    assert root.status.code == 2
    assert named["exception.type"] == "AgentGenerationError"
    assert "RuntimeError: the model is down" in named["exception.stacktrace"]
    assert collected.named("Step 2")[0].status.message == "the step was interrupted"


KILLED = """
    import os, sys
    from scripted import code, code_agent, team, weather
    from smolagents import tool
    from smolmem import Memory

    @tool
    def deploy(release: int) -> str:
        '''Deploys.

        Args:
            release: which
        '''
        os._exit(9)

    agent = code_agent(code("print(weather('Rome'))"), code("deploy(41)"), tools=[weather, deploy])
    Memory(sys.argv[1], embedder="off").attach(agent).run("Deploy it")
"""


@tool
def deploy(release: int) -> str:
    """Deploys.

    Args:
        release: which
    """
    return f"deployed {release}"


def test_a_killed_run_shows_the_call_of_unknown_outcome_and_once_resumed_the_rest(
    tmp_path: Path, collected: Collected
) -> None:
    store, script = tmp_path / "killed.db", tmp_path / "killed.py"
    script.write_text(textwrap.dedent(KILLED))  # smolagents reads the source of a tool
    ended = programs.run([script, store])
    assert ended.returncode == 9, ended.stderr
    with Memory(store, embedder="off") as memory:
        memory.trace(memory.runs()[0], collected.url)
        [unknown] = collected.named("deploy")
        assert unknown.status.message == "it is unknown whether the call happened"
        assert collected.named("Unfinished step")[0].status.code == 2
        assert collected.named("CodeAgent.run")[0].status.message == "the run was interrupted"
        before = {span.trace_id for span in collected.spans.values()}
        memory.trace(memory.runs()[0], collected.url)
        assert {span.trace_id for span in collected.spans.values()} == before
        sent = set(collected.spans)
        agent = code_agent(code("final_answer('done')"), tools=[weather, deploy])
        memory.resume(agent, unknown="rerun")
        memory.trace(memory.runs()[0], collected.url)
    resumed = {span.name: span for id, span in collected.spans.items() if id not in sent}
    assert len({span.trace_id for span in resumed.values()} | before) == 2, (
        "collectors keep a span as it was sent first"
    )
    assert resumed["CodeAgent.run"].status.code == 1
    assert resumed["deploy"].status.code == 1
    assert {"Step 1", "Step 2", "Step 3"} <= resumed.keys()
    assert "Unfinished step" not in resumed


def test_images_are_sent_as_references_and_pixels_never(memory: Memory, collected: Collected) -> None:
    agent = memory.attach(code_agent(code("final_answer('a cat')")))
    agent.run("What is this?", images=[PIL.Image.effect_noise((300, 300), 90)])
    run = memory.runs()[0]
    memory.trace(run, collected.url)
    [llm] = collected.named("scripted-1")
    about = collected.attributes(llm)
    urls = [value for name, value in about.items() if name.endswith("image.image.url")]
    assert urls == [f"smolmem://run/{run.id}/step/1/message/1/image/1"]
    assert sum(collected.sizes) < 30_000


def test_secrets_stay_redacted(tmp_path: Path, collected: Collected) -> None:
    secret = "hunter2-very-secret-value"
    with Memory(tmp_path / "s.db", embedder="off", secrets={"password": secret}) as memory:
        memory.attach(code_agent(code(f"print('{secret}')"), code("final_answer(1)"))).run(f"Use {secret}")
        memory.trace(memory.runs()[0], collected.url)
    assert secret not in str(collected.spans)


def test_long_texts_and_prompts_are_cut_so_that_collectors_take_them(memory: Memory, collected: Collected) -> None:
    script = [code(f"print('{number}' * 50_000)") for number in range(12)]
    memory.attach(code_agent(*script, code("final_answer(1)"))).run("Print")
    memory.trace(memory.runs()[0], collected.url)
    assert len(collected.sizes) > 1
    assert max(collected.sizes) < 2_000_000
    assert "messages are left out here" in str(collected.spans)


def test_hostile_values_are_sent_as_text(memory: Memory, collected: Collected) -> None:
    body = "print('\\x00\\x1b[31m' + chr(0xd800)); final_answer([float('nan'), {1: print}, b'\\xff', 10 ** 40])"
    memory.attach(code_agent(code(body))).run("a\0b \ud800 \u202e")
    sent = memory.trace(memory.runs()[0], collected.url)
    assert len(collected.spans) == sent.spans > 3


@pytest.mark.sampled
def test_a_large_run_is_sent_in_seconds(memory: Memory, collected: Collected) -> None:
    count = 150 if TORTURE else 60
    script = [code(f"print({number})") for number in range(count)]
    memory.attach(code_agent(*script, code("final_answer(1)"), max_steps=200)).run("Count")
    began = time.monotonic()
    memory.trace(memory.runs()[0], collected.url)
    assert time.monotonic() - began < 30
    assert len([span for span in collected.spans.values() if span.name.startswith("Step ")]) == count + 1


# --- how it is sent ---------------------------------------------------------------------------------------------------


def small(memory: Memory, **options: Any) -> Any:
    agent = memory.attach(code_agent(code("print(1)"), code("final_answer(2)")), **options)
    agent.run("Count")
    return memory.runs()[0]


def test_headers_come_from_the_caller_the_environment_and_the_url(
    memory: Memory, collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-one=1,x-two=two%20words")
    with_user = collected.url.replace("://", "://public:se%40cret@")
    sent = memory.trace(small(memory), f"{with_user}/api/public/otel/v1/traces", headers={"x-one": "ours"})
    [request] = collected.requests
    assert (request["x-one"], request["x-two"]) == ("ours", "two words")
    assert request["Authorization"] == f"Basic {base64.b64encode(b'public:se@cret').decode()}"
    assert collected.paths == ["/api/public/otel/v1/traces"]
    assert "cret" not in sent.to


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "give its key"), (404, "/v1/traces"), (302, "give a collector"), (500, "give a collector")],
)
def test_a_refusal_is_one_sentence_with_what_to_do(memory: Memory, status: int, said: str) -> None:
    with collector(status, b"<html>no\x1b[31m entry</html>") as collected, pytest.raises(CollectorFailed) as error:
        memory.trace(small(memory), collected.url)
    assert f"answered {status}" in str(error.value)
    assert said in str(error.value)
    assert "\x1b" not in str(error.value)


def test_a_collector_that_is_down_is_one_sentence_and_not_the_password(memory: Memory) -> None:
    with pytest.raises(CollectorFailed, match=r"does not answer.*start it") as error:
        memory.trace(small(memory), "http://user:password@127.0.0.1:1")
    assert "password" not in str(error.value)


@pytest.mark.parametrize("url", ["", "localhost:6006", "ftp://host", "http://", "http://host:99999", 7])
def test_what_is_not_a_url_is_refused(memory: Memory, url: Any) -> None:
    with pytest.raises(InvalidArgument, match="a collector is a URL"):
        memory.trace(small(memory), url)


def test_a_header_with_a_line_break_is_refused(memory: Memory, collected: Collected) -> None:
    with pytest.raises(InvalidArgument, match="header"):
        memory.trace(small(memory), collected.url, headers={"x": "1\r\nhost: other"})


def test_runs_of_other_scopes_are_not_sent(memory: Memory, collected: Collected) -> None:
    run = small(memory)
    with pytest.raises(NotFound):
        memory.scoped("other").trace(run.id, collected.url)
    assert not collected.spans


def test_without_the_extra_one_sentence_names_it(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small(memory)
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.collector.trace.v1.trace_service_pb2", None)
    with pytest.raises(SmolmemError, match=r"pip install 'smolmem\[otel\]'"):
        memory.trace(run, CLOSED)


def test_the_command_sends_a_run(
    memory: Memory, tmp_path: Path, collected: Collected, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small(memory)
    given = ["--db", str(tmp_path / "agent.db"), "trace", run.id[:6], "--to", collected.url]
    assert main([*given, "--header", "x-key=a=b", "--prices", "1,2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spans"] == len(collected.spans) > 0
    assert collected.requests[0]["x-key"] == "a=b"
    assert main([*given[:-1], CLOSED]) == 1
    assert main([*given, "--header", "nonsense"]) == 2
    assert capsys.readouterr().err.count("\n") == 2


# --- while it is recorded ---------------------------------------------------------------------------------------------


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_trace, "BATCH_SECONDS", 0.02)
    monkeypatch.setattr(live_trace, "RETRY_SECONDS", (0.05,))
    monkeypatch.setattr(live_trace, "CLOSE_SECONDS", 0.3)


@pytest.mark.usefixtures("quickly")
def test_steps_arrive_while_the_run_goes_on(memory: Memory, collected: Collected) -> None:
    def arrived(_: Any) -> str:
        assert collected.wait(lambda: collected.named("Step 1") and collected.named("python_interpreter"))
        assert not collected.named("CodeAgent.run")
        return code("final_answer(2)")

    memory.attach(code_agent(code("print(1)"), arrived), trace=collected.url).run("Count")
    assert memory.runs()[0].status == "finished"
    assert collected.wait(lambda: collected.named("CodeAgent.run"))
    live = dict(collected.spans)
    memory.trace(memory.runs()[0], collected.url)
    assert collected.spans == live  # what is sent later is the same, to the nanosecond


@pytest.mark.usefixtures("quickly")
def test_a_team_and_the_next_run_arrive_whole(memory: Memory, collected: Collected) -> None:
    boss = team(memory, trace=collected.url)
    boss.run("Find the weather")
    boss.model.script = iter([code("final_answer(3)")] * 2)
    boss.run("And again")
    assert collected.wait(lambda: len(collected.named("CodeAgent.run")) == 2)
    live = set(collected.spans)
    for run in memory.runs(managed=False):
        memory.trace(run, collected.url)
    assert set(collected.spans) == live


@pytest.mark.usefixtures("quickly")
def test_a_long_run_is_read_once_and_not_again_at_every_step(memory: Memory, collected: Collected) -> None:
    decoded: list[int] = []
    original = run_spans.trace_spans

    def counting(*given: Any, **options: Any) -> Any:
        for span, step in original(*given, **options):
            decoded.append(step or 0)
            yield span, step

    run_spans.trace_spans = counting
    try:
        script = [lambda _, number=number: time.sleep(0.02) or code(f"print({number})") for number in range(40)]
        memory.attach(code_agent(*script, code("final_answer(1)")), trace=collected.url).run("Count")
        assert collected.wait(lambda: collected.named("CodeAgent.run"))
    finally:
        run_spans.trace_spans = original
    assert len(collected.requests) > 5
    assert len(decoded) < 2 * len(collected.spans)


def took(memory: Memory, **options: Any) -> float:
    script = [lambda _: time.sleep(0.02) or code("print(1)")] * 20
    agent = memory.attach(code_agent(*script, code("final_answer(2)")), **options)
    gc.collect()
    began = time.perf_counter()
    agent.run("Count")
    spent = time.perf_counter() - began
    memory.detach(agent)
    return spent


@pytest.mark.parametrize("fault", ["down", "slow", "garbage", "black hole"])
def test_an_agent_never_waits_for_a_collector(
    memory: Memory, fault: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_trace, "CLOSE_SECONDS", 0.3)
    monkeypatch.setattr(live_trace, "BATCH_SECONDS", 0.02)
    shape = {"slow": (200, b"", 60.0), "garbage": (599, b"\xff" * 100_000, 0.0)}.get(fault, (200, b"", 0.0))
    with collector(*shape) as collected, caplog.at_level(logging.WARNING, "smolmem"):
        silent = socket.create_server(("127.0.0.1", 0))  # takes connections and never answers
        url = {"down": CLOSED, "black hole": f"http://127.0.0.1:{silent.getsockname()[1]}"}.get(fault, collected.url)
        with silent:
            traced = took(memory, trace=url)
            memory.close()
    assert traced < otlp.TIMEOUT[1]  # of a single request, of which a run makes several
    said = [record.message for record in caplog.records if url in record.message]  # not of another test's collector
    assert sum("could not send a trace" in line for line in said) <= 1
    if fault in ("down", "garbage"):
        assert "smolmem trace RUN --to" in said[0]


@pytest.mark.usefixtures("quickly")
def test_what_a_collector_missed_is_sent_when_it_is_back(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    with collector() as first:
        port = first.url  # which is closed now
    agent = memory.attach(code_agent(code("print(1)"), code("final_answer(2)")), trace=port)
    agent.run("Count")
    assert first.wait(lambda: "could not send a trace" in caplog.text)
    with collector(port=int(port.rpartition(":")[2])) as back:
        assert back.wait(lambda: back.named("CodeAgent.run"))
        assert len(back.named("Step 1")) == 1
    assert sum("could not send a trace" in record.message for record in caplog.records) == 1


@pytest.mark.usefixtures("quickly")
def test_a_refused_batch_does_not_block_the_runs_after_it(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    with collector(413) as collected:
        small(memory, trace=collected.url)
        assert collected.wait(lambda: collected.requests)
        time.sleep(0.2)
        assert len(collected.requests) <= 4
    assert caplog.text.count("could not send a trace") == 1


def test_the_last_spans_are_sent_when_the_process_ends(tmp_path: Path, collected: Collected) -> None:
    script = f"""
        from scripted import code, code_agent
        from smolmem import Memory
        agent = code_agent(code("print(1)"), code("final_answer(2)"))
        Memory({str(tmp_path / "m.db")!r}, embedder="off").attach(agent, trace={collected.url!r}).run("Count")
    """
    programs.run(["-c", textwrap.dedent(script)], check=True)
    assert collected.named("CodeAgent.run")


@pytest.mark.usefixtures("quickly")
def test_a_detached_agent_is_not_sent_and_another_url_replaces_the_first(memory: Memory, collected: Collected) -> None:
    agent = code_agent()
    with collector() as other:
        memory.attach(agent, trace=other.url)
        memory.attach(agent, trace=collected.url)
        agent.model.script = iter([code("final_answer(1)")])
        agent.run("One")
        assert collected.wait(lambda: collected.named("CodeAgent.run"))
        memory.detach(agent)
        agent.model.script = iter([code("final_answer(1)")])
        memory.attach(agent).run("Two")
        time.sleep(0.1)
        assert not other.requests
    assert len(collected.named("CodeAgent.run")) == 1


def test_an_agent_that_is_sent_can_be_dropped_without_detaching_it(memory: Memory, collected: Collected) -> None:
    agent = memory.attach(code_agent(code("final_answer(1)")), trace=collected.url)
    agent.run("One")
    there = weakref.ref(agent)
    del agent
    gc.collect()
    assert there() is None


def test_attach_refuses_what_is_not_a_url(memory: Memory) -> None:
    with pytest.raises(InvalidArgument, match="a collector is a URL"):
        memory.attach(code_agent(), trace="phoenix")


def test_the_page_about_traces_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collected: Collected) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs/tracing.md"
    names = pages.names(page)
    for block in pages.blocks(page):
        exec(block.replace("http://localhost:6006", collected.url), names)
    names["memory"].close()
    assert len(collected.named("CodeAgent.run")) == 2
    assert "Bearer my-key" in [request.get("authorization") for request in collected.requests]


# --- Phoenix ----------------------------------------------------------------------------------------------------------

PHOENIX = Path(os.environ.get("SMOLMEM_PHOENIX", ROOT / ".venv-phoenix")) / "bin/phoenix"


@pytest.mark.skipif(not PHOENIX.exists(), reason="Phoenix is not installed: `make phoenix` installs it")
def test_a_real_phoenix_shows_the_run_once(memory: Memory, tmp_path: Path) -> None:
    team(memory).run("Find the weather")
    run = memory.runs(managed=False)[0]
    with phoenix(PHOENIX, tmp_path) as url:
        memory.trace(run, url, prices=(1.0, 2.0))
        sent = memory.trace(run, url, prices=(1.0, 2.0))
        spans = _phoenix_spans(url, sent.spans)
    assert len(spans) == sent.spans
    kinds = [span["span_kind"] for span in spans]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"AGENT": 2, "CHAIN": 6, "LLM": 6, "TOOL": 9}
    root = next(span for span in spans if span["parent_id"] is None)
    assert root["attributes"]["session.id"] == run.session
    assert {span["context"]["trace_id"] for span in spans} == {sent.trace}


def _phoenix_spans(url: str, wanted: int) -> list[Any]:
    end = time.monotonic() + 30
    while True:
        answered = requests.get(f"{url}/v1/projects/default/spans", {"limit": 1000}, timeout=10)
        found = answered.json()["data"] if answered.ok else []
        if len(found) >= wanted or time.monotonic() > end:
            return found
        time.sleep(0.2)
