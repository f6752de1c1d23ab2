"""Commands that exchange runs with other tools and stores: trace, import, copy, and roles for a store on a server."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, cast

import click

from smolmem.cli.commands import argument, choice, command, option, optional_run, prices_option
from smolmem.cli.environment import Environment
from smolmem.core.errors import InvalidArgument, NotFound
from smolmem.core.text import counted

if TYPE_CHECKING:
    from smolmem.transfer.imports import Format

FORMATS = ("traces", "steps", "openai", "langgraph", "crewai", "llama-index", "messages")
"""Written out here, because the module that defines these names imports smolagents; a test compares them."""
DOCUMENTS = "documents"
SECTION = "Maintenance"


def _header(value: str) -> tuple[str, str]:
    name, equals, text = value.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter(f"{value!r} is not a header such as 'authorization=Bearer …'")
    return name.strip(), text.strip()


@command(
    "Runs and steps",
    "smolmem trace --to http://localhost:6006",
    "smolmem trace 3f9a2c1b --to https://host/v1/traces --header 'authorization=Bearer …'",
)
@optional_run
@option("--to", "URL", "The collector: OTLP over HTTP. Without a path, /v1/traces is used.", required=True)
@option("--header", "NAME=VALUE", "A header to send; can be given several times.", type=_header, multiple=True)
@prices_option("The prices of a million input and output tokens (default: those known for the model).")
def trace(
    env: Environment,
    run: str | None,
    to: str,
    header: tuple[tuple[str, str], ...],
    prices: tuple[float, float] | None,
) -> None:
    """Send a run to a collector of traces such as Phoenix or Langfuse.

    Any run can be sent, also one that failed or was killed. A run is sent with the runs of managed agents that it
    called. Sending a run twice changes nothing. Headers are also read from OTEL_EXPORTER_OTLP_HEADERS.
    """
    with env.read() as memory, env.output.progress(f"sending to {to}") as progress:
        chosen = env.run(memory, run)
        sent = memory.trace(chosen, to, headers=dict(header), prices=prices, progress=progress)
    env.output.result(sent)


@command(
    SECTION,
    "smolmem import traces.json",
    "smolmem import http://localhost:6006 --scope phoenix",
    "smolmem import steps.json --format steps",
    "smolmem import chroma:///srv/chroma/articles",
    "smolmem import faiss_index",
)
@argument("source", "SOURCE", "A file, a folder, a URL of Phoenix, or a collection of Chroma.", type=click.Path())
@choice("--format", (*FORMATS, DOCUMENTS), "What the source is (default: recognised by its content).")
def import_(env: Environment, source: str, format: str | None) -> None:
    """Import what another tool saved: traces, steps, chats or documents.

    Files: OpenInference spans as JSON, get_full_steps() as JSON, SQLite files of OpenAI Agents, LangGraph and CrewAI,
    chat stores of LlamaIndex, lists of messages. All of it is imported into --scope (default: default), or nothing is.
    What the store has already is not changed. No pickle is loaded. `smolmem load` reads exports of smolmem.

    Documents become notes: a collection of Chroma (chroma:///folder/collection, chroma+http://host:8000/collection),
    the folder of a FAISS index of LangChain, a docstore of LlamaIndex, a JSON list of objects with a text.
    """
    if "://" not in source and not os.path.lexists(source):  # before a store is created
        raise NotFound(f"there is no {source}: give a file, or a URL such as http://localhost:6006.")
    from smolmem.integrations.document_import import import_collection, is_documents

    with env.open_or_create() as memory, env.output.progress(f"importing {source}") as progress:
        scope = env.scope or "default"
        if format == DOCUMENTS or (format is None and is_documents(source)):
            env.output.result(import_collection(memory, source, scope=scope, progress=progress))
        else:
            runs = memory.import_runs(source, scope=scope, format=cast("Format | None", format), progress=progress)
            env.output.result(runs)


import_.name = "import"


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
    counts = ", ".join(counted(copied.added.get(name, 0), name) for name in ("run", "step", "note"))
    already = f"{copied.skipped.get('run', 0):,} runs were in the target already"
    if copied.differing:
        already += f", {copied.differing:,} sessions differ in the target and were not changed"
    env.output.result(copied, lambda: f"{copied.target}: {counts} copied, {already}; both stores are verified.")


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
