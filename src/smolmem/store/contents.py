"""Contents, each stored once under its hash, and the prompts that consist of them.

A content has the hash of its bytes. Every other row has a `seal`, a hash of its columns. Both are checked on every
read, so a damaged file gives an error, never a wrong text.

The codec is imported where a value is encoded or decoded: it needs smolagents, which takes a second to import, and
listing runs needs neither.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING, Any

from smolmem.core import prompts
from smolmem.core.encoding import chunks, packing, wire
from smolmem.core.errors import REPAIR, Damaged
from smolmem.core.prompts import PromptLink
from smolmem.core.recent import Recent
from smolmem.core.redaction import Known, Redactor, Secret, may_lack_secrets
from smolmem.store.base import Row, Store
from smolmem.store.chains import Chain, Chains
from smolmem.store.stored_messages import StoredMessages

if TYPE_CHECKING:
    from smolmem.core.encoding.codec import Encoded

_WITHOUT_SECRETS = {
    "note": ("text", "tags", "kind"),
    "recalled": ("query", "found"),
    "cut": ("text",),
    "alert": ("rule", "reason", "acts"),
}
"""The columns with text of others. All other text is in contents, or made from contents; a run's title is redacted
before it is cut."""

_UNSEALED = {
    "session": {"hash"},
    "run": {"hash"},
    "note": {"hash"},
    "step": {"id", "place", "hash", "scope", "agent"},
}
_ADDED = {"run": ("tags", "[]"), "call": ("web", None)}
"""A column that rows of older formats lack, and the value with which it is not part of the hash."""

_CACHED_PARTS = 1024


def seal(table: str, row: Mapping[str, Any]) -> bytes:
    """The hash of a row's columns and their names, except ids that the database gives."""
    added, absent = _ADDED.get(table, ("", None))
    if added and row[added] == absent:
        row = {name: value for name, value in row.items() if name != added}
    try:
        text = wire.dumps([table, *((name, row[name]) for name in _sealed_columns(table, tuple(row)))])
    except (TypeError, ValueError):  # bytes or NaN where neither is written: a damaged row, which fits no hash
        return b""
    return hashlib.blake2b(text, digest_size=16).digest()


def with_hash(table: str, row: Mapping[str, Any]) -> Row:
    """A row with the hash that `verify` and readers compare it with."""
    return {**row, "hash": seal(table, row)}


@cache
def _sealed_columns(table: str, columns: tuple[str, ...]) -> list[str]:
    left_out = _UNSEALED.get(table, {"id", "hash"})
    return sorted(name for name in columns if name not in left_out)


def fingerprint_key(store: Store) -> bytes:
    """The key of the fingerprints of secrets in a store."""
    return bytes(store.do("fingerprint_key", {}))


def id_prefix(given: Any) -> str | None:
    """The beginning of an id, for queries; None if it cannot be one."""
    prefix = given.lower() if isinstance(given, str) else ""
    return prefix if prefix and all(letter in "0123456789abcdef" for letter in prefix) else None


def _contents_of(encoded: Encoded) -> list[tuple[str, bytes]]:
    """The hashes and bytes of all contents of a value; the value itself comes last."""
    return [*encoded.blobs.items(), (encoded.key, encoded.record)]


class Contents:
    """Reads and writes the contents and prompts of a store."""

    def __init__(self, store: Store, redactor: Redactor | None = None) -> None:
        self.store = store
        self.redactor = redactor or Redactor(fingerprint_key(store), environment=os.environ)
        self._parts: Recent[int, list[Any]] = Recent(_CACHED_PARTS)
        self._live_parts: Recent[int, list[Any]] = Recent(_CACHED_PARTS)
        self._latest_prompt: tuple[int, list[int]] = (0, [])
        self._packed: dict[str, bytes] = {}
        self.chains = Chains(self._read_chain)

    # --- contents --------------------------------------------------------------------------------------------------

    def content(self, number: int) -> bytes:
        """The bytes of a content.

        Raises:
            Damaged: if the content is missing or damaged.
        """
        return self.checked(self.store.rows("content", {"id": number}), f"content {number}")

    def encode(self, value: Any, made_from: Encoded | None = None, shared: Mapping[int, int] = {}) -> Encoded:
        """Encodes a value without its secrets. A value that was made from a record without secrets is not searched."""
        from smolmem.core.encoding import codec

        clean = made_from is not None and not made_from.redacted and not self.redactor.always_searches
        return codec.encode(value, None if clean else self.redactor, shared)

    def record(self, number: int) -> bytes:
        """The bytes of a content that is to be decoded.

        Raises:
            Damaged: if the content is missing, damaged, or too large for a record.
        """
        return self.checked(self.store.rows("content", {"id": number}), f"content {number}", packing.RECORD)

    def _read_chain(self, number: int, until: int, most: int) -> list[Row]:
        return self.store.rows("content_chain", {"id": number, "until": until, "most": most})

    def content_key(self, number: int) -> str:
        """The hash of a content, as it is stored.

        Raises:
            Damaged: if the content is missing.
        """
        found = self.store.do("content_hash", {"id": number})
        if not isinstance(found, bytes):
            raise self.damaged(f"content {number} is missing")
        return found.hex()

    def announce(self, values: Iterable[Encoded | None]) -> None:
        """Tells a server which values the transaction is about to store: all of them are sent in one message."""
        if self.store.is_remote:
            given = [value for value in values if value is not None]
            self._packed = {key: packing.pack(data) for value in given for key, data in _contents_of(value)}
            self.store.announce({bytes.fromhex(key): packed for key, packed in self._packed.items()})

    def keep(self, encoded: Encoded, chain: Chain | None = None) -> int:
        """Stores a value once and returns its id; part of the caller's transaction."""
        return [self._keep(key, data, chain) for key, data in _contents_of(encoded)][-1]

    def _keep(self, key: str, data: bytes, chain: Chain | None) -> int:
        row: Row = {"hash": bytes.fromhex(key)}
        if self.store.is_remote:  # a server finds existing contents in the same statement
            packed = self._packed.get(key) or packing.pack(data)
            return int(self.store.do("add_content", row | {"bytes": packed, "base": None}))
        known = None if chain is None else chain.numbers.get(row["hash"])
        if known is None and len(data) > wire.INLINE:  # looking is quicker than packing it for nothing
            known = self.store.do("content_id", row)
        if known is None:
            known = self._add(row, data, chain) or self.store.do("content_id", row)
        if chain is not None:
            chain.note(known, row["hash"])
        return int(known)

    def _add(self, row: Row, data: bytes, chain: Chain | None) -> int | None:
        """Adds a content, packed with its chain; None if it is there already."""
        base, dictionary = (None, b"") if chain is None or chain.base is None else (chain.base[0], chain.dictionary)
        number = self.store.do("add_content", row | {"bytes": packing.pack(data, dictionary), "base": base})
        if number is not None and chain is not None:
            chain.add(number, row["hash"], data)
        return None if number is None else int(number)

    def check(self, chain: Chain) -> None:
        """Starts a chain over if its contents may be gone; part of the caller's transaction.

        They can be erased by another process, or by another thread of this one. The contents behind an erased one are
        packed anew, without the contents before them.
        """
        now = self.chains.forgotten, self.store.foreign_writes()
        if chain.seen != now:
            base, chain.numbers = chain.base, {}
            if base is not None:
                found = self.store.rows("content_link", {"id": base[0]})
                if [(row["hash"], row["base"]) for row in found] != [base[1:]]:
                    chain.clear()
            chain.seen = now

    def blob(self, key: str) -> bytes:
        """The bytes with a hash, for the codec."""
        return self._by_key(key, packing.BLOB)

    def _by_key(self, key: str, allowed: packing.Allowance) -> bytes:
        try:
            found = self.store.rows("content_by_hash", {"hash": bytes.fromhex(key)})
        except (ValueError, TypeError) as error:
            raise packing.Undecodable(f"{key!r} is not a hash") from error
        return self.checked(found, f"content {key[:12]}", allowed)

    def checked(self, found: list[Row], what: str, allowed: packing.Allowance = packing.BLOB) -> bytes:
        """The bytes of a content row, after checking their hash."""
        if not found:
            raise self.damaged(f"{what} is missing")
        try:
            return self._unpacked(found[0], allowed)
        except packing.Undecodable:
            self.chains.forget_read()  # another process may have packed anew what was read before
        try:
            return self._unpacked(found[0], allowed)
        except packing.Undecodable as error:
            raise self.damaged(f"{what} {error}") from error

    def _unpacked(self, row: Row, allowed: packing.Allowance) -> bytes:
        data = self.chains.unpack(row, allowed)
        if not isinstance(row["hash"], bytes) or wire.fingerprint(data) != row["hash"].hex():
            raise packing.Undecodable("is not what was written")
        return data

    def damaged(self, what: str) -> Damaged:
        """The error about a damaged store."""
        return Damaged(f"{self.store.url}: {what}. `smolmem verify` lists all damage. {REPAIR}")

    def value(self, number: int | None, **options: Any) -> Any:
        """The value behind a content id; None for none. Takes the options of `codec.decode`."""
        return None if number is None else self._decoded(number, self.record(number), **options)

    def missing_secrets(self, number: int, known: Known) -> dict[str, list[Secret]]:
        """The secrets that a content lacks and that are not known, by field."""
        from smolmem.core.encoding import codec

        record = self.record(number)
        return self._missing(codec.fields(record) if may_lack_secrets(record) else {}, known)

    def missing_variables(self, number: int, known: Known) -> dict[str, list[Secret]]:
        """The secrets that a snapshot of variables lacks and that are not known, by variable."""
        return self._missing(self.stored_variables(number), known)

    def stored_variables(self, number: int) -> dict[str, Any]:
        """The variables of a snapshot as they are stored."""
        stored = self._snapshot(number)
        named: dict[str, Any] = {}
        for group in (stored, *(part["v"][""] for part in stored.get("together", []))):
            for word, names in (("variable", group.get("variables")), ("state", group.get("state"))):
                named |= {f"{word} {name}": item for name, item in (names or {}).items()}
        return named | {f"shared object {number}": item for number, item in enumerate(stored["shared"])}

    def variables(self, number: int | None, **options: Any) -> Any:
        """The variables of a snapshot: `variables`, `state`, and the names of those that were too `large`."""
        if number is None:
            return None
        found = self._decoded(number, wire.dumps(self._snapshot(number)), **options)
        for group in found.pop("together", []):
            for name in ("variables", "state"):
                found[name] |= group.get(name, {})
        found["state"] |= {name: found["variables"].get(name) for name in found.pop("same", [])}
        return found

    def _snapshot(self, number: int) -> Any:
        try:
            return chunks.assembled(wire.loads(self.record(number)), self._chunk)
        except (packing.Undecodable, LookupError, TypeError, AttributeError) as error:
            raise self.damaged(f"content {number}: {error}") from error

    def _chunk(self, key: str) -> bytes:
        return self._by_key(key, packing.RECORD)

    def named_below(self, numbers: Iterable[int]) -> set[str]:
        """The hashes of all contents that these contents name, also through chunks."""
        return chunks.named_below(map(self.content, numbers), self._chunk)

    def _missing(self, fields: Mapping[str, Any], known: Known) -> dict[str, list[Secret]]:
        try:
            missing = {name: known.missing(item, self.blob) for name, item in fields.items()}
        except packing.Undecodable as error:
            raise self.damaged(str(error)) from error
        return {name: found for name, found in missing.items() if found}

    def _decoded(self, number: int, record: bytes, model_input: Any = None, **options: Any) -> Any:
        from smolmem.core.encoding import codec

        try:
            return codec.decode(record, self.blob, model_input, **options)
        except packing.Undecodable as error:
            raise self.damaged(f"content {number}: {error}") from error

    def part(self, number: int) -> list[Any]:
        """The messages of one step."""
        return self._parts.get(number) or self._read_part(self._parts, number)

    def live_part(self, number: int) -> list[Any]:
        """A part with the secrets that this process has; the part itself, if it lacks none."""
        known = self._live_parts.get(number)
        if known is not None:
            return known
        if not self.missing_secrets(number, Known({})):
            return self.part(number)
        return self._read_part(self._live_parts, number, secrets=self.redactor.known)

    def _read_part(self, cache: Recent[int, list[Any]], number: int, **options: Any) -> list[Any]:
        """Reads a part. Pictures and long texts are not kept in RAM."""
        record = self.record(number)
        part = self._decoded(number, record, **options)
        messages = part if isinstance(part, list) else [part]
        if not chunks.NAMED.search(record):
            cache.put(number, messages)
        return messages

    def forget_cached(self) -> None:
        """Drops cached contents and prompts: some were erased."""
        self._parts.clear()
        self._live_parts.clear()
        self.chains.forget()
        self._latest_prompt = (0, [])

    # --- rows ------------------------------------------------------------------------------------------------------

    def sealed(self, table: str, row: Row) -> Row:
        """A row, after checking its seal."""
        if row["hash"] != seal(table, row):
            raise self.damaged(f"{table} {row['id']} is not what was written")
        return row

    def add(self, table: str, row: Mapping[str, Any]) -> Any:
        """Adds a sealed row and returns its id; part of the caller's transaction."""
        clean = self.without_secrets(table, row)
        return self.store.do(f"add_{table}", with_hash(table, clean))

    def without_secrets(self, table: str, row: Mapping[str, Any]) -> Row:
        """A row without the secrets in its columns."""
        texts = {name: row[name] for name in _WITHOUT_SECRETS.get(table, ()) if isinstance(row.get(name), str)}
        return dict(row) | {name: self.redactor.text(text) for name, text in texts.items()}

    def step_of(self, row: Row) -> Any:
        """The smolagents step that a row of `step` or `event` holds the record of."""
        return self.step_and_record(row)[0]

    def step_and_record(self, row: Row, secrets: Known | None = None) -> tuple[Any, bytes]:
        """The smolagents step of a row, with these secrets put back, and its record."""
        number, prompt = row["record"], row["prompt"]
        record = self.record(number)
        model_input = None if prompt is None else self.stored(prompt)
        return self._decoded(number, record, model_input, secrets=secrets), record

    # --- prompts ---------------------------------------------------------------------------------------------------

    def prompt_row(self, number: int) -> Row:
        """The row of a prompt."""
        return self._checked_prompt(self.store.rows("prompt", {"id": number}), number)

    def _checked_prompt(self, found: Sequence[Row], number: int) -> Row:
        if not found:
            raise self.damaged(f"prompt {number} is missing")
        return self.sealed("prompt", found[0])

    def prompt(self, number: int) -> list[int]:
        """The content ids of a prompt's parts, in order."""
        latest = self._latest_prompt
        if number == latest[0]:
            return latest[1]
        rows = {row["id"]: row for row in self.store.rows("prompt_chain", {"id": number, "until": latest[0]})}

        def link(prompt: int) -> PromptLink:
            row = self._checked_prompt([rows[prompt]] if prompt in rows else [], prompt)
            return PromptLink(row["parent"], row["keep"], json.loads(row["suffix"]))

        try:
            parts = prompts.expand(number, link, latest)
        except ValueError as error:
            raise self.damaged(str(error)) from error
        self._latest_prompt = (number, parts)
        return parts

    def messages(self, number: int, live: bool = False) -> list[Any]:
        """The messages of a prompt; for a live agent with the secrets that this process has.

        Agents keep steps for longer than a store is open.
        """
        if not self.store.is_open:
            with closing(self.store.reopened()) as store:
                return Contents(store, self.redactor).messages(number, live)
        read = self.live_part if live else self.part
        return [message for part in self.prompt(number) for message in read(part)]

    def number(self, messages: Sequence[Any]) -> int | None:
        """The id of a prompt that is stored here, if this is one."""
        return messages.number if isinstance(messages, StoredMessages) and messages.source is self else None

    def stored(self, prompt: int, size: int | None = None) -> StoredMessages:
        """The messages of a prompt, read from the store when they are used; `size` is how many, if that is known."""
        return StoredMessages(self, prompt, size)
