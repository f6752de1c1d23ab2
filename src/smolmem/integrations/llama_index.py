"""LlamaIndex: a retriever over recall, a memory block, and a chat store.

`Memory(embedder=…)` takes any LlamaIndex embedder. Recalled text belongs on the user's side of a prompt, never in the
system message, which a model obeys; LlamaIndex's own default is the system message, so use `agent_memory`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

try:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.memory import Memory as AgentMemory
    from llama_index.core.memory.memory import BaseMemoryBlock, InsertMethod
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.core.storage.chat_store.base import BaseChatStore
except ImportError as error:
    needs = "smolmem.integrations.llama_index needs llama-index-core: pip install 'smolmem[llama-index]'."
    raise ImportError(needs) from error

from smolmem.core.errors import InvalidArgument
from smolmem.integrations.recollected import ALL, MESSAGE, Conversation, facts, identity, read
from smolmem.recall.context import TOKENS

if TYPE_CHECKING:
    from smolmem.memory import Memory


class MemoryRetriever(BaseRetriever):  # type: ignore[misc]
    """Retrieves what agents did and users noted, the best first; metadata says from where, and with which trust.

    Args:
        memory: the memory.
        limit: how many nodes at most.
        filters: arguments of `memory.recall`, such as `kind`, `agent`, `min_trust` or `scope`.
    """

    def __init__(self, memory: Memory, limit: int = 5, **filters: Any) -> None:
        self._memory, self._limit, self._filters = memory, limit, filters
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = self._memory.recall(query_bundle.query_str, self._limit, **self._filters)
        nodes = [TextNode(id_=identity(one), text=one.text, metadata=facts(one)) for one in found]
        return [NodeWithScore(node=node, score=one.score) for node, one in zip(nodes, found, strict=True)]


class MemoryBlock(BaseMemoryBlock[str]):  # type: ignore[misc]
    """What the memory knows about the user's last message, as one quoted block; flushed messages become notes.

    Attributes:
        memory: the memory.
        session_id: the conversation that flushed messages are added to.
        tokens: how long the block is at most.
    """

    memory: Any
    session_id: str = "llama-index"
    tokens: int = TOKENS
    name: str = "memories"

    async def _aget(self, messages: list[ChatMessage] | None = None, **_: Any) -> str:
        asked = [message.content for message in messages or () if message.role == "user" and message.content]
        return await asyncio.to_thread(self.memory.context, asked[-1], self.tokens) if asked else ""

    async def _aput(self, messages: list[ChatMessage]) -> None:
        copies = [message.model_copy() for message in messages]
        for message in copies:  # LlamaIndex's memory writes the session into each message
            extra = message.additional_kwargs.items()
            message.additional_kwargs = {name: value for name, value in extra if name != "session_id"}
        await asyncio.to_thread(_add, Conversation(self.memory, self.session_id), copies)

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        """Leaves the block out: a shortened quotation would lose its sources."""
        return None


def agent_memory(memory: Memory, *, tokens: int = TOKENS, **options: Any) -> AgentMemory:
    """A LlamaIndex memory with a `MemoryBlock` that is inserted on the user's side of the prompt.

    Args:
        memory: the memory.
        tokens: how long the block is at most.
        options: arguments of `Memory.from_defaults`, such as `session_id` and `token_limit`.

    Raises:
        InvalidArgument: `insert_method` is not an option: recalled text does not belong into the system message.
    """
    if "insert_method" in options:
        raise InvalidArgument("agent_memory() inserts recalled text on the user's side: leave insert_method out.")
    named = {"session_id": options["session_id"]} if "session_id" in options else {}
    blocks = [MemoryBlock(memory=memory, tokens=tokens, **named), *options.pop("memory_blocks", ())]
    return AgentMemory.from_defaults(memory_blocks=blocks, insert_method=InsertMethod.USER, **options)


class MemoryChatStore(BaseChatStore):  # type: ignore[misc]
    """Chats as notes: they survive the process, and recall finds them. A key has at most 100 characters."""

    memory: Any
    scope: str | None = None

    @classmethod
    def class_name(cls) -> str:
        """The name of the class, as LlamaIndex asks for it."""
        return "MemoryChatStore"

    def _conversation(self, key: str) -> Conversation:
        return Conversation(self.memory, key, self.scope)

    def set_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """Replaces all messages of a chat."""
        self.delete_messages(key)
        _add(self._conversation(key), messages)

    def get_messages(self, key: str) -> list[ChatMessage]:
        """The messages of a chat, the oldest first."""
        return [_message(*read(note)) for note in self._conversation(key).notes()]

    def add_message(self, key: str, message: ChatMessage) -> None:
        """Adds a message at the end."""
        _add(self._conversation(key), [message])

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        """Empties a chat; returns what was in it."""
        conversation = self._conversation(key)
        gone = conversation.notes()
        for note in gone:
            conversation.forget(note)
        return [_message(*read(note)) for note in gone] or None

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Deletes the message at an index, if there is one."""
        conversation = self._conversation(key)
        notes = conversation.notes()
        if not -len(notes) <= idx < len(notes):
            return None
        conversation.forget(notes[idx])
        return _message(*read(notes[idx]))

    def delete_last_message(self, key: str) -> ChatMessage | None:
        """Deletes the last message, if there is one."""
        return self.delete_message(key, -1)

    def get_keys(self) -> list[str]:
        """The keys of all chats."""
        notes = self.memory.notes(kind=MESSAGE, scope=self.scope, limit=ALL)
        return list(dict.fromkeys(note.tags[0] for note in reversed(notes)))


def _add(conversation: Conversation, messages: Sequence[ChatMessage]) -> None:
    for message in messages:
        role, text = str(message.role.value), message.content or ""
        is_plain = message == _message(role, text, None)
        conversation.add(role, text, partial(message.model_dump, mode="json", exclude_none=True), plain=is_plain)


def _message(role: str, text: str | None, whole: dict[str, Any] | None) -> ChatMessage:
    return ChatMessage(role=role, content=text) if whole is None else ChatMessage.model_validate(whole)
