"""Gives passages their vectors, in batches, outside of any search.

The vector of a step's first passage is made from the beginnings of all parts of the step, so a step has a vector of the
whole of it, without one more: questions often describe what happened in a step, and no single passage says that.

The newest passages come first, and of these the most informative: tasks, answers, errors, plans and thoughts before
code and observations. Of a very long text only the beginning gets vectors; its middle is found by words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from smolmem.recall.embedding.checked_embedder import CheckedEmbedder
from smolmem.recall.semantic import model_key
from smolmem.recall.vectors import facts_of, numbers_of
from smolmem.store.base import Row, Store
from smolmem.store.passage_rows import json_list

PAGE = 256
"""Passages that are sorted by kind at a time."""
LONG = ("code", "call", "observation", "other")
MAX_PASSAGES = 12
"""Passages of one step that get vectors, of the kinds that can be very long."""

WHOLE_LENGTH, BEGINNING = 2_000, 50
"""Characters of a step that the vector of the whole step is made from, and passages that they are taken from."""


class VectorWriter:
    """Embeds the passages of a store.

    Raises:
        EmbedderFailed: the model does not answer; nothing was written.
    """

    def __init__(self, store: Store, embedder: CheckedEmbedder) -> None:
        self._store = store
        self._embedder = embedder
        self._size = embedder.probe()
        self.model = model_key(embedder.model, self._size)
        self._page: list[Row] = []

    def count(self) -> int:
        """How many passages have no vector."""
        return int(self._store.do("count_unembedded", self._waiting()))

    def write_some(self) -> int:
        """Embeds the next passages; returns how many, 0 if all have vectors.

        Raises:
            EmbedderFailed: the model does not answer; the passages keep waiting for their vectors.
        """
        if not self._page:
            self._page = self._next_page()
        batch = self._page[: self._embedder.batch]
        if batch:
            self._write(batch)
            del self._page[: self._embedder.batch]
        return len(batch)

    def begin_again(self) -> None:
        """Another process may have embedded what comes next."""
        self._page = []

    def _next_page(self) -> list[Row]:
        waiting = self._waiting()
        rows = self._store.rows("unembedded", waiting | {"limit": PAGE})
        if not rows:
            self._embedder.embedded[self.model] = waiting["last"]
        return sorted(rows, key=lambda row: (row["role"] in LONG, -row["id"]))

    def _waiting(self) -> Row:
        """Where passages without vectors can be; anywhere, if the newest passages are gone."""
        last, done = int(self._store.do("last_passage", {})), self._embedder.embedded.get(self.model, 0)
        return {"model": self.model, "above": done if done <= last else 0, "last": last}

    def _write(self, batch: list[Row]) -> None:
        told = [row for row in batch if row["role"] not in LONG or row["id"] - row["document"] < MAX_PASSAGES]
        texts = {row["id"]: row["text"] for row in told} | self._whole_texts(told)
        numbers = dict(zip(texts, self._embed([*texts.values()]), strict=True))

        def write() -> None:
            for row in batch:
                made = {"passage": row["id"], "model": self.model, "facts": facts_of(row)}
                self._store.do("put_vector", made | {"numbers": numbers.get(row["id"], b"")})

        self._store.transact(write, sync=False)

    def _whole_texts(self, batch: Sequence[Row]) -> dict[int, str]:
        """The texts of whole documents, for those of the passages that are the first of a longer one."""
        first = [row["id"] for row in batch if row["id"] == row["document"]]
        asked = {"ids": json_list(first), "known": "[]", "roles": "[]", "trusts": "[]", "most": BEGINNING}
        documents: dict[int, list[Row]] = defaultdict(list)
        for row in self._store.rows("fitting_passages", asked) if first else ():
            documents[row["document"]].append(row)
        return {id: whole_text(rows) for id, rows in documents.items() if len(rows) > 1}

    def _embed(self, texts: list[str]) -> list[bytes]:
        """The vectors of some texts as they are stored; empty for a text that the model refuses or does not know.

        If a batch fails, a plain text decides: if the model embeds that, one text of the batch is at fault.
        """
        if not texts:
            return []
        try:
            vectors = self._embedder.passages(texts)
            if any(len(vector) not in (0, self._size) for vector in vectors):
                raise ValueError("the vectors have another length than before")
        except Exception as error:
            size = self._embedder.probe()
            if size != self._size:
                changed = ValueError(f"its vectors had {self._size} numbers, and now have {size}")
                raise self._embedder.failed(changed) from error
            if len(texts) == 1:
                return [b""]
            half = len(texts) // 2
            return self._embed(texts[:half]) + self._embed(texts[half:])
        return [numbers_of(vector) if len(vector) else b"" for vector in vectors]


def whole_text(passages: Iterable[Row]) -> str:
    """The beginnings of the parts of a document, equally long, each with its name."""
    parts: dict[str, list[str]] = defaultdict(list)
    for passage in passages:
        parts[passage["role"]].append(passage["text"])
    return "\n".join(f"{role}: {' '.join(texts)[: WHOLE_LENGTH // len(parts)]}" for role, texts in parts.items())
