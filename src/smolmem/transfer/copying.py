"""Copies a whole store to another store, SQLite or PostgreSQL, and verifies both.

Contents are copied first, then the rows that refer to them, in batches, each in a transaction of its own. A batch holds
whole sessions, with everything that belongs to them, so sessions arrive complete or not at all. Only a long session
comes in several batches: first its events, and all other rows with the last batch. Until then its runs are in use by
the copy (`writer.COPYING`), and can be neither resumed nor recalled. Rows that the target has already are skipped, so
an interrupted copy continues where it was, and an outdated copy gets the new sessions and notes.

Sessions that only work together come together: a fork and its origin, a run and the runs that it called. A session that
was reminded of a step of another session comes after that session, or in the same batch if each was reminded of the
other. Notes follow, each with the line that forgets it.

The target makes passages and vectors itself, once the copy is complete: the trust in a step depends on steps and notes
that may come later.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from smolmem.core.display import Result
from smolmem.core.encoding import packing
from smolmem.core.errors import Damaged, InvalidArgument
from smolmem.store.base import Progress, Row, Store
from smolmem.store.journal import Journal
from smolmem.store.verify import verify
from smolmem.transfer import archive
from smolmem.transfer.export import export_rows
from smolmem.transfer.incomplete import CopiedPart, is_incomplete
from smolmem.transfer.line_loader import LineLoader

COUNT, BYTES = 200, 4 << 20
"""Contents, and bytes of contents, that are copied in one transaction."""
LINES = 500
"""About how many rows are copied in one transaction."""


@dataclass(frozen=True)
class Copied(Result):
    """How many rows were copied, how many the target had already, and how many sessions continue differently there."""

    source: str
    target: str
    added: dict[str, int]
    skipped: dict[str, int]
    differing: int


def copy_store(source: Journal, target: Journal, progress: Progress | None = None) -> Copied:
    """Copies everything; origins and trust stay as they are.

    Rows without contents are in an unnamed temporary file meanwhile, as plain text.
    """
    if source.store.url == target.store.url:
        raise InvalidArgument(f"{source.store.url} cannot be copied to itself: name another store.")
    _refuse_damaged(source)
    added, skipped, differing = Counter[str](), Counter[str](), set[str]()
    with tempfile.TemporaryFile(prefix="smolmem-") as file:
        written = export_rows(source, file)
        contents, lines = int(source.store.rows("export_sizes", {})[0]["contents"]), sum(written.values())

        def report(done: int) -> None:
            if progress is not None:
                progress(done, contents + lines)

        numbers = _copy_contents(source, target, lambda number: report(min(number, contents)))
        steps, done = dict[int, int](), 0
        for batch in batches(source.store.url, file, LINES):
            batch.part.contents, batch.part.steps = numbers, steps
            loaded = _load_batch(target, batch)
            added.update(loaded.added)
            skipped.update(loaded.skipped)
            differing |= loaded.differing
            done += batch.count
            report(contents + min(done, lines))
    for kind in ("session", "run", "note"):
        arrived = added[kind] + skipped[kind]
        if not differing and arrived < written.get(kind, 0):
            raise Damaged(f"{target.store.url}: {arrived} of {written[kind]} {kind}s arrived. Copy again.")
    missing = ("index_missing_steps", "index_missing_notes")
    target.store.transact(lambda: [target.store.do(query, {}) for query in missing])
    _refuse_damaged(target)
    return Copied(source.store.url, target.store.url, dict(added), dict(skipped), len(differing))


def _copy_contents(source: Journal, target: Journal, report: Callable[[int], None]) -> dict[str, int]:
    """Copies the contents that the target does not have; returns the numbers of all in the target, by hash."""
    numbers: dict[str, int] = {}
    last = 0
    while rows := source.store.rows("content_hashes_after", {"id": last, "limit": COUNT}):
        last = rows[-1]["id"]
        found = target.store.rows_of_each("content_id", [{"hash": row["hash"]} for row in rows])
        known = {row["hash"]: int(ids[0]["id"]) for row, ids in zip(rows, found, strict=True) if ids}
        for contents in _read([row for row in rows if row["hash"] not in known], source):
            packed = {key: packing.pack(data) for key, data in contents.items()}
            known |= target.store.transact(lambda packed=packed: _add_contents(target, packed))  # type: ignore[misc]
        numbers.update((key.hex(), number) for key, number in known.items())
        report(last)
    return numbers


def _read(wanted: list[Row], source: Journal) -> Iterator[dict[bytes, bytes]]:
    """Contents of the source by hash, a few megabytes at a time."""
    size, contents = 0, dict[bytes, bytes]()
    for rows in source.store.rows_of_each("content", [{"id": row["id"]} for row in wanted]):
        if not rows:  # erased a moment ago
            continue
        data = source.checked(rows, f"content {rows[0]['id']}")
        contents[rows[0]["hash"]], size = data, size + len(data)
        if size > BYTES:
            yield contents
            size, contents = 0, {}
    if contents:
        yield contents


def _add_contents(target: Journal, packed: dict[bytes, bytes]) -> dict[bytes, int]:
    target.store.announce(packed)
    store, numbers = target.store, dict[bytes, int]()
    for key, data in packed.items():
        added = store.do("add_content", {"hash": key, "bytes": data, "base": None})
        numbers[key] = int(added or store.do("content_id", {"hash": key}))
    return numbers


def _load_batch(journal: Journal, batch: Batch) -> LineLoader:
    """Loads a batch in one transaction: all of it, or nothing. Its steps and notes are not indexed yet.

    A batch that the target has already is only read, to learn the numbers of its steps. The numbers of its rows in the
    target are added to those of earlier batches.
    """
    part = batch.part

    def read() -> LineLoader:
        return LineLoader(journal, batch, None, keep=True, copied=part).load_lines(None)

    def write() -> LineLoader:
        last = int(journal.store.do("last_pending", {}))
        done = read()
        journal.store.do("drop_pending_after", {"id": last})
        return done

    loaded = read() if batch.is_in(journal.store) else journal.store.transact(write)
    part.steps.update(loaded.step_numbers.new)
    if not part.is_last:  # the last part counts the session
        del loaded.added["session"]
        part.prompts.update(loaded.prompt_numbers.new)
        part.forks.update(loaded.fork_events)
    return loaded


def _refuse_damaged(journal: Journal) -> None:
    report = verify(journal)
    if not report:
        raise Damaged(f"{journal.store.url} is damaged: {report.problems[0]}")


# --- batches ------------------------------------------------------------------------------------------------------

Owner = str
"""What a line is copied with: a session or a note, by its id."""
_LAST = "~"
"""The owner of lines that belong to no session or note; it sorts after all ids."""


class Batch(archive.ExportReader):
    """The lines of some sessions and notes, the owners of the lines, to be read like an export.

    If later batches continue the sessions, `until` has the number of events of each that the target has by then.
    """

    def __init__(
        self,
        url: str,
        owners: list[Owner],
        lines: list[bytes],
        part: CopiedPart | None = None,
        until: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(Path(url))
        self.count, self.part = len(lines), part or CopiedPart()
        self._owners, self._lines, self._until = owners, lines, until or {}

    def is_in(self, store: Store) -> bool:
        """Whether a store has all sessions and notes of this batch, complete, or as far as this batch goes."""
        if not self.part.is_last:
            asked = [{"session": session, "skip": count - 1} for session, count in self._until.items() if count]
            begun = store.rows_of_each("session_row", [{"id": session} for session in self._until])
            return all(begun) and all(store.rows("session_events", values) for values in asked)
        asked = [{"id": owner} for owner in self._owners]
        sessions = store.rows_of_each("session_row", asked)
        notes = store.rows_of_each("note_row", [row for row, found in zip(asked, sessions, strict=True) if not found])
        return all(notes) and not any(is_incomplete(store, found[0]["id"]) for found in sessions if found)

    def open(self, name: str) -> tuple[IO[bytes], int]:
        """The lines, with the end line that an export has; the rows of a copy have no files."""
        if name != archive.JOURNAL:
            return super().open(name)
        data = b"".join([*self._lines, b'{"type":"end","lines":%d}\n' % len(self._lines)])
        return io.BytesIO(data), len(data)


def batches(url: str, file: IO[bytes], most: int) -> Iterator[Batch]:
    """The lines of a file, which `export_rows` has written, in batches of about `most` lines."""
    plan = _Plan()
    file.seek(0)
    header, at = file.readline(), file.tell()
    while line := file.readline():
        plan.add(json.loads(line), at)
        at += len(line)
    for owners in plan.batches(most):
        lines = [header]
        for place in sorted(place for owner in owners for place in plan.places[owner]):
            file.seek(place)
            lines.append(file.readline())
        yield from _parts(url, owners, lines, most) if len(lines) > 2 * most else [Batch(url, owners, lines)]


def _parts(url: str, owners: list[Owner], lines: list[bytes], most: int) -> Iterator[Batch]:
    """The lines of long sessions in several batches. A fork begins in the batch of the event that it begins after."""
    header, *rows = [(json.loads(line), line) for line in lines]
    sessions = {row["id"]: (row, line) for row, line in rows if row["type"] == "session"}
    runs = {row["id"]: (row, line) for row, line in rows if row["type"] == "run"}
    first_runs = {row["session"]: run for run, (row, _) in reversed(runs.items())}
    if sessions.keys() - first_runs.keys() or any(
        runs.get(row["run"], ({}, b""))[0].get("session") != row["session"] for row, _ in rows if row["type"] == "event"
    ):  # nothing would tell that such a session is incomplete
        yield Batch(url, owners, lines)
        return
    beginnings = _beginnings({session: row for session, (row, _) in sessions.items()})
    forks: dict[int, tuple[str, int] | None] = {
        row["fork_at"]: None for row, _ in sessions.values() if row.get("fork_of")
    }
    prompts, waiting = dict[int, int](), dict[int, tuple[Row, bytes]]()
    done, seen = Counter[str](), Counter(dict.fromkeys(beginnings.pop(0, ()), 0))
    part, named, begun = list[bytes](), dict[str, bytes](), set(seen)
    for row, line in rows:
        if row["type"] == "prompt":
            waiting[row["id"]] = row, line
        if row["type"] != "event":
            continue
        place, prompt = len(part), row.get("prompt")
        while prompt in waiting:
            before, text = waiting.pop(prompt)
            part.insert(place, text)
            prompt = before.get("parent")
        part.append(line)
        seen[row["session"]] += 1
        begun.update((row["session"], *beginnings.get(row["id"], ())))
        named[row["run"]] = runs[row["run"]][1]
        if len(part) >= most:
            there = {session: text for session, (_, text) in sessions.items() if session in begun}
            named |= {first_runs[session]: runs[first_runs[session]][1] for session in there}
            so_far = CopiedPart(skip=done, prompts=prompts, forks=forks, is_last=False)
            here = [header[1], *there.values(), *part, *named.values()]
            yield Batch(url, owners, here, so_far, until={session: seen[session] for session in there})
            done, part, named, begun = seen.copy(), [], {}, set()
    rest = [line for row, line in rows if row["type"] not in ("session", "prompt", "event")]
    last = [header[1], *(text for _, text in sessions.values()), *part, *rest]
    yield Batch(url, owners, last, CopiedPart(skip=done, prompts=prompts, forks=forks))


def _beginnings(sessions: Mapping[str, Row]) -> dict[int, list[str]]:
    """The sessions that begin after each event, and after 0 those that are forks of an empty list.

    A fork of a fork begins no earlier than the other one: it may share less than that one does.
    """
    found: dict[str, int] = {}
    for session in sessions:
        way, of = list[str](), session
        while of in sessions and of not in found:
            found[of] = 0
            way.append(of)
            of = sessions[of].get("fork_of") or ""
        latest = found.get(of, 0)
        for of in reversed(way):
            latest = found[of] = max(latest, sessions[of].get("fork_at") or 0)
    beginnings: dict[int, list[str]] = {}
    for session, event in found.items():
        origin = sessions[session].get("fork_of")
        if origin or event:
            beginnings.setdefault(event, []).append(session)
        if origin and not event:
            beginnings[0].append(origin)
    return beginnings


class _Plan:
    """Which lines are copied together, and in which order."""

    def __init__(self) -> None:
        self.places: dict[Owner, list[int]] = {}  # where the lines of an owner begin in the file
        self._group: dict[Owner, Owner] = {}  # the owner that one is copied together with
        self._after: dict[Owner, set[Owner]] = {}  # the owners that must be copied before one, or with it
        self._runs: dict[str, Owner] = {}
        self._steps: dict[int, Owner] = {}
        self._prompts: dict[int, Owner] = {}
        self._unowned: dict[int, tuple[Row, int]] = {}  # prompts whose event was not read yet
        self._parents: list[tuple[str, str]] = []

    def add(self, row: Row, place: int) -> None:
        """Adds the line that begins at a place of the file."""
        kind = row["type"]
        if kind == "prompt":
            self._unowned[row["id"]] = row, place
        elif kind != "end":
            owner = self._owner(kind, row)
            self.places.setdefault(owner, []).append(place)
            if kind == "session" and row.get("fork_of"):
                self._join(owner, row["fork_of"])
            elif kind == "event":
                self._steps.setdefault(row["step"], owner)
                self._take_prompts(row.get("prompt"), owner)
            elif kind == "run":
                self._runs[row["id"]] = owner
                self._parents += [(row["id"], row[name]) for name in ("parent", "fork_of") if row.get(name)]
            elif kind == "recalled":
                found = {self._steps.get(item) for item in row["found"] if isinstance(item, int)}
                self._after.setdefault(owner, set()).update(of for of in found if of is not None)

    def _owner(self, kind: str, row: Row) -> Owner:
        if kind in ("session", "note"):
            return str(row["id"])
        if kind == "forgotten":
            target = row["target"]
            return str(self._steps.get(target) or self._runs.get(target) or target)
        return str(row.get("session") or self._runs.get(row.get("run", "")) or _LAST)

    def _take_prompts(self, prompt: int | None, owner: Owner) -> None:
        """The prompt of an event, and the prompts that it begins with, are copied with the event."""
        while prompt in self._unowned:
            row, place = self._unowned.pop(prompt)
            self.places[owner].append(place)
            self._prompts[prompt] = owner
            prompt = row.get("parent")
        if prompt in self._prompts:
            self._join(owner, self._prompts[prompt])

    def _join(self, one: Owner, other: Owner) -> None:
        first, second = self._first_of(one), self._first_of(other)
        if first != second:
            self._group[first] = second

    def _first_of(self, owner: Owner) -> Owner:
        while owner in self._group:
            self._group[owner] = self._group.get(self._group[owner], self._group[owner])
            owner = self._group[owner]
        return owner

    def batches(self, most: int) -> Iterator[list[Owner]]:
        """What is copied together, in order."""
        for run, parent in self._parents:
            if parent in self._runs:
                self._join(self._runs[run], self._runs[parent])
        members: dict[Owner, list[Owner]] = {}
        after: dict[Owner, set[Owner]] = {}
        for owner in self.places:
            group = self._first_of(owner)
            members.setdefault(group, []).append(owner)
            after.setdefault(group, set()).update(map(self._first_of, self._after.get(owner, ())))
        batch, size = list[Owner](), 0
        for circle in in_order(after):
            owners = [owner for group in circle for owner in members.get(group, ())]
            batch, size = batch + owners, size + sum(len(self.places[owner]) for owner in owners)
            if size >= most:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


def in_order(after: Mapping[Owner, set[Owner]]) -> Iterator[list[Owner]]:
    """The nodes of a graph, each after the nodes that it refers to; nodes that refer to each other come together.

    These are the strongly connected components, by Tarjan's algorithm.
    """
    number: dict[Owner, int] = {}
    low: dict[Owner, int] = {}  # the first open node that can be reached
    open_nodes: dict[Owner, None] = {}
    for root in after:
        path = [] if root in number else [(root, iter(sorted(after[root])))]
        while path:
            node, left = path[-1]
            if node not in number:
                number[node] = low[node] = len(number)
                open_nodes[node] = None
            other = next(left, None)
            if other is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == number[node]:
                    yield _closed(open_nodes, node)
            elif other not in number:
                path.append((other, iter(sorted(after.get(other, ())))))
            elif other in open_nodes:
                low[node] = min(low[node], number[other])


def _closed(open_nodes: dict[Owner, None], first: Owner) -> list[Owner]:
    """Takes a node, and the nodes after it, from the open ones."""
    taken = [open_nodes.popitem()[0]]
    while taken[-1] != first:
        taken.append(open_nodes.popitem()[0])
    return taken
