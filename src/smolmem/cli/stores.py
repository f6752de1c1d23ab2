"""Which store a command works with: the words that name one, and the stores in a folder."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import click

from smolmem.core.errors import NotAStore, StoreError
from smolmem.core.text import byte_size, sanitize

SUFFIXES = (".db", ".sqlite", ".sqlite3")
DEFAULT = "smolmem.db"
"""What `Memory()` creates."""
_URL = re.compile(r"(sqlite|postgres|postgresql)://")


def names_store(word: str) -> bool:
    """Whether a word on the command line names a store: a URL, a file name with a known suffix, or a store itself."""
    if _URL.match(word) or (word.lower().endswith(SUFFIXES) and not word.startswith("-")):
        return True
    return "\0" not in word and os.path.isfile(word) and _is_store(Path(word))


def stores_in(folder: Path) -> list[Path]:
    """The stores in a folder, the newest first. Encrypted files cannot be told from others, except by name."""
    files = [path for path in sorted(folder.iterdir()) if path.name.lower().endswith(SUFFIXES) and path.is_file()]
    found = [path for path in files if path.name == DEFAULT or _is_store(path)]
    return sorted(found, key=_changed, reverse=True)


def _is_store(path: Path) -> bool:
    from smolmem.store.sqlite.header import APPLICATION_ID, owner_of, stored_header

    try:
        return owner_of(stored_header(path, None, path)) == APPLICATION_ID
    except StoreError:
        return False


def _changed(path: Path) -> float:
    log = path.with_name(f"{path.name}-wal")
    return max(file.stat().st_mtime for file in (path, log) if file.exists())


def the_only_store(variable: str, *, ask: bool) -> str:
    """The only store in this folder; if there are several, a terminal asks which one.

    Raises:
        NotAStore: there are several stores, and no terminal to ask on.
    """
    try:
        found = stores_in(Path())
    except OSError:
        return DEFAULT
    if len(found) < 2:
        return str(found[0]) if found else DEFAULT
    if ask and sys.stdin.isatty() and sys.stderr.isatty():
        return _chosen(found)
    names = ", ".join(str(path) for path in found[:8])
    raise NotAStore(
        f"There are several stores here: {names}. Name one, as in `smolmem runs {found[0]}`, or set {variable}."
    )


def _chosen(found: list[Path]) -> str:
    """Asks which store."""
    click.echo("There are several stores here:", err=True)
    for number, path in enumerate(found, 1):
        changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(_changed(path)))
        click.echo(sanitize(f"  {number}  {path}  {byte_size(path.stat().st_size)}, changed {changed}"), err=True)
    number = click.prompt("Which one", type=click.IntRange(1, len(found)), default=1, err=True)
    return str(found[number - 1])
