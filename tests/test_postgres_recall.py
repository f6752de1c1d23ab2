"""Recall on PostgreSQL passes the suite of recall, and finds what SQLite finds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from conftest import TORTURE
from recalling import Recalling
from servers import schema_url

from smolmem import Memory
from smolmem.recall import lexical, query
from smolmem.store.passage_rows import scope_term
from smolmem.store.postgres.connection import Link


def some_of(suite: type, *names: str) -> type:
    """A suite with these of its tests alone."""
    kept = {name: value for name, value in vars(suite).items() if not name.startswith(("test_", "__")) or name in names}
    return type(suite.__name__, (), kept)


WRITING = some_of(
    Recalling,
    "test_a_step_is_found_the_moment_it_is_written",
    "test_a_revised_step_is_found_as_it_is_now",
    "test_vectors_are_made_once_and_shared",
    "test_nothing_beside_it_is_found_by_the_words_of_what_is_forgotten",
    "test_only_a_select_over_the_own_scope_is_run",
    "test_forgetting_a_source_forgets_all_that_came_of_it",
    "test_threads_share_one_index",
    "test_a_note_is_superseded_once",
)
"""Tests in which a serializable transaction could fail, or find something else, where another would not."""


class TestRecallOnPostgres(Recalling):
    every = 1 if TORTURE else 50

    @pytest.fixture
    def url(self, pg_url: str) -> str:
        return pg_url


@pytest.mark.sampled
class TestRecallOnSerializablePostgres15(Recalling if TORTURE else WRITING):  # type: ignore[misc,valid-type]
    """The whole suite under torture; the scores of this server are compared below."""

    every = 1 if TORTURE else 50

    @pytest.fixture
    def url(self, oldest_server: str) -> str:
        return schema_url(oldest_server)


TEXTS = [
    f"{first} {second} the {third} shop, where {first} was {second} {'again and again ' * (n % 4)}in checkHealth_{n}"
    for n, (first, second, third) in enumerate(
        (first, second, third)
        for first in ("garden", "deploy", "naïve", "café", "database")
        for second in ("running", "restarted", "failed", "is")
        for third in ("bicycle", "weather", "Ünïted")
    )
]
QUESTIONS = (
    "garden",
    "run",
    "cafe restart",
    "the united bicycle failing",
    "check health",
    "is the",
    "shop again 7",
    "x",
)


@pytest.mark.parametrize(
    ("limits", "which"),
    [
        ({}, "server"),
        ({"SMALL_SCOPE": 0, "MAX_MATCHES": 2}, "oldest_server"),
        ({"SMALL_SCOPE": 0, "MOST_MATCHES": 1}, "server"),
    ],
)
@pytest.mark.usefixtures("clock")  # the age of a memory is a part of its score
def test_recall_has_the_scores_of_sqlite(
    request: pytest.FixtureRequest, tmp_path: Path, limits: dict[str, int], which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same documents with the same scores, of words and of recall as a whole, in small scopes and in large ones."""
    for name, value in limits.items():
        monkeypatch.setattr(lexical, name, value)
    found: list[list[Any]] = []
    for url in (str(tmp_path / "agent.db"), schema_url(request.getfixturevalue(which))):
        with Memory(url, embedder="off") as memory:
            texts = {memory.remember(text).id: text for text in TEXTS}
            store = memory._store
            note_of = {row["id"]: row["note"] for row in store.rows("passage_after", {"id": 0})}
            told: list[Any] = []
            for question in QUESTIONS:
                for words in (query.words(question), [f"{question[:4]}*"] if question == "garden" else []):
                    asked = {"match": query.match(words, scope_term("default")), "limit": 100}
                    rows = store.rows("find_documents", asked) if words else []
                    hits = [(round(row["score"], 5), texts[note_of[row["id"]]]) for row in rows]
                    told.append(sorted(hits, key=lambda hit: (-hit[0], hit[1])))
            for question in (*QUESTIONS, *TEXTS[:5]):
                recalled = ((round(one.score, 4), one.text) for one in memory.recall(question, 100, floor=0))
                told.append(sorted(recalled, key=lambda hit: (-hit[0], hit[1])))
            found.append(told)
    assert any(found[0])
    assert found[0] == found[1]


def test_a_search_reads_the_documents_once_and_not_once_for_each_word(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server misjudges how many documents have a word; left to itself, it joined each document with each word."""
    sent, send = list[str](), Link.send

    def noted(link: Link, texts: list[str], *given: Any) -> Any:
        sent.extend(texts)
        return send(link, texts, *given)

    with Memory(pg_url, embedder="off") as memory:
        for text in TEXTS[:5]:
            memory.remember(text)
        monkeypatch.setattr(Link, "send", noted)
        assert memory.recall("which garden was running?")
        connection = memory._store._link.live()  # type: ignore[attr-defined]
        searches = [text for text in sent if "array_position" in text]
        for text in searches:
            plan = "\n".join(line for (line,) in connection.execute(f"EXPLAIN {text}").fetchall())
            assert re.search(r"CTE found\n.*\n(?:.*\n)*.*CTE Scan on found", plan), plan
        assert searches


def test_a_search_waits_seldom_for_the_server(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network each message takes its time; a long text is looked at sentence by sentence."""
    sent, send = list[int](), Link.send

    def counted(link: Link, texts: list[str], *given: Any) -> Any:
        sent.append(len(texts))
        return send(link, texts, *given)

    with Memory(pg_url, embedder="off") as memory, Memory(pg_url, embedder="off") as other:
        for text in TEXTS:
            memory.remember(text)
        memory.recall("garden")  # counts the documents, once
        monkeypatch.setattr(Link, "send", counted)
        assert memory.recall("which garden was running?")
        assert len(sent) <= 8
        sent.clear()
        assert memory.recall(
            "Anna wrote that the garden was running dry, and asked. " * 2 + "Which garden was running?"
        )
        assert len(sent) <= 10
        other.remember("the zeppelin has landed")
        assert memory.recall("has the zeppelin landed?")[0].text == "the zeppelin has landed"
