"""How long a recall takes among more and more memories, and what search adds to writing a step.

    make bench-recall                               # 1,000, 10,000 and 100,000 memories; about four minutes
    make bench-recall ARGS="--rows 1000,10000"

Memories are notes: sentences of made-up words, as frequent as words are; their vectors lie in clusters, off centre. The
question's own vector is made beforehand, so that the model's time is not in the figures; it is shown apart. The same
questions are asked to a plain FTS5 table of the same texts.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import apsw
import numpy as np
from growth import VOCABULARY
from rich.console import Console
from rich.progress import track
from rich.table import Table
from smolagents import CodeAgent, Model
from smolagents.models import ChatMessage, MessageRole

from smolmem import Memory
from smolmem.recall.embedding.embedders import installed, open_embedder

SIZE = 384
chance = random.Random(1)


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


def fill(path: Path, first: int, rows: int) -> list[str]:
    """Adds memories until there are this many; returns their texts."""
    texts = [sentence() for _ in range(first, rows)]
    with Memory(path, durability="normal", embedder=Given(clustered(rows - first, first))) as memory:
        for text in track(texts, "remembering", console=Console(stderr=True), transient=True):
            memory.remember(text)
        memory.index()
    return texts


def asked(path: Path, questions: list[str]) -> dict[str, float]:
    """Milliseconds of opening the file with the first recall, and of the recalls after it."""
    began = time.perf_counter()
    with Memory(path, embedder=Given(clustered(len(questions) + 1, 3))) as memory:
        memory.recall(questions[0])
        opened = 1_000 * (time.perf_counter() - began)
        return {"open_ms": opened, **quantiles(memory.recall, questions)}


def quantiles(ask: Callable[[str], object], questions: list[str]) -> dict[str, float]:
    """The median and the 95th percentile of some questions in milliseconds."""
    took = []
    for question in questions:
        began = time.perf_counter()
        ask(question)
        took.append(1_000 * (time.perf_counter() - began))
    return {"p50_ms": statistics.median(took), "p95_ms": sorted(took)[int(0.95 * (len(took) - 1))]}


class Fts5:
    """SQLite's full text alone: an OR of the words, the ten best."""

    def __init__(self) -> None:
        self._file = apsw.Connection(":memory:")
        self._file.execute("CREATE VIRTUAL TABLE memories USING fts5 (text, tokenize = 'porter unicode61')")

    def add(self, texts: list[str]) -> None:
        """Adds texts."""
        with self._file:
            self._file.executemany("INSERT INTO memories (text) VALUES (?)", ((text,) for text in texts))

    def ask(self, question: str) -> list[str]:
        """The best texts."""
        match = " OR ".join(f'"{word}"' for word in question.split())
        query = "SELECT text FROM memories WHERE memories MATCH ? ORDER BY rank LIMIT 10"
        return [row[0] for row in self._file.execute(query, (match,))]


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


def writing(path: Path, steps: int) -> dict[str, float]:
    """CPU milliseconds of saving a step, and of reading it afterwards so that it can be found."""
    spent = {"write": 0.0, "read": 0.0}

    def timed(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
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
        recorder.on_run_end.clear()
        agent.run("Read the book", max_steps=steps + 1)
        timed("read", memory.index)()
    return {"save_ms": 1_000 * spent["write"] / steps, "index_ms": 1_000 * spent["read"] / steps}


def model_ms() -> float | None:
    """Milliseconds of the local model for a question; None if it is not installed."""
    embedder = open_embedder(None) if installed() else None
    if embedder is None:
        return None
    embedder.query("warm")
    began = time.perf_counter()
    for _ in range(50):
        embedder.query("which step printed the traceback about the missing column?")
    return 20 * (time.perf_counter() - began)


def measure(sizes: list[int], questions: int) -> dict[str, Any]:
    """All figures: by number of memories, and beside them."""
    by_rows, before, plain = dict[str, Any](), 0, Fts5()
    texts = [sentence(8) for _ in range(questions)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.db"
        for rows in sizes:
            plain.add(fill(path, before, rows))
            by_rows[str(rows)] = asked(path, texts) | {
                "fts5_p50_ms": quantiles(plain.ask, texts)["p50_ms"],
                "bytes": path.stat().st_size,
            }
            before = rows
        return {"by_rows": by_rows, "model_ms": model_ms(), **writing(Path(folder) / "steps.db", 200)}


def main() -> None:
    """Prints two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1000,10000,100000", help="how many memories, with commas: %(default)s")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    given = parser.parse_args()
    figures = measure(sorted({int(rows) for rows in given.rows.split(",")}), given.questions)
    table = Table("memories", "open and first recall", "recall p50", "p95", "plain FTS5 p50", "file")
    for rows, one in figures["by_rows"].items():
        times = (f"{one[key]:.1f} ms" for key in ("open_ms", "p50_ms", "p95_ms", "fts5_p50_ms"))
        table.add_row(f"{int(rows):,}", *times, f"{one['bytes'] / 1e6:.1f} MB")
    beside = Table("what", "figure")
    for label, key in (
        ("the model, for a question", "model_ms"),
        ("saving a step (CPU)", "save_ms"),
        ("making it findable, in bulk after the run (CPU)", "index_ms"),
    ):
        beside.add_row(label, "not installed" if figures[key] is None else f"{figures[key]:.2f} ms")
    Console().print(table, beside)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
