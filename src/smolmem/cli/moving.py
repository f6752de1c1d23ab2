"""Commands for stores on a server: copy a store to another one, and set up roles."""

from __future__ import annotations

from contextlib import closing

from smolmem.cli.commands import argument, command
from smolmem.cli.environment import Environment
from smolmem.core.errors import InvalidArgument

SECTION = "Maintenance"


@command(SECTION, "smolmem copy agent.db postgresql://me@host/db", "smolmem copy postgresql://me@host/db agent.db")
@argument("source", "FROM", "A file or the URL of a PostgreSQL database.")
@argument("target", "TO", "A file or URL; it is created if it does not exist.")
def copy(env: Environment, source: str, target: str) -> None:
    """Copy a whole store to another one, and verify both.

    Contents, sessions and notes that the target has already are not copied again: to continue an interrupted copy, run
    the command again. Afterwards, `smolmem index` makes the passages and vectors of the copy. Keep passwords out of the
    command: use ~/.pgpass or PGPASSWORD.
    """
    from smolmem.store.journal import Journal
    from smolmem.store.opening import open_store, shown
    from smolmem.transfer.copying import copy_store

    env.db = source
    bar = env.output.progress(f"copying to {shown(target)}")
    with env.open_journal() as journal, closing(open_store(target, key=env.key)) as other, bar as progress:
        copied = copy_store(journal, Journal(other), progress)
    counted = {name: copied.added.get(name, 0) for name in ("run", "step", "note")}
    said = ", ".join(f"{count:,} {name}{'s' * (count != 1)}" for name, count in counted.items())
    already = f"{copied.skipped.get('run', 0):,} runs were there already"
    if copied.differing:
        already += f", {copied.differing:,} sessions differ there and were left as they are"
    env.output.result(copied, lambda: f"{copied.target}: {said} copied, {already}; both stores are verified.")


@command(SECTION, "smolmem roles --db postgresql://owner@host/db")
def roles(env: Environment) -> None:
    """Create the role for agents and row-level security in a store on PostgreSQL.

    Each connection then sees the scope that its URL names (?scope=acme/alice), and no rows if it names none.
    """
    from smolmem.store.opening import is_server

    if not is_server(env.url):
        raise InvalidArgument(f"{env.url} is a file: roles are for stores on PostgreSQL.")
    from smolmem.store.postgres.roles import set_up_roles

    role = set_up_roles(env.url)
    text = f"{env.shown} has row-level security. GRANT {role} TO the users that agents log in as."
    env.output.result({"url": env.shown, "role": role}, lambda: text)
