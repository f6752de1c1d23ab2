"""A temporary copy of a file that cannot be written.

SQLite cannot read a file in WAL mode without writing beside it, unless another process has it open. So a read-only file
is copied by SQLite if that works, and otherwise byte by byte: then no process has it open.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from smolmem.core.errors import Unwritable
from smolmem.store.copies import copy
from smolmem.store.encryption import resolve_key


def is_read_only(url: str) -> bool:
    """Whether a path names a file that this process cannot write, or cannot write beside."""
    path = Path(url.removeprefix("sqlite:///"))
    return (
        "\0" not in url
        and path.is_file()
        and not (os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK))
    )


@contextmanager
def snapshot(url: str, key: str | bytes | None) -> Iterator[str]:
    """A copy of a file in a private folder, for as long as the block lasts; the copy has the same key.

    Raises:
        Unwritable: the file cannot be read, or the copy cannot be written.
    """
    path = Path(url.removeprefix("sqlite:///")).absolute()
    with tempfile.TemporaryDirectory(prefix="smolmem-") as folder:
        target = Path(folder) / path.name
        try:
            _copy(path, target, key)
        except OSError as error:
            raise Unwritable(f"{path} cannot be copied to {folder} ({error.strerror}): check both.") from error
        yield str(target)


def _copy(path: Path, target: Path, key: str | bytes | None) -> None:
    try:
        copy(str(path), str(target), None, resolve_key(key))
    except apsw.Error:
        for suffix in ("", "-wal"):
            if Path(f"{path}{suffix}").exists():
                shutil.copyfile(f"{path}{suffix}", f"{target}{suffix}")
