"""The main job, in a terminal: an agent looks after a real web shop, is killed in the middle of it, goes on, remembers.

The shop is a real process that answers over HTTP (`examples/shop`); its faults, the kill and the agent are real too.
Without a model server a scripted model plays the agent's part, so that the demo runs anywhere: it decides from the
conversation that it is sent. With `--llm_url http://localhost:11434/v1 --model llama3.2` (Ollama, or anything that
speaks OpenAI's protocol) a real one does.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "examples"))

from llm import model_options
from monitoring import describe, handle_incident, label, make_agent, make_model
from rich.text import Text
from shop.control import Shop, ShopError
from shop_tools import get_tools
from smolagents import ToolCallingAgent
from terminal import chapter, console, figures, plainly, say

from smolmem import Memory, Run, Watch
from smolmem.core.errors import UnknownOutcome
from smolmem.policies import views

HEALTH = Watch(r"health check: (5\d\d|no answer)", name="health", tools="check_health", window=5, threshold=2)
"""Two of the last five health checks failed, whichever process made them."""
VIEWS = [views.TrimObservations(600), views.TokenBudget(6_000)]


def attached(memory: Memory, shop: Shop, options: argparse.Namespace) -> ToolCallingAgent:
    """An agent with a memory: one line more than without."""
    agent = make_agent(make_model(options.llm_url, options.model, options.api_key), get_tools(shop, console))
    return memory.attach(agent, recall=5, views=VIEWS, watch=[HEALTH])


def work(options: argparse.Namespace) -> None:
    """What the first process does, until it is killed."""
    shop = Shop(options.folder / "shop")
    with Memory(options.folder / "agent.db") as memory:
        handle_incident(memory, attached(memory, shop, options), shop, describe(shop.health()))


def tell(options: argparse.Namespace) -> None:
    """The story."""
    shop = Shop(options.folder / "shop")
    with shop, Memory(options.folder / "agent.db") as memory:
        break_it(shop, "1  A web shop, and a release that breaks its checkout")
        die(memory, shop, options)
        run = go_on(memory, shop, options)
        again = remember(memory, shop, options, run)
        look_back(memory, again)
    code = f"from smolmem import Memory; print(Memory('{options.folder / 'agent.db'}').runs())"
    console.print(Text.assemble("\nLook for yourself: ", (f'.venv/bin/python -c "{code}"', "bold")), soft_wrap=True)
    console.print("More of this: examples/README.md")


def break_it(shop: Shop, title: str) -> None:
    """A bad release goes out."""
    chapter(title, f"{shop.url}, process {shop.pid}")
    say(str(shop.health()), "green")
    say("… somebody deploys release 41 …", "dim")
    shop.fault("errors")
    say(str(shop.health()), "red")


def die(memory: Memory, shop: Shop, options: argparse.Namespace) -> None:
    """An agent works in another process, and is killed while it restarts the shop."""
    agent = make_agent(make_model(options.llm_url, options.model, options.api_key), [])
    chapter("2  An agent takes care of it, in a process of its own", label(agent.model))
    before = shop.pid
    worker = subprocess.Popen([sys.executable, __file__, "--work", *sys.argv[1:], "--folder", str(options.folder)])
    while shop.pid == before and shop.running():
        if worker.poll() is not None:
            raise SystemExit("The agent ended before it could be killed; its output above says why.")
        time.sleep(0.005)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    chapter("3  kill -9, while it restarts the shop")
    say(f"The process {worker.pid} is gone. It had no chance to save anything.", "red")


def go_on(memory: Memory, shop: Shop, options: argparse.Namespace) -> Run:
    """This process goes on with the run."""
    chapter("4  Another process opens the file")
    console.print(memory.runs()[0])
    agent = attached(memory, shop, options)
    try:
        memory.stepwise(agent).close()
    except UnknownOutcome as unknown:
        say(f"UnknownOutcome: {unknown}\n", "yellow")
        say("The model can look for itself, so the run goes on with unknown='skip':\n")
    run = handle_incident(memory, agent, shop)
    for alert in memory.alerts():
        console.print(alert)
    say(f"\nThe shop now: {shop.health()}", "green")
    memory.detach(agent)
    return run


def remember(memory: Memory, shop: Shop, options: argparse.Namespace, before: Run) -> Run:
    """The same thing happens again, and a new agent remembers."""
    break_it(shop, "5  Another day, the same mistake: a new agent that remembers")
    run = handle_incident(memory, attached(memory, shop, options), shop, describe(shop.health()))
    console.print()
    console.print(figures([("the first time", before), ("from memory", run)]))
    return run


def look_back(memory: Memory, run: Run) -> None:
    """What the record is good for afterwards; nothing is run."""
    chapter("6  A rule, tried on the past", "When would three failures among five checks have called somebody?")
    rule = Watch(r"health check: (5\d\d|no answer)", name="three of five", window=5, tools="check_health")
    console.print(memory.backtest(rule))
    chapter("7  The second incident once more, from the record; nothing is run")
    run.replay(console=console)
    console.print(memory.verify())


def main() -> None:
    """Reads the command line."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_options(reader)
    reader.add_argument("--folder", type=Path, help="where shop and memory are kept (default: a new temporary folder)")
    reader.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = reader.parse_args()
    options.folder = options.folder or Path(tempfile.mkdtemp(prefix="smolmem-"))
    plainly(lambda: work(options) if options.work else tell(options), ShopError, OSError)


if __name__ == "__main__":
    main()
