"""Makes recording.svg, the terminal recording of README.md: `python docs/pictures/make_recording.py`.

The commands are run, in an empty folder, and the picture shows what they print. The agent is a real smolagents agent; a
script replaces its model. The lines appear one after the other, and nothing is loaded from other servers.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
WIDTH = 104
AGENT = """
from smolagents import CodeAgent, Model
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import TokenUsage

CODE = [
    "orders = {n: 'Main Street' if n % 80 else None for n in range(1, 241)}\\nprint(len(orders), 'orders read')",
    "missing = [n for n, address in orders.items() if address is None]\\nprint('no address:', missing)",
    "final_answer(f'{len(missing)} orders have no address: {missing}')",
]


class Scripted(Model):
    def generate(self, messages, **_):
        text = "\\n".join(str(message.content) for message in messages).rpartition("New task:")[2]
        code = CODE[text.count("Observation:")]
        usage = TokenUsage(1_900 + 60 * text.count("Observation:"), 40)
        return ChatMessage(MessageRole.ASSISTANT, f"Thought: next.\\n<code>\\n{code}\\n</code>", token_usage=usage)


def make_agent():
    return CodeAgent(tools=[], model=Scripted("local-model"), name="auditor", verbosity_level=0)
"""
WORK = """
import os, signal
from agent import make_agent
from smolmem import Memory

memory = Memory("agent.db")
for step in memory.stepwise(make_agent(), "Which orders have no address?"):
    print(f"step {step.step_number}:", step.observations.splitlines()[1], flush=True)
    if step.step_number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
"""
CONTINUE = """
from agent import make_agent
from smolmem import Memory

print(Memory("agent.db").resume(make_agent()))
"""
COMMANDS = (
    ("python work.py", "an agent works, and its process is killed"),
    ("smolmem runs", "nothing is lost"),
    ("python continue.py", "another process: same context, same variables"),
    ("smolmem search -n 1 orders without an address", ""),
    ('smolmem sql "select agent, steps, input_tokens, status from runs"', ""),
)
PAUSE, LINE = 0.8, 0.05
"""Seconds before the output of a command, and between its lines."""


def output(command: str, folder: Path) -> str:
    """What a command prints on a terminal of `WIDTH` columns."""
    ours, theirs = pty.openpty()
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": str(WIDTH),
        "TERM": "xterm-256color",
        "SMOLMEM_MODELS": str(folder / "none"),
    }
    running = subprocess.Popen(shlex.split(command), cwd=folder, env=env, stdout=theirs, stderr=theirs)  # noqa: S603
    os.close(theirs)
    printed = b"".join(iter(lambda: _read(ours), b"")).decode()
    if running.wait() not in (0, -9):
        raise SystemExit(f"{command}: {printed}")
    return printed.replace("\r\n", "\n") + ("Killed\n" if running.returncode else "")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4_096)
    except OSError:  # the program has ended
        return b""


def record(folder: Path) -> tuple[str, list[float]]:
    """The picture, and the time at which each of its lines appears."""
    for name, text in (("agent.py", AGENT), ("work.py", WORK), ("continue.py", CONTINUE)):
        (folder / name).write_text(text.lstrip(), encoding="utf-8")
    console = Console(record=True, width=WIDTH, force_terminal=True, file=StringIO(), color_system="truecolor")
    output("smolmem model use off", folder)  # words alone, on every machine
    times: list[float] = []
    now = 0.2
    for command, comment in COMMANDS:
        prompt = Text.assemble(("$ ", "bold green"), (command, "bold"), (f"   # {comment}" if comment else "", "dim"))
        printed = Text.from_ansi(output(command, folder).rstrip("\n") + "\n").split("\n", allow_blank=True)
        for number, line in enumerate([prompt, *printed]):
            console.print(line, overflow="ignore", no_wrap=True, crop=True)
            times.append(now)
            now += PAUSE if number == 0 else LINE
        now += PAUSE
    return console.export_svg(title="smolmem", unique_id="smolmem"), times


def animated(svg: str, times: list[float]) -> str:
    """The picture without fonts of other servers, whose lines appear at their times."""
    svg = re.sub(r"\s*<!--.*?-->", "", svg)
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code", "ui-monospace, SFMono-Regular, Menlo, Consolas")
    rules = (
        "@keyframes appear { from { opacity: 0 } to { opacity: 1 } }\n"
        "    @media (prefers-reduced-motion: reduce) { text { animation: none !important } }\n    "
    )
    svg = svg.replace("<style>\n", f"<style>\n    {rules}", 1)

    def delayed(match: re.Match[str]) -> str:
        return f'{match[0]} style="animation: appear 0.01s {times[int(match[1])]:.2f}s both"'

    return re.sub(r'clip-path="url\(#smolmem-line-(\d+)\)"', delayed, svg)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        picture, at = record(Path(made))
    (HERE / "recording.svg").write_text(animated(picture, at), encoding="utf-8")
