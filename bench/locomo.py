"""How much of the evidence recall finds: LoCoMo, turn by turn, through the front door.

    make locomo DATA=path/to/locomo        # the folder with locomo10.json; it is not part of this project

Each conversation is a scope of one store: its turns are put on an agent's list of steps, as history, at the time they
were said, and each question is asked with `memory.recall`. No judge and no language model: a hit is the turn that the
data names as evidence. The weights in `recall/search.py` were chosen on the first five conversations.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from unittest.mock import patch

from smolagents import CodeAgent, Model, TaskStep

from smolmem import Memory

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
DEPTH = 10


class Silent(Model):
    """Never asked anything."""


def conversations(path: Path) -> Iterator[tuple[str, list[list[tuple[str, str]]], list[float], list[dict]]]:
    """Each conversation: its name, sessions of (id, text), the time of each session, and its questions."""
    for sample in json.loads(path.read_text(encoding="utf-8")):
        talk, sessions, times = sample["conversation"], [], []
        for key in sorted((key for key in talk if re.fullmatch(r"session_\d+", key)), key=lambda key: int(key[8:])):
            said = talk[f"{key}_date_time"]
            times.append(datetime.strptime(said, "%I:%M %p on %d %B, %Y").timestamp())
            shared = (f" [shares {turn['blip_caption']}]" if turn.get("blip_caption") else "" for turn in talk[key])
            sessions.append(
                [
                    (turn["dia_id"], f"{turn['speaker']}: {turn['text']}{more}")
                    for turn, more in zip(talk[key], shared, strict=True)
                ]
            )
        known = {name for session in sessions for name, _ in session}
        questions = []
        for asked in sample["qa"]:
            cited = re.findall(r"D:?(\d+):0*(\d+)", " ".join(map(str, asked.get("evidence") or [])))
            gold = {f"D{session}:{turn}" for session, turn in cited} & known
            if gold:
                questions.append({"text": asked["question"], "gold": gold, "kind": CATEGORIES[asked["category"]]})
        yield sample["sample_id"], sessions, times, questions


def tell(memory: Memory, scope: str, sessions: list[list[tuple[str, str]]], times: list[float]) -> dict[int, str]:
    """Puts a conversation on an agent's list; returns which step is which turn."""
    agent = memory.attach(CodeAgent(tools=[], model=Silent()), scope=scope)
    names = []
    for session, at in zip(sessions, times, strict=True):
        with patch("time.time", lambda at=at: at):
            agent.memory.reset()
            agent.memory.steps += [TaskStep(task=text) for _, text in session]
        names += [name for name, _ in session]
    memory.detach(agent)
    steps = sorted(step.id for step in memory.steps(scope=scope, kind="task", limit=10_000))
    return dict(zip(steps, names, strict=True))


def main() -> None:
    """Prints recall at 5 and 10 for the conversations tuned on, those held back, and all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="the folder that holds locomo10.json")
    parser.add_argument("--embedder", default="local", choices=["local", "off"])
    parser.add_argument("--rerank", action="store_true")
    parser.add_argument("--store", type=Path, help="keep the store here, so that a second time needs no embedding")
    parser.add_argument("--every", type=int, default=1, help="ask only every n-th question")
    given = parser.parse_args()
    rows: list[tuple[int, str, float, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        memory = Memory(given.store or Path(folder) / "locomo.db", durability="normal", embedder=given.embedder)
        for number, (name, sessions, times, questions) in enumerate(conversations(given.data / "locomo10.json")):
            turns = _told(memory, name, sessions) or tell(memory, name, sessions, times)
            for asked in questions[:: given.every]:
                began = time.perf_counter()
                found = memory.recall(asked["text"], DEPTH, scope=name, rerank=given.rerank)
                took = time.perf_counter() - began
                hits = [turns[one.step] in asked["gold"] for one in found if one.step is not None]
                size = len(asked["gold"])
                rows.append((number, asked["kind"], sum(hits[:5]) / size, sum(hits) / size, took))
            print(f"{name}: {len(questions)} questions", file=sys.stderr)
        memory.close()
    print(f"{'':24}{'questions':>10}{'recall@5':>10}{'recall@10':>10}{'ms':>8}")
    groups = {
        "tuned on (0-4)": [row for row in rows if row[0] < 5],
        "held back (5-9)": [row for row in rows if row[0] >= 5],
        "all": rows,
    }
    for kind in CATEGORIES.values():
        groups[f"  {kind}"] = [row for row in rows if row[1] == kind]
    for title, of in groups.items():
        five, ten = (100 * sum(row[place] for row in of) / len(of) for place in (2, 3))
        middle = 1000 * sorted(row[4] for row in of)[len(of) // 2]
        print(f"{title:24}{len(of):>10}{five:>10.1f}{ten:>10.1f}{middle:>8.1f}")


def _told(memory: Memory, scope: str, sessions: list[list[tuple[str, str]]]) -> dict[int, str] | None:
    steps = sorted(step.id for step in memory.steps(scope=scope, kind="task", limit=10_000))
    names = [name for session in sessions for name, _ in session]
    return dict(zip(steps, names, strict=True)) if len(steps) == len(names) else None


if __name__ == "__main__":
    main()
