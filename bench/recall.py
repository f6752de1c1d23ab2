"""How long a recall takes among many memories, and what search adds to writing a step.

    make bench-recall                        # 100,000 memories; about two minutes
    make bench-recall ARGS="--rows 10000"

Memories are sentences of made-up words, as frequent as words are; their vectors lie in clusters, off centre. The
question's own vector is made beforehand, so that the model's time is not in the figures; it is shown apart.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from itertools import cycle
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from smolagents import CodeAgent, Model
from smolagents.models import ChatMessage, MessageRole

from smolmem import Memory
from smolmem.core.rows import Passage
from smolmem.recall.embedders import installed, open_embedder
from smolmem.recall.vectors import facts_of, numbers_of
from smolmem.store.passage_rows import PassageOwner, add_passages

SIZE = 384
chance = random.Random(1)


def words(count: int) -> list[str]:
    """Made-up words."""
    made: set[str] = set()
    while len(made) < count:
        made.add("".join(chance.choice("bdfgklmnprstvz") + chance.choice("aeiou") for _ in range(chance.randint(1, 4))))
    return sorted(made, key=len)


VOCABULARY = words(20_000)


def sentence(length: int = 20) -> str:
    """Words, the short ones more often, as in any language."""
    return " ".join(VOCABULARY[min(int(chance.paretovariate(0.6)) - 1, len(VOCABULARY) - 1)] for _ in range(length))


def clustered(count: int, seed: int) -> np.ndarray:
    """Vectors as texts have them: in clusters, off centre."""
    dice = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(500, SIZE)) + 0.7
    made = centres[dice.integers(0, 500, count)] + dice.normal(size=(count, SIZE)) * 0.8
    return made / np.linalg.norm(made, axis=1, keepdims=True)


class Given:
    """Stands in the place of a model: gives vectors that were made before."""

    model = "given"

    def __init__(self, vectors: np.ndarray) -> None:
        self._vectors = cycle(vectors)

    def query(self, text: str) -> list[float]:
        """The next vector."""
        return next(self._vectors).tolist()

    def passages(self, texts: list[str]) -> list[list[float]]:
        """The next vectors."""
        return [self.query(text) for text in texts]


def fill(path: Path, rows: int) -> None:
    """A store with many memories, in runs of fifty."""
    vectors = clustered(rows, 2)
    with Memory(path, durability="normal", embedder="off") as memory:
        store = memory._store
        for start in range(0, rows, 1_000):
            with store._transaction(sync=False):
                for number in range(start, min(start + 1_000, rows)):
                    session = f"session{number // 50}"
                    about = {"session": session, "run": "r", "agent": "a", "at": float(number)}
                    place = PassageOwner(scope="default", step=number + 1, note=None, **about)
                    add_passages(store, place, [Passage("observation", "tool", sentence())])
                    facts = facts_of({**about, "role": "observation", "trust": "medium"})
                    row = {"passage": number + 1, "model": f"given/{SIZE}", "facts": facts}
                    store.do("put_vector", row | {"numbers": numbers_of(vectors[number])})


class Talkative(Model):
    """Prints a page at each step."""

    def __init__(self, pages: list[str]) -> None:
        super().__init__(model_id="scripted")
        self._pages = iter(pages)

    def generate(self, messages: list[ChatMessage], **_: object) -> ChatMessage:
        """The next page."""
        page = next(self._pages, None)
        code = "final_answer(1)" if page is None else f"print({page!r})"
        return ChatMessage(MessageRole.ASSISTANT, f"{sentence(12)}\n<code>\n{code}\n</code>")


def writing(path: Path, steps: int) -> tuple[float, float]:
    """CPU milliseconds of saving a step, and of reading it afterwards so that it can be found."""
    spent = {"write": 0.0, "read": 0.0}

    def timed(name: str, act):
        def call(*args, **kwargs):
            began = time.thread_time()
            try:
                return act(*args, **kwargs)
            finally:
                spent[name] += time.thread_time() - began

        return call

    with Memory(path, embedder="off") as memory:
        model = Talkative([sentence(140) for _ in range(steps)])
        agent = memory.attach(CodeAgent(tools=[], model=model, verbosity_level=0))
        (recorder,) = memory._recorders
        journal = memory._journal
        journal.save, journal.begin_call = timed("write", journal.save), timed("write", journal.begin_call)
        journal.end_call = timed("write", journal.end_call)
        recorder.on_run_end = lambda: None
        agent.run("Read the book", max_steps=steps + 1)
        timed("read", memory.index)()
    return 1_000 * spent["write"] / steps, 1_000 * spent["read"] / steps


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=200)
    given = parser.parse_args()
    table = Table("what", "figure", title=f"{given.rows:,} memories")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.db"
        fill(path, given.rows)
        began = time.perf_counter()
        memory = Memory(path, embedder=Given(clustered(given.questions + 1, 3)))
        memory.recall(sentence(8))
        table.add_row("opening the file and the first recall", f"{1_000 * (time.perf_counter() - began):.0f} ms")
        took = []
        for _ in range(given.questions):
            asked, began = sentence(8), time.perf_counter()
            memory.recall(asked)
            took.append(1_000 * (time.perf_counter() - began))
        late = sorted(took)[int(0.95 * len(took))]
        table.add_row("a recall, without the model", f"p50 {statistics.median(took):.1f} ms, p95 {late:.1f} ms")
        memory.close()
        embedder = open_embedder(None) if installed() else None
        if embedder is not None:
            embedder.query("warm")
            began = time.perf_counter()
            for _ in range(50):
                embedder.query("which step printed the traceback about the missing column?")
            table.add_row("the model, for a question", f"{20 * (time.perf_counter() - began):.1f} ms")
        write, read = writing(Path(folder) / "steps.db", 200)
        table.add_row("saving a step (CPU)", f"{write:.2f} ms")
        table.add_row("making it findable, in bulk after the run (CPU)", f"{read:.2f} ms")
    Console().print(table)


if __name__ == "__main__":
    main()
