"""Reads the contents of a file without smolmem's own reading path around them."""

from __future__ import annotations

from pathlib import Path

import apsw

from smolmem.core.encoding import packing
from smolmem.store.chains import Chains


def unpacked(path: Path) -> list[bytes]:
    """Every content of a file, unpacked."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    names = ("id", "bytes", "base")

    def rows(where: str = "", *values: object) -> list[dict[str, object]]:
        found = connection.execute(f"SELECT id, bytes, base FROM content {where} ORDER BY id", values)
        return [dict(zip(names, row, strict=True)) for row in found]

    chains = Chains(lambda number, until, most: rows("WHERE id = ?", number))
    try:
        return [chains.unpack(row, packing.BLOB) for row in rows()]
    finally:
        connection.close()
