"""The contents of an export, and their numbers in the store that it is loaded into."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import cast

from smolmem.core.encoding import packing, wire
from smolmem.store.base import Row, Store
from smolmem.transfer import archive
from smolmem.transfer.archive import ExportReader
from smolmem.transfer.lines import InvalidLine


class LoadedContents:
    """Adds contents, and finds those that lines refer to; `known` are the numbers of others, by hash."""

    def __init__(self, store: Store, export: ExportReader, known: Mapping[str, int]) -> None:
        self._store, self._export = store, export
        self._numbers = ChainMap({}, cast("dict[str, int]", known))

    def add(self, row: Row) -> bool:
        """Stores the content of a line; false if it was here before."""
        key = bytes.fromhex(row["hash"])
        if row["hash"] in self._numbers or self._store.do("content_id", {"hash": key}) is not None:
            return False
        if "json" in row:
            data = wire.dumps(row["json"])
        elif "text" in row:
            data = row["text"].encode("utf-8", "surrogatepass")
        elif archive.is_media(row["file"]) and row["file"].startswith(f"media/{row['hash']}."):
            data = self._export.media(row["file"])
        else:
            raise InvalidLine(f"the file of a content is media/<hash>.<extension>, not {row['file'][:80]!r}")
        if wire.fingerprint(data) != row["hash"]:
            raise InvalidLine(f"content {row['hash'][:12]} does not match its hash")
        added = self._store.do("add_content", {"hash": key, "bytes": packing.pack(data), "base": None})
        self._numbers[row["hash"]] = int(added)
        return True

    def number(self, key: str | None) -> int | None:
        """The number here of a content.

        Raises:
            InvalidLine: if no line before holds the content.
        """
        if key is None:
            return None
        found = self._numbers.get(key) or self._store.do("content_id", {"hash": bytes.fromhex(key)})
        if found is None:
            raise InvalidLine(f"the line refers to content {key[:12]}, which no earlier line holds")
        return int(found)

    def numbered(self, row: Row, *columns: str) -> Row:
        """A row with numbers instead of hashes in these columns."""
        return row | {column: self.number(row[column]) for column in columns}
