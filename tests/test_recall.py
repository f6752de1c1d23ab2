"""Recall on SQLite, and what is only there: files, models, old stores."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
from conftest import TORTURE
from recalling import Recalling, concepts
from scripted import code, code_agent
from smolagents.agents import populate_template
from smolagents.memory import TaskStep

from smolmem import Memory
from smolmem.core.errors import InvalidArgument
from smolmem.recall import indexer, sections
from smolmem.recall.excerpts import says_something
from smolmem.recall.filters import Filter
from smolmem.recall.highlight import Highlighter
from smolmem.recall.lexical import LexicalSearch
from smolmem.recall.passages import passages_of
from smolmem.recall.provenance import Provenance
from smolmem.recall.query import match
from smolmem.recall.search import Search
from smolmem.recall.vectors import CANDIDATES, Index, Where, facts_of, numbers_of
from smolmem.store.contents import with_hash
from smolmem.store.leases import Leases
from smolmem.store.terms import terms_of

SIZE = 384


class TestSqlite(Recalling):
    every = 1 if TORTURE else 4

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "agent.db")


# --- the index ------------------------------------------------------------------------------------------------------


class Rows:
    """A store that only holds vectors."""

    def __init__(self, vectors: Any, facts: list[dict[str, Any]]) -> None:
        self.all = [
            (number, number, facts_of(fact), numbers_of(vector))
            for number, (vector, fact) in enumerate(zip(vectors, facts, strict=True), 1)
        ]

    def columns(self, name: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        found = [row for row in self.all if row[0] > values["id"]]
        return list(zip(*found, strict=True))


def fact(**given: Any) -> dict[str, Any]:
    return {"session": "s", "run": "r", "agent": "a", "role": "task", "trust": "high", "at": 0.0} | given


def clustered(count: int, seed: int) -> Any:
    """Vectors that lie in clusters, off centre, as those of texts do."""
    chance = np.random.default_rng(seed)
    centres = chance.normal(size=(200, SIZE)) + 0.7
    made = centres[chance.integers(0, 200, count)] + chance.normal(size=(count, SIZE)) * 0.8
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


def test_the_index_finds_the_true_nearest() -> None:
    made = clustered(12_050, 1)
    vectors, asked = made[:12_000], made[12_000:]
    assert len(vectors) > 2 * CANDIDATES
    index = Index("s", "m", SIZE)
    index.update(Rows(vectors, [fact()] * len(vectors)))  # type: ignore[arg-type]
    found = [{unit for unit, _ in index.search(query, 10)} for query in asked]
    true = np.argsort(-(asked @ vectors.T), axis=1)[:, :10] + 1
    hits = sum(len(mine & set(theirs.tolist())) for mine, theirs in zip(found, true, strict=True))
    assert hits >= 0.99 * 500


def test_the_index_is_exact_under_filters() -> None:
    vectors = clustered(6_000, 3)
    facts = [fact(run=f"r{number % 7}", at=float(number)) for number in range(len(vectors))]
    index = Index("s", "m", SIZE)
    index.update(Rows(vectors, facts))  # type: ignore[arg-type]
    allowed = [number for number in range(6_000) if number % 7 == 3 and 1_000 <= number < 4_000]
    where = Where({"run": ["r3"], "agent": None}, {"role": []}, 1_000.0, 4_000.0)
    for query in clustered(20, 4):
        best = sorted(allowed, key=lambda number: -float(vectors[number] @ query))[:10]
        assert [unit - 1 for unit, _ in index.search(query, 10, where)] == best
    assert index.search(query, 5, Where({"run": ["nobody"]}, {}, None, None)) == []
    assert index.search(query, 5, Where({}, {"session": ["s"]}, None, None)) == []


def test_the_index_grows_and_lets_go() -> None:
    vectors = clustered(9_000, 5)
    rows = Rows(vectors, [fact()] * len(vectors))
    whole, index = rows.all, Index("s", "m", SIZE)
    for end in (1, 2, 50, 3_000, 9_000):
        rows.all = whole[:end]
        index.update(rows)  # type: ignore[arg-type]
        assert index.search(vectors[end - 1], 1)[0][0] == end
    index.drop({9_000, 1})
    assert index.search(vectors[8_999], 1)[0][0] != 9_000


def test_many_memories_get_their_vectors_in_batches(tmp_path: Path) -> None:
    asked: list[int] = []

    def counted(texts: list[str]) -> list[list[float]]:
        asked.append(len(texts))
        return concepts(texts)

    with Memory(tmp_path / "a.db", durability="normal", embedder=counted) as memory:
        for number in range(150):
            memory.remember(f"automobile {number}")
        assert memory.index(progress=True) == 150
        assert memory.recall("a car", 1)
        assert memory.stats().vectors == 150
        assert max(asked) == 32


def test_recall_never_embeds_what_is_stored(tmp_path: Path) -> None:
    asked: list[str] = []

    def watched(texts: list[str]) -> list[list[float]]:
        asked.extend(texts)
        return concepts(texts)

    with Memory(tmp_path / "a.db", embedder="off") as memory:
        memory.remember("an automobile")
    with Memory(tmp_path / "a.db", embedder=watched) as memory:
        assert memory.recall("automobile")
        assert "an automobile" not in asked


def test_a_run_is_indexed_in_the_background(tmp_path: Path) -> None:
    with Memory(tmp_path / "a.db", embedder=concepts) as memory:
        memory.attach(code_agent(code("print('a big automobile')"), code("final_answer(1)"))).run("Go")
        deadline = time.monotonic() + 20
        while memory._store.do("any_pending", {}) or memory.stats().vectors < memory.stats().passages:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert memory.recall("which vehicle is large?")[0].signals["semantic"]


def test_one_process_at_a_time_indexes(tmp_path: Path, refused: threading.Event) -> None:
    with Memory(tmp_path / "a.db", embedder=concepts) as memory, Memory(tmp_path / "a.db", embedder=concepts) as other:
        held = Leases(memory._store).acquire("indexer", "somebody else", 60)
        assert held is not None
        other.attach(code_agent(code("final_answer('zebra')"))).run("Go")
        assert refused.wait(20)
        assert other.stats().vectors == 0
        assert memory.recall("zebra"), "what is pending is found by its words at once"
        Leases(memory._store).release(held)
        other._recall.recorded()
        deadline = time.monotonic() + 20
        while not other.stats().vectors:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_damaged_vector_is_left_out(tmp_path: Path) -> None:
    with Memory(tmp_path / "a.db", embedder=concepts) as memory:
        memory.remember("an automobile")
        memory.remember("a vehicle of steel")
        memory.index()
        memory._store._live().execute("UPDATE vector SET numbers = x'00' WHERE passage = 1")  # type: ignore[attr-defined]
    with Memory(tmp_path / "a.db", embedder=concepts) as memory:
        assert {one.text for one in memory.recall("car")} >= {"a vehicle of steel"}


@pytest.mark.parametrize("wrong", ["locl", 5, object()])
def test_an_embedder_must_be_one(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="embedder is"):
        Memory(tmp_path / "a.db", embedder=wrong)


# --- files ----------------------------------------------------------------------------------------------------------


def test_steps_of_an_older_file_are_found(tmp_path: Path) -> None:
    old = Path(__file__).parent / "files/format-1.sqlite"
    (tmp_path / "old.db").write_bytes(old.read_bytes())
    with Memory(tmp_path / "old.db", embedder="off") as memory:
        assert memory.recall("count to three")[0].kind == "task"
        assert memory.verify()


@pytest.mark.parametrize("damage", ["text = text || 'x'", "origin = 'user'", "scope = 'other'", "at = at + 1"])
def test_a_changed_passage_is_noticed(tmp_path: Path, damage: str) -> None:
    with Memory(tmp_path / "a.db", embedder="off") as memory:
        memory.remember("an automobile", origin="web")
        memory._store._live().execute(f"UPDATE passage SET {damage}")  # type: ignore[attr-defined]
        assert not memory.verify()


@pytest.mark.parametrize("table", ["note SET text = 'x'", "note SET origin = 'user'", "forgotten SET target = 'x'"])
def test_a_changed_note_is_noticed(tmp_path: Path, table: str) -> None:
    with Memory(tmp_path / "a.db", embedder="off") as memory:
        note = memory.remember("an automobile", origin="web")
        memory.forget(note)
        memory._store._live().execute(f"UPDATE {table}")  # type: ignore[attr-defined]
        assert not memory.verify()


def test_a_damaged_step_or_passage_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Memory(tmp_path / "a.db", embedder="off", strict=True) as memory:
        for _ in memory.stepwise(code_agent(code("print('alpha beta')"), code("final_answer(1)")), "Go"):
            break
        memory._store._live().execute(  # type: ignore[attr-defined]
            "UPDATE content SET bytes = x'00' WHERE id = (SELECT record FROM step WHERE kind = 'action');"
            "INSERT OR IGNORE INTO pending (step) SELECT id FROM step WHERE kind = 'action'"
        )
        assert memory.attach(code_agent(code("final_answer('gamma')"))).run("Go on") == "gamma"
        assert memory.recall("gamma")
        memory._store._live().execute("UPDATE passage SET text = 'changed gamma' WHERE role = 'answer'")  # type: ignore[attr-defined]
        assert all(one.kind != "answer" for one in memory.recall("gamma"))
    assert any("continues without it" in record.message for record in caplog.records)


def test_many_processes_remember_and_recall_at_once(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom smolmem import Memory\n"
        "with Memory(sys.argv[1], embedder='off') as memory:\n"
        "    for n in range(25):\n"
        "        memory.remember(f'marker {sys.argv[2]} {n}')\n"
        "        assert memory.recall(f'marker {sys.argv[2]} {n}')\n"
    )
    jobs = [programs.start(["-c", script, tmp_path / "a.db", number]) for number in range(4)]
    assert [(job.communicate(timeout=120), job.returncode) for job in jobs] == [(("", ""), 0)] * 4
    with Memory(tmp_path / "a.db", embedder="off") as memory:
        assert len(memory.notes(limit=1000)) == 100
        assert memory.verify()


# --- ranking --------------------------------------------------------------------------------------------------------


def test_words_side_by_side_count_more_than_the_same_words_apart(tmp_path: Path) -> None:
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        for text in (
            "The blue house has a door",
            "The house has a blue door",
            "The door of the house has a blue bell",
        ):
            memory.remember(text)
        for number in range(10):
            memory.remember(f"Ship {number} left the harbour at dawn")
        assert memory.recall("who painted the blue house", floor=0)[0].text == "The blue house has a door"
        assert memory.recall("which house has a blue door", floor=0)[0].text == "The house has a blue door"


def test_a_section_is_split_into_terms_once_and_again_after_its_text_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = list[str]()
    monkeypatch.setattr(sections, "terms_of", lambda text: split.append(text) or terms_of(text))
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        first = memory.remember("the blue door of the cellar sticks")
        reader = sections.SectionReader(memory._journal.store)
        ids = [one.passage for one in memory.recall("blue door", floor=0)]
        words = {"blue", "red", "door"}
        split.clear()
        before, again = reader.read(ids, words), reader.read(ids, words)
        assert again == before
        assert split == ["the blue door of the cellar sticks"]
        memory._journal.store.transact(lambda: _rename(memory, ids[0], "the red door of the cellar sticks"))
        (changed,) = reader.read(ids, words)
        assert changed.places == {"red": [1], "door": [2]}
        memory.forget(first)
        assert reader.read(ids, words) == []


def _rename(memory: Memory, passage: int, text: str) -> None:
    """Gives a passage another text under the same id, as restoring a backup can."""
    store = memory._journal.store
    (row,) = store.rows("passages", {"ids": f"[{passage}]"})
    store.do("drop_passage", {"id": passage})
    del row["hash"]
    store.do("add_passage", with_hash("passage", row | {"text": text}))


def test_a_sentence_of_a_long_question_is_enough_for_an_answer(tmp_path: Path) -> None:
    others = (
        "Please answer strangers politely whenever somebody telephones. Write invitations on heavy cream paper. "
        "Sandwiches, lemonade and pancakes are served downstairs. Polish brass candlesticks before guests arrive. "
    )
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        memory.remember("The spare key of the boathouse hangs behind the barometer")
        memory.remember("The gardener comes on Tuesdays")
        assert memory.recall(others + "Who has the key of the boathouse?")[0].score > 0.5
        assert not memory.recall(others + "Where does the third violinist of the orchestra live?")


def test_a_name_that_stands_nowhere_in_the_memory_tells_against_an_answer(tmp_path: Path) -> None:
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        for number in range(40):
            memory.remember(f"Ship {number} left the harbour at dawn with crates of apples, and the pilot waved")
        assert memory.recall("who waved to the cook of the ship?")
        assert memory.recall("who waved to Queequeg of the ship?") == []
        assert memory.recall("who waved to queequeg of the ship?"), "only what is written as a name counts as one"


@pytest.mark.parametrize("notes", [1, 3, 20])
def test_one_everyday_word_is_no_answer_in_a_small_memory(tmp_path: Path, notes: int) -> None:
    said = ["The deploy of the week is on Friday", "Backups take an hour at night", "The printer is out of paper"]
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        for number in range(notes):
            memory.remember(said[number] if number < len(said) else f"Crate {number} holds apples from the orchard")
        assert memory.recall("what is the xylophone of the week?") == []
        assert memory.recall("how many people play the xylophone at night, and in which town?") == []
        assert memory.recall("when is the deploy?")[0].text == said[0]
        assert memory.recall("what is done this week?")[0].text == said[0]


def test_instructions_do_not_lift_the_steps_beside_them(tmp_path: Path) -> None:
    task = "Never print whole files to the terminal. " + "Be careful and polite in all that you do. " * 60
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        steps = [code(text) for text in ("x = 1", "y = 2", "print('terminal')", "final_answer(1)")]
        memory.attach(code_agent(*steps)).run(task)
        found = memory.recall("never print whole files to the terminal", floor=0)
        beside = [one.signals["neighbours"] for one in found if "lexical" not in one.signals]
        assert beside
        assert max(beside) < 0.4


def test_an_unsure_answer_has_as_many_results_as_a_sure_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        for text in ("the blue door of the house", "the blue door", "a door", "the house at the lake", "a lake"):
            memory.remember(text)

        def found(confidence: float) -> tuple[list[str], int]:
            monkeypatch.setattr("smolmem.recall.search.confidence_in", lambda *_: confidence)
            texts = [one.text for one in memory.recall("the blue door of the house")]
            return texts, memory.context("the blue door of the house").count("\n[")

        sure, unsure = found(0.95), found(0.16)
        assert unsure[0] == sure[0]
        assert len(sure[0]) > 2
        assert unsure[1] == 1, "a prompt has room for the best alone"
        assert found(0.14) == ([], 0)


def test_long_instructions_do_not_hide_the_step_that_followed_them(tmp_path: Path) -> None:
    task = "Repair the shop. " + " ".join(f"Rule {n}: check column price, stock and colour {n}." for n in range(60))
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        agent = code_agent(code("print('the column price is missing')"), code("final_answer('done')"))
        memory.attach(agent).run(task)
        assert memory.recall("column price")[0].kind == "observation"
        assert "task" in {one.kind for one in memory.recall("rule 59")}


def test_a_reminder_embeds_its_question_once(tmp_path: Path) -> None:
    asked: list[str] = []

    class Model:
        model = "counted"

        def passages(self, texts: list[str]) -> list[list[float]]:
            return concepts(texts)

        def query(self, text: str) -> list[float]:
            asked.append(text)
            return concepts([text])[0]

    with Memory(tmp_path / "agent.db", embedder=Model()) as memory:
        memory.remember("The cellar holds three crates of apples")
        memory.index()
        memory.attach(code_agent(code("final_answer(3)")), recall=5).run("Count the crates in the cellar")
    assert asked.count("Count the crates in the cellar") == 1


def test_index_leaves_passages_to_the_process_that_embeds_them(tmp_path: Path) -> None:
    made: list[str] = []

    def counted(texts: list[str]) -> list[list[float]]:
        made.extend(texts)
        return concepts(texts)

    with Memory(tmp_path / "agent.db", embedder=counted) as memory:
        leases = Leases(memory._journal.store)
        lease = leases.acquire("indexer", "another process", 30.0)
        assert lease is not None
        memory.remember("an automobile")
        waiting = threading.Thread(target=memory.index)
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        assert "an automobile" not in made
        leases.release(lease)
        waiting.join(10)
        assert made.count("an automobile") == 1


def test_a_step_that_is_indexed_again_during_a_search_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        agent = code_agent(code("print('The keeper lost the key of the lighthouse.')"), code("final_answer(1)"))
        memory.attach(agent).run("Look around")
        memory.index()
        add_context, moved = Search._add_context, iter((True, True))

        def index_again(search: Search, *given: Any) -> None:
            if next(moved, False):  # as the indexer does when the step before has changed
                for step in memory.runs()[0].steps:
                    memory._store.do("add_pending", {"step": step.id, "session": step.session})
                memory.index()
            add_context(search, *given)

        monkeypatch.setattr(Search, "_add_context", index_again)
        assert "lighthouse" in memory.recall("who lost the key of the lighthouse?")[0].text


def test_an_answer_by_words_is_given_while_its_step_has_no_vector_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memory(tmp_path / "agent.db", embedder=concepts) as memory:
        memory.remember("an automobile drove past the house")
        memory.index()
        monkeypatch.setattr(memory._recall._indexer, "wake", lambda: None)
        memory.attach(code_agent(code("print('The keeper lost his key.')"), code("final_answer(1)"))).run("Look around")
        monkeypatch.setattr("smolmem.recall.search.confidence_in", lambda evidence, *_: float(evidence.cosine is None))
        while indexer._index_some(memory._journal):  # words, and no vectors
            pass
        assert "key" in memory.recall("who lost his key?")[0].text
        memory.index()
        assert memory.recall("who lost his key?") == [], "then vectors may tell against it"


def test_a_search_leaves_a_large_backlog_to_the_indexer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        monkeypatch.setattr(memory._recall._indexer, "wake", lambda: None)
        memory.attach(code_agent(code("print('The keeper lost his key.')"), code("final_answer(1)"))).run("Look around")
        with monkeypatch.context() as patched:
            patched.setattr(indexer, "MOST_PENDING", 2)
            assert memory.recall("who lost his key?") == []
        assert "key" in memory.recall("who lost his key?")[0].text


def test_a_search_does_not_follow_a_long_run_again_before_the_indexer_has_done_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        monkeypatch.setattr(memory._recall._indexer, "wake", lambda: None)
        asked, original = list[Any](), Provenance.catch_up

        def catch_up(self: Provenance, *args: Any) -> bool:
            asked.append(args)
            return original(self, *args)

        monkeypatch.setattr(Provenance, "catch_up", catch_up)
        idle = [code(f"print('Room {number} is empty.')") for number in range(30)]
        memory.attach(code_agent(*idle, code("final_answer('the key is lost')"), max_steps=40)).run("Look around")
        monkeypatch.setattr(indexer, "FOLLOW_SECONDS", -1.0)
        for _ in range(3):
            assert memory.recall("who lost his key?") == []
        assert len(asked) == 1
        monkeypatch.undo()
        monkeypatch.setattr(memory._recall._indexer, "wake", lambda: None)
        while memory._store.do("count_pending", {}) > 16:
            assert memory.recall("who lost his key?") == []
            indexer._index_some(memory._journal)
        assert "key" in memory.recall("who lost his key?")[0].text


def test_a_search_that_has_no_time_to_index_finds_the_pending_steps_that_have_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        monkeypatch.setattr(memory._recall._indexer, "wake", lambda: None)
        monkeypatch.setattr(indexer, "SEARCH_SECONDS", 0.0)
        idle = [code(f"print('Room {number} is empty.')") for number in range(12)]
        script = [code("print('The keeper lost his key.')"), *idle, code("final_answer(1)")]
        memory.attach(code_agent(*script, max_steps=20)).run("Look around")
        pending = memory._store.do("count_pending", {})
        assert "key" in memory.recall("who lost his key?")[0].text
        assert memory._store.do("count_pending", {}) == pending - 1


def test_the_indexer_leaves_others_time_to_write_after_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[tuple[float, bool]] = []
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        background = memory._recall._indexer
        monkeypatch.setattr(background, "wake", lambda: None)
        memory.attach(code_agent(code("final_answer(1)"))).run("Count")
        monkeypatch.setattr(time, "sleep", lambda seconds: pauses.append((seconds, background.batch._lock.locked())))
        assert background._index_batch(memory._journal) > 0
        assert background._index_batch(memory._journal) == 0
    ((pause, is_held),) = pauses
    assert 0.0 < pause <= indexer.PAUSE_SECONDS
    assert not is_held, "a search of this process comes next"


def test_the_template_of_a_managed_agents_task_is_not_indexed() -> None:
    agent = code_agent()
    template = agent.prompt_templates["managed_agent"]["task"]
    task = populate_template(template, {"name": "buyer", "task": "Order\n---\nthree crates of apples"})
    (passage,) = passages_of(TaskStep(task=task))
    assert passage.text == "Order\n---\nthree crates of apples"


def test_a_reminder_searches_once_and_shows_how_a_run_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    find = Search.find

    def counted(self: Search, question: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(question)
        return find(self, question, *args, **kwargs)

    monkeypatch.setattr(Search, "find", counted)
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        first = code_agent(
            code("print('the cellar has crates of apples')"), code("final_answer('The cellar: 7 crates')")
        )
        memory.attach(first).run("Count the crates in the cellar")
        again = memory.attach(code_agent(code("final_answer(7)")), recall=5)
        again.run("How many crates has the cellar?")
        assert "The cellar: 7 crates" in again.model.prompts[0][2].content[0]["text"]
    assert asked == ["How many crates has the cellar?"]


def test_a_reminder_quotes_answers_only_if_they_fit_and_says_that_a_model_gave_them(tmp_path: Path) -> None:
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        looked = code("print('the cellar has seven crates of apples in three rows')")
        ended = code("print('rows of crates in the cellar: three')\nfinal_answer('Seven crates of good apples')")
        memory.attach(code_agent(looked, ended)).run("Count")
        fed = code("final_answer('The giraffe of the zoo ate three buckets of leaves in the morning')")
        memory.attach(code_agent(fed)).run("Feed the animals")
        again = memory.attach(code_agent(code("final_answer(7)")), recall=5)
        again.run("In how many rows are the crates of apples, in the cellar? Is it three?")
        reminder = again.model.prompts[0][2].content[0]["text"]
        assert "giraffe" not in reminder
        assert re.search(r"\] answer · .* · from model · .*\n❘ Seven crates of good apples", reminder)


def test_words_are_counted_while_another_thread_finds_that_all_counts_are_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memory(tmp_path / "agent.db", embedder="off") as memory:
        store = memory._journal.store
        lexical, count = LexicalSearch(store), store.rows_of_each
        memory.remember("The checkout failed because the payment timed out")
        memory.index()
        lexical.best(["checkout"], Filter(), 5)
        lexical._count_all([match(["checkout"], None)])

        def add_and_search(*given: Any) -> Any:
            monkeypatch.setattr(store, "rows_of_each", count)
            memory.remember("The checkout works")
            memory.index()
            other = threading.Thread(target=lambda: lexical.best(["works"], Filter(), 5))
            other.start()
            other.join()
            return count(*given)

        monkeypatch.setattr(store, "rows_of_each", add_and_search)
        assert lexical._count_all([match(["checkout"], None), match(["payment"], None)]) in ([1, 1], [2, 1])
        assert store.rows_of_each == count


# --- marked words ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text", "marked"),
    [
        (["checkout"], "I check the checkout, and check_health", ["checkout"]),
        (["prices"], "price Priced pricing priest", ["price", "Priced", "pricing"]),
        (["carry"], "carries carrying cargo", ["carries", "carrying"]),
        (["check"], "check_health checkHealth recheck", ["check", "checkHealth"]),
        (["deploy*"], "deployment Deploys depots", ["deployment", "Deploys"]),
        (["Émile"], "emile, ÉMILE and Emily", ["emile", "ÉMILE"]),
        (["don"], "İstanbul don't", ["don"]),
    ],
)
def test_a_mark_is_on_the_words_that_full_text_counts(words: list[str], text: str, marked: list[str]) -> None:
    highlighter = Highlighter(words)
    assert [text[start:end] for start, end in highlighter.marks(text)] == marked
    assert highlighter.words_in(text) == set(words)


# --- passages without content ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "kind", "tool", "text"),
    [
        (False, "answer", None, "Done."),
        (False, "answer", None, "完了しました"),
        (False, "answer", None, "Success: True"),
        (True, "answer", None, "Deploys are on Tuesday"),
        (True, "answer", None, "部署发生在星期二"),
        (True, "answer", None, "42 crowns"),
        (False, "call", "open_page", "open_page number: 11"),
        (True, "call", "open_page", "open_page url: https://shop.example/prices"),
        (False, "observation", "check_health", "{}"),
        (False, "observation", "check_health", "200 OK"),
        (False, "thought", None, "I check the shop's health."),
        (True, "thought", None, "The checkout fails because its certificate has expired."),
    ],
)
def test_passages_without_content_reach_no_prompt(says: bool, kind: str, tool: str | None, text: str) -> None:
    assert says_something(text, kind, tool) is says


def test_one_everyday_word_weighs_less_than_what_is_said_in_other_words(tmp_path: Path) -> None:
    said = "the purchase of a large automobile was delayed"
    texts = ("the bus will stop here at noon", "the second stop is at one", "then nothing until three", "lunch", said)
    with Memory(tmp_path / "agent.db", embedder=concepts) as memory:
        script = [code(f"print({text!r})") for text in texts]
        memory.attach(code_agent(*script, code("final_answer(1)"))).run("Look around")
        memory.index()
        assert memory.recall("did they stop to buy a big car", floor=0)[0].text == said
