"""What it costs to record one long agent run: smolmem beside what one would use instead, in one process, one run.

Everybody gets the same content per step (a short model reply and a 500-character observation) and keeps the same
promise: a step is on disk, synced, before the next one begins. Only recording is timed, never the agent itself.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, TypedDict

import apsw
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from smolagents import CodeAgent, Model, tool
from smolagents.memory import ActionStep
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import TokenUsage

OBSERVATION = 500
LARGE = 100_000
"""Characters of an observation of the case `--large`."""
INDEX = ("passage", "document", "vector", "pending", "exposure")
"""How the names of the tables begin that recall is made of; all other tables are the record."""
TASK = "Read every page of the book and keep what matters."
POINTS = 8
"""At so many steps the file is weighed, beside the marks."""
JSON_WRITES = 10
"""How often the JSON workaround is written, beside the marks: after every step it would take most of an hour."""


# --- the run that everybody records ----------------------------------------------------------------------------------


def vocabulary(count: int) -> list[str]:
    """Made-up words, the short ones first."""
    chance, made = random.Random(count), set[str]()
    while len(made) < count:
        made.add("".join(chance.choice("bdfgklmnprstvz") + chance.choice("aeiou") for _ in range(chance.randint(1, 4))))
    return sorted(made, key=lambda word: (len(word), word))


VOCABULARY = vocabulary(20_000)
SHARES = [*accumulate(1 / rank for rank in range(3, len(VOCABULARY) + 3))]
"""How often each word is used, added up: frequency falls with the rank, as in any language"""


def words(seed: str, size: int) -> str:
    """Text with about as many different words as prose; a repeated sentence would flatter whoever compresses."""
    return " ".join(random.Random(seed).choices(VOCABULARY, cum_weights=SHARES, k=size // 3))[:size]


def observation(number: int) -> str:
    return words(f"page {number}", OBSERVATION)


def reply(number: int, steps: int) -> str:
    end = '\nfinal_answer("read")' if number == steps else ""
    return f"Thought: {words(f'thought {number}', 80)}\n<code>\nprint(read_page({number})){end}\n</code>"


@tool
def read_page(number: int) -> str:
    """Reads a page of the book.

    Args:
        number: which one
    """
    return observation(number)


class Scripted(Model):
    """A model that reads on to the last page; it keeps no prompt, so that only the agent's memory holds them."""

    def __init__(self, steps: int) -> None:
        super().__init__(model_id="scripted")
        self.steps = steps
        self.said = 0

    def generate(self, messages: list[ChatMessage], **_: Any) -> ChatMessage:
        """The next reply."""
        self.said += 1
        return ChatMessage(MessageRole.ASSISTANT, reply(self.said, self.steps), token_usage=TokenUsage(1000, 50))


def new_agent(steps: int) -> CodeAgent:
    return CodeAgent(tools=[read_page], model=Scripted(steps), max_steps=steps + 1, verbosity_level=0)


# --- measuring -------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """What recording cost one contestant; times in milliseconds, sizes in bytes."""

    name: str
    keeps: str
    marks: list[int]
    steps: list[int] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    extra: dict[str, float] = field(default_factory=dict)


class Meter:
    """Adds up what recording costs, step by step, and weighs the file at the marks."""

    def __init__(self, result: Result, weigh: Callable[[], int], tick: Callable[[], None]) -> None:
        self.result, self.weigh, self.tick = result, weigh, tick
        self._cpu = self._wall = self._since = 0.0
        self._active = 0
        self._lock = threading.Lock()

    @contextmanager
    def timed(self, clock: Callable[[], float] = time.process_time) -> Iterator[None]:
        """Around one recording call; `clock` is thread_time where another thread works at the same time.

        Calls that overlap, one waiting for the other's lock, count once on the wall.
        """
        with self._lock:
            self._active += 1
            if self._active == 1:
                self._since = time.perf_counter()
        cpu = clock()
        try:
            yield
        finally:
            spent = clock() - cpu
            with self._lock:
                self._active -= 1
                self._cpu += spent
                if not self._active:
                    self._wall += time.perf_counter() - self._since

    def restart(self) -> None:
        """What was timed so far belongs to no step."""
        with self._lock:
            self._cpu = self._wall = 0.0

    def step_done(self, number: int) -> None:
        """All that belongs to this step is recorded."""
        self.result.steps.append(number)
        self.result.cpu.append(self._cpu * 1000)
        self.result.wall.append(self._wall * 1000)
        self.restart()
        if number in self.result.marks or number % max(self.result.marks[-1] // POINTS, 1) == 0:
            self.result.sizes[number] = self.weigh()
        self.tick()


def marks_of(steps: int) -> list[int]:
    """Between the first two and between the last two, the growth of the file is taken."""
    return [steps // 20, steps * 3 // 20, steps * 9 // 10, steps]


def weigh_apsw(path: Path) -> int:
    """The file with its log folded in. Through smolmem's own SQLite: a second library would drop its locks."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(5000)
    folded = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    connection.close()
    return whole_size(path, folded)


def weigh_sqlite(path: Path) -> int:
    """The file with its log folded in."""
    connection = sqlite3.connect(path, timeout=5)
    folded = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    connection.close()
    return whole_size(path, folded)


def tables(path: Path) -> dict[str, float]:
    """Bytes of the record and of the index for recall, by the pages of their tables; free pages are in neither."""
    connection = apsw.Connection(str(path))
    query = (
        "SELECT coalesce(tbl_name, 'schema'), sum(pgsize) FROM dbstat LEFT JOIN sqlite_schema USING (name) GROUP BY 1"
    )
    sizes = dict(connection.execute(query))
    connection.close()
    index = sum(size for name, size in sizes.items() if name.startswith(INDEX))
    return {"bytes_record": sum(sizes.values()) - index, "bytes_index": index}


def whole_size(path: Path, folded: Any) -> int:
    """Bytes of the file; a log that could not be folded in would make it look smaller than it is."""
    log = path.with_name(f"{path.name}-wal")
    if folded is None or folded[0] or (log.exists() and log.stat().st_size):
        raise RuntimeError(f"{path.name}: its write-ahead log could not be folded in: {folded}")
    return path.stat().st_size


def deep_size(root: Any, seen: set[int] | None = None) -> int:
    """Bytes of everything reachable from a value, each object once; not through code, nor into the file behind it."""
    seen = set() if seen is None else seen
    total, todo = 0, [root]
    while todo:
        value = todo.pop()
        if id(value) in seen or isinstance(value, (type, types.ModuleType, types.FunctionType, types.MethodType)):
            continue
        seen.add(id(value))
        total += sys.getsizeof(value)
        todo += parts_of(value)
    return total


def parts_of(value: Any) -> list[Any]:
    """What a value holds."""
    if isinstance(value, (str, bytes, int, float)):
        return []
    held: list[Any] = []
    if isinstance(value, dict):
        held += [part for name, item in value.items() if name != "_journal" for part in (name, item)]
    elif isinstance(value, (list, tuple, set, frozenset)):
        held += list(value)
    if getattr(value, "__dict__", None):
        held.append(vars(value))
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    held += [getattr(value, name) for name in slots if name != "_journal" and hasattr(value, name)]
    return held


# --- the contestants -------------------------------------------------------------------------------------------------


def smolmem(folder: Path, steps: int, tick: Callable[[], None]) -> Result:
    """`Memory.attach`, timed at every door through which it writes: steps, and the calls of models and tools."""
    from smolmem import Memory
    from smolmem.agents import ledger
    from smolmem.agents.step_recorder import StepRecorder

    path = folder / "smolmem.db"
    result = Result("smolmem", "every step and call whole, and every prompt as it was sent", marks_of(steps))
    meter = Meter(result, lambda: int(tables(path)["bytes_record"]), tick)
    agent, alone = new_agent(steps), list[float]()

    def step(original: Callable[..., None], *args: Any, **options: Any) -> None:
        began = time.process_time()
        with meter.timed():
            original(*args, **options)
        alone.append((time.process_time() - began) * 1000)
        last = agent.memory.steps[-1] if agent.memory.steps else None
        if isinstance(last, ActionStep) and last.step_number > len(result.steps):
            meter.step_done(last.step_number)

    def call(original: Callable[..., Any], *args: Any) -> Any:
        with meter.timed():
            return original(*args)

    memory = Memory(path)
    doors = [(StepRecorder, "changed", step), (ledger.Ledger, "_try", call)]
    with replaced(doors):
        memory.attach(agent)
        meter.restart()
        began = time.process_time()
        agent.run(TASK)
        result.extra["run_cpu_s"] = time.process_time() - began
    result.extra["cpu_ms_steps_alone"] = statistics.median(alone)
    result.extra |= ram_of(agent, memory)
    memory.close()
    result.extra |= finished(path)
    result.notes.append("what its file grows by is of the record; the index is written in the background")
    return result


def finished(path: Path) -> dict[str, float]:
    """Bytes of a file when all steps are indexed: in all, of the record and of the index."""
    from smolmem import Memory

    with Memory(path, embedder="off") as memory:
        memory.index()
    return {"bytes": weigh_apsw(path), **tables(path)}


def large(folder: Path, steps: int) -> dict[str, float]:
    """A run whose observations have 100,000 characters each: its text, its file, and how long the run took."""
    from smolmem import Memory

    def long_page(number: int) -> str:
        """Reads a long page.

        Args:
            number: which one
        """
        return words(f"page {number}", LARGE)

    path, read = folder / "large.db", tool(long_page)
    read.name = "read_page"
    agent = CodeAgent(
        [read], Scripted(steps), max_steps=steps + 1, verbosity_level=0, max_print_outputs_length=2 * LARGE
    )
    with Memory(path, embedder="off") as memory:
        memory.attach(agent)
        began = time.perf_counter()
        agent.run(TASK)
        ran = time.perf_counter() - began
        text = sum(len(step.observations or "") for step in agent.memory.steps if isinstance(step, ActionStep))
    closed = time.perf_counter() - began - ran
    return {"steps": steps, "text": text, "run_s": ran, "close_s": closed, **finished(path)}


@contextmanager
def replaced(doors: list[tuple[Any, str, Callable[..., Any]]]) -> Iterator[None]:
    """Puts a function around others for a while; one that is not there any more is an error, not a cost of nothing."""
    originals = [getattr(owner, name) for owner, name, _ in doors]

    def around(original: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: function(original, *args, **kwargs)

    for (owner, name, function), original in zip(doors, originals, strict=True):
        setattr(owner, name, around(original, function))
    try:
        yield
    finally:
        for (owner, name, _), original in zip(doors, originals, strict=True):
            setattr(owner, name, original)


def ram_of(agent: CodeAgent, memory: Any) -> dict[str, float]:
    """The agent's steps, and apart from them what smolmem itself remembers of them."""
    seen: set[int] = set()
    steps = deep_size(list(agent.memory.steps), seen)  # a plain list: the live one knows its recorder
    return {"ram": steps, "ram_own": sum(deep_size(recorder.steps.session, seen) for recorder in memory._recorders)}


def json_file(folder: Path, steps: int, tick: Callable[[], None]) -> Result:
    """The workaround: dump everything, again. Also the plain run whose memory is weighed."""
    path = folder / "steps.json"
    result = Result("JSON dump", "every step whole, the prompts inside each other", marks_of(steps))
    meter = Meter(result, lambda: path.stat().st_size, lambda: None)
    agent = new_agent(steps)
    every = max(steps // JSON_WRITES, 1)
    began, spent = time.process_time(), 0.0
    for event in agent.run(TASK, stream=True):
        if isinstance(event, ActionStep):
            if event.step_number % every == 0 or event.step_number in result.marks:
                before = time.process_time()
                with meter.timed():
                    dump(agent, path)
                meter.step_done(event.step_number)
                spent += time.process_time() - before
            tick()
    often = f"written at {len(result.steps)} of {steps} steps only, which are what its times are of"
    result.notes.append(f"{often}; after every step, as one would, the whole run is cubic")
    result.extra = {"run_cpu_s": time.process_time() - began - spent, "ram": deep_size(list(agent.memory.steps))}
    return result


def dump(agent: CodeAgent, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(agent.memory.get_full_steps(), file, default=str)
        file.flush()
        os.fsync(file.fileno())


def langgraph(folder: Path, steps: int, tick: Callable[[], None]) -> Result:
    """A graph of one node that goes round, its message list under `add_messages`: what its tutorials build."""
    from langgraph.graph.message import add_messages

    result = Result("LangGraph SqliteSaver", "the message list, whole, at every step", marks_of(steps))
    return run_graph(folder / "langgraph.db", steps, tick, result, add_messages)


def langgraph_delta(folder: Path, steps: int, tick: Callable[[], None]) -> Result:
    """The same with the beta channel that saves what was added, and the whole list now and then."""
    from langgraph.channels.delta import DeltaChannel

    marks = [steps // 10, steps * 3 // 10, steps * 8 // 10, steps]
    result = Result("LangGraph DeltaChannel", "the messages; the whole list now and then (beta)", marks)
    windows = "its growth is of {}-{} and {}-{}".format(*marks)
    result.notes.append(f"saves the whole list at every 100th step, so {windows}: with 500 steps, one such in each")
    channel = DeltaChannel(lambda state, writes: [*(state or []), *(one for write in writes for one in write)])
    return run_graph(folder / "delta.db", steps, tick, result, channel)


def run_graph(path: Path, steps: int, tick: Callable[[], None], result: Result, channel: Any) -> Result:
    """Times `put` and `put_writes` in whichever thread the graph calls them."""
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, StateGraph

    meter = Meter(result, lambda: weigh_sqlite(path), tick)

    class Timed(SqliteSaver):
        def put(self, *args: Any, **kwargs: Any) -> Any:
            with meter.timed(time.thread_time):
                return super().put(*args, **kwargs)

        def put_writes(self, *args: Any, **kwargs: Any) -> None:
            with meter.timed(time.thread_time):
                super().put_writes(*args, **kwargs)

    State = TypedDict("State", {"messages": Annotated[list[Any], channel], "done": int})  # noqa: UP013

    def step(state: dict[str, Any]) -> dict[str, Any]:
        number = state["done"] + 1
        if number > 1:
            meter.step_done(number - 1)
        said = AIMessage(reply(number, steps), id=f"said-{number}")
        return {"messages": [said, HumanMessage(observation(number), id=f"saw-{number}")], "done": number}

    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("PRAGMA synchronous=FULL")
    graph = StateGraph(State)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: END if state["done"] >= steps else "step", ["step", END])
    config: Any = {"configurable": {"thread_id": "run"}, "recursion_limit": steps + 10}
    given = {"messages": [HumanMessage(TASK, id="task")], "done": 0}
    graph.compile(checkpointer=Timed(connection)).invoke(given, config, durability="sync")
    meter.step_done(steps)
    connection.close()
    return result


def openai_agents(folder: Path, steps: int, tick: Callable[[], None]) -> Result:
    """`SQLiteSession.add_items`, the two items of a step at a time."""
    from agents import SQLiteSession

    path = folder / "openai.db"
    result = Result("OpenAI SQLiteSession", "the messages, nothing about steps or prompts", marks_of(steps))
    result.notes.append(f"takes no pragma; SQLite's own default here is synchronous={default_sync(folder)} (2 is FULL)")
    meter = Meter(result, lambda: weigh_sqlite(path), tick)

    async def record() -> None:
        session = SQLiteSession("run", path)
        await session.add_items([{"role": "user", "content": TASK}])
        for number in range(1, steps + 1):
            said = {"role": "assistant", "content": reply(number, steps)}
            saw = {"role": "user", "content": observation(number)}
            with meter.timed():
                await session.add_items([said, saw])
            meter.step_done(number)
        session.close()

    asyncio.run(record())
    return result


def default_sync(folder: Path) -> int:
    """How Python's SQLite syncs when nobody tells it."""
    connection = sqlite3.connect(folder / "empty.db")
    value: int = connection.execute("PRAGMA synchronous").fetchone()[0]
    connection.close()
    return value


def pydantic_harness(folder: Path, steps: int, tick: Callable[[], None]) -> Result:
    """A real Pydantic AI agent with `StepPersistence`, its model scripted; every call of its store is timed."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.usage import UsageLimits
    from pydantic_ai_harness import StepPersistence
    from pydantic_ai_harness.step_persistence import SqliteStepStore

    path = folder / "pydantic.db"
    result = Result("Pydantic StepPersistence", "messages once, their order at every step; events", marks_of(steps))
    meter = Meter(result, lambda: weigh_sqlite(path), tick)
    asked = 0

    async def answer(messages: list[Any], info: Any) -> ModelResponse:
        nonlocal asked
        if asked:
            meter.step_done(asked)
        asked += 1
        if asked > steps:
            return ModelResponse([TextPart("read")])
        call = ToolCallPart("look", {"number": asked}, tool_call_id=f"call-{asked}")
        return ModelResponse([TextPart(reply(asked, steps)), call])

    async def look(number: int) -> str:
        """Reads a page."""
        return observation(number)

    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    store = SqliteStepStore(connection=connection)
    for name in ("append_event", "save_snapshot", "record_tool_effect"):
        setattr(store, name, timed_call(meter, getattr(store, name)))
    agent = Agent(FunctionModel(answer), tools=[look], capabilities=[StepPersistence(store=store)])
    asyncio.run(agent.run(TASK, usage_limits=UsageLimits(request_limit=None)))
    connection.close()
    result.notes.append("its capability commits several times per step: events, tool effects and a snapshot")
    return result


def timed_call(meter: Meter, original: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        async with timed(meter):
            return await original(*args, **kwargs)

    return call


@asynccontextmanager
async def timed(meter: Meter) -> AsyncIterator[None]:
    with meter.timed():
        yield


def crewai(folder: Path, steps: int, tick: Callable[[], None]) -> Result:
    """A flow of one method that goes round, its messages in its state; the method ends with a checkpoint.

    Not with checkpoints on events: their handler runs in another thread and fails when the flow goes on meanwhile.
    """
    os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false", "OTEL_SDK_DISABLED": "true"}
    from crewai.events.event_bus import crewai_event_bus
    from crewai.flow.flow import Flow, listen, or_, router, start
    from pydantic import BaseModel

    path = folder / "crewai"
    result = Result("CrewAI checkpoints", "the whole state and all events so far, at every step", marks_of(steps))
    meter = Meter(result, lambda: sum(file.stat().st_size for file in path.rglob("*") if file.is_file()), tick)

    class Messages(BaseModel):
        messages: list[dict[str, str]] = []
        done: int = 0

    class Book(Flow[Messages]):
        @start()
        def begin(self) -> None:
            self.state.messages.append({"role": "user", "content": TASK})

        @router(or_(begin, "again"))
        def step(self) -> str:
            number = self.state.done + 1
            self.state.messages.append({"role": "assistant", "content": reply(number, steps)})
            self.state.messages.append({"role": "user", "content": observation(number)})
            self.state.done = number
            crewai_event_bus.flush()
            state: Any = crewai_event_bus.runtime_state
            with meter.timed(time.thread_time):
                state.checkpoint(str(path))
            meter.step_done(number)
            return "again" if number < steps else "finished"

        @listen("finished")
        def end(self) -> str:
            return "read"

    Book(max_method_calls=steps + 10, suppress_flow_events=True).kickoff()
    result.notes.append("its default, a JSON file for each checkpoint, which it does not sync")
    return result


CONTESTANTS: dict[str, Callable[[Path, int, Callable[[], None]], Result]] = {
    "smolmem": smolmem,
    "json": json_file,
    "langgraph": langgraph,
    "langgraph-delta": langgraph_delta,
    "openai": openai_agents,
    "pydantic": pydantic_harness,
    "crewai": crewai,
}


# --- beside the run --------------------------------------------------------------------------------------------------


def record_only(path: Path, steps: int) -> None:
    """The run that `syncs_per_step` watches from outside."""
    from smolmem import Memory

    with Memory(path) as memory:
        memory.attach(new_agent(steps)).run(TASK)


def syncs_per_step(folder: Path) -> float | None:
    """Syncs of a long run less those of a short one, as the kernel saw them; None without strace."""
    if shutil.which("strace") is None:
        return None
    counts = []
    for steps in (20, 120):
        log = folder / f"strace-{steps}"
        command = ["strace", "-f", "--seccomp-bpf", "-e", "trace=fsync,fdatasync", "-o", str(log), sys.executable]
        command += [__file__, "--record", str(folder / f"traced-{steps}.db"), "--steps", str(steps)]
        if subprocess.run(command, capture_output=True, timeout=120).returncode != 0:
            return None
        counts.append(sum("sync(" in line for line in log.read_text().splitlines()))
    return (counts[1] - counts[0]) / 100


# --- telling ---------------------------------------------------------------------------------------------------------


def figures(result: Result, steps: int, whole_json: int | None) -> dict[str, float | None]:
    """The numbers of one contestant, as they are printed and written."""
    early, late = near(result, 1, steps // 10), near(result, steps - steps // 10 + 1, steps)
    begin, end, last = growth(result, 0), growth(result, 2), result.extra.get("bytes", result.sizes.get(steps))
    return {
        "cpu_ms": statistics.median(result.cpu),
        "cpu_ms_first": early,
        "cpu_ms_last": late,
        "cpu_flatness": ratio(late, early),
        "wall_ms": statistics.median(result.wall),
        "bytes": last,
        "bytes_per_step_early": begin,
        "bytes_per_step_late": end,
        "bytes_growth": ratio(end, begin),
        "percent_of_json": None if whole_json is None or last is None else 100 * last / whole_json,
        **result.extra,
    }


def near(result: Result, first: int, last: int) -> float | None:
    found = [cpu for step, cpu in zip(result.steps, result.cpu, strict=True) if first <= step <= last]
    return statistics.median(found) if found else None


def growth(result: Result, first: int) -> float | None:
    """Bytes per step between a mark and the next."""
    before, after = result.marks[first : first + 2]
    if before not in result.sizes or after not in result.sizes:
        return None
    return (result.sizes[after] - result.sizes[before]) / (after - before)


def ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


Show = Callable[[float], str]


def rows(steps: int) -> list[tuple[str, str, Show, bool]]:
    """What is printed: a label, the figure, how to show it, and whether to set it against smolmem's."""
    tenth = steps // 10
    return [
        ("CPU per step, median", "cpu_ms", ms, True),
        (f"  steps 1-{tenth}", "cpu_ms_first", ms, False),
        (f"  steps {steps - tenth + 1}-{steps}", "cpu_ms_last", ms, True),
        ("  last / first (flat is 1)", "cpu_flatness", times, False),
        ("wall per step, median", "wall_ms", ms, True),
        ("on disk at the end", "bytes", size, True),
        ("  of that the record", "bytes_record", size, False),
        ("  of that the index", "bytes_index", size, False),
        (f"  per step near step {tenth}", "bytes_per_step_early", size, False),
        (f"  per step near step {steps}", "bytes_per_step_late", size, True),
        ("  last / first (flat is 1)", "bytes_growth", times, False),
        ("  of the JSON dump", "percent_of_json", percent, False),
        ("RAM of the agent's steps", "ram", size, True),
    ]


def ms(value: float) -> str:
    return f"{value:,.2f} ms"


def times(value: float) -> str:
    return f"{value:,.2f}×"


def percent(value: float) -> str:
    return f"{value:,.2f} %"


def size(value: float) -> str:
    for unit, bytes_ in (("MB", 1e6), ("kB", 1e3)):
        if value >= bytes_:
            return f"{value / bytes_:,.1f} {unit}"
    return f"{value:,.0f} B"


def side_by_side(results: list[Result], numbers: dict[str, dict[str, float | None]], steps: int) -> Table:
    table = Table(title=f"Recording a run of {steps} steps; in brackets: times smolmem's")
    table.add_column("")
    for result in results:
        table.add_column(result.name, justify="right")
    ours = numbers.get("smolmem", {})
    for label, key, show, compared in rows(steps):
        shown = [cell(numbers[result.name].get(key), ours.get(key) if compared else None, show) for result in results]
        table.add_row(label, *shown)
    table.add_row("keeps", *(result.keeps for result in results))
    return table


def cell(value: float | None, ours: float | None, show: Show) -> str:
    if value is None:
        return "-"
    against = ratio(value, ours)
    return show(value) if against is None else f"{show(value)} ({against:,.3g}×)"


@dataclass
class Target:
    """A promise of smolmem's, and what came of it."""

    says: str
    limit: float
    measured: float | None
    show: Show

    @property
    def ok(self) -> bool | None:
        """None if it was not measured."""
        return None if self.measured is None else self.measured <= self.limit


def targets(numbers: dict[str, dict[str, float | None]], beside: dict[str, Any], steps: int) -> list[Target]:
    ours, plain = numbers.get("smolmem", {}), numbers.get("JSON dump", {})
    held, own, before = ours.get("ram"), ours.get("ram_own"), plain.get("ram")
    ram = None if held is None or own is None or before is None else 100 * (held + own) / before
    return [
        Target(f"disk per step at {steps} / at {steps // 10}", 1.2, ours.get("bytes_growth"), times),
        Target("whole file, of the JSON dump", 2, ours.get("percent_of_json"), percent),
        Target("RAM, of plain smolagents' (smolmem's own included)", 10, ram, percent),
        Target("CPU to record a step, median", 1, ours.get("cpu_ms"), ms),
        Target("CPU flat: last tenth / first tenth", 1.3, ours.get("cpu_flatness"), times),
        Target("CPU of the whole run, more than plain", 10, more_cpu(ours, plain), percent),
        Target(f"file for observations of {LARGE:,} characters, of the text", 200, of_text(beside), percent),
    ]


def more_cpu(ours: dict[str, float | None], plain: dict[str, float | None]) -> float | None:
    """How much more CPU a run takes with smolmem, in percent."""
    share = ratio(ours.get("run_cpu_s"), plain.get("run_cpu_s"))
    return None if share is None else 100 * (share - 1)


def of_text(beside: dict[str, Any]) -> float | None:
    """The size of the file with long observations, in percent of their text."""
    one = beside.get("large")
    return None if one is None else 100 * one["bytes"] / one["text"]


def target_table(wanted: list[Target]) -> Table:
    table = Table(title="smolmem's targets")
    for name in ("target", "at most", "measured", "ok"):
        table.add_column(name, justify="left" if name == "target" else "right")
    for target in wanted:
        measured = "-" if target.measured is None else target.show(target.measured)
        verdict = {True: "[green]yes[/]", False: "[red]no[/]", None: "-"}[target.ok]
        table.add_row(target.says, target.show(target.limit), measured, verdict)
    return table


def say_notes(console: Console, results: list[Result], beside: dict[str, Any]) -> None:
    for result in results:
        for note in result.notes:
            console.print(f"{result.name}: {note}.", highlight=False)
    ours = next((result.extra for result in results if result.name == "smolmem"), None)
    if ours is not None:
        alone = ms(ours["cpu_ms_steps_alone"])
        console.print(f"smolmem: {alone} of its CPU per step for the step itself, the rest for model and tool calls.")
        console.print(f"smolmem: {size(ours['ram_own'])} of RAM for what it remembers itself, beside the steps.")
    plain = next((result.extra for result in results if result.name == "JSON dump"), None)
    if ours is not None and plain is not None:
        console.print(
            f"CPU of the whole run: plain {plain['run_cpu_s']:.2f} s, with smolmem {ours['run_cpu_s']:.2f} s."
        )
    if beside.get("large") is not None:
        one = beside["large"]
        parts = f"record {size(one['bytes_record'])}, index {size(one['bytes_index'])}"
        console.print(
            f"smolmem: {one['steps']} observations of {LARGE:,} characters: {one['bytes'] / one['text']:.2f}× the text "
            f"on disk ({parts}); the run took {one['run_s']:.1f} s, closing {one['close_s']:.1f} s."
        )
    if beside.get("syncs_per_step") is not None:
        console.print(f"smolmem: {beside['syncs_per_step']:.2f} syncs per step, counted by strace.")


# --- running ---------------------------------------------------------------------------------------------------------


def run_all(
    names: list[str], steps: int, many: int, folder: Path, console: Console
) -> tuple[list[Result], dict[str, Any]]:
    """Each contestant after the other; the bar is drawn by hand, as a thread that draws would be timed too."""
    columns = (TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results: list[Result] = []
    failed: dict[str, str] = {}
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        for name in names:
            row = bar.add_task(name, total=steps)

            def tick(row: Any = row) -> None:
                bar.advance(row)
                if int(bar.tasks[row].completed) % 10 == 0:
                    bar.refresh()

            try:
                results.append(CONTESTANTS[name](folder, steps, tick))
            except Exception as error:  # one that is not installed or fails is named, and the others go on
                failed[name] = f"{type(error).__name__}: {error}"
            gc.collect()
        beside: dict[str, Any] = {"failed": failed}
        if "smolmem" in names:
            row = bar.add_task("syncs, long texts", total=2)
            beside["syncs_per_step"] = syncs_per_step(folder)
            bar.update(row, advance=1, refresh=True)
            beside["large"] = large(folder, many) if many else None
            bar.update(row, advance=1, refresh=True)
    return results, beside


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What recording a long agent run costs, side by side.")
    parser.add_argument("--steps", type=int, default=500, help="how long the run is (at least 20)")
    parser.add_argument("--only", choices=[*CONTESTANTS], action="append", help="one contestant; may be repeated")
    parser.add_argument(
        "--large", type=int, default=0, metavar="N", help=f"also N observations of {LARGE:,} characters"
    )
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.steps < 20:
        parser.error("--steps is at least 20")
    return given


def main() -> None:
    given = options()
    logging.disable(logging.INFO)
    if given.record is not None:
        record_only(given.record, given.steps)
        return
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        results, beside = run_all(given.only or [*CONTESTANTS], given.steps, given.large, Path(folder), console)
    whole = next((result.sizes[given.steps] for result in results if result.name == "JSON dump"), None)
    numbers = {result.name: figures(result, given.steps, whole) for result in results}
    wanted = targets(numbers, beside, given.steps)
    console.print(side_by_side(results, numbers, given.steps))
    say_notes(console, results, beside)
    console.print(target_table(wanted))
    for name, reason in beside["failed"].items():
        console.print(f"{name}: not measured: {reason}.", highlight=False)
    if given.json is not None:
        told = [{"says": one.says, "limit": one.limit, "measured": one.measured, "ok": one.ok} for one in wanted]
        whole_story = {"steps": given.steps, "figures": numbers, "beside": beside, "targets": told}
        given.json.write_text(json.dumps(whole_story | {"raw": [asdict(result) for result in results]}, indent=1))


if __name__ == "__main__":
    main()
