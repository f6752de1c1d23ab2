"""Commands that exchange runs with other tools: traces are sent, and what others saved is imported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import click

from smolmem.cli.commands import argument, command
from smolmem.cli.environment import Environment
from smolmem.cli.options import choice, option, optional_run, prices_option
from smolmem.core.errors import NotFound

if TYPE_CHECKING:
    from smolmem.transfer.imports import Format

FORMATS = ("traces", "steps", "openai", "langgraph", "crewai", "llama-index", "messages")
"""Written out here, because the module that defines these names imports smolagents; a test compares them."""
DOCUMENTS = "documents"


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
    "Maintenance",
    "smolmem import traces.json",
    "smolmem import http://localhost:6006 --scope phoenix",
    "smolmem import steps.json --format steps",
    "smolmem import chroma:///home/me/chroma/articles",
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
