"""LangChain: a retriever over recall, and a chat-message history that recall finds.

The other way, `Memory(embedder=…)` takes any LangChain `Embeddings`, and `remember_documents` takes documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

try:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.documents import Document
    from langchain_core.messages import BaseMessage, message_to_dict, messages_from_dict
    from langchain_core.retrievers import BaseRetriever
except ImportError as error:
    raise ImportError(
        "smolmem.integrations.langchain needs langchain-core: pip install 'smolmem[langchain]'."
    ) from error

from smolmem.integrations.document_import import ImportedDocuments, add_documents
from smolmem.integrations.recollected import Conversation, facts, identity, read
from smolmem.recall.calibration import FLOOR

if TYPE_CHECKING:
    from smolmem.memory import Memory


class MemoryRetriever(BaseRetriever):  # type: ignore[misc]
    """Retrieves what agents did and users noted, the best first; metadata says from where, and with which trust.

    Attributes:
        memory: the memory.
        k: how many documents at most; also an argument of `invoke`.
        filters: arguments of `memory.recall`, such as `kind`, `agent`, `min_trust` or `scope`.
        floor: as for `memory.recall`; 0 for everything that matches at all.
    """

    memory: Any
    k: int = 5
    filters: dict[str, Any] = {}  # noqa: RUF012  a field of a pydantic model
    floor: float = FLOOR

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        found = self.memory.recall(query, self.k if k is None else k, floor=self.floor, **self.filters)
        return [Document(page_content=one.text, metadata=facts(one), id=identity(one)) for one in found]


class MemoryChatHistory(BaseChatMessageHistory):  # type: ignore[misc]
    """The messages of one chat, as notes: they survive the process, and recall finds them.

    Args:
        memory: the memory.
        session_id: the name of the chat, of at most 100 characters.
        scope: another scope than the memory's.
    """

    def __init__(self, memory: Memory, session_id: str, *, scope: str | None = None) -> None:
        self._conversation = Conversation(memory, session_id, scope)

    @property
    def messages(self) -> list[BaseMessage]:
        """The messages, the oldest first."""
        return [_message(*read(note)) for note in self._conversation.notes()]

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Adds messages at the end."""
        for message in messages:
            text = message.content if isinstance(message.content, str) else ""
            is_plain = message.type in PLAIN and message == _message(message.type, text, None)
            self._conversation.add(message.type, text, partial(message_to_dict, message), plain=is_plain)

    def clear(self) -> None:
        """Empties the chat; the record keeps the messages."""
        for note in self._conversation.notes():
            self._conversation.forget(note)


PLAIN = ("human", "ai", "system")
"""Messages that may consist of their text alone."""


def _message(role: str, text: str | None, whole: dict[str, Any] | None) -> BaseMessage:
    return messages_from_dict([whole if whole is not None else {"type": role, "data": {"content": text}}])[0]


def remember_documents(memory: Memory, documents: Iterable[Document], *, scope: str | None = None) -> ImportedDocuments:
    """Remembers documents as notes with the origin `import`; a document that the memory has already is skipped."""
    pairs = ((document.page_content, document.metadata) for document in documents)
    return add_documents(memory, pairs, "LangChain", scope=scope)
