"""Contents packed with the contents before them: small, readable after any erase, and no bomb."""

from __future__ import annotations

import json
import random
import shutil
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest
import zstandard
from contents import unpacked
from recalling import concepts
from scripted import code, code_agent
from smolagents import tool

from smolmem import Memory
from smolmem.core.encoding import packing
from smolmem.core.errors import Damaged, StoreError
from smolmem.store import packed_text
from smolmem.store.side_tables import QUOTE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def memory(path: Path) -> Iterator[Memory]:
    with Memory(path, embedder="off") as memory:
        yield memory


def pages(size: int) -> Any:
    @tool
    def page(number: int) -> str:
        """A page.

        Args:
            number: which one
        """
        return random.Random(number).randbytes(size // 2).hex()

    return page


def recorded(memory: Memory, steps: int = 6, size: int = 2000, first: int = 0) -> Any:
    codes = [code(f"print(page({number}))") for number in range(first, first + steps)]
    agent = memory.attach(code_agent(*codes, code("final_answer(0)"), tools=[pages(size)]))
    agent.run("Read.")
    memory.detach(agent)
    return memory.runs()[0]


@pytest.mark.parametrize("size", [1000, 100_000])
def test_a_text_that_stands_in_a_call_a_step_and_its_messages_is_stored_once(
    memory: Memory, path: Path, size: int
) -> None:
    recorded(memory, steps=10, size=size)
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    packed = connection.execute("SELECT sum(length(bytes)) FROM content").get
    connection.close()
    assert packed < 10 * (0.7 * size + 1500)  # hex digits are packed to a half


LAMPS = "The {}th lamp of the 灯台 🗼 was lit by the keeper."


def lamps(count: int) -> str:
    return f"print('\\n'.join({LAMPS!r}.format(n) for n in range({count})))"


def stored_passages(path: Path) -> list[Any]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [stored for (stored,) in connection.execute("SELECT text FROM passage ORDER BY id")]
    finally:
        connection.close()


def test_passages_of_a_long_observation_take_no_second_copy_of_its_text(memory: Memory, path: Path) -> None:
    memory.attach(code_agent(code(lamps(200)), code("final_answer(0)"))).run("Count the lamps.")
    memory.index()
    stored = stored_passages(path)
    assert sum(isinstance(one, int) for one in stored) >= 10
    assert sum(len(one) for one in stored if not isinstance(one, int)) < 300
    (found, *_) = memory.recall("the 137th lamp")
    assert LAMPS.format(137) in found.text
    assert memory.verify()


def test_a_passage_keeps_its_text_until_an_edited_step_is_indexed_again(memory: Memory, path: Path) -> None:
    memory.attach(code_agent(code(lamps(60)), code("final_answer(0)"))).run("Count the lamps.")
    memory.index()
    memory.close()
    with Memory(path, embedder="off") as again:
        again._recall._indexer.wake = lambda: None  # type: ignore[method-assign]
        step = again.runs()[0].steps[1]
        step.edit(observations="All lamps are dark.")
        place = {"session": step.session, "step": step.id}
        texts = [row["text"] for row in again._store.rows("step_passages", place)]
        assert any(LAMPS.format(30) in text for text in texts)
        assert again.verify()
        again.index()
        texts = [row["text"] for row in again._store.rows("step_passages", place)]
        assert "All lamps are dark." in texts
        assert not any(LAMPS.format(30) in text for text in texts)
        assert again.verify()


def test_passages_of_files_that_hold_their_texts_are_found(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent / "files/format-10.sqlite", tmp_path / "old.db")
    with Memory(tmp_path / "old.db", embedder="off") as memory:
        assert not any(isinstance(one, int) for one in stored_passages(tmp_path / "old.db"))
        assert "The 41th lamp of the lighthouse" in memory.recall("the 41th lamp")[0].text


def test_the_words_of_an_older_file_are_indexed_again_and_its_vectors_stay(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent / "files/format-11.sqlite", tmp_path / "old.db")
    connection = apsw.Connection(str(tmp_path / "old.db"))
    queries = "SELECT id, passage, model, numbers FROM vector", "SELECT id, document, hash FROM passage"
    before = [connection.execute(query).fetchall() for query in queries]
    embedder = partial(concepts)
    embedder.model = before[0][0][2].rpartition("/")[0]  # the name of a function differs between releases of Python
    with Memory(tmp_path / "old.db", embedder=embedder) as memory:
        assert memory.verify()
        assert memory.index() == 4  # three steps and a note; no passage gets a new vector
        assert [connection.execute(query).fetchall() for query in queries] == before
        assert any("The 41th lamp of the lighthouse" in one.text for one in memory.recall("the 41th lamp"))
        assert any(one.note for one in memory.recall("the automobile of the keeper"))
        assert memory.verify()
    connection.close()


def test_an_edit_of_a_step_leaves_the_vectors_of_the_steps_behind_it(memory: Memory, path: Path) -> None:
    memory.attach(code_agent(code("x = 1"), code(lamps(60)), code("final_answer(0)"))).run("Count the lamps.")
    memory.index()
    steps = memory.runs()[0].steps
    places = [{"session": step.session, "step": step.id} for step in steps]
    before = [[row["id"] for row in memory._store.rows("step_passages", place)] for place in places]
    steps[1].edit(observations="The keeper is asleep.")
    memory.index()
    after = [[row["id"] for row in memory._store.rows("step_passages", place)] for place in places]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True, True]
    assert memory.recall("the keeper is asleep")[0].step in {step.id for step in steps[1:]}
    assert memory.verify()


def test_passages_of_a_step_that_shares_its_content_with_an_erased_quotation_stay_readable(memory: Memory) -> None:
    fact = "The vault of the kingdom opens with the word abracadabra, spoken aloud at midnight."
    note = memory.remember(fact)
    story = "".join(f"\n\nThe door number {n} is described in other words. " * 6 for n in range(12))
    task = f"How does the vault of the kingdom open? An older prompt said:\n{QUOTE}{fact}\nIs this right?{story}"
    for count in (3, 0):  # the second session has no reminder, and the same task
        agent = memory.attach(code_agent(code("final_answer(1)")), recall=count)
        agent.run(task)
        memory.detach(agent)
    memory.index()
    memory.erase(note)
    assert memory.verify()
    memory.index()
    assert memory.verify()


@pytest.mark.parametrize("change", ["erase", "edit"])
def test_a_passage_is_read_with_the_text_of_the_same_moment(
    memory: Memory, path: Path, change: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory.attach(code_agent(code(lamps(60)), code("final_answer(0)"))).run("Count the lamps.")
    memory.index()
    changes = iter([change])

    def between(known: Any) -> str:  # the two queries: another process writes
        if next(changes, None) is not None:
            with Memory(path, embedder="off") as other:
                run = other.runs()[0]
                if change == "erase":
                    other.erase(run)
                else:
                    run.steps[1].edit(observations=f"Before it all. {run.steps[1].to_smolagents().observations}")
        return json.dumps(known)

    monkeypatch.setattr(packed_text, "json", SimpleNamespace(dumps=between))
    found = memory.recall("the 37th lamp", floor=0)
    assert any(LAMPS.format(37) in one.text for one in found) == (change == "edit")
    assert "not what was written" not in caplog.text


@pytest.mark.parametrize("damage", ["NULL", "7", "x'00ff'"])
def test_a_damaged_text_costs_the_recall_of_its_step_alone(memory: Memory, path: Path, damage: str) -> None:
    memory.attach(code_agent(code(lamps(60)), code("final_answer('lamps')"))).run("Count the lamps.")
    memory.index()
    memory._store._live().execute(f"UPDATE step SET text = {damage} WHERE id = (SELECT max(step) FROM passage)")
    assert any(LAMPS.format(37) in one.text for one in memory.recall("the 37th lamp", floor=0))
    assert not memory.verify()


def test_a_step_whose_text_is_damaged_can_be_edited(memory: Memory) -> None:
    agent = memory.attach(code_agent(code(lamps(60)), code("final_answer(0)")))
    agent.run("Count the lamps.")
    memory.index()
    step = memory.runs()[0].steps[1]
    memory._store._live().execute("UPDATE step SET text = x'73ff' WHERE id = ?", (step.id,))
    memory._store.transact(
        lambda: memory._store.do(
            "revise_step",
            dict.fromkeys(
                ("kind", "number", "seconds", "error", "tools", "input_tokens", "output_tokens", "prompt"), None
            )
            | {"id": step.id, "session": step.session, "kind": "action", "tools": "[]", "text": "All lamps are dark."}
            | {"revision": 1, "record": 1, "hash": b""},
        )
    )
    assert memory._store._live().execute("SELECT text FROM step WHERE id = ?", (step.id,)).get == "All lamps are dark."


def test_the_contents_of_one_step_are_packed_together(memory: Memory, path: Path) -> None:
    recorded(memory, steps=8, size=60_000)
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    large = connection.execute("SELECT count(*) FROM content WHERE length(bytes) > 10000").get
    connection.close()
    assert large == 8, "a result is stored once, also where a chain has become long"


def test_every_content_comes_back_in_any_order(memory: Memory, path: Path) -> None:
    recorded(memory, steps=20)
    expected = unpacked(path)
    with Memory(path, embedder="off") as other:
        numbers = [row["id"] for row in other._store.rows("content_ids_after", {"id": 0})]
        order = random.Random(1).sample(range(len(numbers)), len(numbers))
        assert [other._journal.content(numbers[place]) for place in order] == [expected[place] for place in order]


def test_what_was_packed_with_an_erased_step_can_still_be_read(memory: Memory) -> None:
    run = recorded(memory, steps=12)
    memory.erase(run.steps[4])
    assert memory.verify().problems == []
    left = [step.text for step in memory.run(run.id).steps]
    assert sum("Execution logs" in text for text in left) >= 10
    assert all(random.Random(number).randbytes(1000).hex() in "".join(left) for number in (0, 1, 2, 9, 11))


def test_after_a_failed_transaction_nothing_refers_to_what_was_not_written(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = memory.attach(code_agent(*(code(f"print(page({n}))") for n in range(8)), tools=[pages(500)]))
    agent.max_steps = 8
    turn, commit = 0, memory._journal.add

    def failing(table: str, row: Any) -> Any:
        nonlocal turn
        turn += 1
        if turn % 5 == 0 and table != "session":
            raise StoreError("the disk is full")
        return commit(table, row)

    monkeypatch.setattr(memory._journal, "add", failing)
    agent.run("Read.")
    monkeypatch.setattr(memory._journal, "add", commit)
    memory.flush()
    assert memory.verify().problems == []
    assert len(memory.runs()[0].steps) == 10


def test_a_base_that_another_process_erased_is_not_used(memory: Memory, path: Path) -> None:
    def keep(text: str) -> int:
        journal = memory._journal
        return journal._transact("run", lambda chain: journal.keep(journal.encode(text), chain))

    number = keep("a text " * 50)
    with Memory(path, embedder="off") as other:
        changed = {"id": number, "hash": b"other", "bytes": b"=other"}
        other._store.transact(lambda: other._store.do("put_content", changed))
    after = keep("a text " * 50 + "and more")
    assert memory._store.rows("content", {"id": after})[0]["base"] is None
    assert memory._journal.value(after).endswith("and more")


@pytest.mark.parametrize("wrong", ["cycle", "missing", "other"])
def test_a_wrong_base_is_damage_not_another_text(memory: Memory, path: Path, wrong: str) -> None:
    recorded(memory)
    memory.close()
    connection = apsw.Connection(str(path))
    packed = connection.execute("SELECT id, base FROM content WHERE base IS NOT NULL ORDER BY id").fetchall()
    number = packed[3][0]
    new = {"cycle": number, "missing": 10_000, "other": 1}[wrong]
    connection.execute("UPDATE content SET base = ? WHERE id = ?", (new, number))
    connection.close()
    with Memory(path, embedder="off") as again:
        with pytest.raises(Damaged, match=f"content {number}"):
            again._journal.content(number)
        assert any(f"content {number} " in problem for problem in again.verify().problems)


def test_bombs_of_either_kind_are_refused_before_they_unpack() -> None:
    bomb = b"s" + zstandard.ZstdCompressor().compress(bytes(50_000_000))
    with pytest.raises(packing.Undecodable, match=r"more than 4,000,000.*SMOLMEM_MAX_UNPACKED"):
        packing.unpack(bomb)
    dictionary = random.Random(0).randbytes(200_000)
    data = zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    repeated = b"d" + zstandard.ZstdCompressor(dict_data=data).compress(dictionary * 100)
    with pytest.raises(packing.Undecodable, match="more than"):
        packing.unpack(repeated, packing.BLOB, dictionary)
    endless = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(50_000_000))
    with pytest.raises(packing.Undecodable):
        packing.unpack(b"s" + endless)
    for cut in (b"", b"s", b"d", b"sabc", bomb[:100], b"q123"):
        with pytest.raises(packing.Undecodable):
            packing.unpack(cut)


def test_files_of_the_first_release_can_be_read() -> None:
    text = b"a text of some length " * 40
    assert packing.unpack(b"z" + zlib.compress(text)) == text


def test_threads_never_share_a_compressor_which_would_crash_the_process() -> None:
    with ThreadPoolExecutor(4) as pool:
        barrier = threading.Barrier(4)

        def compressor(_: int) -> Any:
            barrier.wait(10)
            return packing._zstd(b"")

        found = list(pool.map(compressor, range(4)))
    assert len({id(each) for each in found}) == 4
    assert packing._zstd(b"") is packing._zstd(b"")


@pytest.mark.parametrize("seed", range(20))
def test_passages_come_back_in_whatever_order_they_stand_in_the_text_of_their_step(seed: int) -> None:
    chance = random.Random(seed)
    whole = "".join(chance.choice("ab \n\ud800é") for _ in range(chance.choice([5, 300, 80_000])))
    starts = [chance.randrange(len(whole)) for _ in range(30)]
    texts = [whole[start : start + chance.choice([1, 9, 500, 70_000])] for start in starts]
    texts += ["not in the text of the step", "", "x" * 300]
    chance.shuffle(texts)
    stored = list(packed_text.pieces(texts, packed_text.packed(whole)))
    assert [packed_text.piece_text(one, packed_text.packed(whole)) for one in stored] == texts
    long_enough = [one for one, text in zip(stored, texts, strict=True) if 8 <= len(text) < 65_536 and text in whole]
    assert all(isinstance(one, int) for one in long_enough)
    assert [packed_text.plain(one) for one in packed_text.pieces(texts, None)] == texts
