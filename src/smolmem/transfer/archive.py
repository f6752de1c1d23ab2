"""The folder or zip file of an export: written completely or not at all, read as untrusted input.

    smolmem.jsonl          one JSON object a line
    media/<hash>.<ext>     pictures, and other content that is binary or long

Nothing is unpacked to a disk: members are read into the store. So there is no path to traverse; names with paths are
refused anyway. Sizes are counted while reading, never taken from a header.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

from smolmem.core.errors import Damaged, NotAStore, StoreError, Unwritable
from smolmem.store.base import Progress
from smolmem.store.sqlite import private_files
from smolmem.store.sqlite.copies import refuse_existing
from smolmem.store.sqlite.part_files import copy_part_of, held

JOURNAL = "smolmem.jsonl"
LINE = 4 << 20
"""Bytes of a line; longer content becomes a file."""
LARGEST = 1 << 30
"""Bytes of one file in `media`."""
RATIO = 100
"""How much larger than the zip its content may be, once it is more than `FREE`."""
FREE = 32 << 20
_MEDIA = re.compile(r"media/[0-9a-f]{40}\.[a-z0-9]{1,5}")
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError)
"""What reading a damaged file can raise."""
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_ASCII = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))


# --- writing ------------------------------------------------------------------------------------------------------


class LineWriter:
    """Writes lines of an export to a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.lines = self.bytes = 0

    def line(self, row: dict[str, Any]) -> None:
        """Writes an object as a line, in the letters of its language."""
        try:
            data = _JSON.encode(row).encode()
        except UnicodeEncodeError:  # half a surrogate pair
            data = _ASCII.encode(row).encode()
        if len(data) >= LINE:
            raise StoreError(f"a {row['type']} is too long for a line of an export ({len(data):,} bytes).")
        self._file.write(data + b"\n")
        self.lines += 1
        self.bytes += len(data) + 1

    def media(self, name: str, data: bytes) -> None:
        """Lines without files have no contents."""
        raise NotImplementedError


class ExportWriter(LineWriter):
    """An export that is being written, under another name than its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.media_files = 0
        private_files.make_folder(folder / "media")
        super().__init__(private_files.create_open(folder / JOURNAL))

    def media(self, name: str, data: bytes) -> None:
        """Writes a file beside the lines."""
        with private_files.create_open(self.folder / name) as file:
            file.write(data)
        self.media_files += 1
        self.bytes += len(data)

    def close(self) -> None:
        """Syncs and closes the file of lines."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


@contextmanager
def create(path: Path) -> Iterator[ExportWriter]:
    """Creates an export that appears under its name, as a folder or as `.zip`, when it is complete."""
    refuse_existing(path)
    work: Path | None = None
    try:
        work = copy_part_of(path.absolute())
        private_files.make_folder(work)
        made = work / "export"
        private_files.make_folder(made)
        with held(work):
            with closing(ExportWriter(made)) as export:
                yield export
            if path.suffix.lower() == ".zip":
                made = _zipped(made, work / "export.zip")
            os.rename(made, path)
    except OSError as error:
        raise Unwritable(f"{path} cannot be written: {error.strerror}. Give a path that can be written.") from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)


def _zipped(folder: Path, target: Path) -> Path:
    private_files.create(target)
    with zipfile.ZipFile(target, "w", allowZip64=True) as archive:
        for file in (folder / JOURNAL, *sorted((folder / "media").iterdir())):
            archive.write(file, file.relative_to(folder).as_posix(), _method(file))
    return target


def _method(file: Path) -> int:
    """Compressed, unless it would look like a bomb: zlib packs up to five times tighter than at level 1."""
    if file.suffix in (".png", ".jpg", ".gif", ".webp"):
        return zipfile.ZIP_STORED
    squeeze, size, squeezed = zlib.compressobj(1), 0, 1
    with open(file, "rb") as opened:
        while data := opened.read(1 << 20):
            size += len(data)
            squeezed += len(squeeze.compress(data))
    squeezed += len(squeeze.flush())
    return zipfile.ZIP_DEFLATED if size / squeezed < RATIO / 6 else zipfile.ZIP_STORED


# --- reading ------------------------------------------------------------------------------------------------------


class ExportReader:
    """An export to read. It is untrusted: unpacked bytes are counted, and an error that they cause is `Damaged`."""

    def __init__(self, path: Path, most: int | None = None) -> None:
        """Reads the export at a path, up to `most` bytes."""
        self.path, self._left = path, most

    def open(self, name: str) -> tuple[IO[bytes], int]:
        """A file of the export, and its size as far as it is known."""
        raise damaged(self.path, f"{name} is missing")

    def close(self) -> None:
        """Closes the export."""

    def media(self, name: str) -> bytes:
        """The bytes of a file in `media`."""
        data = bytearray()
        with self._reading(name) as (file, _):
            while part := file.read(1 << 16):
                data += part
                self._count(part)
                if len(data) > LARGEST:
                    raise damaged(self.path, f"{name} is larger than {LARGEST:,} bytes")
        return bytes(data)

    def lines(self, progress: Progress | None) -> Iterator[tuple[int, bytes]]:
        """The lines of the export, numbered from one. An error of `progress` is none of the export."""
        read = size = 0
        for number, (line, size) in enumerate(self._read_lines(), 1):
            yield number, line
            read += len(line)
            if progress is not None and number % 200 == 0:
                progress(min(read, size), size)
        if progress is not None:
            progress(size, size)

    def _read_lines(self) -> Iterator[tuple[bytes, int]]:
        """Each line, and the size of all of them."""
        number = 0
        with self._reading(JOURNAL) as (file, size):
            while line := file.readline(LINE + 1):
                number += 1
                self._count(line)
                if len(line) > LINE:
                    raise damaged(self.path, f"line {number} is longer than {LINE:,} bytes")
                yield line, size

    @contextmanager
    def _reading(self, name: str) -> Iterator[tuple[IO[bytes], int]]:
        try:
            file, size = self.open(name)
            with file:
                yield file, size
        except _BROKEN as error:
            reason = getattr(error, "strerror", None) or error
            raise damaged(self.path, f"{name} cannot be read ({reason})") from error

    def _count(self, data: bytes) -> None:
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise damaged(self.path, f"the zip unpacks to more than {RATIO} times its size")


@contextmanager
def opened(path: Path) -> Iterator[ExportReader]:
    """Opens an export, a folder or a zip file."""
    export: ExportReader
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
        export = _Folder(path) if is_folder else _Zip(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise NotAStore(f"{path} cannot be read: {reason}. Give the folder or zip of an export.") from error
    with closing(export):
        yield export


def damaged(path: Path, what: str) -> Damaged:
    """The error about an export that cannot be loaded."""
    return Damaged(f"{path}: {what}. Nothing was loaded: export it again, or ask its author.")


def is_media(name: str) -> bool:
    """Whether a file of `media` may have this name."""
    return _MEDIA.fullmatch(name) is not None


class _Folder(ExportReader):
    """An export in a folder. Links, pipes and devices in it are not followed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        if not os.path.lexists(path / JOURNAL):
            raise NotAStore(f"{path} is not an export: it has no {JOURNAL}. Give the result of `export`.")

    def open(self, name: str) -> tuple[IO[bytes], int]:
        for folder in (self.path / name).relative_to(self.path).parents[:-1]:
            if not stat.S_ISDIR(os.lstat(self.path / folder).st_mode):
                raise damaged(self.path, f"{folder} is not a folder")
        file = os.fdopen(os.open(self.path / name, os.O_RDONLY | _NOFOLLOW), "rb")
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            file.close()
            raise damaged(self.path, f"{name} is not a regular file")
        return file, state.st_size


class _Zip(ExportReader):
    """An export in a zip. It may hold the files of an export and nothing else."""

    def __init__(self, path: Path) -> None:
        state = os.stat(path)
        if not stat.S_ISREG(state.st_mode):
            raise NotAStore(f"{path} is neither a folder nor a file. Give the result of `export`.")
        super().__init__(path, max(FREE, RATIO * state.st_size))
        try:
            self._archive = zipfile.ZipFile(path)
        except _BROKEN as error:
            raise NotAStore(
                f"{path} is not an export ({error}). Give a folder or zip that `export` has made; "
                "a store is opened with Memory(path)."
            ) from error
        try:
            self._members = self._checked()
        except BaseException:
            self._archive.close()
            raise

    def _checked(self) -> dict[str, zipfile.ZipInfo]:
        members: dict[str, zipfile.ZipInfo] = {}
        for member in self._archive.infolist():
            name = member.orig_filename
            kind = stat.S_IFMT(member.external_attr >> 16)
            if name == "media/" and kind in (0, stat.S_IFDIR):
                continue
            if name != member.filename or not (name == JOURNAL or is_media(name)) or kind not in (0, stat.S_IFREG):
                raise damaged(self.path, f"the zip holds {name[:80]!r}, which is not a file of an export")
            if name in members:
                raise damaged(self.path, f"the zip holds {name} twice")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or member.flag_bits & 1:
                raise damaged(self.path, f"{name} is compressed in a way that exports do not use")
            members[name] = member
        if JOURNAL not in members:
            raise NotAStore(f"{self.path} is not an export: it has no {JOURNAL}. Give the result of `export`.")
        return members

    def open(self, name: str) -> tuple[IO[bytes], int]:
        if name not in self._members:
            return super().open(name)
        member = self._members[name]
        file: Any = self._archive.open(member)
        return io.BufferedReader(file, 1 << 16), member.file_size

    def close(self) -> None:
        self._archive.close()
