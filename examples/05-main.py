"""A monitoring agent that looks after a small real shop, with a memory that outlives it.

    python 05-main.py --fault errors      # breaks the shop; the agent finds out why, and mends it
    python 05-main.py --fault errors      # once more: it remembers, and is done in fewer steps
    python 05-main.py --fault flapping    # a rule sees the pattern, and a person is called
    python 05-main.py --resume            # after a kill -9, or after the model's server went away

Without --llm_url a script plays the model's part; everything else is real.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import shop_tools
from llm import MODEL, model_options
from monitoring import RULES, Unfinished, describe, handle_incident, label, looked_after, make_model
from shop.control import FAULTS, Health, Shop, ShopError
from smolagents import LogLevel, Model, Tool, ToolCallingAgent
from terminal import Trouble, chapter, console, figures, plainly, say

from smolmem import Memory, Run

shop = Shop("little-shop")
"""What the agent looks after; --folder chooses another."""


def get_model(llm_url: str | None, model: str, api_key: str | None = None) -> Model:
    """A model from an OpenAI-compatible server, or the scripted operator."""
    return make_model(llm_url, model, api_key)


def get_tools() -> list[Tool]:
    """Health check, log, figures; restart, rollback, a call to a person."""
    return shop_tools.get_tools(shop, console)


def create_agent(
    llm_url: str | None, model: str = MODEL, *, api_key: str | None = None, verbose: bool = False
) -> ToolCallingAgent:
    """The agent, as it is without a memory. Rules work here too, as `step_callbacks=RULES`."""
    return ToolCallingAgent(
        model=get_model(llm_url, model, api_key),
        tools=get_tools(),
        name="ai_monitoring_agent",
        description="An agent that monitors a web application and manages its health.",
        max_steps=25,
        verbosity_level=LogLevel.DEBUG if verbose else LogLevel.OFF,
    )


def work(options: argparse.Namespace) -> None:
    """One incident; the shop is left as it was found, and running if the run is to go on."""
    agent = create_agent(options.llm_url, options.model, api_key=options.api_key, verbose=options.verbose)
    keep = options.keep or (shop.running() and not options.resume)
    try:
        with Memory(options.db) as memory:
            memory.attach(agent, recall=5, watch=RULES)  # the whole of the integration
            incident(memory, agent, options)
    except (Unfinished, KeyboardInterrupt):
        keep = True
        say("\nTo go on with this run: python 05-main.py --resume (and the same --folder and --db).")
        raise
    finally:
        leave(keep=keep)


def incident(memory: Memory, agent: ToolCallingAgent, options: argparse.Namespace) -> None:
    """From the fault to the figures."""
    if options.resume:
        task = None
        chapter("The agent goes on where it stopped", label(agent.model))
        say(f"Task: {unfinished(memory, agent)}")
    else:
        health = prepare(options.fault)
        task = options.task or describe(health)
        chapter("The agent at work", label(agent.model))
        say(f"Task: {task}")
    report(memory, handle_incident(memory, agent, shop, task, interval=options.interval))


def prepare(fault: str | None) -> Health:
    """Starts the shop, or finds it, breaks it, and tells how it is then."""
    chapter("The shop")
    shop.start()
    if fault:
        shop.fault(fault)
        say(f"Broken on purpose: {fault}: {FAULTS[fault]}")
    health = shop.health()
    say(f"{shop.url}\n{health}", "green" if health.ok else "red")
    return health


def unfinished(memory: Memory, agent: ToolCallingAgent) -> str:
    """The task of the run that goes on."""
    runs = [run for run in memory.runs(agent=agent.name) if run.status in ("interrupted", "failed")]
    if not runs:
        raise Trouble("There is no unfinished run to go on with. Leave --resume out to start a new one.")
    return runs[0].task


def report(memory: Memory, run: Run) -> None:
    """What came of it, beside what earlier runs took."""
    chapter("What happened")
    for alert in memory.alerts(run=run.id):
        console.print(alert)
    health = shop.health()
    say(f"The shop now: {health}", "green" if health.ok else "yellow")
    console.print()
    say("This task, each time it was given:")
    runs = [each for each in memory.runs(agent=run.agent)[::-1] if each.task == run.task]
    console.print(figures((f"{each.began.astimezone():%d %b %H:%M:%S}", each) for each in runs))
    if not looked_after(shop, run):
        raise Trouble(
            "The agent has ended, the shop is still ill, and nobody was called. A larger model may do better."
        )


def leave(*, keep: bool) -> None:
    """Stops the shop, unless it was there before or is to stay."""
    if not keep:
        shop.stop()
    elif shop.running():
        say(f"\nThe shop goes on at {shop.url}. To stop it: python shop/control.py stop --folder {shop.folder}", "dim")


def main() -> None:
    """Reads the command line."""
    global shop
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_options(reader)
    reader.add_argument("--fault", choices=FAULTS, help="break the shop first")
    reader.add_argument("--task", help="what the agent is to do (default: what a pager would say)")
    reader.add_argument("--resume", action="store_true", help="go on with the run that was not finished")
    reader.add_argument("--folder", type=Path, default=shop.folder, help="where the shop lives (default: little-shop)")
    reader.add_argument("--db", type=Path, default=Path("monitoring.db"), help="the memory (default: %(default)s)")
    reader.add_argument("--interval", type=float, default=0.0, help="seconds to wait between two steps")
    reader.add_argument("--keep", action="store_true", help="leave the shop running")
    options = reader.parse_args()
    shop = Shop(options.folder)
    plainly(lambda: work(options), ShopError, OSError)


if __name__ == "__main__":
    main()
