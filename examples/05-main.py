"""An agent that monitors and repairs a small web shop, with a durable memory.

    python 05-main.py --fault errors      # breaks the shop; the agent finds the cause and repairs the shop
    python 05-main.py --fault errors      # again: the agent recalls the fix and needs fewer steps
    python 05-main.py --fault flapping    # a rule detects the pattern, and the agent notifies a person
    python 05-main.py --resume            # resumes the run after a kill -9 or a failure of the model server

    python 05-main.py --fault flapping --patterns callback   # a plain step callback detects it, instead of the rule
    python 05-main.py --fault errors --verbosity_level 0     # without the log of smolagents

Without --llm_url, a script replaces the model; everything else is real.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import shop_tools
from llm import MODEL, model_options
from monitoring import RULES, STUCK, Unfinished, describe, handle_incident, is_handled, label, make_model
from shop.control import FAULTS, Health, Shop, ShopError
from smolagents import ActionStep, Model, Tool, ToolCallingAgent
from terminal import ExampleError, chapter, console, figures, run_program, say

from smolmem import Memory, Run

shop = Shop("little-shop")
"""The shop that the agent monitors; --folder chooses another folder."""


def get_model(llm_url: str | None, model: str, api_key: str | None = None) -> Model:
    """A model from an OpenAI-compatible server, or the scripted operator."""
    return make_model(llm_url, model, api_key)


def get_tools() -> list[Tool]:
    """Tools to check health, read the log and the metrics, restart, roll back, and notify a person."""
    return shop_tools.get_tools(shop, console)


def track_health_patterns(memory_step: ActionStep, agent: ToolCallingAgent) -> None:
    """A plain step callback: adds a line to the observation when three of the last ten checks failed.

    It sees the steps of this run in RAM. The rule HEALTH does the same over all recorded runs, once for each incident.
    """
    if "health check" not in (memory_step.observations or ""):
        return
    recent = [step for step in agent.memory.steps[-9:] if isinstance(step, ActionStep)]
    failures = sum(failed(step) for step in [*recent, memory_step])  # this step is not on the list yet
    if failures >= 3:
        memory_step.observations += f"\n[ALERT] Pattern detected: {failures} failures in the last 10 steps"


def failed(step: ActionStep) -> bool:
    """Whether a step is a health check that failed."""
    return any(sign in (step.observations or "") for sign in ("health check: 5", "health check: no answer"))


def create_agent(
    llm_url: str | None,
    model: str = MODEL,
    *,
    api_key: str | None = None,
    verbosity_level: int = 2,
    patterns: str = "callback",
) -> ToolCallingAgent:
    """A plain smolagents agent, with the callback unless a rule watches instead. It needs no memory."""
    return ToolCallingAgent(
        model=get_model(llm_url, model, api_key),
        tools=get_tools(),
        name="ai_monitoring_agent",
        description="An agent that monitors a web application and manages its health.",
        max_steps=25,
        verbosity_level=verbosity_level,
        step_callbacks=[track_health_patterns] if patterns == "callback" else [],
    )


def work(options: argparse.Namespace) -> None:
    """Handles one incident. The shop stays running if it was running before, or if the run can be resumed."""
    agent = create_agent(
        options.llm_url,
        options.model,
        api_key=options.api_key,
        verbosity_level=options.verbosity_level,
        patterns=options.patterns,
    )
    keep = options.keep or (shop.running() and not options.resume)
    try:
        with Memory(options.db) as memory:
            rules = RULES if options.patterns == "rule" else [STUCK]
            memory.attach(agent, recall=5, watch=rules)  # the whole integration
            incident(memory, agent, options)
    except (Unfinished, KeyboardInterrupt):
        keep = True
        say("\nTo resume this run: python 05-main.py --resume (with the same --folder and --db).")
        raise
    finally:
        stop_shop(keep=keep)


def incident(memory: Memory, agent: ToolCallingAgent, options: argparse.Namespace) -> None:
    """Breaks the shop, lets the agent work, and prints a report."""
    if options.resume:
        task = None
        chapter("The agent resumes its run", label(agent.model))
        say(f"Task: {unfinished(memory, agent)}")
    else:
        health = prepare(options.fault)
        task = options.task or describe(health)
        chapter("The agent works", label(agent.model))
        say(f"Task: {task}")
    report(memory, handle_incident(memory, agent, shop, task, interval=options.interval))


def prepare(fault: str | None) -> Health:
    """Starts the shop if it is not running, breaks it, and returns its health."""
    chapter("The shop")
    shop.start()
    if fault:
        shop.fault(fault)
        say(f"Injected fault: {fault}: {FAULTS[fault]}")
    health = shop.health()
    say(f"{shop.url}\n{health}", "green" if health.ok else "red")
    return health


def unfinished(memory: Memory, agent: ToolCallingAgent) -> str:
    """The task of the run to resume."""
    runs = [run for run in memory.runs(agent=agent.name) if run.status in ("interrupted", "failed")]
    if not runs:
        raise ExampleError("There is no unfinished run to resume. Omit --resume to start a new run.")
    return runs[0].task


def report(memory: Memory, run: Run) -> None:
    """Prints the outcome, and compares this run with earlier runs of the same task."""
    chapter("Result")
    for alert in memory.alerts(run=run.id):
        console.print(alert)
    health = shop.health()
    say(f"The shop now: {health}", "green" if health.ok else "yellow")
    console.print()
    say("All runs of this task:")
    runs = [each for each in memory.runs(agent=run.agent)[::-1] if each.task == run.task]
    console.print(figures((f"{each.began.astimezone():%d %b %H:%M:%S}", each) for each in runs))
    if not is_handled(shop, run):
        raise ExampleError(
            "The agent has finished, but the shop still fails and no person was notified. Try a larger model."
        )


def stop_shop(*, keep: bool) -> None:
    """Stops the shop, unless `keep` is set."""
    if not keep:
        shop.stop()
    elif shop.running():
        say(f"\nThe shop is still running at {shop.url}.", "dim")
        say(f"To stop it: python shop/control.py stop --folder {shop.folder}", "dim")


def main() -> None:
    """Parses the command line."""
    global shop
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_options(parser, verbosity_level=2)
    parser.add_argument(
        "--patterns", choices=("rule", "callback"), default="rule", help="what detects patterns (default: %(default)s)"
    )
    parser.add_argument("--fault", choices=FAULTS, help="inject this fault first")
    parser.add_argument("--task", help="the task of the agent (default: a pager message about the fault)")
    parser.add_argument("--resume", action="store_true", help="resume the unfinished run")
    parser.add_argument("--folder", type=Path, default=shop.folder, help="folder of the shop (default: little-shop)")
    parser.add_argument("--db", type=Path, default=Path("monitoring.db"), help="the memory file (default: %(default)s)")
    parser.add_argument("--interval", type=float, default=0.0, help="seconds to wait between steps")
    parser.add_argument("--keep", action="store_true", help="leave the shop running")
    options = parser.parse_args()
    shop = Shop(options.folder)
    run_program(lambda: work(options), ShopError, OSError)


if __name__ == "__main__":
    main()
