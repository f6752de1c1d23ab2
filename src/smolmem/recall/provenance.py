"""Tracks trust: text that was made from a source is trusted no further than the source.

A passage has an origin (who said it) and a trust (how far that, and all that it was made from, is trusted). Text of low
trust is what was read on the web or imported. It reaches a session through a tool that reads the web, a recalled
memory, the report of a managed agent, the task that another agent gives, or a variable of an earlier run. From there
on the session is exposed: everything that its agents think, write, answer and note may have been made from that text,
and has low trust. Earlier steps keep their trust, and what users say keeps it always.

One exception keeps other tools useful: see `unrelated.py`.

The table `exposure` says since when a session is exposed. The row stays when the source is forgotten or erased, because
what was made from the source is still there.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from smolmem.core.errors import Damaged
from smolmem.core.rows import Passage, trust_in
from smolmem.recall.passages import may_read_web, reads_web, web_tools
from smolmem.recall.unrelated import Corpus, is_unrelated, unknown_names, uses_other_values
from smolmem.store.base import Row
from smolmem.store.contents import Contents, seal, with_hash
from smolmem.store.passage_rows import json_list
from smolmem.store.side_tables import quoted_lines
from smolmem.store.writer import IMPORTED

T = TypeVar("T")

NOT_INDEXED = ("system_prompt", "injected")
"""Kinds of steps that are not indexed: they stand in every run."""
ARRIVING = ("observation", "error", "answer")
"""Parts of a step that come after its tools were called."""
LATEST = 1e12
"""A time after everything that is recorded."""
MOST = 200
"""Passages that the result of a tool is compared with; after more than that, no result is taken for unrelated."""


@dataclass
class _LowText:
    """Text of low trust in a session, from the passages of its steps before `until`."""

    until: int
    count: int = 0
    came: Corpus = field(default_factory=Corpus)
    said: Corpus = field(default_factory=Corpus)


class Provenance:
    """Follows text of low trust through the sessions of a store; part of the caller's transaction."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._store = contents.store
        self._sources: dict[int | str, bool] = {}
        self._low: dict[str, _LowText] = {}
        self._asked: dict[tuple[str, ...], Any] = {}  # answers that hold until a session becomes exposed
        self._exposures = 0

    # --- since when a session is exposed ---------------------------------------------------------------------------

    def catch_up(self, runs: Collection[str], last: int = 1 << 62, seconds: float = math.inf) -> bool:
        """Follows steps of these runs, and of their family, that are not indexed yet; false if CPU time runs out."""
        end = time.thread_time() + seconds
        for row in self._store.rows("pending_before", {"runs": json_list(runs), "last": last}):
            if time.thread_time() > end:
                return False
            self.follow(row)
        return True

    def catch_up_all(self) -> None:
        """Follows all steps that are not indexed yet: before something is erased that others were made from."""
        last = 0
        while rows := self._store.rows("pending_after", {"id": last}):
            last = rows[-1]["id"]
            for row in rows:
                self.follow(row)

    def follow(self, step: Row) -> None:
        """Notes that a session is exposed since this step, if it is the first step that has text of low trust."""
        if step["kind"] in NOT_INDEXED or self._exposed_at(step) is not None:
            return
        arrival = self._arrival(step)
        if arrival is not None:
            first, at = arrival
            row = {"session": step["session"], "step": first, "at": at}
            self._store.do("put_exposure", with_hash("exposure", row))
            self._exposures += 1
            self._asked.clear()
            self._sources = {source: is_low for source, is_low in self._sources.items() if is_low}
            self._store.do("index_exposed_steps", row)
            self._store.do("index_exposed_notes", row)

    def queries_of(self, step: Row) -> list[tuple[str, Row]]:
        """What `follow` reads of most steps, so that a server can be asked for many steps at once."""
        if step["kind"] in NOT_INDEXED:
            return []
        run = {"run": step["run"], "until": LATEST}
        own = [("exposed_before", _own(step, LATEST))] if step["kind"] == "action" else []
        of_run = [(name, run) for name in ("recalled_in", "tool_calls", "exposed_children")]
        return [("exposure_of", {"session": step["session"]}), *of_run, *own]

    def _once(self, key: tuple[str, ...], ask: Callable[[], T]) -> T:
        """An answer that is the same for many steps; asking for each step made a search wait for seconds."""
        if key in self._asked:
            answer: T = self._asked[key]
            return answer
        exposures = self._exposures
        answer = ask()
        if exposures == self._exposures:
            self._asked[key] = answer
        return answer

    def _exposure(self, session: str) -> Row | None:
        return self._once(("exposure", session), lambda: self._read_exposure(session))

    def _read_exposure(self, session: str) -> Row | None:
        for row in self._store.rows("exposure_of", {"session": session}):
            is_sound = row["hash"] == seal("exposure", row)
            return row if is_sound else row | {"step": 0, "at": 0.0}  # of a damaged row, nothing is believed
        return None

    def _exposed_at(self, step: Row) -> Row | None:
        """The exposure of a step's session, if it began with this step or before it."""
        exposure = self._exposure(step["session"])
        return exposure if exposure is not None and exposure["step"] <= step["id"] else None

    def _arrival(self, step: Row) -> tuple[int, float] | None:
        """The step and time at which text of low trust came to a session, if it came with this step."""
        if step["writer"] == IMPORTED:
            return step["id"], 0.0
        run, until = step["run"], step["at"]
        told = self._once(("told", run), lambda: self._told_by_parent(step))
        if told is not None:
            return step["id"], told
        reached = self._code(step)
        if not self._once(("unreached", run), lambda: self._is_unreached(run)):
            for recalled in self._low_recalls(run, until):
                return recalled["step"] or step["id"], recalled["at"]
            reached = self._first(reached, self._web_call(run, until), self._report(run, until))
        return None if reached is None else (step["id"], reached)

    def _is_unreached(self, run: str) -> bool:
        """Whether nothing has reached a run so far by a recalled memory, a tool that reads the web, or another agent.

        Whether a recalled memory is of low trust is not asked here: its source may be followed later.
        """
        ways = (self._web_call(run, LATEST), self._report(run, LATEST))
        return self._first(*ways) is None and not self._store.rows("recalled_in", {"run": run, "until": LATEST})

    def _told_by_parent(self, step: Row) -> float | None:
        """When the agent that called this one had read text of low trust, before it gave the task."""
        if step["parent"] is None:
            return None
        began = step["began"]
        for parent in self._store.rows("run_row", {"id": step["parent"]}):
            exposure = self._exposure(parent["session"])
            if exposure is not None and exposure["at"] <= began:
                return float(exposure["at"])
        recalls = (row["at"] for row in self._low_recalls(step["parent"], began))
        return self._first(self._web_call(step["parent"], began), next(recalls, None))

    @staticmethod
    def _first(*times: float | None) -> float | None:
        return min((at for at in times if at is not None), default=None)

    def _web_call(self, run: str, until: float) -> float | None:
        """When a run first called a tool that reads the web."""
        calls = self._store.rows("tool_calls", {"run": run, "until": until})
        return next((call["began"] for call in calls if web_tools([call])[call["name"]]), None)

    def _report(self, run: str, until: float) -> float | None:
        """When an agent that a run called had read text of low trust."""
        rows = self._store.rows("exposed_children", {"run": run, "until": until})
        return rows[0]["at"] if rows else None

    def _code(self, step: Row) -> float | None:
        """When a step's code read the web, or used variables that an exposed run of the same agent left."""
        left = step["kind"] == "action" and self._has_exposed_variables(step)
        if not left and not may_read_web(f"{step['text']} {step['tools']}"):
            return None
        began = step["at"] - (step["seconds"] or 0.0)
        live = self._live(step)
        called = web_tools(self._store.rows("tool_calls", {"run": step["run"], "until": step["at"]}))
        return began if reads_web(live, called) or (left and self.uses_earlier_variables(step)) else None

    def _has_exposed_variables(self, step: Row) -> bool:
        """Whether an exposed run of the same agent can have left variables to a step."""
        ask = partial(self._store.do, "exposed_before")
        some = self._once(("left", step["session"], step["run"]), lambda: ask(_own(step, LATEST)))
        return bool(some and ask(_own(step, step["at"])))

    def uses_earlier_variables(self, step: Row) -> bool:
        """Whether code uses a variable that no step of its session made: a run keeps the variables of the last one."""
        own = getattr(self._live(step), "code_action", None) or ""
        code = [getattr(self._live(row), "code_action", None) for row in self._earlier_steps(step)]
        tools = {call["name"] for call in self._store.rows("tool_calls", {"run": step["run"], "until": step["at"]})}
        return bool(unknown_names(own, [said for said in code if said], tools))

    def _earlier_steps(self, step: Row) -> list[Row]:
        return self._store.rows("code_steps_before", {"session": step["session"], "step": step["id"]})

    def _live(self, step: Row) -> Any:
        try:
            return self._contents.step_of(step)
        except Damaged:  # the indexer reports it
            return None

    # --- sources ---------------------------------------------------------------------------------------------------

    def _low_recalls(self, run: str, until: float) -> list[Row]:
        """The recalled texts of low trust in a run, until a time."""
        rows = self._store.rows("recalled_in", {"run": run, "until": until})
        return [row for row in rows if any(self._is_low(source, row) for source in json.loads(row["found"]))]

    def low_among(self, sources: Iterable[int | str]) -> list[int | str]:
        """Those of some steps and notes that have low trust."""
        return [source for source in sources if self._is_low(source, {})]

    def _is_low(self, source: int | str, recalled: Row) -> bool:
        """Whether a step or note is of low trust; `*` is everything in the scope of a run."""
        if source == "*":
            scope = self._store.rows("run_row", {"id": recalled["run"]})[0]["scope"]
            return bool(self._store.do("exposure_in_scope", {"scope": scope, "at": recalled["at"]}))
        if source not in self._sources:
            self._sources[source] = False  # of sources that name each other
            self._sources[source] = self._is_low_step(source) if isinstance(source, int) else self._is_low_note(source)
        return self._sources[source]

    def _is_low_step(self, number: int) -> bool:
        for step in self._store.rows("step", {"id": number}):
            run = self._store.rows("run_row", {"id": step["run"]})[0]
            row = step | {"parent": run["parent"], "writer": run["writer"], "began": run["began"]}
            self.follow(row)
            by_user = step["kind"] == "task" and run["parent"] is None and run["writer"] != IMPORTED
            return self._exposed_at(step) is not None and not by_user
        return False

    def _is_low_note(self, note: str) -> bool:
        rows = self._store.rows("notes_by_ids", {"ids": json_list([note])})
        return any(self.made_from_low_trust(row) for row in rows)

    def made_from_low_trust(self, note: Row) -> bool:
        """Whether a note is of low trust: by its origin, what it was made from, or what its run had read before.

        Notes of users keep their trust, whatever their sources.
        """
        if note["origin"] == "user":
            return False
        if trust_in(note["origin"]) == "low":
            return True
        past = [] if note["supersedes"] is None else [note["supersedes"]]
        return bool(self.low_among([*json.loads(note["sources"]), *past])) or self._written_after(note)

    def _written_after(self, note: Row) -> bool:
        """Whether the run of a note had read text of low trust when the note was written."""
        for run in self._store.rows("run_row", {"id": note["run"]}):
            exposure = self._exposure(run["session"])
            if exposure is not None and exposure["at"] <= note["at"]:
                return True
            as_step = {"parent": run["parent"], "began": run["began"]}
            times = (self._web_call(run["id"], note["at"]), self._told_by_parent(as_step))
            return any(at is not None for at in times) or bool(self._low_recalls(run["id"], note["at"]))
        return False

    # --- passages --------------------------------------------------------------------------------------------------

    def judged(self, step: Row, passages: list[Passage]) -> list[Passage]:
        """The passages of a step, marked where they may have been made from text of low trust."""
        exposure = self._exposed_at(step) if passages else None
        if exposure is None:
            return passages
        if exposure["step"] == step["id"]:
            told = exposure["at"] <= step["at"]
            exposed = [passage.role in ARRIVING or (passage.role == "task" and told) for passage in passages]
        else:
            free = ("observation", "error") if self._is_unrelated(step, exposure, passages) else ()
            exposed = [passage.role not in free for passage in passages]
        return [passage._replace(exposed=low) for passage, low in zip(passages, exposed, strict=True)]

    def _is_unrelated(self, step: Row, exposure: Row, passages: list[Passage]) -> bool:
        """Whether the result of a step's tools is unrelated to the text that was read; false in doubt."""
        if not any(passage.role in ("observation", "error") for passage in passages):
            return False
        tools = {row["name"] for row in self._store.rows("tools_called_in_step", step)}
        if uses_other_values(passages, tools):
            return False
        if self._store.do("children_of_step", {"run": step["run"], "number": step["number"]}):
            return False
        low = self._low_text(step, exposure)
        if low is None:
            return False
        recalled = [row["block"] for row in self._low_recalls(step["run"], step["at"]) if row["block"] is not None]
        quoted = Corpus(line for block in recalled for line in quoted_lines(self._contents.part(block)))
        return is_unrelated(passages, [low.came, quoted], low.said)

    def _low_text(self, step: Row, exposure: Row) -> _LowText | None:
        """The text of low trust in a session before a step; None if there is too much, or not all of it is known.

        The text is read once for all steps of a batch: each step adds the text of the step before.
        """
        known = self._low.get(step["session"])
        if known is None or known.until > step["id"]:
            known = self._low[step["session"]] = _LowText(until=exposure["step"])
        if known.count >= MOST:
            return None
        span = {"session": step["session"], "first": known.until, "step": step["id"]}
        low = [row["id"] for row in self._store.rows("low_passages", span | {"limit": MOST - known.count})]
        if known.count + len(low) >= MOST:
            known.count = MOST
            return None
        if self._store.do("any_unindexed", span):
            return None
        rows = self._store.rows("passages", {"ids": json_list(low)})
        known.came.add(row["text"] for row in rows if row["role"] in (*ARRIVING, "task"))
        known.said.add(row["text"] for row in rows if row["role"] in ("code", "call"))
        known.count, known.until = known.count + len(rows), step["id"]
        return known


def _own(step: Row, until: float) -> Row:
    """What tells which runs left their variables to the run of a step, until a time."""
    return {name: step[name] for name in ("scope", "agent", "writer", "session")} | {"at": until}
