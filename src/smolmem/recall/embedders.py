"""Text to vectors: a small local model, a server, or a function.

The local model needs the `semantic` extra (ONNX Runtime and a tokenizer, no PyTorch) and 34 MB of files, which
`models.py` fetches. Without an embedder recall uses words alone.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from smolmem.core.errors import InvalidArgument
from smolmem.core.telemetry import quiet_onnxruntime
from smolmem.recall import models

Vector = Sequence[float]
ModelName = Literal["local", "e5-small-v2", "bge-small-en-v1.5", "off"]


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors; texts of similar meaning have near vectors."""

    @property
    def model(self) -> str:
        """The name of the model: vectors of different models are never compared."""
        ...

    def passage(self, text: str) -> Vector:
        """The vector of a passage."""
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
                self._loaded = tokenizer, quiet_onnxruntime().InferenceSession(str(self._folder / "model.onnx"))
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

    def passage(self, text: str) -> Vector:
        """The vector of a passage."""
        return self._embed(f"{self._local.text}{text}")

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

    def passage(self, text: str) -> Vector:
        """The vector of a text."""
        return self.query(text)

    def query(self, text: str) -> Vector:
        """The vector of a question: the same function."""
        vector: Vector = [float(number) for number in self._function([text])[0]]
        return vector


class EmbeddingServer:
    """An OpenAI-compatible embedding server, such as Ollama.

    Args:
        url: its address up to the version, for instance `http://localhost:11434/v1`.
        model: the embedding model it should use.
        key: sent as a bearer token, where the server wants one.
        timeout: seconds to wait for an answer.
    """

    def __init__(self, url: str, model: str, *, key: str | None = None, timeout: float = 30.0) -> None:
        self.model = model
        self._url = f"{url.rstrip('/')}/embeddings"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout = timeout

    def passage(self, text: str) -> Vector:
        """The vector of a text."""
        return self.query(text)

    def query(self, text: str) -> Vector:
        """The vector of a question."""
        import requests

        asked = {"model": self.model, "input": [text]}
        answer = requests.post(self._url, json=asked, headers=self._headers, timeout=self._timeout)
        answer.raise_for_status()
        vector: Vector = [float(number) for number in answer.json()["data"][0]["embedding"]]
        return vector
