"""How often recall finds the step that a question is about, beside plain full text, on chats and on agents' runs.

    make quality                    # the set that is part of this project: runs and notes of three users' agents
    make quality DATA=folder        # also the folders locomo, smolruns and whowhen, or some of them

Each data set is put on real agents' lists of steps and asked through `memory.recall`, in two ways: each conversation or
run in a scope of its own, and all of a set in one scope. No judge and no language model: a hit is the step that the
data names. Two baselines rank the same whole steps: FTS5 as SQLite has it (stemmed, an OR of the words), and BM25.

Then each set is asked questions of each other set, whose answers it cannot have: `floor` should keep them unanswered.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import secrets
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apsw
import apsw.fts5
from rich.console import Console
from rich.progress import track
from rich.table import Table
from smolagents import ActionStep, CodeAgent, Model, TaskStep
from smolagents.memory import PlanningStep, ToolCall
from smolagents.monitoring import Timing

from smolmem import Memory
from smolmem.recall.calibration import FLOOR
from smolmem.recall.embedding.embedders import open_embedder
from smolmem.recall.passages import passages_of
from smolmem.recall.query import words

DEPTH = 10
UNANSWERABLE = 100


class Silent(Model):
    """Never asked anything."""


@dataclass
class Talk:
    """A conversation or a run: sessions of (name, step), the time of each, and questions with the names they seek."""

    name: str
    sessions: list[list[tuple[Any, Any]]]
    questions: list[tuple[str, set[Any], str]]
    times: list[float | None] = field(default_factory=list)
    notes: dict[Any, str] = field(default_factory=dict)
    unanswerable: dict[str, list[str]] = field(default_factory=dict)
    """Questions about what never happened, by kind."""
    one_is_enough: bool = False
    """Whether each of the steps that a question seeks answers it."""
    is_held_back: bool = False
    """Whether no weight was chosen on any of its questions."""
    ids: dict[int | str, Any] = field(default_factory=dict)

    @property
    def texts(self) -> dict[Any, str]:
        """The words of all steps and notes, by name: what the baselines search."""
        steps = {key: text_of(step) for session in self.sessions for key, step in session}
        return steps | self.notes


# --- the data sets -------------------------------------------------------------------------------------------------


def locomo(folder: Path) -> Iterator[Talk]:
    """Ten long chats; a step is a turn."""
    for sample in json.loads((folder / "locomo10.json").read_text(encoding="utf-8")):
        talk, sessions, times = sample["conversation"], [], []
        for key in sorted((key for key in talk if re.fullmatch(r"session_\d+", key)), key=lambda key: int(key[8:])):
            times.append(datetime.strptime(talk[f"{key}_date_time"], "%I:%M %p on %d %B, %Y").timestamp())
            sessions.append([(turn["dia_id"], TaskStep(task=_said(turn))) for turn in talk[key]])
        known = {name for session in sessions for name, _ in session}
        questions = []
        for asked in sample["qa"]:
            cited = re.findall(r"D:?(\d+):0*(\d+)", " ".join(map(str, asked.get("evidence") or [])))
            gold = {f"D{session}:{turn}" for session, turn in cited} & known
            if gold:
                questions.append((asked["question"], gold, "chat"))
        yield Talk(sample["sample_id"], sessions, questions, times)


def _said(turn: dict[str, Any]) -> str:
    caption = f" [shares {turn['blip_caption']}]" if turn.get("blip_caption") else ""
    return f"{turn['speaker']}: {turn['text']}{caption}"


def smolruns(folder: Path) -> Iterator[Talk]:
    """Real smolagents runs; questions describe a step, or quote it."""
    for line in (folder / "traces.jsonl").read_text(encoding="utf-8").splitlines():
        trace = json.loads(line)
        runs: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
        for step in trace["steps"]:
            runs[step["run_id"]].append((step["seq"], _smol_step(step)))
        questions = [(asked["text"], {asked["gold"]}, asked["form"]) for asked in trace["questions"]]
        yield Talk(trace["trace"], list(runs.values()), questions)


def _smol_step(step: dict[str, Any]) -> Any:
    if step["kind"] == "TaskStep":
        return TaskStep(task=step.get("task") or "")
    if step["kind"] == "PlanningStep":
        plan = "\n".join(filter(None, [step.get("facts"), step.get("plan")]))
        return PlanningStep(model_input_messages=[], model_output_message=None, plan=plan, timing=Timing(0.0, 1.0))
    calls = [ToolCall(call["name"], call.get("arguments"), "call") for call in step.get("tool_calls") or ()]
    code = next((call.arguments for call in calls if call.name == "python_interpreter"), None)
    seen = "\n".join(str(text) for text in (step.get("observations"), step.get("error")) if text)
    return ActionStep(
        step_number=1,
        timing=Timing(0.0, 1.0),
        model_output=step.get("model_output"),
        code_action=code if isinstance(code, str) else None,
        tool_calls=calls or None,
        observations=seen or None,
        action_output=step.get("output"),
        is_final_answer=step["kind"] == "FinalAnswer",
    )


def whowhen(folder: Path) -> Iterator[Talk]:
    """Logs of several agents; a question describes the decisive mistake."""
    for line in (folder / "runs.jsonl").read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        steps: list[tuple[Any, Any]] = [(-1, TaskStep(task=run["task"]))]
        for number, said in enumerate(run["steps"]):
            seen = said["who"] in ("Computer_terminal", "WebSurfer", "FileSurfer")
            given = {"observations": said["text"]} if seen else {"model_output": said["text"]}
            steps.append((number, ActionStep(step_number=number + 1, timing=Timing(0.0, 1.0), **given)))
        kind = "long" if len(run["steps"]) > 15 else "short"
        yield Talk(run["run"], [steps], [(run["question"], {int(run["gold"])}, kind)])


def assistants(folder: Path) -> Iterator[Talk]:
    """Runs and notes of three users' agents, and questions as people and agents ask them."""
    for line in (folder / "users.jsonl").read_text(encoding="utf-8").splitlines():
        user = json.loads(line)
        sessions = [
            [(f"{run['name']}.{step['name']}", _smol_step(step)) for step in run["steps"]] for run in user["runs"]
        ]
        unanswerable: dict[str, list[str]] = defaultdict(list)
        for asked in user["unanswerable"]:
            unanswerable[asked["kind"]].append(asked["text"])
        yield Talk(
            user["user"],
            sessions,
            [(asked["text"], set(asked["gold"]), asked["kind"]) for asked in user["questions"]],
            [time.time() - days * 86_400 for days in range(40, 40 - len(sessions), -1)],
            {note["name"]: note["text"] for note in user["notes"]},
            unanswerable,
            one_is_enough=True,
            is_held_back=True,
        )


SETS: dict[str, Callable[[Path], Iterator[Talk]]] = {
    "assistants": assistants,
    "smolruns": smolruns,
    "whowhen": whowhen,
    "locomo": locomo,
}
OWN = Path(__file__).parent
"""Where the set is that is part of this project."""


def folder_of(name: str, data: Path | None) -> Path:
    """Where a data set is, if it is anywhere."""
    return (OWN if name == "assistants" or data is None else data) / name


# --- the contestants -----------------------------------------------------------------------------------------------


def text_of(step: Any) -> str:
    """All words of a step."""
    return "\n".join(passage.text for passage in passages_of(step))


class Fts5:
    """SQLite's full text over whole steps: an OR of the words, without stop words."""

    def __init__(self, steps: dict[Any, str]) -> None:
        self._names = list(steps)
        self._file = apsw.Connection(":memory:")
        self._file.execute("CREATE VIRTUAL TABLE steps USING fts5 (text, tokenize = 'porter unicode61')")
        self._file.executemany("INSERT INTO steps (rowid, text) VALUES (?, ?)", enumerate(steps.values()))

    def find(self, question: str) -> list[Any]:
        """The best steps."""
        match = " OR ".join(f'"{word}"' for word in words(question))
        found = self._file.execute("SELECT rowid FROM steps WHERE steps MATCH ? ORDER BY rank LIMIT ?", (match, DEPTH))
        return [self._names[row[0]] for row in found]


class Bm25:
    """BM25 over whole steps, stemmed, without stop words in the question."""

    def __init__(self, steps: dict[Any, str]) -> None:
        self._stem = apsw.Connection(":memory:").fts5_tokenizer("porter", ["unicode61"])
        self._names = list(steps)
        self._counts = [Counter(self._terms(text)) for text in steps.values()]
        self._lengths = [sum(counts.values()) for counts in self._counts]
        self._average = sum(self._lengths) / len(self._lengths)
        self._having = Counter(term for counts in self._counts for term in counts)

    def _terms(self, text: str) -> list[str]:
        return self._stem(
            text.encode(), apsw.FTS5_TOKENIZE_DOCUMENT, None, include_offsets=False, include_colocated=False
        )

    def find(self, question: str) -> list[Any]:
        """The best steps."""
        asked = dict.fromkeys(self._terms(" ".join(words(question))))
        size = len(self._names)
        rarity = {term: math.log(1 + (size - self._having[term] + 0.5) / (self._having[term] + 0.5)) for term in asked}
        scores = []
        for place, (counts, length) in enumerate(zip(self._counts, self._lengths, strict=True)):
            shared = asked.keys() & counts.keys()
            norm = 1.2 * (0.25 + 0.75 * length / self._average)
            score = sum(rarity[term] * counts[term] * 2.2 / (counts[term] + norm) for term in shared)
            scores.append((-score, place))
        return [self._names[place] for score, place in sorted(scores)[:DEPTH] if score]


class Remembering:
    """An embedder that embeds each stored text once: a set is asked in two ways, and baselines use the same model."""

    def __init__(self, embedder: Any) -> None:
        self._embedder = embedder
        self.model = embedder.model
        self._known: dict[str, Any] = {}

    def passages(self, texts: Sequence[str]) -> list[Any]:
        """The vectors of some stored texts."""
        return [self.passage(text) for text in texts]

    def passage(self, text: str) -> Any:
        """The vector of a stored text."""
        if text not in self._known:
            self._known[text] = self._embedder.passages([text])[0]
        return self._known[text]

    def query(self, text: str) -> Any:
        """The vector of a question."""
        return self._embedder.query(text)


class Nearest:
    """The steps whose vectors are nearest: what any vector database returns that compares exactly."""

    def __init__(self, steps: dict[Any, str], model: Remembering) -> None:
        import numpy as np

        self._names, self._model = list(steps), model
        self._vectors = np.array([model.passage(text) for text in steps.values()], np.float32)

    def find(self, question: str) -> list[Any]:
        """The best steps."""
        scores = self._vectors @ self._model.query(question)
        return [self._names[place] for place in (-scores).argsort()[:DEPTH]]


class Mem0:
    """mem0 without a language model: texts are stored as they are (`infer=False`), embedded by the same local model."""

    def __init__(self, steps: dict[Any, str], model: Remembering) -> None:
        os.environ |= {"MEM0_TELEMETRY": "False"}
        from mem0 import Memory as Mem0Memory

        self._folder = tempfile.TemporaryDirectory()
        unused = {"provider": "openai", "config": {"api_key": "none"}}
        size = len(model.query("size"))
        where = {"path": f"{self._folder.name}/qdrant", "embedding_model_dims": size, "on_disk": False}
        store = {"provider": "qdrant", "config": where}
        history = f"{self._folder.name}/history.db"
        config = {"llm": unused, "embedder": unused, "vector_store": store, "history_db_path": history}
        self._memory = Mem0Memory.from_config(config)
        self._memory.embedding_model = _Mem0Model(model)
        for place, text in enumerate(steps.values()):
            if text.strip():
                self._memory.add(text, user_id="all", metadata={"place": place}, infer=False)
        self._names = list(steps)

    def find(self, question: str) -> list[Any]:
        """The best steps."""
        found = self._memory.search(question, filters={"user_id": "all"}, top_k=DEPTH)["results"]
        return [self._names[one["metadata"]["place"]] for one in found]


class _Mem0Model:
    """The local model as mem0 calls it."""

    def __init__(self, model: Remembering) -> None:
        self._model = model

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        """The vector of a text."""
        vector = self._model.query(text) if memory_action == "search" else self._model.passage(text)
        return [float(number) for number in vector]

    def embed_batch(self, texts: list[str], memory_action: str | None = None) -> list[list[float]]:
        """The vectors of texts."""
        return [self.embed(text, memory_action) for text in texts]


def tell(memory: Memory, talk: Talk, scope: str) -> None:
    """Puts a talk on an agent's list."""
    agent = memory.attach(CodeAgent(tools=[], model=Silent(), verbosity_level=0), scope=scope)
    names: list[Any] = []
    seen = {step.id for step in memory.steps(scope=scope, limit=1_000_000)}
    for session, at in zip(talk.sessions, talk.times or [None] * len(talk.sessions), strict=True):
        moment = time.time() if at is None else at
        with patch("time.time", lambda moment=moment: moment):
            agent.memory.reset()
            agent.memory.steps += [step for _, step in session]
        names += [name for name, _ in session]
    memory.detach(agent)
    new = sorted(step.id for step in memory.steps(scope=scope, limit=1_000_000) if step.kind != "system_prompt")
    talk.ids = dict(zip([id for id in new if id not in seen], names, strict=True))
    talk.ids |= {memory.remember(text, scope=scope).id: name for name, text in talk.notes.items()}


# --- measuring -----------------------------------------------------------------------------------------------------

Hits = dict[str, list[tuple[float, float]]]


def rate(found: list[Any], gold: set[Any], enough: int) -> tuple[float, float]:
    """The share of the steps that a question asks for, among the first five and ten; so many are enough."""
    five, ten = (min(len(gold & set(found[:depth])), enough) / enough for depth in (5, DEPTH))
    return five, ten


def note(hits: Hits, is_held_back: bool, kind: str, rated: tuple[float, float]) -> None:
    """Counts a question for its half of the data and for its kind."""
    for group in ("all", "held back" if is_held_back else "tuned on", kind):
        hits[group].append(rated)


def main() -> None:
    """Prints one table for each set and way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?", help="the folder that holds other data sets")
    parser.add_argument("--set", choices=list(SETS), action="append", help="only this set")
    parser.add_argument("--embedder", action="append", help="only this one: off, local, or the name of a model")
    parser.add_argument("--every", type=int, default=1, help="ask only every n-th question")
    parser.add_argument("--most", type=int, help="only so many chats or runs of each set")
    parser.add_argument("--vectors-alone", action="store_true", help="also the nearest vectors alone, and mem0")
    parser.add_argument("--url", help="record on this PostgreSQL server, instead of in a file")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    given = parser.parse_args()
    there = {
        name: list(read(folder)) for name, read in SETS.items() if (folder := folder_of(name, given.data)).is_dir()
    }
    sets = {name: talks[: given.most] for name, talks in there.items() if name in (given.set or SETS)}
    if not sets:
        sys.exit(f"{given.data or 'This project'} has none of the folders {', '.join(given.set)}.")
    names = given.embedder or ["off", "local"]
    if given.vectors_alone and "local" not in names:
        parser.error("--vectors-alone needs the local model, too: leave --embedder out, or name local as well.")
    embedders = {name: None if name == "off" else Remembering(open_embedder(name)) for name in names}
    figures = dict[str, Any]()
    asked = {name: [question for talk in talks for question, *_ in talk.questions] for name, talks in there.items()}
    for name, talks in sets.items():
        foreign = {other: questions for other, questions in asked.items() if other != name}
        for alone in (True, False):
            bench = Bench(name, talks, given.every, alone=alone, url=given.url)
            bench.baselines()
            if given.vectors_alone:
                bench.vectors_alone(embedders["local"])
            bench.recall(embedders, foreign)
            figures |= bench.print()
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=1))


class Bench:
    """One set, asked in one way."""

    def __init__(self, name: str, talks: list[Talk], every: int, *, alone: bool, url: str | None = None) -> None:
        self._title = f"{name}, {'each in its own scope' if alone else 'all in one scope'}"
        self._talks, self._every, self._alone, self._url = talks, every, alone, url
        self._rows: dict[str, Hits] = {}
        self._milliseconds: dict[str, float] = {}
        self._lines: list[str] = []

    def _measure(self, find: Callable[[Talk, str], list[Any]]) -> Hits:
        """Asks all questions; `find` returns pairs of a talk's name and a step's name."""
        hits: Hits = defaultdict(list)
        for number, talk in enumerate(self._talks):
            for question, gold, kind in talk.questions[:: self._every]:
                sought = {(talk.name, key) for key in gold}
                rated = rate(find(talk, question), sought, 1 if talk.one_is_enough else len(gold))
                note(hits, talk.is_held_back or number % 2 == 1, kind, rated)
        return hits

    def baselines(self) -> None:
        """Plain full text and BM25 over whole steps."""
        self._baseline("FTS5 over whole steps", Fts5)
        self._baseline("BM25 over whole steps", Bm25)

    def vectors_alone(self, model: Remembering) -> None:
        """The nearest vectors of whole steps, and mem0; one that is not installed or fails is named."""
        for title, baseline in (("nearest vectors, exact", Nearest), ("mem0 without LLM", Mem0)):
            try:
                self._baseline(title, lambda steps, baseline=baseline: baseline(steps, model))
            except Exception as error:  # the others are measured nevertheless
                self._lines.append(f"{title}: not measured: {type(error).__name__}: {error}")

    def _baseline(self, title: str, baseline: Callable[[dict[Any, str]], Any]) -> None:
        texts = {talk.name: {(talk.name, key): text for key, text in talk.texts.items()} for talk in self._talks}
        everything = {key: text for steps in texts.values() for key, text in steps.items()}
        if self._alone:
            each = {name: baseline(steps) for name, steps in texts.items()}
            self._rows[title] = self._measure(lambda talk, question: each[talk.name].find(question))
        else:
            whole = baseline(everything)
            self._rows[title] = self._measure(lambda _, question: whole.find(question))

    def recall(self, embedders: dict[str, Any], foreign: dict[str, list[str]]) -> None:
        """The same questions through `memory.recall`, with and without a floor; then questions of other sets."""
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "quality.db")
            if self._url is not None:
                path = f"{self._url}{'&' if '?' in self._url else '?'}schema=quality_{secrets.token_hex(4)}"
            with Memory(path, durability="normal", embedder="off", redact=False) as memory:
                for talk in track(self._talks, "recording", console=Console(file=sys.stderr), transient=True):
                    tell(memory, talk, self._scope(talk))
            ids = {id: (talk.name, key) for talk in self._talks for id, key in talk.ids.items()}
            for name, embedder in embedders.items():
                by = "words" if embedder is None else name
                with Memory(path, durability="normal", embedder=embedder or "off") as memory:
                    memory.index(progress=sys.stderr.isatty())
                    self._ask(memory, by, ids)
                    self._ask_unanswerable(memory, by)
                    for other, questions in foreign.items():
                        self._ask_others(memory, by, other, questions)

    def _scope(self, talk: Talk) -> str:
        return talk.name if self._alone else "all"

    def _ask(self, memory: Memory, by: str, ids: dict[int, Any]) -> None:
        def find(talk: Talk, question: str, floor: float) -> list[Any]:
            found = memory.recall(question, DEPTH, scope=self._scope(talk), floor=floor)
            return [ids[one.note or one.step] for one in found]

        for title, floor in ((f"smolmem, {by}", 0.0), (f"smolmem, {by}, floor", FLOOR)):
            began = time.perf_counter()
            hits = self._measure(lambda talk, question, floor=floor: find(talk, question, floor))
            self._milliseconds[title] = 1000 * (time.perf_counter() - began) / len(hits["all"])
            self._rows[title] = hits

    def _ask_unanswerable(self, memory: Memory, by: str) -> None:
        answered: dict[str, list[bool]] = defaultdict(list)
        for talk in self._talks:
            for kind, questions in talk.unanswerable.items():
                answered[kind] += (bool(memory.recall(one, DEPTH, scope=self._scope(talk))) for one in questions)
        for kind, each in answered.items():
            share = 100 * sum(each) / len(each)
            self._lines.append(
                f"of {len(each)} questions that nothing answers ({kind}), answered by {by}: {share:.1f} %"
            )

    def _ask_others(self, memory: Memory, by: str, other: str, questions: list[str]) -> None:
        sample = random.Random(0).sample(questions, min(UNANSWERABLE, len(questions)))
        scopes = [self._scope(talk) for talk in self._talks]
        answered = sum(
            bool(memory.recall(question, DEPTH, scope=scopes[number % len(scopes)]))
            for number, question in enumerate(sample)
        )
        share = 100 * answered / len(sample)
        self._lines.append(f"of {len(sample)} questions of {other}, answered by {by}: {share:.1f} %")

    def print(self) -> dict[str, Any]:
        """Prints the table of the shares among the first five and ten, and returns its numbers."""
        groups = list(dict.fromkeys(group for hits in self._rows.values() for group in hits))
        table = Table("recall@5 / @10", *groups, title=self._title)
        for title, hits in self._rows.items():
            spent = f" ({self._milliseconds[title]:.0f} ms)" if title in self._milliseconds else ""
            table.add_row(
                title + spent, *(" / ".join(f"{one:.1f}" for one in _shares(hits[group])) for group in groups)
            )
        console = Console()
        console.print(table, *self._lines, sep="\n")
        ways = {title: {group: _shares(rated) for group, rated in hits.items()} for title, hits in self._rows.items()}
        questions = len(next(iter(self._rows.values()))["all"])
        counts = {group: len(rated) for group, rated in next(iter(self._rows.values())).items()}
        about = {"questions": questions, "counts": counts, "milliseconds": self._milliseconds, "lines": self._lines}
        return {self._title: {"ways": ways, **about}}


def _shares(rated: list[tuple[float, float]]) -> list[float]:
    return [100 * sum(part) / len(part) for part in zip(*rated, strict=True)]


if __name__ == "__main__":
    main()
