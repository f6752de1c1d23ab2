"""What is stored once and known by its hash: contents, and the prompts that are made of them. Reading it proves it.

Content is known by the hash of its bytes. Every other row carries a `seal`, a hash of its columns. Both are checked
whenever something is read, so a damaged file gives an error, never another text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from smolmem.errors import Damaged
from smolmem.record import codec, wire
from smolmem.record.codec import Encoded
from smolmem.store.base import Row, Store
from smolmem.store.messages import StoredMessages

_UNSEALED = {"session": {"hash"}, "run": {"hash"}, "note": {"hash"}, "step": {"id", "place", "hash", "scope", "agent"}}


def seal(table: str, row: Mapping[str, Any]) -> bytes:
    """The hash of a row's columns and their names; of ids that the database gives, nothing."""
    left_out = _UNSEALED.get(table, {"id", "hash"})
    try:
        text = wire.dumps([table, *sorted((name, value) for name, value in row.items() if name not in left_out)])
    except (TypeError, ValueError):  # bytes or NaN where we write neither: a damaged row, which fits no hash
        return b""
    return hashlib.blake2b(text, digest_size=16).digest()


def beginning(of: Any) -> str | None:
    """The beginning of an id, as queries take it; None for what cannot be one."""
    wanted = of.lower() if isinstance(of, str) else ""
    return wanted if wanted and all(letter in "0123456789abcdef" for letter in wanted) else None


class Records:
    """Reads contents and prompts from a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.part = lru_cache(maxsize=2048)(self._read_part)
        self._latest_prompt: tuple[int, list[int]] = (0, [])

    def content(self, number: int) -> bytes:
        """The bytes of a content.

        Raises:
            Damaged: they are missing, or not what was written.
        """
        return self.checked(self.store.rows("content", {"id": number}), f"content {number}")

    def keep(self, encoded: Encoded) -> int:
        """Stores a value, once; part of a transaction of the caller's."""
        for key, data in encoded.blobs.items():
            self._keep(bytes.fromhex(key), data)
        return self._keep(bytes.fromhex(encoded.key), encoded.record)

    def _keep(self, key: bytes, data: bytes) -> int:
        added = self.store.do("add_content", {"hash": key, "bytes": wire.pack(data)})
        return int(self.store.do("content_id", {"hash": key}) if added is None else added)

    def blob(self, key: str) -> bytes:
        """The bytes known by a hash, for the codec."""
        try:
            found = self.store.rows("content_by_hash", {"hash": bytes.fromhex(key)})
        except (ValueError, TypeError) as error:
            raise wire.Undecodable(f"{key!r} is not a hash") from error
        return self.checked(found, f"content {key[:12]}")

    def checked(self, found: list[Row], what: str) -> bytes:
        """The bytes of a content row, if they are what was written."""
        if not found:
            raise self.damaged(f"{what} is missing")
        packed, key = found[0]["bytes"], found[0]["hash"]
        try:
            data = wire.unpack(packed, limit=wire.largest.get()) if isinstance(packed, bytes) else b""
        except wire.Undecodable as error:
            raise self.damaged(f"{what} {error}") from error
        if not isinstance(key, bytes) or wire.fingerprint(data) != key.hex():
            raise self.damaged(f"{what} is not what was written")
        return data

    def damaged(self, what: str) -> Damaged:
        """What to raise about content that is not what was written."""
        return Damaged(f"{self.store.url}: {what}. `verify()` lists all that is damaged; restore it from a backup.")

    def value(self, number: int | None, sent: Any = None) -> Any:
        """The value behind a content id; None for none."""
        if number is None:
            return None
        try:
            return codec.decode(self.content(number), self.blob, sent)
        except wire.Undecodable as error:
            raise Damaged(
                f"{self.store.url}: content {number}: {error}. `verify()` lists all that is damaged."
            ) from error

    def _read_part(self, number: int) -> list[Any]:
        part = self.value(number)
        return part if isinstance(part, list) else [part]

    def prompt(self, number: int) -> list[int]:
        """The content ids of a prompt's parts, in order."""
        parts: list[list[int]] = []
        keep, at = None, number
        known, before = self._latest_prompt
        while at is not None and keep != 0:
            if at == known:
                parts.append(before if keep is None else before[:keep])
                break
            row = self.prompt_row(at)
            if row["parent"] is not None and row["parent"] >= at:
                raise self.damaged(f"prompt {at} comes before what it begins with")
            suffix = json.loads(row["suffix"])
            parts.append(suffix if keep is None else suffix[: max(0, keep - row["keep"])])
            keep = row["keep"] if keep is None else min(keep, row["keep"])
            at = row["parent"]
        whole = [item for part in reversed(parts) for item in part]
        self._latest_prompt = (number, whole)
        return whole

    def messages(self, number: int) -> list[Any]:
        """What a model was sent, as smolagents messages."""
        return [message for part in self.prompt(number) for message in self.part(part)]

    def sealed(self, table: str, row: Row) -> Row:
        """A row, if it is what was written."""
        if row["hash"] != seal(table, row):
            raise self.damaged(f"{table} {row['id']} is not what was written")
        return row

    def step_of(self, row: Row) -> Any:
        """The smolagents step that a row, of `step` or `event`, holds the record of."""
        sent = None if row["prompt"] is None else self.stored(row["prompt"], self.prompt_row(row["prompt"])["size"])
        return self.value(row["record"], sent)

    def prompt_row(self, number: int) -> Row:
        """What is stored of a prompt itself."""
        found = self.store.rows("prompt", {"id": number})
        if not found:
            raise self.damaged(f"prompt {number} is missing")
        return self.sealed("prompt", found[0])

    def number(self, messages: Sequence[Any]) -> int | None:
        """The number of a prompt that is stored here, if this is one."""
        return messages.number if isinstance(messages, StoredMessages) and messages.of is self else None

    def stored(self, prompt: int, size: int) -> StoredMessages:
        """What a model was sent, left on disk until it is looked at."""
        return StoredMessages(self, prompt, size)
