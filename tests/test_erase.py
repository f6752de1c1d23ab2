"""Erased means gone: from the tables, the index, other runs' prompts, the bytes of the file and every later copy."""

from __future__ import annotations

import inspect
import io
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from contents import unpacked
from rich.console import Console
from scripted import answer, calling_agent, calls, code, code_agent, weather
from smolagents.utils import AgentGenerationError

from smolmem import CannotResume, Memory, Run, Watch, views
from smolmem.core import faults
from smolmem.core.encoding import packing
from smolmem.core.errors import InvalidArgument, NotFound
from smolmem.render import replay, terminal  # noqa: F401  they register how values are drawn

RUNS = 1_000 if os.environ.get("SMOLMEM_TORTURE") else 16


@pytest.fixture
def memory(path: Path) -> Iterator[Memory]:
    with Memory(path, strict=True, embedder="off") as opened:
        yield opened


def stored_bytes(path: Path) -> bytes:
    """The bytes of a store's files, and every content unpacked: long contents are compressed."""
    contents = unpacked(path)
    files = [Path(f"{path}{ending}") for ending in ("", "-wal", "-shm")]
    return b"".join([*(file.read_bytes() for file in files if file.exists()), *contents])


def hits(path: Path, *words: str) -> int:
    data = stored_bytes(path).lower()
    return sum(data.count(word.lower().encode()) for word in words)


def snapshot(run: Run) -> list[Any]:
    """Everything of a run that a user can read."""
    steps = [(step.id, step.kind, step.number, step.position, step.text, step.revision) for step in run.steps]
    sent = [
        [(str(message.role), message.content) for message in getattr(live, "model_input_messages", None) or ()]
        for live in (step.to_smolagents() for step in run.steps)
    ]
    return [run.title, run.status, run.answer, run.step_count, steps, sent]


def sound(memory: Memory) -> bool:
    report = memory.verify()
    assert report.problems == []
    return bool(report)


def record(memory: Memory, mark: str, **options: Any) -> Run:
    """A run with a word in its task, thought, code, variable, printed text, tool call, tool result and answer."""
    agent = memory.attach(
        code_agent(
            f"Thought {mark}th.\n<code>\n{mark}var = '{mark}val'\nprint(weather('{mark}city'), '{mark}obs')\n</code>",
            code(f"final_answer('{mark}ans')"),
            tools=[weather],
            **options,
        )
    )
    agent.run(f"task {mark}task")
    memory.detach(agent)
    return memory.runs(scope="*", limit=1)[0]


# --- the promise ----------------------------------------------------------------------------------------------------


def everything(memory: Memory, number: int) -> tuple[str, Run]:
    """A run with a marker in every kind of field that there is."""
    mark = f"mk{number:04d}q"
    scope = f"{mark}scope/x" if number % 6 == 3 else "default"
    script = [
        calls(("weather", {"city": f"{mark}city"})),
        calls(("weather", {"city": "nowhere"})),
        answer(f"{mark}answer" + "z" * (5_000 if number % 3 == 0 else 0)),
    ]
    script[0].content = f"{mark}thought"
    agent = calling_agent(*script, name=f"{mark}agent", description="d", instructions=f"{mark}system")
    rule = Watch(f"{mark}city", name=f"{mark}rule", then=[])
    memory.attach(agent, scope=scope, watch=[rule], views=[views.TrimObservations(200)] if number % 5 == 0 else None)
    agent.run(f"{mark}task " + "long text " * 600 * (number % 4 == 0), additional_args={"given": f"{mark}variable"})
    memory.detach(agent)
    run = memory.runs(scope=scope, agent=f"{mark}agent")[0]
    memory.scoped(scope).remember(
        f"{mark}note", kind=f"{mark}kind", tags=[f"{mark}tag"], sources=[run.steps[1]], origin="model"
    )
    run.steps[2].edit(observations=f"{mark}edited")
    run.steps[2].edit(observations=f"{mark}edited again")
    return mark, memory.scoped("*").run(run.id)


@pytest.mark.promise("S12")
def test_markers_of_erased_runs_are_in_no_byte_and_other_runs_are_untouched(
    path: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("cases", RUNS)
    with Memory(path, embedder=lambda texts: [[float(len(text)), 1.0, 2.0] for text in texts]) as memory:
        made = [everything(memory, number) for number in range(RUNS)]
        memory.index()  # what the background thread does: erased means gone from the index, too
        for mark, _ in made[:10]:
            assert memory.recall(f"{mark}task", scope="*")
        gone, kept = made[1::2], made[::2]
        before = {mark: snapshot(memory.scoped("*").run(run.id)) for mark, run in kept}
        assert all(hits(path, mark) for mark, _ in made[:4])
        for number, (_, run) in enumerate(gone):
            if run.scope != "default":
                assert memory.erase(scope=f"{run.scope.split('/')[0]}/*").finished
            elif number % 2:
                assert memory.scoped("*").erase(run.id[:12]).finished
            else:
                assert memory.erase(run).runs == (run.id,)
        words = [mark for mark, _ in gone]
        memory.backup(tmp_path / "copy.db")
        memory.export(tmp_path / "export", scope="*")
        assert hits(path, *words) == hits(tmp_path / "copy.db", *words) == 0
        exported = b"".join(file.read_bytes() for file in (tmp_path / "export").rglob("*") if file.is_file())
        assert sum(exported.count(word.encode()) for word in words) == 0
        for mark, run in gone:
            assert not any(mark in found.text for found in memory.recall(f"{mark}task {mark}note", scope="*"))
            assert memory.steps(scope="*", text=mark) == []
            with pytest.raises(NotFound):
                memory.scoped("*").run(run.id)
        assert {mark: snapshot(memory.scoped("*").run(run.id)) for mark, run in kept} == before
        assert len(memory.notes(scope="*", limit=5_000)) == len(kept)
        assert sound(memory)
    with Memory(tmp_path / "copy.db", embedder="off") as copy, Memory(tmp_path / "loaded.db", embedder="off") as loaded:
        loaded.load(tmp_path / "export")
        for mark, _ in kept[:10]:
            assert any(mark in found.text for found in copy.recall(f"{mark}task", scope="*"))
            assert any(mark in found.text for found in loaded.recall(f"{mark}task", scope="*"))
        assert sound(copy)
        assert sound(loaded)


@pytest.mark.promise("S12")
def test_a_kill_while_erasing_leaves_all_or_nothing(path: Path) -> None:
    with Memory(path, embedder="off") as memory:
        first, second = record(memory, "mkone"), record(memory, "mktwo")
    moments = ["write.begun", "write.done", "write.committed"]
    statements = [*moments, *range(5, 120, 12)]
    for moment in statements:
        child = os.fork()
        if child == 0:
            _die_while_erasing(path, first.id, moment)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1]) or moment not in moments
        with Memory(path, embedder="off") as memory:
            assert sound(memory)
            there = [run.id for run in memory.runs()]
            assert second.id in there
            if first.id in there:
                assert memory.run(first.id).answer == "mkoneans"
                assert memory.recall("mkonetask")
                continue
            assert memory.steps(text="mkone") == []
            assert memory.finish_erase()
            assert hits(path, "mkone") == 0
            first = record(memory, "mkone")


def _die_while_erasing(path: Path, run: str, moment: str | int) -> None:
    """Erases a run in this process, and kills the process at a point of the write or before a statement."""
    try:
        with Memory(path, embedder="off") as memory:
            if isinstance(moment, str):
                faults.hook = lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == moment else None
            else:
                left = [moment]

                def trace(*_: Any) -> bool:
                    left[0] -= 1
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return True

                memory._store._connection.exec_trace = trace  # type: ignore[attr-defined]
            memory.erase(run)
    finally:
        os._exit(0)


# --- what goes with it ----------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_go_and_changes_nothing(memory: Memory, path: Path) -> None:
    run = record(memory, "mkdry")
    before = snapshot(run)
    planned = memory.erase(run, dry_run=True)
    assert planned.dry_run
    assert planned.runs == (run.id,)
    assert planned.counts["steps"] == len(planned.steps) == 4
    assert snapshot(memory.run(run.id)) == before
    assert sound(memory)
    erased = memory.erase(run)
    assert (erased.runs, erased.steps, erased.counts) == (planned.runs, planned.steps, planned.counts)
    assert erased.bytes_freed > 0
    assert hits(path, "mkdry") == 0


def test_runs_of_managed_agents_go_with_the_run_that_called_them(memory: Memory, path: Path) -> None:
    helper = code_agent(code("final_answer('mkhelper says')"), name="helper", description="helps")
    agent = code_agent(code("helper('mkchild task')"), code("final_answer('mkdone')"), managed_agents=[helper])
    memory.attach(agent)
    agent.run("mkparent")
    parent = next(run for run in memory.runs() if run.parent is None)
    assert len(memory.erase(parent).runs) == 2
    assert memory.runs() == []
    assert hits(path, "mkhelper", "mkchild", "mkparent", "mkdone") == 0
    assert sound(memory)


def test_the_other_runs_of_a_session_lose_the_erased_run_from_their_prompts(memory: Memory, path: Path) -> None:
    agent = memory.attach(
        code_agent(
            code("secret = 'mkfirst value'\nprint('mkfirst seen')"),
            code("final_answer('mkfirst answer')"),
            code("print('later')"),
            code("final_answer('second')"),
        )
    )
    agent.run("mkfirst task")
    agent.run("another task", reset=False)
    second, first = memory.runs()
    sizes = [len(step.to_smolagents().model_input_messages) for step in second.steps if step.kind == "action"]
    memory.erase(first)
    second = memory.run(second.id)
    assert [step.position for step in second.steps] == [0, 1, 2]
    prompts = [step.to_smolagents().model_input_messages for step in second.steps if step.kind == "action"]
    assert [len(prompt) for prompt in prompts] == sizes
    assert "[erased" in str(prompts[0][1].content)
    assert "another task" in str(prompts[0][-1].content)
    assert second.answer == "second"
    assert hits(path, "mkfirst") == 0
    assert sound(memory)
    other = code_agent()
    second.restore(other)
    assert [type(step).__name__ for step in other.memory.steps] == ["TaskStep", "ActionStep", "ActionStep"]


def test_an_attached_agent_continues_to_be_recorded_after_its_run_is_erased(memory: Memory, path: Path) -> None:
    agent = memory.attach(code_agent(code("final_answer('mkold')"), code("final_answer('new')")))
    agent.run("mkold task")
    memory.erase(memory.runs()[0])
    assert agent.memory.steps == []
    agent.run("new task", reset=False)
    (run,) = memory.runs()
    assert run.answer == "new"
    assert hits(path, "mkold") == 0
    assert sound(memory)


@pytest.mark.parametrize("asked", [False, True])
def test_other_runs_no_longer_quote_what_they_recalled(memory: Memory, path: Path, asked: bool) -> None:
    script = [code("print('the zebra weighs mkzebra kilos')"), code("final_answer('mkanswer')")]
    memory.attach(code_agent(*script)).run("weigh the zebra")
    source = memory.runs()[0]
    note = memory.remember("the giraffe is mkgiraffe tall")
    script = [code("print(recall_memory('zebra weighs, giraffe tall'))")] if asked else []
    reader = code_agent(*script, code("final_answer('found')"), name="reader", description="d")
    memory.attach(reader, recall=0 if asked else 6, tools=asked)
    reader.run("look it up" if asked else "what does the zebra weigh, how tall is the giraffe?")
    run = memory.runs(agent="reader")[0]
    assert "mkzebra kilos" in last_prompt(run)
    memory.erase(source)
    run = memory.run(run.id)
    assert "mkzebra" not in last_prompt(run)
    assert "mkgiraffe" in last_prompt(run)
    assert "[erased" in last_prompt(run)
    assert hits(path, "mkzebra", "mkanswer") == 0
    assert sound(memory)
    memory.erase(note)
    assert hits(path, "mkgiraffe") == 0
    assert memory.run(run.id).answer == "found"
    assert memory.recall("found")
    assert sound(memory)


def last_prompt(run: Run) -> str:
    return str([step.to_smolagents().model_input_messages for step in run.steps if step.kind == "action"][-1])


def test_agents_notes_go_with_their_source_and_users_notes_lose_it(memory: Memory, path: Path) -> None:
    run = record(memory, "mksrc")
    step = run.steps[1]
    made = memory.remember("mkmade by an agent", sources=[step], origin="agent")
    again = memory.remember("mkagain from the note", sources=[made], origin="model")
    mine = memory.remember("mine", sources=[step, made])
    assert set(memory.erase(run).notes) == {made.id, again.id}
    assert memory.note(mine.id).sources == ()
    assert memory.note(mine.id).text == "mine"
    assert hits(path, "mksrc", "mkmade", "mkagain") == 0
    assert sound(memory)


def test_an_erased_note_does_not_bring_back_the_note_it_replaced(memory: Memory, path: Path) -> None:
    old = memory.remember("the door code is 1111")
    new = memory.remember("the door code is mkcode", supersedes=old)
    memory.erase(new)
    assert memory.note(old.id).status == "forgotten"
    assert memory.recall("door code") == []
    assert hits(path, "mkcode") == 0
    assert sound(memory)
    newer = memory.remember("the gate code is 2", supersedes=memory.remember("mkgate"))
    memory.erase(memory.notes(past=True, limit=9)[1])
    assert memory.note(newer.id).supersedes is None
    assert hits(path, "mkgate") == 0
    assert sound(memory)


def test_one_step_can_be_erased(memory: Memory, path: Path) -> None:
    agent = memory.attach(
        code_agent(code("mkvar = 'mkvalue'\nprint('mkstep')"), code("print('after')"), code("final_answer('end')"))
    )
    agent.run("a task")
    memory.detach(agent)
    run = memory.runs()[0]
    assert memory.recall("mkstep after")
    erased = memory.erase(next(step for step in run.steps if step.number == 1))
    assert erased.runs == ()
    assert erased.counts["steps"] == 1
    run = memory.run(run.id)
    assert [(step.kind, step.number, step.position) for step in run.steps] == [
        ("task", None, 0),
        ("action", 2, 1),
        ("action", 3, 2),
    ]
    assert (run.answer, run.step_count) == ("end", 2)
    assert hits(path, "mkvar", "mkvalue", "mkstep") == 0
    assert [found.step for found in memory.recall("after", 1)] == [run.steps[1].id]
    assert sound(memory)


def test_a_run_whose_task_is_erased_is_not_resumed_and_stays_as_it_is(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("x = 1"), ConnectionError("429")))
    with pytest.raises(AgentGenerationError):
        agent.run("A task")
    memory.detach(agent)
    memory.erase(memory.runs()[0].steps[0])
    with pytest.raises(CannotResume, match="has no task any more"):
        memory.resume(code_agent())
    (run,) = memory.runs()
    assert run.status == "failed"
    with pytest.raises(CannotResume, match="has no task any more"):
        run.rerun(code_agent())
    memory.erase(run)


def test_a_run_whose_task_or_last_step_is_erased_loses_its_title_or_answer(memory: Memory, path: Path) -> None:
    run = record(memory, "mkend")
    memory.erase(run.steps[0])
    memory.erase(run.steps[-1])
    run = memory.run(run.id)
    assert (run.title, run.answer) == ("[erased]", None)
    assert hits(path, "mkendtask", "mkendans") == 0
    assert sound(memory)


# --- forks ----------------------------------------------------------------------------------------------------------


def recorded_with_forks(memory: Memory) -> tuple[Run, list[Run]]:
    """A run, a fork of it that was resumed, other forks of both, and a fork of that fork."""
    agent = memory.attach(
        code_agent(
            code("x = 1\nprint('mkshared', weather('Oslo'))"),
            code("y = x + 1\nprint('mkalso shared')"),
            code("print('mkonly here')"),
            code("final_answer('mkonly answer')"),
            tools=[weather],
        )
    )
    agent.run("the original")
    memory.detach(agent)
    original = memory.runs()[0]
    fork, early = original.fork(step=2), original.fork(step=1)
    other = code_agent(code("z = y + 1\nprint(z, weather('Rome'))"), code("final_answer(z)"), tools=[weather])
    assert fork.resume(other) == 3
    memory.detach(other)
    return original, [memory.run(fork.id), early, fork.fork(step=1), memory.run(fork.id).fork(step=3)]


def variables(memory: Memory, run: Run) -> list[Any]:
    agent = code_agent(tools=[weather])
    run.restore(agent)
    found = [agent.python_executor.state.get(name) for name in "xyz"]
    memory.detach(agent)
    return found


def test_forks_of_an_erased_run_keep_what_they_share_and_work(memory: Memory, path: Path) -> None:
    original, forks = recorded_with_forks(memory)
    before = [snapshot(fork) for fork in forks]
    values = [variables(memory, fork) for fork in forks]
    assert values == [[1, 2, 3], [1, None, None], [1, None, None], [1, 2, 3]]
    memory.erase(original)
    assert sound(memory)
    forks = [memory.run(fork.id) for fork in forks]
    assert [snapshot(fork) for fork in forks] == before
    assert [variables(memory, fork) for fork in forks] == values
    assert hits(path, "mkonly") == 0
    for fork in forks:
        console = Console(file=io.StringIO(), width=120)
        fork.replay(console=console)
        assert "mkshared" in console.file.getvalue()  # type: ignore[attr-defined]
    assert memory.recall("mkshared")
    assert [event.step for event in forks[0].events()] != []
    assert forks[1].resume(code_agent(code("final_answer(x + 10)"), tools=[weather])) == 11
    assert sound(memory)


def test_a_fork_of_an_erased_fork_keeps_the_whole_past(memory: Memory, path: Path) -> None:
    original, (fork, _, early, late) = recorded_with_forks(memory)
    before = [snapshot(early), snapshot(late)]
    for run in (original, fork):
        memory.erase(run)
        assert sound(memory)
    assert [snapshot(memory.run(run.id)) for run in (early, late)] == before
    assert memory.run(late.id).resume(code_agent(code("final_answer(x + y + z)"), tools=[weather])) == 6
    assert sound(memory)
    memory.erase(scope="*")
    assert memory.runs() == []
    assert hits(path, "mkshared", "mkalso", "mkonly") == 0
    assert sound(memory)


def test_forks_of_forks_can_be_deeper_than_the_stack(memory: Memory) -> None:
    memory.attach(code_agent(code("final_answer(2)"))).run("Fork me")
    first = run = memory.runs()[0]
    for number in range(60):
        run = run.fork()
        run.steps[1].edit(model_output=f"edited {number}")
    before, limit = snapshot(run), sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 60)
    try:
        memory.erase(first)
    finally:
        sys.setrecursionlimit(limit)
    assert snapshot(memory.run(run.id)) == before
    assert sound(memory)


def test_erasing_a_fork_leaves_the_original_as_it_is(memory: Memory) -> None:
    original, forks = recorded_with_forks(memory)
    before = snapshot(original)
    for fork in forks:
        memory.erase(fork)
        assert snapshot(memory.run(original.id)) == before
        assert sound(memory)


def test_an_edit_of_a_shared_step_stays_with_the_fork_that_made_it(memory: Memory, path: Path) -> None:
    original, (fork, *_) = recorded_with_forks(memory)
    fork.steps[1].edit(observations="edited in the fork")
    original.steps[1].edit(observations="mklater edit in the original")
    before = snapshot(memory.run(fork.id))
    memory.erase(original)
    assert snapshot(memory.run(fork.id)) == before
    assert hits(path, "mklater") == 0
    assert sound(memory)


def test_a_fork_of_one_of_several_runs_of_a_session(memory: Memory, path: Path) -> None:
    agent = memory.attach(
        code_agent(
            *(code("final_answer('zero')"), code("print('mkone')"), code("final_answer('mkone end')")),
            *(code("print('two')"), code("final_answer('two end')")),
        )
    )
    agent.run("task zero")
    agent.run("mkone task", reset=False)
    agent.run("task two", reset=False)
    memory.detach(agent)
    two, one, zero = memory.runs()
    fork, later = one.fork(step=1), two.fork(step=1)
    assert len(later.steps) > len(two.steps)
    memory.erase(one)
    assert sound(memory)
    assert [step.text for step in memory.run(fork.id).steps if step.kind == "task"][-1] == "mkone task"
    assert "mkone" not in "".join(step.text for step in memory.run(later.id).steps)
    assert memory.run(zero.id).answer == "zero"
    assert memory.run(two.id).answer == "two end"
    memory.erase(fork)
    assert sound(memory)
    assert hits(path, "mkone") == 0


# --- how ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("S12")
@pytest.mark.parametrize("what", ["run", "step"])
def test_an_agent_whose_steps_another_process_erased_begins_anew(path: Path, memory: Memory, what: str) -> None:
    agent = memory.attach(
        code_agent(code("print('zebra' * 2)"), code("final_answer(1)"), *[code("final_answer(2)")] * 2)
    )
    agent.run("Say zebrazebra")
    with Memory(path, embedder="off") as other:
        run = other.runs()[0]
        other.erase(run if what == "run" else run.steps[1])
    agent.run("Next", reset=False)
    agent.run("And next", reset=False)
    assert sound(memory)
    assert "zebrazebra" not in str(agent.model.prompts[2])
    assert [run.title for run in memory.runs()][:2] == ["And next", "Next"]
    assert what == "step" or hits(path, "zebrazebra") == 0


@pytest.mark.promise("S12")
def test_a_run_cannot_be_erased_while_another_run_continues_its_list(path: Path, memory: Memory) -> None:
    agent = memory.attach(code_agent(code("final_answer(1)"), code("print(2)"), code("final_answer(3)")))
    agent.run("First")
    first = memory.runs()[0]
    for _ in memory.stepwise(agent, "Second", reset=False):
        with Memory(path, embedder="off") as other, pytest.raises(CannotResume, match="is running"):
            other.erase(first.id)
    assert memory.erase(first)
    assert sound(memory)


@pytest.mark.promise("S12")
def test_a_variable_that_an_erased_run_set_is_in_no_snapshot_of_later_runs(path: Path, memory: Memory) -> None:
    made = [code("kept = 'elephant'"), code("found = ['zeb' + 'ra']"), code("found.append('lion')"), code("x = 1")]
    script = [line for body in made for line in (body, code("final_answer(1)"))]
    agent = memory.attach(code_agent(*script))
    for task in ("one", "two", "three", "four"):
        agent.run(task)
    assert hits(path, "zebra")
    memory.erase(memory.runs()[2])
    assert hits(path, "zebra") == 0
    assert hits(path, "elephant")
    assert sound(memory)


def test_a_running_run_cannot_be_erased(memory: Memory) -> None:
    agent = memory.attach(code_agent(code("print(1)"), code("final_answer(2)")))
    steps = memory.stepwise(agent, "a task")
    next(iter(steps))
    run = memory.runs()[0]
    for chosen in ({"what": run}, {"what": run.steps[0]}, {"scope": "default"}):
        with pytest.raises(CannotResume, match=r"is running .*: nothing was erased"):
            memory.erase(**chosen)
    assert not memory.erase(before=time.time() + 60)
    assert len(agent.memory.steps) > 0
    assert sound(memory)


def test_old_runs_are_erased_by_time_and_scope(path: Path) -> None:
    with Memory(path, scope="acme/a", embedder="off") as memory:
        record(memory, "mkold")
        moment = time.time()
        new = record(memory, "mknew")
    with Memory(path, scope="other", embedder="off") as memory:
        other = record(memory, "mkother")
        assert memory.erase(before=moment).runs == ()
        assert len(memory.erase(scope="acme/*", before=moment).runs) == 1
        assert {run.id for run in memory.runs(scope="*")} == {new.id, other.id}
        assert len(memory.prune(timedelta(0), scope="acme/*", dry_run=True)) == 1
        assert memory.prune(timedelta(days=1), scope="*") == []
        for wrong in ({}, {"what": other, "scope": "other"}, {"scope": "a*b"}, {"before": "soon"}):
            with pytest.raises(InvalidArgument):
                memory.erase(**wrong)
        with pytest.raises(InvalidArgument):
            memory.prune(scope="acme/*")
        assert memory.prune() == []
    assert hits(path, "mkold") == 0


def test_retention_is_applied_when_the_memory_is_opened(path: Path) -> None:
    with Memory(path, scope="acme/a", embedder="off") as memory:
        record(memory, "mkold")
    with Memory(path, embedder="off", retain={"acme/*": timedelta(days=90), "*": timedelta(days=1)}) as memory:
        assert len(memory.runs(scope="*")) == 1
    with Memory(path, embedder="off", retain={"acme/*": timedelta(0)}) as memory:
        assert memory.runs(scope="*") == []
        assert memory.prune() == []
    assert hits(path, "mkold") == 0
    for wrong in ({"acme/*": 90}, {"a*": timedelta(1)}, {"a": timedelta(-1)}, ["a"]):
        with pytest.raises(InvalidArgument):
            Memory(path, retain=wrong)  # type: ignore[arg-type]


def test_a_reader_in_the_way_is_said_and_the_rest_is_done_later(
    memory: Memory, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = record(memory, "mkheld")
    other = apsw.Connection(str(path))
    other.execute("BEGIN; SELECT count(*) FROM run")
    memory._store._live().set_busy_timeout(50)  # type: ignore[attr-defined]
    receipt = memory.erase(run)
    assert not receipt.finished
    assert memory.runs() == []
    drawn = Console(file=io.StringIO(), width=120)
    drawn.print(receipt)
    assert "smolmem erase --finish" in drawn.file.getvalue()  # type: ignore[attr-defined]
    assert len(memory._journal.unfinished_erases()) == 1
    Memory(path, embedder="off").close()
    assert "was not finished" in caplog.text
    other.close()
    assert memory.finish_erase()
    assert hits(path, "mkheld") == 0
    assert memory._journal.unfinished_erases() == []
    assert sound(memory)


def test_the_receipt_says_how_much_and_holds_no_text(memory: Memory, path: Path) -> None:
    run = record(memory, "mkrec")
    receipt = memory.erase(run)
    (row,) = memory._store.rows("erased", {})
    assert json.loads(row["what"]) == ["run"]
    assert json.loads(row["counts"]) == receipt.counts
    assert json.loads(row["events"]) == [[1, 4]]
    drawn = Console(file=io.StringIO(), width=120)
    drawn.print(receipt)
    assert drawn.file.getvalue().startswith("✓ erased 1 run, 4 steps")  # type: ignore[attr-defined]
    assert not memory.erase(scope="nobody")


def test_events_that_are_missing_without_a_receipt_are_still_found(memory: Memory, path: Path) -> None:
    record(memory, "mka")
    middle = record(memory, "mkb")
    record(memory, "mkc")
    memory.erase(middle)
    assert sound(memory)
    memory.close()
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE erased SET events = '[]'")
    connection.close()
    with Memory(path, embedder="off") as opened:
        problems = " ".join(opened.verify().problems)
    assert "erased 1 is not what was written" in problems
    assert "events 5 to 8 are missing" in problems


def test_words_of_earlier_revisions_are_in_no_free_page(memory: Memory, path: Path) -> None:
    run = record(memory, "mkpage")
    for number in range(20):
        memory.run(run.id).steps[1].edit(observations=f"mkrevision{number} " + "words " * 400)
        memory.recall("mkrevision words")
    memory.forget(run)
    memory.erase(run)
    assert hits(path, "mkpage", "mkrevision") == 0
    assert sound(memory)


def test_a_run_object_of_an_erased_run_says_that_it_is_gone(memory: Memory) -> None:
    memory.attach(code_agent(code("final_answer(1)"))).run("Go")
    run = memory.runs()[0]
    memory.erase(run)
    for look in (lambda: run.fork(), lambda: run.as_of(1), lambda: memory.run(run.id)):
        with pytest.raises(NotFound):
            look()


def test_objects_of_an_erased_run_and_its_steps_say_that_they_are_gone_and_not_that_the_file_is_damaged(
    memory: Memory, path: Path
) -> None:
    memory.attach(code_agent(code("print('one')"), code("final_answer(1)"))).run("Go")
    run = memory.runs()[0]
    steps = run.steps
    with Memory(path, embedder="off") as other:
        other.erase(other.runs()[0])
    with pytest.raises(NotFound, match="erased"):
        print(run.answer)
    for step in steps:
        with pytest.raises(NotFound, match="erased"):
            step.to_smolagents()


@pytest.mark.parametrize("what", ["run", "step", "note"])
def test_what_another_process_erases_at_the_same_time_is_no_error(
    memory: Memory, path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    memory.attach(code_agent(code("print('one')"), code("final_answer(1)"))).run("Go")
    memory.remember("A note")
    found: Any = {"run": memory.runs()[0], "step": memory.runs()[0].steps[1], "note": memory.notes()[0]}[what]
    with Memory(path, embedder="off") as other:
        monkeypatch.setattr(memory, "_leave_sessions", lambda sessions: other.erase(found))
        receipt = memory.erase(found)
    assert not receipt
    assert not any((receipt.runs, receipt.steps, receipt.notes))
    assert sound(memory)


@pytest.mark.promise("S12")
def test_steps_recorded_after_another_process_erased_what_they_are_packed_with_can_be_read(path: Path) -> None:
    """The erase packs anew what follows an erased content, and a recorder must not go on with the old dictionary."""
    with Memory(path, strict=True, embedder="off") as memory:
        journal = memory._journal
        texts = [random.Random(number).randbytes(500).hex() for number in range(3)]
        texts += [text + "again" for text in texts]

        def keep(text: str) -> int:
            return journal._transact("r" * 16, lambda chain: journal.keep(journal.encode(text), chain))

        kept = [keep(text) for text in texts[:3]]
        with closing(apsw.Connection(str(path))) as other:  # what an erase of the first content does
            plain = [packing.pack(journal.content(number)) for number in kept[1:]]
            for number, data in zip(kept[1:], plain, strict=True):
                other.execute("UPDATE content SET bytes = ?, base = NULL WHERE id = ?", (data, number))
            other.execute("DELETE FROM content WHERE id = ?", (kept[0],))
        kept += [keep(text) for text in texts[3:]]
        reader = Memory(path, embedder="off")
        for each in (journal, reader._journal):
            assert [each.value(number) for number in kept[1:]] == texts[1:]
        reader.close()
