"""Finds problems of a file, its environment and its use, each with a sentence and a command that repairs it.

Only `repair` changes anything. All checks use an index or the newest rows, so they take a second or two however much is
stored. A file that cannot be opened is examined from outside.
"""

from __future__ import annotations

import os
import shutil
import stat
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import apsw

from smolmem.agents import compat
from smolmem.core import clock
from smolmem.core.display import Result
from smolmem.core.errors import Damaged, NotAStore, SmolmemError, StoreError
from smolmem.core.text import byte_size, counted, one_line
from smolmem.recall.embedding import models
from smolmem.recall.embedding.embedders import default_model, installed
from smolmem.store.base import Progress, Row, migrations
from smolmem.store.journal import Journal
from smolmem.store.opening import open_store, shown
from smolmem.store.sqlite.copies import can_be_written, private_copy
from smolmem.store.sqlite.copies import copy as copy_database
from smolmem.store.sqlite.encryption import CIPHER, SWAP, Key, encrypting_build, resolve_key
from smolmem.store.sqlite.header import APPLICATION_ID, is_locked, owner_of, read_header, read_version
from smolmem.store.sqlite.part_files import unfinished_copies, unfinished_files
from smolmem.store.sqlite.rebuilding import rebuild
from smolmem.store.sqlite.sqlite_store import SqliteStore
from smolmem.store.verify import mark_incomplete_runs

Level = Literal["ok", "hint", "warning", "problem"]
SAFE_SQLITE = (3, 51, 3)
"""The first release without the WAL-reset bug, which corrupts files that several programs write."""
NEWEST_RUNS = 100
"""How many of the newest runs are checked for missing steps and events."""
LONG_PROMPT = 50_000
LONG_TEXT = 200_000
NEWEST_STEPS = 20_000
"""How many of the newest steps are searched for long prompts and texts."""
_NETWORKS = (
    *("nfs", "cifs", "smb", "afs", "ncp", "9p", "ceph", "gluster", "lustre"),
    *("fuse.sshfs", "fuse.rclone", "drvfs"),
)
PACKAGES = (
    *(
        "mcp",
        "opentelemetry-proto",
        "langchain-core",
        "langgraph-checkpoint",
        "llama-index-core",
        "chromadb",
        "faiss-cpu",
    ),
    *("qdrant-client", "lancedb", "pymilvus", "psycopg", "starlette", "onnxruntime", "gradio", "huggingface_hub"),
)
"""The packages of integrations."""
_TABLES = {
    "contents": ("content",),
    "prompts": ("prompt",),
    "events and steps": ("event", "step"),
    "full-text index": ("passage", "document_words_data", "document_words_idx"),
    "vectors": ("vector",),
}


@dataclass(frozen=True)
class Finding:
    """The result of one check: its level, a sentence, and a command that repairs the problem."""

    level: Level
    text: str
    repair: str = ""


@dataclass(frozen=True)
class Diagnosis(Result):
    """All findings; true if none of them is a problem."""

    url: str
    findings: tuple[Finding, ...]

    def __bool__(self) -> bool:
        return not any(finding.level == "problem" for finding in self.findings)


def examine(journal: Journal) -> Diagnosis:
    """Examines an open store, its environment and its use."""
    url, found = journal.store.url, list[Finding]()
    file = (_engine, _integrity, _links, _space, _sizes, _place, _disk, _sync)
    place = (_engine, _links, _sizes) if journal.store.is_remote else file
    for check in (*place, _encryption, _environment, _unfinished, _failing, _long, _pending, _notes):
        try:
            found += check(journal)
        except TimeoutError:
            continue
        except (SmolmemError, ValueError, TypeError) as error:  # a damaged row can hold anything
            repair = _repair(url) if isinstance(error, Damaged) else f"smolmem verify --db {url}"
            found.append(Finding("problem", str(error), repair))
    return Diagnosis(url, tuple(found))


# --- the file -----------------------------------------------------------------------------------------------------


def _engine(journal: Journal) -> Iterator[Finding]:
    engine = journal.store.facts()["engine"]
    if journal.store.is_remote:
        began, _ = time.perf_counter(), journal.store.do("any_pending", {})
        yield Finding("ok", f"{engine} answers after {1000 * (time.perf_counter() - began):.1f} ms.")
    elif tuple(map(int, engine.rpartition(" ")[2].split("."))) < SAFE_SQLITE:
        text = f"{engine} can corrupt a file that several programs write (the WAL-reset bug)."
        yield Finding("problem", text, "pip install --upgrade apsw")
    else:
        yield Finding("ok", f"{engine}, free of the WAL-reset bug.")


def _integrity(journal: Journal) -> Iterator[Finding]:
    """SQLite's own check, which compares each index with its table, the full-text index, and the newest runs."""
    url = journal.store.url
    try:
        rows = journal.store.rows("integrity_check", {}, seconds=1.0)
    except TimeoutError:
        yield Finding("hint", "The file is too large for a quick check.", f"smolmem verify --db {url}")
        return
    wrong = [str(value) for row in rows for value in row.values() if value != "ok"]
    damaged = [Finding("problem", f"The file is damaged: {each}.", _repair(url)) for each in wrong[:1]]
    yield from damaged or [Finding("ok", "The file is in order.")]


def _repair(url: str) -> str:
    return f"smolmem doctor --repair --db {url}, or restore it from a backup"


def _links(journal: Journal) -> Iterator[Finding]:
    """Whether the newest runs have all their steps and events, and none is a fork of itself."""
    try:
        journal.check_notes()
        for run in journal.find_runs(limit=NEWEST_RUNS):
            for row in journal.session_lineage(journal.session_row(run.session)):
                journal.check_events(row["id"])
            journal.check_steps(run.id, run.session)
    except Damaged as error:
        yield Finding("problem", str(error).partition(". ")[0] + ".", _repair(journal.store.url))


def _space(journal: Journal) -> Iterator[Finding]:
    store = journal.store
    wal = Path(f"{store.url}-wal")
    if wal.exists() and wal.stat().st_size > 64 << 20:
        text = f"The write-ahead log has grown to {byte_size(wal.stat().st_size)}, because a program keeps reading."
        yield Finding("hint", text, "close programs that have the file open; it shrinks with the next write")
    size, pages, free = (int(store.do(name, {})) for name in ("page_size", "page_count", "free_pages"))
    if free * size > 10 << 20 and free * 4 > pages:
        text = f"{byte_size(free * size)} of the file are free, and will be used by the next writes."
        yield Finding("hint", text, "smolmem export, and smolmem load into a new file, to make it smaller")


def _sizes(journal: Journal) -> Iterator[Finding]:
    """The sizes of the tables, unless the file is so large that counting takes long."""
    parts = []
    for what, tables in _TABLES.items():
        found = [journal.store.rows("table_bytes", {"name": name}, seconds=0.15) for name in tables]
        if (size := sum(row["bytes"] for rows in found for row in rows)) > 1 << 20:
            parts.append(f"{what} {byte_size(size)}")
    yield Finding("ok", f"{byte_size(journal.store.size())} on disk{': ' if parts else ''}{', '.join(parts)}.")


def _place(journal: Journal) -> Iterator[Finding]:
    path = Path(journal.store.url)
    if stat.S_IMODE(path.stat().st_mode) & 0o077 and os.name != "nt":
        text = f"Other users of this machine can open the file ({stat.filemode(path.stat().st_mode)})."
        yield Finding("warning", text, f"chmod 600 {path}")
    if parts := sorted({*unfinished_files(path), *unfinished_copies(path.parent)}):
        text = f"An interrupted command left {counted(len(parts), 'unfinished file')} behind."
        yield Finding("warning", text, f"rm -r {' '.join(map(str, parts))}, if no such command is running")
    system = _file_system(path.absolute())
    if system.startswith(_NETWORKS):
        text = f"The file is on a network file system ({system}), where file locks are not reliable."
        yield Finding("problem", text, "move it to a local disk, and keep backups on the network: smolmem backup")


def _file_system(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of a path's file system; empty if unknown."""
    found, longest = "", -1
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
        real = path.resolve()
    except OSError:
        return ""
    for line in lines:
        mount, _, rest = line.partition(" - ")
        point = mount.split(" ")[4].replace("\\040", " ") if mount.count(" ") >= 4 else "?"
        if rest and (real == Path(point) or Path(point) in real.parents) and len(point) > longest:
            found, longest = rest.split(" ")[0], len(point)
    return found


def _disk(journal: Journal) -> Iterator[Finding]:
    free = shutil.disk_usage(Path(journal.store.url).absolute().parent).free
    if free < 100 << 20:
        yield Finding("problem", f"Only {byte_size(free)} are left on the disk.", "free some space")
    elif free < max(1 << 30, journal.store.size() // 2):
        yield Finding("warning", f"{byte_size(free)} are left on the disk.", "free some space before it is needed")
    else:
        yield Finding("ok", f"{byte_size(free)} are left on the disk.")


def _sync(journal: Journal) -> Iterator[Finding]:
    took = []
    try:
        with tempfile.TemporaryFile(dir=Path(journal.store.url).absolute().parent) as file:
            for _ in range(5):
                began = time.perf_counter()
                file.write(bytes(4096))
                file.flush()
                os.fsync(file.fileno())
                took.append(1000 * (time.perf_counter() - began))
    except OSError as error:
        yield Finding("problem", f"No file can be written beside the store ({error.strerror}).", "check its folder")
        return
    typical = statistics.median(took)
    if typical > 20:
        text = f"A synced write takes {typical:.0f} ms on this disk, and each step waits for one."
        yield Finding("warning", text, "Memory(path, durability='normal') survives a killed process, not a power cut")
    else:
        yield Finding("ok", f"A synced write takes {typical:.1f} ms.")


def _encryption(journal: Journal) -> Iterator[Finding]:
    if journal.store.encrypted:
        yield Finding("ok", f"The file is encrypted ({CIPHER}, {encrypting_build()}).")


# --- the environment ----------------------------------------------------------------------------------------------


def _environment(_: Journal | None = None) -> Iterator[Finding]:
    """What is installed; the same with and without a store."""
    yield Finding("ok", f"Python {'.'.join(map(str, sys.version_info[:3]))}, apsw {apsw.apsw_version()}.")
    if _same_folder("apsw", "apsw-sqlite3mc"):
        which = "the plain build" if encrypting_build() is None else "the encrypting build"
        text = f"apsw and apsw-sqlite3mc are installed in one folder, where each overwrites the other; {which} is used."
        yield Finding("warning", text, f"{SWAP} (or `pip install apsw`)")
    version = compat.SMOLAGENTS
    known = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if known < compat.OLDEST:
        yield Finding("problem", f"smolagents {version} is too old.", "pip install --upgrade smolagents")
    elif known > compat.NEWEST:
        tested = ".".join(map(str, compat.NEWEST))
        repair = f"if something does not work: pip install 'smolagents=={tested}.*'"
        yield Finding("hint", f"smolagents {version} is newer than the tested releases.", repair)
    else:
        yield Finding("ok", f"smolagents {version}.")
    for sentence in compat.check().values():
        yield Finding("warning", sentence, "pip install --upgrade smolmem")
    yield _semantic_recall()
    yield from _integrations()


def version(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _integrations() -> Iterator[Finding]:
    found = {package: version(package) for package in PACKAGES}
    here = ", ".join(f"{package} {number}" for package, number in found.items() if number is not None)
    yield Finding("ok", f"Integrations: {here or 'none'}.")
    release = (found["mcp"] or "").partition(".")[0]
    if version("mcpadapt") is not None and release.isdigit() and int(release) >= 2:
        text = f"smolagents' MCPClient cannot import mcp {found['mcp']}; `smolmem mcp` can."
        yield Finding("hint", text, "pip install 'mcp<2'")


def _semantic_recall() -> Finding:
    name = default_model()
    if name is not None:
        return Finding("ok", f"Semantic recall, with {name}.")
    if models.chosen() == "off":
        return Finding("ok", "Recall uses words alone, as chosen with `smolmem model use off`.")
    if not installed():
        return Finding("hint", "Recall uses words alone.", "pip install 'smolmem[semantic]' for semantic recall")
    text = "Recall uses words alone: the local model is not on this machine."
    repair = f"`smolmem model fetch {models.E5.name}` or Memory(path, embedder='local') fetches it"
    return Finding("hint", text, f"{repair}, {models.E5.megabytes} MB")


def _same_folder(*names: str) -> bool:
    """Whether several distributions are installed in one folder."""
    try:
        return len({Path(str(metadata.distribution(name).locate_file(""))).resolve() for name in names}) == 1
    except metadata.PackageNotFoundError:
        return False


# --- use ----------------------------------------------------------------------------------------------------------


def _unfinished(journal: Journal) -> Iterator[Finding]:
    going = journal.store.rows("open_runs", {"limit": 1000})
    if killed := [run for run in going if journal.is_gone(run["writer"])]:
        text = f"{counted(len(killed), 'run')} ended with a killed process; the newest is {_named(killed[0])}."
        yield Finding("warning", text, f"memory.resume(agent, {killed[0]['id'][:8]!r}) continues it")
    week = time.time() - 7 * 86_400
    if left := journal.store.rows("newest_unfinished", {"since": week, "limit": 1000}):
        text = f"{counted(len(left), 'run')} of this week did not finish; the newest is {_named(left[0])}."
        yield Finding("hint", text, f"memory.resume(agent, {left[0]['id'][:8]!r}), or smolmem show {left[0]['id'][:8]}")


def _failing(journal: Journal) -> Iterator[Finding]:
    rows = journal.store.rows("newest_failures", {"limit": 200})
    reasons: Counter[str] = Counter()
    examples: dict[str, Row] = {}
    for row in rows:
        failure = journal.value(row["failure"])
        reason = f"{failure.get('type')}: {failure.get('message')}"[:200] if isinstance(failure, dict) else "?"
        reasons[reason] += 1
        examples.setdefault(reason, row)
    for reason, count in reasons.most_common(3):
        if count >= 3:
            text = f"{count} of the last {len(rows)} failed runs failed with the same error: {one_line(reason, 120)}"
            yield Finding("warning", text, f"smolmem show {examples[reason]['id'][:8]}")


def _long(journal: Journal) -> Iterator[Finding]:
    newest = {"newest": NEWEST_STEPS, "limit": 1000}
    if prompts := journal.store.rows("long_prompts", newest | {"tokens": LONG_PROMPT}, seconds=0.3):
        most, run = prompts[0]["tokens"], prompts[0]["run"][:8]
        text = f"{counted(len(prompts), 'run')} sent prompts of more than {LONG_PROMPT:,} tokens"
        repair = "memory.attach(agent, views=[views.TokenBudget(…), views.TrimObservations(…)])"
        yield Finding("hint", f"{text}, up to {most:,} (run {run}).", repair)
    if texts := journal.store.rows("long_texts", newest | {"bytes": LONG_TEXT}, seconds=0.3):
        size, run, number = texts[0]["bytes"], texts[0]["run"][:8], texts[0]["number"]
        text = f"{counted(len(texts), 'step')} hold more than {LONG_TEXT // 1000} kB of text, up to {byte_size(size)}"
        repair = "memory.attach(agent, views=[views.TrimObservations(…)]), or let the tool write to a file"
        yield Finding("hint", f"{text} (step {number} of run {run}).", repair)


def _pending(journal: Journal) -> Iterator[Finding]:
    if (count := int(journal.store.do("count_pending", {}))) > 1000:
        text = f"{count:,} steps and notes are not indexed yet, and cannot be found."
        yield Finding("hint", text, f"smolmem index --db {journal.store.url}")


def _notes(journal: Journal) -> Iterator[Finding]:
    if expired := int(journal.store.do("expired_notes", {"now": clock.now()})):
        yield Finding("ok", f"{counted(expired, 'note')} expired since the last recall; the next recall removes them.")
    current = journal.store.rows("current_notes", {"now": clock.now(), "limit": 200})
    if stale := [note for note in current if journal.store.do("stale", {"id": note["id"], "now": clock.now()})]:
        first = one_line(stale[0]["text"], 60)
        text = f"{counted(len(stale), 'note')} made from sources that are no longer current: {first!r}."
        yield Finding("hint", text, f"smolmem forget {stale[0]['id'][:8]}, or remember what is true now")


def _named(run: Row) -> str:
    return f"{run['id'][:8]} of {run['agent']}, {one_line(run['title'], 50)!r}"


# --- repair -------------------------------------------------------------------------------------------------------


def repair(path: str | os.PathLike[str], key: str | bytes | None = None, progress: Progress | None = None) -> Finding:
    """Copies all rows that can be read to a new file with new indexes; the file as it was is kept beside it."""
    done = rebuild(_path(os.fspath(path)), resolve_key(key), progress)
    merged = f", {counted(done.merged, 'content')} that were stored twice merged" if done.merged else ""
    text = (
        f"{path} was rebuilt: {counted(done.rows, 'row')} copied, {done.indexes} indexes and the full-text index "
        f"rebuilt{merged}. The old file is {done.backup}."
    )
    if not done.lost:
        return Finding("ok", text, f"smolmem verify --db {path}")
    text += f" These rows could not be read: {', '.join(done.lost)}."
    with closing(open_store(path, key=key)) as store:
        incomplete = [run["id"][:8] for run in mark_incomplete_runs(Journal(store))]
    if not incomplete:
        return Finding("problem", text, f"smolmem verify --db {path}")
    text += f" Incomplete runs: {', '.join(incomplete)}. All other runs are complete."
    return Finding("problem", text, "smolmem show ID shows what is left of a run, smolmem erase ID removes it")


# --- from outside -------------------------------------------------------------------------------------------------


def examine_path(url: str | os.PathLike[str], key: str | bytes | None = None) -> Diagnosis:
    """Examines a file that may not open, without changing it; the key is `key`, else `SMOLMEM_KEY`."""
    text = os.fspath(url)
    return Diagnosis(shown(text), (*_outside(text, key), *_environment()))


def versions(url: str | os.PathLike[str], key: str | bytes | None = None) -> tuple[int, int]:
    """The format of a file, and the newest format; opening a store migrates the file.

    Raises:
        InvalidArgument: the key is empty or malformed.
        NotAStore: the file does not exist, or is not a store.
        Unwritable: the file cannot be read.
    """
    path = _path(os.fspath(url))
    if not path.exists():
        folder = path.absolute().parent
        advice = "check the path; `smolmem demo` creates a sample store" if folder.is_dir() else f"mkdir -p {folder}"
        raise NotAStore(f"{path} does not exist: {advice}.")
    if not path.is_file():
        raise NotAStore(f"{path} is {'a folder' if path.is_dir() else 'not a regular file'}: give the path of a file.")
    resolved, newest = resolve_key(key), len(migrations("sqlite"))
    if not path.stat().st_size:
        return 0, newest
    if owner_of(read_header(path, resolved)) != APPLICATION_ID:
        raise NotAStore(f"{path} is a database of another program: give another path.")
    return read_version(path, resolved), newest


def _path(url: str) -> Path:
    if "\0" in url or not url:
        raise NotAStore(f"{url!r} is not a file name: give the path of a file, for instance 'agent.db'.")
    return Path(url.removeprefix("sqlite:///"))


def _outside(url: str, key: str | bytes | None) -> Iterator[Finding]:
    try:
        if "://" in url and not url.startswith("sqlite:"):
            return open_store(url).close()  # its error names the problem
        path = _path(url)
        version, newest = versions(url, key)
        resolved = resolve_key(key)
    except SmolmemError as error:
        text, _, repair = str(error).partition(": ")
        yield Finding("problem", f"{text}.", repair.removesuffix("."))
        return
    if version > newest:
        text = f"{path} was written by a later smolmem (format {version}, this one knows {newest})."
        yield Finding("problem", text, "pip install --upgrade smolmem")
        return
    if can_be_written(path):
        if is_locked(path, resolved):
            text = f"Another process has locked {path} for longer than a write takes; no other process can write."
            yield Finding("problem", text, f"wait for it, or find it with `fuser {path}` and end it")
    else:
        what = path.absolute().parent if os.access(path, os.W_OK) else path
        text = f"{what} cannot be written: agents cannot record, and commands read a copy."
        yield Finding("warning", text, f"chmod u+w {what}, or copy the store to a folder that can be written")
    yield from _opens(path, resolved)
    if version < newest:
        yield Finding("hint", f"Its format is {version}; the newest is {newest}.", f"smolmem migrate --db {path}")


def _opens(path: Path, key: Key | None) -> Iterator[Finding]:
    """Opens a copy, with the same key, so that the file stays as it is."""
    size = sum(file.stat().st_size for file in (path, Path(f"{path}-wal")) if file.exists())
    if size > 500 << 20 or size > shutil.disk_usage(tempfile.gettempdir()).free // 2:
        yield Finding("hint", f"{path} is too large to be tried out on a copy.", f"smolmem verify --db {path}")
        return
    with ExitStack() as stack:
        copy = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="smolmem-"))) / path.name
        try:
            if can_be_written(path):
                copy_database(str(path), str(copy), None, key)
            else:
                copy = stack.enter_context(private_copy(path, key))
            with closing(SqliteStore(str(copy), key=key)) as store:
                problems = [str(value) for row in store.rows("integrity_check", {}) for value in row.values()]
        except OSError as error:
            text, advice = f"{path} cannot be read: {error.strerror}.", "check its permissions, and the disk"
        except (apsw.Error, StoreError) as error:
            message = str(error) if isinstance(error, StoreError) else f"{path} cannot be read: {error}."
            text, advice = message.replace(str(copy), str(path)), "restore it from a backup"
        else:
            wrong = next((problem for problem in problems if problem != "ok"), None)
            text, advice = (f"{path} is damaged: {wrong}.", _repair(str(path))) if wrong else (f"{path} opens.", "")
        yield Finding("problem" if advice else "ok", text, advice)
