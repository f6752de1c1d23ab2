"""A static embedding table: the vector of a text is the mean of the vectors of its tokens.

No network is computed, so NumPy and a tokenizer are enough, and a text takes a fraction of a millisecond. The table is
published as 32-bit floats and kept as one byte per number with one scale per row, a quarter of the size.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smolmem.core.fork_lock import ForkLock

SIZE = 256
"""Numbers per vector."""
TABLE = "table.int8"
MAX_CHARACTERS = 20_000
"""Characters of a text that count."""


def prepared(file: str, data: bytes) -> bytes:
    """A published file as it is kept; every publisher's copy of the tokenizer becomes the same bytes."""
    if file == TABLE:
        return _quantised(data)
    return json.dumps(json.loads(data), indent=2, ensure_ascii=False).encode()


def _quantised(safetensors: bytes) -> bytes:
    """The rows as bytes, then their scales. The result is the same on every machine, so that its hash is known."""
    import numpy as np

    (length,) = struct.unpack("<Q", safetensors[:8])
    start, end = json.loads(safetensors[8 : 8 + length])["embeddings"]["data_offsets"]
    rows = np.frombuffer(safetensors[8 + length + start : 8 + length + end], "<f4").reshape(-1, SIZE)
    scales = np.maximum(np.abs(rows).max(axis=1) / np.float32(127), np.finfo(np.float32).tiny).astype("<f4")
    return bytes(np.rint(rows / scales[:, None]).astype(np.int8).tobytes() + scales.tobytes())


class StaticModel:
    """A static embedding table on the CPU; loaded when it is first used."""

    def __init__(self, name: str, folder: Path) -> None:
        self.model = f"{name}-int8"
        self._folder = folder
        self._lock = ForkLock(self._drop)
        self._loaded: tuple[Any, Any, Any, int | None] | None = None

    def _load(self) -> tuple[Any, Any, Any, int | None]:
        with self._lock:
            if self._loaded is None:
                import numpy as np
                from tokenizers import Tokenizer

                tokenizer = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
                tokenizer.no_padding()
                tokenizer.no_truncation()
                data = (self._folder / TABLE).read_bytes()
                count = len(data) // (SIZE + 4)
                rows = np.frombuffer(data, np.int8, count * SIZE).reshape(count, SIZE)
                scales = np.frombuffer(data, "<f4", count, count * SIZE)
                self._loaded = tokenizer, rows, scales, tokenizer.token_to_id("[UNK]")
            return self._loaded

    def _drop(self) -> None:
        self._loaded = None  # a thread of the parent may have been using the tokenizer

    def passages(self, texts: Sequence[str]) -> list[Sequence[float]]:
        """The vectors of some passages; an empty vector for a text without a known token."""
        return [self.query(text) for text in texts]

    def query(self, text: str) -> Sequence[float]:
        """The vector of a text: questions and passages are embedded alike."""
        tokenizer, rows, scales, unknown = self._load()
        ids = tokenizer.encode(text[:MAX_CHARACTERS], add_special_tokens=False).ids
        known = [token for token in ids if token != unknown]
        if not known:
            return ()
        whole = scales[known] @ rows[known]
        vector: Sequence[float] = whole / ((whole @ whole) ** 0.5 or 1.0)
        return vector
