"""Commands that search and take notes: search, context, notes, remember, forget."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from smolmem.cli.commands import argument, command
from smolmem.cli.environment import Environment
from smolmem.cli.options import (
    ORIGINS,
    TRUST,
    choice,
    count,
    flag,
    future,
    limit_option,
    option,
    run_option,
    step_reference,
    time_options,
)
from smolmem.cli.output import Column
from smolmem.core.errors import InvalidArgument, NotFound
from smolmem.core.text import one_line, sanitize

if TYPE_CHECKING:
    from smolmem.core.values import Note, Recollection
    from smolmem.memory import Memory

SECTION = "Recall and notes"
TEXT_LINES = 12
"""The maximum number of lines of a passage that are shown."""
UNCERTAIN = 3
"""Results that are shown if nothing fits well."""

_lexical = flag("--lexical", "Search by words only, without an embedding model: faster.")


# --- searching ----------------------------------------------------------------------------------------------------


@command(
    SECTION,
    "smolmem search when do we deploy",
    "smolmem search sunny --kind observation --lexical",
    "smolmem search deploys --trust high --limit 3 --json",
)
@argument("words", "WORDS...", "A question, or words to search for.", nargs=-1, required=True)
@option("--agent", "NAME", "Only what this agent did; repeatable.", multiple=True)
@run_option("Only what was done in this run; repeatable.", multiple=True)
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
    if found or env.json:
        as_json = [{**plain(one), "reference": place} for one, place in zip(found, places, strict=True)]
        env.output.result(as_json, lambda: _results(found, places, scored=True))
    elif weak:
        env.output.hint("Nothing fits well. The closest:")
        env.output.result(weak, lambda: _results(weak, places, scored=False))
    else:
        env.output.hint("Nothing was found.")


def _place(memory: Memory, found: Recollection) -> str:
    """The step or note, as other commands take it."""
    if found.step is not None:
        return memory.step(found.step).reference
    return (found.note or found.run or "")[:8]


def _results(found: list[Recollection], places: list[str], *, scored: bool) -> Any:
    from rich.console import Group
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
    return Group(*parts)


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
@argument("id", "[ID]", "Show the note whose id begins so.", required=False)
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
    out.rows(found, columns)


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
        raise InvalidArgument("give the id of a note or a run, or the id of a step with --step N.")
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
    if isinstance(target, int) or "/" in target:
        step = memory.step(target)
        return f"step {step.reference}, {one_line(step.text, 60)!r}"
    try:
        note = memory.note(target)
        return f"the note {note.id[:8]}, {one_line(note.text, 60)!r}"
    except NotFound:
        run = memory.run(target)
        return f"run {run.id[:8]}, {one_line(run.title, 60)!r}"
