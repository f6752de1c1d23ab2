"""The rows of a copy, in batches that are each copied in a transaction of their own.

A batch holds whole sessions, with everything that belongs to them: events, runs, calls, reminders, trims, alerts. So a
copy that is interrupted between two batches has complete sessions, and no others; except that long sessions come in
several batches: their events some at a time, all other rows with the last one, and until then their runs are in use
by the copy (`writer.COPYING`). Sessions that only work together are
in one batch: a fork and what it is a fork of, a run and the runs that it called. A session that was reminded of a step
of another session comes after that session, or in the same batch if each was reminded of the other. Notes follow, each
with the line that forgets it.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from smolmem.store.base import Row, Store
from smolmem.store.writer import COPYING
from smolmem.transfer import archive

Owner = str
"""What a line is copied with: a session or a note, by its id."""
_LAST = "~"
"""The owner of lines that belong to nothing else; it comes after all ids."""


class Batch:
    """Some lines of a copy, to be read like an export.

    Attributes:
        is_last: whether its sessions are complete with it.
        skip: how many events of each session earlier batches hold.
        until: how many events of its sessions there are after it.
        prompts: the numbers in the target of the prompts of those events.
    """

    def __init__(self, url: str, owners: list[Owner], lines: list[bytes]) -> None:
        self.path = Path(url)
        self.count = len(lines)
        self.is_last = True
        self.skip: Mapping[str, int] = {}
        self.until: Mapping[str, int] = {}
        self.prompts: dict[int, int] = {}
        self._owners, self._lines = owners, lines

    def is_in(self, store: Store) -> bool:
        """Whether a store has all sessions and notes of this batch, complete, or as far as this batch goes."""
        if not self.is_last:
            asked = [{"session": session, "skip": count - 1} for session, count in self.until.items()]
            return all(store.rows("session_events", values) for values in asked)
        asked = [{"id": owner} for owner in self._owners]
        sessions = store.rows_of_each("session_row", asked)
        notes = store.rows_of_each("note_row", [row for row, found in zip(asked, sessions, strict=True) if not found])
        return all(notes) and not any(is_incomplete(store, found[0]["id"]) for found in sessions if found)

    def journal(self) -> tuple[IO[bytes], int]:
        """The lines, with the end line that an export has."""
        data = b"".join([*self._lines, b'{"type":"end","lines":%d}\n' % len(self._lines)])
        return io.BytesIO(data), len(data)

    def media(self, name: str) -> bytes:
        """The rows of a copy have no files."""
        raise archive.damaged(self.path, f"{name} is missing")

    def close(self) -> None:
        """Nothing is open."""


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


def is_incomplete(store: Store, session: str) -> bool:
    """Whether a store has a session, of which a copy wrote some events and was interrupted."""
    return {"writer": COPYING} in store.rows("session_writers", {"session": session})


def _parts(url: str, owners: list[Owner], lines: list[bytes], most: int) -> Iterator[Batch]:
    """The lines of long sessions in several batches. Forks stay in one: the other session has to be there by then."""
    header, *rows = [(json.loads(line), line) for line in lines]
    sessions = {row["id"]: line for row, line in rows if row["type"] == "session"}
    runs = {row["id"]: line for row, line in rows if row["type"] == "run"}
    if any(row.get("fork_of") for row, _ in rows if row["type"] == "session"):
        yield Batch(url, owners, lines)
        return
    prompts, waiting = dict[int, int](), dict[int, tuple[Row, bytes]]()
    done, seen = Counter[str](), Counter[str]()
    part, named = list[bytes](), dict[str, bytes]()
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
        named |= {run: runs[run] for run in runs.keys() & {row["run"]}}
        if len(part) >= most:
            until = {session: count for session, count in seen.items() if count > done[session]}
            batch = Batch(url, owners, [header[1], *map(sessions.__getitem__, until), *named.values(), *part])
            batch.is_last, batch.skip, batch.until, batch.prompts = False, done, until, prompts
            yield batch
            done, part, named = seen.copy(), [], {}
    rest = [line for row, line in rows if row["type"] not in ("session", "prompt", "event")]
    batch = Batch(url, owners, [header[1], *sessions.values(), *part, *rest])
    batch.skip, batch.prompts = done, prompts
    yield batch


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
