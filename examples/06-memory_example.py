"""What a memory adds to an agent that monitors a shop.

    python 06-memory_example.py                              # everything
    python 06-memory_example.py --demo_mode replay           # monitoring: patterns, replay, analysis
    python 06-memory_example.py --demo_mode inject           # history injected into the prompts of an agent
    python 06-memory_example.py --demo_mode step_by_step     # a run that is killed and resumed

Without --llm_url, a script replaces the model; the shop, its faults, the agents and the kill are real.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from llm import model_options
from monitoring import RULES, STUCK, describe, handle_incident, label, make_agent, make_model, newest, steps_of
from scripted_analyst import ScriptedAnalyst
from shop.control import Shop, ShopError
from shop_tools import get_tools
from smolagents import ActionStep, LogLevel, Model, TaskStep, ToolCallingAgent
from smolagents.monitoring import Timing
from terminal import ExampleError, chapter, console, figures, run_program, say, show_step

from smolmem import Memory, Run, Watch

KNOWN_ISSUE = "Resolved: health check 500, no such column: currency (release 41). Remedy: roll_back_release."
WATCH = "Watch the shop: check its health {} times, and call a person if it keeps failing."
KILLED_AFTER = 3
INTERVAL = 0.3
"""Seconds between two checks in the run that is killed."""


class Demo:
    """One shop, one memory, and several agents."""

    def __init__(self, options: argparse.Namespace, model: Model, shop: Shop, memory: Memory) -> None:
        self.options, self.model, self.shop, self.memory = options, model, shop, memory

    def agent(self, *, recall: int = 0, watch: Sequence[Watch] = (STUCK,)) -> ToolCallingAgent:
        """A new agent, attached to the memory."""
        agent = make_agent(self.model, get_tools(self.shop, console), verbosity_level=self.options.verbosity_level)
        return self.memory.attach(agent, recall=recall, watch=watch)

    def incident(self, agent: ToolCallingAgent) -> Run:
        """Breaks the shop and lets the agent handle the incident."""
        self.shop.clear()
        self.shop.fault("errors")
        return handle_incident(self.memory, agent, self.shop, describe(self.shop.health()))

    # --- patterns ----------------------------------------------------------------------------------------------------

    def patterns(self) -> None:
        """Monitors a shop that fails intermittently, then counts failures in RAM and in the record."""
        chapter(
            "Health check patterns", "Half of the shop's database connections are closed. A rule watches the steps."
        )
        self.shop.fault("flapping")
        agent = self.agent(watch=RULES)
        handle_incident(self.memory, agent, self.shop, WATCH.format(8))
        self.shop.restart()

        chapter("Counts", "By text, in the RAM of this agent; by tool, over all recorded runs.")
        steps = [step for step in agent.memory.steps if isinstance(step, ActionStep)]
        checks = [step for step in steps if "health" in (step.observations or "").lower()]
        errors = sum(step.error is not None for step in steps)
        say(f"agent.memory.steps   {len(checks)} steps mention a health check; {errors} steps with an error")
        checks = self.memory.steps(tool="check_health", limit=1000)
        failed = [step for step in checks if "health check: 200" not in step.text]
        errors = len(self.memory.steps(error=True))
        say(f"memory.steps(tool=…) {len(checks)} health checks, {len(failed)} failed; {errors} steps with an error")
        say(f"memory.alerts()      {', '.join(map(str, self.memory.alerts()))}")
        say("\nmemory.backtest(rule): when would another rule have fired?", "dim")
        twice = Watch("health check: 5", name="two in a row", tool="check_health", window=2, threshold=2)
        console.print(self.memory.backtest(twice))

    # --- decisions ---------------------------------------------------------------------------------------------------

    def decisions(self) -> None:
        """The same incident twice; the second agent is new and only knows what it recalls."""
        runs = []
        for title in ("First incident", "The same incident again, with a new agent"):
            chapter(title, "memory.attach(agent, recall=5)")
            runs.append(self.incident(self.agent(recall=5)))
        console.print()
        console.print(figures(zip(("first time", "second time"), runs, strict=True)))
        first, second = runs
        say(f"\nSecond time: {first.step_count - second.step_count} steps fewer.", "bold green")

    # --- injection ---------------------------------------------------------------------------------------------------

    def inject(self) -> None:
        """The same incident without history, with steps appended by hand, and with `memory.inject`."""
        runs = [self.without_history(), self.appended(), self.injected()]
        console.print()
        console.print(figures(zip(("no history", "appended, then run()", "memory.inject"), runs, strict=True)))

    def without_history(self) -> Run:
        """An agent without history."""
        chapter("Injection: an agent without history")
        return self.incident(self.agent())

    def appended(self) -> Run:
        """The way that smolagents documents: append steps to the list. `run()` clears the list before it starts."""
        chapter("Injection: steps appended to agent.memory.steps", "run() drops them without a warning.")
        agent = self.agent()
        agent.memory.steps.append(TaskStep(task="Previous monitoring session"))
        timing = Timing(time.time(), time.time())  # with timing=None, as documented, get_full_steps() fails
        agent.memory.steps.append(ActionStep(step_number=0, observations=KNOWN_ISSUE, timing=timing))
        return self.incident(agent)

    def injected(self) -> Run:
        """`memory.inject`: a previous session, a known issue, a baseline, and a maintenance window that expires."""
        chapter("Injection: memory.inject", "An injection is part of every run, names its origin, and can expire.")
        watch = handle_incident(self.memory, self.agent(), self.shop, WATCH.format(2))
        usual = self.shop.metrics()
        agent, over = self.agent(), datetime.now() + timedelta(seconds=3)
        self.memory.inject(agent, watch, title="previous session")
        self.memory.inject(agent, KNOWN_ISSUE, title="known issue")
        self.memory.inject(agent, f"p95 latency {usual['latency_p95_ms']} ms is usual", title="baseline")
        self.memory.inject(agent, "Deploys may restart the shop", title="maintenance window", expires=over)
        run = self.incident(agent)
        say(f"Injected: {titles(agent)}")
        time.sleep(max(0.0, (over - datetime.now()).total_seconds()))
        say("\nThe maintenance is over. The next task:", "dim")
        handle_incident(self.memory, agent, self.shop, WATCH.format(2))
        say(f"Injected: {titles(agent)}")
        return run

    # --- step by step ------------------------------------------------------------------------------------------------

    def step_by_step(self) -> None:
        """Another process monitors the shop step by step. It is killed, and this process resumes the run."""
        chapter(
            "Step by step, in another process",
            "This process reads its steps from the file.",
        )
        before = self.checks_counted()
        command = [sys.executable, __file__, "--work", *sys.argv[1:], *self.where()]
        with subprocess.Popen(command) as child:  # noqa: S603  this program
            self.follow(child)
            child.send_signal(signal.SIGKILL)
        if newest(self.memory).status == "finished":
            raise ExampleError("The run finished before it could be killed. Try again.")
        say(f"kill -9: process {child.pid} was killed in the middle of its run.", "bold red")

        chapter("Another process resumes the run", "memory.stepwise(agent), without a task")
        run = handle_incident(self.memory, self.agent(), self.shop)
        say(f"Run {run.id[:8]}: {run.step_count} steps, {run.status}; resumed after a kill.", "bold green")
        checks = sum("check_health" in step.tools for step in run.steps)
        say(f"Health checks in the run: {checks}. Counted by the shop itself: {self.checks_counted() - before}.")

    def where(self) -> list[str]:
        """The arguments that lead another process to this shop and this memory."""
        return ["--folder", str(self.shop.folder), "--db", str(self.options.db)]

    def checks_counted(self) -> int:
        """The number of health checks in the log of the shop."""
        return self.shop.log(10_000).count("GET /health")

    def follow(self, child: subprocess.Popen[bytes]) -> None:
        """Shows the steps of the other process as they appear in the file, until enough of them are done."""
        began, shown, succeeded = datetime.now().astimezone(), 0, 0
        while succeeded < KILLED_AFTER:
            if child.poll() is not None:
                raise ExampleError("The run ended before it could be killed. The output above says why.")
            time.sleep(0.05)
            for step in self.memory.steps(kind="action", since=began)[::-1][shown:]:
                show_step(step.to_smolagents())
                shown, succeeded = shown + 1, succeeded + (step.error is None)

    def work(self) -> None:
        """The work of the other process: one step, then a pause. It prints nothing."""
        for _ in steps_of(self.memory, self.agent(), WATCH.format(6)):
            time.sleep(INTERVAL)

    # --- replay and analysis -----------------------------------------------------------------------------------------

    def replay(self) -> None:
        """Replays a run as smolagents does, from RAM, and another one from the record; its agent is gone."""
        agent = self.agent()
        handle_incident(self.memory, agent, self.shop, WATCH.format(1))
        agent.logger.level = LogLevel.ERROR  # replay() prints nothing at the level OFF
        chapter("Replay by smolagents", "agent.replay(): the last run of an agent, from RAM")
        agent.replay()
        chapter("Replay by smolagents, with the prompts", "agent.replay(detailed=True)")
        agent.replay(detailed=True)
        chapter("Replay", "run.replay(): from the file; nothing is executed, and no agent is needed")
        self.watched().replay(console=console)

    def watched(self) -> Run:
        """The run that monitored the intermittent failures; if there is none yet, it is made now."""
        runs = self.memory.runs(text=WATCH.format(8))
        if not runs:
            self.patterns()
            runs = self.memory.runs(text=WATCH.format(8))
        return runs[0]

    def analysis(self) -> None:
        """Another agent analyzes the history: all messages of an agent in RAM, then a recorded run within a budget."""
        run = self.watched()
        chapter("Another agent analyzes the history", "agent.write_memory_to_messages(): everything, from RAM")
        agent = self.agent()
        run.restore(agent)
        messages = agent.write_memory_to_messages()
        say(f"{len(messages)} messages, about {len(str(messages)) // 4:,} tokens, with the system prompt", "bold")
        say(f"  {self.analyst().run(f'Analyze this monitoring history: {messages}')}")
        chapter("The same within a budget", "run.to_messages(tokens=…), from the file")
        for tokens in (None, 600):
            history = run.to_messages(tokens=tokens)
            say(f"tokens={tokens}: {len(history)} messages, about {len(str(history)) // 4:,} tokens", "bold")
            say(f"  {self.analyst().run(f'Analyze this monitoring history: {history}')}")

    def analyst(self) -> ToolCallingAgent:
        """An agent without tools. It is not attached, so its analysis is not recorded."""
        model = self.model if self.options.llm_url else ScriptedAnalyst()
        return ToolCallingAgent(tools=[], model=model, max_steps=4, verbosity_level=LogLevel.OFF)


def titles(agent: ToolCallingAgent) -> str:
    """The titles of the injected steps on the list."""
    return ", ".join(step.title for step in agent.memory.steps if hasattr(step, "title"))


MODES = {
    "replay": [Demo.patterns, Demo.replay, Demo.analysis],
    "inject": [Demo.inject],
    "step_by_step": [Demo.step_by_step],
    "full": [Demo.patterns, Demo.decisions, Demo.inject, Demo.step_by_step, Demo.replay, Demo.analysis],
}


def run_demo(options: argparse.Namespace) -> None:
    """Runs the chosen chapters on a shop of their own."""
    model = make_model(options.llm_url, options.model, options.api_key)
    if not (options.db and options.folder):
        folder = Path(tempfile.mkdtemp(prefix="smolmem-"))
        options.db, options.folder = options.db or folder / "agent.db", options.folder or folder / "shop"
    shop = Shop(options.folder)
    with Memory(options.db) as memory:
        demo = Demo(options, model, shop, memory)
        if options.work:
            demo.work()
            return
        say(f"{label(model)}. Memory: {options.db}", "dim")
        with shop:
            for part in MODES[options.demo_mode]:
                part(demo)


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_options(parser)
    parser.add_argument("--demo_mode", choices=MODES, default="full", help="the chapters to run (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="the folder of the shop (default: a new temporary folder)")
    parser.add_argument("--db", type=Path, help="the memory file (default: a new file in a temporary folder)")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    run_program(lambda: run_demo(options), ShopError, OSError)


if __name__ == "__main__":
    main()
