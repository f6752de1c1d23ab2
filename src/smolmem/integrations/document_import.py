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

from smolmem.core.display import Result
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
class ImportedDocuments(Result):
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
    is_chroma = name.startswith("chroma") and "://" in name
    total, documents = _chroma(name) if is_chroma else _file(Path(re.sub(r"^(faiss|file)://", "", name)))

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
    try:
        found = list(pickled_documents(path.read_bytes()) if path.suffix in _PICKLES else _documents(path))
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from error
    if not found and path.suffix in _PICKLES:
        raise InvalidArgument(f"{path} is a pickle without documents of LangChain; it was read, and not loaded.")
    return len(found), iter(found)


def _documents(path: Path) -> Iterator[Document]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the file is not JSON ({error}): nothing was imported.") from None
    if isinstance(content, dict) and isinstance(content.get("docstore/data"), dict):
        content = [entry.get("__data__") for entry in content["docstore/data"].values() if isinstance(entry, dict)]
    if not isinstance(content, list):
        raise InvalidArgument("the file is neither a list of documents nor a docstore of LlamaIndex.")
    for entry in content:
        text = _text_of(entry)
        if text is None:
            raise InvalidArgument(f"an entry has neither `text` nor `page_content`: {str(entry)[:80]!r}.")
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
_MAKES: dict[str, Callable[[list[Any]], Any]] = {
    **dict.fromkeys(("EMPTY_LIST", "EMPTY_SET"), list),
    **dict.fromkeys(("EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE"), tuple),
    **dict.fromkeys(("GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "NEWOBJ_EX"), lambda taken: object()),
    "EMPTY_DICT": dict,
    "NONE": lambda taken: None,
    "NEWTRUE": lambda taken: True,
    "NEWFALSE": lambda taken: False,
}
"""What instructions make of the values that they take from the stack; for a class or a call, a placeholder."""


def pickled_documents(data: bytes) -> Iterator[Document]:
    """The documents in a pickle, in its order.

    Raises:
        InvalidArgument: if it cannot be read.
    """
    reader = _Reader()
    try:
        for instruction, argument, _ in pickletools.genops(data):
            state = reader.step(instruction, argument)
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

    def step(self, instruction: pickletools.OpcodeInfo, argument: Any) -> Any:
        """Follows one instruction; returns the attributes of an object if the instruction sets them."""
        name, taken, state = instruction.name, self._taken(instruction), None
        if name in ("PROTO", "FRAME", "STOP"):
            return None
        if name == "MEMOIZE" or "PUT" in name:
            self._memo[len(self._memo) if argument is None else argument] = (taken or self._stack)[-1]
            pushed = taken
        elif name == "BUILD":
            pushed, state = taken[:1], taken[1]
        elif name in ("APPEND", "APPENDS", "ADDITEMS", "SETITEM", "SETITEMS"):
            pushed = [_filled(*taken)]
        elif name in _MAKES:
            pushed = [_MAKES[name](taken)]
        elif "GET" in name:
            pushed = [self._memo[argument]]
        elif name == "MARK" or isinstance(argument, (str, bytes, bytearray, int, float)):
            pushed = [_MARK if name == "MARK" else argument]
        else:
            raise ValueError(name)
        self._stack += pushed
        return state

    def _taken(self, instruction: pickletools.OpcodeInfo) -> list[Any]:
        """The values that an instruction takes from the stack, some of them down to a mark."""
        before, stack = instruction.stack_before, self._stack
        start = len(stack) - len(before)
        if pickletools.markobject in before:
            marks = (place for place in range(len(stack) - 1, -1, -1) if stack[place] is _MARK)
            start = next(marks, -1) - before.index(pickletools.markobject)
        if start < 0:
            raise IndexError(start)
        taken = [value for value in stack[start:] if value is not _MARK]
        del stack[start:]
        return taken


def _filled(target: Any, *items: Any) -> Any:
    """A list or dict with items added; what is added to a placeholder is left out."""
    if isinstance(target, list):
        target.extend(items)
    elif isinstance(target, dict):
        target.update(zip(items[::2], items[1::2], strict=True))
    return target
