"""Recall's vector search with each index, as `Memory` uses it: built in, FAISS, Chroma, LanceDB, Qdrant and Milvus.

    python bench/vector_stores.py --rows 20000

Each index is filled from the same store through `ExternalIndex`, and asked what recall asks: the 300 nearest passages,
of all passages and with a filter that one passage in twenty passes. `recall` is the share of the true ten nearest.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from smolmem import Memory
from smolmem.recall.filters import Filter
from smolmem.recall.indexes.external_index import ExternalIndex
from smolmem.recall.semantic import SemanticSearch
from smolmem.recall.vectors import facts_of, numbers_of

SIZE, LISTED, TOP, QUESTIONS, EVERY = 384, 300, 10, 40, 20
KINDS = ("built in", "faiss", "chroma", "lancedb", "qdrant", "milvus")


class Given:
    """An embedder that knows the vectors of some questions, which are numbers."""

    model = "given"

    def __init__(self, vectors: Any) -> None:
        self._vectors = vectors

    def query(self, question: str) -> Any:
        """The vector of a question."""
        return self._vectors[int(question)]


def clustered(rows: int) -> Any:
    """Vectors in clusters, as those of texts are."""
    chance = np.random.default_rng(7)
    centres = chance.normal(size=(rows // 50 + 1, SIZE))
    made = centres[chance.integers(len(centres), size=rows + QUESTIONS)] + 0.7 * chance.normal(
        size=(rows + QUESTIONS, SIZE)
    )
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


def fill(memory: Memory, vectors: Any) -> None:
    """Writes passages and their vectors, without a model and without the words."""
    store, model = memory._journal.store, f"given/{SIZE}"

    def write() -> None:
        for number, vector in enumerate(vectors, 1):
            row = {
                "id": number,
                "document": number,
                "scope": "default",
                "session": "",
                "step": None,
                "note": None,
                "run": None,
            }
            row |= {"agent": None, "at": 0.0, "text": "", "role": "answer" if number % EVERY else "rare", "tool": None}
            row |= {"origin": "user", "trust": "high", "hash": b""}
            store.do("add_passage", row)
            store.do(
                "put_vector", {"passage": number, "model": model, "facts": facts_of(row), "numbers": numbers_of(vector)}
            )

    store.transact(write, sync=False)


def measure(search: SemanticSearch, truth: Any, filters: Filter) -> tuple[float, float]:
    """Milliseconds of a search (the median), and the share of the true nearest that it found."""
    search.nearest("0", LISTED, filters)
    spent, found = [], 0
    for question, expected in enumerate(truth):
        began = time.perf_counter()
        hits = search.nearest(str(question), LISTED, filters)
        spent.append(time.perf_counter() - began)
        found += len({passage for passage, *_ in hits} & set(expected))
    return 1000 * float(np.median(spent)), found / truth.size


def nearest(vectors: Any, questions: Any, allowed: Any) -> Any:
    scores = questions @ vectors.T
    scores[:, ~allowed] = -2
    return np.argsort(-scores, axis=1)[:, :TOP] + 1


def size_of(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--indexes", default=",".join(KINDS))
    given = parser.parse_args()
    made = clustered(given.rows)
    vectors, questions = made[: given.rows], made[given.rows :]
    rare = np.arange(1, given.rows + 1) % EVERY == 0
    truths = nearest(vectors, questions, np.ones(given.rows, bool)), nearest(vectors, questions, rare)
    table = Table(title=f"The {LISTED} nearest of {given.rows:,} × {SIZE}")
    for head in ("index", "fill s", "disk MB", "ms", "recall", f"ms, 1 in {EVERY}", f"recall, 1 in {EVERY}"):
        table.add_column(head)
    with tempfile.TemporaryDirectory() as name, Memory(Path(name) / "a.db", embedder="off") as memory:
        fill(memory, vectors)
        for kind in given.indexes.split(","):
            table.add_row(kind, *row_of(kind, memory, Path(name), questions, truths))
    console = Console()
    console.print(table)
    console.print(
        f"RAM of the whole process, at most: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:.0f} MB"
    )


def row_of(kind: str, memory: Memory, folder: Path, questions: Any, truths: Any) -> list[str]:
    """Fills and asks one index."""
    store, external = memory._journal.store, None
    began = time.perf_counter()
    if kind != "built in":
        external = ExternalIndex("faiss" if kind == "faiss" else f"{kind}://{folder / kind}", store)
        external.sync(store, [f"given/{SIZE}"])
    search = SemanticSearch(store, Given(questions), external)  # type: ignore[arg-type]
    search.nearest("0", 1, Filter(scope="default"))
    filled = time.perf_counter() - began
    cells = [f"{filled:.1f}", f"{size_of(folder / kind):.0f}" if (folder / kind).exists() else "0"]
    for truth, filters in zip(truths, (Filter(scope="default"), Filter(scope="default", kinds=("rare",))), strict=True):
        ms, share = measure(search, truth, filters)
        cells += [f"{ms:.1f}", f"{share:.3f}"]
    if external is not None:
        external.close()
    return cells


if __name__ == "__main__":
    main()
