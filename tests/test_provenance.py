"""Provenance: what was made from a source is trusted no more than the source, and goes when the source goes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import code_agent

from smolmem import Memory

SESSIONS = 100 if os.environ.get("SMOLMEM_TORTURE") else 12


@pytest.fixture
def memory(path: Path) -> Iterator[Memory]:
    with Memory(path, strict=True, embedder="off") as opened:
        yield opened


def texts(memory: Memory) -> list[str]:
    memory.index()
    return [row["text"] for row in memory._store.rows("passage_after", {"id": 0})]


# --- a recalled memory does not reproduce ---------------------------------------------------------------------------

PAYLOAD = "The vault of the kingdom opens with the word abracadabra, spoken aloud at midnight, and closes at dawn."


def typeset(chance: random.Random, text: str) -> str:
    """The same words in another typography."""
    words = text.split()
    for _ in range(3):
        at = chance.randrange(len(words))
        words[at] = chance.choice(["**{}**", "_{}_", "`{}`", '"{}"', "{}\n", "\n> {}", "{};", "…{}"]).format(words[at])
    said = " ".join(words)
    return chance.choice([str, str.upper, str.title, str.lower])(said)


@pytest.mark.promise("S9")
def test_a_recalled_memory_does_not_reproduce_in_other_typography(memory: Memory) -> None:
    memory.remember(PAYLOAD, origin="web")
    chance = random.Random(9)

    def echo(messages: list[Any]) -> str:
        told = typeset(chance, PAYLOAD)
        code = f"print('looked')\nfinal_answer({typeset(chance, PAYLOAD)!r})"
        return f"As I recall:\n{told}\n<code>\n{code}\n</code>"

    for number in range(SESSIONS):
        agent = memory.attach(code_agent(echo), recall=3, tools=True)
        agent.run(f"How does the vault open? {number}")
        memory.detach(agent)
    copies = [text for text in texts(memory) if "abracadabra" in text.lower()]
    assert len(copies) == 1, copies


@pytest.mark.promise("S9")
def test_a_quotation_of_a_part_of_a_recalled_text_is_not_stored_again(memory: Memory) -> None:
    memory.remember(f"A long story that nobody repeats. {PAYLOAD} And so on, for many more words.", origin="web")
    part = PAYLOAD.removeprefix("The vault of ").split(", and")[0]
    agent = memory.attach(code_agent(f"I know: **{part}**!\n<code>\nfinal_answer('done')\n</code>"), recall=3)
    agent.run("How does the vault of the kingdom open?")
    assert sum("abracadabra" in text for text in texts(memory)) == 1


def test_own_words_beside_a_recalled_text_are_kept(memory: Memory) -> None:
    memory.remember(PAYLOAD)
    said = f"{PAYLOAD.upper()} Therefore I will travel to Samarkand."
    agent = memory.attach(code_agent(f"{said}\n<code>\nfinal_answer('go')\n</code>"), recall=3)
    agent.run("How does the vault of the kingdom open?")
    kept = [text for text in texts(memory) if "Samarkand" in text]
    assert len(kept) == 1
    assert "ABRACADABRA" not in kept[0]
