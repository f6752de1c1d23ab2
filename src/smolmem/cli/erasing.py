"""Commands that delete data for good: erase, prune, purge."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from smolmem.cli.commands import ORIGINS, argument, choice, command, duration, flag, option, past, step_reference
from smolmem.cli.environment import Environment
from smolmem.cli.searching import described
from smolmem.core.errors import InvalidArgument

if TYPE_CHECKING:
    from smolmem.memory import Memory

SECTION = "Maintenance"

_dry_run = flag("--dry-run", "Erase nothing; list what would be erased.")
_yes = flag("--yes", "Do not ask for confirmation.")


@command(
    SECTION,
    "smolmem erase 5c1e92b7 --yes",
    "smolmem erase 3f9a2c1b/2 --dry-run",
    "smolmem erase --scope 'acme/alice' --yes",
    "smolmem erase --before 90d --dry-run",
)
@argument("id", "[ID]", "The beginning of the id of a run or a note, or a step such as 3f9a2c1b/2.", required=False)
@option("--step", "STEP", "A step: its id, or 3f9a2c1b/2.", type=step_reference)
@option("--before", "TIME", "Runs that ended before this time: 2025-03-31T12:00, or 90d ago.", type=past)
@flag("--finish", "Remove bytes that an earlier erase had to leave on the disk.")
@_dry_run
@_yes
def erase(
    env: Environment,
    id: str | None,
    step: int | str | None,
    before: float | None,
    finish: bool,
    dry_run: bool,
    yes: bool,
) -> int | None:
    """Delete a run, note, step, scope, or old runs for good.

    Everything goes: the record, the index, what other runs recalled of it, and the bytes in the file. Runs of managed
    agents go with the run that called them. With --scope alone, everything of the scope is erased. On a terminal,
    confirmation is asked for first.
    """
    target = step if id is None else id
    is_chosen = target is not None or before is not None or env.scope is not None
    if finish == is_chosen or (id is not None and step is not None) or (target is not None and before is not None):
        raise InvalidArgument(
            "give either the id of a run, note or step, or --scope SCOPE, --before TIME, or --finish."
        )
    chosen: dict[str, Any]
    with env.open() as memory:
        if finish:
            return _finish(env, memory)
        if target is not None:
            chosen = {"what": target}
            question = f"Erase {described(memory, target)}?"
        else:
            kind = "all runs and notes" if before is None else "runs that ended before that time"
            chosen = {"scope": env.read_scope, "before": before}
            question = f"Erase {kind} of the scope {env.read_scope}?"
        if not (dry_run or yes or _agreed(env, question)):
            return 1
        env.output.result(memory.erase(**chosen, dry_run=dry_run))
    return None


def _finish(env: Environment, memory: Memory) -> int:
    done = memory.finish_erase()
    text = "No erased bytes are left in the file." if done else "Another process is reading the file: try again later."
    env.output.result({"finished": done}, lambda: text)
    return 0 if done else 1


def _agreed(env: Environment, question: str) -> bool:
    """Asks for confirmation on a terminal. Without a terminal, `--yes` is required: erased data cannot be restored."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidArgument("erased data cannot be restored: give --yes, or --dry-run to list what would be erased.")
    if env.output.confirm(f"{question} This cannot be undone."):
        return True
    env.output.hint("Nothing was erased.")
    return False


@command(SECTION, "smolmem prune --older-than 90d --scope 'acme/*' --dry-run", "smolmem prune --older-than 52w --yes")
@option("--older-than", "AGE", "How long runs are kept: 12h, 90d or 52w.", type=duration, required=True)
@_dry_run
@_yes
def prune(env: Environment, older_than: float, dry_run: bool, yes: bool) -> int | None:
    """Erase runs that are older than their retention time.

    All scopes, or with --scope one scope. On a terminal, confirmation is asked for first.
    """
    age, scope = timedelta(seconds=older_than), env.read_scope
    with env.open() as memory:
        question = f"Erase runs of the scope {scope} that ended more than {age} ago?"
        if not (dry_run or yes or _agreed(env, question)):
            return 1
        receipts = memory.prune(age, scope=scope, dry_run=dry_run)
    env.output.result(receipts, lambda: receipts or "No run is that old.")
    return None


@command(
    SECTION,
    "smolmem purge --origin web --url https://evil.example --dry-run",
    "smolmem purge --url evil.example/page --scope 'acme/*' --yes",
)
@choice("--origin", ORIGINS, "Where the source comes from.")
@option("--url", "TEXT", "A part of the address, or another text of the source or of the call that read it.")
@_dry_run
@_yes
def purge(env: Environment, origin: Any, url: str | None, dry_run: bool, yes: bool) -> int | None:
    """Erase a poisoned source, such as a web page, and everything it may have influenced.

    The steps that read the source go, with all later steps of their sessions, the runs that these called or that called
    them, what was said in runs that recalled any of it, and the notes that agents made of it. Tasks and notes of users
    stay. On a terminal, everything is listed and confirmation is asked for first.
    """
    if origin is None and url is None:
        raise InvalidArgument("name the source to erase: --origin web, --url https://…, or both.")
    chosen: dict[str, Any] = {"origin": origin, "url": url, "scope": env.read_scope}
    with env.open() as memory:
        if not dry_run and not yes:
            plan = memory.purge(**chosen, dry_run=True)
            if not env.output.json:
                env.output.console.print(plan)
            if plan and not _agreed(env, "Erase all of this?"):
                return 1
        env.output.result(memory.purge(**chosen, dry_run=dry_run))
    return None
