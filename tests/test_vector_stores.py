"""Vector indexes behind recall (Chroma, FAISS, Qdrant, LanceDB, Milvus, pgvector): real packages, files and servers."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import pickle
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pages
import programs
import pytest
import test_private
from conftest import TORTURE
from langchain_core.documents import Document as LangChainDocument
from recalling import concepts
from scripted import code_agent
from smolagents import ActionStep
from smolagents.monitoring import Timing

from smolmem import Memory
from smolmem.cli.main import main
from smolmem.core.errors import InvalidArgument, NotFound
from smolmem.integrations import document_import
from smolmem.integrations.document_import import import_collection
from smolmem.recall.indexes import external_index, vector_index
from smolmem.recall.indexes.external_index import key_of, passage_of
from smolmem.recall.vectors import floats_of, numbers_of

MILVUS = pytest.param(
    "milvus",
    marks=[
        pytest.mark.skipif(
            importlib.util.find_spec("milvus_lite") is None,
            reason="Milvus Lite is not installed: make .venv/dev, not on Windows",
        ),
        pytest.mark.filterwarnings("ignore::DeprecationWarning"),
        pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    ],
)
KINDS = ("faiss", "faiss-file", "chroma", "qdrant", "lancedb", MILVUS, "pgvector")
SHARED = ("chroma", "lancedb")
PAGE = ("The car needs new brakes", "A bill of 40 euros came by post", "The dog sleeps in the kitchen")


def url_of(kind: str, folder: Path) -> str:
    return "faiss" if kind == "faiss" else f"{kind.removesuffix('-file')}://{folder / kind}"


@pytest.fixture(params=KINDS)
def vectors(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "pgvector":
        return str(request.getfixturevalue("pg_url")).replace("postgresql://", "pgvector://")
    return url_of(request.param, tmp_path)


@pytest.fixture(params=("faiss-file", "chroma"))
def some_vectors(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An index in RAM and one outside: for what does not depend on the engine."""
    return url_of(request.param, tmp_path)


def opened(folder: Path, vectors: str | None, **options: Any) -> Memory:
    return Memory(folder / "agent.db", strict=True, embedder=concepts, vectors=vectors, durability="normal", **options)


def semantic(memory: Memory, question: str, **filters: Any) -> list[str]:
    """What is found by vectors, the nearest first."""
    found = memory.recall(question, floor=0.0, limit=10, **filters)
    return [
        one.text
        for one in sorted(found, key=lambda one: -one.signals.get("semantic", 0.0))
        if "semantic" in one.signals
    ]


def index_of(memory: Memory) -> Any:
    [mirror] = memory._recall._external._mirrors.values()
    return mirror.index


def fill(memory: Memory) -> None:
    for number in range(24):
        memory.remember(
            f"the automobile of {number} is blue", kind="fact" if number % 8 else "rare", scope=f"s{number % 4}"
        )
        memory.remember(f"a physician saw patient {number}", scope=f"s{number % 4}")
    memory.index()


# --- the same answers ------------------------------------------------------------------------------------------------


def test_an_external_index_gives_the_answers_of_the_built_in_one(tmp_path: Path, vectors: str) -> None:
    with opened(tmp_path, None, scope="*") as memory:
        fill(memory)
        expected = answers(memory, FILTERS)
    with opened(tmp_path, vectors, scope="*") as memory:
        memory.index()
        assert answers(memory, FILTERS) == expected
        assert index_of(memory).count() == 48


def test_an_external_index_compares_whole_steps(tmp_path: Path, some_vectors: str) -> None:
    with opened(tmp_path, None) as memory:
        agent = memory.attach(code_agent())
        for number in range(120):
            parts = {"model_output": f"automobile {number}", "observations": f"the ocean and physician {number}"}
            agent.memory.steps.append(ActionStep(step_number=1, timing=Timing(0.0, 1.0), **parts))
        memory.index()
        expected = answers(memory, [{}, {"kind": "observation"}])
    with opened(tmp_path, some_vectors) as memory:
        memory.index()
        assert answers(memory, [{}, {"kind": "observation"}]) == expected


FILTERS: list[dict[str, Any]] = [
    {},
    {"scope": "s1"},
    {"kind": "rare"},
    {"scope": "s0", "kind": "rare"},
    {"since": time.time() + 9_000},
]


def answers(memory: Memory, asked: list[dict[str, Any]]) -> list[Any]:
    return [
        {
            (one.passage, round(one.signals.get("semantic", 0.0), 4))
            for one in memory.recall("which vehicle?", 100, floor=0.0, **filters)
        }
        for filters in asked
    ]


def test_scopes_do_not_leak_through_an_external_index(tmp_path: Path, vectors: str) -> None:
    with opened(tmp_path, vectors, scope="*") as memory:
        fill(memory)
        for number in range(4):
            found = memory.recall("which vehicle?", 100, scope=f"s{number}", floor=0.0)
            assert {one.scope for one in found} == {f"s{number}"}
            assert sum("automobile" in one.text for one in found) == 6


def test_more_candidates_are_taken_until_enough_pass_the_filters(tmp_path: Path, some_vectors: str) -> None:
    with opened(tmp_path, some_vectors) as memory:
        for number in range(500):
            memory.remember(f"the automobile of {number}", kind="rare" if number == 13 else "fact")
        memory.index()
        nearest = memory._recall._opened().semantic.nearest
        found = nearest("which vehicle?", 1, vector_filter(memory, kinds=("rare",)))
        assert len(found) == 1


def vector_filter(memory: Memory, **filters: Any) -> Any:
    from smolmem.recall.filters import Filter

    return Filter(scope=memory.scope, **filters)


# --- in step with the store ------------------------------------------------------------------------------------------


def test_what_is_dropped_is_not_found_and_leaves_the_index(tmp_path: Path, some_vectors: str) -> None:
    with opened(tmp_path, some_vectors) as memory:
        forgotten = memory.remember("the automobile is blue")
        old = memory.remember("one physician called")
        memory.index()
        memory.forget(forgotten)
        new = memory.remember("two physicians called", supersedes=old)
        assert semantic(memory, "which vehicle?") == []
        memory.index()
        assert set(map(passage_of, index_of(memory).keys())) == {passage(memory, new.id)}


def passage(memory: Memory, note: str) -> int:
    [row] = memory._journal.store.rows("note_passages", {"note": note})
    return int(row["id"])


@pytest.mark.promise("S12")
def test_erased_means_gone_from_the_index_at_once(tmp_path: Path, vectors: str) -> None:
    with opened(tmp_path, vectors) as memory:
        kept = memory.remember("the automobile is blue")
        erased = memory.remember("the automobile was stolen by Kim")
        memory.index()
        assert index_of(memory).count() == 2
        assert memory.erase(erased).finished
        assert set(map(passage_of, index_of(memory).keys())) == {passage(memory, kept.id)}
        memory.erase(kept)
        assert index_of(memory).count() == 0


@pytest.mark.promise("S12")
@pytest.mark.parametrize("kind", ["faiss-file", "lancedb"])
def test_files_hold_no_byte_of_an_erased_vector(tmp_path: Path, kind: str) -> None:
    known: dict[str, Any] = {}
    chance = np.random.default_rng(3)

    def embed(texts: list[str]) -> Any:
        return [known.setdefault(text, chance.normal(size=384)) for text in texts]

    with Memory(tmp_path / "agent.db", embedder=embed, vectors=url_of(kind, tmp_path)) as memory:
        for number in range(20):
            memory.remember(f"note number {number}")
        note = memory.remember("a secret")
        memory.index()
        part = floats_of(numbers_of(known["a secret"]), 1)[0][100:120].tobytes()
        assert files_with(tmp_path / kind, part)
        memory.erase(note)
        assert files_with(tmp_path / kind, part) == []


def files_with(folder: Path, part: bytes) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and part in file.read_bytes()]


def test_an_index_that_was_deleted_is_filled_again(tmp_path: Path, some_vectors: str) -> None:
    with opened(tmp_path, some_vectors) as memory:
        memory.remember("the automobile is blue")
        memory.index()
    moved = f"{some_vectors}-new" if "://" in some_vectors else some_vectors
    with opened(tmp_path, moved) as memory:
        memory.index()
        assert semantic(memory, "which vehicle?") == ["the automobile is blue"]


def test_after_a_backup_was_restored_the_index_holds_its_vectors(tmp_path: Path, some_vectors: str) -> None:
    """Ids of passages are given a second time in a restored store: only the numbers tell the vectors apart."""
    with opened(tmp_path, some_vectors) as memory:
        memory.remember("the sea is calm")
        memory.index()
        memory.backup(tmp_path / "backup.db")
        memory.remember("the automobile is blue")
        memory.index()
    for file in tmp_path.glob("agent.db*"):
        file.unlink()
    (tmp_path / "backup.db").rename(tmp_path / "agent.db")
    with opened(tmp_path, some_vectors) as memory:
        memory.remember("the physician is glad")
        memory.index()
        assert semantic(memory, "which vehicle?")[:1] != ["the automobile is blue"]
        assert semantic(memory, "a happy doctor?")[0] == "the physician is glad"
        assert index_of(memory).count() == 2


def test_two_stores_in_one_index_do_not_meet(tmp_path: Path, some_vectors: str) -> None:
    (tmp_path / "other").mkdir()
    with opened(tmp_path, some_vectors) as memory:
        memory.remember("the automobile is blue")
        memory.index()
    with opened(tmp_path / "other", some_vectors) as other:
        other.remember("the ocean is deep")
        other.index()
        assert index_of(other).count() == 1
    with opened(tmp_path, some_vectors) as memory:
        memory.index()
        assert semantic(memory, "which vehicle?") == ["the automobile is blue"]


def test_a_vector_that_is_erased_while_it_is_copied_does_not_stay(
    tmp_path: Path, some_vectors: str, monkeypatch: Any
) -> None:
    with opened(tmp_path, some_vectors) as memory, Memory(tmp_path / "agent.db", embedder="off") as other:
        note = memory.remember("the automobile is blue")
        add = external_index._Mirror._add

        def slow_add(mirror: Any, store: Any, rows: Any) -> None:
            monkeypatch.undo()
            real = mirror.index.add
            mirror.index.add = lambda *given: (other.erase(note.id), real(*given))
            add(mirror, store, rows)
            del mirror.index.add

        monkeypatch.setattr(external_index._Mirror, "_add", slow_add)
        memory.index()
        assert index_of(memory).count() == 0


def test_keys_hold_the_passage_and_change_with_the_numbers() -> None:
    keys = {key_of(7, bytes([number])) for number in range(50)} | {key_of(2**32 - 1, b"")}
    assert len(keys) == 51
    assert {passage_of(key) for key in keys} == {7, 2**32 - 1}
    assert all(0 < key < 2**63 for key in keys)


# --- several processes -----------------------------------------------------------------------------------------------

ADD = """
import sys
from recalling import concepts
from smolmem import Memory
with Memory(sys.argv[1], strict=True, embedder=concepts, vectors=sys.argv[2]) as memory:
    memory.remember(sys.argv[3])
    memory.index()
    print([one.text for one in memory.recall(sys.argv[4], floor=0.0) if "semantic" in one.signals])
"""


def another_process(folder: Path, vectors: str, text: str, question: str) -> subprocess.CompletedProcess[str]:
    return programs.run(["-c", ADD, folder / "agent.db", vectors, text, question])


@pytest.mark.parametrize("kind", ["faiss-file", *SHARED])
def test_two_processes_find_what_either_of_them_adds(tmp_path: Path, kind: str) -> None:
    vectors = url_of(kind, tmp_path)
    with opened(tmp_path, vectors) as memory:
        memory.remember("the automobile is blue")
        memory.index()
        assert semantic(memory, "which vehicle?") == ["the automobile is blue"]
        done = another_process(tmp_path, vectors, "the ocean is deep", "which vehicle?")
        assert done.returncode == 0, done.stderr
        assert "the automobile is blue" in done.stdout
        assert semantic(memory, "the sea?")[0] == "the ocean is deep"
        memory.remember("a physician called")
        memory.index()
        assert index_of(memory).count() == 3
        assert semantic(memory, "a doctor?")[0] == "a physician called"


@pytest.mark.parametrize("kind", ["qdrant", MILVUS])
def test_a_second_process_on_a_folder_for_one_goes_on_by_words(tmp_path: Path, kind: str) -> None:
    vectors = url_of(kind, tmp_path)
    with opened(tmp_path, vectors) as memory:
        memory.remember("the automobile is blue")
        memory.index()
        done = another_process(tmp_path, vectors, "the ocean is deep", "ocean")
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "[]"
        assert done.stderr.count("smolmem recalls by words alone") == 1
        memory.index()
        assert semantic(memory, "the sea?")[0] == "the ocean is deep"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is not on this system")
@pytest.mark.parametrize("kind", ["faiss", "chroma", "lancedb", MILVUS])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_recall_goes_on_in_a_forked_child(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path, url_of(kind, tmp_path)) as memory:
        memory.remember("the automobile is blue")
        memory.index()
        semantic(memory, "which vehicle?")
        child = os.fork()
        if child == 0:
            os._exit(0 if [one.text for one in memory.recall("automobile")] == ["the automobile is blue"] else 1)
        end = time.monotonic() + 30
        while (done := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.05)
        if done[0] == 0:
            os.kill(child, 9)
            os.waitpid(child, 0)
        assert done == (child, 0)


# --- what can go wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["", "chroma", "pinecone:///x", "faiss+http://x", "lancedb+http://x", 7, "qdrant"])
def test_a_url_that_names_no_index_is_refused(tmp_path: Path, wrong: Any) -> None:
    if wrong == "":
        wrong = "://"
    with pytest.raises(InvalidArgument, match="vectors is one of"):
        opened(tmp_path, wrong)


@pytest.mark.parametrize(("kind", "package"), [("faiss", "faiss"), ("chroma", "chromadb"), ("milvus", "pymilvus")])
def test_a_missing_package_is_one_sentence_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, package: str
) -> None:
    monkeypatch.setattr(vector_index.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidArgument, match=rf"needs {package}: pip install 'smolmem\[{kind}\]'\.$"):
        opened(tmp_path, f"{kind}:///{tmp_path}/x")


def test_without_the_server_recall_goes_on_by_words_and_says_so_once(tmp_path: Path, caplog: Any) -> None:
    with opened(tmp_path, f"chroma+http://127.0.0.1:{free_port()}") as memory:
        note = memory.remember("the automobile is blue")
        began = time.monotonic()
        for _ in range(5):
            memory.index()
            assert [one.text for one in memory.recall("automobile")] == ["the automobile is blue"]
        assert time.monotonic() - began < 15
        assert [record.levelno for record in caplog.records if "by words alone" in record.message] == [logging.WARNING]
        assert memory.erase(note).finished is False
        assert memory.finish_erase() is False


def test_a_damaged_faiss_file_is_made_again(tmp_path: Path, caplog: Any) -> None:
    vectors = url_of("faiss-file", tmp_path)
    with opened(tmp_path, vectors) as memory:
        memory.remember("the automobile is blue")
        memory.index()
    [file] = (tmp_path / "faiss-file").iterdir()
    for garbage in (b"", b"PK\3\4 garbage", file.read_bytes()[:300]):
        file.write_bytes(garbage)
        with opened(tmp_path, vectors) as memory:
            assert semantic(memory, "which vehicle?") == ["the automobile is blue"]
        assert "rebuilds it" in caplog.text
        caplog.clear()
        with np.load(file) as saved:
            assert saved.files, "closing the memory saved the index"


@pytest.mark.skipif(sys.platform == "win32", reason="file modes are those of POSIX")
def test_folders_of_an_index_are_their_owners_alone(tmp_path: Path, vectors: str) -> None:
    with opened(tmp_path, vectors) as memory:
        memory.remember("the automobile is blue")
        memory.index()
    for made in tmp_path.iterdir():
        if made.is_dir():
            assert made.stat().st_mode & 0o777 == 0o700, made


def test_an_encrypted_store_leaves_no_plain_vectors(tmp_path: Path) -> None:
    from smolmem.store.opening import open_store

    class Encrypted:
        encrypted, url = True, "agent.db"

    with pytest.raises(InvalidArgument, match="use vectors='faiss', which stays in RAM"):
        external_index.ExternalIndex(f"chroma://{tmp_path}/x", Encrypted())  # type: ignore[arg-type]
    store = open_store(tmp_path / "plain.db")
    external_index.ExternalIndex(f"chroma://{tmp_path}/x", store)
    store.close()


def test_the_environment_names_the_index_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = url_of("lancedb", tmp_path)
    with opened(tmp_path, vectors) as memory:
        note = memory.remember("the automobile is blue")
        memory.index()
    monkeypatch.setenv("SMOLMEM_VECTORS", vectors)
    assert main(["--db", str(tmp_path / "agent.db"), "erase", note.id, "--yes"]) == 0
    import lancedb

    database = lancedb.connect(str(tmp_path / "lancedb"))
    assert [database.open_table(name).count_rows() for name in database.list_tables().tables] == [0]


# --- a Chroma server -------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Server:
    """A Chroma server in another process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.start()

    def start(self) -> None:
        command = [
            str(Path(sys.executable).with_name("chroma")),
            "run",
            "--path",
            str(self.folder),
            "--host",
            "127.0.0.1",
        ]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError("the Chroma server did not start")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(20)


@pytest.fixture
def chroma_server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "server")
    yield made
    made.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Chroma leaves its sockets to the garbage collector
        gc.collect()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_chroma_server_that_goes_and_comes_back(
    tmp_path: Path, chroma_server: Server, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr(external_index, "PAUSE_SECONDS", 0.0)
    with opened(tmp_path, f"chroma+http://127.0.0.1:{chroma_server.port}") as memory:
        note = memory.remember("the automobile is blue")
        memory.index()
        assert semantic(memory, "which vehicle?") == ["the automobile is blue"]
        chroma_server.stop()
        memory.remember("the ocean is deep")
        memory.index()
        assert [one.text for one in memory.recall("automobile")] == ["the automobile is blue"]
        assert not memory.erase(note).finished
        assert caplog.text.count("recalls by words alone") == 1
        chroma_server.start()
        assert memory.finish_erase()
        assert semantic(memory, "the sea?") == ["the ocean is deep"]
        assert index_of(memory).count() == 1


# --- importing what users have ---------------------------------------------------------------------------------------


def a_collection(folder: Path, name: str = "papers") -> None:
    from smolmem.core.telemetry import quiet_chromadb

    chromadb = quiet_chromadb()
    with chromadb.PersistentClient(str(folder), chromadb.Settings(anonymized_telemetry=False)) as client:
        made = client.create_collection(name, embedding_function=None)
        texts: list[Any] = [f"paper {number} is about the ocean" for number in range(7)] + ["the automobile is blue"]
        sources: list[Any] = [{"source": f"{number}.pdf", "page": number} for number in range(7)] + [None]
        made.add(ids=list("abcdefgh"), embeddings=np.eye(8, dtype=np.float32), documents=texts, metadatas=sources)


def test_a_chroma_collection_is_imported_once_as_notes_of_low_trust(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(document_import, "PAGE", 3)
    a_collection(tmp_path / "chroma")
    seen: list[tuple[int, int]] = []
    with opened(tmp_path, None) as memory:
        url = f"chroma://{tmp_path}/chroma/papers"
        done = import_collection(memory, url, progress=lambda *given: seen.append(given))
        assert (done.added, done.skipped, seen[-1]) == (8, 0, (8, 8))
        assert import_collection(memory, f"chroma://{tmp_path}/chroma").skipped == 8
        memory.index()
        best = memory.recall("which vehicle?")[0]
        assert (best.text, best.origin, best.trust) == ("the automobile is blue", "import", "low")
        assert len(memory.notes(tag="3.pdf")) == 1


def test_an_import_from_chroma_that_names_nothing_says_what_there_is(tmp_path: Path, memory: Memory) -> None:
    a_collection(tmp_path / "chroma")
    with pytest.raises(NotFound, match=r"collections \(papers\): add /NAME"):
        import_collection(memory, f"chroma://{tmp_path}/chroma/books")
    with pytest.raises(NotFound, match="not a folder of Chroma"):
        import_collection(memory, f"chroma://{tmp_path}/nothing/books")
    assert not (tmp_path / "nothing").exists()


def test_a_docstore_of_llama_index_and_documents_as_json_are_imported(tmp_path: Path, memory: Memory) -> None:
    from llama_index.core.schema import Document, TextNode
    from llama_index.core.storage.docstore import SimpleDocumentStore

    store = SimpleDocumentStore()
    store.add_documents(
        [Document(text="the ocean is deep", metadata={"file_name": "sea.txt"}), TextNode(text="a node")]
    )
    store.persist(str(tmp_path / "storage" / "docstore.json"))
    for source in (tmp_path / "storage", f"faiss://{tmp_path}/storage"):
        done = import_collection(memory, source)
        assert done.added + done.skipped == 2
    assert memory.notes(tag="sea.txt")[0].text == "the ocean is deep"
    (tmp_path / "list.json").write_text(
        '[{"page_content": "one", "metadata": {"source": "x"}}, {"text": " "}, "three"]'
    )
    done = import_collection(memory, tmp_path / "list.json")
    assert (done.added, done.empty) == (2, 1)


class Docstore:
    """Has the shape of the docstore that LangChain's FAISS saves."""

    def __init__(self, documents: dict[str, Any]) -> None:
        self._dict = documents


class Bomb:
    """Makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._folder),)


def faiss_folder(tmp_path: Path, content: Any, protocol: int = 5) -> Path:
    folder = tmp_path / "faiss_index"
    folder.mkdir(exist_ok=True)
    (folder / "index.faiss").write_bytes(b"")
    (folder / "index.pkl").write_bytes(pickle.dumps(content, protocol))
    return folder


@pytest.mark.promise("S1")
@pytest.mark.parametrize("protocol", range(1, 6))
def test_the_documents_of_langchains_faiss_are_read_and_its_pickle_is_not_loaded(
    tmp_path: Path, memory: Memory, protocol: int
) -> None:
    documents = {str(number): LangChainDocument(f"text {number}", metadata={"source": "a.pdf"}) for number in range(3)}
    content = Docstore(documents), Bomb(tmp_path / "exploded"), {number: str(number) for number in range(3)}
    folder = faiss_folder(tmp_path, content, protocol)
    assert import_collection(memory, folder).added == 3
    for source in (folder / "index.pkl", f"faiss://{folder}"):
        assert import_collection(memory, source).skipped == 3
    found = memory.notes(tag="a.pdf")
    assert {(note.text, note.origin) for note in found} == {(f"text {number}", "import") for number in range(3)}
    assert not (tmp_path / "exploded").exists()


@pytest.mark.promise("S1")
def test_a_garbled_pickle_is_refused_in_one_sentence_or_read(tmp_path: Path, memory: Memory) -> None:
    documents = {str(number): LangChainDocument(f"text {number}") for number in range(3)}
    folder = faiss_folder(tmp_path, (Docstore(documents), Bomb(tmp_path / "exploded")))
    whole = (folder / "index.pkl").read_bytes()
    random = Random(7)
    for _ in range(100):
        garbled = bytearray(whole[: random.randrange(1, len(whole))])
        garbled[random.randrange(len(garbled))] = random.randrange(256)
        (folder / "index.pkl").write_bytes(garbled)
        with suppress(InvalidArgument):
            import_collection(memory, folder)
    with pytest.raises(InvalidArgument, match=r"index\.pkl is a pickle without documents"):
        import_collection(memory, faiss_folder(tmp_path, Bomb(tmp_path / "exploded")))
    assert not (tmp_path / "exploded").exists()


def test_a_document_that_was_forgotten_is_not_imported_again(tmp_path: Path, memory: Memory) -> None:
    (tmp_path / "list.json").write_text('[{"text": "the ocean is deep"}, {"text": "a lake"}, {"text": "a lake"}]')
    assert import_collection(memory, tmp_path / "list.json").added == 2
    memory.forget(next(note for note in memory.notes() if "ocean" in note.text))
    again = import_collection(memory, tmp_path / "list.json")
    assert (again.added, again.skipped) == (0, 3)
    assert memory.recall("ocean", floor=0.0) == []


def test_metadata_that_is_not_text_becomes_no_tag(tmp_path: Path, memory: Memory) -> None:
    (tmp_path / "list.json").write_text(
        '[{"text": "one", "metadata": {"source": ["x"], "title": 7, "url": "http://\\u0007a"}}]'
    )
    import_collection(memory, tmp_path / "list.json")
    assert memory.notes()[0].tags == ("http:// a",)


def test_the_command_recognises_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "list.json").write_text('[{"text": "the ocean is deep"}]')
    folder = faiss_folder(tmp_path, {"1": LangChainDocument("a lake")})
    for source in (tmp_path / "list.json", folder):
        assert main(["--db", str(tmp_path / "agent.db"), "import", str(source)]) == 0, capsys.readouterr()
    with Memory(tmp_path / "agent.db") as memory:
        assert {note.text for note in memory.notes(kind="document")} == {"the ocean is deep", "a lake"}


@pytest.mark.parametrize(
    "content", ["{", "{}", "[1]", '[{"metadata": {}}]', '{"docstore/data": {"x": {}}}', "[" * 100_000]
)
def test_a_file_without_documents_is_one_error(tmp_path: Path, memory: Memory, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(InvalidArgument, match=r"x\.json"):
        import_collection(memory, tmp_path / "x.json")
    assert memory.notes() == []


def test_the_page_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parent.parent / "docs/vector-stores.md"
    assert len(pages.blocks(page)) >= 4
    pages.run(page)


USE = """
import sys, time
from recalling import concepts
from smolmem import Memory
with Memory(sys.argv[1] + "/agent.db", embedder=concepts, vectors=sys.argv[2]) as memory:
    memory.remember("the automobile is blue")
    memory.index()
    assert memory.recall("which vehicle?", floor=0.0)
time.sleep(0.5)  # telemetry is sent from a thread
"""


@pytest.mark.promise("S17")
@pytest.mark.parametrize("kind", ["chroma", *(["lancedb", "qdrant"] if TORTURE else [])])
def test_an_index_resolves_sends_and_writes_nothing_elsewhere(tmp_path: Path, kind: str) -> None:
    """Temporary files count as the store's."""
    home, folder, log = tmp_path / "home", tmp_path / "store", tmp_path / "calls"
    home.mkdir()
    (folder / "tmp").mkdir(parents=True)
    environment = test_private._environment(home) | {"TMPDIR": str(folder / "tmp")}
    command = [*test_private._watch(log), sys.executable, "-B", "-c", USE, str(folder), url_of(kind, folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(home.rglob("*")) == []
    if log.exists():
        calls = log.read_text(errors="replace").splitlines()
        assert len(calls) > 100
        assert [call for call in calls if test_private._reaches_out(call)] == []
        assert [call for call in calls if test_private._writes(call) and str(folder) not in call] == []


# --- pgvector --------------------------------------------------------------------------------------------------------


def test_a_large_scope_has_an_hnsw_index_of_its_own_and_finds_the_nearest(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from smolmem.recall.indexes import pgvector_index
    from smolmem.store.postgres.address import parse

    monkeypatch.setattr(pgvector_index, "LARGE_SCOPE", 1_000)
    index = pgvector_index.PgvectorIndex(parse(pg_url), "smolmem-test", 32)
    chance = np.random.default_rng(1)
    numbers = chance.normal(size=(2_400, 32)).astype(np.float32)
    numbers /= np.linalg.norm(numbers, axis=1, keepdims=True)
    scopes = ["large"] * 2_000 + [f"small_{number % 4}" for number in range(400)]
    index.add(range(2_400), numbers, scopes)
    for _ in range(2):  # the second time nothing is left to do
        index.save()
    index._connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off")
    asked = "SELECT key FROM {table} WHERE scope = 'large' ORDER BY numbers <#> CAST(%s AS halfvec) LIMIT 9"
    plan = index._run(index._sql(f"EXPLAIN {asked}"), [pgvector_index._text(numbers[0])]).fetchall()
    assert "smolmem-test-large_numbers_idx" in str(plan)
    hits = {"large": 0, "small_1": 0}
    for scope in hits:
        rows = [row for row, of in enumerate(scopes) if of == scope]
        for _ in range(20):
            asked = chance.normal(size=32).astype(np.float32)
            true = sorted(rows, key=lambda row: -float(numbers[row] @ asked))[:10]
            found = index.nearest(asked, 10, scope)
            assert len(found) == 10
            assert set(found) <= set(rows)
            hits[scope] += len(set(true) & set(found))
    assert hits["small_1"] >= 199  # exact, but for the rounding to 16 bits
    assert hits["large"] >= 190
    assert len(index.nearest(numbers[0], 1_500, "large")) == 1_500
    index.drop(range(10))
    assert index.count() == 2_390
    index.close()


def test_a_password_of_pgvector_is_in_no_message(tmp_path: Path, caplog: Any) -> None:
    with opened(tmp_path, "pgvector://me:hunter2@127.0.0.1:1/x?connect_timeout=2") as memory:
        memory.remember("the automobile is blue")
        memory.index()
        memory.recall("which vehicle?")
    assert "pgvector://me@127.0.0.1:1/x" in caplog.text
    assert "hunter2" not in caplog.text
    with pytest.raises(InvalidArgument) as error:
        opened(tmp_path, "pgvectors://me:hunter2@127.0.0.1/x")
    assert "hunter2" not in str(error.value)
