"""Rewrites sessions and forks after an erase: which session keeps which events, and the positions of steps.

A session is a list of events; a fork begins with a part of another session's events. The rules:

- A session that has a run left loses the steps of its erased runs. The positions in its other events are counted again.
- A fork of an erased run keeps the steps that it shares with that run: they, their events and their calls become the
  fork's own. Of several forks, the one that shares most gets them, and the others become forks of that one.
- A fork of a kept run loses the same steps as that run.
- A session that loses steps also loses the snapshots of its variables from then on, because they may hold erased
  values. The system prompt goes to the next run of the session.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from smolmem.core.encoding import codec, step_facts
from smolmem.core.timeline import Timeline
from smolmem.store.base import Row
from smolmem.store.contents import seal, with_hash
from smolmem.store.journal import Journal
from smolmem.store.passage_rows import json_list
from smolmem.store.records import adds_step, apply_row


@dataclass
class Change:
    """The result: erased rows, and which sessions lost steps."""

    events: list[Row] = field(default_factory=list)
    """The events that are erased."""
    calls: list[Row] = field(default_factory=list)
    """The calls that are erased."""
    contents: set[int] = field(default_factory=set)
    """Contents that remaining rows no longer refer to: snapshots of variables, and arguments of model calls."""
    kept: dict[int, str] = field(default_factory=dict)
    """The steps of erased runs that a fork keeps, and the run of the fork."""
    dead: set[str] = field(default_factory=set)
    """Sessions without a run."""
    lossy: set[str] = field(default_factory=set)
    """Sessions that stay and lost steps."""
    touched: set[str] = field(default_factory=set)
    """Sessions whose passages must be made again."""


def _without_circles(rows: Iterable[Row]) -> dict[str, Row]:
    """Rows by id. A damaged file can hold a fork of itself, which must be erasable, too: it counts as no fork."""
    found = {row["id"]: row for row in rows}
    sound: set[str] = set()
    for first in found:
        way: dict[str, None] = {}
        at: str | None = first
        while at is not None and at in found and at not in sound and at not in way:
            way[at] = None
            at = found[at]["fork_of"]
        if at in way:
            last = [*way][-1]
            found[last] = found[last] | {"fork_of": None}
        sound.update(way)
    return found


class Sessions:
    """The sessions that an erase touches, before and after it."""

    def __init__(self, journal: Journal, runs: set[str], steps: set[int]) -> None:
        self._journal = journal
        self._erased_runs, self._erased_steps = runs, steps
        store = journal.store
        self._rows = _without_circles(store.rows("sessions", {}))
        self._runs = _without_circles(store.rows("runs", {}))
        of_steps = {row["session"] for row in store.rows("steps_by_ids", {"ids": json_list(steps)})}
        self._touched = self._with_forks({self._runs[run]["session"] for run in runs} | of_steps)
        loaded = json_list(self._with_origins(self._touched))
        self._own: dict[str, list[Row]] = {}
        for event in store.rows("events_by_sessions", {"ids": loaded}):
            self._own.setdefault(event["session"], []).append(event)
        self._views = {session: list(self._view(session)) for session in self._touched}
        self._runs_left: dict[str, list[Row]] = {}
        for row in sorted(self._runs.values(), key=lambda row: float(row["began"])):
            if row["id"] not in runs:
                self._runs_left.setdefault(row["session"], []).append(row)
        living = self._runs_left.keys()
        self._living = [session for session in sorted(self._touched) if session in living]
        inserts = [
            event
            for session in self._touched
            for event in self._own.get(session, ())
            if event["act"] == "insert" and event["record"] is not None
        ]
        self._inserted = {event["step"]: event["id"] for event in reversed(inserts)}
        self._homes = {event["step"]: (event["session"], event["run"]) for event in reversed(inserts)}
        self._owner: dict[int, str] = {}  # the session of each event that stays
        self._owned: dict[str, list[Row]] = {}
        self._place: dict[int, int | None] = {}
        self._new_views: dict[str, list[Row]] = {}
        self._moved_calls: set[int] = set()
        self.change = Change(dead=self._touched - living, touched=set(self._touched))

    def _with_forks(self, sessions: set[str]) -> set[str]:
        found = set(sessions)
        while more := {row["id"] for row in self._rows.values() if row["fork_of"] in found} - found:
            found |= more
        return found

    def _with_origins(self, sessions: set[str]) -> set[str]:
        return {origin for session in sessions for origin, _ in self._origins(session)}

    def _origins(self, session: str) -> list[tuple[str, float]]:
        """A session and what it is a fork of, the oldest first, each with the last event that counts."""
        found = [(session, math.inf)]
        while (row := self._rows.get(found[-1][0])) is not None and row["fork_of"] is not None:
            found.append((row["fork_of"], min(found[-1][1], row["fork_at"] or 0)))
        return found[::-1]

    def _view(self, session: str) -> Iterator[Row]:
        """The events of a session before the erase, beginning with shared events."""
        for origin, until in self._origins(session):
            yield from (event for event in self._own.get(origin, ()) if event["id"] <= until)

    # --- what forks keep -------------------------------------------------------------------------------------------

    def _lineage(self, session: str) -> dict[str, str]:
        """The runs that the runs of a session are forks of, and for each the run of the session."""
        found: dict[str, str] = {}
        for run in self._runs_left[session]:
            before = run["fork_of"]
            while before is not None and before not in found:
                found[before] = run["id"]
                before = self._runs[before]["fork_of"] if before in self._runs else None
        return found

    @cached_property
    def _keepers(self) -> dict[tuple[str, str], tuple[str, str, int]]:
        """By session and erased run of it: the fork that gets the steps, its run, and the last event it shares."""
        keepers: dict[tuple[str, str], tuple[str, str, int]] = {}
        for session in sorted(self._living, key=self._depth):  # a fork of a fork shares through it
            lineage = self._lineages[session]
            homes: set[tuple[str, str]] = set()
            shared: dict[str, int] = {}
            for event in self._views[session] if lineage else ():
                if event["session"] != session:
                    shared[event["session"]] = event["id"]
                    home = self._homes.get(event["step"])
                    if home is not None and home[1] in self._erased_runs and home[1] in lineage:
                        homes.add(home)
            for home in homes:
                cut = shared.get(home[0], 0)
                if home not in keepers or cut > keepers[home][2]:
                    keepers[home] = (session, lineage[home[1]], cut)
        return keepers

    def _depth(self, session: str) -> tuple[int, int]:
        """How many forks lead to the runs of a session, and to the session."""
        return len(self._lineages[session]), len(self._origins(session))

    def _keeper(self, step: int) -> tuple[str, str, int] | None:
        """The fork that gets an erased step, if one shares it."""
        keeper = self._keepers.get(self._homes.get(step, ("", "")))
        return keeper if keeper is not None and self._inserted[step] <= keeper[2] else None

    def _keeps(self, session: str, step: int) -> bool:
        """Whether a session that stays keeps an erased step."""
        return self._keeper(step) is not None and self._homes[step][1] in self._lineages[session]

    @cached_property
    def _lineages(self) -> dict[str, dict[str, str]]:
        return {session: self._lineage(session) for session in self._living}

    def _is_gone(self, session: str, step: int) -> bool:
        return step in self._erased_steps and not self._keeps(session, step)

    # --- events ----------------------------------------------------------------------------------------------------

    def apply(self) -> Change:
        """Rewrites the sessions; part of the caller's transaction."""
        self._pass_on_system_prompts()
        for session in sorted(self._touched):
            for event in self._own.get(session, ()):
                self._assign(event)
        for event in (event for events in self._own.values() for event in events):
            if event["id"] in self._owner:
                self._owned.setdefault(self._owner[event["id"]], []).append(event)
        parents = {session: self._parent(session) for session in self._living}
        for session in self._parents_first(parents):
            self._place_events(session, parents[session])
        self._move_calls()
        self._write_events()
        for session in self._living:
            self._write_session(session, parents)
            self._write_steps(session)
        self._write_lineages()
        return self.change

    def _pass_on_system_prompts(self) -> None:
        """Moves the system prompt, which the first run of a session wrote, to the first remaining run."""
        for session in self._living:
            for event in self._own.get(session, ()):
                step = event["step"]
                is_system = event["place"] is None and event["act"] == "insert"
                if is_system and event["run"] in self._erased_runs and self._keeper(step) is None:
                    self._erased_steps.discard(step)
                    self.change.kept[step] = self._runs_left[session][0]["id"]

    def _assign(self, event: Row) -> None:
        """Determines which session owns an event after the erase; none if the event is erased."""
        session, step = event["session"], event["step"]
        if step not in self._erased_steps:
            if session not in self.change.dead:
                self._owner[event["id"]] = session
            return
        keeper = self._keeper(step)
        if keeper is None:
            return
        self.change.kept[step] = keeper[1]
        if session == self._homes[step][0]:
            if event["id"] <= keeper[2]:
                self._owner[event["id"]] = keeper[0]
        elif session not in self.change.dead and self._keeps(session, step):
            self._owner[event["id"]] = session
        else:
            for (of, _), (owner, _, cut) in self._keepers.items():
                if of == session and event["id"] <= cut and self._keeps(owner, step):
                    self._owner[event["id"]] = owner

    def _parent(self, session: str) -> tuple[str, int] | None:
        """The session that a session is a fork of after the erase, and its last shared event."""
        first = min((event["id"] for event in self._owned.get(session, ())), default=1 << 62)
        found: tuple[str, int] | None = None
        for event in self._views[session]:
            number = event["id"]
            if number >= first:
                break
            if self._is_gone(session, event["step"]):
                continue
            owner = self._owner.get(number, event["session"] if event["session"] not in self._touched else None)
            if owner is not None and owner != session:
                found = owner, number
        return found

    def _parents_first(self, parents: dict[str, tuple[str, int] | None]) -> Iterator[str]:
        """The sessions that stay, each after the one that it is a fork of; forks of forks can be thousands deep."""
        found: dict[str, None] = {}
        for session in self._living:
            way: dict[str, None] = {}
            while session in parents and session not in found and session not in way:
                way[session] = None
                session = (parents[session] or ("", 0))[0]
            found |= dict.fromkeys(reversed(way))
        yield from found

    def _new_view(self, session: str, parent: tuple[str, int] | None) -> list[Row]:
        """The events of a session after the erase; the view of its parent is known."""
        shared: Iterable[Row] = ()
        if parent is not None:
            views = self._new_views
            before = views[parent[0]] if parent[0] in views else self._view(parent[0])
            shared = (event for event in before if event["id"] <= parent[1])
        return [*shared, *sorted(self._owned.get(session, ()), key=lambda event: int(event["id"]))]

    def _place_events(self, session: str, parent: tuple[str, int] | None) -> None:
        """Computes the positions in a session's events without the erased steps."""
        self._new_views[session] = self._new_view(session, parent)
        included = {event["id"] for event in self._new_views[session]}
        before, now = Timeline[Row](), Timeline[Row]()
        lost = False
        for event in self._views[session]:
            number = event["id"]
            if number in included:
                if self._owner.get(number) == session:
                    self._place[number] = self._new_place(before.steps, now.steps, event)
                    if lost and event["state"] is not None:
                        self.change.contents.add(event["state"])
                        event["state"] = None
                apply_row(now, event | {"place": self._place.get(number, event["place"])})
            elif self._is_gone(session, event["step"]):
                lost = True
            apply_row(before, event)
        if lost:
            self.change.lossy.add(session)

    def _new_place(self, before: list[int], now: list[int], event: Row) -> int | None:
        place: int | None = event["place"]
        if place is None or event["act"] == "revise":
            return place
        if event["act"] == "remove":
            return now.index(event["step"])
        here = set(now)
        following = next((step for step in before[place:] if step in here), None)
        return len(now) if following is None else now.index(following)

    def _write_events(self) -> None:
        store = self._journal.store
        for events in self._own.values():
            for event in events:
                if event["session"] not in self._touched:
                    continue
                owner = self._owner.get(event["id"])
                if owner is None:
                    self.change.events.append(event)
                    continue
                run = self.change.kept.get(event["step"], event["run"])
                row = event | {"session": owner, "run": run, "place": self._place.get(event["id"], event["place"])}
                if seal("event", row) != event["hash"]:
                    store.do("put_event", with_hash("event", row))
                event |= {"session": owner, "run": run, "place": row["place"]}

    # --- calls -----------------------------------------------------------------------------------------------------

    def _move_calls(self) -> None:
        """Calls of the steps that a fork keeps become calls of the fork; the fork's own come after them."""
        calls = {run: list(self._calls(run)) for run in self._erased_runs}
        gained: dict[str, int] = {}
        for (_, run), (session, heir, _) in sorted(self._keepers.items(), key=lambda item: item[1][2]):
            turns = sum(1 for event in self._views[session] if event["run"] == run and adds_step(event))
            moved = [call for call in calls[run] if call["turn"] < turns]
            calls[run] = [call for call in calls[run] if call["turn"] >= turns]
            for call in moved:
                self._put_call(call | {"run": heir, "turn": call["turn"] + gained.get(heir, 0)})
            gained[heir] = gained.get(heir, 0) + turns
            ours = {call["id"] for call in moved}
            for call in list(self._calls(heir)):
                if call["id"] not in ours and call["id"] not in self._moved_calls:
                    self._put_call(call | {"turn": call["turn"] + turns})
            self._moved_calls |= ours
        self.change.calls = [call for rest in calls.values() for call in rest]
        for run, lost in self._lost_turns().items():
            self._drop_turns(run, lost)

    def _lost_turns(self) -> dict[str, set[int]]:
        """The turns of the single steps that are erased, by the run, which stays."""
        lost: dict[str, set[int]] = {}
        for session in self._living:
            count: dict[str, int] = {}
            for event in filter(adds_step, self._own.get(session, ())):
                run, turn = event["run"], count.get(event["run"], 0)
                count[run] = turn + 1
                if run not in self._erased_runs and event["step"] in self._erased_steps:
                    lost.setdefault(run, set()).add(turn)
        return lost

    def _drop_turns(self, run: str, turns: set[int]) -> None:
        """Drops the calls of erased steps, and the erased message that the next model call is matched by."""
        for call in list(self._calls(run)):
            if call["turn"] in turns:
                self.change.calls.append(call)
                continue
            row = call | {"turn": call["turn"] - sum(turn < call["turn"] for turn in turns)}
            if call["kind"] == "model" and call["turn"] - 1 in turns:
                self.change.contents.add(call["arguments"])
                row["arguments"] = self._journal.keep(codec.encode([0, f"[erased {call['id']}]"]))
            self._put_call(row)

    def _calls(self, run: str) -> Iterator[Row]:
        yield from self._journal.store.rows("calls_by_runs", {"ids": json_list([run])})

    def _put_call(self, row: Row) -> None:
        self._journal.store.do("put_call", with_hash("call", row))

    # --- rows ------------------------------------------------------------------------------------------------------

    def _write_session(self, session: str, parents: dict[str, tuple[str, int] | None]) -> None:
        of, at = parents[session] or (None, None)
        row = self._rows[session] | {"fork_of": of, "fork_at": at}
        if (of, at) != (self._rows[session]["fork_of"], self._rows[session]["fork_at"]):
            self._journal.store.do("put_session", with_hash("session", row))

    def _write_steps(self, session: str) -> None:
        """Updates the steps of a session to match its events."""
        timeline: Timeline[Row] = Timeline()
        inserted: set[int] = set()
        for event in self._new_views[session]:
            apply_row(timeline, event)
            if event["session"] == session and event["act"] == "insert" and event["record"] is not None:
                inserted.add(event["step"])
        positions = {step: position for position, step in enumerate(timeline.steps)}
        store = self._journal.store
        for before in store.rows("steps_by_ids", {"ids": json_list(sorted(inserted))}):
            step = before["id"]
            latest = timeline.latest[step]
            row = before | {
                "session": session,
                "run": self.change.kept.get(step, before["run"]),
                "place": positions.get(step),
                "revision": timeline.revisions[step],
                "record": latest["record"],
                "prompt": latest["prompt"],
            }
            if row["record"] != before["record"]:
                row |= step_facts.facts(self._journal.value(row["record"]))
            if row != before:
                store.do("put_step", with_hash("step", row))

    def _write_lineages(self) -> None:
        """A fork of an erased run becomes a fork of the run that keeps the steps, or of the run before."""
        for run in self._runs.values():
            if run["id"] in self._erased_runs or run["fork_of"] not in self._erased_runs:
                continue
            before: str | None = run["fork_of"]
            while before in self._erased_runs:
                row = self._runs[before or ""]
                keeper = self._keepers.get((row["session"], row["id"]))
                before = row["fork_of"] if keeper is None or keeper[1] == run["id"] else keeper[1]
            changed = run | {"fork_of": before}
            self._journal.store.do("put_run_lineage", with_hash("run", changed))
