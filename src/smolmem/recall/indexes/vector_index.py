"""Vector indexes outside of the store: their interface, and which one a URL names.

An index holds vectors of one model, each with a number (its key) and the index term of its scope. It holds no text. The
store keeps every vector, too, so an index can be lost at any time: `external_index.py` fills it again, and computes
scores from the vectors of the store.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from smolmem.core.errors import InvalidArgument
from smolmem.store.sqlite.private_files import make_folder

Array = Any  # a NumPy array


class VectorIndex(Protocol):
    """Vectors of one model; for one thread at a time."""

    def add(self, keys: Sequence[int], vectors: Array, scopes: Sequence[str]) -> None:
        """Adds vectors, each with the term of its scope; a vector whose key is known is replaced."""
        ...

    def drop(self, keys: Collection[int]) -> None:
        """Removes vectors; keys that are not there are ignored."""
        ...

    def nearest(self, vector: Array, limit: int, scope: str) -> list[int]:
        """The keys of the nearest vectors of a scope, in any order."""
        ...

    def keys(self) -> set[int]:
        """The keys of all vectors."""
        ...

    def count(self) -> int:
        """How many vectors there are."""
        ...

    def save(self, *, erased: bool = False) -> None:
        """Called when all changes were made: an index that is written as a whole is written now.

        After an erase, old versions of files that still hold dropped vectors are removed, where the engine can do so.
        """
        ...

    def close(self) -> None:
        """Closes the index."""
        ...


Opener = Callable[[str, int], VectorIndex]
"""Opens or creates the index of a name, for vectors of a size."""
KINDS = (
    "faiss",
    "faiss:///path",
    "chroma:///path",
    "chroma+http://host:8000",
    "qdrant:///path",
    "qdrant+http://host:6333",
    "lancedb:///path",
    "milvus:///path",
    "pgvector://user@host/database",
)
_PACKAGES = {
    "faiss": "faiss",
    "chroma": "chromadb",
    "qdrant": "qdrant_client",
    "lancedb": "lancedb",
    "milvus": "pymilvus",
    "pgvector": "psycopg",
}
"""The package of each index; its extra has the name of the index, and `postgres` for pgvector."""
_URL = re.compile(rf"(?P<kind>{'|'.join(_PACKAGES)})(\+(?P<server>https?))?(://(?P<place>.+))?", re.DOTALL)


@dataclass(frozen=True)
class Location:
    """Where an index is: the folder or file, the address of the server, or nothing for RAM."""

    kind: str
    path: Path | None
    server: str | None

    @property
    def in_process(self) -> bool:
        """Whether each process has its own copy in RAM."""
        return self.kind == "faiss"

    @property
    def leaves_process(self) -> bool:
        """Whether vectors are written to disk or sent to a server."""
        return self.path is not None or self.server is not None


def without_password(url: object) -> str:
    """A URL as messages show it."""
    hidden = re.sub(r"(//[^/@:]*):[^/@]*@", r"\1@", str(url))
    return re.sub(r"(password=)[^&]*", r"\1…", hidden)


def locate(url: str) -> Location:
    """Reads the URL of an index, and checks that its package is installed; nothing is opened.

    Raises:
        InvalidArgument: the message names what to install.
    """
    found = _URL.fullmatch(url) if isinstance(url, str) else None
    if found is None or not _makes_sense(found):
        raise InvalidArgument(f"vectors is one of {', '.join(map(repr, KINDS))}, not {without_password(url)!r}.")
    kind, server, place = found["kind"], found["server"], found["place"]
    if importlib.util.find_spec(_PACKAGES[kind]) is None:
        extra = "postgres" if kind == "pgvector" else kind
        shown = without_password(url)
        raise InvalidArgument(f"vectors={shown!r} needs {_PACKAGES[kind]}: pip install 'smolmem[{extra}]'.")
    if kind == "pgvector":
        return Location(kind, None, f"postgresql://{place}")
    address = f"{server}://{place}" if server else None
    return Location(kind, Path(place).absolute() if place and not server else None, address)


def _makes_sense(found: re.Match[str]) -> bool:
    if found["server"]:
        return found["kind"] in ("chroma", "qdrant") and found["place"] is not None
    return found["kind"] == "faiss" or found["place"] is not None


def opener(location: Location) -> Opener:
    """The function that opens the indexes at a location; imports the package."""
    if location.kind == "faiss":
        from smolmem.recall.indexes.faiss_index import FaissIndex

        return lambda name, size: FaissIndex(location.path, name, size)
    if location.kind == "pgvector":
        from smolmem.recall.indexes.pgvector_index import PgvectorIndex
        from smolmem.store.postgres.address import parse

        address = parse(location.server or "")
        return lambda name, size: PgvectorIndex(address, name, size)
    if location.path is not None and not location.path.exists():
        location.path.parent.mkdir(parents=True, exist_ok=True)
        make_folder(location.path)
    if location.kind == "chroma":
        from smolmem.recall.indexes.chroma_index import ChromaIndex

        return lambda name, size: ChromaIndex(location.path, location.server, name)
    if location.kind == "qdrant":
        from smolmem.recall.indexes.qdrant_index import QdrantIndex

        return lambda name, size: QdrantIndex(location.path, location.server, name, size)
    if location.kind == "lancedb":
        from smolmem.recall.indexes.lancedb_index import LanceIndex

        return lambda name, size: LanceIndex(location.path, name, size)
    from smolmem.recall.indexes.milvus_index import MilvusIndex

    return lambda name, size: MilvusIndex(location.path, name, size)
