"""Commands that recall and note: search, context, notes, remember, forget."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from smolmem.cli.command import Command, count, future, limit, opened, scope_of, times
from smolmem.cli.output import Column, Out, one_line
from smolmem.core.errors import InvalidArgument, NotFound
from smolmem.core.text import sanitize

if TYPE_CHECKING:
    from smolmem.core.values import Note, Recollection
    from smolmem.memory import Memory

TRUST = ("low", "medium", "high")
LINES = 20
"""Of a result, so many are shown."""
ORIGINS = ("user", "model", "tool", "web", "import", "agent")


def search(args: argparse.Namespace, out: Out) -> None:
    """Finds what answers a question."""
    with opened(args, embedder="off" if args.words_alone else None) as memory:
        found = memory.recall(
            " ".join(args.words),
            args.limit,
            scope=scope_of(args),
            agents=args.agent,
            runs=args.run,
            kinds=args.kind,
            since=args.since,
            until=args.until,
            min_trust=args.trust,
            rerank=args.rerank,
        )
    if not found and not out.json:
        out.tell("Nothing is found.")
    else:
        out.give(found, lambda: _found(found))


def _found(found: list[Recollection]) -> Any:
    """Each with where it comes from, and what its score is made of."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[Any] = []
    for one in found:
        copies = f" · ×{one.copies}" if one.copies > 1 else ""
        stale = " · stale" if one.stale else ""
        why = "  ".join(f"{sanitize(name)} {share:.2f}" for name, share in one.parts.items())
        lines = sanitize(one.text).splitlines() or [""]
        text = "\n".join([*lines[:LINES], *(["…"] if len(lines) > LINES else [])])
        parts += [
            Text.assemble((f"{one.score:.2f}", "bold"), "  ", (f"{sanitize(one.source)}{copies}{stale}", "cyan")),
            Padding(Text(text), (0, 0, 0, 6)),
            Padding(Text(why, "dim"), (0, 0, 0, 6)),
        ]
    return Group(*parts)


def context(args: argparse.Namespace, out: Out) -> None:
    """Prints a block for a prompt."""
    with opened(args, embedder="off" if args.words_alone else None) as memory:
        block = memory.context(" ".join(args.query), args.tokens, limit=args.limit, scope=scope_of(args))
    if out.json:
        out.give({"context": block}, lambda: None)
    elif block:
        out.text(block)
    else:
        out.tell("Nothing is found.")


def notes(args: argparse.Namespace, out: Out) -> None:
    """Lists notes, or shows one."""
    with opened(args) as memory:
        if args.note is not None:
            note = memory.note(args.note)
            out.give(note, lambda: note)
            return
        found = memory.notes(
            scope=scope_of(args), kind=args.kind, tag=args.tag, run=args.run, past=args.past, limit=args.limit
        )
    scopes = len({note.scope for note in found}) > 1 or not out.terminal
    columns = (
        Column("note"),
        Column("kind", most=16),
        Column("status"),
        Column("at"),
        *([Column("scope", most=16)] if scopes else []),
        Column("from", wide=True),
        Column("tags", most=20, wide=True),
        Column("what", rest=True),
    )

    def row(note: Note) -> list[Any]:
        return [
            (note.id[:8], "bold"),
            note.kind,
            ("stale" if note.stale else note.status, "green" if note.status == "current" else "yellow"),
            out.time(note.at),
            *([note.scope] if scopes else []),
            note.origin,
            ", ".join(note.tags),
            note.text,
        ]

    out.many(found, columns, row)


def remember(args: argparse.Namespace, out: Out) -> None:
    """Writes down something."""
    text = " ".join(args.text)
    with opened(args, create=args.create, scope=args.scope or "default") as memory:
        note = memory.remember(
            sys.stdin.read() if text == "-" else text,
            kind=args.kind,
            tags=args.tag,
            expires=args.expires,
            supersedes=args.supersedes,
            sources=[int(step) for step in args.step],
            origin=args.origin,
        )
        out.give(note, lambda: note)


def forget(args: argparse.Namespace, out: Out) -> int | None:
    """Leaves something out of recall."""
    if (args.id is None) == (args.step is None):
        raise InvalidArgument("give the id of a note or a run, or a step with --step N.")
    with opened(args) as memory:
        what = args.step if args.id is None else args.id
        if not args.yes and not out.ask(f"Forget {_named(memory, what)}?"):
            out.tell("Nothing is forgotten.")
            return 1
        gone = [target.partition(" ") for target in memory.forget(what, influenced=args.influenced)]
    found = [{"kind": kind, "id": id} for kind, _, id in gone]
    out.many(found, (Column("forgotten"), Column("id")), lambda each: (each["kind"], (each["id"][:8], "bold")))
    return None


def _named(memory: Memory, what: int | str) -> str:
    """What would be forgotten, in words."""
    if isinstance(what, int):
        step = memory.step(what)
        return f"step {step.id} of run {step.run[:8]}, {one_line(step.text, 60)!r}"
    try:
        note = memory.note(what)
        return f"the note {note.id[:8]}, {one_line(note.text, 60)!r}"
    except NotFound:
        run = memory.run(what)
        return f"run {run.id[:8]}, {one_line(run.title, 60)!r}"


# --- their arguments ----------------------------------------------------------------------------------------------


def _alone(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--words-alone", action="store_true", help="by words alone, without a model: quicker")


def _of_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", metavar="WORDS", nargs="+", help="a question, or words")
    parser.add_argument("--agent", metavar="NAME", action="append", help="only what this agent did; repeatable")
    parser.add_argument("--run", metavar="RUN", action="append", help="only what was done in this run; repeatable")
    parser.add_argument(
        "--kind",
        metavar="KIND",
        action="append",
        help="only task, plan, thought, code, call, observation, error, answer, or a kind of note; repeatable",
    )
    times(parser)
    parser.add_argument("--trust", choices=TRUST, default="low", help="how far it is trusted, at least (low)")
    parser.add_argument("--rerank", action="store_true", help="let a second model read the best again: better, slower")
    _alone(parser)
    limit(parser, 5)


def _of_context(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY", nargs="+", help="what the prompt is about")
    parser.add_argument("--tokens", metavar="N", type=count, default=1_500, help="about so many at most (1,500)")
    _alone(parser)
    limit(parser, 10)


def _of_notes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("note", metavar="ID", nargs="?", help="show this note: the beginning of its id")
    parser.add_argument("--kind", metavar="KIND", help="only of this kind")
    parser.add_argument("--tag", metavar="TAG", help="only with this tag")
    parser.add_argument("--run", metavar="RUN", help="only notes of this run")
    parser.add_argument("--past", action="store_true", help="also what was superseded or forgotten, or has expired")
    limit(parser, 50)


def _of_remember(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", nargs="+", help="what to remember; - reads it from standard input")
    parser.add_argument("--kind", metavar="KIND", default="note", help="a word such as fact, lesson, procedure (note)")
    parser.add_argument("--tag", metavar="TAG", action="append", default=[], help="a word to find it by; repeatable")
    parser.add_argument("--expires", metavar="TIME", type=future, help="when it is no longer true: a time, or 12h, 7d")
    parser.add_argument("--supersedes", metavar="ID", help="the note that it takes the place of")
    parser.add_argument(
        "--step", metavar="N", type=count, action="append", default=[], help="a step it comes from; repeatable"
    )
    parser.add_argument("--origin", choices=ORIGINS, default="user", help="who says so (user)")
    parser.add_argument("--create", action="store_true", help="make the file if it is not there")


def _of_forget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="?", help="a note or a run: the beginning of its id")
    parser.add_argument("--step", metavar="N", type=count, help="a step, by the id that `smolmem steps` shows")
    parser.add_argument(
        "--influenced", action="store_true", help="also all that was said in runs that were reminded of it"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


COMMANDS = (
    Command(
        "search",
        "Remember",
        "what answers a question, from everything done and noted",
        search,
        (
            "smolmem search when do we deploy",
            "smolmem search sunny --kind observation --words-alone",
            "smolmem search deploys --trust high --limit 3 --json",
        ),
        _of_search,
        "Each result says where it comes from, how far it is trusted, and what its score is made of: words, meaning, "
        "around (what stands beside it), time, recent, reranker.",
    ),
    Command(
        "context",
        "Remember",
        "what answers a question, as a block for a prompt",
        context,
        ("smolmem context when do we deploy --tokens 500",),
        _of_context,
    ),
    Command(
        "notes",
        "Remember",
        "what is remembered on purpose",
        notes,
        ("smolmem notes", "smolmem notes --kind fact --past", "smolmem notes 5c1e92b7"),
        _of_notes,
    ),
    Command(
        "remember",
        "Remember",
        "writes down something to be recalled",
        remember,
        (
            "smolmem remember 'Deploys happen on Tuesdays' --kind fact --tag deploy",
            "smolmem remember 'Maintenance tonight' --expires 12h --scope default",
        ),
        _of_remember,
        "The scope is `default` unless --scope names another.",
    ),
    Command(
        "forget",
        "Remember",
        "leaves something out of recall, and what came of it; the record keeps it",
        forget,
        ("smolmem forget 5c1e92b7 --yes", "smolmem forget --step 2 --influenced --yes"),
        _of_forget,
        "On a terminal it asks first.",
    ),
)
