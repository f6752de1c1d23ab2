"""Commands that maintain a store: export, load, index, backup, verify, doctor, migrate, encrypt, decrypt, rekey."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smolmem.cli.commands import Decorator, argument, command, flag, option
from smolmem.cli.environment import KEY_VARIABLE, NEW_KEY_VARIABLE, Environment
from smolmem.core.errors import NotAStore, NotFound, StoreError
from smolmem.core.text import byte_size, counted

if TYPE_CHECKING:
    from smolmem.doctor import Diagnosis
    from smolmem.store.sqlite.encryption import Key

SECTION = "Maintenance"


def _path(help: str) -> Decorator:
    return argument("path", "PATH", help, type=click.Path())


@command(SECTION, "smolmem export everything.zip", "smolmem export folder --scope default")
@_path("A new folder, or a new file that ends in .zip.")
def export(env: Environment, path: str) -> None:
    """Export everything, or one scope, in an open format.

    An export is plain text, also if the store is encrypted.
    """
    with env.read() as memory, env.output.progress(f"exporting to {path}") as progress:
        written = memory.export(path, scope=env.read_scope, progress=progress)
    env.output.result(written)


@command(SECTION, "smolmem load export.zip", "smolmem load export.zip --scope imported --db other.db")
@_path("The folder or .zip file of an export.")
def load(env: Environment, path: str) -> None:
    """Load an export into a store, which is created if it does not exist.

    With --scope, everything is loaded below that scope. Runs and notes that the store has already are not changed.
    """
    if not os.path.lexists(path):  # before a store is created
        raise NotFound(f"there is no {path}: give the folder or .zip file that `smolmem export` wrote.")
    with env.open_or_create() as memory, env.output.progress(f"loading {path}") as progress:
        loaded = memory.load(path, scope=env.scope, progress=progress)
    env.output.result(loaded)


@command(SECTION, "smolmem index")
def index(env: Environment) -> None:
    """Index everything that is pending, and embed it if there is an embedding model.

    Attached agents do this in the background. Use the command after loading an export, or to wait for it.
    """
    with env.open() as memory, env.output.progress("indexing") as progress:
        count = memory.index(progress or False)
        figures = memory.stats()
    passages, vectors = counted(figures.passages, "passage"), counted(figures.vectors, "vector")
    env.output.result(
        {"indexed": count, "passages": figures.passages, "vectors": figures.vectors},
        lambda: f"{count:,} indexed. The store has {passages} and {vectors}.",
    )


@command(SECTION, "smolmem backup copy.db")
@_path("A new file.")
def backup(env: Environment, path: str) -> None:
    """Copy the store to a new file while agents continue to write.

    The copy of an encrypted store is encrypted with the same key.
    """
    with env.read() as memory, env.output.progress(f"copying to {path}") as progress:
        memory.backup(path, progress=progress)
    size = Path(path).stat().st_size
    env.output.result({"path": path, "bytes": size}, lambda: f"{path}  {byte_size(size)}")


@command(SECTION, "smolmem verify", "smolmem verify --json")
def verify(env: Environment) -> int:
    """Check that the stored content is unchanged since it was written.

    The exit code is 1 if something was changed.
    """
    with env.read() as memory:
        report = replace(memory.verify(), url=env.shown)
        env.output.result(report)
    return 0 if report else 1


@command(SECTION, "smolmem doctor", "smolmem doctor --json", "smolmem doctor --repair")
@flag("--repair", "Rebuild all indexes in a new file first, and keep a copy of the file as it was.")
def doctor(env: Environment, repair: bool) -> int:
    """Report problems of the store, its environment and its use, and how to repair them.

    Without --repair nothing is changed. Stores that cannot be opened are examined, too. The exit code is 1 if there is
    a problem. Close all programs that use the store before a repair.
    """
    from smolmem import doctor

    repaired = []
    if repair:
        env.require_file()
        with env.output.progress(f"rebuilding {env.path}") as progress:
            repaired.append(doctor.repair(env.path, env.key, progress))
    found = _diagnosis(env)
    env.output.result(replace(found, findings=(*repaired, *found.findings)))
    return 0 if found else 1


def _diagnosis(env: Environment) -> Diagnosis:
    """An old store is examined without opening it, because opening a store migrates it."""
    from smolmem.doctor import examine_path, versions
    from smolmem.store.opening import is_server

    try:
        version, newest = (0, 0) if is_server(env.url) else versions(env.url, env.key)
        if version == newest:
            with env.open() as memory:
                return memory.doctor()
    except StoreError:
        pass
    return examine_path(env.url, env.key)


@command(SECTION, "smolmem migrate", "smolmem migrate --no-backup")
@flag("--no-backup", "Do not keep a copy of the file in its old format.")
def migrate(env: Environment, no_backup: bool) -> None:
    """Bring the store to the newest format, and keep a copy in the old format.

    Opening an old store migrates it, too, but keeps no copy. Where words must be indexed again, opening leaves that to
    the background, and the command waits for it.
    """
    from smolmem.doctor import versions
    from smolmem.store.opening import is_server

    if is_server(env.url):
        raise NotAStore(f"{env.shown} is on a server: opening the store migrates it. Make a copy with pg_dump first.")
    before, newest = versions(env.url, env.key)
    copy = None
    if before < newest and not no_backup:
        copy = f"{env.path}.format-{before}-{time.strftime('%Y%m%d-%H%M%S')}"
        with env.output.progress(f"copying to {copy}") as progress:
            _copy(env, copy, progress)
    try:
        with env.open() as memory, env.output.progress("indexing") as progress:
            if before < newest:
                memory._recall.loaded(progress)
            after, _ = versions(env.url, env.key)
    except StoreError:
        if copy and versions(env.url, env.key)[0] == before:  # nothing was migrated, and the disk may be full
            Path(copy).unlink()
        raise
    result = {"url": env.shown, "before": before, "after": after, "backup": copy}
    kept = f"; a copy in the old format is {copy}" if copy else ""
    text = f"{env.shown} was migrated from format {before} to format {after}{kept}."
    same = f"{env.shown} has format {after}, the newest format: nothing was changed."
    env.output.result(result, lambda: same if before == after else text)


def _copy(env: Environment, path: str, progress: Any) -> None:
    """Copies a store, with its key, without migrating it."""
    import apsw

    from smolmem.store.sqlite.copies import back_up
    from smolmem.store.sqlite.driver_errors import explained
    from smolmem.store.sqlite.encryption import resolve_key

    try:
        back_up(str(Path(env.path).absolute()), path, progress, resolve_key(env.key))
    except apsw.Error as error:
        raise explained(error, f"{env.path} cannot be copied", Path(path)) from error


@command(SECTION, "smolmem encrypt", "smolmem encrypt --key-file key.txt")
def encrypt(env: Environment) -> None:
    """Encrypt the store.

    The key comes from --key-file, else from SMOLMEM_KEY, else it is asked for. Without the key the content is lost.
    Close all programs that use the store. The old file is not wiped from the disk, and backups and exports that were
    made before stay as they are.
    """
    if not _is_plain(env):
        raise NotAStore(f"{env.path} is encrypted already or not a smolmem file: `smolmem rekey` changes a key.")
    new = env.required_key("Key", env.key_file, KEY_VARIABLE, twice=True)
    _change_key(env, None, new, "encrypted")


@command(SECTION, "smolmem decrypt", "smolmem decrypt --key-file key.txt")
def decrypt(env: Environment) -> None:
    """Remove the encryption of the store: the file is plain afterwards.

    The key comes from --key-file, else from SMOLMEM_KEY, else it is asked for.
    """
    if _is_plain(env):
        raise NotAStore(f"{env.path} is not encrypted: there is nothing to decrypt.")
    _change_key(env, env.required_key("Key", env.key_file, KEY_VARIABLE), None, "decrypted")


@command(SECTION, "smolmem rekey", "smolmem rekey --key-file key.txt --new-key-file new.txt")
@option("--new-key-file", "PATH", "A file with the new key (default: SMOLMEM_NEW_KEY, else asked for).")
def rekey(env: Environment, new_key_file: str | None) -> None:
    """Change the key of the store.

    The old key comes from --key-file, else from SMOLMEM_KEY, else it is asked for. Backups keep the old key.
    """
    if _is_plain(env):
        raise NotAStore(f"{env.path} is not encrypted: `smolmem encrypt` encrypts a store.")
    old = env.required_key("Key", env.key_file, KEY_VARIABLE)
    new = env.required_key("New key", new_key_file, NEW_KEY_VARIABLE, twice=True)
    _change_key(env, old, new, "encrypted with the new key")


def _is_plain(env: Environment) -> bool:
    from smolmem.store.sqlite.encryption import require_encrypting_build
    from smolmem.store.sqlite.header import is_plain

    env.require_file()
    require_encrypting_build()
    if not Path(env.path).is_file():
        raise NotAStore(f"{env.path} is not a file: give the path of a store.")
    return is_plain(Path(env.path))


def _change_key(env: Environment, old: Key | None, new: Key | None, done: str) -> None:
    from smolmem.store.sqlite.rekeying import change_key

    with env.output.progress(f"writing {env.path}") as progress:
        change_key(Path(env.path), old, new, progress)
    result = {"path": env.path, "encrypted": new is not None}
    env.output.result(result, lambda: f"{env.path} is {done}.")
