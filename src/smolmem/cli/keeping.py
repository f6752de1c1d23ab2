"""Commands that keep a memory well: fork, export, load, backup, verify, doctor, migrate."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smolmem.cli.command import Command, count, opened, scope_of, url_of
from smolmem.cli.output import Out
from smolmem.core.errors import NotFound, StoreError, Unwritable

if TYPE_CHECKING:
    from smolmem.core.values import Run
    from smolmem.doctor import Diagnosis


def fork(args: argparse.Namespace, out: Out) -> None:
    """Branches off a run."""
    with opened(args) as memory:
        forked = memory.fork(args.run, args.at)
        shared = sum(step.kind == "action" for step in forked.steps)
    lines = (
        "from smolmem import Memory",
        f"Memory({url_of(args)!r}).resume(agent, {forked.id[:8]!r})  # agent: made as it was, with the same tools",
    )
    out.give({"run": forked, "python": list(lines)}, lambda: _forked(forked, shared, lines))


def _forked(run: Run, shared: int, lines: tuple[str, ...]) -> Any:
    from rich.console import Group
    from rich.syntax import Syntax
    from rich.text import Text

    head = Text.assemble(
        (run.id[:8], "bold"),
        f"  shares the past of {(run.fork_of or '')[:8]}, {shared:,} steps. To go on with it:",
    )
    return Group(head, Text(), Syntax("\n".join(lines), "python", theme="ansi_dark", word_wrap=True))


def export(args: argparse.Namespace, out: Out) -> None:
    """Writes everything in an open form."""
    with opened(args) as memory, out.progress(f"exporting to {args.path}") as progress:
        written = memory.export(args.path, scope=scope_of(args), progress=progress)
    out.give(written, lambda: written)


def load(args: argparse.Namespace, out: Out) -> None:
    """Reads an export."""
    if not os.path.lexists(args.path):  # before a file is made for it
        raise NotFound(f"there is no {args.path}: give the folder or .zip that `smolmem export` made.")
    with opened(args, create=True) as memory, out.progress(f"loading {args.path}") as progress:
        loaded = memory.load(args.path, scope=args.scope, progress=progress)
    out.give(loaded, lambda: loaded)


def backup(args: argparse.Namespace, out: Out) -> None:
    """Copies the file while others write."""
    with opened(args) as memory, out.progress(f"copying to {args.path}") as progress:
        memory.backup(args.path, progress=progress)
    size = Path(args.path).stat().st_size
    out.give({"path": args.path, "bytes": size}, lambda: f"{args.path}  {size / 1e6:,.1f} MB")


def verify(args: argparse.Namespace, out: Out) -> int:
    """Proves that what is stored is what was written."""
    with opened(args) as memory:
        report = memory.verify()
        out.give(report, lambda: report)
    return 0 if report else 1


def doctor(args: argparse.Namespace, out: Out) -> int:
    """Names what is wrong, and what mends it."""
    found = _diagnosis(args)
    out.give(found, lambda: found)
    return 0 if found else 1


def _diagnosis(args: argparse.Namespace) -> Diagnosis:
    """From inside where it opens as it is; from outside, without touching it, where it does not or is old."""
    from smolmem.doctor import examine_path, versions

    url = url_of(args)
    try:
        version, newest = versions(url)
        if version == newest:
            with opened(args) as memory:
                return memory.doctor()
    except StoreError:
        pass
    return examine_path(url)


def migrate(args: argparse.Namespace, out: Out) -> None:
    """Brings a file to the newest format."""
    from smolmem.doctor import versions

    url = url_of(args)
    before, newest = versions(url)
    kept = None
    if before < newest and not args.no_backup:
        kept = f"{url.removeprefix('sqlite:///')}.format-{before}-{time.strftime('%Y%m%d-%H%M%S')}"
        with out.progress(f"copying to {kept}") as progress:
            _copy(url, kept, progress)
    with opened(args):
        after, _ = versions(url)
    known = {"url": url, "before": before, "after": after, "backup": kept}
    out.give(known, lambda: _migrated(known))


def _copy(url: str, path: str, progress: Any) -> None:
    """Copies a file of an old format without bringing it up to date."""
    import apsw

    from smolmem.store.sqlite import copy

    target = Path(path).absolute()
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        copy(str(Path(url.removeprefix("sqlite:///")).absolute()), str(target), progress)
    except (OSError, apsw.Error) as error:
        if not isinstance(error, FileExistsError):
            target.unlink(missing_ok=True)
        said = error.strerror if isinstance(error, OSError) else error
        raise Unwritable(f"{path} cannot be written ({said}): mend that, or say --no-backup.") from error


def _migrated(known: dict[str, Any]) -> str:
    if known["before"] == known["after"]:
        return f"{known['url']} has format {known['after']}, the newest: there is nothing to do."
    kept = f"; as it was, it is kept as {known['backup']}" if known["backup"] else ""
    return f"{known['url']} was of format {known['before']} and is now of format {known['after']}{kept}."


# --- their arguments ----------------------------------------------------------------------------------------------


def _of_fork(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the beginning of its id")
    parser.add_argument("--at", metavar="N", type=count, help="share the past up to this step; all of it if left out")


def _path(about: str) -> Any:
    return lambda parser: parser.add_argument("path", metavar="PATH", help=about)


def _of_migrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-backup", action="store_true", help="do not keep a copy of the file as it was")


COMMANDS = (
    Command(
        "fork",
        "Keep",
        "a new run that shares another's past up to a step, to be resumed",
        fork,
        ("smolmem fork 3f9a2c1b --at 1",),
        _of_fork,
    ),
    Command(
        "export",
        "Keep",
        "writes everything, or one scope, in an open form: a folder, or a .zip",
        export,
        ("smolmem export everything.zip", "smolmem export folder --scope default"),
        _path("a folder or a .zip that is not there yet"),
    ),
    Command(
        "load",
        "Keep",
        "reads an export into a memory, which is made if it is not there",
        load,
        ("smolmem load export.zip", "smolmem load export.zip --scope imported --db other.db"),
        _path("the folder or .zip of an export"),
        "With --scope everything is put below that scope. What is here already stays as it is.",
    ),
    Command(
        "backup",
        "Keep",
        "copies the file as it is at one moment, while agents go on writing",
        backup,
        ("smolmem backup copy.db",),
        _path("a file that is not there yet"),
    ),
    Command(
        "verify",
        "Keep",
        "proves that what is stored is what was written; 1 if not",
        verify,
        ("smolmem verify", "smolmem verify --json"),
    ),
    Command(
        "doctor",
        "Keep",
        "names what is wrong with a file, an environment or a habit, and what mends it",
        doctor,
        ("smolmem doctor", "smolmem doctor --json"),
        more="It changes nothing, and looks also at files that do not open. Its exit code is 1 if there is a problem.",
    ),
    Command(
        "migrate",
        "Keep",
        "brings a file to the newest format, with a copy of it as it was",
        migrate,
        ("smolmem migrate", "smolmem migrate --no-backup"),
        _of_migrate,
        "Opening an old file brings it up to date, too; this command keeps a copy first.",
    ),
)
