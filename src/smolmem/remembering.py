"""What is remembered on purpose, and how anything is found again; the part of `Memory` that recalls."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Any

from smolmem.arguments import Time, count_of, end_of, scope_of, text_of, time_of
from smolmem.looking import Looking
from smolmem.recall.context import TOKENS, block
from smolmem.recall.distill import distill
from smolmem.recall.notes import Target
from smolmem.recall.recall import Recall, names
from smolmem.recall.search import Wanted
from smolmem.recall.values import Note, Recollection, Trust
from smolmem.record.values import Origin, Run, Step


class Remembering(Looking):
    """A store's notes, and recall over all it holds."""

    _recall: Recall

    def recall(
        self,
        question: str,
        limit: int = 5,
        *,
        scope: str | None = None,
        agents: Collection[str] | str | None = None,
        runs: Collection[str] | str | None = None,
        kinds: Collection[str] | str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        min_trust: Trust = "low",
        rerank: bool = False,
    ) -> list[Recollection]:
        """What answers a question, from everything that was done and noted, the best first.

        Args:
            question: any text; a time it speaks of ("yesterday", "in March", "before the restart") counts.
            limit: how many at most.
            scope: as for `runs`.
            agents: only what these agents did.
            runs: only what was done in these runs (their ids or the beginnings of them).
            kinds: only these: `task`, `plan`, `thought`, `code`, `call`, `observation`, `error`, `answer`, or kinds
                of notes.
            since: only from this time on.
            until: only before.
            min_trust: `low`, `medium` (nothing from the web) or `high` (only what users said).
            rerank: let a second model read the best thirty again: better, and half a second slower.

        Raises:
            BadValue: the question is empty.
        """
        given = names(runs, "runs")
        wanted = Wanted(
            **self._scoped(scope),
            agents=names(agents, "agents"),
            runs=None if given is None else tuple(self.run(run).id for run in given),
            kinds=names(kinds, "kinds"),
            since=time_of(since),
            until=time_of(until),
            min_trust=min_trust,
        )
        return self._recall.find(question, count_of(limit), wanted, rerank=rerank)

    def context(self, question: str, tokens: int = TOKENS, *, limit: int = 10, scope: str | None = None) -> str:
        """What answers a question as a block for a prompt: quoted, with origins, of about `tokens` tokens at most."""
        return block(self.recall(question, limit, scope=scope), count_of(tokens, "tokens"))[0]

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
        """Writes down something to be recalled.

        Args:
            text: what to remember.
            kind: a word such as `fact`, `lesson`, `procedure`.
            tags: words to find it by in `notes`.
            expires: when it is no longer true: a time, or a timedelta from now.
            supersedes: a note that it takes the place of; that one stays in the record and is not recalled any more.
            sources: steps and notes it was made from. When one is superseded or forgotten, a user's note is stale, and
                any other is forgotten with it.
            scope: another scope than this memory's.
            origin: who says so: `user`, `model`, `tool`, `web`, `import` or `agent`.
        """
        return self._recall.notes.add(
            text,
            scope=self.scope if scope is None else scope_of(scope),
            kind=kind,
            tags=tags,
            origin=origin,
            expires=end_of(expires),
            supersedes=supersedes.id if isinstance(supersedes, Note) else supersedes,
            sources=[self._source(source) for source in sources],
        )

    def _source(self, source: Step | Note | int | str) -> int | str:
        if isinstance(source, (Step, Note)):
            return source.id
        return self.step(source).id if isinstance(source, int) else self.note(source).id

    def forget(self, what: Note | Step | Run | int | str, *, influenced: bool = False) -> list[str]:
        """Leaves something out of recall, with the notes that came of it; the record keeps it. Tells what that was.

        Args:
            what: a note, a step, a run, or the id of one.
            influenced: also everything that was said in runs that were reminded of it, and what came of that: the way
                to be rid of a poisoned source.

        Raises:
            NotFound: there is no such thing.
        """
        gone = self._recall.notes.forget(self._target(what), influenced=influenced)
        return [f"{kind} {target}" for kind, target in gone]

    def _target(self, what: Note | Step | Run | int | str) -> Target:
        if isinstance(what, Note):
            return "note", what.id
        if isinstance(what, (Step, int)):
            return "step", str(self.step(what).id if isinstance(what, int) else what.id)
        if isinstance(what, Run):
            return "run", what.id
        notes = self._recall.notes.begin_with(what)
        return ("note", self.note(what).id) if notes else ("run", self.run(what).id)

    def distill(self, run: str, model: Any) -> list[Note]:
        """Lets a model note what a run teaches: facts, lessons, procedures, each with the steps it comes from.

        The record stays as it is; a note can be forgotten like any other.

        Raises:
            BadValue: the model does not answer.
        """
        chosen = self.run(run)
        return distill(self._recall.notes, chosen, model, self._journal.reminders.told(chosen.id))

    def notes(
        self,
        *,
        scope: str | None = None,
        kind: str | None = None,
        tag: str | None = None,
        run: str | None = None,
        past: bool = False,
        limit: int = 100,
    ) -> list[Note]:
        """What is remembered on purpose, the newest first; with `past` also what no longer is."""
        return self._recall.notes.find(
            **self._scoped(scope),
            kind=text_of(kind, "kind"),
            tag=text_of(tag, "tag"),
            run=None if run is None else self.run(run).id,
            past=past,
            limit=count_of(limit),
        )

    def note(self, id: str) -> Note:
        """One note, by its id or the beginning of it.

        Raises:
            NotFound: no note's id begins so, or several do.
        """
        return self._recall.notes.get(id)
