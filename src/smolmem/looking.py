"""What there is to look at: runs and steps, found by what is known of them."""

from __future__ import annotations

from typing import Any

from smolmem.arguments import Scopes, Time, count_of, one_of, scopes, text_of, time_of
from smolmem.record.values import STATUSES, Event, Run, Step
from smolmem.store.journal import Journal


class Looking:
    """A store's runs and steps; the part of `Memory` that changes nothing."""

    scope: str
    _journal: Journal

    def runs(
        self,
        *,
        scope: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        text: str | None = None,
        parent: str | None = None,
        session: str | None = None,
        managed: bool = True,
        limit: int = 100,
    ) -> list[Run]:
        """Recorded runs, the newest first.

        Args:
            scope: another scope than this memory's; `acme/*` for all below `acme`, `*` for all.
            agent: the agent's name, or its class if it has none.
            status: `running`, `finished`, `failed`, `interrupted` (also: killed) or `max_steps`.
            since: only runs that began at this time or later: a datetime, a timestamp, or ISO text.
            until: only runs that began before.
            text: only runs whose task begins with a text that holds this.
            parent: only runs of managed agents that this run called.
            session: only runs that shared this context.
            managed: False for no runs of managed agents.
            limit: how many at most.
        """
        return self._journal.find_runs(
            **self._scoped(scope),
            agent=text_of(agent, "agent"),
            status=one_of(status, STATUSES),
            since=time_of(since),
            until=time_of(until),
            text=text_of(text, "text"),
            parent=None if parent is None else self.run(parent).id,
            session=text_of(session, "session"),
            roots=None if managed else 1,
            limit=count_of(limit),
        )

    def run(self, id: str) -> Run:
        """One run, by its id or the beginning of it.

        Raises:
            NotFound: no run's id begins so, or several do.
        """
        return self._journal.run(id)

    def events(self, run: str) -> list[Event]:
        """What happened to the agent's list while a run went on, in order."""
        return self._journal.events(self.run(run))

    def as_of(self, run: str, event: int) -> list[Any]:
        """The agent's list as it was after an event, as live smolagents steps."""
        chosen = self.run(run)
        loaded = self._journal.session(chosen.session, chosen.id, until=event).session
        loaded.close()
        return [entry.step for entry in loaded.entries]

    def steps(
        self,
        *,
        scope: str | None = None,
        run: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        kind: str | None = None,
        tool: str | None = None,
        error: bool | str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        text: str | None = None,
        limit: int = 100,
    ) -> list[Step]:
        """Recorded steps, the newest first; steps that were taken off an agent's list are here too.

        Args:
            scope: as for `runs`; where a run is named, its own scope by default.
            run: only steps of this run (its id or the beginning of it).
            agent: only steps of the agent of this name.
            status: only steps of runs with this status.
            kind: `task`, `action`, `planning`, `system_prompt` or `other`.
            tool: only steps that call this tool.
            error: True for steps that went wrong, False for those that did not, or the name of an error's class.
            since: only steps from this time on.
            until: only steps before.
            text: only steps whose text holds this, in any case.
            limit: how many at most.
        """
        found = None if run is None else self.run(run)
        return self._journal.find_steps(
            **self._scoped(found.scope if found is not None and scope is None else scope),
            run=None if found is None else found.id,
            agent=text_of(agent, "agent"),
            status=one_of(status, STATUSES),
            kind=text_of(kind, "kind"),
            tool=text_of(tool, "tool"),
            failed=int(error) if isinstance(error, bool) else None,
            error=text_of(error, "error") if not isinstance(error, bool) else None,
            since=time_of(since),
            until=time_of(until),
            text=text_of(text, "text"),
            limit=count_of(limit),
        )

    def step(self, id: int) -> Step:
        """One step, by its id.

        Raises:
            NotFound: there is none.
        """
        return self._journal.step(id)

    def _scoped(self, scope: str | None) -> Scopes:
        return scopes(self.scope if scope is None else scope)
