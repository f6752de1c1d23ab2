"""The ten nearest of many vectors: smolmem's index beside vector databases and libraries, side by side in one run.

Every engine stores the same vectors in files and answers the same questions, each in a process of its own. They take
turns, a few questions each, so that whatever else the machine does hits all of them alike. What counts as right is
what a float32 product with every row says. The questions are asked among all rows, and among one row in ten.
"""
# ruff: noqa: D102 - what an engine's methods do is said once, in `Engine`

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

TOP = 10
SIZE = 384
QUERIES = 500
"""So many rows at the end of a file of vectors are asked for, and not stored."""
NOISE = 0.2
"""Length of what is added to a vector of length one when rows are repeated."""
EVERY = 10
"""One row in so many belongs to the scope that is searched by itself."""
TURN, WARM = 20, 5
"""Questions that count in a turn, and those before them, which do not."""
BATCH = 5_000

Array = Any  # a NumPy array
Found = list[int]


# --- the engines -----------------------------------------------------------------------------------------------------


class Engine(ABC):
    """Stores vectors in a folder and finds the nearest; a row is known by its place, `tenth` means its scope."""

    title = ""
    needs: tuple[str, ...] = ()
    """Modules that are imported before anything is timed; the first names the package."""
    note = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def build(self, rows: Array) -> None:
        """Stores all rows, and lets go of the files."""

    def finish(self, rows: Array) -> None:  # noqa: B027
        """What else is needed for this benchmark, and neither timed nor weighed."""

    @abstractmethod
    def open(self) -> None:
        """Opens the files."""

    @abstractmethod
    def ask(self, vector: Array, tenth: bool) -> Found:
        """The nearest, the nearest first."""

    @abstractmethod
    def add(self, row: int, vector: Array) -> None:
        """Adds one to the opened files, and returns when it is in them."""

    def kinds(self) -> dict[str, Callable[[Array], Found]]:
        """The questions that are timed."""
        return {"all": lambda vector: self.ask(vector, False), "tenth": lambda vector: self.ask(vector, True)}


class Smolmem(Engine):
    """A store of units and their vectors, filled and asked by the statements that `SemanticSearch` uses."""

    title = "smolmem"
    needs = ("smolmem", "smolmem.store.opening", "smolmem.recall.semantic", "smolmem.recall.search")
    note = "filtered: the index of a scope. Its file holds each row's unit and full text too"
    model = f"bench/{SIZE}"

    def build(self, rows: Array) -> None:
        """Every row in the scope 'all'; one in ten in a session of its own."""
        store = self._store()
        for start in range(0, len(rows), BATCH):
            self._put(store, "all", range(start, min(start + BATCH, len(rows))), rows)
        store.close()

    def finish(self, rows: Array) -> None:
        """A unit has one scope, so those of the small one are stored again."""
        store = self._store()
        some = range(0, len(rows), EVERY)
        for start in range(0, len(some), BATCH):
            self._put(store, "tenth", some[start : start + BATCH], rows)
        store.close()
        np.save(self.folder / "places.npy", np.concatenate([np.arange(len(rows)), np.arange(0, len(rows), EVERY)]))

    def _store(self) -> Any:
        from smolmem.store.opening import open_store

        return open_store(self.folder / "memory.db")

    def _put(self, store: Any, scope: str, places: range, rows: Array) -> list[int]:
        from smolmem.core.rows import Passage
        from smolmem.recall.vectors import facts_of, numbers_of
        from smolmem.store.passage_rows import add_passages

        common = {"scope": scope, "step": None, "note": None, "run": None, "agent": None, "at": time.time()}
        after = store.do("last_unit", {})
        with store._transaction(sync=False):
            for place in places:
                session = "tenth" if place % EVERY == 0 else "rest"
                add_passages(store, common | {"session": session}, [Passage("said", "agent", f"row {place}")])
            asked = {"scope": scope, "model": self.model, "id": after, "limit": len(places)}
            units = store.rows("unembedded", asked)
            for place, unit in zip(places, units, strict=True):
                row = {"unit": unit["id"], "model": self.model, "facts": facts_of(unit)}
                store.do("put_vector", row | {"numbers": numbers_of(rows[place])})
        return [unit["id"] for unit in units]

    def open(self) -> None:
        from smolmem.recall.vectors import Index, Where

        self.store = self._store()
        self.places = np.load(self.folder / "places.npy")
        self.indexes = {tenth: Index("tenth" if tenth else "all", self.model, SIZE) for tenth in (False, True)}
        self.session = Where({"session": ["tenth"]}, {}, None, None)

    def ask(self, vector: Array, tenth: bool, where: Any = None) -> Found:
        """As recall does it: takes in what is new, searches, looks whether what it found is still there."""
        from smolmem.store.passage_rows import json_list

        index = self.indexes[tenth]
        index.update(self.store)
        found = [unit for unit, _ in index.search(vector, TOP, where)]
        there = {row["id"] for row in self.store.rows("there", {"ids": json_list(found)})}
        return [self._place(unit) for unit in found if unit in there]

    def _place(self, unit: int) -> int:
        return int(self.places[unit - 1]) if unit <= len(self.places) else -1  # -1: what was added later

    def add(self, row: int, vector: Array) -> None:
        self._put(self.store, "all", range(row, row + 1), {row: vector})

    def kinds(self) -> dict[str, Callable[[Array], Found]]:
        """Also: a filter within one index, the search without the store, and all that recall does for a question."""
        from smolmem.recall.filters import Filter
        from smolmem.recall.semantic import SemanticSearch

        class Given:
            """An embedder to which a question is its vector."""

            model = "bench"

            def query(self, asked: Any) -> list[float]:
                return [float(number) for number in asked]

        whole, wanted = SemanticSearch(self.store, Given()), Filter(scope="all")  # type: ignore[arg-type]
        alone = self.indexes[False]
        return super().kinds() | {
            "session": lambda vector: self.ask(vector, False, self.session),
            "search alone": lambda vector: [self._place(unit) for unit, _ in alone.search(vector, TOP)],
            "Meaning": lambda vector: [self._place(unit) for unit, _ in whole.nearest(vector, TOP, wanted)],
        }


class Numpy(Engine):
    """A matrix in memory, multiplied."""

    title = "NumPy float32"
    needs = ("numpy",)
    note = "filtered: a second matrix of those rows alone"

    def build(self, rows: Array) -> None:
        np.save(self.folder / "rows.npy", rows)

    def open(self) -> None:
        self.rows = np.load(self.folder / "rows.npy")
        self.some = self.rows[::EVERY].copy()

    def ask(self, vector: Array, tenth: bool) -> Found:
        scores = (self.some if tenth else self.rows) @ vector
        near = np.argpartition(-scores, TOP)[:TOP]
        near = near[np.argsort(-scores[near])]
        return [int(place) * (EVERY if tenth else 1) for place in near]

    def add(self, row: int, vector: Array) -> None:
        np.save(self.folder / "rows.npy", np.concatenate([self.rows, vector[None]]))


class Faiss(Engine):
    """An index that is written to a file as a whole."""

    needs = ("faiss",)

    def build(self, rows: Array) -> None:
        import faiss

        index = self._empty()
        index.add(np.ascontiguousarray(rows))
        faiss.write_index(index, str(self.folder / "index.faiss"))

    @abstractmethod
    def _empty(self) -> Any: ...

    @abstractmethod
    def _options(self, **only: Any) -> Any: ...

    def open(self) -> None:
        import faiss

        self.index = faiss.read_index(str(self.folder / "index.faiss"))
        marks = np.packbits(np.arange(self.index.ntotal) % EVERY == 0, bitorder="little")
        self.options = {False: self._options(), True: self._options(sel=faiss.IDSelectorBitmap(marks))}

    def ask(self, vector: Array, tenth: bool) -> Found:
        _, found = self.index.search(vector[None], TOP, params=self.options[tenth])
        return [int(place) for place in found[0] if place >= 0]

    def add(self, row: int, vector: Array) -> None:
        import faiss

        self.index.add(vector[None])
        faiss.write_index(self.index, str(self.folder / "index.faiss"))


class FaissFlat(Faiss):
    """Every row is compared."""

    title = "FAISS flat"
    note = "IndexFlatIP; filtered: a bitmap"

    def _empty(self) -> Any:
        import faiss

        return faiss.IndexFlatIP(SIZE)

    def _options(self, **only: Any) -> Any:
        import faiss

        return faiss.SearchParameters(**only)


class FaissHnsw(Faiss):
    """A graph of neighbours."""

    title = "FAISS HNSW"
    note = "IndexHNSWFlat, M=32, efConstruction=100, efSearch=128; filtered: a bitmap"

    def _empty(self) -> Any:
        import faiss

        index = faiss.IndexHNSWFlat(SIZE, 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = 100
        return index

    def _options(self, **only: Any) -> Any:
        import faiss

        return faiss.SearchParametersHNSW(efSearch=128, **only)


class SqliteVec(Engine):
    """A virtual table of SQLite that compares every row."""

    title = "sqlite-vec"
    needs = ("sqlite_vec", "apsw")
    note = "vec0, float, L2 (the same order for vectors of length one); filtered: a partition key"

    def build(self, rows: Array) -> None:
        self.open()
        self.connection.execute(
            f"CREATE VIRTUAL TABLE rows USING vec0(id INTEGER PRIMARY KEY, scope TEXT PARTITION KEY, v FLOAT[{SIZE}])"
        )
        for start in range(0, len(rows), BATCH):
            batch = enumerate(rows[start : start + BATCH], start)
            with self.connection:
                self.connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", (self._row(*one) for one in batch))
        self.connection.close()

    @staticmethod
    def _row(place: int, vector: Array) -> tuple[int, str, bytes]:
        return place, "rest" if place % EVERY else "tenth", vector.tobytes()

    def open(self) -> None:
        import apsw
        import sqlite_vec

        self.connection = apsw.Connection(str(self.folder / "vec.db"))
        self.connection.set_busy_timeout(5_000)
        self.connection.enable_load_extension(True)
        self.connection.load_extension(sqlite_vec.loadable_path())
        self.connection.execute("PRAGMA journal_mode = WAL")

    def ask(self, vector: Array, tenth: bool) -> Found:
        only = "AND scope = 'tenth' " if tenth else ""
        query = f"SELECT id FROM rows WHERE v MATCH ? AND k = {TOP} {only}ORDER BY distance"
        return [place for (place,) in self.connection.execute(query, (vector.tobytes(),))]

    def add(self, row: int, vector: Array) -> None:
        self.connection.execute("INSERT INTO rows VALUES (?, ?, ?)", self._row(row, vector))


class Lance(Engine):
    """A columnar file, scanned."""

    title = "LanceDB flat"
    needs = ("lancedb", "pyarrow")
    note = "no vector index (no IVF), dot product; filtered: prefilter (a bitmap index on the scope made it slower)"

    def build(self, rows: Array) -> None:
        import pyarrow as pa

        types = [("id", pa.int64()), ("scope", pa.string()), ("vector", pa.list_(pa.float32(), SIZE))]
        batches = (self._rows(start, rows[start : start + BATCH]) for start in range(0, len(rows), BATCH))
        self._database().create_table("rows", data=batches, schema=pa.schema(types))

    @staticmethod
    def _rows(start: int, vectors: Array) -> Any:
        import pyarrow as pa

        places = range(start, start + len(vectors))
        scopes = ["rest" if place % EVERY else "tenth" for place in places]
        flat = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(vectors).ravel()), SIZE)
        columns = [pa.array(places, pa.int64()), pa.array(scopes), flat]
        return pa.RecordBatch.from_arrays(columns, ["id", "scope", "vector"])

    def _database(self) -> Any:
        import lancedb

        return lancedb.connect(str(self.folder))

    def open(self) -> None:
        self.table = self._database().open_table("rows")

    def ask(self, vector: Array, tenth: bool) -> Found:
        query = self.table.search(vector).distance_type("dot").select(["id", "_distance"]).limit(TOP)
        if tenth:
            query = query.where("scope = 'tenth'", prefilter=True)
        found: Found = query.to_arrow()["id"].to_pylist()
        return found

    def add(self, row: int, vector: Array) -> None:
        import pyarrow as pa

        self.table.add(pa.Table.from_batches([self._rows(row, vector[None])]))


class Chroma(Engine):
    """A database with a graph of neighbours."""

    title = "Chroma"
    needs = ("chromadb",)
    note = "PersistentClient, cosine, HNSW as it is set by default; filtered: metadata"

    def build(self, rows: Array) -> None:
        shape: Any = {"hnsw": {"space": "cosine"}}
        made = self._client().create_collection("rows", embedding_function=None, configuration=shape)
        for start in range(0, len(rows), BATCH):
            self._add(made, start, rows[start : start + BATCH])

    @staticmethod
    def _add(collection: Any, start: int, vectors: Array) -> None:
        places = range(start, start + len(vectors))
        scopes = [{"scope": "rest" if place % EVERY else "tenth"} for place in places]
        collection.add(ids=[str(place) for place in places], embeddings=vectors, metadatas=scopes)

    def _client(self) -> Any:
        import chromadb

        return chromadb.PersistentClient(self.folder, chromadb.Settings(anonymized_telemetry=False))

    def open(self) -> None:
        self.collection = self._client().get_collection("rows", embedding_function=None)

    def ask(self, vector: Array, tenth: bool) -> Found:
        where: Any = {"scope": "tenth"} if tenth else None
        found = self.collection.query(query_embeddings=vector[None], n_results=TOP, where=where, include=["distances"])
        return [int(place) for place in found["ids"][0]]

    def add(self, row: int, vector: Array) -> None:
        self._add(self.collection, row, vector[None])


ENGINES: dict[str, type[Engine]] = {
    "smolmem": Smolmem,
    "numpy": Numpy,
    "faiss": FaissFlat,
    "faiss-hnsw": FaissHnsw,
    "sqlite-vec": SqliteVec,
    "lancedb": Lance,
    "chroma": Chroma,
}


# --- a process for each, told what to do line by line ----------------------------------------------------------------


class Helper:
    """Another process with one engine in it."""

    def __init__(self, name: str, folder: Path) -> None:
        command = [sys.executable, __file__, "--helper", name, str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, task: str, **given: Any) -> Any:
        """What came of it; {"error": …} if it failed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"task": task, **given}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": "its process died"}

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


def help_out(name: str, folder: Path) -> None:
    """The other side of a `Helper`; what an engine prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for module in ENGINES[name].needs:
        importlib.import_module(module)
    engine, queries = ENGINES[name](folder / name), np.load(folder / "queries.npy")
    for line in sys.stdin:
        given = json.loads(line)
        try:
            answer = TASKS[given.pop("task")](engine, folder, queries, **given)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def build(engine: Engine, folder: Path, queries: Array) -> dict[str, Any]:
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    engine.folder.mkdir()
    began = time.perf_counter()
    engine.build(rows)
    spent = time.perf_counter() - began
    return {"build_s": spent}


def finish(engine: Engine, folder: Path, queries: Array) -> dict[str, Any]:
    engine.finish(np.load(folder / "rows.npy", mmap_mode="r"))
    return {}


def first(engine: Engine, folder: Path, queries: Array) -> dict[str, Any]:
    before, began = psutil.Process().memory_info().rss, time.perf_counter()
    engine.open()
    engine.ask(queries[0], False)
    spent = time.perf_counter() - began
    for query in queries[:20]:
        engine.ask(query, False)
    peak = peak_ram()
    return {
        "first_s": spent,
        "ram": psutil.Process().memory_info().rss - before,
        "ram_peak": None if peak is None else peak - before,
        "kinds": [*engine.kinds()],
    }


def peak_ram() -> int | None:
    """The most RAM that this process ever had; None where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), None)


def turn(engine: Engine, folder: Path, queries: Array, kind: str, start: int, stop: int) -> dict[str, Any]:
    ask = engine.__dict__.setdefault("asking", engine.kinds())[kind]
    for query in queries[start - WARM : start] if start else queries[-WARM:]:
        ask(query)
    answer: dict[str, list[Any]] = {"ms": [], "cpu_ms": [], "found": []}
    for query in queries[start:stop]:
        began, cpu = time.perf_counter(), time.process_time()
        answer["found"].append(ask(query))
        answer["ms"].append((time.perf_counter() - began) * 1000)
        answer["cpu_ms"].append((time.process_time() - cpu) * 1000)
    return answer


def add(engine: Engine, folder: Path, queries: Array, row: int) -> dict[str, Any]:
    began = time.perf_counter()
    engine.open()
    opened = time.perf_counter() - began
    engine.add(row, stranger())
    return {"open_s": opened, "add_s": time.perf_counter() - began - opened}


def look(engine: Engine, folder: Path, queries: Array, rows: int, again: bool) -> dict[str, Any]:
    """Whether the stranger is found: the only row that is no row of the first `rows`."""
    if again:
        engine.open()
    found = engine.ask(stranger(), False)
    return {"found": bool(found) and not 0 <= found[0] < rows}


def stranger() -> Array:
    """A vector unlike all others, which a second process adds."""
    vector = np.random.default_rng(4711).standard_normal(SIZE).astype(np.float32)
    return vector / np.linalg.norm(vector)


TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    task.__name__: task for task in (build, finish, first, turn, add, look)
}


# --- vectors ---------------------------------------------------------------------------------------------------------


def prepare(folder: Path, rows: int, file: Path | None) -> str:
    """Writes the rows and the queries into the folder; returns what they are."""
    if file is None:
        known, queries = np.split(synthetic(min(rows, 200_000) + QUERIES), [-QUERIES])
        says = (
            "synthetic vectors in clusters away from the centre. Random data flatters or hurts codes of bits, and "
            "graphs too: take real vectors (--vectors) before believing a recall"
        )
    else:
        every = np.load(file, mmap_mode="r")
        known, queries = every[: len(every) - QUERIES], every[-QUERIES:]
        says = f"vectors of {file.name}, {len(known):,} rows without the {QUERIES} that are asked for"
    written = np.lib.format.open_memmap(folder / "rows.npy", "w+", np.float32, (rows, SIZE))
    chance = np.random.default_rng(1)
    for start in range(0, rows, BATCH):
        places = np.arange(start, min(start + BATCH, rows))
        part = np.asarray(known[places % len(known)], np.float32)
        again = places >= len(known)
        part[again] += chance.standard_normal((int(again.sum()), SIZE), np.float32) * (NOISE / SIZE**0.5)
        written[places] = part / np.linalg.norm(part, axis=1, keepdims=True)
    if rows > len(known):
        says += f"; {rows:,} by repeating them with Gaussian noise of length {NOISE}"
    np.save(folder / "queries.npy", np.asarray(queries, np.float32) / np.linalg.norm(queries, axis=1, keepdims=True))
    return says


def synthetic(count: int) -> Array:
    """Clusters of clusters, with a few strong directions, and all on one side of the origin as embeddings are."""
    chance = np.random.default_rng(0)
    strength = 1 / np.sqrt(np.arange(1, SIZE + 1, dtype=np.float32))
    topics = chance.standard_normal((200, SIZE), np.float32)
    groups = topics[chance.integers(200, size=5_000)] + chance.standard_normal((5_000, SIZE), np.float32)
    made = groups[chance.integers(5_000, size=count)] + chance.standard_normal((count, SIZE), np.float32)
    turned = np.linalg.qr(chance.standard_normal((SIZE, SIZE), np.float32))[0]
    made = (made * strength) @ turned + 0.4 * chance.standard_normal(SIZE).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


class Truth:
    """What a float32 product with every row says."""

    def __init__(self, folder: Path, asked: int) -> None:
        self.rows = np.load(folder / "rows.npy", mmap_mode="r")
        self.queries = np.load(folder / "queries.npy")[:asked]
        best: dict[bool, list[Array]] = {False: [], True: []}
        for start in range(0, len(self.rows), 10 * BATCH):
            scores = self.queries @ self.rows[start : start + 10 * BATCH].T
            for tenth, some in ((False, scores), (True, scores[:, ::EVERY])):
                best[tenth].append(-np.partition(-some, min(TOP, some.shape[1]) - 1, axis=1)[:, :TOP])
        sorted_down = {kind: -np.sort(-np.concatenate(parts, axis=1), axis=1) for kind, parts in best.items()}
        self.tenth = {kind: scores[:, TOP - 1] for kind, scores in sorted_down.items()}

    def recall(self, found: list[Found], filtered: bool) -> float:
        """The part of the ten nearest that was found; a row as near as the tenth is as good as it."""
        right = 0
        for query, edge, places in zip(self.queries, self.tenth[filtered], found, strict=True):
            some = [place for place in {*places} if place >= 0 and not (filtered and place % EVERY)]
            right += min(TOP, int(np.count_nonzero(self.rows[some] @ query >= edge - 1e-6)) if some else 0)
        return right / (TOP * len(found))


# --- running ---------------------------------------------------------------------------------------------------------


def run(names: list[str], folder: Path, asked: int, bar: Progress) -> dict[str, dict[str, Any]]:
    truth = Truth(folder, asked)
    numbers: dict[str, dict[str, Any]] = {}
    row = bar.add_task("building", total=len(names))
    for name in names:
        bar.update(row, description=f"building {name}", refresh=True)
        numbers[name] = build_one(name, folder)
        bar.update(row, advance=1, refresh=True)
    helpers = {name: Helper(name, folder) for name in names if "error" not in numbers[name]}
    try:
        for name, helper in helpers.items():
            numbers[name] |= helper("first")
        take_turns(helpers, numbers, asked, bar)
        for name, helper in helpers.items():
            for kind in numbers[name].get("kinds", []):
                found = numbers[name]["found"].pop(kind)
                numbers[name]["recall"][kind] = truth.recall(found, kind in ("tenth", "session"))
            numbers[name]["second"] = second_process(name, helper, folder, len(truth.rows))
    finally:
        for helper in helpers.values():
            helper.__exit__()
    return numbers


def build_one(name: str, folder: Path) -> dict[str, Any]:
    with Helper(name, folder) as helper:
        made = helper("build")
    made["bytes"] = sum(file.stat().st_size for file in (folder / name).rglob("*") if file.is_file())
    with Helper(name, folder) as helper:
        return dict(made | helper("finish"))


def take_turns(helpers: dict[str, Helper], numbers: dict[str, dict[str, Any]], asked: int, bar: Progress) -> None:
    """A few questions of each kind to each engine, and round again."""
    for name in helpers:
        kinds = numbers[name].get("kinds", [])
        numbers[name] |= {key: {kind: [] for kind in kinds} for key in ("ms", "cpu_ms", "found")} | {"recall": {}}
    for start in bar.track(range(0, asked, TURN), description="asking"):
        for name, helper in helpers.items():
            for kind in numbers[name].get("kinds", []):
                answer = helper("turn", kind=kind, start=start, stop=min(start + TURN, asked))
                if "error" in answer:
                    raise RuntimeError(f"{name}: {answer['error']}")
                for key, values in answer.items():
                    numbers[name][key][kind] += values
        bar.refresh()


def second_process(name: str, helper: Helper, folder: Path, rows: int) -> dict[str, Any]:
    """What happens when another process adds a vector while the first has the files open."""
    with Helper(name, folder) as other:
        added = other("add", row=rows)
    seen = {"added": added, "then": helper("look", rows=rows, again=False)}
    seen["reopened"] = helper("look", rows=rows, again=True)
    with Helper(name, folder) as third:
        return seen | {"restarted": third("look", rows=rows, again=True)}


# --- telling ---------------------------------------------------------------------------------------------------------


def told(second: dict[str, Any]) -> str:
    """What a second process could do, in a word."""
    if "error" in second["added"]:
        return f"cannot add: {second['added']['error'][:60]}"
    if second["then"].get("found"):
        return "found at once"
    if "error" in second["then"]:
        return f"the first process fails: {second['then']['error'][:60]}"
    if second["reopened"].get("found"):
        return "not found until re-opened"
    return f"not found until {'restarted' if second['restarted'].get('found') else '?'}"


def quantile(numbers: dict[str, Any], kind: str, percent: int, key: str = "ms") -> float | None:
    spent = numbers.get(key, {}).get(kind)
    return float(np.percentile(spent, percent)) if spent else None


def cell(value: float | None, ours: float | None, show: Callable[[float], str]) -> str:
    """Times smolmem's, and the number itself."""
    if value is None:
        return "-"
    return f"{value / ours:,.2f}× ({show(value)})" if ours else show(value)


def ms(value: float) -> str:
    return f"{value:,.2f} ms"


def seconds(value: float) -> str:
    return f"{value:,.1f} s" if value >= 10 else f"{value * 1000:,.0f} ms"


def size(value: float) -> str:
    return f"{value / 1e6:,.1f} MB"


def speed_table(numbers: dict[str, dict[str, Any]], title: str) -> Table:
    table = Table(title=f"{title}; times smolmem's, the milliseconds in brackets")
    heads = ("p50", "p95", "CPU p50", "recall@10")
    for head in ("", *heads, *(f"1 in {EVERY}: {head}" for head in heads)):
        table.add_column(head, justify="right" if head else "left")
    ours = numbers.get("smolmem", {})
    for name, one in numbers.items():
        cells = []
        for kind in ("all", "tenth"):
            for part, key in ((50, "ms"), (95, "ms"), (50, "cpu_ms")):
                cells.append(cell(quantile(one, kind, part, key), quantile(ours, kind, part, key), ms))
            recall = one.get("recall", {}).get(kind)
            cells.append("-" if recall is None else f"{recall:.4f}")
        table.add_row(ENGINES[name].title, *cells)
    return table


def cost_table(numbers: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="What it takes; times smolmem's, the numbers in brackets")
    shown: list[tuple[str, str, Callable[[float], str]]] = [
        ("build", "build_s", seconds),
        ("on disk", "bytes", size),
        ("RAM", "ram", size),
        ("RAM, peak", "ram_peak", size),
        ("open to first answer", "first_s", seconds),
    ]
    for head in ("", *(head for head, _, _ in shown), "added by a second process"):
        table.add_column(head, justify="right" if head in {head for head, _, _ in shown} else "left")
    ours = numbers.get("smolmem", {})
    for name, one in numbers.items():
        cells = [cell(one.get(key), ours.get(key), show) for _, key, show in shown]
        table.add_row(ENGINES[name].title, *cells, told(one["second"]) if "second" in one else one.get("error", "-"))
    return table


def more_table(ours: dict[str, Any]) -> Table:
    """Other questions to smolmem."""
    table = Table(title="smolmem in detail")
    for head in ("", "p50", "p95", "CPU p50", "recall@10"):
        table.add_column(head, justify="right" if head else "left")
    says = {
        "all": "as recall does it: update, search, look whether it is there",
        "search alone": "  Index.search alone",
        "Meaning": "  SemanticSearch.nearest, without the model",
        "tenth": "in a scope of one row in ten",
        "session": "filtered within the index: one row in ten, by session",
    }
    for kind, label in says.items():
        parts = ((50, "ms"), (95, "ms"), (50, "cpu_ms"))
        cells = [cell(quantile(ours, kind, part, key), None, ms) for part, key in parts]
        table.add_row(label, *cells, f"{ours['recall'][kind]:.4f}")
    return table


def versions(names: list[str]) -> dict[str, str]:
    packages = {ENGINES[name].needs[0]: name for name in names}
    known = importlib.metadata.packages_distributions()
    return {package: importlib.metadata.version(known.get(package, [package])[0]) for package in packages}


def load() -> list[float]:
    return [round(one, 2) for one in psutil.getloadavg()]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The ten nearest of many vectors, side by side.")
    parser.add_argument("--rows", type=int, default=100_000, help="how many vectors are stored (at least 1,000)")
    parser.add_argument("--vectors", type=Path, help=f"a .npy file, {SIZE} numbers a row; the last {QUERIES} are asked")
    parser.add_argument("--engines", default=",".join(ENGINES), help="which, with commas: %(default)s")
    parser.add_argument("--queries", type=int, default=300, help=f"how many are asked (200 to {QUERIES})")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--helper", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.engines = given.engines.split(",")
    if unknown := {*given.engines} - {*ENGINES}:
        parser.error(f"no such engine: {', '.join(sorted(unknown))}")
    if given.rows < 1_000 or not 200 <= given.queries <= QUERIES:
        parser.error(f"--rows is at least 1,000, and --queries 200 to {QUERIES}")
    return given


def main() -> None:
    given = options()
    logging.disable(logging.INFO)
    if given.helper is not None:
        help_out(given.helper[0], Path(given.helper[1]))
        return
    console, before = Console(), load()
    with tempfile.TemporaryDirectory() as folder:
        what = prepare(Path(folder), given.rows, given.vectors)
        with Progress(console=console, auto_refresh=False, transient=True) as bar:
            numbers = run(given.engines, Path(folder), given.queries, bar)
    console.print(speed_table(numbers, f"The {TOP} nearest of {given.rows:,} × {SIZE}"))
    console.print(cost_table(numbers))
    if "all" in numbers.get("smolmem", {}).get("ms", {}):
        console.print(more_table(numbers["smolmem"]))
    console.print(f"Data: {what}.", highlight=False)
    for name in given.engines:
        console.print(f"{ENGINES[name].title}: {ENGINES[name].note}.", highlight=False)
    about = {"versions": versions(given.engines), "cores": os.cpu_count(), "load": [before, load()]}
    console.print(f"{about}", highlight=False)
    if given.json is not None:
        asked = {"rows": given.rows, "queries": given.queries, "data": what}
        given.json.write_text(json.dumps(asked | about | {"engines": numbers}, indent=1))


if __name__ == "__main__":
    main()
