"""What a new user does in the first hour: names a file, looks, follows, queries, undoes, and runs the demo."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import programs
import pytest
from conftest import Run
from scripted import code as thought
from scripted import code_agent
from test_cli import on_terminal, uncoloured
from test_examples import server

from smolmem import Memory
from smolmem.cli import start
from smolmem.cli.commands import past
from smolmem.cli.output import Output
from smolmem.core.arguments import MAX_TAGS
from smolmem.core.errors import InvalidArgument, NotFound
from smolmem.core.text import counted, duration

ROOT = Path(__file__).parent.parent
NOBODY = 65534


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as the README makes it: one agent, one run; and a run whose model has a price."""
    path = tmp_path_factory.mktemp("first") / "agent.db"
    with Memory(path, strict=True, embedder="off") as memory:
        memory.attach(code_agent(thought("print(6 * 7)"), thought("final_answer(42)"))).run("What is 6 times 7?")
        memory.remember("Deploys happen on Tuesdays", kind="fact")
        memory.remember("Elsewhere is another scope", scope="acme/alice")
    return path


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store in an otherwise empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SMOLMEM_URL", raising=False)
    shutil.copy(made, "agent.db")
    return tmp_path


# --- which store ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["runs"], ["runs", "agent.db"], ["runs", "-n", "5", "agent.db"]], ids=" ".join)
def test_the_readmes_file_is_found_without_an_option(words: list[str], here: Path, run: Run) -> None:
    code, out, _ = run(*words)
    assert code == 0
    assert "What is 6 times 7?" in out


def test_the_first_word_names_a_store_only_if_the_command_has_the_words_that_it_needs(here: Path, run: Run) -> None:
    id = json.loads(run("runs", "--json")[1])[0]["id"]
    shutil.copy("agent.db", "other.db")
    for words in (
        ["show", "agent.db", id[:6]],
        ["show", f"sqlite:///{here}/agent.db", id[:6]],
        ["search", "agent.db", "--lexical", "6", "times", "7"],
        ["sql", "agent.db", "select title from runs"],
        ["steps", "--kind", "task", "agent.db"],
    ):
        assert "6 times 7" in run(*words)[1], words
    assert run("backup", "agent.db", "copy.db")[0] == 0
    assert Path("copy.db").exists()
    code, _, err = run("search", "other.db")
    assert (code, "several stores here" in err) == (3, True), "a single word is what is searched for"


def test_several_stores_are_listed_and_one_is_chosen_on_a_terminal(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Memory("other.db").close()
    Path("notes.db").write_text("not a store")
    code, out, err = run("runs")
    assert (code, out) == (3, "")
    assert "There are several stores here: other.db, agent.db. Name one, as in `smolmem runs other.db`" in err
    code, out, err = run()
    assert (code, "several stores here" in out, err) == (0, True, ""), "the overview of all commands is no error"
    code, out = on_terminal("runs", typed="2\n")
    assert code == 0
    assert "What is 6 times 7?" in uncoloured(out)
    monkeypatch.setenv("SMOLMEM_URL", "agent.db")
    assert "What is 6 times 7?" in run("runs")[1]


def test_a_store_without_a_command_gets_a_suggestion(here: Path, run: Run) -> None:
    code, _, err = run("agent.db")
    assert code == 2
    assert "a command comes first, as in `smolmem runs agent.db`" in err


def test_commands_are_known_in_the_singular_and_things_are_counted_so(here: Path, run: Run) -> None:
    assert run("run")[1] == run("runs")[1]
    assert run("note")[1] == run("notes")[1]
    assert "1 in 1 session\n" in run("stats")[1]
    assert (counted(1, "step"), counted(0, "step"), counted(2_000, "step")) == ("1 step", "0 steps", "2,000 steps")


# --- steps ----------------------------------------------------------------------------------------------------------


def test_what_search_prints_can_be_pasted_into_every_command(here: Path, run: Run) -> None:
    out = run("search", "print", "6", "--lexical")[1]
    reference = re.findall(r"· ([0-9a-f]{8}/1) ·", out)[0]
    assert json.loads(run("search", "print", "6", "--lexical", "--json")[1])[0]["reference"] == reference
    shown = json.loads(run("show", reference, "--json")[1])
    assert (shown["reference"], shown["number"]) == (reference, 1)
    id, short = shown["id"], reference[:8]
    for words in (["steps", reference], ["steps", str(id)], ["show", short, "--step", "1"], ["show", f"{short}/@{id}"]):
        assert json.loads(run(*words, "--json")[1]) == shown, words
    assert json.loads(run("show", short, "--step", str(id), "--json")[1]) == shown, "an id is no dead end"
    assert json.loads(run("erase", reference, "--dry-run", "--json")[1])["steps"] == [id]
    assert "shares 1 step with" in run("fork", reference)[1]
    assert json.loads(run("remember", "Noted", "--step", reference, "--json")[1])["sources"] == [id]
    assert f"step {id}" not in run("forget", reference)[1]
    assert run("show", f"{short}/9")[2] == f"smolmem: run {short} has no step 9: it has steps 1 to 2.\n"
    with Memory("agent.db") as memory:
        assert memory.step(reference).id == id
        with pytest.raises(NotFound, match=f"is of run {short}"):
            memory.step(f"ffff/@{id}")


def test_forgetting_is_undone_with_everything_that_was_forgotten_together(here: Path, run: Run) -> None:
    with Memory("agent.db", embedder="off") as memory:
        step = memory.steps(kind="action")[0]
        derived = memory.remember("The answer was forty-two", origin="model", sources=[step])
        apart = memory.remember("Tea is at four")
        memory.forget(apart)
        memory.forget(step)
        assert not memory.recall("forty-two")
    out = run("forget", step.reference, "--undo")[1]
    assert derived.id[:8] in out
    assert apart.id[:8] not in out
    with Memory("agent.db", embedder="off") as memory:
        assert memory.note(derived.id).status == "current"
        assert memory.recall("forty-two")[0].note == derived.id
        assert step.id in [found.step for found in memory.recall("final_answer 42")]
        assert memory.note(apart.id).status == "forgotten", "it was forgotten at another time"
        assert memory.verify()
        with pytest.raises(NotFound, match="is not forgotten: there is nothing to undo"):
            memory.forget(step, undo=True)


def test_a_step_that_was_interrupted_and_finished_is_one_step(tmp_path: Path) -> None:
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        with pytest.raises(Exception, match="503"):
            memory.attach(code_agent(thought("x = 1"), RuntimeError("503"))).run("Count")
        id = memory.runs()[0].id
        memory.resume(code_agent(thought("x += 1"), thought("final_answer(x)")), id)
        run = memory.run(id)
        assert [step.number for step in run.steps if step.kind == "action"] == [1, 2, 3]
        assert run.step_count == 3


def test_a_new_fork_is_not_called_interrupted(here: Path, run: Run) -> None:
    with Memory("agent.db") as memory:
        fork = memory.runs()[0].fork(step=1)
        assert (fork.label, fork.status, fork.action_count) == ("forked", "interrupted", 1)
        assert "forked" in repr(fork)
    line = next(line for line in run("runs")[1].splitlines() if line.startswith(fork.id[:8]))
    assert line.split()[1] == "forked"
    assert re.search(r" 0 ms +1 ", line), "the step that it shares is counted"


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SMOLMEM_URL", raising=False)
    with Memory("agent.db", embedder="off", strict=True) as memory:
        helper = code_agent(thought("final_answer('in one file')"), name="librarian", description="finds things")
        asking = [thought("print(librarian(task='What is SQLite?'))"), thought("final_answer('one file')")]
        boss = code_agent(*asking, managed_agents=[helper])
        for each in (boss, helper):
            each.model.model_id = "priced-model"
        memory.attach(boss).run("Do we need a server?")


@pytest.mark.usefixtures("managed")
def test_a_managed_agent_stands_below_its_caller_with_its_own_task(run: Run) -> None:
    above, below = json.loads(run("runs", "--json")[1])
    assert (above["title"], below["title"]) == ("Do we need a server?", "What is SQLite?")
    assert below["parent"] == above["id"]
    own = [each["input_tokens"] + each["output_tokens"] for each in (above, below)]
    assert (above["total_tokens"], below["total_tokens"]) == (sum(own), own[1])
    steps = [each["step_count"] for each in (above, below)]
    assert (above["total_steps"], below["total_steps"]) == (sum(steps), steps[1])
    assert f"{sum(steps)} steps and {sum(own):,} tokens with 1 run of managed agents" in run("show", above["id"])[1]
    lines = run("runs")[1].splitlines()
    assert lines[1].startswith(above["id"][:8])
    assert lines[2].endswith("↳ What is SQLite?")
    assert len(json.loads(run("runs", "--agent", "librarian", "--json")[1])) == 1


@pytest.mark.usefixtures("managed")
def test_costs_come_from_the_users_prices(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cost" not in run("runs")[1].splitlines()[0], "the price of this model is not known"
    Path("prices.json").write_text('{"priced": [1000, 2000]}')
    monkeypatch.setenv("SMOLMEM_PRICES", "prices.json")
    above, below = json.loads(run("runs", "--json")[1])
    assert below["cost"] == pytest.approx((below["input_tokens"] * 1000 + below["output_tokens"] * 2000) / 1e6)
    assert above["total_cost"] == pytest.approx(above["cost"] + below["cost"])
    assert f"${above['total_cost']:.4f}" in run("runs")[1].splitlines()[1]
    Path("prices.json").write_text("[]")
    code, _, err = run("runs")
    assert (code, "not a JSON file of prices" in err) == (2, True)


def test_days_are_named_by_words(here: Path, run: Run) -> None:
    midnight = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    assert past("today") == midnight.timestamp()
    assert past("Yesterday") == (midnight - timedelta(days=1)).timestamp()
    assert past(f"{midnight:%A}") == midnight.timestamp()
    assert "6 times 7" in run("runs", "--since", "yesterday", "-n", "1")[1]
    assert run("runs", "--until", "yesterday", "--json")[1] == "[]\n"


# --- SQL ------------------------------------------------------------------------------------------------------------


def test_a_select_is_printed_in_every_form(here: Path, run: Run) -> None:
    select = "select kind, text from notes order by text"
    rows = [
        {"kind": "fact", "text": "Deploys happen on Tuesdays"},
        {"kind": "note", "text": "Elsewhere is another scope"},
    ]
    assert json.loads(run("sql", select, "--json")[1]) == rows
    assert json.loads(run("sql", select, "--format", "json")[1]) == rows
    assert [json.loads(line) for line in run("sql", select, "--format", "ndjson")[1].splitlines()] == rows
    assert list(csv.DictReader(run("sql", select, "--format", "csv")[1].splitlines())) == rows
    assert run("sql", select, "--format", "markdown")[1].splitlines()[2] == "| fact | Deploys happen on Tuesdays |"
    assert run("sql", select)[1].splitlines()[0].split() == ["kind", "text"]
    assert len(json.loads(run("sql", select, "-n", "1", "--json")[1])) == 1
    assert json.loads(run("sql", select, "--scope", "acme/*", "--json")[1]) == rows[1:]
    assert json.loads(run("sql", "select scope, printf('%d', count(*)) n from runs", "--json")[1])[0]["n"] == "1"


@pytest.mark.parametrize("statement", ["delete from runs", "select * from main.run", "attach 'x' as y", "pragma x"])
def test_sql_reads_the_three_tables_and_nothing_else(statement: str, here: Path, run: Run) -> None:
    before = Path("agent.db").read_bytes()
    code, _, err = run("sql", statement)
    assert (code, "to read only" in err) == (2, True)
    assert Path("agent.db").read_bytes() == before


def test_a_query_with_long_values_shows_all_columns_on_a_narrow_terminal(here: Path) -> None:
    long = "select agent, 'a long text ' || hex(zeroblob(90)) as text, id, status from runs"
    code, out = on_terminal("sql", long, columns=60)
    head, row = uncoloured(out).splitlines()[:2]
    assert (code, head.split()) == (0, ["agent", "text", "id", "status"])
    assert (row.split()[:4], row.split()[-1]) == (["CodeAgent", "a", "long", "text"], "finished")


def test_a_query_with_more_columns_than_fit_prints_each_value_on_a_line_of_its_own(here: Path) -> None:
    code, out = on_terminal("sql", "select *, 'second' as added from runs", columns=60)
    lines = dict(line.split(None, 1) for line in uncoloured(out).splitlines() if len(line.split()) > 1)
    assert (code, lines["agent"].strip(), lines["status"].strip()) == (0, "CodeAgent", "finished")
    assert list(lines)[-1] == "added", "in the order of the columns"


# --- empty and long lists --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["runs", "steps", "notes", "alerts"])
def test_an_empty_list_says_whether_the_store_is_empty_or_the_options_exclude_everything(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    Memory("new.db", embedder="off").close()
    assert run(what, "new.db") == (0, "", f"new.db holds no {what} yet.\n")
    assert run(what, "new.db", "--scope", "acme") == (0, "", f"No {what} in new.db match these options.\n")
    assert run(what, "new.db", "--json") == (0, "[]\n", "")


def test_tail_says_that_it_waits_for_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.chdir(tmp_path)
    Memory("new.db", embedder="off").close()
    assert run("tail", "new.db", "--no-follow") == (0, "", "new.db holds no steps yet.\n")

    def stop(_: Output) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Output, "wait", stop)
    code, _, err = run("tail", "new.db")
    assert (code, err) == (130, "new.db holds no steps yet. Waiting for the first step; Ctrl-C stops.\n\n")


def test_a_list_that_reaches_its_limit_says_so(here: Path, run: Run) -> None:
    hint = "Only 1 result shown: --limit N shows more.\n"
    assert run("steps", "--limit", "1")[2] == hint
    assert run("steps", "--limit", "1", "--json")[2] == ""
    assert run("steps")[2] == ""


def test_a_rule_is_not_drawn_over_no_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.chdir(tmp_path)
    Memory("new.db", embedder="off").close()
    out = run("watch", "--rule", "failures", "--backtest")[1]
    assert out == "failures: there are no recorded steps to test the rule on\n"


@pytest.mark.parametrize("args", [(), ("runs",), ("erase",)])
def test_the_short_option_for_help_works(args: tuple[str, ...], run: Run) -> None:
    assert run(*args, "-h") == run(*args, "--help")
    assert "-h, --help" in run(*args, "-h")[1]


def test_short_durations_are_shown_in_milliseconds() -> None:
    assert [duration(each) for each in (None, 0.0204, 1.25, 200, 6_120)] == [
        "",
        "20 ms",
        "1.2 s",
        "3 min 20 s",
        "1.7 h",
    ]


# --- live -----------------------------------------------------------------------------------------------------------


def test_tail_prints_each_new_step_once(here: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []

    def wait(self: Output) -> None:
        waits.append(1)
        if len(waits) > 2:
            raise KeyboardInterrupt
        with Memory("agent.db", embedder="off") as memory:
            memory.attach(code_agent(thought("final_answer(1)"))).run(f"Task {len(waits)}")

    monkeypatch.setattr(Output, "wait", wait)
    code, out, _ = run("tail", "-n", "1")
    assert code == 130
    assert [word for word in re.findall(r"Task \d", out)] == ["Task 1", "Task 2"]
    assert "6 times 7" not in out


def test_top_shows_who_is_at_work(here: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with Memory("agent.db", embedder="off") as memory:
        steps = memory.stepwise(code_agent(thought("x = 1"), thought("final_answer(1)")), "Take your time")
        next(iter(steps))
        state = json.loads(run("top", "--json")[1])
        assert (state["running"], state["runs"][0]["title"]) == (1, "Take your time")
        assert "1 run in progress\n" in run("top", "--once")[1]

        def stop(self: Output) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Output, "wait", stop)
        code, out = on_terminal("top", columns=120)
        assert code == 130
        assert "1 run in progress · 0.0 steps and 0 tokens per second" in uncoloured(out)
        steps.close()


@pytest.mark.parametrize(
    "words", [["runs"], ["steps"], ["alerts"], ["tail", "--no-follow"], ["top", "--once"], ["sql", "select 1"]], ids=str
)
def test_looking_does_not_wait_for_smolagents(words: list[str], here: Path) -> None:
    look = (
        f"import sys\nfrom smolmem.cli.main import main\nassert main({words!r}) == 0\n"
        "assert not {'smolagents', 'smolmem.memory', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


# --- files that cannot be written -----------------------------------------------------------------------------------


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can reach: those of pytest are private."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


@pytest.fixture
def locked(made: Path, folder: Path) -> Path:
    """The store in a folder that nobody can write to."""
    shutil.copy(made, folder / "agent.db")
    (folder / "agent.db").chmod(0o444)
    folder.chmod(0o555)
    return folder


READER = """
import json, os, sys, tempfile
sys.dont_write_bytecode = True
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(int(sys.argv[1])), os.setuid(int(sys.argv[1]))
import smolmem.memory
from smolmem.cli.main import main
told = []
for words in json.loads(sys.argv[2]):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
            sys.exit(main(words))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        told.append([code, *(file.seek(0) or file.read().decode() for file in (out, err))])
print(json.dumps(told))
"""


def as_reader(folder: Path, *commands: list[str]) -> list[subprocess.CompletedProcess[str]]:
    """Runs commands as a user who can only read, each in a process of its own; root can write everything."""
    env = os.environ | {"HOME": str(folder), "SMOLMEM_MODELS": str(folder)}
    done = programs.run(["-c", READER, NOBODY, json.dumps(commands)], cwd=folder, env=env, timeout=240)
    assert done.returncode == 0, done.stderr
    return [
        subprocess.CompletedProcess(words, *told) for words, told in zip(commands, json.loads(done.stdout), strict=True)
    ]


@pytest.fixture(scope="module")
def reading() -> None:
    """Skips a test where no user can be found who can only read."""
    if os.geteuid() == 0:
        try:
            can_run = as_reader(Path("/"), ["--version"])[0].returncode == 0
        except (OSError, AssertionError):
            can_run = False
        if not can_run:
            pytest.skip("root may write everything, and other users cannot run Python")


LOOKING = (
    *(["runs"], ["show"], ["steps"], ["replay"], ["tail"], ["top"], ["stats"], ["verify"], ["alerts"], ["notes"]),
    *(["sql", "select 1"], ["search", "--lexical", "6 times 7"], ["context", "--lexical", "6 times 7"], ["doctor"]),
)


@pytest.mark.usefixtures("reading")
def test_everything_can_be_looked_at_where_nothing_can_be_written(locked: Path) -> None:
    looked = as_reader(locked, *LOOKING)
    for done in looked:
        assert done.returncode == 0, (done.args, done.stderr)
        assert "Traceback" not in done.stderr
        assert "/smolmem-" not in done.stdout, "the copy is not named"
    told = looked[LOOKING.index(["doctor"])].stdout
    assert "▲  agent.db cannot be written: agents cannot record, and commands read a copy." in told
    assert "✗" not in told
    assert "✓  agent.db opens." in told
    assert [file.name for file in locked.iterdir()] == ["agent.db"]


@pytest.mark.usefixtures("reading")
def test_changes_are_refused_where_nothing_can_be_written(locked: Path) -> None:
    changes = ["remember", "x"], ["forget", "--yes", "ffff"], ["index"], ["prune", "--older-than", "1d", "--yes"]
    for done in as_reader(locked, *changes):
        assert done.returncode == 3, (done.args, done.stdout)
        assert "agent.db cannot be opened" in done.stderr or "is read-only" in done.stderr


@pytest.mark.usefixtures("reading")
def test_a_file_and_its_log_are_read_together(here: Path, folder: Path) -> None:
    """What the last process wrote before it was killed is in the log, beside a file that cannot be written."""
    with Memory("agent.db", embedder="off") as memory:
        memory.attach(code_agent(thought("final_answer(1)"))).run("Only in the log")
        for end in ("", "-wal"):
            shutil.copy(f"agent.db{end}", folder)
            (folder / f"agent.db{end}").chmod(0o444)
    folder.chmod(0o555)
    (done,) = as_reader(folder, ["runs"])
    assert "Only in the log" in done.stdout, done.stderr


# --- the inspector and the demos --------------------------------------------------------------------------------------


def test_an_impossible_port_is_refused_with_a_sentence(here: Path, run: Run) -> None:
    code, _, err = run("ui", "agent.db", "--port", "99999")
    assert code == 2
    assert "99999 is not a port: ports are numbers up to 65535" in err


def test_the_sample_is_made_without_the_packages_of_the_inspector(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smolmem.cli.sample.fill", lambda path, key=None, pace=0.0: Memory(path, key=key).close())
    monkeypatch.setattr(start, "find_spec", lambda name: None)
    code, out, err = run("demo", "sample.db")
    assert code == 0
    assert "smolmem ui sample.db" in out
    assert "The inspector needs uvicorn: pip install 'smolmem[ui]'." in err


def demo(folder: Path, *words: str) -> Any:
    command = [ROOT / "demo.py", "--folder", folder, *words]
    loaded = ["openai"] if "--llm_url" in words else []
    return programs.start(command, env=os.environ | {"COLUMNS": "110"}, stderr=programs.STDOUT, loaded=loaded)


def processes(folder: Path) -> list[str]:
    """The command lines of processes that name a folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found += [line] if str(folder) in line else []
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are found in /proc")
def test_the_demo_needs_fewer_steps_the_second_time_and_ends_in_the_inspector(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        told = process.communicate(timeout=100)[0]
    first, second = (int(steps) for steps in re.findall(r"^(?:first incident|with recall) +(\d+)", told, re.MULTILINE))
    assert second < first
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        assert memory.stats().vectors == 0, "no model is loaded"
    assert f"smolmem ui {tmp_path / 'agent.db'}" in told
    assert processes(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are found in /proc")
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_demo_that_is_terminated_leaves_no_process_behind(kind: signal.Signals, tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "An agent repairs the shop" in line:
                break
        process.send_signal(kind)
        process.communicate(timeout=240)
    assert process.returncode == (-9 if kind == signal.SIGKILL else 130)
    end = time.monotonic() + 60
    while processes(tmp_path) and time.monotonic() < end:
        time.sleep(0.1)
    assert processes(tmp_path) == []


def test_the_demo_stops_a_weak_model_after_a_few_steps(tmp_path: Path) -> None:
    asked: list[Any] = []

    def nonsense(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request)
        return {"content": "Bananas are a fruit."}

    with server(nonsense) as url, demo(tmp_path, "--llm_url", url, "--model", "tiny") as process:
        told = process.communicate(timeout=240)[0]
    assert process.returncode == 1
    assert "'tiny' may not be able to call tools" in " ".join(told.split())
    assert 3 <= len(asked) <= 5
    assert processes(tmp_path) == []


# --- tags -----------------------------------------------------------------------------------------------------------


def test_a_note_and_a_run_have_a_limited_number_of_tags(here: Path) -> None:
    tags = [f"tag-{number}" for number in range(MAX_TAGS + 1)]
    with Memory("agent.db", embedder="off") as memory:
        run = memory.runs()[0]
        too_many = f"at most {MAX_TAGS} tags, not {MAX_TAGS + 1}"
        for write in (lambda: memory.remember("x", tags=tags), lambda: run.tag(*tags)):
            with pytest.raises(InvalidArgument, match=too_many):
                write()
        assert len(memory.remember("x", tags=tags[1:]).tags) == MAX_TAGS
        run.tag(*tags[1:])
        with pytest.raises(InvalidArgument, match=too_many):
            run.tag(tags[0])
        assert run.untag(*tags[2:]).tags == (tags[1],)


def test_tags_that_are_one_text_are_refused(here: Path) -> None:
    with Memory("agent.db", embedder="off") as memory, pytest.raises(InvalidArgument, match="a list of words"):
        memory.remember("The letters of a word are no tags", tags="deploy")
