"""Text to vectors: a small local model, a server, or a function.

The local model needs the `semantic` extra (ONNX Runtime and a tokenizer, no PyTorch) and 34 MB of files, which
`models.py` fetches. Without an embedder recall uses words alone.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from smolmem.core.errors import InvalidArgument
from smolmem.core.telemetry import quiet_onnxruntime
from smolmem.recall import models

Vector = Sequence[float]
RETRIES = (1.0, 5.0)
"""Seconds to wait before a batch is sent again."""
QUESTION_SECONDS = 10.0
"""Seconds that a question waits for an embedding server."""
ModelName = Literal["local", "e5-small-v2", "bge-small-en-v1.5", "off"]


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors; texts of similar meaning have near vectors."""

    @property
    def model(self) -> str:
        """The name of the model: vectors of different models are never compared."""
        ...

    def passages(self, texts: Sequence[str]) -> Sequence[Vector]:
        """The vectors of some passages, in order."""
        ...

    def query(self, text: str) -> Vector:
        """The vector of a question."""
        ...


def open_embedder(given: Embedder | Callable[[list[str]], Any] | ModelName | None) -> Embedder | None:
    """Opens the embedder that a user chose; None for recall by words alone.

    Raises:
        InvalidArgument: if the local model cannot be loaded.
    """
    if given == "off":
        return None
    if given is None:
        here = next((local for local in (E5, BGE) if local.files.here), None)
        return LocalModel(here, models.verified(here.files)) if here is not None and installed() else None
    if isinstance(given, str):
        if not installed():
            raise InvalidArgument("a local model needs more packages: pip install 'smolmem[semantic]'.")
        return LocalModel(LOCAL[given], models.fetch(LOCAL[given].files))
    return given if isinstance(given, Embedder) else EmbeddingFunction(given)


def checked(given: Any) -> Any:
    """The embedder that a user chose, if it can be one; nothing is loaded yet."""
    named = given is None or (isinstance(given, str) and given in ("off", *LOCAL))
    if named or (not isinstance(given, str) and (isinstance(given, Embedder) or callable(given))):
        return given
    raise InvalidArgument(
        f"embedder is {', '.join(map(repr, ('off', *LOCAL)))}, an Embedder or a function, not {given!r}."
    )


def installed() -> bool:
    """Whether what local models need is installed."""
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
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Any] | None = None

    def _load(self) -> tuple[Any, Any]:
        with self._lock:
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

    def run(self, *texts: str) -> Any:
        """The output for one text or pair: one at a time, since the output of int8 models depends on the batch."""
        import numpy as np

        tokenizer, session = self._load()
        read = tokenizer.encode(*texts)
        names = {"input_ids": read.ids, "attention_mask": read.attention_mask, "token_type_ids": read.type_ids}
        return session.run([self._output], {name: np.array([row], np.int64) for name, row in names.items()})[0]


@dataclass(frozen=True)
class Local:
    """A local model: its files, its prefixes for queries and passages, and whether it pools by mean or first token."""

    files: models.Files
    question: str
    text: str
    mean: bool


E5 = Local(models.E5, "query: ", "passage: ", mean=True)
BGE = Local(models.BGE, "Represent this sentence for searching relevant passages: ", "", mean=False)
LOCAL = {"local": E5, models.E5.name: E5, models.BGE.name: BGE}


class LocalModel:
    """A small model on the CPU: 384 numbers, English above all, some milliseconds for a question."""

    def __init__(self, local: Local, folder: Any) -> None:
        self.model = f"{local.files.name}-int8"
        self._local = local
        self._network = Network(folder, "last_hidden_state")

    def passages(self, texts: Sequence[str]) -> list[Vector]:
        """The vectors of some passages, one by one: what an int8 model makes of a text depends on its batch."""
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
        if not installed():
            raise InvalidArgument("rerank=True needs more packages: pip install 'smolmem[semantic]'.")
        self._network = Network(models.fetch(models.RERANKER), "logits")

    def score(self, query: str, text: str) -> float:
        """How well a text answers a question."""
        return float(self._network.run(query, text)[0][0])


class EmbeddingFunction:
    """An embedder made of a function from a list of texts to their vectors; its `model`, if it has one, names it."""

    def __init__(self, embed: Callable[[list[str]], Any]) -> None:
        code = getattr(getattr(embed, "__code__", None), "co_code", b"")
        name = getattr(embed, "__qualname__", type(embed).__qualname__)
        self.model = str(getattr(embed, "model", None) or f"{name}-{zlib.crc32(code):08x}")
        self._function = embed

    def passages(self, texts: Sequence[str]) -> list[Vector]:
        """The vectors of some texts."""
        return [[float(number) for number in vector] for vector in self._function(list(texts))]

    def query(self, text: str) -> Vector:
        """The vector of a question: the same function."""
        return self.passages([text])[0]


class EmbeddingServer:
    """An embedding server, in the form of OpenAI or of Ollama.

    Passages are sent in batches. A request that fails because the server is busy or away is sent again, twice.

    Args:
        url: its address: `http://localhost:11434/v1` for the form of OpenAI, `http://localhost:11434/api` for Ollama's.
        model: the embedding model it should use.
        key: sent as a bearer token, where the server wants one.
        timeout: seconds to wait for an answer.
    """

    def __init__(self, url: str, model: str, *, key: str | None = None, timeout: float = 30.0) -> None:
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
                if status < 500 and status != 429:  # what it refuses once it will refuse again
                    raise
                time.sleep(wait)
        return self._ask(texts, self._timeout)

    def query(self, text: str) -> Vector:
        """The vector of a question. Somebody waits for it: nothing is sent twice, and the wait is short."""
        return self._ask([text], min(self._timeout, QUESTION_SECONDS))[0]

    def _ask(self, texts: Sequence[str], timeout: float) -> list[Vector]:
        import requests

        asked = {"model": self.model, "input": list(texts)}
        answer = requests.post(self._url, json=asked, headers=self._headers, timeout=timeout)
        answer.raise_for_status()
        said = answer.json()
        rows = said["embeddings"] if self._ollama else [row["embedding"] for row in _in_order(said["data"])]
        return [[float(number) for number in row] for row in rows]


def _in_order(data: list[Any]) -> list[Any]:
    """The rows of an answer in the order of the texts, whatever order the server sent them in."""
    return sorted(data, key=lambda row: row.get("index", 0))


def normalised(vector: Vector) -> Vector:
    """A vector of length one.

    Raises:
        ValueError: if it has no direction.
    """
    length = sum(float(number) ** 2 for number in vector) ** 0.5
    if not length < float("inf") or length == 0.0:
        raise ValueError(f"a vector of {len(vector)} numbers has no direction")
    return [float(number) / length for number in vector]
