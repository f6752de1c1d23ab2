"""An agent's memory, one idea after the other: first as smolagents has it, then as smolmem keeps it.

    python simple_memory_example.py
    python simple_memory_example.py --llm_url http://localhost:11434/v1 --model llama3.2

Without --llm_url a script plays the model's part. It is no LLM, but it reads the conversation that it is sent: what is
put into that changes its answers.
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
from smolagents import ActionStep, CodeAgent, LogLevel, Model, TaskStep
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import TokenUsage
from terminal import Trouble, chapter, console, plainly, say

from smolmem import Memory, stepwise
from smolmem.policies import views

FIBONACCI = "What is the 20th Fibonacci number?"
NEXT = "And the Fibonacci number after that?"
OUTAGE = "How long was the system down yesterday?"
SUNDAY = "How long was the system down on Sunday?"
ADDING = "fib = [0, 1]\nfor _ in range(19):\n    fib.append(fib[-1] + fib[-2])"
HISTORY = "Historical data: System was down for 2 hours yesterday"


class ScriptedModel(Model):
    """Plays a model that can do very little, from the conversation alone."""

    def __init__(self) -> None:
        super().__init__(model_id="a script that reads the conversation; no LLM")

    def generate(self, messages: list[ChatMessage], **_: Any) -> ChatMessage:
        """Says what to do next, as a code agent's model does."""
        texts = [text_of(message) for message in messages if message.role != MessageRole.SYSTEM]
        start = max((place for place, text in enumerate(texts) if text.startswith("New task:")), default=0)
        thought, code = self.think(texts[start] if texts else "", "\n".join(texts), len(texts) - start)
        said = f"Thought: {thought}\n<code>\n{code}\n</code>"
        heard = sum(len(text_of(message)) for message in messages)
        return ChatMessage(MessageRole.ASSISTANT, said, token_usage=TokenUsage(heard // 4, len(said) // 4))

    def think(self, task: str, known: str, since: int) -> tuple[str, str]:
        """A thought and code; `since` tells how much was said since the task."""
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
    """The chapters, in order; each makes its own agents."""

    def __init__(self, model: Model, memory: Memory, file: Path, *, verbose: bool) -> None:
        self.model, self.memory, self.file, self.verbose = model, memory, file, verbose

    def agent(self, **options: Any) -> CodeAgent:
        """A plain smolagents agent."""
        level = LogLevel.DEBUG if self.verbose else LogLevel.OFF
        return CodeAgent(tools=[], model=self.model, max_steps=6, verbosity_level=level, **options)

    def access(self) -> None:
        """What is in `agent.memory`; attached, it is all there, and on disk as well."""
        chapter("1  Memory access", "agent.memory, as smolagents has it; attaching changes nothing about it")
        agent = self.memory.attach(self.agent())
        say(f"Answer: {agent.run(FIBONACCI)}", "green")
        if self.memory.runs()[0].status != "finished":
            raise Trouble(f"{self.model.model_id!r} did not solve this in {agent.max_steps} steps. Try a larger model.")
        say(f"System prompt: {len(agent.memory.system_prompt.system_prompt):,} characters")
        for step in agent.memory.steps:
            if isinstance(step, ActionStep):
                say(f"Step {step.step_number}: {one_line(step.observations)}")
            elif isinstance(step, TaskStep):
                say(f"Task: {step.task}")
        short, full = agent.memory.get_succinct_steps(), agent.memory.get_full_steps()
        say(f"get_succinct_steps()[1]: {len(str(short[1])):,} characters, without what the model was sent")
        say(f"get_full_steps()[1]:     {len(str(full[1])):,} characters, with it")

    def callbacks(self) -> None:
        """A timestamp by callback changes the step; by view, it changes what the model is shown."""
        chapter("2  Step callbacks", "A callback changes the memory itself; a view only what the model is shown")
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
        """Steps that are appended are gone when `run()` begins; what is injected stands."""
        chapter("3  Memory injection", f"Task: {OUTAGE}")
        agent = self.memory.attach(self.agent())
        agent.memory.steps.append(TaskStep(task="Previous monitoring session"))
        agent.memory.steps.append(ActionStep(step_number=0, observations=HISTORY, timing=None))
        say(f"appended to agent.memory.steps: {agent.run(OUTAGE)}", "yellow")
        say("  run() empties the list first, unless it is told reset=False.", "dim")
        agent = self.memory.attach(self.agent())
        self.memory.inject(agent, HISTORY, title="previous session", expires=timedelta(days=2))
        say(f"memory.inject(agent, …):        {agent.run(OUTAGE)}", "green")
        say(f"in the next run too:            {agent.run(OUTAGE)}", "green")

    def steps(self) -> None:
        """The loop that older texts show, with `agent.step`, fails today; this one is `run()` itself, in steps."""
        chapter("4  Step by step", "Read, change, stop or wait between two steps; with a store, go on another day")
        try:
            self.agent().step(ActionStep(step_number=1, observations_images=[]))
        except TypeError as error:
            say(f"The loop with agent.step(ActionStep(…)): {one_line(str(error))}", "yellow")
        for step in stepwise(self.agent(), FIBONACCI):  # needs no store
            say(f"stepwise: step {step.step_number}: {one_line(step.observations)}")
        for step in self.memory.stepwise(self.agent(), FIBONACCI):
            say(f"memory.stepwise: step {step.step_number}: {one_line(step.observations)}; then we stop")
            break
        say(f"It is recorded as {self.memory.runs()[0].status}. Another agent goes on: memory.resume(agent)", "dim")
        say(f"Answer: {self.memory.resume(self.agent())}", "green")

    def saving(self) -> None:
        """JSON keeps words; the file keeps the run, and gives it to another agent."""
        chapter("5  Save and load", "What a file gives back")
        agent = self.memory.attach(self.agent())
        agent.run(FIBONACCI)
        file = self.file.with_suffix(".json")
        file.write_text(json.dumps(agent.memory.get_full_steps(), default=str), encoding="utf-8")
        loaded = json.loads(file.read_text(encoding="utf-8"))
        say(f"json.load(…): a list of {type(loaded[1]).__name__}s; no steps, no variables, nothing to go on with")
        with Memory(self.file) as other:  # as another process would, on another day
            run = other.runs()[0]
            say(f"Memory(file).runs(): {run}")
            say(f"its steps, as smolagents made them: {run.steps[1].to_smolagents() == agent.memory.steps[1]}")
            heir = self.agent()
            say(f"memory.restore(a new agent, run): {other.restore(heir, run.id)}")
            say(f"{NEXT} {heir.run(NEXT, reset=False)}", "green")

    def messages(self) -> None:
        """A run as text that another agent can read."""
        chapter("6  Memory as messages", "For analysis by another agent")
        agent = self.memory.attach(self.agent())
        agent.run(FIBONACCI)
        everything = agent.write_memory_to_messages()
        run = self.memory.runs()[0]
        history = run.to_messages(tokens=500)
        say(f"write_memory_to_messages():          about {size(everything):,} tokens, system prompt included")
        say(f"memory.to_messages(run, tokens=500): about {size(history):,} tokens")
        say(f"Analysis: {self.agent().run(f'Analyze this history: {history}')}", "green")

    def recall(self) -> None:
        """Anything that was done or noted is found again; an agent can be reminded by itself."""
        chapter("7  Recall", "Over everything above, and what you note yourself")
        self.memory.remember("On Sunday the system was down for 20 minutes", kind="fact", tags=["outage"])
        for found in self.memory.recall(SUNDAY, 2):
            say(f"{found.score:.2f}  {found.kind} from {found.origin}: {one_line(found.text)}")
        say(f"{SUNDAY} {self.memory.attach(self.agent()).run(SUNDAY)}", "yellow")
        reminded = self.memory.attach(self.agent(), recall=1)
        say(f"The same with attach(agent, recall=1): {reminded.run(SUNDAY)}", "green")


def stamp(memory_step: ActionStep, agent: Any) -> None:
    """A step callback: puts the time before the observation, in the step itself."""
    if memory_step.observations:
        memory_step.observations = f"[{datetime.now():%H:%M:%S}] {memory_step.observations}"


def one_line(text: str | None) -> str:
    """A text in one short line."""
    line = " ".join((text or "nothing").split())
    return line if len(line) <= 90 else f"{line[:89]}…"


def size(messages: list[ChatMessage]) -> int:
    """Tokens, roughly."""
    return sum(len(text_of(message)) for message in messages) // 4


def tell(options: argparse.Namespace) -> None:
    """The tour."""
    given = options.llm_url
    model = server_model(given, options.model, options.api_key) if given else ScriptedModel()
    file = options.db or Path(tempfile.mkdtemp(prefix="smolmem-")) / "agent.db"
    say(f"Model: {model.model_id}. Memory: {file}", "dim")
    with Memory(file) as memory:
        tour = Tour(model, memory, file, verbose=options.verbose)
        chapters: list[Callable[[], None]] = [tour.access, tour.callbacks, tour.injection, tour.steps]
        for part in [*chapters, tour.saving, tour.messages, tour.recall]:
            part()
        chapter("Everything above is in one file")
        console.print(memory.verify())


def main() -> None:
    """Reads the command line."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_options(reader)
    reader.add_argument("--db", type=Path, help="the memory (default: a new temporary file)")
    options = reader.parse_args()
    plainly(lambda: tell(options))


if __name__ == "__main__":
    main()
