"""The errors of the SQLite driver as errors of smolmem."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import apsw

from smolmem.core.errors import REPAIR, Busy, Damaged, StoreError, Unwritable

_BUSY = (apsw.BusyError, apsw.LockedError, apsw.ProtocolError)
"""SQLite reports a lost race for the write-ahead log as an error of the locking protocol."""
_LITTLE = 1 << 16
"""Bytes: SQLite cannot open a file with less free space, because it makes files beside it."""


def explained(error: apsw.Error, what: str, path: Path) -> StoreError:
    """Translates a driver's error; the message says what happened and what to do next."""
    detail = str(error)
    if detail == "not an error":  # which SQLite says of a copy: its own message is on another connection
        detail = name_of(error)
    if isinstance(error, _BUSY):
        return Busy(f"{what}: another process has held it for too long ({detail}). Close that process, or try again.")
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError, apsw.FormatError)):
        return Damaged(f"{what}: it is damaged ({detail}). {REPAIR}")
    if isinstance(error, apsw.FullError) or (isinstance(error, (apsw.IOError, apsw.CantOpenError)) and _is_full(path)):
        return Unwritable(
            f"{what}: there is no space left on the disk of {path.absolute().parent}. Free some space; what was "
            "written before is safe."
        )
    if isinstance(error, (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, apsw.IOError, apsw.AuthError)):
        return Unwritable(f"{what}: {detail}. Check the disk and the permissions of the file and its folder.")
    return StoreError(f"{what}: {detail}.")


def name_of(error: apsw.Error) -> str:
    """SQLite's name of an error."""
    return str(apsw.mapping_extended_result_codes.get(getattr(error, "extendedresult", 0), "an unknown error"))


def _is_full(path: Path) -> bool:
    """Whether the disk of a file is full: SQLite then also fails with a general error."""
    import shutil

    with suppress(OSError):
        return shutil.disk_usage(path.absolute().parent).free < _LITTLE
    return False
