"""What every command works with: the chosen store, its key, the scope and the output."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smolmem.cli.output import Output
from smolmem.core.errors import InvalidArgument, NotAStore, NotFound, StoreError, Unwritable
from smolmem.core.text import byte_size, sanitize

if TYPE_CHECKING:
    from smolmem.core.values import Run
    from smolmem.memory import Memory
    from smolmem.queries import Queries, Reader
    from smolmem.store.journal import Journal
    from smolmem.store.sqlite.encryption import Key

URL_VARIABLE = "SMOLMEM_URL"
KEY_VARIABLE = "SMOLMEM_KEY"
NEW_KEY_VARIABLE = "SMOLMEM_NEW_KEY"


class Environment:
    """The values of `--db`, `--scope`, `--key-file` and `--json`, and what follows from them.

    No option takes a key itself: other users of the machine can read the arguments of a process.
    """

    def __init__(self) -> None:
        self.db: str | None = None
        self.scope: str | None = None
        self.key_file: str | None = None
        self.json = False
        self.asks = True
        """Whether the user is asked for a store or a key; not while a shell completes a word."""
        self.closing = ExitStack()
        """Closed when the command has ended."""
        self.copy: str | None = None
        """The private copy that the command reads, if the store cannot be written."""

    @cached_property
    def url(self) -> str:
        """The store: named by a word or `--db`, else the environment variable, else the only store in this folder."""
        return self.db or os.environ.get(URL_VARIABLE) or the_only_store(ask=self.asks)

    @property
    def shown(self) -> str:
        """The store as it may be printed: without a password."""
        from smolmem.store.opening import shown

        return shown(self.url)

    @property
    def path(self) -> str:
        """The path of the store's file; of a server, what may be printed."""
        return self.shown.removeprefix("sqlite:///")

    @property
    def place(self) -> str:
        """Where a store was looked for, in words."""
        return f"at {self.path}" if self.db or os.environ.get(URL_VARIABLE) else "in this folder"

    @property
    def read_scope(self) -> str:
        """The scope that is read: all scopes unless `--scope` names one."""
        return self.scope or "*"

    @cached_property
    def key(self) -> str | None:
        """The key from `--key-file`, or typed in for an encrypted store; None if the library uses `SMOLMEM_KEY`."""
        if self.key_file is not None:
            return _read_key(self.key_file)
        if KEY_VARIABLE in os.environ or not self.asks or not _can_ask() or not self._looks_encrypted():
            return None
        return _ask(f"Key of {self.path}")

    def required_key(self, title: str, file: str | None, variable: str, *, twice: bool = False) -> Key:
        """A key from a file, else from an environment variable, else typed in; a new key is typed `twice`."""
        from smolmem.store.sqlite.encryption import Key, key_in_variable

        if file is not None:
            return Key(_read_key(file))
        key = key_in_variable(variable)
        if key is not None:
            return key
        if not _can_ask():
            option = "--key-file" if variable == KEY_VARIABLE else "--new-key-file"
            raise InvalidArgument(f"no {title.lower()} was given: set {variable}, or give {option} PATH.")
        return Key(_ask(f"{title} of {self.path}", twice=twice))

    def _looks_encrypted(self) -> bool:
        from smolmem.store.sqlite.header import is_plain

        path = Path(self.path)
        return self.is_file and path.stat().st_size >= 512 and not is_plain(path)

    @cached_property
    def output(self) -> Output:
        """Where results are printed."""
        return Output(self.json)

    @property
    def is_file(self) -> bool:
        """Whether the store is a file that exists."""
        return "://" not in self.path and "\0" not in self.path and Path(self.path).is_file()

    @cached_property
    def readable(self) -> str:
        """The store to read: a private copy of a file that cannot be written, else the store itself."""
        from smolmem.store.sqlite.copies import can_be_written, private_copy
        from smolmem.store.sqlite.encryption import resolve_key

        self.require_file()
        path = Path(self.path)
        if not self.is_file or can_be_written(path):
            return self.url
        with self.output.progress(f"copying {self.path}") as progress:
            self.copy = str(self.closing.enter_context(private_copy(path, resolve_key(self.key), progress)))
        return self.copy

    @property
    def writable(self) -> str:
        """The store to change; a read-only file is refused."""
        from smolmem.store.sqlite.copies import can_be_written

        if self.is_file and not can_be_written(Path(self.path)):
            raise Unwritable(f"{self.path} is read-only: make the file and its folder writable, or copy the file.")
        return self.url

    def look(self) -> Reader:
        """Opens the store to look at runs, steps and alerts; quicker than `open`, because smolagents is not needed."""
        from smolmem.queries import Reader

        return Reader(self.readable, scope="*", key=self.key)

    def read(self, **options: Any) -> Memory:
        """Opens the store for a command that changes nothing; a file that cannot be written is read from a copy."""
        return self._memory(self.readable, options)

    def open(self, **options: Any) -> Memory:
        """Opens the store for a command that changes it."""
        self.require_file()
        return self._memory(self.writable, options)

    def _memory(self, url: str, options: dict[str, Any]) -> Memory:
        from smolmem.memory import Memory

        return Memory(url, **{"scope": "*", "key": self.key, **options})

    @contextmanager
    def open_or_create(self, **options: Any) -> Iterator[Memory]:
        """Opens the store, or a new file; a new file is removed if the command fails before it has written anything."""
        is_new = "://" not in self.path and not os.path.lexists(self.path)
        with ExitStack() as after_closing, self._memory(self.writable, options) as memory:
            try:
                yield memory
            except BaseException:
                counts = memory.stats()
                if is_new and not counts.runs and not counts.notes:
                    for suffix in ("", "-wal", "-shm"):  # on a full disk the log is still there
                        after_closing.callback(Path(f"{self.path}{suffix}").unlink, missing_ok=True)
                raise

    @contextmanager
    def open_journal(self) -> Iterator[Journal]:
        """Opens the journal of the store alone, without recall."""
        from smolmem.store.journal import Journal
        from smolmem.store.opening import open_store

        with closing(open_store(self.readable, key=self.key)) as store:
            yield Journal(store)

    def require_file(self) -> None:
        """Checks that the store exists."""
        path = self.path
        if "://" not in path and "\0" not in path and not os.path.lexists(path):
            raise NotAStore(
                f"There is no store {self.place}: name a store, as in `smolmem runs agent.db`, or in {URL_VARIABLE}, "
                "or create a sample store with `smolmem demo`."
            )

    def nothing_found(self, what: str, filters: Mapping[str, Any]) -> str:
        """The sentence for an empty list: the store is empty, or the options exclude everything."""
        chosen = any(value not in (None, ()) and name not in ("limit", "past") for name, value in filters.items())
        if chosen or self.scope is not None:
            return f"No {what} in {self.shown} match these options."
        return f"{self.shown} holds no {what} yet."

    def run(self, memory: Queries, id: str | None) -> Run:
        """The run whose id begins with `id`; without an id the newest run that no other run called."""
        if id is not None:
            return memory.run(id)
        found = memory.runs(scope=self.read_scope, managed=False, limit=1)
        if not found:
            raise NotFound(f"{self.shown} holds no runs yet: `smolmem demo` creates a store with sample runs.")
        return found[0]


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask(title: str, *, twice: bool = False) -> str:
    """A key that is typed in and not shown."""
    key: str = click.prompt(sanitize(title), hide_input=True, confirmation_prompt=twice, err=True)
    return key


def read_text(path: str, what: str) -> str:
    """The text of a file with a key or a token."""
    try:
        return Path(path).read_bytes().decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidArgument(f"the {what} file {path} cannot be read: {reason}.") from None


def _read_key(path: str) -> str:
    """The text of a file without the end of its line: a passphrase, or `raw:` and 64 hexadecimal digits."""
    key = read_text(path, "key").removesuffix("\n").removesuffix("\r")
    if not key:
        raise InvalidArgument(f"the key file {path} is empty: write the key into it.")
    return key


# --- which store --------------------------------------------------------------------------------------------------

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
    """The stores in a folder, the newest first. Encrypted files are recognised by their name only."""
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


def the_only_store(*, ask: bool) -> str:
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
    if ask and _can_ask():
        return _chosen(found)
    names = ", ".join(str(path) for path in found[:8])
    raise NotAStore(
        f"There are several stores here: {names}. Name one, as in `smolmem runs {found[0]}`, or set {URL_VARIABLE}."
    )


def _chosen(found: list[Path]) -> str:
    """Asks which store."""
    click.echo("There are several stores here:", err=True)
    for number, path in enumerate(found, 1):
        changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(_changed(path)))
        click.echo(sanitize(f"  {number}  {path}  {byte_size(path.stat().st_size)}, changed {changed}"), err=True)
    number = click.prompt("Which one", type=click.IntRange(1, len(found)), default=1, err=True)
    return str(found[number - 1])
