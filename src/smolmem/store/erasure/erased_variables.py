"""Finds the snapshots of later runs that hold variables which erased steps have set.

An agent keeps its variables from one run to the next, and each snapshot holds all of them. So a variable that an erased
step has set is also in the snapshots of the runs that the same agent of the same process made later. Such a run begins
with the variable as it was; a run of another agent of the same name does not. A snapshot of such a run is erased as a
whole, even if the variable was set again: its new value may have been computed from the old one. A fork begins with the
variables of the steps that it shares, and keeps its snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from smolmem.core.errors import Damaged
from smolmem.store.base import Row
from smolmem.store.contents import Contents


def snapshots_with_variables_of(contents: Contents, steps: Iterable[Row]) -> set[int]:
    """The events that are not of these steps, and whose snapshots hold variables that these steps have set."""
    by_run: dict[str, list[Row]] = {}
    for step in steps:
        by_run.setdefault(step["run"], []).append(step)
    found: set[int] = set()
    for run, erased in by_run.items():
        ids, began = {step["id"] for step in erased}, min(step["at"] - (step["seconds"] or 0.0) for step in erased)
        events = contents.store.rows("later_snapshots", {"run": run, "at": began})
        before = contents.store.rows("snapshot_before", {"run": run, "at": began})
        found |= _holding(contents, before, events, ids)
    return found


def _holding(contents: Contents, before: list[Row], events: list[Row], erased: set[int]) -> set[int]:
    known = _variables(contents, before[0]) if before else {}
    touched: dict[str, Any] = {}  # the variables that erased steps have set, with their latest values
    inherits: dict[str, bool] = {}  # whether a run began with some of them
    found: set[int] = set()
    for event in events:
        variables = _variables(contents, event)
        if event["step"] in erased:
            touched |= {name: stored for name, stored in variables.items() if known.get(name) != stored}
            inherits[event["run"]] = True
            continue
        held = {name: variables[name] for name in touched.keys() & variables.keys()}
        if inherits.setdefault(event["run"], any(touched[name] == stored for name, stored in held.items())) and held:
            found.add(event["id"])
            touched |= held
    return found


def _variables(contents: Contents, event: Row) -> dict[str, Any]:
    try:
        return contents.stored_variables(event["state"])
    except Damaged:
        return {}
