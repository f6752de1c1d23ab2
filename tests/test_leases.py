"""One writer per run: a lease that ends by itself, a takeover that is recorded, and an old writer that is refused."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import apsw
import programs
import pytest
from conftest import Clock
from contents import unpacked
from scripted import Scripted, answer, calls, code, code_agent
from smolagents import ActionStep, CodeAgent, TaskStep, ToolCallingAgent, tool
from smolagents.monitoring import Timing
from workers import fork

from smolmem import CannotResume, Memory
from smolmem.core.errors import NotFound, TakenOver
from smolmem.core.values import Alert, Trim
from smolmem.store import heartbeat, writer
from smolmem.store.base import migrations
from smolmem.store.leases import Lease
from smolmem.store.packed_text import add_functions

TORTURE = bool(os.environ.get("SMOLMEM_TORTURE"))
HERE = Path(__file__).parent
PAID: list[int] = []


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    PAID.clear()


@tool
def pay(amount: int) -> str:
    """Pays.

    Args:
        amount: how much
    """
    PAID.append(amount)
    return f"paid {amount}"


# --- containers and stopped processes ---------------------------------------------------------------------------------


def leaseholders(kind: str, folder: Path, seed: int) -> dict[str, int]:
    count = "70" if TORTURE else "3"
    done = programs.run([HERE / "leaseholders.py", kind, folder, count, seed], timeout=1800 if TORTURE else 250)
    assert done.returncode == 0, done.stderr
    told = dict(json.loads(done.stdout.splitlines()[-1]))
    if "skipped" in told:
        pytest.skip(str(told["skipped"]))
    return told


def is_right(told: dict[str, int]) -> bool:
    return not any(told.get(word) for word in ("failed", "doubled", "unfinished", "damaged", "unsaid", "wrong"))


@pytest.mark.promise("D14")
def test_the_run_of_a_container_that_was_replaced_is_resumed_after_its_lease(tmp_path: Path) -> None:
    told = leaseholders("replaced", tmp_path, 1)
    assert is_right(told), told
    assert told["resumer: done"] == told["cases"]


@pytest.mark.promise("D14")
def test_a_living_run_is_not_taken_over_from_a_container_with_the_same_host_name(tmp_path: Path) -> None:
    told = leaseholders("shared", tmp_path, 2)
    assert is_right(told), told
    assert told["resumer: run"] > 0


@pytest.mark.promise("D14")
def test_a_stopped_process_that_wakes_up_after_a_takeover_pays_nothing_and_says_why(tmp_path: Path) -> None:
    told = leaseholders("stopped", tmp_path, 3)
    assert is_right(told), told
    assert told["taken over"] == told["resumer: done"] > 0


# --- the old writer is refused ----------------------------------------------------------------------------------------


def worker(kind: str, *between: Callable[[Any], None]) -> Any:
    """An agent that pays 1 and 2; `between` happens while the model thinks about the second payment."""

    def second(said: Any) -> Callable[[Any], Any]:
        def say(messages: Any) -> Any:
            for act in between:
                act(messages)
            return Scripted(said).generate(messages)

        return say

    options: dict[str, Any] = {"tools": [pay], "name": "worker", "description": "w", "verbosity_level": -1}
    if kind == "calling":
        first, then, last = calls(("pay", {"amount": 1})), calls(("pay", {"amount": 2})), answer("done")
        return ToolCallingAgent(model=Scripted(first, second(then), last), **options)
    if kind == "managed":
        script = code("pay(amount=1)"), second(code("pay(amount=2)")), code("final_answer('done')")
        helper = CodeAgent(model=Scripted(*script), **options | {"name": "helper"})
        manager = code("final_answer(helper(task='pay'))"), code("final_answer('went on')")
        return CodeAgent(model=Scripted(*manager), managed_agents=[helper], **options)
    script = code("pay(amount=1)"), second(code("pay(amount=2)")), code("final_answer('done')")
    return CodeAgent(model=Scripted(*script), stream_outputs=kind == "streaming", **options)


def continued(kind: str) -> Any:
    """The agent that another process would make to resume the run of `worker`: its model answers what is left."""
    agent = worker(kind)
    for one in (agent, *agent.managed_agents.values()):
        script = list(one.model.script)
        one.model.script = iter(script if kind == "managed" and one is agent else script[1:])
    return agent


@pytest.mark.promise("D14")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("kind", ["code", "calling", "streaming", "managed"])
def test_no_tool_is_called_for_a_run_that_was_taken_over(path: Path, clock: Clock, kind: str, strict: bool) -> None:
    with Memory(path, strict=strict) as old, Memory(path, strict=True) as new:

        def takeover(_: Any) -> None:
            clock.pass_by(heartbeat.LEASE_SECONDS + 1)
            run = new.runs(managed=False)[0]
            assert run.status == "interrupted"
            assert str(new.resume(continued(kind), run.id)).endswith("done")

        agent = old.attach(worker(kind, takeover))
        with pytest.raises(TakenOver, match="was taken over by process"):
            agent.run("Pay")
        assert PAID == [1, 2]
        (run,) = new.runs(managed=False)
        assert (run.status, str(run.answer)[-4:]) == ("finished", "done")
        (alert,) = new.alerts(run=run)
        assert (alert.rule, "continues the run of process" in alert.reason) == ("takeover", True)
        assert new.verify()


@pytest.mark.promise("D14")
def test_trims_reminders_and_alerts_of_a_run_that_was_taken_over_are_refused(path: Path, clock: Clock) -> None:
    seen: list[str] = []
    with Memory(path) as old, Memory(path) as new:

        def takeover(_: Any) -> None:
            clock.pass_by(heartbeat.LEASE_SECONDS + 1)
            run = new.runs()[0]
            assert new.resume(continued("code"), run) == "done"
            before = rows_besides(path)
            journal = old._journal
            for write in (
                lambda: journal.trims.add(run.session, Trim("v", 1, 1, 2, 1, "", at=1.0)),
                lambda: journal.reminders.add(run.id, None, "q", [], []),
                lambda: journal.alerts.add(
                    Alert("r", "why", "worker", run.id, 1, datetime.now(timezone.utc)), "default"
                ),
            ):
                with pytest.raises(TakenOver):
                    write()
                seen.append("refused")
            assert rows_besides(path) == before

        with pytest.raises(TakenOver):
            old.attach(worker("code", takeover)).run("Go")
    assert seen == ["refused"] * 3


@pytest.mark.promise("D14")
def test_a_view_that_trims_for_a_run_that_was_taken_over_ends_the_agent(path: Path, clock: Clock) -> None:
    with Memory(path) as old, Memory(path) as new:
        shown: list[int] = []

        def trims(parts: Any, chain: Any) -> Any:
            shown.append(len(parts))
            if len(shown) == 2:
                clock.pass_by(heartbeat.LEASE_SECONDS + 1)
                assert new.resume(continued("code"), new.runs()[0]) == "done"
                chain.trim(parts, parts, parts[-1:])
            return parts

        agent = worker("code")
        with pytest.raises(TakenOver):
            old.attach(agent, views=[trims]).run("Go")
        assert len(agent.model.prompts) <= 1
        assert rows_besides(path)[0] == 0


def rows_besides(path: Path) -> list[int]:
    with apsw.Connection(str(path)) as reading:
        return [reading.execute(f"SELECT count(*) FROM {table}").get for table in ("cut", "recalled", "alert")]


@pytest.mark.promise("D14")
def test_an_agent_that_lost_its_run_is_recorded_again_from_its_next_task_on(path: Path, clock: Clock) -> None:
    with Memory(path, strict=True) as old, Memory(path, strict=True) as new:

        def takeover(_: Any) -> None:
            clock.pass_by(heartbeat.LEASE_SECONDS + 1)
            new.resume(continued("code"))

        agent = old.attach(worker("code", takeover))
        with pytest.raises(CannotResume):
            agent.run("Pay")
        old.flush()
        assert len(old.runs()) == 1
        agent.model.script = iter([code("final_answer(7)"), code("final_answer(8)")])
        assert agent.run("Another task", reset=False) == 7
        assert agent.run("A third task") == 8
        third, second, first = old.runs()
        assert (first.answer, second.answer, third.answer) == ("done", 7, 8)
        assert [step.text for step in third.steps if step.kind == "task"] == ["A third task"]
        assert old.verify()


@pytest.mark.promise("D14")
@pytest.mark.parametrize("kind", ["code", "calling"])
def test_a_takeover_that_another_thread_notices_first_ends_the_thread_that_works(
    path: Path, clock: Clock, kind: str
) -> None:
    with Memory(path) as old, Memory(path, strict=True) as new:

        def takeover(_: Any) -> None:
            clock.pass_by(heartbeat.LEASE_SECONDS + 1)
            assert new.resume(continued(kind)) == "done"

        def notice(_: Any) -> None:
            def append() -> None:
                with pytest.raises(TakenOver):
                    agent.memory.steps.append(ActionStep(9, Timing(0.0)))
                noticed.append(True)

            other = threading.Thread(target=append)
            other.start()
            other.join()

        noticed: list[bool] = []
        agent = old.attach(worker(kind, takeover, notice))
        with pytest.raises(TakenOver):
            agent.run("Pay")
        assert noticed == [True]
        assert PAID == [1, 2], "the second payment is the other process's"
        (run,) = new.runs()
        assert (run.status, run.answer) == ("finished", "done")
        assert new.verify()


@pytest.mark.promise("D14")
def test_steps_put_on_the_list_by_hand_are_refused_once_the_run_is_taken_over(path: Path, clock: Clock) -> None:
    with Memory(path) as old, Memory(path) as new:
        agent = old.attach(code_agent(name="worker", description="w"))
        agent.memory.steps.append(TaskStep("By hand"))
        clock.pass_by(heartbeat.LEASE_SECONDS + 1)
        assert new.resume(code_agent(code("final_answer(1)"), name="worker", description="w")) == 1
        with pytest.raises(TakenOver):
            agent.memory.steps.append(ActionStep(1, Timing(0.0)))
        agent.memory.steps.append(ActionStep(2, Timing(0.0)))
        (run,) = new.runs()
        assert (run.status, run.step_count) == ("finished", 1)
        assert new.verify()


def test_a_run_that_is_worked_on_here_is_not_taken_over_even_if_its_lease_has_run_out(path: Path, clock: Clock) -> None:
    with Memory(path, strict=True) as memory:

        def sleep(_: Any) -> None:
            clock.pass_by(heartbeat.LEASE_SECONDS + 1)
            with pytest.raises(CannotResume, match="in use by process"):
                memory.resume(continued("code"), memory.runs()[0].id)

        assert memory.attach(worker("code", sleep)).run("Pay") == "done"
        assert PAID == [1, 2]


def test_a_resume_that_finds_only_a_running_run_says_who_has_it_and_for_how_long(path: Path, clock: Clock) -> None:
    with Memory(path, strict=True) as memory, Memory(path, strict=True) as other:

        def look(_: Any) -> None:
            clock.pass_by(20)
            with pytest.raises(NotFound, match=rf"in use by process {os.getpid()} on .*its lease ends in 40 s"):
                other.resume(continued("code"))

        memory.attach(worker("code", look)).run("Pay")


# --- the heartbeat ----------------------------------------------------------------------------------------------------


def beating() -> int:
    return sum(thread.name == "smolmem lease" for thread in threading.enumerate())


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


def test_a_lease_is_renewed_while_a_run_is_in_progress_and_no_longer(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.02)
    with Memory(path, strict=True) as memory:
        agent = memory.attach(worker("code"))
        assert beating() == 0
        events = agent.run("Pay", stream=True)
        next(event for event in events if isinstance(event, ActionStep))
        assert beating() == 1
        clock.pass_by(heartbeat.LEASE_SECONDS + 1)
        assert eventually(lambda: memory.runs()[0].status == "running")
        events.close()
        assert eventually(lambda: beating() == 0)
        assert memory.runs()[0].status == "interrupted"


def test_a_closed_or_forgotten_memory_leaves_no_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.02)
    for close in (True, False):
        memory = Memory(path)
        agent = memory.attach(worker("code"))
        agent.memory.steps.append(TaskStep("By hand"))
        assert eventually(lambda: beating() == 1)
        if close:
            memory._journal.close()
        del memory, agent
        gc.collect()
        assert eventually(lambda: beating() == 0), close


def test_a_forked_child_neither_renews_the_lease_of_its_parent_nor_writes_to_its_runs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memory(path, strict=True) as memory:
        events = memory.attach(worker("code")).run("Pay", stream=True)
        next(event for event in events if isinstance(event, ActionStep))
        mine, run = memory._journal.writer, memory.runs()[0].id

        def look() -> None:
            assert memory._journal.writer != mine
            assert beating() == 0
            with pytest.raises(CannotResume, match="in use"):
                memory.resume(continued("code"), run)
            agent = memory.attach(code_agent(code("final_answer(1)"), name="child", description="c"))
            assert agent.run("In the child") == 1
            assert memory._journal.leases.holder(memory._journal.writer)

        child = fork(look)
        assert os.waitpid(child, 0)[1] == 0
        assert memory._journal.leases.holder(mine) == mine
        list(events)
        assert memory.run(run).status == "finished"


# --- leases -----------------------------------------------------------------------------------------------------------


def test_a_lease_has_one_holder_until_it_is_released_or_runs_out(memory: Memory, clock: Clock) -> None:
    leases = memory._journal.leases
    assert leases.acquire("index", "a", 60) == Lease("index", "a", 60)
    assert leases.acquire("index", "b", 60) is None
    assert leases.acquire("other", "b", 60) is not None
    clock.pass_by(50)
    assert leases.renew(Lease("index", "a", 60))
    clock.pass_by(50)
    assert leases.holder("index") == "a"
    assert leases.seconds_left("index") == pytest.approx(10)
    clock.pass_by(10)
    assert leases.holder("index") is None
    held = leases.acquire("index", "b", 60)
    assert held is not None
    assert not leases.renew(Lease("index", "a", 60))
    leases.release(Lease("index", "a", 60))
    assert leases.holder("index") == "b"
    leases.release(held)
    assert leases.holder("index") is None
    assert leases.acquire("index", "a", 60) is not None


def test_a_clock_that_was_set_back_does_not_hold_a_lease_for_hours(memory: Memory, clock: Clock) -> None:
    leases = memory._journal.leases
    leases.acquire("index", "a", 60)
    clock.pass_by(-30)
    assert leases.holder("index") == "a"
    clock.pass_by(-3600)
    assert leases.acquire("index", "b", 60) is not None


def test_leases_that_have_ended_do_not_pile_up(memory: Memory, clock: Clock) -> None:
    for number in range(20):
        memory._journal.leases.acquire(f"writer {number}", "a", 60)
        clock.pass_by(61)
    assert memory._store._live().execute("SELECT count(*) FROM lease").get == 1  # type: ignore[attr-defined]


# --- writers ----------------------------------------------------------------------------------------------------------


def test_nothing_is_concluded_from_the_process_id_of_another_boot_or_namespace() -> None:
    boot, namespace, mine = writer._boot(), writer._namespace(), writer.name_writer(os.getpid(), "t")
    child = fork(lambda: None)
    os.waitpid(child, 0)
    gone = mine.replace(f":{os.getpid()}:", f":{child}:")
    if not boot or not namespace:
        pytest.skip("this system has no boot id or no PID namespaces")
    assert not writer.is_dead(mine)
    assert writer.is_dead(gone)
    assert not writer.is_dead(gone.replace(boot, "0" * len(boot)))
    assert not writer.is_dead(gone.replace(f":{namespace}:", ":1:"))
    assert writer.is_dead(f"{mine.rpartition(':')[2]}:{child}:1")
    assert not writer.is_dead(f"elsewhere:{child}:1")


def make_older(path: Path, version: int) -> None:
    """Gives a file the schema of an earlier release, with the rows of the tables that are in both."""
    old, contents = path.with_name("old.db"), unpacked(path)
    raw = apsw.Connection(str(old))
    add_functions(raw)
    for script in migrations("sqlite")[:version]:
        raw.execute(script)
    raw.execute("ATTACH ? AS now", (str(path),))
    kept = (
        "SELECT name FROM {}.sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'words%'"
    )
    for (table,) in raw.execute(f"{kept.format('main')} INTERSECT {kept.format('now')}").fetchall():
        if table not in ("vector", "content"):
            columns = [row[1] for row in raw.execute(f"PRAGMA main.table_info({table})")]
            values = ("plain(text)" if name == "text" else name for name in columns)
            raw.execute(f"INSERT INTO main.{table} ({', '.join(columns)}) SELECT {', '.join(values)} FROM now.{table}")
    rows = raw.execute("SELECT id, hash FROM now.content ORDER BY id").fetchall()
    kept_alone = [(*row, b"=" + data) for row, data in zip(rows, contents, strict=True)]
    raw.executemany("INSERT INTO main.content VALUES (?, ?, ?)", kept_alone)
    application = raw.execute("PRAGMA now.application_id").get
    raw.execute(f"DETACH now; PRAGMA application_id = {application}; PRAGMA user_version = {version}")
    raw.close()
    os.replace(old, path)


def test_a_run_of_an_earlier_release_on_another_machine_can_be_resumed_an_hour_after_the_upgrade(
    path: Path, clock: Clock
) -> None:
    with Memory(path) as memory:
        for _ in memory.stepwise(worker("code"), "Pay"):
            break
        run = memory._journal.run_row(memory.runs()[0].id)
        memory._journal._put_run({**run, "status": "running", "writer": "elsewhere:1:1"})
    make_older(path, 4)
    with Memory(path) as memory:
        assert memory.runs()[0].status == "running"
        clock.pass_by(3601)
        assert memory.runs(status="interrupted")[0].status == "interrupted"
        assert memory.resume(continued("code")) == "done"
