"""The errors of the SQLite driver as errors of smolmem."""

from __future__ import annotations

import apsw

from smolmem.core.errors import REPAIR, Busy, Damaged, StoreError, Unwritable


def explained(error: apsw.Error, what: str) -> StoreError:
    """Translates a driver's error; the message says what happened and what to do next."""
    detail = str(error)
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return Busy(f"{what}: another process has held it for too long ({detail}). Close that process, or try again.")
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError, apsw.FormatError)):
        return Damaged(f"{what}: it is damaged ({detail}). {REPAIR}")
    if isinstance(error, apsw.FullError):
        return Unwritable(f"{what}: no space left ({detail}). Free some space; what was written before is safe.")
    if isinstance(error, (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, apsw.IOError, apsw.AuthError)):
        return Unwritable(f"{what}: {detail}. Check the disk and the permissions of the file and its folder.")
    return StoreError(f"{what}: {detail}.")
