"""The part of `Memory` that finds runs and steps, and `Reader`, which is that part alone.

This module does not import smolagents, which takes a second: commands that only list use a `Reader`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar

from smolmem.core.arguments import (
    ScopeFilter,
    Time,
    check_choice,
    check_count,
    check_text,
    in_scope,
    scope_filter,
    to_timestamp,
)
from smolmem.core.errors import NotFound
from smolmem.core.rows import STATUSES, STEP_KINDS
from smolmem.core.values import Alert, Note, Run, Step
from smolmem.store.journal import Journal
from smolmem.store.opening import open_store

Value = TypeVar("Value", Run, Step, Note)


class Lookup:
    """Finds runs by id within some scopes. The values it returns have no operations, such as `run.fork()`."""

    def __init__(self, journal: Journal, bounds: ScopeFilter) -> None:
        self._journal = journal
        self._bounds = bounds

    def bind(self, value: Value) -> Value:
        """Gives a value its operations, if there are any."""
        return value

    def bind_all(self, values: Iterable[Value]) -> list[Value]:
        """Gives values their operations."""
        return [self.bind(value) for value in values]

    def run(self, run: Run | str) -> Run:
        """A run, given itself or the beginning of its id.

        Raises:
            NotFound: if no run in these scopes has this id, or several ids begin with it.
        """
        if not isinstance(run, Run):
            return self.bind(self._journal.run(run, self._bounds))
        if not in_scope(run.scope, self._bounds):
            raise NotFound(f"run {run.id[:8]} is of the scope {run.scope!r}: use memory.scoped({run.scope!r}).")
        return run


class Queries:
    """Queries over the runs, steps and alerts of a store."""

    scope: str
    _bounds: ScopeFilter
    _journal: Journal
    _operations: Lookup

    def runs(
        self,
        *,
        scope: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        tool: str | None = None,
        tag: str | None = None,
        status: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        text: str | None = None,
        parent: Run | str | None = None,
        session: str | None = None,
        managed: bool = True,
        limit: int = 100,
    ) -> list[Run]:
        """Recorded runs, the newest first.

        Args:
            scope: another scope than this memory's; `acme/*` for `acme` and all scopes in it, `*` for all scopes.
            agent: the agent's name, or its class if it has none.
            model: the id of the agent's model.
            tool: only runs that called this tool, among the newest 50,000 steps.
            tag: only runs with this tag.
            status: `running`, `finished`, `failed`, `interrupted` (also: killed) or `max_steps`.
            since: only runs that began at this time or later: a datetime, a timestamp, or ISO text.
            until: only runs that began before this time.
            text: only runs whose title, the beginning of the task, contains this text.
            parent: only runs of managed agents that this run called.
            session: only runs that shared this context.
            managed: false to leave out runs of managed agents.
            limit: the maximum number of runs.
        """
        found = self._journal.find_runs(
            **self._scope_filter(scope),
            agent=check_text(agent, "agent"),
            model=check_text(model, "model"),
            tool=check_text(tool, "tool"),
            tag=check_text(tag, "tag"),
            status=check_choice(status, STATUSES, "status"),
            since=to_timestamp(since),
            until=to_timestamp(until),
            text=check_text(text, "text"),
            parent=None if parent is None else self.run(parent).id,
            session=check_text(session, "session"),
            roots=None if managed else 1,
            limit=check_count(limit),
        )
        return self._operations.bind_all(found)

    def called_by(self, runs: Iterable[Run]) -> dict[str, list[Run]]:
        """The runs of managed agents that each run called, directly and indirectly, by the id of the calling run."""
        asked = [self.run(run).id for run in runs]
        called: dict[str, list[Run]] = {}
        level, known = list(asked), set(asked)
        while level:
            found = self._operations.bind_all(self._journal.called_by(level))
            for run in found:
                called.setdefault(str(run.parent), []).append(run)
            level = [run.id for run in found if run.id not in known]
            known.update(level)
        return {id: _below(id, called) for id in asked}

    def run(self, id: Run | str) -> Run:
        """One run of this memory's scope, by its id or the beginning of it.

        Raises:
            NotFound: if no id of a run begins with `id`, or several do.
        """
        return self._operations.run(id)

    def steps(
        self,
        *,
        scope: str | None = None,
        run: Run | str | None = None,
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
        """Recorded steps, the newest first, including steps that were taken off an agent's list.

        Args:
            scope: as for `runs`; where a run is given, the run's own scope by default.
            run: only steps of this run.
            agent: only steps of the agent with this name.
            status: only steps of runs with this status.
            kind: `task`, `planning`, `action`, `injected`, `system_prompt`, `final_answer` or `other`.
            tool: only steps that call this tool.
            error: True for steps that failed, False for steps that did not, or the name of an error's class.
            since: only steps from this time on.
            until: only steps before this time.
            text: only steps whose text contains this, in upper or lower case.
            limit: the maximum number of steps.

        Raises:
            InvalidArgument: if `kind` or `status` is unknown.
        """
        scopes, filters = self._step_filters(scope, run, agent, since, until)
        found = self._journal.find_steps(
            **scopes,
            **filters,
            status=check_choice(status, STATUSES, "status"),
            kind=check_choice(kind, STEP_KINDS, "kind"),
            tool=check_text(tool, "tool"),
            failed=int(error) if isinstance(error, bool) else None,
            error=check_text(error, "error") if not isinstance(error, bool) else None,
            text=check_text(text, "text"),
            limit=check_count(limit),
        )
        return self._operations.bind_all(found)

    def _step_filters(
        self, scope: str | None, run: Run | str | None, agent: str | None, since: Time | None, until: Time | None
    ) -> tuple[ScopeFilter, dict[str, Any]]:
        chosen = None if run is None else self.run(run)
        scopes = self._scope_filter(chosen.scope if chosen is not None and scope is None else scope)
        return scopes, {
            "run": None if chosen is None else chosen.id,
            "agent": check_text(agent, "agent"),
            "since": to_timestamp(since),
            "until": to_timestamp(until),
        }

    def step(self, id: int | str) -> Step:
        """One step of this memory's scope, by its id, or by a reference such as `646430df/3`: step 3 of that run.

        Raises:
            NotFound: if there is no such step.
        """
        run, slash, number = id.partition("/") if isinstance(id, str) else ("", "", "")
        if slash and not number.startswith("@"):
            return self._numbered(self.run(run), number)
        plain = number[1:] if slash else id
        known = int(plain) if isinstance(plain, str) and plain.isascii() and plain.isdigit() else plain
        found = self._operations.bind(self._journal.step(known, self._bounds))  # type: ignore[arg-type]
        if slash and not found.run.startswith(run.lower()):
            raise NotFound(f"step {found.id} is of run {found.run[:8]}: {found.reference} is its reference.")
        return found

    def _numbered(self, run: Run, number: str) -> Step:
        """The last step with a number: a step that was interrupted and then finished is recorded twice."""
        numbered = {str(each.number): each for each in run.steps if each.kind == "action" and each.number is not None}
        if number not in numbered:
            known = f"steps {' to '.join(dict.fromkeys((min(numbered, key=int), max(numbered, key=int))))}"
            has = known if numbered else "no numbered steps"
            raise NotFound(f"run {run.id[:8]} has no step {number}: it has {has}.")
        return numbered[number]

    def alerts(
        self, *, scope: str | None = None, run: Run | str | None = None, rule: str | None = None, limit: int = 100
    ) -> list[Alert]:
        """When rules fired, the newest first."""
        filters = {"run": None if run is None else self.run(run).id, "rule": check_text(rule, "rule")}
        return self._journal.alerts.find(**self._scope_filter(scope), **filters, limit=check_count(limit))

    def _scope_filter(self, scope: str | None) -> ScopeFilter:
        return scope_filter(self.scope if scope is None else scope)


class Reader(Queries):
    """Finds runs, steps and alerts. Methods that act, such as `run.fork()`, need a `Memory`.

    Raises:
        StoreError: if the file cannot be used; the message says why and what to do.
    """

    def __init__(self, url: str | os.PathLike[str], *, scope: str = "default", key: str | bytes | None = None) -> None:
        self._bounds = scope_filter(scope)
        self.scope = scope
        self._journal = Journal(open_store(url, key=key))
        self._operations = Lookup(self._journal, self._bounds)

    def close(self) -> None:
        """Closes the file."""
        self._journal.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _below(id: str, called: dict[str, list[Run]]) -> list[Run]:
    """The runs that a run called, each followed by those that it called itself."""
    found: dict[str, Run] = {}
    coming = list(called.get(id, []))
    while coming:
        run = coming.pop(0)
        if run.id not in found:  # a damaged file can hold a circle
            found[run.id] = run
            coming[:0] = called.get(run.id, [])
    return list(found.values())
