"""Exports a store, or one scope of it, in an open format that people and other programs can read.

The lines of `smolmem.jsonl`, in this order:

    header                   the format and its version, who made it, when, and of which scope
    session                  one memory list, from one reset to the next
    content, prompt, event   the changes to those lists, in order; a line comes after the lines that it refers to
    run, step, call          a step's line is for readers: loading derives the step from its events
    recalled, cut, alert     what agents were reminded of, what views trimmed, when rules fired
    note, forgotten          what was remembered on purpose, and what recall leaves out
    end                      the number of lines: without it, the file is incomplete

A content is known by the hash of its bytes (BLAKE2b, 20 bytes): `json`, `text`, or the name of a `file`. Numbers of
events, steps and prompts hold within the file.

An export reads one state of the store, a page at a time, while other processes continue to write.

Secrets can be taken out of an export of a store that was recorded without redaction, or with fewer rules. A redacted
content has another hash, and references to it are changed. Contents precede the lines that refer to them, so one pass
is enough.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from smolmem.core.arguments import ScopeFilter, in_scope
from smolmem.core.display import Result
from smolmem.core.encoding import wire
from smolmem.core.encoding.chunks import NAMED
from smolmem.core.redaction import Redactor
from smolmem.core.version import __version__
from smolmem.store.base import Progress, Row, Store, in_snapshot
from smolmem.store.journal import Journal
from smolmem.store.records import Records
from smolmem.transfer.archive import LineWriter, create
from smolmem.transfer.lines import FORMAT, VERSION

INLINE = 64 << 10
"""Bytes of a content that is part of its line; longer content becomes a file."""
_FORMS = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpg"), (b"GIF8", "gif"), (b"%PDF-", "pdf"))
_NOT_JSON = object()
_TEXTS = ("text", "title", "tags", "kind", "query", "rule", "reason", "acts", "error")
"""Fields of lines that hold recorded text."""


@dataclass(frozen=True)
class Exported(Result):
    """The result of an export."""

    path: str
    scope: str | None
    written: dict[str, int]
    media: int
    bytes: int


def export(
    journal: Journal,
    path: str | os.PathLike[str],
    *,
    scope: str | None = None,
    below: str | None = None,
    progress: Progress | None = None,
    redactor: Redactor | None = None,
) -> Exported:
    """Writes everything, or a scope and (with `below`, their common beginning) the scopes in it, to a folder or `.zip`.

    With a redactor, secrets that are stored are replaced with placeholders, and variables are left out: they are stored
    in chunks, and a secret can lie in two of them.
    """

    def write(store: Store) -> Exported:
        with create(Path(path)) as writer:
            made = _Export(Records(store), writer, ScopeFilter(scope=scope, below=below), progress, redactor)
            written = made.write()
        size = os.stat(path).st_size if Path(path).is_file() else writer.bytes
        return Exported(os.fspath(path), scope, written, writer.media_files, size)

    return in_snapshot(journal.store, write)


def export_rows(journal: Journal, file: IO[bytes]) -> dict[str, int]:
    """Writes the lines of everything except contents and steps; returns how many of each type.

    The lines refer to contents by hash, and to steps by the events that made them.
    """

    def write(store: Store) -> dict[str, int]:
        file.seek(0)
        file.truncate()
        whole = ScopeFilter(scope=None, below=None)
        return _Export(Records(store), LineWriter(file), whole, None, None).write(whole=False)

    return in_snapshot(journal.store, write)


_EVERYTHING = range(1 << 62)


class _Export:
    """One export: it walks the tables together, so that contents and prompts precede the lines that refer to them."""

    def __init__(
        self,
        records: Records,
        writer: LineWriter,
        of: ScopeFilter,
        progress: Progress | None,
        redactor: Redactor | None,
    ) -> None:
        self._records, self._store, self._writer, self._of = records, records.store, writer, of
        self._redaction = None if redactor is None else _Redaction(redactor, records.blob)
        self._written: Counter[str] = Counter()
        self._progress = progress
        self._total = sum(self._store.rows("export_sizes", {})[0].values()) if progress else 0
        self._hash = lru_cache(4096)(self._records.content_key)
        self._fork_events: dict[tuple[str, int], int] = {}
        self.contents: Container[int | None] = _EVERYTHING
        self.prompts: Container[int | None] = _EVERYTHING
        self.steps: Container[int | None] = _EVERYTHING
        if of["scope"] is not None or self._redaction is not None:
            self._choose()
        self._coming = (row["id"] for row in self._pages("content_ids_after") if row["id"] in self.contents)
        self._next = next(self._coming, None)
        self._coming_prompts = self._pages("prompts_after")
        self._next_prompt = next(self._coming_prompts, None)

    def write(self, *, whole: bool = True) -> dict[str, int]:
        """Writes all lines, or without those of contents and steps; returns how many of each type."""
        if not whole:
            self._next = None
        made = datetime.now(timezone.utc).isoformat(timespec="seconds")
        about = {"format": FORMAT, "version": VERSION, "smolmem": __version__, "made": made, **self._of}
        self._writer.line({"type": "header", **about})
        for session in self._sealed("export_sessions", "session", "id"):
            self._line("session", session | {"fork_at": self._fork_event(session)})
        for event in self._sealed("export_events", "event"):
            self._event(event)
        for run in self._sealed("export_runs", "run", "number"):
            self._run(run)
        for step in self._pages("export_steps") if whole else ():
            self._line("step", step | {"tools": json.loads(step["tools"])})
        for call in self._sealed("export_calls", "call"):
            self._line("call", self._with_hashes(call, "arguments", "outcome"))
        self._recall()
        if self._of["scope"] is None:
            self._contents_until(1 << 62)
        written = dict(self._written)
        self._writer.line({"type": "end", "lines": self._writer.lines})
        return written

    # --- lines -----------------------------------------------------------------------------------------------------

    def _line(self, kind: str, row: Row) -> None:
        fields = {name: value for name, value in row.items() if value is not None and name != "hash"}
        self._writer.line({"type": kind, **(fields if self._redaction is None else self._redaction.row(fields))})
        self._written[kind] += 1
        if self._progress is not None and self._writer.lines % 200 == 0:
            self._progress(min(self._writer.lines, self._total), self._total)

    def _event(self, event: Row) -> None:
        while event["prompt"] is not None and (prompt := self._next_prompt) and prompt["id"] <= event["prompt"]:
            if prompt["id"] in self.prompts:
                suffix: list[int] = json.loads(self._records.sealed("prompt", prompt)["suffix"])
                self._contents_until(max(suffix, default=0))
                self._line("prompt", prompt | {"suffix": [self._key(number) for number in suffix]})
            self._next_prompt = next(self._coming_prompts, None)
        hidden = {} if self._redaction is None else {"state": None}
        self._line("event", self._with_hashes(event | hidden, "record", "shown", "state"))

    def _run(self, run: Row) -> None:
        del run["number"]
        if run["status"] == "running":
            run |= self._store.rows("run_counts", {"run": run["id"]})[0]
            run["status"] = "interrupted" if self._records.is_gone(run["writer"]) else "running"
        del run["writer"]
        run |= {name: run[name] if self._has_run(run[name]) else None for name in ("parent", "fork_of")}
        self._line("run", self._with_hashes(run | {"tags": list(self._records.tags(run))}, "answer", "failure"))

    def _recall(self) -> None:
        for row in self._sealed("export_recalled", "recalled"):
            found = [item for item in json.loads(row["found"]) if isinstance(item, str) or item in self.steps]
            self._line("recalled", self._with_hashes(row, "block") | {"found": found})
        for row in self._sealed("export_cuts", "cut"):
            self._line("cut", row)
        for row in self._sealed("export_alerts", "alert"):
            run = row["run"] if self._has_run(row["run"]) else None
            self._line("alert", row | {"acts": json.loads(row["acts"]), "run": run})
        for row in self._sealed("export_notes", "note", "number"):
            self._note(row)
        for row in self._sealed("forgotten_after", "forgotten"):
            if self._is_chosen(row["what"], row["target"]):
                target = int(row["target"]) if row["what"] == "step" else row["target"]
                self._line("forgotten", row | {"target": target})

    def _note(self, note: Row) -> None:
        del note["number"]
        sources = [item for item in json.loads(note["sources"]) if self._is_chosen(None, item)]
        about = {"tags": json.loads(note["tags"]), "sources": sources}
        about["run"] = note["run"] if self._has_run(note["run"]) else None
        about["supersedes"] = note["supersedes"] if self._is_chosen("note", note["supersedes"]) else None
        self._line("note", note | about)

    def _contents_until(self, last: int) -> None:
        """Writes all contents up to a number that the next line refers to."""
        while self._next is not None and self._next <= last:
            stored = self._hash(self._next), self._records.content(self._next)
            for key, data in [stored] if self._redaction is None else self._redaction.contents(*stored):
                fields, extension = _in_line(data)
                if extension:
                    fields = {"file": f"media/{key}.{extension}"}
                    self._writer.media(fields["file"], data)
                self._writer.line({"type": "content", "hash": key, **fields})
                self._written["content"] += 1
            self._next = next(self._coming, None)

    def _with_hashes(self, row: Row, *columns: str) -> Row:
        """A row with the hashes of its contents, which are written first."""
        numbers = {column: row[column] for column in columns if row[column] is not None}
        self._contents_until(max(numbers.values(), default=0))
        return row | {column: self._key(number) for column, number in numbers.items()}

    def _key(self, number: int) -> str:
        """The hash under which a content was written."""
        key = self._hash(number)
        return key if self._redaction is None else self._redaction.key(key)

    # --- rows ------------------------------------------------------------------------------------------------------

    def _pages(self, query: str, key: str = "id") -> Iterator[Row]:
        after: Any = "" if query == "export_sessions" else 0
        while rows := self._store.rows(query, {"id": after, **self._of}):
            yield from (dict(row) for row in rows)
            after = rows[-1][key]

    def _sealed(self, query: str, table: str, key: str = "id") -> Iterator[Row]:
        for row in self._pages(query, key):
            self._records.sealed(table, {name: value for name, value in row.items() if name != "number" or key == "id"})
            yield row

    def _fork_event(self, session: Row) -> int | None:
        """The event that a fork begins after. Earlier releases also stored numbers that no event of its list has."""
        if session["fork_of"] is None:
            return None
        at, visited = (session["fork_of"], session["fork_at"] or 0), dict[tuple[str, int], None]()
        while at not in self._fork_events:
            is_circle = at in visited
            visited[at] = None
            last = self._store.rows("last_event", {"session": at[0], "until": at[1]})[0]["last"]
            origin = self._records.session_row(at[0])
            if last is not None or origin["fork_of"] is None or is_circle:
                self._fork_events[at] = last or 0
            else:
                at = origin["fork_of"], min(at[1], origin["fork_at"] or 0)
        self._fork_events |= dict.fromkeys(visited, self._fork_events[at])
        return self._fork_events[at]

    def _has_run(self, run: str | None) -> bool:
        scope = None if run is None else self._store.do("scope_of_run", {"id": run})
        return scope is not None and in_scope(scope, self._of)

    def _is_chosen(self, what: str | None, target: Any) -> bool:
        """Whether a step (a number), a run or a note is part of this export."""
        if what == "run":
            return self._has_run(target)
        if what == "step" or isinstance(target, int):
            return int(target) in self.steps
        return any(in_scope(row["scope"], self._of) for row in self._store.rows("note_row", {"id": target}))

    def _choose(self) -> None:
        """The rows that a scope refers to."""
        contents, prompts, steps = set[int | None](), set[int | None](), set[int | None]()
        for event in self._pages("export_events"):
            contents |= {event["record"], event["shown"], None if self._redaction else event["state"]}
            prompts.add(event["prompt"])
            steps.add(event["step"])
        before = 1 << 62
        while rows := self._store.rows("prompts_before", {"id": before}):
            before = rows[-1]["id"]
            for prompt in rows:
                if prompt["id"] in prompts:
                    prompts.add(prompt["parent"])
                    contents.update(json.loads(prompt["suffix"]))
        for query, key, columns in (
            ("export_runs", "number", ("answer", "failure")),
            ("export_calls", "id", ("arguments", "outcome")),
            ("export_recalled", "id", ("block",)),
        ):
            for row in self._pages(query, key):
                contents.update(row[column] for column in columns)
        for key in self._records.named_below([number for number in contents if number is not None]):
            contents.add(self._store.do("content_id", {"hash": bytes.fromhex(key)}))
        self.contents, self.prompts, self.steps = contents, prompts, steps


def _in_line(data: bytes) -> tuple[dict[str, Any], str]:
    """A content as fields of its line; or, if it is long or not text, the suffix of a file."""
    for beginning, form in _FORMS:
        if data.startswith(beginning):
            return {}, form
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {}, "bin"
    if "\0" in text:
        return {}, "bin"
    short, value = len(data) <= INLINE, _as_json(data)
    if value is not _NOT_JSON:
        return {"json": value}, "" if short else "json"
    return {"text": text}, "" if short else "txt"


def _as_json(data: bytes) -> Any:
    """The value of a content that is JSON in our spelling, else `_NOT_JSON`."""
    if data[:1] in (b"[", b"{", b'"', b"-", b"t", b"f", b"n") or data[:1].isdigit():
        try:
            value = json.loads(data)
            return value if wire.dumps(value) == data else _NOT_JSON
        except (ValueError, RecursionError):
            pass
    return _NOT_JSON


# --- redaction ----------------------------------------------------------------------------------------------------


class _Redaction:
    """The redaction of one export; `content_of` gives the bytes of a content by its hash."""

    def __init__(self, redactor: Redactor, content_of: Callable[[str], bytes]) -> None:
        self._redactor, self._content_of = redactor, content_of
        self._moved: dict[str, str] = {}
        self._added: set[str] = set()

    def key(self, key: str) -> str:
        """The hash under which a content was written."""
        return self._moved.get(key, key)

    def row(self, row: Row) -> Row:
        """A line without secrets in its texts."""
        return {name: self._clean(value) if name in _TEXTS else value for name, value in row.items()}

    def _clean(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._clean(item) for item in value]
        return self._redactor.text(value) if isinstance(value, str) else value

    def contents(self, key: str, data: bytes) -> list[tuple[str, bytes]]:
        """The replacement of a content: texts that it refers to, then the content without secrets."""
        tree, new = _as_json(data), data
        beside: dict[str, bytes] = {}
        if tree is not _NOT_JSON:
            clean, beside = self._redactor.stored_record(tree, self._content_of)
            new = wire.dumps(clean)
            named = (name.decode() for _, name in NAMED.findall(new))
            # A text that holds no secret by itself was changed as a record: both readings are kept.
            beside |= {name: self._content_of(name) for name in named if name in self._moved and name not in beside}
        else:
            with suppress(UnicodeDecodeError):  # a picture, or numbers
                text = self._redactor.text(data.decode("utf-8", "surrogatepass"))
                new = text.encode("utf-8", "surrogatepass")
        texts = [(name, text) for name, text in beside.items() if name not in self._added]
        self._added.update(beside)
        if new != data:
            self._moved[key] = wire.fingerprint(new)
        return [*texts, (self.key(key), new)]
