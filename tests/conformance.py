"""What every backend must do, tested through `Memory`. A backend is one fixture: `url`, a store that is empty."""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from same import same
from scripted import answer, calling_agent, calls, code, code_agent
from smolagents import ActionStep, TaskStep
from smolagents.monitoring import Timing
from strategies import steps as any_steps

from smolmem import Memory
from smolmem.core.errors import InvalidArgument, NotFound, SmolmemError
from smolmem.store import verify as verification
from smolmem.store.opening import open_store

PAYLOADS = [
    *(
        "' OR '1'='1",
        "'; DROP TABLE run; --",
        '" OR ""="',
        "1; ATTACH DATABASE '/tmp/x' AS y",
        "%",
        "_",
        "*",
        "?",
        ":id",
        "@x",
    ),
    *(
        "$1",
        "\\",
        "\x00",
        "\ud800",
        "a" * 5000,
        "NULL",
        "0x00",
        "-- ",
        "/* */",
        "') UNION SELECT * FROM run --",
        "${x}",
        "{{7*7}}",
    ),
    *(
        "../../etc/passwd",
        "\u202e",
        "🦉",
        "run.id",
        "rowid",
        "sqlite_schema",
        "json_extract(x, '$')",
        "a' || 'b",
        "\n",
        "%s",
        "{0}",
    ),
]
"""Includes what broke others: SQL through filter keys and operators (CVE-2025-67644, CVE-2025-8709), lone surrogates
that led to an unsafe fallback format (CVE-2025-64439)."""


def more_payloads() -> list[str]:
    pieces = ["'", '"', ";", "--", "\x00", "\ud83d", ")", " OR 1=1", " UNION SELECT ", "\\", "%", "#"]
    made = [a + b + c for a in pieces for b in pieces for c in pieces]
    return [*PAYLOADS, *made][:500]


@pytest.mark.promise("D9")
class Conformance:
    """Runs unchanged on every backend."""

    every = 1
    """Of the long lists of samples, each so many-th is tried; 1 for all."""

    @pytest.fixture
    def memory(self, url: str) -> Any:
        with Memory(url, strict=True) as opened:
            yield opened

    @pytest.fixture
    def busy(self, memory: Memory) -> Memory:
        """A store with something of everything."""
        memory.attach(
            code_agent(code("print('alpha')"), code("1 / 0"), code("final_answer(1)"), name="coder", description="d")
        ).run("First task")
        memory.attach(calling_agent(calls(("weather", {"city": "Oslo"})), answer("mild"))).run(
            "Second task, about the weather"
        )
        memory.attach(code_agent(ConnectionError("gone"), name="broken", description="d"), scope="acme/alice")
        broken = memory.attach(code_agent(ConnectionError("gone"), name="broken", description="d"), scope="acme/alice")
        with pytest.raises(Exception, match="gone"):
            broken.run("Third task")
        return memory

    def test_runs_are_newest_first(self, busy: Memory) -> None:
        assert [run.title[:6] for run in busy.runs(scope="*")] == ["Third ", "Second", "First "]

    def test_limit(self, busy: Memory) -> None:
        assert len(busy.runs(limit=1)) == 1
        assert busy.runs(limit=0) == []
        assert len(busy.steps(limit=2)) == 2

    def test_runs_by_agent(self, busy: Memory) -> None:
        assert [run.title for run in busy.runs(agent="coder")] == ["First task"]
        assert busy.runs(agent="nobody") == []

    def test_runs_by_tool_and_by_model(self, busy: Memory) -> None:
        assert [run.title[:6] for run in busy.runs(tool="weather")] == ["Second"]
        assert [run.title[:6] for run in busy.runs(tool="python_interpreter")] == ["First "]
        assert len(busy.runs(model="scripted-1")) == 2
        assert busy.runs(model="scripted-1", tool="nothing") == []

    def test_a_fork_of_a_fork_begins_after_an_event_of_its_own_list(self, memory: Memory, tmp_path: Path) -> None:
        """Also where the number before the next event is another agent's, or nobody's."""
        steps = [*[code("print(1)")] * 3, code("final_answer(2)")]
        one, two = (memory.attach(code_agent(*steps, name=name)).run("Go", stream=True) for name in ("one", "two"))
        for _ in range(4):
            assert all(any(isinstance(event, ActionStep) for event in run) for run in (one, two))
        assert [list(run) for run in (one, two)]
        late = memory.runs(agent="one")[0].fork(step=3)
        early = late.fork(step=1)
        assert memory.resume(code_agent(code("final_answer(7)"), name="one"), early) == 7
        report = memory.verify()
        assert report, report.problems
        memory.export(tmp_path / "export")
        with Memory(tmp_path / "loaded.db", embedder="off") as loaded:
            loaded.load(tmp_path / "export")
            assert [step.text for step in loaded.run(early.id).steps] == [s.text for s in memory.run(early.id).steps]
            assert loaded.verify()

    def test_runs_by_tag(self, busy: Memory, tmp_path: Path) -> None:
        busy.attach(code_agent(code("final_answer(1)")), tags=["release-41", "nightly"]).run("Tagged task")
        (run,) = busy.runs(tag="nightly")
        assert run.tags == ("release-41", "nightly")
        assert run.tag("good", "nightly").untag("nightly", "unknown").tags == ("release-41", "good")
        imported = "two words\nin a tag of an import"
        busy._journal.tag(run.id, [imported], [])
        assert run.tag("other").untag(imported, "other").tags == ("release-41", "good")
        assert busy.runs(tag="nightly") == []
        assert [found.id for found in busy.runs(tag="good")] == [run.id]
        assert busy.run(run.id).fork(step=1).tags == ("release-41", "good")
        assert busy.verify()
        busy.export(tmp_path / "export.zip")
        with Memory(tmp_path / "loaded.db", embedder="off") as loaded:
            loaded.load(tmp_path / "export.zip")
            assert len(loaded.runs(tag="good")) == 2
        with pytest.raises(InvalidArgument, match="a tag is a short word"):
            run.tag(" ")
        with pytest.raises(InvalidArgument, match="tags are a list of words"):
            busy.attach(code_agent(), tags="release-41")

    def test_runs_by_status(self, busy: Memory) -> None:
        assert [run.agent for run in busy.runs(scope="*", status="failed")] == ["broken"]
        assert len(busy.runs(status="finished")) == 2
        with pytest.raises(InvalidArgument, match="is one of running"):
            busy.runs(status="done")

    def test_runs_by_text(self, busy: Memory) -> None:
        assert [run.title for run in busy.runs(text="WEATHER")] == ["Second task, about the weather"]

    def test_runs_by_time(self, busy: Memory) -> None:
        now = datetime.now(timezone.utc)
        assert len(busy.runs(since=now - timedelta(minutes=1))) == 2
        assert busy.runs(since=now + timedelta(minutes=1)) == []
        assert busy.runs(until=time.time() - 60) == []
        assert len(busy.runs(since="2020-01-01", until="2100-01-01T00:00:00Z")) == 2
        with pytest.raises(InvalidArgument, match="is not a time"):
            busy.runs(since="last tuesday")

    def test_scopes_do_not_mix(self, busy: Memory) -> None:
        assert {run.scope for run in busy.runs()} == {"default"}
        assert [run.scope for run in busy.runs(scope="acme/alice")] == ["acme/alice"]
        assert [run.scope for run in busy.runs(scope="acme/*")] == ["acme/alice"]
        assert busy.runs(scope="acme") == busy.runs(scope="ac/*") == busy.steps(scope="acme") == []
        assert {step.scope for step in busy.steps(scope="acme/*")} == {"acme/alice"}

    def test_a_scope_is_a_path(self, memory: Memory) -> None:
        wrong: list[Any] = ["", " a", "a/", "/a", "a*b", "a\nb", "\0", 5]
        for scope in wrong:
            with pytest.raises(InvalidArgument, match="a scope is a path"):
                memory.runs(scope=scope)
            with pytest.raises(InvalidArgument, match="a scope is a path"):
                memory.attach(code_agent(), scope=scope)

    def test_a_run_is_found_by_the_beginning_of_its_id(self, busy: Memory) -> None:
        run = busy.runs()[0]
        assert busy.run(run.id) == busy.run(run.id[:10]) == busy.run(run.id[:10].upper()) == run

    def test_an_unknown_run_is_named(self, busy: Memory) -> None:
        unknown: list[Any] = ["zzz", "", "ffffffffffffffff0", None, 5, "' OR 1=1"]
        for prefix in unknown:
            with pytest.raises(NotFound, match=r"no run .* lists them"):
                busy.run(prefix)

    def test_an_ambiguous_prefix_lists_what_fits(self, memory: Memory) -> None:
        agent = memory.attach(code_agent(*[code("final_answer(1)")] * 40))
        for number in range(40):
            agent.run(f"Run {number}")
        (letter, count), *_ = Counter(run.id[0] for run in memory.runs()).most_common(1)
        assert count > 1
        with pytest.raises(NotFound, match=r"could be any of .*give more of its id"):
            memory.run(letter)

    def test_steps_by_kind_error_tool_text_and_run(self, busy: Memory) -> None:
        assert [step.kind for step in busy.steps(kind="task")] == ["task", "task"]
        assert [step.error for step in busy.steps(error=True)] == ["AgentExecutionError"]
        assert [step.number for step in busy.steps(error="AgentExecutionError")] == [2]
        assert all(step.error is None for step in busy.steps(error=False))
        assert [step.tools for step in busy.steps(tool="weather")] == [("weather",)]
        assert [step.number for step in busy.steps(text="ALPHA")] == [1]
        run = busy.runs(agent="coder")[0]
        assert [step.run for step in busy.steps(run=run.id[:8], kind="action")] == [run.id] * 3
        assert busy.steps(status="failed") == []
        assert len(busy.steps(agent="coder", kind="action", since=run.began, until=time.time() + 1)) == 3

    def test_a_step_by_its_id(self, busy: Memory) -> None:
        step = busy.steps()[0]
        assert busy.step(step.id) == step
        for unknown in (10**9, -1, "nothing", None):
            with pytest.raises(NotFound, match="no step"):
                busy.step(unknown)  # type: ignore[arg-type]

    def test_everything_is_there_after_opening_again(self, busy: Memory, url: str) -> None:
        runs = busy.runs(scope="*")
        steps = [[step.to_smolagents() for step in run.steps] for run in runs]
        with Memory(url) as again:
            assert again.runs(scope="*") == runs
            assert same([[step.to_smolagents() for step in run.steps] for run in again.runs(scope="*")], steps)
            assert again.verify()

    def test_a_second_memory_sees_each_step_at_once(self, memory: Memory, url: str) -> None:
        with Memory(url) as reader:
            agent = memory.attach(code_agent(code("x = 1"), code("final_answer(1)")))
            for event in agent.run("Watch me", stream=True):
                if isinstance(event, ActionStep):
                    (run,) = reader.runs()
                    assert run.status == "running"
                    assert run.step_count == event.step_number
            assert reader.runs()[0].status == "finished"

    def test_a_transaction_is_all_or_nothing(self, memory: Memory, url: str) -> None:
        store = open_store(url)
        row = {"id": "s", "scope": "a", "agent": "a", "began": 1.0, "fork_of": None, "fork_at": None, "hash": b"h"}

        def fail() -> None:
            store.do("add_session", row)
            raise RuntimeError

        with pytest.raises(RuntimeError):
            store.transact(fail)
        assert store.rows("sessions", {}) == []
        store.transact(lambda: store.do("add_session", row))
        assert store.rows("sessions", {}) == [row]
        store.close()

    def test_threads_share_one_memory(self, memory: Memory) -> None:
        def work(number: int) -> None:
            agent = memory.attach(
                code_agent(*[code("print(1)")] * 9, code("final_answer(1)"), name=f"a{number}", description="d")
            )
            agent.run("Thread")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(run.step_count for run in memory.runs()) == [10] * 8
        assert memory.verify()

    def test_content_is_stored_once(self, memory: Memory) -> None:
        agent = memory.attach(code_agent(*[code("print('x' * 9000)")] * 3, code("final_answer(1)")))
        agent.run("Repeat")
        before = memory.stats().contents
        other = memory.attach(code_agent())
        other.memory.steps = agent.memory.steps
        assert memory.stats().contents == before
        assert same([step.to_smolagents() for step in memory.runs()[0].steps], list(agent.memory.steps))

    def test_revisions_and_removals_are_kept(self, memory: Memory) -> None:
        agent = memory.attach(code_agent(code("print(1)"), code("final_answer(1)")))
        agent.run("Revise")
        agent.memory.steps[1].observations = "corrected"
        del agent.memory.steps[2]
        (run,) = memory.runs()
        assert [step.revision for step in run.steps] == [0, 1]
        assert run.steps[1].to_smolagents().observations == "corrected"
        assert [step.number for step in run.removed] == [2]
        assert memory.verify()

    def test_stats_count_what_is_there(self, busy: Memory) -> None:
        stats = busy.stats()
        assert (stats.runs, stats.statuses) == (3, {"finished": 2, "failed": 1})
        assert stats.steps == stats.events == 12
        assert stats.bytes > stats.content_bytes > 0
        assert stats.failed_writes == 0

    @pytest.mark.promise("S2")
    def test_five_hundred_payloads_in_every_text_parameter(self, busy: Memory, url: str) -> None:
        asks = {
            **{
                name: lambda text, name=name: busy.runs(**{name: text})
                for name in ("scope", "agent", "status", "since", "until", "text", "parent", "session", "limit")
            },
            **{
                f"steps.{name}": lambda text, name=name: busy.steps(**{name: text})
                for name in (
                    "scope",
                    "run",
                    "agent",
                    "status",
                    "kind",
                    "tool",
                    "error",
                    "since",
                    "until",
                    "text",
                    "limit",
                )
            },
            "run": busy.run,
            "step": busy.step,
            "open": lambda text: Memory(url, scope=text).close(),
        }
        before = busy.stats()
        for ask in asks.values():
            for payload in more_payloads()[:: self.every]:
                try:
                    found = ask(payload)
                except SmolmemError:
                    continue
                assert payload == "*" or all(
                    payload.lower() in getattr(each, "text", "").lower() for each in found or []
                )
        assert busy.stats() == before
        assert busy.verify()

    @pytest.mark.promise("S2")
    def test_payloads_as_stored_text_come_back_as_text(self, memory: Memory) -> None:
        for count, payload in enumerate(PAYLOADS, 1):
            agent = memory.attach(calling_agent(calls((payload, {payload: payload})), answer(payload)))
            agent.model.model_id = payload
            agent.run(payload or "empty")
            run, *others = memory.runs()
            assert len(others) == count - 1
            assert run.answer == payload
            assert run.steps[0].to_smolagents().task == (payload or "empty")
        assert memory.verify()

    @pytest.mark.promise("D8")
    def test_generated_steps_survive_the_store(self, memory: Memory) -> None:
        agent = memory.attach(code_agent())

        @settings(
            max_examples=150 // self.every,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        )
        @given(st.lists(any_steps, max_size=6))
        def check(generated: list[Any]) -> None:
            agent.memory.reset()
            agent.memory.steps = [
                TaskStep("generated"),
                *(step for step in generated if not isinstance(step, TaskStep)),
            ]
            stored = [step.to_smolagents() for step in memory.runs(limit=1)[0].steps]
            assert same(stored, list(agent.memory.steps))

        check()
        assert memory.verify()

    def test_a_hundred_appends_by_hand(self, memory: Memory) -> None:
        agent = memory.attach(code_agent())
        for number in range(100):
            agent.memory.steps.append(ActionStep(number, Timing(0.0), observations=f"check {number}"))
        assert [step.number for step in memory.runs()[0].steps] == list(range(100))
        assert memory.verify()

    def test_verify_takes_no_step_that_is_recorded_meanwhile_for_damage(
        self, busy: Memory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read_pages, asked = verification._pages, []

        def pages(records: Any, query: str, *rest: Any) -> Any:
            asked.append(query)
            busy.attach(code_agent(code("final_answer(2)"))).run("Meanwhile")
            return read_pages(records, query, *rest)

        monkeypatch.setattr(verification, "_pages", pages)
        assert busy.verify().problems == []
        assert len(busy.runs(text="Meanwhile", limit=100)) == len(asked) > 5
