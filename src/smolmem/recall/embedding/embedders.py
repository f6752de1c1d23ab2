"""Text to vectors: a small local model, a server, or a function.

The local models need the `semantic` extra (ONNX Runtime and a tokenizer, no PyTorch), the static table needs the
`static` extra. `models.py` fetches their files. Without an embedder recall uses words alone.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CellType, CodeType
from typing import Any, Literal, Protocol, runtime_checkable
from weakref import WeakValueDictionary

from smolmem.core.errors import InvalidArgument
from smolmem.core.fork_lock import ForkLock
from smolmem.core.telemetry import quiet_onnxruntime
from smolmem.core.text import one_line
from smolmem.recall.embedding import models
from smolmem.recall.embedding.static_table import StaticModel
from smolmem.store.fork_hooks import no_fork

Vector = Sequence[float]
RETRIES = (1.0, 5.0)
"""Seconds to wait before a batch is sent again."""
QUESTION_SECONDS = 10.0
"""Seconds that a question waits for an embedding server."""
MAX_BYTES = 1 << 20
"""Bytes that a server may answer for one text: several times what a vector of 8,192 numbers takes."""
ModelName = Literal["local", "e5-small-v2", "bge-small-en-v1.5", "potion-base-8m", "off"]


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors; texts of similar meaning have near vectors."""

    @property
    def model(self) -> str:
        """The name of the model: vectors of different models are never compared."""
        ...

    def passages(self, texts: Sequence[str]) -> Sequence[Vector]:
        """The vectors of some passages, in order; an empty vector for a text that the model knows nothing of."""
        ...

    def query(self, text: str) -> Vector:
        """The vector of a question."""
        ...


def open_embedder(given: Embedder | Callable[[list[str]], Any] | ModelName | None) -> Embedder | None:
    """Opens the embedder that a user chose; None for recall by words only.

    Raises:
        InvalidArgument: if the local model cannot be loaded.
    """
    if given is None:
        name = default_model()
        return None if name is None else _open_local(models.verified(LOCAL[name]), LOCAL[name])
    if given == "off":
        return None
    if isinstance(given, str):
        require_packages(LOCAL[given])
        return _open_local(models.fetch(LOCAL[given]), LOCAL[given])
    return given if isinstance(given, Embedder) else AdaptedEmbedder.of(given) or EmbeddingFunction(given)


def default_model() -> str | None:
    """The default local model; None for recall by words only.

    It is the model that `smolmem model use` chose, otherwise the most accurate model that is on this machine. Nothing
    is downloaded.
    """
    name = models.chosen()
    if name == "off":
        return None
    names = [name] if name in LOCAL else [name for name in LOCAL if name != "local"]
    return next((name for name in names if LOCAL[name].here and not missing_packages(LOCAL[name])), None)


def missing_packages(files: models.Files) -> list[str]:
    """The packages that a local model needs and that are not installed."""
    return [package for package in files.needs if importlib.util.find_spec(package) is None]


def require_packages(files: models.Files) -> None:
    """Checks that the packages of a local model are installed.

    Raises:
        InvalidArgument: the message names the missing packages.
    """
    missing = missing_packages(files)
    if missing:
        extra = "static" if files.needs == models.STATIC else "semantic"
        raise InvalidArgument(f"the model {files.name} needs {', '.join(missing)}: pip install 'smolmem[{extra}]'.")


def _open_local(folder: Path, files: models.Files) -> Embedder:
    network = NETWORKS.get(files.name)
    return StaticModel(files.name, folder) if network is None else LocalModel(network, folder)


def checked(given: Any) -> Any:
    """The embedder that a user chose, if it can be one; nothing is loaded yet."""
    named = given is None or (isinstance(given, str) and given in ("off", *LOCAL))
    if named or (not isinstance(given, str) and (isinstance(given, Embedder) or callable(given))):
        return given
    if AdaptedEmbedder.of(given) is not None:
        return given
    raise InvalidArgument(
        f"embedder is {', '.join(map(repr, ('off', *LOCAL)))}, an Embedder or a function, not {given!r}."
    )


def installed() -> bool:
    """Whether the packages of the local models are installed."""
    try:
        import numpy
        import tokenizers

        return bool(numpy and quiet_onnxruntime() and tokenizers)
    except ImportError:
        return False


class Network:
    """An ONNX model and its tokenizer; loaded when it is first used."""

    def __init__(self, folder: Any, output: str) -> None:
        self._folder, self._output = folder, output
        self._lock = ForkLock(self._set_aside)
        self._loaded: tuple[Any, Any] | None = None

    def _load(self) -> tuple[Any, Any]:
        with no_fork, self._lock:
            if self._loaded is None:
                from tokenizers import Tokenizer

                tokenizer = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
                tokenizer.no_padding()
                tokenizer.enable_truncation(512)
                onnxruntime = quiet_onnxruntime()
                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads = max(1, min(2, (os.cpu_count() or 2) // 2))
                options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the agent needs the cores
                model = str(self._folder / "model.onnx")
                self._loaded = tokenizer, onnxruntime.InferenceSession(model, options)
            return self._loaded

    def _set_aside(self) -> None:
        """The session of a parent process has threads that a child lacks: it can neither run nor be deleted there."""
        _inherited.append(self._loaded)
        self._loaded = None

    def run(self, *texts: str) -> Any:
        """The output for one text or pair: one at a time, since the output of int8 models depends on the batch."""
        import numpy as np

        tokenizer, session = self._load()
        read = tokenizer.encode(*texts)
        names = {"input_ids": read.ids, "attention_mask": read.attention_mask, "token_type_ids": read.type_ids}
        return session.run([self._output], {name: np.array([row], np.int64) for name, row in names.items()})[0]


_networks: WeakValueDictionary[tuple[str, str], Network] = WeakValueDictionary()


def network_of(folder: Path, output: str) -> Network:
    """The network in a folder. All memories of a process share it: loading takes most of a second."""
    return _networks.setdefault((str(folder), output), Network(folder, output))


@dataclass(frozen=True)
class Local:
    """A local model: its files, its prefixes for queries and passages, and whether it pools by mean or first token."""

    files: models.Files
    question: str
    text: str
    mean: bool


E5 = Local(models.E5, "query: ", "passage: ", mean=True)
BGE = Local(models.BGE, "Represent this sentence for searching relevant passages: ", "", mean=False)
NETWORKS = {local.files.name: local for local in (E5, BGE)}
LOCAL = {"local": models.E5, **{files.name: files for files in (models.E5, models.BGE, models.POTION)}}
"""The local models by name, the most accurate first."""
_inherited: list[Any] = []


class LocalModel:
    """A small model on the CPU: 384 numbers, English above all, some milliseconds for a question."""

    batch = 4
    """Passages that are embedded before the indexer looks whether it should end: a long one can take 0.2 s."""

    def __init__(self, local: Local, folder: Any) -> None:
        self.model = f"{local.files.name}-int8"
        self._local = local
        self._network = network_of(folder, "last_hidden_state")

    def passages(self, texts: Sequence[str]) -> list[Vector]:
        """The vectors of some passages, one by one: the output of an int8 model depends on the batch."""
        return [self._embed(f"{self._local.text}{text}") for text in texts]

    def query(self, text: str) -> Vector:
        """The vector of a question."""
        return self._embed(f"{self._local.question}{text}")

    def _embed(self, text: str) -> Vector:
        words = self._network.run(text)[0]
        whole = words.mean(axis=0) if self._local.mean else words[0]
        vector: Vector = whole / ((whole @ whole) ** 0.5 or 1.0)
        return vector


class Reranker:
    """ms-marco-MiniLM-L-12-v2: scores a question and a text together, which is slower and more accurate."""

    def __init__(self) -> None:
        require_packages(models.RERANKER)
        self._network = network_of(models.fetch(models.RERANKER), "logits")

    def score(self, query: str, text: str) -> float:
        """How well a text answers a question."""
        return float(self._network.run(query, text)[0][0])


class EmbeddingFunction:
    """An embedder made of a function from a list of texts to their vectors; its `model`, if it has one, names it."""

    def __init__(self, embed: Callable[[list[str]], Any]) -> None:
        name = getattr(embed, "__qualname__", type(embed).__qualname__)
        self.model = str(getattr(embed, "model", None) or f"{name}-{zlib.crc32(_told_by(embed).encode()):08x}")
        self._function = embed

    def passages(self, texts: Sequence[str]) -> list[Vector]:
        """The vectors of some texts."""
        return [[float(number) for number in vector] for vector in self._function(list(texts))]

    def query(self, text: str) -> Vector:
        """The vector of a question: the same function."""
        [vector] = self.passages([text])
        return vector


def _told_by(embed: Callable[..., Any]) -> str:
    """What a function does, and the names and texts that it uses, such as that of a model; the same in each process."""
    code = getattr(embed, "__code__", None)
    cells = [cell for cell in getattr(embed, "__closure__", None) or () if cell != CellType()]  # which is empty
    values = [*(getattr(embed, "__defaults__", None) or ()), *(cell.cell_contents for cell in cells)]
    texts = [value for value in values if isinstance(value, str)]
    return repr((_told_in(code, getattr(embed, "__doc__", None)), texts)) if code else ""


def _told_in(code: CodeType, doc: str | None = None) -> str:
    values = (value for value in code.co_consts if doc is None or value != doc)
    told = [_told_in(value) if isinstance(value, CodeType) else _told(value) for value in values]
    return repr((code.co_code, code.co_names, told))


def _told(constant: object) -> str:
    return repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


class AdaptedEmbedder:
    """An embedder of LangChain or LlamaIndex, known by its methods; neither library is imported."""

    _METHODS = (("embed_documents", "embed_query"), ("get_text_embedding_batch", "get_query_embedding"))

    def __init__(self, embedder: Any, passages: str, query: str) -> None:
        named = (getattr(embedder, name, None) for name in ("model_name", "model", "model_id"))
        name = next((name for name in named if isinstance(name, str) and name), "")
        self.model = f"{type(embedder).__name__} {name}".strip()
        self._passages, self._query = getattr(embedder, passages), getattr(embedder, query)

    @classmethod
    def of(cls, given: Any) -> AdaptedEmbedder | None:
        """The adapted embedder; None if the object has other methods."""
        for methods in cls._METHODS:
            if all(callable(getattr(given, name, None)) for name in methods):
                return cls(given, *methods)
        return None

    def passages(self, texts: Sequence[str]) -> list[Vector]:
        """The vectors of some texts."""
        return [[float(number) for number in vector] for vector in self._passages(list(texts))]

    def query(self, text: str) -> Vector:
        """The vector of a question."""
        return [float(number) for number in self._query(text)]


class EmbeddingServer:
    """An embedding server, in the form of OpenAI or of Ollama.

    Passages are sent in batches. A request that fails because the server is busy or away is sent again, twice. A
    redirect is an error: stored texts go to the address that the user named, and to no other.

    Args:
        url: its address: `http://localhost:11434/v1` for the form of OpenAI, `http://localhost:11434/api` for Ollama's.
        model: the embedding model it should use.
        key: sent as a bearer token, where the server wants one.
        timeout: seconds to wait for an answer.

    Raises:
        InvalidArgument: if the address is not one of HTTP.
    """

    def __init__(self, url: str, model: str, *, key: str | None = None, timeout: float = 30.0) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise InvalidArgument(f"the address of a server begins with http:// or https://, unlike {url!r}.")
        self.model = model
        self._ollama = url.rstrip("/").endswith("/api")
        self._url = f"{url.rstrip('/')}/{'embed' if self._ollama else 'embeddings'}"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout = timeout

    def passages(self, texts: Sequence[str]) -> list[Vector]:
        """The vectors of some texts, in one request."""
        for wait in RETRIES:
            try:
                return self._ask(texts, self._timeout)
            except OSError as error:  # no connection, no answer in time, or an error of the server
                status = getattr(getattr(error, "response", None), "status_code", 503)
                if status < 500 and status != 429:  # the server would refuse it again
                    raise
                time.sleep(wait)
        return self._ask(texts, self._timeout)

    def query(self, text: str) -> Vector:
        """The vector of a question. A user is waiting: there is no retry, and the timeout is short."""
        return self._ask([text], min(self._timeout, QUESTION_SECONDS))[0]

    def _ask(self, texts: Sequence[str], timeout: float) -> list[Vector]:
        import requests

        asked = {"model": self.model, "input": list(texts)}
        end = time.monotonic() + timeout
        options: dict[str, Any] = {"headers": self._headers, "stream": True, "allow_redirects": False}
        with requests.post(self._url, json=asked, timeout=timeout, **options) as answer:
            body = bytearray()
            for part in _arriving(answer):
                body += part
                if len(body) > MAX_BYTES * len(texts):
                    raise ValueError(f"{self._url} answered with more than {MAX_BYTES:,} bytes a text")
                if time.monotonic() > end:
                    raise requests.Timeout(f"{self._url} did not finish its answer in {timeout:g} seconds")
        if answer.status_code >= 300:
            said = one_line(answer.headers.get("Location") or body[:1_000].decode(errors="replace"), 300)
            raise requests.HTTPError(f"{self._url} answered {answer.status_code}: {said}", response=answer)
        return self._vectors(bytes(body), len(texts))

    def _vectors(self, body: bytes, count: int) -> list[Vector]:
        try:
            said = json.loads(body)
            rows = said["embeddings"] if self._ollama else [row["embedding"] for row in _in_order(said["data"])]
            vectors: list[Vector] = [[float(number) for number in row] for row in rows]
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            said = body[:100].decode(errors="replace")
            raise ValueError(f"{self._url} answered with something else than embeddings: {said!r}") from error
        if len(vectors) != count or not all(vectors):
            raise ValueError(f"{self._url} answered with {sum(map(bool, vectors))} vectors for {count} texts")
        return vectors


def _arriving(answer: Any) -> Iterator[bytes]:
    """The parts of an answer as they arrive; `iter_content` would wait until a part has its full size."""
    import requests
    from urllib3.exceptions import HTTPError

    read = getattr(answer.raw, "read1", answer.raw.read)
    try:
        while part := read(65_536, decode_content=True):
            yield part
    except HTTPError as error:
        raise requests.ConnectionError(str(error)) from error


def _in_order(data: list[Any]) -> list[Any]:
    """The rows of an answer in the order of the texts."""
    return sorted(data, key=lambda row: row.get("index", 0))


def normalised(vector: Vector) -> Vector:
    """A vector of length one.

    Raises:
        ValueError: if it has no direction.
    """
    length = math.hypot(*vector)
    if not length < float("inf") or length == 0.0:
        raise ValueError(f"a vector of {len(vector)} numbers has no direction")
    return [float(number) / length for number in vector]
