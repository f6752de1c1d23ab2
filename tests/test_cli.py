"""The command line: every command on a sample store, in a pipe, on a terminal and as JSON."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import types
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from io import BytesIO, StringIO, TextIOWrapper
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import programs
import pytest
from click.shell_completion import BashComplete
from conftest import TORTURE, Run
from rich.console import Group
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from scripted import Scripted, answer, calling_agent, calls, code_agent
from scripted import code as thought

import smolmem
from smolmem import Memory, Watch
from smolmem.cli import commands as options
from smolmem.cli import searching
from smolmem.cli.commands import EXIT_CODES, SECTIONS, Command, future, past
from smolmem.cli.main import all_commands, main
from smolmem.cli.output import Output
from smolmem.cli.watching import make_rule, watch
from smolmem.core import rows
from smolmem.core.smolagents_texts import in_short
from smolmem.core.text import sanitize as harmless
from smolmem.core.values import Alert
from smolmem.policies.recorded_rules import StoreWatcher
from smolmem.recall import indexer
from smolmem.render.consoles import PipeConsole
from smolmem.render.plain_values import as_json

ROOT = Path(__file__).parent.parent
CLI = [sys.executable, "-m", "smolmem"]
BOX = re.compile("[\u2500-\u257f]")
group = all_commands()
NAMES = {name: command for name, command in group.commands.items() if isinstance(command, Command)}


# --- a store to look at ---------------------------------------------------------------------------------------------


@dataclass
class Sample:
    """A store with runs of several kinds, and their ids."""

    path: Path
    count: str
    fork: str
    weather: str
    failed: str
    note: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    path = tmp_path_factory.mktemp("made") / "smolmem.db"
    with Memory(path, strict=True, embedder="off") as memory:
        counter = [thought("n = 1\nprint(n)"), thought("n += 1\nprint(n)"), thought("final_answer(n + 1)")]
        memory.attach(code_agent(*counter)).run("Count to three")
        count = memory.runs()[0].id
        fork = memory.run(count).fork(step=1).id
        memory.resume(code_agent(thought("final_answer('another way')")), fork)
        wrong = [calls(("weather", {"city": "nowhere"})), calls(("weather", {"city": "Rome"})), answer("sunny")]
        agent = calling_agent(*wrong, name="guide", description="d")
        memory.attach(agent, watch=[Watch.failures(threshold=1)]).run("What is the weather in Rome?")
        weather = memory.runs()[0].id
        with pytest.raises(Exception, match="503"):
            memory.attach(code_agent(RuntimeError("the server says 503"))).run("Fail at once")
        failed = memory.runs()[0].id
        note = memory.remember("Deploys happen on Tuesdays", kind="fact", tags=["deploy"]).id
        memory.remember("Elsewhere is another scope", scope="acme/alice")
    return Sample(path, count, fork, weather, failed, note)


@pytest.fixture
def sample(made: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sample:
    """A copy of it, in this folder, under the name that commands look for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMOLMEM_URL", "smolmem.db")  # some tests put other stores beside it
    shutil.copy(made.path, "smolmem.db")
    return made


@contextlib.contextmanager
def terminal(columns: int = 80, typed: str = "") -> Iterator[list[bytes]]:
    """This process on a pseudo-terminal; what came out of it is in the list afterwards."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    got: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):
            while part := os.read(master, 1 << 16):
                got.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    before = sys.stdin, sys.stdout, sys.stderr
    os.environ["COLUMNS"] = str(columns)  # rich would ask the terminal that the tests run on
    out, keys = open(slave, "w", encoding="utf-8", closefd=False), open(os.dup(slave), encoding="utf-8")  # noqa: SIM115
    sys.stdin, sys.stdout, sys.stderr = keys, out, out
    try:
        if typed:
            os.write(master, typed.encode())
        yield got
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        del os.environ["COLUMNS"]
        out.close()
        keys.close()
        os.close(slave)
        reader.join()
        os.close(master)


def on_terminal(*args: str, columns: int = 80, typed: str = "") -> tuple[int, str]:
    with terminal(columns, typed) as got:
        code = main(args)
    return code, b"".join(got).decode().replace("\r\n", "\n")


def uncoloured(text: str) -> str:
    return re.sub("\x1b\\[[0-9;]*m", "", text)


@pytest.fixture
def inspector(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The inspector is not started; what it would have been started with."""
    asked: list[dict[str, Any]] = []
    fake = types.ModuleType("smolmem.inspector.serve")
    fake.serve = lambda url, **options: asked.append({"url": url, **options})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "smolmem.inspector.serve", fake)
    return asked


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """No agents work for the demo."""
    monkeypatch.setattr("smolmem.cli.sample.fill", lambda path, key=None, pace=0.0: Memory(path, key=key).close())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits is interrupted."""

    def stop(self: Output) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Output, "wait", stop)


# --- what there is --------------------------------------------------------------------------------------------------


def test_the_commands_are_those_of_the_issue() -> None:
    wanted = (
        "runs show steps replay diff fork search notes remember forget context watch alerts stats export load backup "
        "index erase prune purge verify doctor migrate encrypt decrypt rekey ui demo completion model mcp "
        "trace import sql tail top copy roles tag"
    )
    assert sorted(NAMES) == sorted(wanted.split()) == sorted(group.commands)
    assert {command.section for command in NAMES.values()} == set(SECTIONS)
    assert rows.STATUSES == options.STATUSES
    assert rows.STEP_KINDS == options.STEP_KINDS
    assert rows.ORIGINS == options.ORIGINS
    assert tuple(rows.TRUST) == options.TRUST


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_with_examples(name: str, run: Run) -> None:
    code, out, err = run(name, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: smolmem {name}")
    for example in NAMES[name].examples:
        assert f"  {example}\n" in out
        assert shlex.split(example)[:2] == ["smolmem", name]
    for option in ("--db", "--scope", "--key-file", "--json"):
        assert option in out
    assert run("help", name)[1] == out


# test_encryption.py, test_models.py, test_mcp.py, test_postgres.py, test_otel.py and test_imports.py run these
ELSEWHERE = ("encrypt", "decrypt", "rekey", "model", "mcp", "trace", "import", "copy", "roles")
EXAMPLES = [example for command in NAMES.values() if command.name not in ELSEWHERE for example in command.examples]


@pytest.mark.usefixtures("inspector", "impatient", "empty")
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_runs(example: str, sample: Sample, run: Run) -> None:
    if "smolmem load" in example:
        assert run("export", "export.zip")[0] == 0
    shutil.copy("smolmem.db", "agent.db")
    if "--undo" in example:
        assert run("forget", sample.note, "--yes")[0] == 0
    ids = {"3f9a2c1b": sample.count[:8], "8d2e01aa": sample.fork[:8], "5c1e92b7": sample.note[:8]}
    line = re.sub("|".join(ids), lambda found: ids[found[0]], example.partition(" > ")[0])
    code, out, err = run(*shlex.split(line)[1:])
    waits = "--follow" in line or ("watch" in line and "--backtest" not in line)
    waits |= "smolmem tail" in line and "--no-follow" not in line
    assert code == (130 if waits else 0), err
    assert out or waits or " ui" in line
    assert "\x1b" not in out + err
    if "--json" in line:
        assert json.loads(out)


def test_the_page_is_current() -> None:
    written = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    page = runpy.run_path(str(ROOT / "docs/site/make_cli.py"))["page"]
    assert "\n".join(page()) + "\n" == written, "python docs/site/make_cli.py > docs/cli.md"
    for name in NAMES:
        assert f"\n### smolmem {name}\n" in written
        assert f"\n| `{name}` | " in written
    for exit_code in EXIT_CODES:
        assert f"| {exit_code} |" in written


def test_the_console_script_is_declared() -> None:
    assert 'smolmem = "smolmem.cli.main:main"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("words", [["--help"], ["runs", "--help"], ["completion", "bash"]], ids=" ".join)
def test_help_and_completion_do_not_wait_for_smolagents(words: list[str]) -> None:
    look = (
        "import sys\nfrom smolmem.cli.main import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit as end:\n    assert not end.code\n"
        "assert not {'smolagents', 'apsw', 'PIL', 'rich', 'smolmem.memory'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_smolmem_alone_says_what_is_useful(sample: Sample, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    assert "smolmem replay --follow" in out
    assert "The store is smolmem.db;" in out
    assert "There is no store at other.db;" in run("--db", "other.db")[1]
    everything = run("--help")[1]
    assert all(f"\n  {name}" in everything for name in NAMES)
    assert run("--version")[1] == f"{smolmem.__version__}\n"
    assert max(map(len, (everything + out).splitlines())) <= 110


# --- looking --------------------------------------------------------------------------------------------------------


def test_a_pipe_holds_plain_aligned_lines(sample: Sample, run: Run) -> None:
    code, out, err = run("runs")
    head, *rows = out.splitlines()
    assert (code, err, len(rows)) == (0, "", 4)
    assert head.split() == ["run", "status", "began", "took", "steps", "errors", "tokens", "scope", "agent", "task"]
    assert all(row[head.index("status") :].startswith(("finished", "failed")) for row in rows)
    assert all(row[head.index("agent") :].startswith(("CodeAgent", "guide")) for row in rows)
    assert rows[2][head.index("task") :] == "↱ Count to three"
    for args in (["show"], ["replay"], ["steps"], ["diff", sample.count, sample.fork], ["stats"], ["notes"]):
        out = run(*args)[1]
        assert not BOX.search(out), args
        assert "\x1b" not in out
    long = run("steps", "--error")[1].splitlines()
    assert len(long) == 2
    assert len(long[1]) > 120


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "Thought: I count.\n<code>\nprint(1)\n</code>\n\nExecution logs:\n1\nLast output from code snippet:\nNone",
            "I count. 1",
        ),
        (
            "I count.\n```python\nprint(1)\n```\n\nZeroDivisionError: division by zero",
            "I count. ZeroDivisionError: division by zero",
        ),
        ("<code>\nx = 1\n</code>", "<code> x = 1 </code>"),
        ("I count.\n<code>\nwhile True:", "I count."),
        ("The plan:\n```\n1. Ask.\n```", "The plan: ``` 1. Ask. ```"),
        ("You're a helpful agent named 'a'. --- Task: Find it --- You're helping your manager: do.", "Find it"),
    ],
)
def test_a_list_shows_what_a_step_thought_and_saw_without_code_and_frames(text: str, line: str) -> None:
    assert in_short(text) == line


def test_a_list_shows_plans_and_reports_of_managed_agents_without_the_words_before_them(tmp_path: Path) -> None:
    helper = code_agent(thought("final_answer('three')"), name="helper", description="Counts.")
    script = ("1. Ask.", thought("print(helper(task='Count'))"), "2. Answer.", thought("final_answer(3)"))
    agent = code_agent(*script, managed_agents=[helper], planning_interval=1)
    with Memory(tmp_path / "agent.db") as memory:
        memory.attach(agent).run("How many?")
        lines = [in_short(step.text) for step in memory.runs(agent="CodeAgent")[0].steps]
    assert [line for line in lines if line.startswith(("1.", "2."))] == ["1. Ask.", "2. Answer."], lines
    assert not any("Here" in line or "```" in line for line in lines), lines
    assert any("three" in line for line in lines), lines


def test_tag_prints_the_tags_that_the_run_has_now(sample: Sample, run: Run) -> None:
    for words, printed in (
        (["good", "release-41"], "has the tags: good, release-41"),
        (["good", "--remove"], "has the tags: release-41"),
        (["release-41", "--remove"], "has no tags"),
    ):
        assert run("tag", sample.count, *words) == (0, f"{sample.count[:8]} {printed}\n", "")


def test_print_shows_a_result_as_the_command_line_does(sample: Sample, run: Run) -> None:
    with Memory("smolmem.db", scope="*") as memory:
        printed = {"stats": str(memory.stats()), "verify": str(memory.verify()), "doctor": str(memory.doctor())}
        differing = str(memory.run(sample.count).diff(memory.run(sample.weather)))
    timed = re.compile(r"[\d.]+ (?:ms|s|GB|kB)\b")
    for command, text in printed.items():
        assert timed.sub("…", f"{text}\n") == timed.sub("…", run(command)[1]), command
    assert differing.startswith("0 steps in common, then\nleft ")


def test_plain_lines_are_whole_and_hold_no_frame_picture_or_control_character() -> None:
    written = StringIO()
    console = PipeConsole(written)
    table = Table(title="none")
    table.add_column("left")
    table.add_column("n", justify="right")
    table.add_row("two\nlines", "1")
    table.add_row("日本", "22")
    long = "word " * 50_000
    panel = Panel(Group(Panel("inner"), Text("a\x1b[31m\u202eb")), title=Text("title"))
    for part in (
        panel,
        table,
        Text("▀▀\n▀▀\n"),
        Rule(Text("rule\nof two")),
        Syntax("if x:\n    y", "python"),
        Padding(long, (0, 9)),
    ):
        console.print(part)
    assert written.getvalue().splitlines() == [
        *("title", "    inner", "  a␛[31m�b", "left    n", "two     1", "lines", "日本   22"),
        *("--- rule of two ---", "if x:", "    y", f"{' ' * 9}{long}".rstrip()),
    ]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_has_colours_and_lines_that_fit(sample: Sample, columns: int) -> None:
    for args in (["runs"], ["show"], ["steps"], ["replay"], ["notes"], ["alerts"], ["stats"], ["verify"], ["doctor"]):
        code, out = on_terminal(*args, columns=columns)
        assert code == 0, out
        assert "\x1b[" in out, args
        assert max(map(len, uncoloured(out).split("\n"))) <= columns, args
    assert "took" in on_terminal("runs", columns=120)[1]
    assert "took" not in on_terminal("runs", columns=80)[1]


def test_runs_and_steps_are_filtered_as_the_library_does(sample: Sample, run: Run) -> None:
    def ids(*args: str) -> list[str]:
        return [found["id"] for found in json.loads(run("runs", "--json", *args)[1])]

    assert ids() == [sample.failed, sample.weather, sample.fork, sample.count]
    assert ids("--limit", "1") == [sample.failed]
    assert ids("--status", "failed") == [sample.failed]
    assert ids("--agent", "guide") == [sample.weather]
    assert ids("--text", "COUNT") == [sample.fork, sample.count]
    assert ids("--tool", "weather") == [sample.weather]
    assert ids("--model", "scripted-1") == ids()
    assert ids("--model", "another") == []
    assert ids("--since", "1h") == ids()
    assert ids("--until", "1h") == []
    assert ids("--scope", "acme/*") == []
    assert run("runs", "--until", "1h") == (0, "", "No runs in smolmem.db match these options.\n")

    def steps(*args: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(run("steps", "--json", *args)[1])
        return found

    assert {step["run"] for step in steps("--run", sample.count[:6])} == {sample.count}
    assert [step["number"] for step in steps("--tool", "weather", "--no-error")] == [2]
    assert steps("--error")[0]["error"] == steps("--error", "AgentToolExecutionError")[0]["error"]
    assert {step["kind"] for step in steps("--kind", "task")} == {"task"}
    one = steps("--kind", "task")[0]
    assert json.loads(run("steps", str(one["id"]), "--json")[1]) == one


def test_show_and_replay_take_the_newest_run_or_the_beginning_of_an_id(sample: Sample, run: Run) -> None:
    assert run("show")[1].startswith(sample.failed[:8])
    assert "the server says 503" in run("show")[1]
    assert "answer  3\n" in run("show", sample.count[:5])[1]
    step = run("show", sample.weather, "--step", "2")[1]
    assert step.startswith(f"action 2  run {sample.weather[:8]}\n")
    assert "sunny in Rome" in step
    replayed = run("replay", sample.count[:5])[1]
    assert replayed.splitlines()[0] == f"--- {sample.count[:8]}  finished  CodeAgent ---"
    assert replayed.count("--- Step ") == 3
    assert "--- answer: 3 ---" in replayed
    detailed = json.loads(run("replay", sample.count, "--detailed", "--json")[1])
    assert detailed["steps"][1]["sent"][0]["role"] == "system"
    assert run("replay", sample.count, "--prices", "1000000,0")[1].count("10.000000") == 3


def test_diff_tells_where_two_runs_part(sample: Sample, run: Run) -> None:
    out = run("diff", sample.count[:8], sample.fork[:8])[1].splitlines()
    assert out[0] == "2 steps in common, then"
    assert f"--- {sample.count[:8]}" in out
    assert "- n += 1" in out
    assert "+ final_answer('another way')" in out
    assert run("diff", sample.count, sample.count)[1] == "the same, 4 steps\n"
    assert "another way" in on_terminal("diff", sample.count, sample.fork)[1]


def test_every_command_speaks_json_with_the_names_that_are_documented(
    sample: Sample, run: Run, inspector: list[dict[str, Any]], impatient: None
) -> None:
    written = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    lines = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", written.split("### JSON")[1], re.MULTILINE))
    values = {
        name: set(re.findall(r"`(\w+)`", about))
        for name, about in re.findall(r"A \*(\w+)\* has (.*?)\.(?=\s)", written, re.DOTALL)
    }
    arguments = {
        "diff": [sample.count, sample.fork],
        "search": ["deploys", "--lexical"],
        "context": ["deploys", "--lexical"],
        "remember": ["Tea is at four"],
        "forget": [sample.note],
        "erase": ["--before", "0s", "--dry-run"],
        "prune": ["--older-than", "0s", "--dry-run"],
        "purge": ["--origin", "web", "--dry-run"],
        "watch": ["--rule", "failures", "--threshold", "1", "--backtest"],
        "fork": [sample.count, "--step", "1"],
        "tag": [sample.count, "good"],
        "sql": ["select agent from runs"],
        "tail": ["--no-follow", "-n", "1"],
        "export": ["out"],
        "load": ["out"],
        "backup": ["copy.db"],
        "demo": ["demo.db", "--no-ui"],
        "completion": ["bash"],
    }
    for name in NAMES:
        if name == "ui" or name in ELSEWHERE:
            continue
        code, out, err = run(name, *arguments.get(name, []), "--json")
        assert (code, err.replace("Sample agents are running…\n", "")) == (0, ""), name
        told = json.loads(out)
        assert isinstance(told, list) == (lines[name].startswith("array") or name == "watch"), name
        assert told, name
        first = told[0] if isinstance(told, list) else told
        about = lines[name].replace("as `show`", lines["show"])
        known = set(re.findall(r"`(\w+)`", about))
        for word in re.findall(r"\*(\w+)\*", about):
            known |= values.get(word, set())
        if name == "stats":
            assert known - {"memory", "stats"} <= set(first)
        elif name != "sql":
            assert set(first) <= known, (name, set(first) - known)
    assert inspector == []


def test_json_escapes_what_a_terminal_would_obey_and_has_no_numbers_that_json_lacks() -> None:
    value = {"a": "\x1b[0m\x9b\u202e\u2028\ud800 ä", "b": [float("nan"), float("inf"), 1.5]}
    text = as_json(value)
    assert json.loads(text) == {"a": value["a"], "b": ["nan", "inf", 1.5]}
    assert not any(unicodedata.category(one) in ("Cc", "Cf", "Cs") for one in text.replace("\n", ""))
    assert "ä" in text
    assert as_json(value, ascii_only=True).isascii()


# --- remembering ----------------------------------------------------------------------------------------------------


def test_what_is_remembered_is_found_and_forgotten(sample: Sample, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run("remember", "The", "cellar", "floods", "--kind", "fact", "--tag", "cellar", "--expires", "7d")
    note = out.split()[0]
    assert code == 0
    assert "expires" in out
    found = run("search", "cellar", "--lexical", "--kind", "fact")[1]
    assert re.match(
        rf"\d\.\d\d  fact · note {note} · .* · from user · trust high\n      fact: The cellar floods\n", found
    )
    assert re.search(r"^      has cellar \(\+\d\.\d\d\)", found, re.MULTILINE)
    assert "❘ The cellar floods" in run("context", "cellar", "--lexical")[1]
    assert run("notes", "--tag", "cellar")[1].splitlines()[1].startswith(note)
    assert run("notes", note)[1].startswith(f"{note}  current  fact\n  The cellar floods\n")
    monkeypatch.setattr(sys, "stdin", StringIO("Apache License\n"))
    assert json.loads(run("remember", "-", "--supersedes", note, "--json")[1])["text"] == "Apache License"
    assert run("forget", note)[1].split() == ["forgotten", "id", "note", note]
    assert run("search", "zebra", "--lexical") == (0, "", "Nothing was found.\n")
    assert run("context", "zebra", "--lexical") == (0, "", "Nothing was found.\n")


def test_a_search_shows_the_lines_of_a_long_passage_that_have_the_words(run: Run, sample: Sample) -> None:
    log = [f"part {number} ok" for number in range(60)]
    run("remember", "\n".join([*log[:45], "the giraffe failed", *log[45:]]))
    shown = run("search", "giraffe", "--lexical")[1].splitlines()
    lines = [line.strip() for line in shown if "part" in line or "giraffe failed" in line]
    assert lines == ["part 42 ok", "part 43 ok", "part 44 ok", "the giraffe failed", *log[45:53]]
    assert sum(line.endswith("…") for line in shown) == 2


def test_a_search_that_finds_nothing_says_which_passages_have_no_vectors(run: Run, sample: Sample) -> None:
    code, out, err = run("search", "zebra")
    assert (code, out) == (0, "")
    assert re.search(
        r"Nothing was found\. \d+ passages can be found by words only: `smolmem index`", " ".join(err.split())
    )


def test_a_search_says_how_much_is_not_indexed_yet(sample: Sample, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "MANY_PENDING", 2)
    monkeypatch.setattr(indexer, "MOST_PENDING", 2)
    monkeypatch.setattr(indexer.BackgroundIndexer, "wake", lambda _: None)
    with Memory("smolmem.db") as memory:
        pending = [{"step": step.id, "session": step.session} for step in memory.steps(scope="*")]
        memory._store.transact(lambda: [memory._store.do("add_pending", each) for each in pending])
    assert "steps and notes cannot be found yet: `smolmem index` indexes them." in run("search", "cellar")[2]


def test_scopes(sample: Sample, run: Run) -> None:
    def notes(*args: str) -> set[str]:
        return {note["scope"] for note in json.loads(run("notes", "--json", *args)[1])}

    assert notes() == {"default", "acme/alice"}
    assert notes("--scope", "acme/*") == {"acme/alice"}
    assert json.loads(run("remember", "x", "--json")[1])["scope"] == "default"
    assert json.loads(run("--scope", "acme", "remember", "x", "--json")[1])["scope"] == "acme"
    assert notes("--scope", "acme") == {"acme"}


def test_forgetting_asks_first_on_a_terminal(sample: Sample, run: Run) -> None:
    code, out = on_terminal("forget", sample.note[:8], typed="n\n")
    assert code == 1
    assert f"Forget the note {sample.note[:8]}, 'Deploys happen on Tuesdays'? [y/N]" in uncoloured(out)
    assert len(json.loads(run("notes", "--json")[1])) == 2
    code, out = on_terminal("forget", sample.note[:8], typed="y\n")
    assert code == 0
    assert len(json.loads(run("notes", "--json")[1])) == 1
    step = json.loads(run("steps", "--run", sample.weather, "--json")[1])[0]["id"]
    assert f"step {sample.weather[:8]}/" in on_terminal("forget", "--step", str(step), typed="y\n")[1]
    assert f"Forget run {sample.count[:8]}" in on_terminal("forget", sample.count[:8], typed="\n")[1]


# --- watching -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options", "name", "window", "threshold"),
    [
        ("HTTP 5..", [], "pattern 'HTTP 5..'", 10, 3),
        ("pattern:loop", ["--window", "5"], "pattern 'loop'", 5, 3),
        ("failures", ["--threshold", "2", "--name", "mine"], "mine", 10, 2),
        ("failures:4", [], "failures", 10, 4),
        ("same-error", [], "same error", 10, 3),
        ("loop", [], "loop", 10, 3),
        ("loop: x", [], "pattern 'loop: x'", 10, 3),
        ("slow:5", [], "slow", 20, 3),
        ("tokens:1000", ["--hours", "24"], "tokens", 1000, 1),
        ("cost:5", ["--prices", "0.5,1.5"], "cost", 1000, 1),
        ("silence:60", [], "silence", 1, 1),
    ],
)
def test_rules_are_written_as_one_would_say_them(
    text: str, options: list[str], name: str, window: int, threshold: int
) -> None:
    given = watch.make_context("watch", ["--rule", text, *options]).params
    names = ("name", "window", "threshold", "tool", "hours", "prices")
    rule = make_rule(text, **{name: given[name] for name in names})
    assert (rule.name, rule.window, rule.threshold) == (name, window, threshold)


def test_a_backtest_has_a_picture(sample: Sample, run: Run) -> None:
    out = run("watch", "--rule", "failures", "--rule", "sunny", "--threshold", "1", "--backtest")[1]
    assert re.search(r"^failures would have fired once in \d+ steps of 4 runs$", out, re.MULTILINE)
    assert re.search(r"^counts .*█", out, re.MULTILINE)
    assert re.search(r"^fires .*▲", out, re.MULTILINE)
    assert "pattern 'sunny' would have fired once" in out
    assert "would not have fired" in run("watch", "--rule", "sunny", "--agent", "CodeAgent", "--backtest")[1]


def test_silence_is_noticed_while_it_lasts(sample: Sample) -> None:
    with Memory("smolmem.db", embedder="off") as memory:
        watcher = StoreWatcher(memory._journal, [Watch.silence(0.05)])
        assert watcher.alerts() == []
        going = memory.stepwise(code_agent(thought("print(1)"), thought("final_answer(2)")), "Sleep")
        next(going)
        assert [alert.rule for alert in _until(watcher.alerts)] == ["silence"]
        assert watcher.alerts() == [], "once"
        for _ in going:
            pass


def test_a_rule_that_fails_on_a_step_is_reported_and_other_rules_still_fire(
    sample: Sample, caplog: pytest.LogCaptureFixture
) -> None:
    with Memory("smolmem.db", embedder="off") as memory:
        rules = [Watch(lambda step: 1 / 0, name="broken"), Watch("oh no", threshold=1)]
        watcher = StoreWatcher(memory._journal, rules, scope="default", agent="CodeAgent")
        memory.attach(code_agent(thought("print('oh no')"), thought("final_answer(2)"))).run("Fail")
        assert [(alert.rule, alert.number) for alert in watcher.alerts()] == [("pattern 'oh no'", 1)]
        assert "the rule 'broken' failed on step" in caplog.text
        assert watcher.alerts() == []


def _until(look: Callable[[], list[Alert]]) -> list[Alert]:
    for _ in range(200):
        found = look()
        if found:
            return found
        threading.Event().wait(0.02)
    raise AssertionError("nothing came")


# --- keeping --------------------------------------------------------------------------------------------------------


def test_a_fork_says_how_to_go_on(sample: Sample, run: Run) -> None:
    code, out, _ = run("fork", sample.count[:8], "--step", "2")
    fork = out.split()[0]
    assert code == 0
    assert f"shares 2 steps with {sample.count[:8]}" in out
    names: dict[str, Any] = {"agent": code_agent(thought("final_answer(n * 10)"))}
    exec("\n".join(out.splitlines()[2:]), names)
    names["Memory"]("smolmem.db").close()
    assert "--- answer: 20 ---" in run("replay", fork)[1]


def test_a_memory_goes_out_and_in_again(sample: Sample, run: Run) -> None:
    assert run("export", "all.zip")[0] == 0
    assert run("export", "all.zip")[0] == 3
    assert run("load", "all.zip", "--db", "other.db", "--scope", "imported")[0] == 0
    assert len(json.loads(run("runs", "--db", "other.db", "--scope", "imported/*", "--json")[1])) == 4
    assert run("backup", "copy.db")[0] == 0
    assert run("verify", "--db", "copy.db")[0] == 0
    assert run("runs", "--db", "copy.db", "--json")[1] == run("runs", "--json")[1]
    code, _, err = run("load", "nothing.zip", "--db", "third.db")
    assert (code, Path("third.db").exists()) == (1, False)
    assert "there is no nothing.zip" in err


def test_long_work_has_a_bar_beside_the_results(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[?25l" not in on_terminal("backup", "quick.db")[1]
    monkeypatch.setattr("smolmem.cli.output.PROGRESS_AFTER", -1)
    code, out = on_terminal("backup", "copy.db")
    assert code == 0
    assert "━" in out
    assert out.count("\x1b[?25h") == 1, "the cursor is back"


def test_migrating_keeps_a_copy_of_the_file_as_it_was(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "tests/files/format-2.sqlite", "smolmem.db")
    assert "smolmem migrate" in run("doctor")[1]
    assert json.loads(run("migrate", "--json")[1])["before"] == 2
    (kept,) = tmp_path.glob("smolmem.db.format-2-*")
    with contextlib.closing(apsw.Connection("smolmem.db")) as raw:
        assert raw.execute("SELECT count(*) FROM pending").get == 0
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "the newest format: nothing was changed" in run("migrate")[1]
    assert "was migrated from format 2 to format" in run("migrate", "--db", str(kept), "--no-backup")[1]
    assert len(list(tmp_path.glob("*format-2*"))) == 1
    assert run("verify")[0] == 0


@pytest.mark.usefixtures("empty")
def test_ui_and_demo_start_the_inspector(sample: Sample, run: Run, inspector: list[dict[str, Any]]) -> None:
    assert run("ui", "--read-only", "--port", "9000", "--no-browser", "--scope", "acme")[0] == 0
    assert run("demo")[0] == 0
    plain = {"host": "127.0.0.1", "port": None, "read_only": False, "open_browser": True, "scope": "default"}
    plain |= {"key": None, "token": None}
    first = {**plain, "port": 9000, "read_only": True, "open_browser": False, "scope": "acme", "url": "smolmem.db"}
    assert inspector == [first, {**plain, "url": "smolmem-demo.db"}]
    assert run("demo")[0] == 3
    assert run("runs", "--db", "smolmem-demo.db")[0] == 0


# --- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("inspector", "impatient")
def test_a_file_that_is_not_there_is_named_and_never_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    needs = {"diff": ["a", "b"], "fork": ["a"], "tag": ["a", "b"], "forget": ["a"], "watch": ["--rule", "x"]}
    needs |= {"erase": ["a", "--yes"], "prune": ["--older-than", "9d", "--yes"]}
    needs |= {"purge": ["--origin", "web", "--yes"], "trace": ["--to", "http://127.0.0.1:1"]}
    needs |= {"sql": ["select 1"]} | {name: ["x"] for name in ("search", "context", "remember", "export", "backup")}
    for name in set(NAMES) - {"load", "import", "demo", "completion", "doctor", "migrate", "model", "copy", "roles"}:
        code, out, err = run(name, *needs.get(name, []))
        assert (code, out) == (3, ""), name
        assert err.startswith("smolmem: There is no store in this folder: name a store, as in"), name
    assert run("doctor")[0] == 1
    assert run("migrate")[0] == 3
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("SMOLMEM_URL", "named.db")
    assert "no store at named.db" in run("runs")[2]
    assert run("remember", "x", "--create")[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["named.db"]


def test_exit_codes(sample: Sample, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("text.db").write_text("no database at all")
    Path("folder").mkdir()
    for args, code, said in (
        (["show", "ffff"], 1, "no run 'ffff' in smolmem.db: `smolmem runs` lists them all"),
        (["show", ""], 1, "no run ''"),
        (["show", sample.count, "--step", "9"], 1, f"run {sample.count[:8]} has no step 9: it has steps 1 to 3"),
        (["notes", "ffff"], 1, "`smolmem notes` lists"),
        (["steps", "9999"], 1, "`smolmem steps` lists"),
        (["fork", sample.count, "--step", "77"], 1, "77"),
        (["rns"], 2, "there is no command 'rns': did you mean 'runs'?"),
        (["xyzzy"], 2, "there is no command 'xyzzy': `smolmem --help` lists all commands"),
        (["runs", "--status", "odd"], 2, "--status"),
        (["runs", "--limit", "-1"], 2, "'-1' is not a whole number"),
        (["runs", "--since", "soon"], 2, "'soon' is not a time"),
        (["runs", "--scope", "/"], 2, "a scope is a path"),
        (["runs", "--nothing"], 2, "--nothing"),
        (["diff", "a"], 2, "Missing argument 'OTHER'"),
        (["search", " "], 2, ""),
        (["purge"], 2, "name the source to erase: --origin web, --url https://…, or both"),
        (["steps", "xyz"], 2, "'xyz' is not a step: give a run and a number such as 3f9a2c1b/2"),
        (["forget"], 2, "give the id of a note, a run or a step"),
        (["erase"], 2, "give either the id of a run, note or step, or --scope SCOPE, --before TIME, or --finish"),
        (["erase", sample.count, "--before", "9d"], 2, "give either the id of a run, note or step"),
        (["erase", sample.count], 2, "give --yes, or --dry-run to list what would be erased"),
        (["erase", "ffff", "--yes"], 1, "no run or note 'ffff' in smolmem.db: `smolmem runs` and `smolmem notes` list"),
        (["prune", "--older-than", "old"], 2, "'old' is not a duration such as 12h, 90d or 52w"),
        (["watch", "--rule", "("], 2, ""),
        (["watch", "--rule", "tokens"], 2, "tokens:1000"),
        (["watch", "--rule", "cost:5"], 2, "--prices"),
        (["watch", "--rule", "x", "--window", "1"], 2, "threshold"),
        (["remember", " "], 2, "a note is a text"),
        (["completion", "tcsh"], 2, "SHELL"),
        (["runs", "--db", "text.db"], 3, "text.db is not a smolmem file"),
        (["runs", "--db", "folder"], 3, "folder is a folder"),
        (["runs", "--db", "ftp://x"], 3, "is not a store"),
        (["runs", "--db", "no/such/place.db"], 3, "There is no store at no/such/place.db"),
        (["backup", "smolmem.db"], 3, "exists already"),
        (["demo", "text.db"], 3, "exists already"),
    ):
        got, out, err = run(*args)
        assert (got, out) == (code, ""), (args, err)
        assert said in err
        assert len(err.splitlines()) == 1, args
    assert run("doctor", "--db", "text.db")[0] == 1
    monkeypatch.setattr(Memory, "stats", lambda self: 1 / 0)
    assert run("stats") == (
        1,
        "",
        "smolmem: unexpected error (ZeroDivisionError: division by zero); SMOLMEM_DEBUG=1 shows the traceback.\n",
    )


@pytest.mark.parametrize(
    ("misspelt", "meant"), [("rns", "runs"), ("serach", "search"), ("comletion", "completion"), ("migrat", "migrate")]
)
def test_a_misspelt_command_gets_a_suggestion(misspelt: str, meant: str, run: Run) -> None:
    expected = f"smolmem: there is no command {misspelt!r}: did you mean {meant!r}?\n"
    assert run(misspelt) == run("--json", misspelt, "--limit", "1") == (2, "", expected)


def test_common_options_stand_before_and_after_the_command(
    sample: Sample, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("smolmem.db").rename("other.db")
    usual = run("runs", "--db", "other.db", "--scope", "default", "--json")
    assert len(json.loads(usual[1])) == 4
    assert run("--db", "other.db", "--scope", "default", "--json", "runs") == usual
    assert run("--db", "none.db", "--scope", "x", "runs", "--db", "other.db", "--scope", "default", "--json") == usual
    monkeypatch.setenv("SMOLMEM_URL", "other.db")
    assert run("--json", "runs") == usual
    assert run("runs", "--json", "--db", "none.db")[0] == 3
    assert json.loads(run("--version", "--json")[1]) == {"version": smolmem.__version__}


def test_what_is_damaged_is_found(sample: Sample, run: Run) -> None:
    import apsw

    raw = apsw.Connection("smolmem.db")
    raw.execute("UPDATE run SET title = 'another' WHERE id = ?", (sample.count,))
    raw.close()
    code, out, _ = run("verify")
    assert code == 1
    assert "is not what was written" in out
    assert json.loads(run("verify", "--json")[1])["count"] == 1
    assert run("show", sample.count)[0] == 3


def test_times_are_moments_or_lengths() -> None:
    now = datetime.now(timezone.utc).timestamp()
    assert past("2h") == pytest.approx(now - 7200, abs=5)
    assert future("3d") == pytest.approx(now + 3 * 86_400, abs=5)
    assert past("2025-03-31T12:00Z") == datetime(2025, 3, 31, 12, tzinfo=timezone.utc).timestamp()


# --- other processes ------------------------------------------------------------------------------------------------


def spawn(*args: str) -> Any:
    return programs.start([*CLI[1:], *args])


def test_a_running_agent_is_followed_and_watched_from_other_processes(sample: Sample) -> None:
    """One agent here, and two programs that look at it: each step is shown before the next one begins."""
    follow, watch = spawn("replay", "--follow"), spawn("watch", "--rule", "oh no", "--threshold", "1")
    for process, said in (
        (follow, "No run is active. Waiting for the next run; Ctrl-C stops.\n"),
        (watch, "Watching for pattern 'oh no'; Ctrl-C stops.\n"),
    ):
        assert process.stderr is not None
        assert process.stderr.readline() == said
    assert follow.stdout is not None
    assert watch.stdout is not None
    thoughts = [thought("print('one')"), thought("print('oh no')"), thought("final_answer('three')")]
    seen = ""
    with Memory("smolmem.db", embedder="off") as memory:
        for number, _ in enumerate(memory.stepwise(code_agent(*thoughts), "Be seen"), 1):
            if number < 3:
                while f"--- Step {number} ---" not in seen:
                    seen += follow.stdout.readline()
                assert f"--- Step {number + 1} ---" not in seen
        run = memory.runs()[0]
    alert = [watch.stdout.readline() for _ in range(3)]
    assert alert[0].startswith("▲ pattern 'oh no'")
    assert f"run {run.id[:8]}, step 2" in alert[2]
    watch.send_signal(signal.SIGINT)
    rest, err = follow.communicate(timeout=120)
    assert ((seen + rest).count("--- Step "), err) == (3, "")
    assert (seen + rest).splitlines()[-1] == "--- answer: three ---"
    out, err = watch.communicate(timeout=120)
    assert (out, err.strip()) == ("", "")
    assert (follow.returncode, watch.returncode) == (0, 130)


def test_following_and_watching_give_a_line_of_json_each_time(
    sample: Sample, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memory("smolmem.db", embedder="off") as memory:
        going = memory.stepwise(
            code_agent(thought("print(1)"), thought("print(2)"), thought("final_answer(3)")), "Be seen"
        )
        monkeypatch.setattr(Output, "wait", lambda self: next(going, None))
        next(going)
        code, out, err = run("replay", "--follow", "--json")
        told = [json.loads(line) for line in out.splitlines()]
        assert (code, err) == (0, "")
        assert [line["number"] for line in told if "kind" in line] == [None, 1, 2, 3]
        assert (told[-1]["id"], told[-1]["status"]) == (memory.runs()[0].id, "finished")
        going = memory.stepwise(code_agent(thought("1 / 0"), thought("final_answer(3)")), "Fail")
        code, out, err = run("watch", "--rule", "failures", "--threshold", "1", "--once", "--json")
        assert (code, err) == (0, "Watching for failures; Ctrl-C stops.\n")
        alerts = [json.loads(line) for line in out.splitlines() if line.startswith("{")]  # smolagents prints errors
        assert [alert["number"] for alert in alerts] == [1]


def test_a_reader_that_goes_away_is_no_error(sample: Sample) -> None:
    process = spawn("steps", "--limit", "1000", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


def test_whoever_cannot_read_utf_8_gets_what_they_can_read(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    main(["remember", "ä → 😀"])
    for args in (["notes"], ["notes", "--json"]):
        written = BytesIO()
        monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, encoding="ascii"))
        assert main(args) == 0
        assert written.getvalue().isascii()
    assert "ä → 😀" in {note["text"] for note in json.loads(written.getvalue())}


# --- completion -----------------------------------------------------------------------------------------------------


def completed(shell: str, *words: str) -> list[str]:
    """What a shell is told that the last word could become."""
    asked = {
        "_SMOLMEM_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(["smolmem", *words]),
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words)),
    }
    done = programs.run(CLI[1:], env=os.environ | asked, check=True)
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


def test_commands_options_choices_files_and_run_ids_are_completed(sample: Sample) -> None:
    shutil.copy("smolmem.db", "agent.db")
    Path("smolmem.db").unlink()
    runs = [f"plain,{id[:8]}" for id in (sample.failed, sample.weather, sample.fork, sample.count)]
    for words, expected in (
        (["re"], ["plain,rekey", "plain,remember", "plain,replay"]),
        (["runs", "--st"], ["plain,--status"]),
        (["runs", "--status", "f"], ["plain,finished", "plain,failed"]),
        (["--db", "agent.db", "show", ""], runs),
        (["show", "--db", "agent.db", sample.count[:4]], runs[3:]),
        (["diff", "--db", "agent.db", "x", sample.fork[:4]], runs[2:3]),
        (["steps", "--db", "agent.db", "--run", ""], runs),
        (["runs", "--db", "agent.db", "--parent", ""], runs),
        (["show", ""], ["plain,agent.db"]),
        (["runs", "ag"], ["plain,agent.db"]),
        (["runs", "agent.db", "ag"], []),
        (["show", "agent.db", ""], runs),
        (["completion", ""], ["plain,bash", "plain,zsh", "plain,fish"]),
        (["runs", "--db", "ag"], ["file,ag"]),
        (["--j"], ["plain,--json"]),
    ):
        assert completed("bash", *words) == expected, words
    assert [path.name for path in Path().iterdir()] == ["agent.db"], "completion creates no store"
    assert "Count to three" in completed("fish", "--db", "agent.db", "show", sample.count[:4])[-1]


def test_completion_of_run_ids_imports_no_smolagents_and_changes_no_store(sample: Sample) -> None:
    shutil.copy(ROOT / "tests/files/format-2.sqlite", "old.db")
    before = Path("old.db").read_bytes()
    Path("text.db").write_text("no database at all")
    look = (
        "import sys\nfrom smolmem.cli.main import all_commands\nfrom click.shell_completion import BashComplete\n"
        "complete = BashComplete(all_commands(), {}, 'smolmem', '_SMOLMEM_COMPLETE').get_completions\n"
        "print(len(complete(['show'], '')), *(len(complete(['show', '--db', f'{name}.db'], '')) for name in "
        "('old', 'text', 'none')))\n"
        "assert not {'smolagents', 'PIL', 'rich'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "6 0 0 0\n", ""), "4 runs and 2 stores"
    assert Path("old.db").read_bytes() == before


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_completed(name: str) -> None:
    complete = BashComplete(group, {}, "smolmem", "_SMOLMEM_COMPLETE").get_completions
    known = {option for param in NAMES[name].params for option in param.opts if option.startswith("--")}
    assert {item.value for item in complete([name], "--")} == known | {"--help"}
    assert {item.value for item in complete(["--json"], "")} == set(NAMES)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_ask_smolmem(shell: str, run: Run) -> None:
    code, out, err = run("completion", shell)
    assert (code, err) == (0, "")
    assert f"_SMOLMEM_COMPLETE={shell}_complete" in out


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_with_the_printed_script(sample: Sample, run: Run) -> None:
    Path("smolmem").write_text(f'#!/bin/sh\nexec {shlex.join(CLI)} "$@"\n')
    Path("smolmem").chmod(0o755)
    tries = (
        f"COMP_WORDS=(smolmem {words}); COMP_CWORD=2; COMPREPLY=(); _smolmem_completion smolmem; echo $COMPREPLY\n"
        for words in ("completion z", f"show {sample.count[:4]}")
    )
    done = subprocess.run(
        ["bash", "-c", "\n".join([run("completion", "bash")[1], *tries])],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PATH": f"{Path.cwd()}:{os.environ['PATH']}"},
        timeout=60,
    )
    assert done.stdout.split() == ["zsh", sample.count[:8]]


# --- hostile text ---------------------------------------------------------------------------------------------------

ORDERS = (
    *(
        "\x1b[5;41;93m",
        "\x1b[2J\x1b[H",
        "\x1b[1A\x1b[2K",
        "\x1b[?1049h",
        "\x1b[6n",
        "\x1b[c",
        "\x1b[20t",
        "\x1bc",
        "\x1b7",
    ),
    *("\x1b]0;owned\x07", "\x1b]2;owned\x1b\\", "\x1b]8;;http://evil\x07click\x1b]8;;\x07", "\x1b]52;c;cm0gLXJm\x07"),
    *("\x1b]1337;File=:AAAA\x07", '\x1bP$q"p\x1b\\', "\x1b_Gf=100;AAAA\x1b\\", "\x1b^pm\x1b\\", "\x1bXsos\x1b\\"),
    *("\x9b5m", "\x9b2J", "\x9d0;owned\x9c", "\x90$q\x9c", "\x9f\x9c", "\x84", "\x8d", "\x85"),
    *("\x07", "\x08\x08\x08", "\r", "\x0b", "\x0c", "\x0e", "\x0f", "\x00", "\x05", "\x18", "\x7f"),
    *("\u202e", "\u202d", "\u202a", "\u2066", "\u2067", "\u2068", "\u200e", "\u200f", "\u061c", "\u2028", "\u2029"),
    *("[link=http://evil]x[/link]", "[/red]", "[blink]x", "[red", ":skull:", "\\[bold]", "%1$s{0}{x!r}"),
)
PAYLOADS = [f"EVIL{n}{ORDERS[n % len(ORDERS)]}{ORDERS[n * 7 % len(ORDERS)]}END" for n in range(100)]
FIELDS = ["".join(PAYLOADS[n : n + 5]) for n in range(0, 100, 5)]
"""All of them, five a field."""
OBEYED = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *"\u061c\u200e\u200f\u2028\u2029"} - {"\n", "\t"}
OBEYED |= {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
OWN = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]\r?|2K|1A)|^\r|\r(?=\x1b\[(?:2K|1A))", re.MULTILINE)
"""What rich itself sends: colours, and what a progress bar is drawn with."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A store whose every field holds such text."""
    path = tmp_path_factory.mktemp("hostile") / "smolmem.db"
    with Memory(path, embedder="off", durability="normal") as memory, pytest.MonkeyPatch.context() as patched:
        patched.setattr("smolmem.recall.notes.check_word", lambda value, name: value)
        agent = memory.attach(calling_agent())
        recorder = memory._recorder(agent)
        assert recorder is not None
        for number, payload in enumerate(FIELDS):
            recorder.runs.scope, recorder.runs.tags = payload, (payload,)
            agent.name = payload
            wanted = [calls((payload, {payload: payload})), calls(("weather", {"city": payload}))]
            end: Any = RuntimeError(payload) if number % 2 else answer(payload)
            agent.model = Scripted(*wanted, end)
            agent.model.model_id = payload
            given = memory.inject(agent, payload, title=payload)
            with contextlib.suppress(Exception):
                agent.run(payload)
            given.withdraw()
            now = datetime.now(timezone.utc)
            memory._journal.alerts.add(Alert(payload, payload, payload, None, 1, now, (payload,)), payload)
            memory._recall.notes.add(payload, scope=payload, kind=payload, tags=[payload], origin="web")
        runs = [run.id for run in memory.runs(scope="*")]
        assert [run.status for run in memory.runs(scope="*")] == ["failed", "finished"] * (len(FIELDS) // 2)
    return path, runs


def sanitize(out: str, *, own: bool = False) -> str:
    left = OWN.sub("", out) if own else out
    bad = {one for one in left if one in OBEYED}
    assert not bad, (bad, left[max(0, min(left.index(one) for one in bad) - 80) :][:200])
    assert "\x1b[5;41;93m" not in out
    return out


def commands(runs: list[str], notes: list[str]) -> Iterator[list[str]]:
    """Every command, such that every field of every run comes up."""
    yield from (["runs", "--limit", "1000"], ["steps", "--limit", "5000"], ["alerts", "--limit", "1000"])
    yield from (["notes", "--limit", "1000"], ["notes", "--past", "--limit", "1000"], ["stats"], ["verify"], ["doctor"])
    yield ["search", "END", "EVIL0", "--lexical", "--limit", "300"]
    yield ["context", "END", "--lexical", "--limit", "300", "--tokens", "100000"]
    yield ["watch", "--rule", "EVIL", "--threshold", "1", "--name", PAYLOADS[0], "--backtest", "--limit", "3000"]
    yield from (["show", run] for run in runs)
    yield from (["replay", run] for run in runs)
    yield from (["replay", run, "--detailed", "--follow"] for run in runs)
    yield from (["show", run, "--step", "1"] for run in runs)
    yield from (["diff", left, right] for left, right in pairwise(runs))
    yield from (["notes", note] for note in notes)
    yield ["migrate"]


def changing(payload: str, runs: list[str], notes: list[str], number: int) -> Iterator[list[str]]:
    """Commands that write, and errors, with such text in their arguments."""
    path = "".join(ORDERS[(5 * number + n) % len(ORDERS)] for n in range(5)).replace("\0", "").replace("/", "")
    yield from (
        ["remember", payload],
        ["fork", runs[number % 20], "--step", "1"],
        ["forget", notes[number % 20], "--yes"],
        ["erase", runs[number % 20], "--dry-run"],
        ["erase", payload, "--yes"],
        ["erase", "--scope", payload, "--dry-run"],
        ["prune", "--older-than", payload],
    )
    yield from (["show", payload], ["notes", payload], ["diff", payload, payload], ["steps", "--run", payload])
    yield from (["runs", "--db", payload], ["runs", "--scope", payload], ["runs", "--since", payload], [payload])
    yield from (["runs", f"--{payload}"], ["watch", "--rule", f"({payload}"], ["runs", "--status", payload])
    yield from (["backup", path], ["export", f"{path}.zip"], ["load", f"{path}.zip", "--db", f"{path}.db"])
    yield from (["load", payload], ["demo", path, "--no-ui"], ["completion", payload], ["doctor", "--db", path[:-1]])


def test_the_gate_lets_nothing_through() -> None:
    for payload in PAYLOADS:
        sanitize(harmless(payload))
        sanitize(as_json([payload]))
        assert json.loads(as_json([payload])) == [payload]


@pytest.fixture
def attacked(hostile: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMOLMEM_URL", "smolmem.db")
    shutil.copy(hostile[0], "smolmem.db")
    with Memory("smolmem.db", embedder="off") as memory:
        return hostile[1], [note.id for note in memory.notes(scope="*", limit=1000)]


@pytest.mark.promise("S15")
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["plain", "json"])
def test_hostile_text_reaches_no_pipe(attacked: Any, run: Run, form: list[str]) -> None:
    runs, notes = attacked
    seen = ""
    for args in commands(runs, notes):
        code, out, err = run(*args, *form)
        assert code == 0, (args, err)
        seen += sanitize(out) + sanitize(err)
    assert all(seen.count(f"EVIL{number}") > 20 for number in range(100))


@pytest.mark.promise("S15")
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["plain", "json"])
def test_hostile_text_reaches_no_terminal(attacked: Any, form: list[str]) -> None:
    runs, notes = attacked
    some = slice(None, None, 1 if TORTURE else 4)
    for args in commands(runs[some], notes[some]):
        code, out = on_terminal(*args, *form, columns=110)
        assert code == 0, (args, out)
        sanitize(out, own=True)


@pytest.mark.promise("S15")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.usefixtures("attacked")
def test_hostile_text_reaches_no_shell_that_completes(shell: str) -> None:
    found = [sanitize(line) for line in completed(shell, "show", "")]
    assert len(found) >= len(FIELDS)
    assert any("EVIL" in line for line in found) == (shell != "bash")


@pytest.mark.promise("S15")
@pytest.mark.usefixtures("empty")
def test_hostile_arguments_and_names_reach_nothing(attacked: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, notes = attacked
    monkeypatch.setattr("smolmem.cli.output.PROGRESS_AFTER", -1)  # progress bars, too
    for number, payload in list(enumerate(FIELDS))[:: 1 if TORTURE else 3]:
        for place, args in enumerate(changing(payload, runs, notes, number)):
            form = ["--json"] if (number + place) % 4 > 1 else []
            if (number + place) % 2:
                sanitize(on_terminal(*args, *form)[1], own=True)
            else:
                sanitize("".join(run(*args, *form)[1:]))
