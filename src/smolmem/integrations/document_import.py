"""Imports documents that users have elsewhere: a Chroma collection, a FAISS index of LangChain, a LlamaIndex docstore.

Each document becomes a note of the kind `document` with the origin `import`, so its trust is low. Vectors of another
model are of no use: smolmem embeds the text again. A document that the memory has already is skipped.

Files are read as data. LangChain keeps the documents of a FAISS folder in a pickle, and a pickle is a program: loading
it calls whatever it names. So the instructions of the pickle are read as data. Texts, numbers, lists and dicts are
made; a class is a placeholder that is never imported, and calling it only gives another placeholder. An object whose
attributes have a `page_content` is a document.
"""

from __future__ import annotations

import json
import os
import pickletools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from smolmem.core.display import Drawable
from smolmem.core.errors import InvalidArgument, NotFound
from smolmem.core.telemetry import quiet_chromadb
from smolmem.recall.documents import Document
from smolmem.recall.documents import add_documents as documents_as_notes
from smolmem.store.base import Progress

if TYPE_CHECKING:
    from smolmem.memory import Memory

PAGE = 500
"""Documents that are read from a collection at a time."""
LARGEST = 512 << 20
"""Bytes of a JSON file."""
_DOCUMENTS = re.compile(rb'\s*(\{\s*"docstore/|\[\s*\{\s*"(text|page_content|metadata)"\s*:)')
"""How a JSON file of documents begins."""
_PICKLES = (".pkl", ".pickle")


@dataclass(frozen=True)
class ImportedDocuments(Drawable):
    """How many documents were added, were in the memory already, or had no text."""

    source: str
    added: int
    skipped: int
    empty: int


def import_collection(
    memory: Memory,
    source: str | os.PathLike[str],
    *,
    scope: str | None = None,
    progress: Progress | None = None,
) -> ImportedDocuments:
    """Imports documents as notes; documents that were imported before an error stay, and a second import skips them.

    Args:
        memory: the memory to import into.
        source: `chroma:///path/collection`, `chroma+http://host:8000/collection`, the folder of a
            LangChain FAISS index, the folder or `docstore.json` of a LlamaIndex storage context, or a JSON file with a
            list of documents (`text` or `page_content`, `metadata`).
        scope: another scope than the memory's.
        progress: called after each batch of documents with how many are done and how many there are.

    Raises:
        NotFound: there is no such collection or file; the message names what there is.
        InvalidArgument: the source is none of these.
    """
    name = os.fspath(source)
    total, documents = _chroma(name) if name.startswith("chroma") and "://" in name else _file(Path(_path(name)))

    def report(done: int) -> None:
        if progress is not None:
            progress(min(done, total), total)

    return add_documents(memory, documents, name, scope=scope, report=report)


def add_documents(
    memory: Memory,
    documents: Iterable[Document],
    source: str,
    *,
    scope: str | None = None,
    report: Callable[[int], None] | None = None,
) -> ImportedDocuments:
    """Adds documents as notes; `report` is called after each batch with how many are done."""
    counts = Counter(added=0, skipped=0, empty=0)
    for batch in documents_as_notes(memory._recall.notes, documents, memory._scope_to_write(scope)):
        counts.update(batch)
        if report is not None:
            report(counts.total())
    memory._recall.recorded()
    return ImportedDocuments(source, **counts)


def _path(name: str) -> str:
    return re.sub(r"^(faiss|file)://", "", name)


# --- Chroma -----------------------------------------------------------------------------------------------------------


def _chroma(url: str) -> tuple[int, Iterator[Document]]:
    try:
        chromadb = quiet_chromadb()
    except ImportError:
        raise InvalidArgument("importing from Chroma needs chromadb: pip install 'smolmem[chroma]'.") from None
    client, name = _chroma_client(chromadb, url)
    names = sorted(collection.name for collection in client.list_collections())
    if name is None and len(names) == 1:
        [name] = names
    if name not in names:
        listed = ", ".join(names) or "none"
        raise NotFound(f"{url} does not name one of its collections ({listed}): add /NAME to the URL.")
    collection = client.get_collection(name, embedding_function=None)
    return collection.count(), _chroma_documents(client, collection)


def _chroma_client(chromadb: Any, url: str) -> tuple[Any, str | None]:
    """A client, and the name of the collection that the URL names."""
    settings = chromadb.Settings(anonymized_telemetry=False)
    if not url.startswith("chroma://"):
        at = urlsplit(url.removeprefix("chroma+"))
        port = at.port or (443 if at.scheme == "https" else 8000)
        client = chromadb.HttpClient(at.hostname, port, ssl=at.scheme == "https", settings=settings)
        return client, at.path.strip("/") or None
    path = Path(url.removeprefix("chroma://"))
    folder, name = (path, None) if (path / "chroma.sqlite3").exists() else (path.parent, path.name)
    if not (folder / "chroma.sqlite3").exists():
        raise NotFound(
            f"{folder} is not a folder of Chroma: it has no chroma.sqlite3. Give chroma://FOLDER/COLLECTION."
        )
    return chromadb.PersistentClient(str(folder), settings), name


def _chroma_documents(client: Any, collection: Any) -> Iterator[Document]:
    start = 0
    while (page := collection.get(include=["documents", "metadatas"], limit=PAGE, offset=start))["ids"]:
        start += len(page["ids"])
        for text, metadata in zip(page["documents"], page["metadatas"], strict=True):
            yield text or "", metadata or {}
    client.close()


# --- files ------------------------------------------------------------------------------------------------------------


def is_documents(source: str) -> bool:
    """Whether a source has documents, by its URL or its first bytes; other sources may have runs."""
    if source.startswith(("chroma://", "chroma+http", "faiss://")):
        return True
    path = Path(source)
    try:
        if path.is_dir():
            return (path / "docstore.json").exists() or bool(_pickles(path))
        with path.open("rb") as file:
            return _DOCUMENTS.match(file.read(4_096)) is not None
    except (OSError, ValueError):
        return False


def _pickles(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.iterdir()) if file.suffix in _PICKLES]


def _file(path: Path) -> tuple[int, Iterator[Document]]:
    if path.is_dir():
        pickles = [] if (path / "docstore.json").exists() else _pickles(path)
        path = pickles[0] if pickles else path / "docstore.json"
    if not path.is_file():
        raise NotFound(f"{path} does not exist: give a file of documents, or a folder with a docstore.json.")
    if path.stat().st_size > LARGEST:
        raise InvalidArgument(f"{path} is larger than {LARGEST >> 20} MB: import it in parts.")
    found = _pickled(path) if path.suffix in _PICKLES else list(_documents(path))
    return len(found), iter(found)


def _pickled(path: Path) -> list[Document]:
    try:
        found = list(pickled_documents(path.read_bytes()))
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from error
    if not found:
        raise InvalidArgument(f"{path} is a pickle without documents of LangChain; it was read, and not loaded.")
    return found


def _documents(path: Path) -> Iterator[Document]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path} is not JSON ({error}): nothing was imported.") from None
    if isinstance(content, dict) and isinstance(content.get("docstore/data"), dict):
        content = [entry.get("__data__") for entry in content["docstore/data"].values() if isinstance(entry, dict)]
    if not isinstance(content, list):
        raise InvalidArgument(f"{path} is neither a list of documents nor a docstore of LlamaIndex.")
    for entry in content:
        text = _text_of(entry)
        if text is None:
            raise InvalidArgument(f"{path} holds an entry without `text` or `page_content`: {str(entry)[:80]!r}.")
        metadata = entry.get("metadata") if isinstance(entry, dict) else None
        yield text, metadata if isinstance(metadata, dict) else {}


def _text_of(entry: Any) -> str | None:
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, dict):
        return None
    resource = entry.get("text_resource")
    inner = resource.get("text") if isinstance(resource, dict) else None
    return next((text for text in (entry.get("text"), entry.get("page_content"), inner) if isinstance(text, str)), None)


# --- documents in a pickle --------------------------------------------------------------------------------------------

_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": list,
    "GLOBAL": object,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_CALLS = {"STACK_GLOBAL": 2, "REDUCE": 2, "NEWOBJ": 2, "NEWOBJ_EX": 3}
"""Instructions that replace some values by a placeholder, and how many."""
_IGNORED = ("PROTO", "FRAME", "STOP")


def pickled_documents(data: bytes) -> Iterator[Document]:
    """The documents in a pickle, in its order.

    Raises:
        InvalidArgument: if it cannot be read.
    """
    reader = _Reader()
    try:
        for instruction, argument, _ in pickletools.genops(data):
            state = reader.step(instruction.name, argument)
            inner = state.get("__dict__", state) if isinstance(state, dict) else None
            if isinstance(inner, dict) and isinstance(text := inner.get("page_content"), str):
                metadata = inner.get("metadata")
                yield text, metadata if isinstance(metadata, Mapping) else {}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise InvalidArgument(f"its pickle cannot be read ({type(error).__name__}).") from error


class _Reader:
    """The stack of values that the instructions work on."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> Any:
        """Follows one instruction; returns the attributes of an object if the instruction sets them."""
        if name == "BUILD":
            return self._stack.pop()
        if name in _EMPTY:
            self._stack.append(_EMPTY[name]())
        elif name in _CALLS:
            self._pop(_CALLS[name])
            self._stack.append(object())
        elif name in _TUPLES:
            self._stack.append(tuple(self._pop(_TUPLES[name])))
        elif name in _CONSTANTS or (argument is not None and name not in _IGNORED and "PUT" not in name):
            self._constant(name, argument)
        elif name not in _IGNORED:
            self._change(name, argument)
        return None

    def _constant(self, name: str, argument: Any) -> None:
        if name in ("GET", "BINGET", "LONG_BINGET"):
            self._stack.append(self._memo[argument])
        elif name in _CONSTANTS or isinstance(argument, (str, bytes, bytearray, int, float)):
            self._stack.append(_CONSTANTS.get(name, argument))
        else:
            raise ValueError(name)

    def _change(self, name: str, argument: Any) -> None:
        if name == "MARK":
            self._stack.append(_MARK)
        elif name == "MEMOIZE" or "PUT" in name:
            self._memo[len(self._memo) if argument is None else argument] = self._stack[-1]
        elif name in ("APPEND", "SETITEM"):
            self._fill(self._pop(1 if name == "APPEND" else 2))
        elif name in ("APPENDS", "ADDITEMS", "SETITEMS"):
            self._fill(self._to_mark())
        elif name == "TUPLE":
            self._stack.append(tuple(self._to_mark()))
        else:
            raise ValueError(name)

    def _fill(self, items: list[Any]) -> None:
        """Adds items to the list or dict on top; what is added to a placeholder is left out."""
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, dict):
            target.update(zip(items[::2], items[1::2], strict=True))

    def _pop(self, count: int) -> list[Any]:
        found = self._stack[-count:]
        if len(found) < count:
            raise IndexError(count)
        del self._stack[-count:]
        return found

    def _to_mark(self) -> list[Any]:
        for place in range(len(self._stack) - 1, -1, -1):
            if self._stack[place] is _MARK:
                found = self._stack[place + 1 :]
                del self._stack[place:]
                return found
        raise ValueError("no mark")
