"""Notes: remembering, superseding and forgetting.

A note is never changed. A newer note supersedes it, it is forgotten, or it expires: then recall no longer returns it,
the record keeps it, and notes that were made from it are stale.

Forgetting a source also forgets the notes that agents made from it, wrote after it in the same run, or wrote in a run
that recalled it, and optionally everything that was said in such runs. Notes of users stay, and become stale.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal

from smolmem.core import clock
from smolmem.core.arguments import EVERYWHERE, ScopeFilter, check_word
from smolmem.core.errors import InvalidArgument, NotFound
from smolmem.core.rows import ORIGINS, NoteRow, Origin, Passage
from smolmem.core.text import storable
from smolmem.core.values import Note, when
from smolmem.recall import passages as searchable
from smolmem.recall.provenance import Provenance
from smolmem.store.base import Row, Store
from smolmem.store.contents import id_prefix, with_hash
from smolmem.store.links import Links
from smolmem.store.passage_rows import PassageOwner, add_passages, drop_passages, json_list, reindex_after

LONGEST = 100_000
_EMPTY = re.compile(
    r"(ok(ay)?|done|yes|no|none|n/?a|null|unknown|nothing( to (note|report|remember))?|test(ing)?|"
    r"(the )?task (was |is |has been )?(completed?|done|finished)( successfully)?|success(ful(ly)?)?)",
    re.IGNORECASE,
)

Target = tuple[Literal["note", "step", "run"], str]
_KINDS = ("note", "step", "run")


class Notes:
    """The notes of a store."""

    def __init__(self, contents: Links) -> None:
        self._contents = contents
        self._store = contents.store

    def add(
        self,
        text: str,
        *,
        scope: str,
        kind: str,
        tags: Iterable[str],
        origin: Origin,
        run: str | None = None,
        expires: float | None = None,
        supersedes: str | None = None,
        sources: Iterable[int | str] = (),
        bounds: ScopeFilter = EVERYWHERE,
    ) -> Note:
        """Writes a note; it can be recalled at once. A note that it supersedes must lie within `bounds`."""
        past = None if supersedes is None else self.get(supersedes, bounds)
        later = self._store.rows("superseding", {"id": past.id}) if past is not None else []
        if later:
            raise InvalidArgument(
                f"note {supersedes} is superseded already, by {later[0]['id'][:8]}: supersede that one."
            )
        row = self._row(
            text,
            scope,
            kind,
            tags,
            origin,
            run=run,
            expires=expires,
            supersedes=None if past is None else past.id,
            sources=json.dumps(list(sources)),
        )
        self._store.transact(lambda: self._write(row))
        return self._note(row)

    def _row(self, text: str, scope: str, kind: str, tags: Iterable[str], origin: Origin, **rest: Any) -> Row:
        row: NoteRow = {
            "id": secrets.token_hex(8),
            "scope": scope,
            "kind": check_word(kind, "kind"),
            "text": _checked(text),
            "tags": json.dumps([check_word(tag, "tag") for tag in tags]),
            "origin": _origin(origin),
            "run": None,
            "at": time.time(),
            "expires": None,
            "supersedes": None,
            "sources": "[]",
        }
        return self._contents.without_secrets("note", {**row, **rest})

    def _write(self, row: Row) -> None:
        self._contents.add("note", row)
        add_note_passages(self._store, row, exposed=self._is_exposed(row))
        if row["supersedes"] is not None:
            drop_passages(self._store, self._store.rows("note_passages", {"note": row["supersedes"]}))

    def add_imported(self, texts: Iterable[tuple[str, Iterable[str]]], scope: str, kind: str) -> list[bool]:
        """Writes texts of others, each with its tags, in one transaction; returns whether each of them was new.

        The id of such a note is a hash of its text: a text that was written before, even if it was forgotten since, is
        not written again.
        """
        rows = [self._row(text, scope, kind, tags, "import") for text, tags in texts]
        ids = [_id_of(row) for row in rows]

        def write() -> list[bool]:
            known = {row["id"] for row in self._store.rows("notes_by_ids", {"ids": json_list(ids)})}
            is_new = [id not in known and id not in ids[:place] for place, id in enumerate(ids)]
            for row, id, new in zip(rows, ids, is_new, strict=True):
                if new:
                    self._write({**row, "id": id})
            return is_new

        return self._store.transact(write)

    def _is_exposed(self, row: Row) -> bool:
        provenance = Provenance(self._contents)
        if row["run"] is not None:
            provenance.catch_up({row["run"]})
        return provenance.made_from_low_trust(row)

    def low_among(self, sources: Collection[int | str]) -> list[int | str]:
        """Those of some steps and notes that have low trust."""
        return self._store.transact(lambda: Provenance(self._contents).low_among(sources), sync=False)

    def why_junk(self, text: str, scope: str, kind: str, recalled: list[str]) -> str | None:
        """Why a text that a model wants to remember is not worth it; None if it is."""
        said = " ".join(text.split())
        if len(said) < 8 or _EMPTY.fullmatch(said.strip(" .!")):
            return "it says nothing that could be useful later"
        if len(searchable.without_recalled(said, searchable.spellings(recalled)).split()) < len(said.split()) / 2:
            return "it is what was recalled, which is remembered already"
        return "it is remembered already" if self.is_known(text, scope, kind) else None

    def is_known(self, text: str, scope: str, kind: str) -> bool:
        """Whether a current note of a scope and kind has this text."""
        kept = self._contents.without_secrets("note", {"kind": kind, "text": storable(text.strip())})
        return bool(self._store.rows("same_note", {"scope": scope, **kept}))

    # --- reading ---------------------------------------------------------------------------------------------------

    def get(self, prefix: str, bounds: ScopeFilter = EVERYWHERE) -> Note:
        """The note within some scopes whose id begins with a prefix.

        Raises:
            NotFound: if none does, or several do.
        """
        found = self.with_prefix(prefix, bounds)
        if len(found) == 1:
            return found[0]
        fits = ", ".join(note.id[:12] for note in found)
        if found:
            raise NotFound(f"note {prefix!r} in {self._store.url} could be any of {fits}: give more of its id.")
        raise NotFound(f"no note {prefix!r} in {self._store.url}: `memory.notes()` lists all notes.")

    def with_prefix(self, prefix: str, bounds: ScopeFilter = EVERYWHERE) -> list[Note]:
        """Up to nine notes within some scopes whose id begins with a prefix."""
        self._contents.check_notes()
        begins = id_prefix(prefix)
        rows = [] if begins is None else self._store.rows("notes_by_prefix", {"prefix": begins, **bounds})
        return [self._note(row) for row in rows]

    def find(self, *, past: bool, **filters: Any) -> list[Note]:
        """Notes, the newest first; with `past` also those that are no longer current."""
        self._contents.check_notes()
        return [self._note(row) for row in self._store.rows("find_notes", filters | {"past": past, "now": clock.now()})]

    def kinds(self) -> list[str]:
        """The kinds of all notes."""
        return [row["kind"] for row in self._store.rows("note_kinds", {})]

    def history(self, note: Note) -> list[Note]:
        """A note, the notes it superseded and those that superseded it, the oldest first."""
        chain = [self.get(note.id)]
        while chain[0].supersedes is not None:
            chain.insert(0, self.get(chain[0].supersedes))
        while later := self._store.rows("superseding", {"id": chain[-1].id}):
            chain.append(self._note(later[0]))
        return chain

    def _note(self, row: Row) -> Note:
        if "hash" in row:
            self._contents.sealed("note", row)
        return Note(
            **{name: row[name] for name in ("id", "scope", "kind", "text", "origin", "run", "supersedes")},
            tags=tuple(json.loads(row["tags"])),
            at=when(row["at"]),
            expires=None if row["expires"] is None else when(row["expires"]),
            sources=tuple(json.loads(row["sources"])),
            status=self._status(row["id"], row["expires"]),
            stale=self.is_stale(row["id"]),
        )

    def stale_among(self, notes: Iterable[str]) -> set[str]:
        """The notes of which a source is no longer current; most notes have no sources."""
        rows = self._store.rows("notes_with_sources", {"notes": json_list(notes)})
        return {row["id"] for row in rows if self.is_stale(row["id"])}

    def is_stale(self, note: str) -> bool:
        """Whether a source of a note is no longer current."""
        return bool(self._store.do("stale", {"id": note, "now": clock.now()}))

    def _status(self, note: str, expires: float | None) -> Any:
        if self._store.rows("forgotten", {"what": "note", "target": note}):
            return "forgotten"
        if self._store.rows("superseding", {"id": note}):
            return "superseded"
        return "expired" if expires is not None and expires <= clock.now() else "current"

    # --- forgetting ------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Drops the passages of notes that have expired."""
        over = self._store.rows("expired", {"now": clock.now()})
        if over:
            self._store.transact(lambda: drop_passages(self._store, over), sync=False)

    def forget(self, first: Target, *, influenced: bool = False, scope: str | None = None) -> list[Target]:
        """Forgets a target and the notes made from it; returns everything that was forgotten.

        Args:
            first: the target.
            influenced: also the runs that recalled it.
            scope: only notes of this scope, of those made from the target.
        """
        gone: list[Target] = []
        coming = [first]
        while coming:
            target = coming.pop(0)
            if target not in gone:
                gone.append(target)
                coming += self._came_of(target, influenced, scope)
        now = time.time()  # the same for all, so that `undo_forget` finds them
        self._store.transact(lambda: self._forget(gone, now))
        return gone

    def _forget(self, gone: list[Target], now: float) -> None:
        for what, name in gone:
            if not self._store.rows("forgotten", {"what": what, "target": name}):
                row = {"what": what, "target": name, "at": now}
                self._store.do("add_forgotten", with_hash("forgotten", row))
            passages = self._passages(what, name)
            drop_passages(self._store, passages)
            for session, step in {(row["session"], row["step"]) for row in passages if row["step"] is not None}:
                reindex_after(self._store, session, step)

    def undo_forget(self, target: Target) -> list[Target]:
        """Undoes a forget, with everything that was forgotten together with the target; returns all of that.

        Raises:
            NotFound: if it is not forgotten.
        """
        return self._store.transact(lambda: self._undo_forget(target))

    def _undo_forget(self, target: Target) -> list[Target]:
        found = self._store.rows("forgotten", {"what": target[0], "target": target[1]})
        if not found:
            raise NotFound(f"{target[0]} {target[1][:8]} is not forgotten: there is nothing to undo.")
        together: list[Target] = [
            (row["what"], row["target"]) for row in self._all_forgotten() if row["at"] == found[0]["at"]
        ]
        named = {f"{kind}s": json.dumps([name for what, name in together if what == kind]) for kind in _KINDS}
        self._store.rows("erase_forgotten", named)
        for what, name in together:
            self._index_again(what, name)
        return together

    def _all_forgotten(self) -> Iterator[Row]:
        after = 0
        while rows := self._store.rows("forgotten_after", {"id": after}):
            yield from rows
            after = rows[-1]["id"]

    def _index_again(self, what: str, target: str) -> None:
        if what == "note":
            self._store.do("add_pending_note", {"note": target})
            return
        found = ("run_steps", {"run": target}) if what == "run" else ("step", {"id": int(target)})
        for row in self._store.rows(*found):
            self._store.do("add_pending", {"step": row["id"], "session": row["session"]})

    def _passages(self, what: str, target: str) -> list[Row]:
        if what == "step":
            steps = self._store.rows("step", {"id": int(target)})
            return [
                passage
                for step in steps
                for passage in self._store.rows("step_passages", {"session": step["session"], "step": step["id"]})
            ]
        return self._store.rows(f"{what}_passages", {what: target})

    def _came_of(self, target: Target, influenced: bool, scope: str | None) -> list[Target]:
        """The runs that a run called, the runs that recalled it, and the notes that agents made from all of these."""
        what, name = target
        about, sources, wrote = self._about(target)
        told = [row["run"] for source in sources for row in self._store.rows("runs_told", {"source": source, **about})]
        wrote |= {run: 0.0 for run in told}
        notes = [row for source in sources for row in self._store.rows("made_from", {"source": source})]
        for run, since in wrote.items():
            notes += self._store.rows("made_in", {"run": run, "since": since})
        called = self._store.rows("run_children", {"run": name}) if what == "run" else []
        kept: list[Target] = [("note", row["id"]) for row in notes if scope in (None, row["scope"])]
        return kept + [("run", run) for run in (*(row["id"] for row in called), *(told if influenced else ()))]

    def _about(self, target: Target) -> tuple[Row, list[int | str], dict[str, float]]:
        """Scope and time of a target; its ids as sources of notes; the runs that knew it, and since when."""
        what, name = target
        if what == "note":
            note = self.get(name)
            return {"scope": note.scope, "since": note.at.timestamp()}, [name], {}
        if what == "step":
            step = self._store.rows("step", {"id": int(name)})[0]
            return {"scope": step["scope"], "since": step["at"]}, [int(name)], {step["run"]: step["at"]}
        run = self._store.rows("run_row", {"id": name})[0]
        steps = [step["id"] for step in self._store.rows("run_steps", {"run": name})]
        return {"scope": run["scope"], "since": run["began"]}, steps, {name: 0.0}


def add_note_passages(store: Store, row: Row, *, exposed: bool, earlier: Sequence[Row] = ()) -> None:
    """Indexes a note, in place of its earlier passages; part of the caller's transaction."""
    owner: PassageOwner = {"session": "", "step": None, "note": row["id"], "agent": None} | {  # type: ignore[assignment]
        name: row[name] for name in ("scope", "run", "at")
    }
    parts = searchable.split(row["text"])
    add_passages(store, owner, [Passage(row["kind"], row["origin"], part, exposed=exposed) for part in parts], earlier)


def _id_of(row: Row) -> str:
    said = "\n".join(row[name] for name in ("scope", "kind", "text"))
    return hashlib.blake2b(said.encode(), digest_size=8).hexdigest()


def _checked(text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgument(f"a note is a text, not {text!r}.")
    if len(text) > LONGEST:
        raise InvalidArgument(
            f"a note has at most {LONGEST:,} characters, not {len(text):,}: remember what matters of it."
        )
    return storable(text.strip())


def _origin(value: Any) -> Origin:
    if value not in ORIGINS:
        raise InvalidArgument(f"{value!r} is not one of {', '.join(ORIGINS)}.")
    origin: Origin = value
    return origin
