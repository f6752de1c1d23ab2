"""New files and folders that only their owner can read, whatever the umask."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


def create(path: Path) -> None:
    """Creates an empty file.

    Raises:
        FileExistsError: there is something under that name.
    """
    create_open(path).close()


def create_open(path: Path) -> BinaryIO:
    """Creates a file and opens it for writing.

    Raises:
        FileExistsError: there is something under that name.
    """
    file = os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0), 0o600), "wb")
    os.chmod(path, 0o600)  # the umask may take the owner's own rights
    return file


def make_folder(path: Path) -> None:
    """Makes a folder.

    Raises:
        FileExistsError: there is something under that name.
    """
    os.mkdir(path, 0o700)
    os.chmod(path, 0o700)
