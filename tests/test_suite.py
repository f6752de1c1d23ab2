"""The test suite itself: started in any way, it says what it left out."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import programs
import pytest

HERE = Path(__file__).parent
PROMPTS = """
from smolagents import CodeAgent, Model, ToolCallingAgent
def show():
    for kind in (CodeAgent, ToolCallingAgent, CodeAgent):
        agent = kind(tools=[], model=Model(model_id="m"))
        print(agent.system_prompt, agent.prompt_templates)
        agent.prompt_templates["system_prompt"] = "changed for this agent alone"
show()
print("QUICKLY")
import quick
show()
"""
# In short pieces: a signal that comes just before a call of sleep() is noticed after it.
WAITING = "import time; print('ready', flush=True); [time.sleep(0.05) for _ in range(1_200)]"


def test_what_a_test_starts_can_be_interrupted_however_the_tests_were_started() -> None:
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in child.communicate(timeout=50)[1]


INNER = """
import pytest

@pytest.mark.skip(reason="chromium or chromedriver is not installed")
@pytest.mark.parametrize("number", range(3))
def test_in_a_browser(number):
    raise AssertionError

@pytest.mark.skipif(True, reason="nobody knows why")
def test_of_nothing():
    raise AssertionError

@pytest.mark.promise(id="of the inner test")
def test_of_a_promise():
    pass

from test_suite import test_what_a_test_starts_can_be_interrupted_however_the_tests_were_started
"""


def test_started_in_the_background_children_are_interrupted_and_what_was_skipped_is_said_with_how_to_run_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_inner.py").write_text(INNER)
    (tmp_path / "conftest.py").write_text((HERE / "conftest.py").read_text())
    ignoring = "import signal, sys, pytest; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.exit(pytest.main())"
    options = ["-q", "-p", "xdist", "-n", "1", "-W", "ignore", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-c", ignoring, *options, tmp_path],
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "SMOLMEM_"))}
        | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    told = done.stdout.splitlines()
    assert "3 tests: chromium or chromedriver is not installed: apt-get install chromium chromium-driver" in told
    assert "1 test: nobody knows why" in told
    assert "1 tests of promises ran with samples: `make torture` runs them in full." in told
    assert "2 passed, 4 skipped" in told[-1]


def names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def test_every_test_that_does_more_under_torture_is_run_by_make_torture() -> None:
    """`make torture` selects tests by their marks: a test without one would never be run at its long figure."""
    left_out = []
    for file in sorted(HERE.glob("test_*.py")):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        figures = {"TORTURE"}
        for node in body:
            if isinstance(node, ast.Assign) and "TORTURE" in names_in(node.value):
                figures |= set().union(*map(names_in, node.targets))
        for node in body:
            marks = " ".join(map(ast.unparse, getattr(node, "decorator_list", [])))
            if getattr(node, "name", "").startswith("test_") and figures & names_in(node):
                left_out += [] if re.search("mark.(promise|sampled)", marks) else [f"{file.name}: {node.name}"]
    assert left_out == []


ENDS = {
    "output": "import os, sys; print(sys.argv, os.getcwd(), os.environ['GIVEN'], input()); sys.stderr.write('error')",
    "exit": "import sys; sys.exit(3)",
    "message": "import sys; sys.exit('no')",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(60)",
    "at exit": "import atexit; atexit.register(print, 'bye'); print('hello')",
    "thread": "import threading; threading.Timer(0.01, print, ['late']).start()",
    "closed": "import sys; sys.stdout.close()",
}


@pytest.mark.parametrize("how", ENDS)
def test_a_forked_program_does_and_ends_as_a_real_one(how: str, tmp_path: Path) -> None:
    words, variables = ["-c", ENDS[how], "a word"], os.environ | {"GIVEN": "a variable"}
    options: dict[str, Any] = {"input": "a line\n", "cwd": tmp_path, "env": variables}
    real = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, **options)
    ours = programs.run(words, **options)
    assert (ours.returncode, ours.stdout) == (real.returncode, real.stdout)
    assert ours.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]


def test_a_forked_program_fails_with_its_own_lines_in_the_traceback(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("def work():\n    1 / 0\n\nwork()\n")
    failed = programs.run([tmp_path / "program.py"])
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert f'File "{tmp_path / "program.py"}", line 2, in work' in failed.stderr


def test_agents_made_quickly_are_the_same_agents() -> None:
    line = [sys.executable, "-c", PROMPTS]
    shown = subprocess.run(line, capture_output=True, text=True, check=True, cwd=HERE).stdout
    plain, quickly = shown.split("QUICKLY\n")
    assert plain == quickly
    assert len(plain) > 10_000
