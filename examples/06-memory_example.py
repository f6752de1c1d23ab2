"""What a memory does for an agent that monitors a shop.

    python 06-memory_example.py                              # all of it
    python 06-memory_example.py --demo_mode replay           # a watch, its patterns, its replay, its analysis
    python 06-memory_example.py --demo_mode inject           # history put before the agent's eyes
    python 06-memory_example.py --demo_mode step_by_step     # a watch that is killed and goes on

Without --llm_url a script plays the model's part; the shop, its faults, the agents and the kill are real.
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
from terminal import Trouble, chapter, console, figures, plainly, say, show_step

from smolmem import Memory, Run, Watch

KNOWN_ISSUE = "Resolved: health check 500, no such column: currency (release 41). Remedy: roll_back_release."
WATCH = "Watch the shop: check its health {} times, and call a person if it keeps failing."
KILLED_AFTER = 3
INTERVAL = 0.3
"""Seconds between two checks of the watch that is killed."""


class Demo:
    """One shop, one memory, and as many agents as the story needs."""

    def __init__(self, options: argparse.Namespace, model: Model, shop: Shop, memory: Memory) -> None:
        self.options, self.model, self.shop, self.memory = options, model, shop, memory

    def agent(self, *, recall: int = 0, watch: Sequence[Watch] = (STUCK,)) -> ToolCallingAgent:
        """A new agent that knows nothing, with a memory."""
        agent = make_agent(self.model, get_tools(self.shop, console), verbose=self.options.verbose)
        return self.memory.attach(agent, recall=recall, watch=watch)

    def incident(self, agent: ToolCallingAgent) -> Run:
        """The shop is broken, and the agent is called."""
        self.shop.clear()
        self.shop.fault("errors")
        return handle_incident(self.memory, agent, self.shop, describe(self.shop.health()))

    # --- patterns ----------------------------------------------------------------------------------------------------

    def patterns(self) -> None:
        """A watch of a shop that is well and ill in turn; then the same counts from RAM and from the record."""
        chapter(
            "Health check patterns", "The shop has lost half of its database connections. A rule watches the agent."
        )
        self.shop.fault("flapping")
        agent = self.agent(watch=RULES)
        handle_incident(self.memory, agent, self.shop, WATCH.format(8))
        self.shop.restart()

        chapter("The same, counted", "By words in this agent's RAM; by tool, over every run that was ever recorded.")
        steps = [step for step in agent.memory.steps if isinstance(step, ActionStep)]
        checks = [step for step in steps if "health" in (step.observations or "").lower()]
        errors = sum(step.error is not None for step in steps)
        say(f"agent.memory.steps   {len(checks)} steps speak of a health check; {errors} steps with an error")
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
        """The same incident twice; the second agent is another object that was only reminded."""
        runs = []
        for title in ("An incident, for the first time", "The same incident, another day, a new agent"):
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
        """What an agent does that knows nothing."""
        chapter("Injection: an agent without history")
        return self.incident(self.agent())

    def appended(self) -> Run:
        """The documented way: steps appended to the list; `run()` empties the list before it begins."""
        chapter("Injection: steps appended to agent.memory.steps", "run() drops them without a word.")
        agent = self.agent()
        agent.memory.steps.append(TaskStep(task="Previous monitoring session"))
        timing = Timing(time.time(), time.time())  # with timing=None, as often seen, get_full_steps() would fail
        agent.memory.steps.append(ActionStep(step_number=0, observations=KNOWN_ISSUE, timing=timing))
        return self.incident(agent)

    def injected(self) -> Run:
        """What stays: a session, a known issue, a baseline, and a window that closes by itself."""
        chapter("Injection: memory.inject", "It stands before each run, says where it is from, and can expire.")
        watch = handle_incident(self.memory, self.agent(), self.shop, WATCH.format(2))
        usual = self.shop.metrics()
        agent, over = self.agent(), datetime.now() + timedelta(seconds=3)
        self.memory.inject(agent, watch, title="previous session")
        self.memory.inject(agent, KNOWN_ISSUE, title="known issue")
        self.memory.inject(agent, f"p95 latency {usual['latency_p95_ms']} ms is usual", title="baseline")
        self.memory.inject(agent, "Deploys may restart the shop", title="maintenance window", expires=over)
        run = self.incident(agent)
        say(f"It had before its eyes: {titles(agent)}")
        time.sleep(max(0.0, (over - datetime.now()).total_seconds()))
        say("\nThe maintenance is over. The next task:", "dim")
        handle_incident(self.memory, agent, self.shop, WATCH.format(2))
        say(f"It had before its eyes: {titles(agent)}")
        return run

    # --- step by step ------------------------------------------------------------------------------------------------

    def step_by_step(self) -> None:
        """Another process watches the shop step by step; it is killed, and the run goes on in this one."""
        chapter("Step by step, in another process", "Each step is in the file before the next begins: seen from here.")
        before = self.checks_counted()
        command = [sys.executable, __file__, "--work", *sys.argv[1:], *self.where()]
        with subprocess.Popen(command) as child:  # noqa: S603  this program
            self.follow(child)
            child.send_signal(signal.SIGKILL)
        if newest(self.memory).status == "finished":
            raise Trouble("The watch was over before it could be killed. Try once more.")
        say(f"kill -9: process {child.pid} is gone, in the middle of the watch.", "bold red")

        chapter("Another process goes on with it", "memory.stepwise(agent), without a task")
        run = handle_incident(self.memory, self.agent(), self.shop)
        say(f"Run {run.id[:8]}: {run.step_count} steps, {run.status}; resumed after a kill.", "bold green")
        checks = sum("check_health" in step.tools for step in run.steps)
        say(f"Health checks in the run: {checks}. Counted by the shop itself: {self.checks_counted() - before}.")

    def where(self) -> list[str]:
        """How another process finds this shop and this memory."""
        return ["--folder", str(self.shop.folder), "--db", str(self.options.db)]

    def checks_counted(self) -> int:
        """Health checks in the shop's own log."""
        return self.shop.log(10_000).count("GET /health")

    def follow(self, child: subprocess.Popen[bytes]) -> None:
        """Shows the other process's steps as they appear in the file, until it has done a few."""
        began, shown, well = datetime.now().astimezone(), 0, 0
        while well < KILLED_AFTER:
            if child.poll() is not None:
                raise Trouble("The watch ended before it could be killed; what it said above tells why.")
            time.sleep(0.05)
            for step in self.memory.steps(kind="action", since=began)[::-1][shown:]:
                show_step(step.to_smolagents())
                shown, well = shown + 1, well + (step.error is None)

    def work(self) -> None:
        """What the other process does: one step, then it waits; nothing is shown."""
        for _ in steps_of(self.memory, self.agent(), WATCH.format(6)):
            time.sleep(INTERVAL)

    # --- replay and analysis -----------------------------------------------------------------------------------------

    def replay(self) -> None:
        """A run from the record, though its agent is gone."""
        chapter("Replay", "memory.replay(run): from the file; nothing is run, no agent is needed")
        self.watched().replay(console=console)
        say("In RAM, for an agent's last run: agent.replay(detailed=True) shows what its model was sent.", "dim")

    def watched(self) -> Run:
        """The watch of the shop that was well and ill in turn; if there was none yet, it is done now."""
        runs = self.memory.runs(text=WATCH.format(8))
        if not runs:
            self.patterns()
            runs = self.memory.runs(text=WATCH.format(8))
        return runs[0]

    def analysis(self) -> None:
        """Another agent reads the history, once whole and once within a budget."""
        chapter("Another agent reads the history", "memory.to_messages(run, tokens=…) fits it into a budget")
        run = self.watched()
        for tokens in (None, 600):
            history = run.to_messages(tokens=tokens)
            say(f"tokens={tokens}: {len(history)} messages, about {len(str(history)) // 4:,} tokens", "bold")
            say(f"  {self.analyst().run(f'Analyze this monitoring history: {history}')}")

    def analyst(self) -> ToolCallingAgent:
        """An agent without tools; not attached, so its reading is not remembered as something that happened."""
        model = self.model if self.options.llm_url else ScriptedAnalyst()
        return ToolCallingAgent(tools=[], model=model, max_steps=4, verbosity_level=LogLevel.OFF)


def titles(agent: ToolCallingAgent) -> str:
    """What was injected and is there."""
    return ", ".join(step.title for step in agent.memory.steps if hasattr(step, "title"))


MODES = {
    "replay": [Demo.patterns, Demo.replay, Demo.analysis],
    "inject": [Demo.inject],
    "step_by_step": [Demo.step_by_step],
    "full": [Demo.patterns, Demo.decisions, Demo.inject, Demo.step_by_step, Demo.replay, Demo.analysis],
}


def tell(options: argparse.Namespace) -> None:
    """Runs what was asked for, on a shop of its own."""
    model = make_model(options.llm_url, options.model, options.api_key)
    folder = Path(tempfile.mkdtemp(prefix="smolmem-"))
    options.db, shop = options.db or folder / "agent.db", Shop(options.folder or folder / "shop")
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
    """Reads the command line."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_options(reader)
    reader.add_argument("--demo_mode", choices=MODES, default="full", help="what to show (default: %(default)s)")
    reader.add_argument("--folder", type=Path, help="where the shop lives (default: a new temporary folder)")
    reader.add_argument("--db", type=Path, help="the memory (default: a new file in such a folder)")
    reader.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = reader.parse_args()
    plainly(lambda: tell(options), ShopError, OSError)


if __name__ == "__main__":
    main()
