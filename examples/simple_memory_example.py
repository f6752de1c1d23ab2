"""A tour of agent memory, one topic at a time: first plain smolagents, then smolmem.

    python simple_memory_example.py
    python simple_memory_example.py --llm_url http://localhost:11434/v1 --model llama3.2

Without --llm_url, a script replaces the model. The script is not an LLM, but it reads the messages it is sent, so
memory changes its answers.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from llm import model_options, server_model
from scripted_operator import text_of
from smolagents import ActionStep, CodeAgent, Model, PlanningStep, TaskStep
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import TokenUsage
from terminal import ExampleError, chapter, console, run_program, say

from smolmem import Memory, stepwise, views

FIBONACCI = "What is the 20th Fibonacci number?"
NEXT = "And the Fibonacci number after that?"
OUTAGE = "How long was the system down yesterday?"
SUNDAY = "How long was the system down on Sunday?"
ADDING = "fib = [0, 1]\nfor _ in range(19):\n    fib.append(fib[-1] + fib[-2])"
PLAN = "1. Add up the numbers from the beginning.\n2. Give the twentieth as the answer.\n<end_plan>"
HISTORY = "Historical data: System was down for 2 hours yesterday"


class ScriptedModel(Model):
    """A minimal scripted model that decides from the messages alone."""

    def __init__(self) -> None:
        super().__init__(model_id="a script that reads the conversation; no LLM")

    def generate(self, messages: list[ChatMessage], **_: Any) -> ChatMessage:
        """Returns a thought and code, as a model of a code agent does."""
        texts = [text_of(message) for message in messages if message.role != MessageRole.SYSTEM]
        start = max((place for place, text in enumerate(texts) if text.startswith("New task:")), default=0)
        if texts and "plan" in texts[-1].lower() and "New task:" not in texts[-1]:
            return self.answer(PLAN, messages)
        thought, code = self.think(texts[start] if texts else "", "\n".join(texts), len(texts) - start)
        return self.answer(f"Thought: {thought}\n<code>\n{code}\n</code>", messages)

    def answer(self, said: str, messages: list[ChatMessage]) -> ChatMessage:
        """A message with its token usage."""
        heard = sum(len(text_of(message)) for message in messages)
        return ChatMessage(MessageRole.ASSISTANT, said, token_usage=TokenUsage(heard // 4, len(said) // 4))

    def think(self, task: str, known: str, since: int) -> tuple[str, str]:
        """A thought and code; `since` is the number of messages since the task."""
        if "Analyze" in task:
            steps, answer = task.count("Calling tools:"), re.search(r"(\d+)\s*$", task.strip())
            return "I count.", f"final_answer('{steps} steps, no error; it ended with {answer[1] if answer else '?'}')"
        if "after that" in task:
            return "The list is still there.", "fib.append(fib[-1] + fib[-2])\nfinal_answer(fib[-1])"
        if "Fibonacci" in task and since < 3:
            return "I add them up.", f"{ADDING}\nprint(fib[20])"
        if "Fibonacci" in task:
            return "There it is.", "final_answer(fib[20])"
        found = re.search(r"down for ([\w ]+)", known)
        return "What do I know?", f"final_answer('{found[1] if found else 'I know of no outage'}')"


class Tour:
    """The chapters, in order; each creates its own agents."""

    def __init__(self, model: Model, memory: Memory, file: Path, *, verbosity_level: int) -> None:
        self.model, self.memory, self.file, self.verbosity_level = model, memory, file, verbosity_level

    def agent(self, **options: Any) -> CodeAgent:
        """A plain smolagents agent."""
        return CodeAgent(tools=[], model=self.model, max_steps=6, verbosity_level=self.verbosity_level, **options)

    def access(self) -> None:
        """Reads `agent.memory`; an attached agent has the same memory, and it is also on disk."""
        chapter("1  Memory access", "agent.memory works as in plain smolagents; attaching does not change it")
        agent = self.memory.attach(self.agent())
        say(f"Answer: {agent.run(FIBONACCI)}", "green")
        if self.memory.runs()[0].status != "finished":
            raise ExampleError(f"{self.model.model_id!r} needed more than {agent.max_steps} steps. Try a larger model.")
        say(f"System prompt: {len(agent.memory.system_prompt.system_prompt):,} characters")
        for step in agent.memory.steps:
            if isinstance(step, ActionStep):
                say(f"Step {step.step_number}: {one_line(step.observations)}")
            elif isinstance(step, TaskStep):
                say(f"Task: {step.task}")
        short, full = agent.memory.get_succinct_steps(), agent.memory.get_full_steps()
        say(f"get_succinct_steps()[1]: {len(str(short[1])):,} characters, without the prompt")
        say(f"get_full_steps()[1]:     {len(str(full[1])):,} characters, with the prompt")

    def callbacks(self) -> None:
        """A callback writes a timestamp into the step; a view adds the timestamp to the prompt only."""
        chapter("2  Step callbacks", "A callback changes the step; a view changes only the prompt")
        agent = self.memory.attach(self.agent(step_callbacks=[stamp]))
        agent.run(FIBONACCI)
        say(f"callback: the step is     {one_line(agent.memory.steps[1].observations)}")
        agent = self.memory.attach(self.agent(), views=[views.Timestamps("%H:%M:%S")])
        agent.run(FIBONACCI)
        say(f"view:     the step is     {one_line(agent.memory.steps[1].observations)}")
        shown = self.memory.preview(agent).messages
        seen = next((text_of(message) for message in shown if message.role == MessageRole.TOOL_RESPONSE), "")
        say(f"          the model reads {one_line(seen)}")

    def injection(self) -> None:
        """`run()` drops appended steps; injections stay."""
        chapter("3  Memory injection", f"Task: {OUTAGE}")
        agent = self.memory.attach(self.agent())
        agent.memory.steps.append(TaskStep(task="Previous monitoring session"))
        agent.memory.steps.append(ActionStep(step_number=0, observations=HISTORY, timing=None))
        say(f"appended to agent.memory.steps: {agent.run(OUTAGE)}", "yellow")
        say("  run() clears the list first, unless reset=False is given.", "dim")
        agent = self.memory.attach(self.agent())
        self.memory.inject(agent, HISTORY, title="previous session", expires=timedelta(days=2))
        say(f"memory.inject(agent, …):        {agent.run(OUTAGE)}", "green")
        say(f"in the next run too:            {agent.run(OUTAGE)}", "green")

    def steps(self) -> None:
        """The loop over `agent.step` in older documentation fails today; `stepwise` is `run()` itself, step by step."""
        chapter("4  Step by step", "Read, edit, stop or wait between two steps; with a store, resume on another day")
        try:
            self.agent().step(ActionStep(step_number=1, observations_images=[]))
        except TypeError as error:
            say(f"The loop with agent.step(ActionStep(…)): {one_line(str(error))}", "yellow")
        for step in stepwise(self.agent(), FIBONACCI):  # needs no store
            say(f"stepwise: step {step.step_number}: {one_line(step.observations)}")
        for step in self.memory.stepwise(self.agent(), FIBONACCI):
            say(f"memory.stepwise: step {step.step_number}: {one_line(step.observations)}; then stop")
            break
        say(
            f"The run is recorded as {self.memory.runs()[0].status}. Another agent resumes it: memory.resume(agent)",
            "dim",
        )
        say(f"Answer: {self.memory.resume(self.agent())}", "green")

    def saving(self) -> None:
        """JSON keeps only text; the memory file keeps the run, and another agent can continue it."""
        chapter("5  Save and load", "What can be loaded from a file")
        agent = self.memory.attach(self.agent())
        agent.run(FIBONACCI)
        file = self.file.with_suffix(".json")
        file.write_text(json.dumps(agent.memory.get_full_steps(), default=str), encoding="utf-8")
        loaded = json.loads(file.read_text(encoding="utf-8"))
        say(f"json.load(…): a list of {type(loaded[1]).__name__}s; no steps, no variables, nothing to resume")
        with Memory(self.file) as other:  # as another process would open the file
            run = other.runs()[0]
            say(f"Memory(file).runs(): {run}")
            say(f"its steps equal the original steps: {run.steps[1].to_smolagents() == agent.memory.steps[1]}")
            new_agent = self.agent()
            say(f"run.restore(new_agent): {run.restore(new_agent)}")
            say(f"{NEXT} {new_agent.run(NEXT, reset=False)}", "green")

    def messages(self) -> None:
        """A run as messages for another agent."""
        chapter("6  Memory as messages", "For analysis by another agent")
        agent = self.memory.attach(self.agent())
        agent.run(FIBONACCI)
        everything = agent.write_memory_to_messages()
        run = self.memory.runs()[0]
        history = run.to_messages(tokens=500)
        say(f"write_memory_to_messages(): about {size(everything):,} tokens, system prompt included")
        say(f"run.to_messages(tokens=500): about {size(history):,} tokens")
        say(f"Analysis: {self.agent().run(f'Analyze this history: {history}')}", "green")

    def recall(self) -> None:
        """Recall finds recorded steps and notes; an agent can be reminded automatically."""
        chapter("7  Recall", "Over all runs above and your own notes")
        self.memory.remember("On Sunday the system was down for 20 minutes", kind="fact", tags=["outage"])
        for found in self.memory.recall(SUNDAY, 2):
            say(f"{found.score:.2f}  {found.kind} from {found.origin}: {one_line(found.text)}")
        say(f"{SUNDAY} {self.memory.attach(self.agent()).run(SUNDAY)}", "yellow")
        reminded = self.memory.attach(self.agent(), recall=1)
        say(f"The same with attach(agent, recall=1): {reminded.run(SUNDAY)}", "green")

    def planning(self) -> None:
        """Plans are steps of their own; they are recorded as all others."""
        chapter("8  Plans", "PlanningStep: what an agent with planning_interval plans before it acts")
        agent = self.memory.attach(self.agent(planning_interval=10))
        agent.run(FIBONACCI)
        for step in agent.memory.steps:
            if isinstance(step, PlanningStep):
                say(f"PlanningStep: {one_line(text_of(step.model_output_message))}")
        recorded = self.memory.steps(run=self.memory.runs()[0], kind="planning")
        say(f"memory.steps(kind='planning'): {len(recorded)} recorded, {len(recorded[0].text)} characters")

    def copying(self) -> None:
        """The steps of one agent become the beginning of another agent's memory; both runs are recorded."""
        chapter("9  Memory of another agent", "agent.memory.steps = previous_agent.memory.steps")
        previous_agent = self.memory.attach(self.agent())
        self.memory.inject(previous_agent, HISTORY, title="previous session")
        previous_agent.run(OUTAGE)
        agent = self.memory.attach(self.agent())
        agent.memory.steps = previous_agent.memory.steps
        say(f"{OUTAGE} {agent.run(OUTAGE, reset=False)}", "green")
        say(f"{len(agent.memory.steps)} steps now, {len(previous_agent.memory.steps)} in the agent that they come from")


def stamp(memory_step: ActionStep, agent: Any) -> None:
    """A step callback that writes the time into the step, before the observation."""
    if memory_step.observations:
        memory_step.observations = f"[{datetime.now():%H:%M:%S}] {memory_step.observations}"


def one_line(text: str | None) -> str:
    """A text as one short line."""
    line = " ".join((text or "nothing").split())
    return line if len(line) <= 90 else f"{line[:89]}…"


def size(messages: list[ChatMessage]) -> int:
    """A rough count of tokens."""
    return sum(len(text_of(message)) for message in messages) // 4


def run_tour(options: argparse.Namespace) -> None:
    """Runs all chapters."""
    given = options.llm_url
    model = server_model(given, options.model, options.api_key) if given else ScriptedModel()
    file = options.db or Path(tempfile.mkdtemp(prefix="smolmem-")) / "agent.db"
    say(f"Model: {model.model_id}. Memory: {file}", "dim")
    with Memory(file) as memory:
        tour = Tour(model, memory, file, verbosity_level=options.verbosity_level)
        chapters: list[Callable[[], None]] = [tour.access, tour.callbacks, tour.injection, tour.steps]
        for part in [*chapters, tour.saving, tour.messages, tour.recall, tour.planning, tour.copying]:
            part()
        chapter("Verification of the file")
        console.print(memory.verify())


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_options(parser)
    parser.add_argument("--db", type=Path, help="the memory file (default: a new temporary file)")
    options = parser.parse_args()
    run_program(lambda: run_tour(options))


if __name__ == "__main__":
    main()
