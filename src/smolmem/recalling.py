"""The part of `Memory` that recalls, remembers, forgets and erases."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from smolmem.core.arguments import (
    Time,
    check_choice,
    check_count,
    check_scope,
    check_tags,
    check_text,
    scope_filter,
    to_deadline,
    to_timestamp,
)
from smolmem.core.errors import InvalidArgument, NotFound
from smolmem.core.rows import ORIGINS, Origin, Trust
from smolmem.core.values import Forgotten, Note, Recollection, Run, Step
from smolmem.queries import Queries
from smolmem.recall.calibration import FLOOR
from smolmem.recall.context import TOKENS, block, is_worth_quoting
from smolmem.recall.engine import RecallEngine, names
from smolmem.recall.filters import PASSAGE_KINDS, Filter
from smolmem.recall.notes import Target
from smolmem.recall.search import Group
from smolmem.store.base import Progress as Report

if TYPE_CHECKING:  # imported by the methods that need them: most programs erase nothing
    from smolmem.recall.purge import Purged
    from smolmem.store.erasure.erase import Erased, Selection


def check_retention(rules: Any) -> dict[str, timedelta]:
    """How long runs are kept, by scope."""
    if not isinstance(rules, Mapping) or not all(isinstance(age, timedelta) for age in rules.values()):
        raise InvalidArgument(f"retain maps scopes to timedeltas, as {{'acme/*': timedelta(days=90)}}, not {rules!r}.")
    for scope, age in rules.items():
        scope_filter(scope)
        if age < timedelta(0):
            raise InvalidArgument(f"runs cannot be kept for {age}: give a timedelta that is not negative.")
    return dict(rules)


class Recalling(Queries):
    """Notes, and recall over everything in a store."""

    _recall: RecallEngine
    _retain: Mapping[str, timedelta]

    def recall(
        self,
        question: str,
        limit: int = 5,
        *,
        scope: str | None = None,
        agent: Collection[str] | str | None = None,
        run: Collection[Run | str] | Run | str | None = None,
        kind: Collection[str] | str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        min_trust: Trust = "low",
        floor: float = FLOOR,
        group: Group = "step",
        rerank: bool = False,
    ) -> list[Recollection]:
        """The steps and notes that answer a question, from everything that was done and noted, the best first.

        Nothing is returned if the memory holds no answer.

        Args:
            question: any text; a time it mentions ("yesterday", "in March", "before the restart") counts.
            limit: the maximum number of recollections.
            scope: as for `runs`.
            agent: only steps of this agent, or of one of these agents.
            run: only steps and notes of this run, or of one of these runs.
            kind: only passages of this kind or these kinds: `task`, `plan`, `thought`, `code`, `call`, `observation`,
                `error`, `answer`, or kinds of notes.
            since: only passages from this time on.
            until: only passages before this time.
            min_trust: `low`, `medium` (nothing from the web or an import, nothing made from that) or `high` (only what
                users said).
            floor: how sure the memory must be that it knows the answer, and how good a result must be beside the best
                one; from 0 (everything that matches at all) to 1.
            group: `run` for the best step of each run instead of all steps.
            rerank: let a second model score the best thirty again: more accurate, and half a second slower.

        Raises:
            InvalidArgument: if the question is empty, a kind is unknown, or another argument is of no use.
        """
        runs = run if run is None or (isinstance(run, Iterable) and not isinstance(run, str)) else (run,)
        filters = Filter(
            **self._scope_filter(scope),
            agents=names(agent, "agent"),
            runs=None if runs is None else tuple(self.run(each).id for each in runs),
            kinds=self._kinds(names(kind, "kind")),
            since=to_timestamp(since),
            until=to_timestamp(until),
            min_trust=min_trust,
        )
        return self._recall.find(question, check_count(limit), filters, floor=floor, group=group, rerank=rerank)

    def add_source(self, source: Any, limit: int = 5, *, scope: str | None = None) -> None:
        """Lets recall ask another store, too: a vector store or retriever of LangChain or LlamaIndex, or a function.

        The texts that a source returns become notes of the kind `document`, with the origin `import` and low trust, and
        are ranked with everything else. Equal texts are stored once. A source that fails is logged and left out.

        Args:
            source: any LangChain vector store or retriever, any LlamaIndex retriever, or a function from a question to
                texts.
            limit: the maximum number of documents for one question.
            scope: the scope of the documents; by default this memory's scope. Recall in other scopes does not ask the
                source.

        Raises:
            InvalidArgument: if the source is none of these.
        """
        self._recall.add_source(source, self._scope_to_write(scope), check_count(limit))

    def index(self, progress: bool | Report = False) -> int:
        """Indexes and embeds everything that is pending; returns how many steps, notes and passages were pending.

        Indexing happens in the background anyway: call this to wait for it, for instance for the vectors of an export.

        Args:
            progress: show a progress bar; or a function that is called with the amount that is done and the total.
        """
        if callable(progress):
            return self._recall.index(progress)
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(file=sys.stderr), transient=True, disable=not progress) as bar:
            task = bar.add_task("smolmem indexes what was recorded", total=None)
            return self._recall.index(lambda done, of: bar.update(task, completed=done, total=of))

    def _kinds(self, kinds: tuple[str, ...] | None) -> tuple[str, ...] | None:
        unknown = [kind for kind in kinds or () if kind not in PASSAGE_KINDS]
        known = self._recall.notes.kinds() if unknown else []
        for kind in unknown:
            if kind not in known:
                expected = ", ".join([*PASSAGE_KINDS, *known])
                raise InvalidArgument(f"kind is one of {expected}, not {kind!r}.")
        return kinds

    def context(self, question: str, tokens: int = TOKENS, *, limit: int = 10, scope: str | None = None) -> str:
        """The answer to a question as a block for a prompt: quoted, with origins, of about `tokens` tokens at most."""
        recalled = self.recall(question, limit, scope=scope)
        found = [one for one in recalled if one.score >= FLOOR and is_worth_quoting(one)]  # each takes up tokens
        return block(found, check_count(tokens, "tokens"))[0]

    def remember(
        self,
        text: str,
        *,
        kind: str = "note",
        tags: Iterable[str] = (),
        expires: Time | timedelta | None = None,
        supersedes: Note | str | None = None,
        sources: Iterable[Step | Note | int | str] = (),
        scope: str | None = None,
        origin: Origin = "user",
    ) -> Note:
        """Writes a note that can be recalled.

        Args:
            text: what to remember.
            kind: a word such as `fact`, `lesson`, `procedure`.
            tags: words to find the note by in `notes`, at most 50.
            expires: when the note expires: a time, or a timedelta from now.
            supersedes: the note that the new note replaces; the old note stays in the record and is no longer recalled.
            sources: steps and notes that the note was made from. When a source is superseded or forgotten, a note of a
                user becomes stale, and any other note is forgotten with it.
            scope: another scope than this memory's.
            origin: who says so: `user`, `model`, `tool`, `web`, `import` or `agent`.
        """
        note = self._recall.notes.add(
            text,
            scope=self._scope_to_write(scope),
            kind=kind,
            tags=check_tags(tags),
            origin=origin,
            expires=to_deadline(expires),
            supersedes=supersedes.id if isinstance(supersedes, Note) else supersedes,
            sources=[self._source(source) for source in sources],
            bounds=self._bounds,
        )
        return self._operations.bind(note)

    def _scope_to_write(self, scope: str | None) -> str:
        if scope is None and "*" in self.scope:
            raise InvalidArgument(f"this memory covers {self.scope!r}: name the scope to write to, scope='acme/alice'.")
        return check_scope(self.scope if scope is None else scope)

    def _source(self, source: Step | Note | int | str) -> int | str:
        known = source.id if isinstance(source, (Step, Note)) else source
        return self.step(known).id if isinstance(known, int) or "/" in known else self.note(known).id

    def forget(
        self, what: Note | Step | Run | int | str, *, influenced: bool = False, undo: bool = False
    ) -> list[Forgotten]:
        """Leaves something out of recall, with the notes that were made from it; the record keeps it.

        Args:
            what: a note, a step, a run, the id or reference of a step, or the beginning of the id of a note or run.
            influenced: also everything that was said in runs that recalled it, and the notes made from that: the
                way to remove a poisoned source.
            undo: recall it again, with everything that was forgotten together with it.

        Returns:
            What recall now leaves out; with `undo`, what recall finds again.

        Raises:
            NotFound: if nothing has this id, or several ids begin with it.
        """
        notes, target = self._recall.notes, self._target(what)
        changed = notes.undo_forget(target) if undo else notes.forget(target, influenced=influenced)
        return [Forgotten(kind, id) for kind, id in changed]

    def erase(
        self,
        what: Note | Step | Run | int | str | None = None,
        *,
        scope: str | None = None,
        before: Time | None = None,
        dry_run: bool = False,
    ) -> Erased:
        """Deletes something for good: from the record, the index, what other runs recalled of it, and the file's bytes.

        The runs that an erased run called go with it, and the notes that agents made from it. A fork of an erased run
        keeps the steps that both share. An attached agent that still has erased steps in its memory starts again with
        an empty memory.

        Args:
            what: a note, a step, a run, the id or reference of a step, or the beginning of the id of a note or run.
            scope: everything of this scope; `acme/*` for `acme` and all scopes in it.
            before: runs that ended before this time; of this memory's scope, or of `scope`.
            dry_run: delete nothing, and return what would be erased.

        Returns:
            A receipt. `finished` is False if another process was reading the file, or if the vector
            index did not answer: call `finish_erase()` later to remove the last bytes.

        Raises:
            NotFound: if nothing has this id, or several ids begin with it.
            CannotResume: if a run is still running; nothing was erased.
        """
        from smolmem.store.erasure.erase import Selection, select

        if (what is None) == (scope is None and before is None):
            raise InvalidArgument("erase() takes one run, step or note; or scope=, before= or both.")
        if what is not None:
            kind, id = self._target(what)
            kinds: list[str] = [kind]
            selection = Selection(**{f"{kind}s": {int(id) if kind == "step" else id}})  # type: ignore[arg-type]
        else:
            kinds = [name for name, given in (("scope", scope), ("before", before)) if given is not None]
            selection = select(self._journal, **self._scope_filter(scope), before=to_timestamp(before))
        return self._erase(selection, kinds, dry_run)

    def prune(
        self, older_than: timedelta | None = None, *, scope: str | None = None, dry_run: bool = False
    ) -> list[Erased]:
        """Erases runs that are past their retention time; returns one receipt for each rule that erased.

        Args:
            older_than: how long runs are kept; without it, the rules that were given as `Memory(retain=…)` apply.
            scope: the scope of the runs; by default this memory's scope.
            dry_run: delete nothing, and return what would be erased.
        """
        from smolmem.store.erasure.erase import select

        if older_than is not None:
            rules: Mapping[str, timedelta] = {self.scope if scope is None else scope: older_than}
        elif scope is not None:
            raise InvalidArgument("prune(scope=…) also takes how long runs are kept: older_than=timedelta(days=90).")
        else:
            rules = self._retain
        receipts = []
        for of, age in check_retention(rules).items():
            selection = select(self._journal, **scope_filter(of), before=time.time() - age.total_seconds())
            receipts.append(self._erase(selection, ["scope", "before"], dry_run))
        return [receipt for receipt in receipts if receipt]

    def purge(
        self,
        *,
        origin: Origin | None = None,
        url: str | None = None,
        scope: str | None = None,
        dry_run: bool = False,
    ) -> Purged:
        """Erases a source, such as a poisoned web page, and everything that may have been made from it.

        That is: the steps that read the source and all later steps of their sessions, the runs that these steps called
        or that called them, what was said in runs that recalled any of it, and the notes that agents made of it. Tasks
        and notes of users stay. Exports and backups are out of reach.

        Args:
            origin: where the source comes from, such as `web`, `import` or `tool`.
            url: a part of the address, or another text that stands in the source or in the call that read it.
            scope: as for `runs`; text made from the source is also found in other scopes.
            dry_run: delete nothing, and return what would be erased.

        Returns:
            The sources, everything made from them, and the receipt of the erase.

        Raises:
            CannotResume: if a run is still running; nothing was erased.
        """
        from smolmem.recall.purge import Purged, find_derived

        if origin is None and url is None:
            raise InvalidArgument("purge() takes what to remove: origin='web', url='https://…', or both.")
        check_choice(origin, ORIGINS, "origin")
        asked = (self._scope_filter(scope), origin, check_text(url, "url"))
        plan = self._journal.store.transact(lambda: find_derived(self._journal, *asked), sync=False)
        receipt = self._erase(plan.selection, ["purge"], dry_run)
        return Purged(plan.sources, plan.derived, receipt)

    def finish_erase(self) -> bool:
        """Removes erased bytes that another process kept on the disk; False if that process still reads the file."""
        from smolmem.store.erasure.erase import finish

        return self._recall.erase_vectors(self._recall.indexed_models()) and finish(self._journal)

    def _erase(self, selection: Selection, kinds: list[str], dry_run: bool) -> Erased:
        from smolmem.store.erasure.erase import erase, sessions_of

        sessions = sessions_of(self._journal, selection)
        if not dry_run:
            self._recall.follow_sources()
            self._leave_sessions(sessions)
        models = self._recall.indexed_models()
        receipt = erase(self._journal, selection, kinds, dry_run=dry_run)
        if receipt and not dry_run and not self._recall.erase_vectors(models):
            return replace(receipt, finished=False)
        return receipt

    def _leave_sessions(self, sessions: Collection[str]) -> None:
        """Makes attached agents leave sessions that are about to lose steps."""

    def _target(self, what: Note | Step | Run | int | str) -> Target:
        if isinstance(what, Note):
            return "note", self.note(what.id).id
        if isinstance(what, (Step, int)) or (isinstance(what, str) and "/" in what):
            return "step", str(self.step(what.id if isinstance(what, Step) else what).id)
        if isinstance(what, Run):
            return "run", self.run(what).id
        notes = self._recall.notes.with_prefix(what, self._bounds)
        runs = self._journal.runs_with_prefix(what, self._bounds)
        if notes and runs:
            fits = ", ".join([*(f"note {note.id[:12]}" for note in notes), *(f"run {run['id'][:12]}" for run in runs)])
            raise NotFound(f"{what!r} could be any of {fits}: give more of the id.")
        if not notes and not runs:
            raise NotFound(
                f"no run or note {what!r} in {self._journal.store.url}: `memory.runs(scope='*')` and `memory.notes()` "
                "list the ids."
            )
        return ("note", self.note(what).id) if notes else ("run", self.run(what).id)

    def notes(
        self,
        *,
        scope: str | None = None,
        kind: str | None = None,
        tag: str | None = None,
        run: Run | str | None = None,
        past: bool = False,
        limit: int = 100,
    ) -> list[Note]:
        """Notes, the newest first; with `past` also notes that are no longer current."""
        found = self._recall.notes.find(
            **self._scope_filter(scope),
            kind=check_text(kind, "kind"),
            tag=check_text(tag, "tag"),
            run=None if run is None else self.run(run).id,
            past=past,
            limit=check_count(limit),
        )
        return self._operations.bind_all(found)

    def note(self, id: str) -> Note:
        """One note of this memory's scope, by its id or the beginning of it.

        Raises:
            NotFound: if no id of a note begins with `id`, or several do.
        """
        return self._operations.bind(self._recall.notes.get(id, self._bounds))
