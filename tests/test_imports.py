"""What other tools saved becomes runs: searchable, replayable, restorable; bad files are refused whole."""

from __future__ import annotations

import io
import json
import pickle
import random
import sqlite3
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pages
import pytest
from collectors import Collected, collector
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, TracesData
from rich.console import Console
from scripted import answer, calling_agent, calls, code, code_agent, team, weather

from smolmem import Memory, SmolmemError
from smolmem.cli import exchanging
from smolmem.cli.main import main
from smolmem.core.errors import CannotResume, InvalidArgument
from smolmem.transfer import imports

ROOT = Path(__file__).parent.parent


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory(tmp_path / "agent.db", embedder="off") as opened:
        yield opened


def write(path: Path, value: Any) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def steps_of(run: Any) -> list[Any]:
    return [step.to_smolagents() for step in run.steps]


def names(memory: Memory) -> list[str]:
    return [run.agent for run in memory.runs()]


# --- what smolmem sends, it can read ----------------------------------------------------------------------------------


def otlp_json(collected: Collected) -> dict[str, Any]:
    """What a collector's file exporter writes: ids in hexadecimal."""
    made = TracesData(resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=collected.spans.values())])])
    data = MessageToDict(made)
    for span in data["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        sent = next(each for each in collected.spans.values() if MessageToDict(each)["spanId"] == span["spanId"])
        span |= {
            "traceId": sent.trace_id.hex(),
            "spanId": sent.span_id.hex(),
            "parentSpanId": sent.parent_span_id.hex(),
        }
    return data


@pytest.fixture
def sent(memory: Memory) -> Iterator[tuple[Any, Collected]]:
    with collector() as collected:
        team(memory, scope="live", tags=["nightly", "été"]).run("Find the weather")
        (run,) = memory.runs(scope="live", managed=False)
        memory.scoped("live").trace(run, collected.url)
        yield run, collected


def test_a_run_that_was_sent_comes_back_step_by_step(
    memory: Memory, tmp_path: Path, sent: tuple[Any, Collected]
) -> None:
    original, collected = sent
    imported = memory.import_runs(write(tmp_path / "otlp.json", otlp_json(collected)))
    assert imported.added["run"] == 2
    run = memory.runs(managed=False)[0]
    assert (run.status, run.answer, run.task, run.imported) == ("finished", original.answer, original.task, True)
    assert run.tags == ("nightly", "été")
    assert (run.input_tokens, run.output_tokens) == (original.input_tokens, original.output_tokens)
    for then, now in zip(steps_of(original)[1:], steps_of(run)[1:], strict=True):
        assert type(then).__name__ == type(now).__name__
        for name in ("step_number", "code_action", "observations", "plan", "is_final_answer", "model_output"):
            assert getattr(now, name, None) == getattr(then, name, None), name
        assert str(getattr(now, "error", None)) == str(getattr(then, "error", None))
        assert now.timing.start_time == pytest.approx(then.timing.start_time, abs=1e-5)
        texts = [[message.content[0]["text"] for message in step.model_input_messages] for step in (then, now)]
        assert texts[0] == texts[1]
    [child] = memory.runs(parent=run)
    assert (child.agent, child.parent_step, child.answer) == ("helper", 1, "sunny")
    assert "You're a helpful agent" not in child.title
    assert child.tags == run.tags
    assert memory.verify()


def test_an_imported_run_can_be_searched_replayed_and_restored(
    memory: Memory, tmp_path: Path, sent: tuple[Any, Collected]
) -> None:
    memory.import_runs(write(tmp_path / "otlp.json", otlp_json(sent[1])))
    [found, *_] = memory.recall("weather in Rome")
    assert (found.origin, found.trust) == ("import", "low")
    run = memory.runs(managed=False)[0]
    console = Console(file=io.StringIO(), width=120)
    run.replay(console=console)
    assert "ZeroDivisionError" in console.file.getvalue()
    agent = code_agent(code("final_answer(length)"), tools=[weather])
    with pytest.raises(CannotResume, match="trust=True"):
        run.restore(agent)
    helper = code_agent(name="helper", description="h")
    agent = code_agent(code("final_answer(length)"), managed_agents=[helper])
    restored = run.restore(agent, trust=True)
    assert not restored.missing, restored
    assert agent.run("How long was it?", reset=False) == len(run.answer)


def test_an_imported_run_can_be_sent_again(memory: Memory, tmp_path: Path, sent: tuple[Any, Collected]) -> None:
    memory.import_runs(write(tmp_path / "otlp.json", otlp_json(sent[1])))
    with collector() as collected:
        memory.trace(memory.runs(managed=False)[0], collected.url)
        assert collected.tree() == sent[1].tree()


def test_what_is_imported_again_is_left_as_it_is(memory: Memory, tmp_path: Path, sent: tuple[Any, Collected]) -> None:
    file = write(tmp_path / "otlp.json", otlp_json(sent[1]))
    memory.import_runs(file)
    again = memory.import_runs(file)
    assert (again.added, again.skipped) == ({}, {"run": 2})
    assert memory.import_runs(file, scope="other").added["run"] == 2
    assert len(memory.runs()) == 2


def test_prompts_of_imported_runs_are_stored_without_repetition(memory: Memory, tmp_path: Path) -> None:
    agent = memory.attach(code_agent(*[code(f"print({n})") for n in range(20)], code("final_answer(1)")), scope="live")
    agent.run("Count")
    with collector() as collected:
        memory.scoped("live").trace(memory.runs(scope="live")[0], collected.url)
    with Memory(tmp_path / "other.db", embedder="off") as other:
        other.import_runs(write(tmp_path / "o.json", otlp_json(collected)))
        counted = other.verify().checked
    assert counted["contents"] < 21 * 8


# --- the forms of spans -----------------------------------------------------------------------------------------------


def sdk_spans() -> list[dict[str, Any]]:
    """What `span.to_json()` gives for spans of the real instrumentation."""
    from openinference.instrumentation.smolagents import SmolagentsInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = SmolagentsInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        calling_agent(calls(("weather", {"city": "Oslo"})), answer("fine")).run("Say it")
    finally:
        instrumentor.uninstrument()
        provider.shutdown()
    return [json.loads(span.to_json()) for span in exporter.get_finished_spans()]


@pytest.mark.parametrize("form", ["list", "one after another", "lines"])
def test_spans_of_the_real_instrumentation_are_read(memory: Memory, tmp_path: Path, form: str) -> None:
    spans = sdk_spans()
    text = {
        "list": json.dumps(spans),
        "one after another": "\n".join(json.dumps(span, indent=4) for span in spans),
        "lines": "\n".join(json.dumps(span) for span in spans) + "\n",
    }[form]
    memory.import_runs(write(tmp_path / "sdk.json", text))
    [run] = memory.runs()
    assert (run.agent, run.task, run.answer, run.status) == ("ToolCallingAgent", "Say it", "fine", "finished")
    _, first, last = steps_of(run)
    assert (first.tool_calls[0].name, first.observations) == ("weather", "sunny in Oslo")
    assert (last.is_final_answer, last.action_output) == (True, "fine")


def nested(**changes: Any) -> dict[str, Any]:
    """A published collection's form: spans with their children, and durations."""
    model = {
        "span_id": "c1",
        "span_name": "LiteLLMModel.__call__",
        "timestamp": "2025-03-19T16:38:04.123456789Z",
        "duration": "PT2.5S",
        "span_attributes": {
            "openinference.span.kind": "LLM",
            "llm.model_name": "o3-mini",
            "llm.input_messages.0.message.role": "system",
            "llm.input_messages.0.message.content": "You are an expert.",
            "llm.input_messages.1.message.role": "user",
            "llm.input_messages.1.message.contents.0.message_content.type": "text",
            "llm.input_messages.1.message.contents.0.message_content.text": "How tall is it?",
            "llm.input_messages.1.message.contents.1.message_content.type": "image",
            "llm.input_messages.1.message.contents.1.message_content.image.image.url": "data:image/png;base64,AAAA",
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": "Thought: look.\n```py\nprint(search('tower'))\n```<end_code>",
            "llm.token_count.prompt": "not a number",
            "llm.token_count.completion": 7,
        },
        "child_spans": [],
    }
    tool = {
        "span_id": "c2",
        "span_name": "SimpleTool",
        "timestamp": "2025-03-19T16:38:07Z",
        "duration": "PT1S",
        "status_code": "Error",
        "status_message": "LookupError: no network",
        "span_attributes": {
            "openinference.span.kind": "TOOL",
            "tool.name": "search",
            "input.value": '{"args": ["tower"], "kwargs": {}}',
        },
    }
    step = {
        "span_id": "b1",
        "span_name": "Step 1",
        "timestamp": "2025-03-19T16:38:04Z",
        "duration": "PT5S",
        "status_code": "Ok",
        "span_attributes": {"openinference.span.kind": "CHAIN", "output.value": "330 metres"},
        "child_spans": [model, tool],
    }
    plan = {**model, "span_id": "b0", "timestamp": "2025-03-19T16:38:02Z", "child_spans": []}
    agent = {
        "span_id": "a1",
        "span_name": "CodeAgent.run",
        "timestamp": "2025-03-19T16:38:01Z",
        "duration": "PT1M2S",
        "span_attributes": {
            "openinference.span.kind": "AGENT",
            "input.value": '{"task": "How tall is the tower?", "stream": false}',
            "output.value": "330",
        },
        "child_spans": [plan, step],
    }
    main = {"span_id": "m", "span_name": "main", "timestamp": "2025-03-19T16:38:00Z", "child_spans": [agent]}
    return {"trace_id": "t1", "spans": [{**main, **changes}]}


def test_nested_spans_of_published_collections_are_read(memory: Memory, tmp_path: Path) -> None:
    memory.import_runs(write(tmp_path / "nested.json", nested()))
    [run] = memory.runs()
    assert (run.task, run.answer, run.model, run.seconds) == ("How tall is the tower?", "330", "o3-mini", 62.0)
    assert f"{run.began:%Y-%m-%d %H:%M:%S}" == "2025-03-19 16:38:01"
    _, plan, step = steps_of(run)
    assert plan.plan.startswith("Thought: look.")
    assert (step.code_action, step.observations) == ("print(search('tower'))", "330 metres")
    assert step.model_input_messages[1].content == [
        {"type": "text", "text": "How tall is it?\n[image data:image/png;base64,AAAA]"}
    ]
    assert step.token_usage.output_tokens == 7
    assert run.output_tokens == 14


class Pages(BaseHTTPRequestHandler):
    pages: ClassVar[list[Any]] = []
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        number = int(self.path.partition("cursor=")[2] or 0)
        data = json.dumps(self.pages[number]).encode() if "/v1/projects/default/spans" in self.path else b"no"
        self.send_response(200 if data != b"no" else 404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Pages.asked = []
    running = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=running.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    thread.join()
    running.server_close()


def rest(span: dict[str, Any]) -> dict[str, Any]:
    """A span as Phoenix gives it."""
    return {
        "id": "U3Bhbjox",
        "name": span["name"],
        "context": {name: value.removeprefix("0x") for name, value in span["context"].items() if name != "trace_state"},
        "span_kind": span["attributes"].pop("openinference.span.kind"),
        "parent_id": span["parent_id"] and span["parent_id"].removeprefix("0x"),
        "start_time": span["start_time"],
        "end_time": span["end_time"],
        "status_code": span["status"]["status_code"],
        "status_message": "",
        "attributes": span["attributes"],
        "events": [],
    }


def test_all_pages_of_phoenix_are_read(memory: Memory, server: str) -> None:
    spans = [rest(span) for span in sdk_spans()]
    Pages.pages = [{"data": spans[:2], "next_cursor": "1"}, {"data": spans[2:], "next_cursor": None}]
    assert memory.import_runs(server).added["run"] == 1
    assert memory.runs()[0].answer == "fine"
    assert len(Pages.asked) == 2


def test_a_server_that_has_no_spans_is_one_sentence(memory: Memory, server: str) -> None:
    with pytest.raises(SmolmemError, match="answered 404"):
        memory.import_runs(f"{server}/other")
    with pytest.raises(SmolmemError, match="does not answer"):
        memory.import_runs("http://127.0.0.1:1")


# --- spans that do not fit --------------------------------------------------------------------------------------------


def span(id: str, name: str, kind: str, parent: str | None = None, **attributes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "context": {"trace_id": "0xabc", "span_id": id},
        "parent_id": parent,
        "start_time": f"2025-01-01T00:00:{int(id, 16) % 60:02}Z",
        "end_time": "2025-01-01T00:01:00Z",
        "status": {"status_code": "OK"},
        "attributes": {"openinference.span.kind": kind, **{k.replace("_", "."): v for k, v in attributes.items()}},
    }


def test_steps_whose_agent_was_never_sent_are_one_run_of_their_trace(memory: Memory, tmp_path: Path) -> None:
    spans = [
        span("1", "Step 1", "CHAIN", "99", output_value="one"),
        span("2", "Step 2", "CHAIN", "99", output_value="two"),
        span("3", "SimpleTool", "TOOL", "2", tool_name="weather", output_value="sunny"),
    ]
    memory.import_runs(write(tmp_path / "orphans.json", spans))
    [run] = memory.runs()
    assert (run.status, [step.observations for step in steps_of(run)[1:]]) == ("interrupted", ["one", "two"])


def test_spans_of_other_frameworks_become_a_step_for_each_answer(memory: Memory, tmp_path: Path) -> None:
    spans = [
        span("1", "LangGraph", "AGENT", None, input_value="What is up?", output_value="all is well"),
        span("2", "node", "CHAIN", "1"),
        span("3", "ChatOpenAI", "LLM", "2", output_value="I will look."),
        span("4", "look", "TOOL", "2", tool_name="look", input_value="here", output_value="nothing"),
        span("5", "ChatOpenAI", "LLM", "2", output_value="all is well"),
    ]
    memory.import_runs(write(tmp_path / "other.json", spans))
    task, first, last = steps_of(memory.runs()[0])
    assert task.task == "What is up?"
    assert (first.model_output, first.tool_calls[0].name, first.observations) == ("I will look.", "look", "nothing")
    assert last.model_output == "all is well"


def test_a_span_that_was_sent_twice_counts_once_and_the_later_end_wins(memory: Memory, tmp_path: Path) -> None:
    early = span("1", "CodeAgent.run", "AGENT", None, input_value="x", output_value="early")
    late = {**early, "end_time": "2025-01-01T00:02:00Z", "attributes": {**early["attributes"], "output.value": "late"}}
    assert memory.import_runs(write(tmp_path / "twice.json", [late, early, late])).added["run"] == 1
    assert memory.runs()[0].answer == "late"


BAD: dict[str, tuple[Any, str]] = {
    "cycle": ([span("1", "a", "AGENT", "2"), span("2", "b", "CHAIN", "1")], "contains itself"),
    "own parent": ([span("1", "a", "AGENT", "1")], "contains itself"),
    "no time": ([{"name": "a", "span_id": "1", "attributes": {}}], "span 1 cannot be read"),
    "time in words": ([{**span("1", "a", "AGENT"), "start_time": "yesterday"}], "span 1 cannot be read"),
    "far future": ([{**span("1", "a", "AGENT"), "start_time": 10**40}], "out of range"),
    "name is a list": ([{**span("1", "a", "AGENT"), "name": ["a"]}], "span 1 cannot be read"),
    "nothing that acts": ([span("1", "a", "CHAIN")], "has no runs"),
    "empty": ("", "the file is empty"),
    "truncated": (json.dumps(nested())[:-40], "ends too early"),
    "not JSON": ("hello", "error at line 1"),
    "other JSON": ({"a": 1}, "format of the file is not known"),
    "a number": ("7", "format of the file is not known"),
    "deep": ("[" * 100_000, "JSON"),
    "deep attributes": (
        [{**span("1", "a", "AGENT"), "attributes": json.loads('{"a":' * 50 + "1" + "}" * 50)}],
        "too many or too deep",
    ),
    "a huge number": ("1" * 10_000, "cannot be read"),
    "a step without a number": ([{"step_number": None, "timing": {}}], "step 1 cannot be read"),
    "a chat store without chats": ({"store": {}}, "format of the file is not known"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_one_sentence_and_nothing_is_imported(
    memory: Memory, tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content, reason = BAD[case]
    good = {"resourceSpans": [], "spans": [span("f", "x", "AGENT")]}
    file = write(tmp_path / "bad.json", content)
    with pytest.raises(SmolmemError, match=reason) as error:
        memory.import_runs(file)
    assert "Nothing was imported" in str(error.value)
    assert len(str(error.value)) < 600
    assert memory.runs(scope="*") == []
    assert main(["--db", str(tmp_path / "agent.db"), "import", str(file)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert memory.import_runs(write(tmp_path / "good.json", good)).added["run"] == 1


def test_hostile_values_are_imported_as_the_text_they_are(memory: Memory, tmp_path: Path) -> None:
    wild = "\u0000\u001b[31m\ud800 <script>alert(1)</script> '; DROP TABLE run; -- {{7*7}}"
    spans = [
        span("1", wild, "AGENT", None, input_value=wild, output_value=wild),
        span("2", "Step 999999", "CHAIN", "1", output_value=[wild, {"a": wild}]),
        span("3", wild, "LLM", "2", llm_model_name={"a": [1]}, output_value={"x": 1e308}),
        span("4", wild, "TOOL", "2", tool_name=True, input_value=[1, None]),
        {**span("5", "Step 2", "CHAIN", "1"), "events": [7, {"name": "exception", "attributes": "x"}]},
        {**span("6", "Step 3", "CHAIN", "1"), "status": {"status_code": "ERROR", "description": "os.system: no"}},
    ]
    memory.import_runs(write(tmp_path / "wild.json", spans))
    [run] = memory.runs()
    assert "DROP TABLE" in run.task
    assert memory.verify()
    assert memory.recall("DROP TABLE")


def test_any_garbled_file_is_refused_or_imported_whole(memory: Memory, tmp_path: Path) -> None:
    chance, whole = random.Random(7), json.dumps([*sdk_spans(), nested()])
    for number in range(120):
        text = list(whole)
        for _ in range(chance.randint(1, 6)):
            place = chance.randrange(len(text))
            text[place] = chance.choice(['"', "{", "}", "[", "]", ",", "0", "null", "-", ""])
        try:
            memory.import_runs(write(tmp_path / "garbled.json", "".join(text)), scope=f"s{number}")
        except SmolmemError:
            assert memory.runs(scope=f"s{number}") == []
    assert memory.verify()


def test_a_chain_of_many_spans_is_refused_at_once(memory: Memory, tmp_path: Path) -> None:
    chain = [span(f"{number:x}", "x", "CHAIN", f"{number + 1:x}") for number in range(1, 30_000)]
    with pytest.raises(SmolmemError, match="nested more than"):
        memory.import_runs(write(tmp_path / "chain.json", chain))


@pytest.mark.long
@pytest.mark.timeout(60)
def test_a_run_of_thousands_of_spans_is_read_in_seconds(memory: Memory, tmp_path: Path) -> None:
    steps = [span(f"{number:x}", "model", "LLM", "1", output_value="ok") for number in range(2, 3_000)]
    memory.import_runs(write(tmp_path / "wide.json", [span("1", "a", "AGENT"), *steps]))
    assert memory.runs()[0].step_count == 2_998


def test_an_interrupted_import_leaves_nothing(memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = [span(f"{number:x}", "CodeAgent.run", "AGENT", None, input_value="x") for number in range(1, 30)]
    file = write(tmp_path / "many.json", spans)

    def stop(done: int, total: int) -> None:
        if done == 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        memory.import_runs(file, progress=stop)
    assert memory.runs() == []
    assert memory.import_runs(file).added["run"] == 29


def test_a_file_that_is_too_large_is_refused(memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "LARGEST", 1000)
    with pytest.raises(SmolmemError, match="larger than"):
        memory.import_runs(write(tmp_path / "large.json", [nested()]))


def test_secrets_in_a_file_are_not_stored(memory: Memory, tmp_path: Path) -> None:
    key = "sk-proj-" + "a1B2c3D4e5" * 5
    spans = [span("1", "CodeAgent.run", "AGENT", None, input_value=f"use {key}", output_value=key)]
    memory.import_runs(write(tmp_path / "secret.json", spans))
    assert key not in str(memory.runs()[0]) + memory.runs()[0].task + str(memory.runs()[0].answer)


# --- steps that a user saved ------------------------------------------------------------------------------------------


def test_a_file_of_full_steps_comes_back_as_it_was(memory: Memory, tmp_path: Path) -> None:
    agent = code_agent("My plan.", code("x = 6"), code("1 / 0"), code("final_answer(x * 7)"), planning_interval=10)
    agent.run("Compute")
    agent.model.script = iter(["Another plan.", code("final_answer(x)")])
    agent.run("And x?", reset=False)
    full = agent.memory.get_full_steps()
    memory.import_runs(write(tmp_path / "steps.json", json.dumps(full, default=str)))
    second, first = memory.runs()
    assert [(run.task, run.answer, run.status) for run in (first, second)] == [
        ("Compute", 42, "finished"),
        ("And x?", 6, "finished"),
    ]
    assert first.session == second.session
    assert (first.error_count, first.input_tokens) == (1, 40)
    back = [step.dict() for step in [*steps_of(first), *steps_of(second)]]
    assert json.loads(json.dumps(back, default=str)) == json.loads(json.dumps(full, default=str))
    other = code_agent(code("final_answer(x + 1)"))
    restored = second.restore(other, trust=True)
    assert not restored.missing, restored
    assert other.run("Go on", reset=False) == 7


def test_tool_calls_of_saved_steps_are_found(memory: Memory, tmp_path: Path) -> None:
    agent = calling_agent(calls(("weather", {"city": "Oslo"})), answer("ok"))
    agent.run("Say it")
    memory.import_runs(write(tmp_path / "steps.json", {"steps": agent.memory.get_full_steps()}))
    assert memory.runs()[0].agent_type == "ToolCallingAgent"
    [step] = memory.steps(tool="weather")
    assert step.to_smolagents().tool_calls[0].arguments == {"city": "Oslo"}


@pytest.mark.promise("S16")
@pytest.mark.parametrize("moment", [1e300, float("inf"), float("nan"), -1e15, 253_402_290_000, -62_135_590_000])
def test_a_time_that_does_not_exist_in_each_time_zone_is_not_imported(
    memory: Memory, tmp_path: Path, moment: float
) -> None:
    agent = code_agent(code("print(1)"), code("final_answer(1)"))
    agent.run("Say it")
    full = agent.memory.get_full_steps()
    for step in full[1:]:
        step["timing"] |= {"start_time": moment, "end_time": moment}
    with pytest.raises(SmolmemError, match=r"a time is out of range: .*\. Nothing was imported"):
        memory.import_runs(write(tmp_path / "steps.json", json.dumps(full, default=str)))
    assert memory.runs() == []
    memory.attach(agent)
    agent.model.script = iter([code("final_answer(1)")])
    agent.run("Say it")
    memory.export(tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out/smolmem.jsonl").read_text().splitlines()]
    for line in lines:
        if line["type"] == "run":
            line["began"] = moment
    (tmp_path / "out/smolmem.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with Memory(tmp_path / "other.db") as other, pytest.raises(SmolmemError, match="Nothing was loaded"):
        other.load(tmp_path / "out")


class Trap:
    def __reduce__(self) -> Any:
        return (print, ("this must never run",))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_is_refused_and_never_loaded(
    memory: Memory, tmp_path: Path, protocol: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "memory.pkl"
    file.write_bytes(pickle.dumps(Trap(), protocol))
    with pytest.raises(SmolmemError, match=r"pickle.*get_full_steps"):
        memory.import_runs(file)
    assert "must never run" not in capsys.readouterr().out


# --- chats ------------------------------------------------------------------------------------------------------------


def openai_file(path: Path) -> Path:
    """A file with the schema and the items of a SQLiteSession of OpenAI Agents."""
    items = [
        {"role": "user", "content": "What is the weather in Oslo?"},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny in Oslo"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Sunny.", "annotations": []}],
        },
        {"role": "user", "content": [{"type": "input_text", "text": "And in Rome?"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Think."}]},
        {"role": "assistant", "content": "Rain."},
    ]
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY, created_at TIMESTAMP)")
    connection.execute(
        "CREATE TABLE agent_messages (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, "
        "message_data TEXT NOT NULL, created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP)"
    )
    rows = [("customer-7", json.dumps(item)) for item in items]
    connection.executemany("INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)", rows)
    connection.commit()
    connection.close()
    return path


def test_a_session_of_openai_agents_is_read(memory: Memory, tmp_path: Path) -> None:
    memory.import_runs(openai_file(tmp_path / "sessions.db"))
    second, first = sorted(memory.runs(), key=lambda run: run.task)[::-1]
    assert (first.task, first.answer) == ("And in Rome?", "Rain.")
    assert (second.task, second.answer) == ("What is the weather in Oslo?", "Sunny.")
    assert first.session == second.session
    [step] = memory.steps(tool="weather")
    assert step.to_smolagents().observations == "sunny in Oslo"
    assert memory.recall("weather in Oslo")[0].origin == "import"


def test_a_chat_that_went_on_gets_its_new_runs(memory: Memory, tmp_path: Path) -> None:
    file = openai_file(tmp_path / "sessions.db")
    memory.import_runs(file)
    connection = sqlite3.connect(file)
    for item in ({"role": "user", "content": "And in Bonn?"}, {"role": "assistant", "content": "Fog."}):
        row = ("customer-7", json.dumps(item))
        connection.execute("INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)", row)
    connection.commit()
    connection.close()
    again = memory.import_runs(file)
    assert (again.added["run"], again.skipped["run"]) == (1, 2)
    assert {run.session for run in memory.runs()} == {memory.runs()[0].session}
    assert memory.verify()


def test_threads_of_a_real_langgraph_checkpointer_are_read(memory: Memory, tmp_path: Path) -> None:
    pytest.importorskip("langgraph.checkpoint.sqlite")
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, MessagesState, StateGraph

    asked = {"name": "weather", "args": {"city": "Oslo"}, "id": "call_1"}
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}

    def model(state: Any) -> Any:
        if isinstance(state["messages"][-1], HumanMessage) and len(state["messages"]) == 1:
            return {"messages": [AIMessage("", tool_calls=[asked], usage_metadata=usage)]}
        return {"messages": [AIMessage("It is sunny.", response_metadata={"model_name": "m-1"})]}

    def tools(state: Any) -> Any:
        return {"messages": [ToolMessage("sunny in Oslo", tool_call_id="call_1", name="weather")]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", tools)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    graph.add_edge("tools", "model")
    with SqliteSaver.from_conn_string(str(tmp_path / "graph.db")) as saver:
        app = graph.compile(checkpointer=saver)
        for text in ("What is the weather?", "And now?"):
            app.invoke({"messages": [HumanMessage(text)]}, {"configurable": {"thread_id": "thread-1"}})
    memory.import_runs(tmp_path / "graph.db")
    runs = {run.task: run for run in memory.runs()}
    assert {task: run.answer for task, run in runs.items()} == {
        "What is the weather?": "It is sunny.",
        "And now?": "It is sunny.",
    }
    first = runs["What is the weather?"]
    assert (first.input_tokens, first.model) == (10, "m-1")
    assert steps_of(first)[1].observations == "sunny in Oslo"


def test_a_checkpoint_names_classes_and_none_is_imported(memory: Memory, tmp_path: Path) -> None:
    ormsgpack = pytest.importorskip("ormsgpack")
    trap = ormsgpack.Ext(5, ormsgpack.packb(["os", "system", {"type": "human", "content": "touch trap"}, "x"]))
    data = ormsgpack.packb({"ts": "2025-01-01T00:00:00+00:00", "channel_values": {"messages": [trap]}})
    connection = sqlite3.connect(tmp_path / "g.db")
    connection.execute("CREATE TABLE writes (x)")
    connection.execute("CREATE TABLE checkpoints (thread_id, checkpoint_ns, checkpoint_id, type, checkpoint)")
    connection.execute("INSERT INTO checkpoints VALUES ('t', '', '1', 'msgpack', ?)", (data,))
    connection.execute("INSERT INTO checkpoints VALUES ('u', '', '1', 'pickle', ?)", (pickle.dumps(Trap()),))
    connection.commit()
    connection.close()
    with pytest.raises(SmolmemError, match="thread 'u' is saved as 'pickle'"):
        memory.import_runs(tmp_path / "g.db")
    assert memory.runs() == []


def test_a_chat_store_of_llama_index_is_read(memory: Memory, tmp_path: Path) -> None:
    llms = pytest.importorskip("llama_index.core.llms")
    asked = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    said = [
        llms.ChatMessage(role="system", content="Be kind."),
        llms.ChatMessage(role="user", content="What is the weather?"),
        llms.ChatMessage(role="assistant", content="", additional_kwargs={"tool_calls": [asked]}),
        llms.ChatMessage(role="tool", content="sunny", additional_kwargs={"name": "weather", "tool_call_id": "c1"}),
        llms.ChatMessage(role="assistant", content="It is sunny."),
    ]
    # `SimpleChatStore.persist` of 0.14.25 raises with pydantic 2.14; this is what it writes with an earlier one
    store = {"store": {"user-1": [each.model_dump(mode="json") for each in said]}, "class_name": "SimpleChatStore"}
    memory.import_runs(write(tmp_path / "chat_store.json", store))
    [run] = memory.runs()
    assert (run.task, run.answer, run.agent) == ("What is the weather?", "It is sunny.", "LlamaIndex")
    assert steps_of(run)[1].tool_calls[0].arguments == {"city": "Oslo"}


def test_messages_of_langchain_and_of_openai_are_read(memory: Memory, tmp_path: Path) -> None:
    messages = pytest.importorskip("langchain_core.messages")
    chat = messages.messages_to_dict([messages.HumanMessage("Hello?"), messages.AIMessage("Hi.")])
    memory.import_runs(write(tmp_path / "history.json", chat))
    plain = [{"role": "user", "content": "How are you?"}, {"role": "assistant", "content": "Well."}]
    memory.import_runs(write(tmp_path / "chat.json", {"messages": plain}))
    assert {run.task: run.answer for run in memory.runs()} == {"Hello?": "Hi.", "How are you?": "Well."}


def test_the_task_outputs_of_crewai_are_read(memory: Memory, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "outputs.db")
    connection.execute(
        "CREATE TABLE latest_kickoff_task_outputs (task_id TEXT PRIMARY KEY, task_key TEXT, expected_output TEXT, "
        "output JSON, task_index INTEGER, inputs JSON, timestamp DATETIME DEFAULT CURRENT_TIMESTAMP)"
    )
    told = {"description": "Find the best port.", "raw": "Rotterdam", "agent": "Researcher"}
    connection.execute(
        "INSERT INTO latest_kickoff_task_outputs (task_id, output, task_index) VALUES ('1', ?, 0)", (json.dumps(told),)
    )
    connection.commit()
    connection.close()
    memory.import_runs(tmp_path / "outputs.db")
    [run] = memory.runs()
    assert (run.agent, run.task, run.answer) == ("Researcher", "Find the best port.", "Rotterdam")


def test_other_sqlite_files_are_refused(memory: Memory, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE x (y)").connection.close()
    with pytest.raises(SmolmemError, match="not written by OpenAI Agents"):
        memory.import_runs(tmp_path / "other.db")
    with pytest.raises(SmolmemError, match="store of smolmem"):
        memory.import_runs(tmp_path / "agent.db")
    (tmp_path / "broken.db").write_bytes(openai_file(tmp_path / "s.db").read_bytes()[:5000])
    with pytest.raises(SmolmemError, match="SQLite cannot read the file"):
        memory.import_runs(tmp_path / "broken.db")


def test_exports_and_folders_are_refused_with_the_right_command(memory: Memory, tmp_path: Path) -> None:
    memory.export(tmp_path / "export.zip")
    for path in (tmp_path / "export.zip", tmp_path):
        with pytest.raises(SmolmemError, match="smolmem load"):
            memory.import_runs(path)


def test_the_page_about_imports_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pages.run(ROOT / "docs/import.md")["memory"].close()


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["import", "load"])
def test_a_refused_file_leaves_no_new_store_behind(tmp_path: Path, command: str) -> None:
    (tmp_path / "bad.json").write_text("[1, 2")
    store = tmp_path / "new.db"
    assert main(["--db", str(store), command, str(tmp_path / "bad.json")]) != 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.json"]
    Memory(store).close()
    assert main(["--db", str(store), command, str(tmp_path / "bad.json")]) != 0
    assert store.exists()


def test_the_command_imports_and_can_be_told_the_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write(tmp_path / "nested.json", nested()))
    db = ["--db", str(tmp_path / "new.db")]
    assert main([*db, "import", str(tmp_path / "missing.json")]) == 1
    assert not (tmp_path / "new.db").exists()
    assert main([*db, "import", file, "--format", "steps"]) == 1
    assert "does not have the format steps" in capsys.readouterr().err
    assert main([*db, "import", file, "--format", "traces", "--scope", "acme", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["added"]["run"] == 1
    assert main([*db, "runs", "--scope", "acme"]) == 0
    assert "How tall is the tower?" in capsys.readouterr().out


def test_the_command_and_the_library_know_the_same_formats(memory: Memory) -> None:
    assert exchanging.FORMATS == imports.FORMATS
    with pytest.raises(InvalidArgument, match="format is one of"):
        memory.import_runs("x.json", format="csv")  # type: ignore[arg-type]
