"""Exports a store, or one scope of it, in an open format that people and other programs can read.

The lines of `smolmem.jsonl`, in this order:

    header                   the format and its version, who made it, when, and of which scope
    session                  one memory list, from one reset to the next
    content, prompt, event   the changes to those lists, in order; what a line refers to stands before it
    run, step, call          a step's line is for readers: loading derives the step from its events
    recalled, cut, alert     what agents were reminded of, what views trimmed, when rules fired
    note, forgotten          what was remembered on purpose, and what recall leaves out
    end                      the number of lines: without it, the file is incomplete

A content is known by the hash of its bytes (BLAKE2b, 20 bytes): `json`, `text`, or the name of a `file`. Numbers of
events, steps and prompts hold within the file.

An export reads one moment of the store, a page at a time, while others continue to write.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from smolmem.core.display import Drawable
from smolmem.core.redaction import Redactor
from smolmem.core.version import __version__
from smolmem.store.base import Progress, Row, Store
from smolmem.store.journal import Journal
from smolmem.store.records import Records
from smolmem.transfer.archive import Outbox, create
from smolmem.transfer.lines import FORMAT, VERSION
from smolmem.transfer.redacted import NOT_JSON, Redaction, as_json

INLINE = 64 << 10
"""Bytes of a content that stands in its line; longer content becomes a file."""
_FORMS = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpg"), (b"GIF8", "gif"), (b"%PDF-", "pdf"))


@dataclass(frozen=True)
class Exported(Drawable):
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

    Raises:
        Unwritable: if the path exists or cannot be written.
        Damaged: if the store is damaged.
    """
    with create(Path(path)) as box, _still(journal.store) as store:
        written = _Export(Records(store), box, {"scope": scope, "below": below}, progress, redactor).write()
    size = os.stat(path).st_size if Path(path).is_file() else box.bytes
    return Exported(os.fspath(path), scope, written, box.media_files, size)


@contextmanager
def _still(store: Store) -> Iterator[Store]:
    """One state of the store, through a connection of its own; others continue to write."""
    with closing(store.reopened()) as other:
        other.do("begin_reading", {})
        yield other


class _Everything:
    def __contains__(self, number: object) -> bool:
        return True


class _Numbers:
    """A set of row numbers, one byte each."""

    def __init__(self) -> None:
        self._marks = bytearray()

    def add(self, *numbers: int | None) -> None:
        for number in numbers:
            if number is not None:
                if number >= len(self._marks):
                    self._marks.extend(bytes(number + 1024 - len(self._marks)))
                self._marks[number] = 1

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and number < len(self._marks) and bool(self._marks[number])

    def __iter__(self) -> Iterator[int]:
        return (number for number, marked in enumerate(self._marks) if marked)


class _Export:
    """One export: it walks the tables together, so that contents and prompts precede the lines that refer to them."""

    def __init__(
        self, records: Records, box: Outbox, of: Row, progress: Progress | None, redactor: Redactor | None = None
    ) -> None:
        self._records, self._store, self._box, self._of = records, records.store, box, of
        self._redaction = None if redactor is None else Redaction(redactor, records.blob)
        self._written: Counter[str] = Counter()
        self._progress = progress
        self._total = sum(self._store.rows("export_sizes", {})[0].values()) if progress else 0
        self._hash = lru_cache(4096)(self._read_hash)
        self.contents: Container[int] = _Everything()
        self.prompts: Container[int] = _Everything()
        self.steps: Container[int] = _Everything()
        if of["scope"] is not None or self._redaction is not None:
            self._choose()
        self._coming = self._content_ids()
        self._next = next(self._coming, None)
        self._coming_prompts = self._pages("prompts_after")
        self._next_prompt = next(self._coming_prompts, None)

    def write(self) -> dict[str, int]:
        """Writes all lines; returns how many of each type."""
        self._header()
        for session in self._sealed("export_sessions", "session", "id"):
            self._line("session", session)
        for event in self._sealed("export_events", "event"):
            self._event(event)
        for run in self._sealed("export_runs", "run", "number"):
            self._run(run)
        for step in self._pages("export_steps"):
            self._line("step", step | {"tools": json.loads(step["tools"])})
        for call in self._sealed("export_calls", "call"):
            self._line("call", self._named(call, "arguments", "outcome"))
        self._recall()
        if self._of["scope"] is None:
            self._contents_until(1 << 62)
        written = dict(self._written)
        self._box.line({"type": "end", "lines": self._box.lines})
        return written

    def _header(self) -> None:
        made = datetime.now(timezone.utc).isoformat(timespec="seconds")
        about = {"format": FORMAT, "version": VERSION, "smolmem": __version__, "made": made, **self._of}
        self._box.line({"type": "header", **about})

    # --- lines -----------------------------------------------------------------------------------------------------

    def _line(self, kind: str, row: Row) -> None:
        said = {name: value for name, value in row.items() if value is not None and name != "hash"}
        self._box.line({"type": kind, **(said if self._redaction is None else self._redaction.row(said))})
        self._written[kind] += 1
        if self._progress is not None and self._box.lines % 200 == 0:
            self._progress(min(self._box.lines, self._total), self._total)

    def _event(self, event: Row) -> None:
        while event["prompt"] is not None and self._next_prompt and self._next_prompt["id"] <= event["prompt"]:
            self._prompt(self._next_prompt)
            self._next_prompt = next(self._coming_prompts, None)
        hidden = {} if self._redaction is None else {"state": None}
        self._line("event", self._named(event | hidden, "record", "shown", "state"))

    def _prompt(self, prompt: Row) -> None:
        if prompt["id"] in self.prompts:
            suffix: list[int] = json.loads(self._records.sealed("prompt", prompt)["suffix"])
            self._contents_until(max(suffix, default=0))
            self._line("prompt", prompt | {"suffix": [self._key(number) for number in suffix]})

    def _run(self, run: Row) -> None:
        del run["number"]
        if run["status"] == "running":
            run |= self._store.rows("run_counts", {"run": run["id"]})[0]
            run["status"] = "interrupted" if self._records.is_gone(run["writer"]) else "running"
        del run["writer"]
        run |= {name: run[name] if self._has_run(run[name]) else None for name in ("parent", "fork_of")}
        self._line("run", self._named(run | {"tags": json.loads(run["tags"])}, "answer", "failure"))

    def _recall(self) -> None:
        for row in self._sealed("export_recalled", "recalled"):
            found = [item for item in json.loads(row["found"]) if isinstance(item, str) or item in self.steps]
            self._line("recalled", self._named(row, "block") | {"found": found})
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
        """Writes the contents up to one that is about to be referred to."""
        while self._next is not None and self._next <= last:
            self._content(self._next)
            self._next = next(self._coming, None)

    def _content(self, number: int) -> None:
        key, data = self._hash(number), self._records.content(number)
        contents = [(key, data)] if self._redaction is None else self._redaction.contents(key, data)
        for each in contents:
            self._write_content(*each)

    def _write_content(self, key: str, data: bytes) -> None:
        said, extension = _in_line(data)
        if extension:
            said = {"file": f"media/{key}.{extension}"}
            self._box.media(said["file"], data)
        self._box.line({"type": "content", "hash": key, **said})
        self._written["content"] += 1

    def _named(self, row: Row, *columns: str) -> Row:
        """A row whose contents are written, and referred to by their hashes."""
        numbers = {column: row[column] for column in columns if row[column] is not None}
        self._contents_until(max(numbers.values(), default=0))
        return row | {column: self._key(number) for column, number in numbers.items()}

    def _key(self, number: int) -> str:
        """The hash under which a content was written."""
        key = self._hash(number)
        return key if self._redaction is None else self._redaction.key(key)

    def _read_hash(self, number: int) -> str:
        found = self._store.do("content_hash", {"id": number})
        if not isinstance(found, bytes):
            raise self._records.damaged(f"content {number} is missing")
        return found.hex()

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

    def _content_ids(self) -> Iterator[int]:
        return (row["id"] for row in self._pages("content_ids_after") if row["id"] in self.contents)

    def _is_within(self, scope: str | None) -> bool:
        wanted, below = self._of["scope"], self._of["below"]
        return scope is not None and (wanted in (None, scope) or (below is not None and scope.startswith(below)))

    def _has_run(self, run: str | None) -> bool:
        return run is not None and self._is_within(self._store.do("scope_of_run", {"id": run}))

    def _is_chosen(self, what: str | None, target: Any) -> bool:
        """Whether a step (a number), a run or a note is part of this export."""
        if what == "run":
            return self._has_run(target)
        if what == "step" or isinstance(target, int):
            return int(target) in self.steps
        return any(self._is_within(row["scope"]) for row in self._store.rows("note_row", {"id": target}))

    def _choose(self) -> None:
        """Marks the rows that a scope refers to."""
        contents, prompts, steps = _Numbers(), _Numbers(), _Numbers()
        for event in self._pages("export_events"):
            contents.add(event["record"], event["shown"], None if self._redaction else event["state"])
            prompts.add(event["prompt"])
            steps.add(event["step"])
        before = 1 << 62
        while rows := self._store.rows("prompts_before", {"id": before}):
            before = rows[-1]["id"]
            for prompt in rows:
                if prompt["id"] in prompts:
                    prompts.add(prompt["parent"])
                    contents.add(*json.loads(prompt["suffix"]))
        for query, key, columns in (
            ("export_runs", "number", ("answer", "failure")),
            ("export_calls", "id", ("arguments", "outcome")),
            ("export_recalled", "id", ("block",)),
        ):
            for row in self._pages(query, key):
                contents.add(*(row[column] for column in columns))
        for key in self._records.named_below(list(contents)):
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
    short, value = len(data) <= INLINE, as_json(data)
    if value is not NOT_JSON:
        return {"json": value}, "" if short else "json"
    return {"text": text}, "" if short else "txt"
