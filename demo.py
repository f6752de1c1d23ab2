"""A demo in the terminal: an agent repairs a web shop, is killed, is resumed, and the next agent remembers the fix.

The shop is a real process that answers over HTTP (`examples/shop`). Its faults, the agent and the kill are real, too.
Without a model server, a scripted model replaces the LLM, so that the demo runs anywhere; it decides from the messages
it is sent. Use `--llm_url http://localhost:11434/v1 --model llama3.2` for a real model from Ollama or any other
OpenAI-compatible server. A model that cannot call tools is stopped after a few steps.

At the end, the demo names the command that opens the recorded runs in the inspector, and runs it on a desktop.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parent / "examples"))

from llm import model_options
from monitoring import STUCK, describe, handle_incident, label, make_agent, make_model
from rich.text import Text
from shop.app import LIFELINE, follow_lifeline
from shop.control import Shop, ShopError
from shop_tools import get_tools
from smolagents import ToolCallingAgent
from terminal import ExampleError, chapter, console, figures, run_program, say

from smolmem import Memory, Run, UnknownOutcome, Watch, views

HEALTH = Watch(r"health check: (5\d\d|no answer)", name="health", tool="check_health", window=5, threshold=2)
"""Fires when two of the last five health checks failed; checks made by other processes count, too."""
VIEWS = [views.TrimObservations(600), views.TokenBudget(6_000)]
MAX_STEPS = 12
"""More than enough for this incident: a weak model does not use up more."""


def open_memory(options: argparse.Namespace) -> Memory:
    """The memory of the demo. Recall goes by words, so that no process of this short demo loads an embedding model."""
    return Memory(options.folder / "agent.db", embedder="off")


def attached(memory: Memory, shop: Shop, options: argparse.Namespace) -> ToolCallingAgent:
    """Creates the agent and attaches it to the memory."""
    agent = make_agent(make_model(options.llm_url, options.model, options.api_key), get_tools(shop, console))
    agent.max_steps = MAX_STEPS
    return memory.attach(agent, recall=5, views=VIEWS, watch=[HEALTH, STUCK])


def work(options: argparse.Namespace) -> None:
    """The work of the first process, until it is killed."""
    follow_lifeline()
    shop = Shop(options.folder / "shop")
    with open_memory(options) as memory:
        handle_incident(memory, attached(memory, shop, options), shop, describe(shop.health()))


def run_demo(options: argparse.Namespace) -> None:
    """All chapters, in order."""
    lifeline = open_lifeline()
    shop = Shop(options.folder / "shop")
    with shop, open_memory(options) as memory:
        deploy_bad_release(shop, "1  A web shop, and a release that breaks its checkout")
        kill_agent(shop, options, lifeline)
        run = resume(memory, shop, options)
        again = repeat_incident(memory, shop, options, run)
        review(memory, again)
    inspect(options)


def open_lifeline() -> int:
    """A pipe that every process of the demo inherits, and that only this process holds open.

    A shop that a killed agent, or a thread that outlives Ctrl-C, has just started cannot be found by its folder yet.
    Therefore the shop and the agent end by themselves when this process ends, however it ends.
    """
    lifeline, _ = os.pipe()  # this process keeps the other end open until it ends
    os.set_inheritable(lifeline, True)
    os.environ[LIFELINE] = str(lifeline)
    return lifeline


def inspect(options: argparse.Namespace) -> None:
    """Names the command that opens the inspector; on a desktop, runs it until Ctrl-C."""
    beside = Path(sys.executable).with_name("smolmem")
    program = "smolmem" if shutil.which("smolmem") or not beside.exists() else os.path.relpath(beside)
    command = f"{program} ui {shlex.quote(str(options.folder / 'agent.db'))}"
    console.print(Text.assemble("\nInspect the memory: ", (command, "bold")), soft_wrap=True)
    console.print("More examples: examples/README.md")
    desktop = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if desktop and console.is_terminal and not options.no_ui and find_spec("uvicorn") is not None:
        subprocess.run([sys.executable, "-m", "smolmem", "ui", str(options.folder / "agent.db")], check=False)


def deploy_bad_release(shop: Shop, title: str) -> None:
    """Deploys a release whose checkout fails."""
    chapter(title, f"{shop.url}, process {shop.pid}")
    say(str(shop.health()), "green")
    say("… release 41 is deployed …", "dim")
    shop.fault("errors")
    say(str(shop.health()), "red")


def kill_agent(shop: Shop, options: argparse.Namespace, lifeline: int) -> None:
    """Starts an agent in another process and kills it while it restarts the shop."""
    agent = make_agent(make_model(options.llm_url, options.model, options.api_key), [])
    chapter("2  An agent repairs the shop, in its own process", label(agent.model))
    before = shop.pid
    command = [sys.executable, __file__, "--work", *sys.argv[1:], "--folder", str(options.folder)]
    worker = subprocess.Popen(command, pass_fds=[lifeline])
    try:
        while shop.pid == before and shop.running():
            if worker.poll() is not None:
                raise ExampleError("The agent ended before it could be killed. Its output above says why.")
            time.sleep(0.005)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    chapter("3  kill -9, while the agent restarts the shop")
    say(f"Process {worker.pid} was killed. It had no chance to save anything.", "red")


def resume(memory: Memory, shop: Shop, options: argparse.Namespace) -> Run:
    """Resumes the run in this process."""
    chapter("4  Another process opens the file and resumes the run")
    console.print(memory.runs()[0])
    agent = attached(memory, shop, options)
    try:
        memory.stepwise(agent).close()
    except UnknownOutcome as unknown:
        say(f"UnknownOutcome: {unknown}\n", "yellow")
        say("The agent can check the shop again, so the run is resumed with unknown='skip':\n")
    run = handle_incident(memory, agent, shop)
    for alert in memory.alerts():
        console.print(alert)
    say(f"\nThe shop now: {shop.health()}", "green")
    memory.detach(agent)
    return run


def repeat_incident(memory: Memory, shop: Shop, options: argparse.Namespace, before: Run) -> Run:
    """The same incident again, with a new agent that recalls the first one."""
    deploy_bad_release(shop, "5  The same incident again, with a new agent that recalls the first")
    run = handle_incident(memory, attached(memory, shop, options), shop, describe(shop.health()))
    console.print()
    console.print(figures([("first incident", before), ("with recall", run)]))
    return run


def review(memory: Memory, run: Run) -> None:
    """Reads the record afterwards; nothing is executed."""
    chapter("6  Backtest of a rule", 'When would "three of five checks failed" have fired?')
    rule = Watch(r"health check: (5\d\d|no answer)", name="three of five", window=5, tool="check_health")
    console.print(memory.backtest(rule))
    chapter("7  Replay of the second incident, from the record; nothing is executed")
    run.replay(console=console)
    console.print(memory.verify())
    memory.index()  # no later process embeds in the background before `smolmem search` is tried


def terminated(number: int, frame: FrameType | None) -> None:
    """Ends the demo as Ctrl-C does: the shop and the agent's process are stopped first."""
    raise KeyboardInterrupt


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_options(parser)
    parser.add_argument("--folder", type=Path, help="the folder of shop and memory (default: a temporary folder)")
    parser.add_argument("--no-ui", action="store_true", help="do not open the inspector at the end")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.work:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, terminated)
    options.folder = options.folder or Path(tempfile.mkdtemp(prefix="smolmem-"))
    run_program(lambda: work(options) if options.work else run_demo(options), ShopError, OSError)


if __name__ == "__main__":
    main()
