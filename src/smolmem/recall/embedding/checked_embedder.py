"""An embedder whose answers are checked, and whose failures are logged once.

Recall and the indexer use the same embedder. If its server is down, the user gets one warning, whichever of them
noticed first, and another one only after the embedder has answered in between. After a failure no question waits for
the embedder for some seconds: one recall embeds several questions, and a silent server would delay each of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from smolmem.core.errors import EmbedderFailed
from smolmem.recall.embedding.embedders import Embedder, Vector, normalised

log = logging.getLogger("smolmem")

MAX_CHARACTERS = 4_000
"""Characters of a question that are embedded: more than the models read."""
BATCH = 32
"""Passages that are sent to a server, or given to a function, at a time."""
PAUSE_SECONDS = 10.0
"""How long no question is embedded after a failure."""
PROBE = "how long is a vector?"
"""A text that every model can embed."""


class CheckedEmbedder:
    """Another embedder; its vectors have the length one, or are empty for texts that the model knows nothing of."""

    def __init__(self, embedder: Embedder) -> None:
        self.model = embedder.model
        self.batch: int = getattr(embedder, "batch", BATCH)
        """How many passages to embed at a time."""
        self.embedded: dict[str, int] = {}
        """Up to which id all passages have vectors, by model. It stays true: a vector goes only with its passage."""
        self._embedder = embedder
        self._failure: str | None = None
        self._ask_after = 0.0

    def query(self, text: str) -> Vector:
        """The vector of a question.

        Raises:
            EmbedderFailed: the model does not answer, or not with a vector.
        """
        if self._failure is not None and time.monotonic() < self._ask_after:
            raise EmbedderFailed(self._failure)
        try:
            vector = _checked(self._embedder.query(text[:MAX_CHARACTERS]))
        except Exception as error:
            raise self.failed(error) from error
        self._failure = None
        return vector

    def passages(self, texts: Sequence[str]) -> list[Vector]:
        """The vectors of some passages.

        Raises:
            Exception: the error of the model, which may refuse one of the texts; `probe` says whether it refuses all.
        """
        vectors = [_checked(vector) for vector in self._embedder.passages(texts)]
        if len(vectors) != len(texts):
            raise ValueError(f"{len(texts)} texts gave {len(vectors)} vectors")
        return vectors

    def probe(self) -> int:
        """Embeds a plain text as a passage; returns how many numbers a vector has.

        Raises:
            EmbedderFailed: the model does not answer, or not with a vector.
        """
        try:
            [vector] = self.passages([PROBE])
            if not len(vector):
                raise ValueError("a plain text gave an empty vector")
        except Exception as error:
            raise self.failed(error) from error
        self._failure = None
        return len(vector)

    def failed(self, error: Exception) -> EmbedderFailed:
        """The error to raise; the first in a row is logged."""
        what = f"the embedder {self.model} failed ({type(error).__name__}: {error})"
        if self._failure is None:
            log.warning("smolmem recalls by words alone: %s. It is tried again, and nothing is lost.", what)
        self._failure = f"{what}: nothing is lost, and recall continues by words. Try again when it answers."
        self._ask_after = time.monotonic() + PAUSE_SECONDS
        return EmbedderFailed(self._failure)


def _checked(vector: Vector) -> Vector:
    return normalised(vector) if len(vector) else ()
