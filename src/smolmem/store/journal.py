"""Writes runs: batches of steps, calls before and after they are made, and which process works on a run.

A batch is one transaction. `append` is the only writer of events, for the recorder and for exports that are loaded, and
it updates the `step` table with each event.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, cast

from smolmem.core.errors import CannotResume, StoreError, TakenOver, Unwritable
from smolmem.core.prompts import BatchPrompts
from smolmem.core.redaction import Redactor
from smolmem.core.rows import Batch, CallRow, Change, RunRow, Saved, SessionRow, SharedPrompt
from smolmem.core.values import Alert, Run
from smolmem.store import heartbeat
from smolmem.store.base import Row, Store, T
from smolmem.store.chains import Chain
from smolmem.store.contents import with_hash
from smolmem.store.heartbeat import Heartbeat
from smolmem.store.records import Records
from smolmem.store.side_tables import Alerts, Reminders, Trims
from smolmem.store.writer import describe, name_writer

if TYPE_CHECKING:
    from smolmem.core.encoding.codec import Encoded
    from smolmem.core.encoding.step_facts import Facts


def _main_run(batch: Batch) -> str:
    """The run that most of a batch belongs to."""
    return batch.changes[-1].run if batch.changes else batch.session["id"]


class RunNotSaved(Unwritable):
    """A call cannot be recorded, because the run could not be saved; that failure is counted already."""


class Journal(Records):
    """The record of every run, in a store."""

    def __init__(self, store: Store, redactor: Redactor | None = None) -> None:
        super().__init__(store, redactor)
        self.reminders = Reminders(self, self._refuse_taken_over)
        self.trims = Trims(self, self._refuse_taken_session)
        self.alerts = Alerts(self, self._refuse_taken_over)
        self._token = secrets.token_hex(4)
        self._heartbeat = Heartbeat(self._renew_lease)
        self._own_runs: dict[str, Any] = {}  # the runs that were ours, and after which writes of others

    # --- batches ---------------------------------------------------------------------------------------------------

    def save(self, batch: Batch) -> list[Saved]:
        """Writes a batch in one transaction and returns the ids of its changes, in order."""
        began = [run["id"] for run in batch.runs if run["status"] == "running" and run["writer"] == self.writer]
        saved = self._transact(_main_run(batch), lambda chain: self._save(batch, chain, renews=bool(began)))
        self._heartbeat.add(began)
        self._heartbeat.remove(run["id"] for run in batch.runs if run["status"] != "running")
        return saved

    def _transact(self, run: str, body: Callable[[Chain | None], T], *, sync: bool = True, wait: bool = True) -> T:
        """A transaction whose contents are packed together; at a server each by itself: it gets all in one message."""
        if self.store.is_remote:
            is_held = bool(self._heartbeat.of([run]))
            return self.store.transact(lambda: body(None), sync=sync, quick=is_held, wait=wait)
        with self.chains.of(run) as chain:

            def packed() -> T:
                self.check(chain)
                return body(chain)

            return self.store.transact(packed, sync=sync)

    def _save(self, batch: Batch, chain: Chain | None, *, renews: bool) -> list[Saved]:
        self.announce(_values_of(batch))
        named = (change.run for change in batch.changes), (run["id"] for run in batch.runs)
        self._refuse_taken_over({*named[0], *named[1], *(run["parent"] for run in batch.runs)})
        if batch.new_session:
            _refuse_erased(self._has_shared(batch.session, batch.shared_events))
            self.add("session", batch.session)
        elif _begins_run(batch):
            _refuse_erased(bool(self.store.rows("session_row", {"id": batch.session["id"]})))
        results = {(run, column): self.keep(encoded, chain) for run, column, encoded in batch.results}
        runs: list[Row] = [
            {**run, **{column: number for (of, column), number in results.items() if of == run["id"]}}
            for run in batch.runs
        ]
        for run in runs:  # a run before its steps
            self._put_row(run)
        prompts = BatchPrompts()
        saved = [self.apply(batch.session["id"], change, chain, prompts) for change in batch.changes]
        for run in runs:
            if run["status"] != "running":  # its steps are counted
                self._put_run(run)
        if renews:
            self._renew_within()
        return saved

    def saved(self, session: str, skip: int) -> list[Saved]:
        """The ids of the events after the first `skip`: tells whether a batch was saved before an error came."""
        return [
            Saved(event["step"], event["shown"], event["prompt"], self._suffix(event["prompt"]))
            for event in self.store.rows("session_events", {"session": session, "skip": skip})
        ]

    def has_events(self, session: str, count: int) -> bool:
        """Whether a session has as many events as its writer knows: another process can have erased some."""
        return not count or len(self.store.rows("session_events", {"session": session, "skip": count - 1})) == 1

    def event_number(self, session: str, count: int) -> int | None:
        """The id of an event, of which it is known how many there were when it was saved; None if some are gone."""
        found = self.store.rows("session_events", {"session": session, "skip": count - 1})
        return int(found[0]["id"]) if found else None

    def _has_shared(self, session: SessionRow, count: int) -> bool:
        """Whether the store has the events that a new session shares with the session that it is a fork of."""
        of, at = session["fork_of"], session["fork_at"]
        return of is None or (at is not None and (not count or self.event_number(of, count) == at))

    def _suffix(self, prompt: int | None) -> tuple[int, ...]:
        return () if prompt is None else tuple(json.loads(self.prompt_row(prompt)["suffix"]))

    def _put_run(self, run: Row) -> None:
        self._put_row(run if run["status"] == "running" else run | self.run_counts(run["id"]))

    def _put_row(self, run: Row) -> None:
        """Writes a run with the tags that it has in the store: another process may have set them."""
        row = run | next(iter(self.store.rows("tags_of_run", run)), {})
        self.store.do("put_run", with_hash("run", row))

    def tag(self, run: str, add: Iterable[str], remove: Collection[str]) -> Run:
        """Adds tags to a run, and removes tags; the run may be in progress in another process."""

        def set_tags() -> None:
            row = cast(Row, self.run_row(run))
            kept = [tag for tag in self.tags(row) if tag not in remove]
            tags = dict.fromkeys((*kept, *(self.redactor.text(tag) for tag in add)))
            row = row | {"tags": json.dumps(list(tags))}
            self.store.do("set_tags", with_hash("run", row))

        self.store.transact(set_tags)
        return self.run(run)

    def apply(
        self, session: str, change: Change, chain: Chain | None = None, prompts: BatchPrompts | None = None
    ) -> Saved:
        """Writes one change to a session; part of the caller's transaction."""
        record = self._keep_optional(change.encoded, chain)
        rendered = self._keep_optional(change.rendered, chain)
        prompt, suffix = change.prompt, tuple[int, ...]()
        if isinstance(prompt, SharedPrompt):
            prompt, suffix = self._prompt(prompt, chain, prompts or BatchPrompts())
        event = {
            "session": session,
            "run": change.run,
            "at": change.at,
            "act": change.act,
            "step": change.step,
            "place": change.position,
            "record": record,
            "shown": rendered,
            "prompt": prompt,
            "state": self._keep_optional(change.variables, chain),
        }
        if change.sources:
            self.reminders.add_within(change.run, change.at, rendered, change.sources)
        return Saved(self.append(event, change.facts, last=change.last), rendered, prompt, suffix)

    def _keep_optional(self, encoded: Encoded | None, chain: Chain | None) -> int | None:
        return None if encoded is None else self.keep(encoded, chain)

    def _prompt(self, prompt: SharedPrompt, chain: Chain | None, batch: BatchPrompts) -> tuple[int, tuple[int, ...]]:
        for part in prompt.suffix:
            if not isinstance(part, int) and part.key not in batch.ids:
                batch.ids[part.key] = self.keep(part, chain)
        suffix = tuple(part if isinstance(part, int) else batch.ids[part.key] for part in prompt.suffix)
        link = batch.shortened(prompt.parent, prompt.keep, suffix)
        row = {"parent": link.parent, "keep": link.keep, "size": prompt.size, "suffix": json.dumps(link.suffix)}
        number = int(self.add("prompt", row))
        batch.add(number, prompt.parent, prompt.keep, suffix)
        return number, tuple(link.suffix)

    # --- events ----------------------------------------------------------------------------------------------------

    def append(self, event: Row, facts: Facts | Row | None, *, last: bool) -> int:
        """Appends an event and brings the `step` table in line with it; part of the caller's transaction.

        Args:
            event: a row of `event` without its id; `step` is None for a new step.
            facts: the columns of the step, where its content is new.
            last: whether no step of the list follows it.

        Returns:
            The id of the step.
        """
        step = self._place(event, facts, last=last)
        if event["record"] is not None:
            self.store.do("add_pending", {"step": step, "session": event["session"]})
        self.add("event", event | {"step": step})
        return step

    def _place(self, event: Row, facts: Facts | Row | None, *, last: bool) -> int:
        """Updates the positions of steps, and the latest revision."""
        session, act, place = event["session"], event["act"], event["place"]
        if act == "remove":
            self.store.do("place_step", {"id": event["step"], "session": session, "place": None})
            self.store.do("shift_steps", {"session": session, "place": place, "by": -1})
        elif act == "insert" and not last:
            self.store.do("shift_steps", {"session": session, "place": place, "by": 1})
        if act == "insert" and event["step"] is None:
            columns = ("session", "run", "at", "place", "record", "prompt")
            row = {**(facts or {}), **{name: event[name] for name in columns}, "revision": 0}
            return int(self.add("step", row))
        step = cast(int, event["step"])
        if act == "insert":
            self.store.do("place_step", {"id": step, "session": session, "place": place})
        elif act == "revise":
            self._revise(event, facts or {})
        return step

    def _revise(self, event: Row, facts: Facts | Row) -> None:
        before = self.store.rows("step_row", {"id": event["step"]})[0]
        if before["session"] != event["session"]:
            return  # the step is shared with the run this one is a fork of, where it stays as it was
        row: Row = {**before, **facts, "record": event["record"], "prompt": event["prompt"]}
        row["revision"] += 1
        self.store.do("revise_step", with_hash("step", row))

    # --- calls -----------------------------------------------------------------------------------------------------

    def begin_call(
        self, call: CallRow, arguments: Encoded, outcome: Encoded | None = None, *, sync: bool = True
    ) -> int:
        """Writes a call before it is made; with its outcome, a model's answer before it is acted on.

        An answer need not be synced: if a power cut loses it, nothing that was synced depends on it yet. Nor need a
        call that may be made twice (`sync`).
        """

        def begin(chain: Chain | None) -> int:
            if chain is not None and outcome is not None:
                chain.begin_step()
            self.announce([arguments, outcome])
            self._refuse_taken_over([call["run"]])
            self._require_run(call["run"])
            given = {"arguments": self.keep(arguments, chain), "outcome": self._keep_optional(outcome, chain)}
            return int(self.add("call", {**call, **given}))

        return self._transact(call["run"], begin, sync=sync and outcome is None, wait=outcome is None)

    def end_call(self, number: int, call: CallRow, arguments: Encoded, outcome: Encoded) -> None:
        """Writes how a call ended; if a power cut loses that, the outcome of the call is unknown."""

        def end(chain: Chain | None) -> None:
            self.announce([arguments, outcome])
            self._refuse_taken_over([call["run"]])
            kept = {"arguments": self.keep(arguments, chain), "outcome": self.keep(outcome, chain)}
            row: dict[str, Any] = {**call, **kept}
            self.store.do("end_call", with_hash("call", row | {"id": number}))

        self._transact(call["run"], end, sync=False, wait=False)

    # --- who works on a run ----------------------------------------------------------------------------------------

    @property
    def writer(self) -> str:
        """The name that this process writes beside its runs, through this journal."""
        return name_writer(os.getpid(), self._token)

    def claim(self, run: str) -> tuple[RunRow, RunRow]:
        """Makes this process the writer of a run that no living process writes, and of the runs that it called.

        Returns:
            The previous row, for `release`, and the new row.

        Raises:
            CannotResume: if the run is finished, or a living process writes it.
        """
        claimed = self.store.transact(lambda: self._claim(run))
        self._heartbeat.add([run])
        return claimed

    def _claim(self, run: str) -> tuple[RunRow, RunRow]:
        before = self.run_row(run)
        if before["status"] == "finished":
            raise CannotResume(f"run {run[:8]} is finished: memory.run({run[:8]!r}).answer is its answer.")
        if before["status"] == "running":
            self._take_over(before)
        now: dict[str, Any] = {**before, "status": "running", "writer": self.writer, "ended": None}
        now |= {"answer": None, "failure": None}
        self._put_run(now)
        self._renew_within()
        return before, cast(RunRow, now)

    def in_use(self, run: str) -> str:
        """A sentence about the process that writes a run."""
        writer = self.run_row(run)["writer"]
        left = self.leases.seconds_left(writer)
        ends = f"; if that process is gone, its lease ends in {left:.0f} s, and then resume() takes the run over"
        return f"run {run[:8]} is in use by {describe(writer)}{ends if left else ''}."

    def _take_over(self, run: RunRow) -> None:
        """Takes a run, and the runs it called, from a writer that is gone; refuses the run of a living writer."""
        if self._heartbeat.of([run["id"]]) or not self.is_gone(run["writer"]):
            raise CannotResume(self.in_use(run["id"]))
        for row in self.store.rows("running_below", {"run": run["id"]}):
            columns = {name: value for name, value in self.sealed("run", row).items() if name != "hash"}
            self._put_run(columns | {"status": "interrupted", "writer": self.writer})
        reason = f"{describe(self.writer)} continues the run of {describe(run['writer'])}, which is gone"
        alert = Alert("takeover", reason, run["agent"], run["id"], None, datetime.now(timezone.utc))
        self.alerts.add_within(alert, run["scope"])

    def release(self, before: RunRow) -> None:
        """Restores the previous row of a claimed run."""
        row: Row = {**before, "status": "interrupted"} if before["status"] == "running" else {**before}

        def put_back() -> None:
            self._refuse_taken_over([before["id"]])
            self._put_run(row)

        self.store.transact(put_back)
        self.leave([before["id"]])

    def leave(self, runs: Iterable[str]) -> None:
        """This process no longer works on some runs."""
        self._heartbeat.remove(runs)

    def _refuse_taken_over(self, runs: Iterable[str | None]) -> None:
        """Part of the transaction that writes to these runs.

        Raises:
            TakenOver: if another process has become the writer of a run that this process works on.
        """
        mine = self._heartbeat.of(runs)
        seen = self.store.foreign_writes()
        if not mine or (seen is not None and all(self._own_runs.get(run) == seen for run in mine)):
            return  # nobody else has written since these runs were looked up
        for row in self.store.rows("other_writer", {"ids": json.dumps(mine), "writer": self.writer}):
            run = row["id"][:8]
            raise TakenOver(
                f"run {run} was taken over by {describe(row['writer'])}, because this process had not renewed its "
                f"lease in time. This process stops here, and nothing more is recorded of it: memory.run({run!r}) is "
                "the run as the other process continues it."
            )
        self._own_runs = dict.fromkeys(mine, seen)

    def _require_run(self, run: str) -> None:
        """A call of a run that could not be saved would belong to no run, if the process dies before the run is."""
        if not self._heartbeat.of([run]) and not self.store.rows("run_row", {"id": run}):
            raise RunNotSaved(f"run {run[:8]} is not saved yet, so its calls cannot be.")

    def _refuse_taken_session(self, session: str) -> None:
        mine = [run for run in self._heartbeat.runs if self.run_row(run)["session"] == session]
        self._refuse_taken_over(mine)

    def _renew_lease(self) -> None:
        self.store.transact(self._renew_within, sync=False)

    def _renew_within(self) -> None:
        self.leases.acquire_within(self.writer, self.writer, heartbeat.LEASE_SECONDS)

    def close(self) -> None:
        """Closes the store. The lease of a run that is still in progress is no longer renewed."""
        self._heartbeat.stop()
        self.store.close()


def _refuse_erased(is_there: bool) -> None:
    if not is_there:
        raise StoreError("another process erased the session of this agent: reset the memory of the agent.")


def _begins_run(batch: Batch) -> bool:
    return any(run["status"] == "running" for run in batch.runs)


def _values_of(batch: Batch) -> Iterator[Encoded | None]:
    """All values that a batch stores."""
    for change in batch.changes:
        yield from (change.encoded, change.rendered, change.variables)
        if isinstance(change.prompt, SharedPrompt):
            yield from (item for item in change.prompt.suffix if not isinstance(item, int))
    yield from (encoded for _, _, encoded in batch.results)
