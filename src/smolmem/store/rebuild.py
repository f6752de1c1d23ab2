"""Steps made anew from the events of an export, as they were made when those were recorded."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Any

from smolmem.record import codec, wire
from smolmem.store.base import Row
from smolmem.store.records import Records, seal
from smolmem.store.shapes import Wrong

_HEAVY = {"image": ("info",), "AgentImage": ("path", "pixels"), "array": ("items",)}


class Numbers:
    """Numbers in the file → numbers here; 0 for what is left out. They ascend, so two arrays are enough."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._there, self._here = array("q"), array("q")

    def put(self, there: int, here: int) -> None:
        """The next number of the file is this one here."""
        if there < 1 or (self._there and there <= self._there[-1]):
            raise Wrong(f"{self._what} {there} comes twice, or out of order")
        self._there.append(there)
        self._here.append(here)

    def find(self, there: int) -> int | None:
        """A number here; None if it did not come yet."""
        place = bisect_left(self._there, there)
        return self._here[place] if place < len(self._there) and self._there[place] == there else None

    def get(self, there: int) -> int:
        """A number here, of what a line refers to."""
        found = self.find(there)
        if found is None:
            raise Wrong(f"it refers to {self._what} {there}, which did not come before")
        return found


class Rebuild:
    """Does to lists and steps what events say; `steps` is a session's list, by numbers of here."""

    def __init__(self, records: Records) -> None:
        self._records, self._store = records, records.store

    def change(self, event: Row, steps: array[int]) -> None:
        """Something happens to a step that is there already."""
        {"insert": self._put_back, "remove": self._remove, "revise": self._revise}[event["act"]](event, steps)

    def insert(self, event: Row, steps: array[int]) -> int:
        """A new step; returns its number."""
        if event["record"] is None:
            raise Wrong("a step without a record")
        place = event["place"]
        if place is not None:
            self._make_room(event, steps)
        names = ("session", "run", "at", "place", "record", "prompt")
        row = {**self._facts(event["record"]), **{name: event[name] for name in names}, "revision": 0}
        number = int(self._store.do("add_step", row | {"hash": seal("step", row)}))
        if place is not None:
            steps.insert(place, number)
        return number

    def _make_room(self, event: Row, steps: array[int]) -> None:
        place = event["place"]
        if not 0 <= place <= len(steps):
            raise Wrong(f"a step at place {place} of a list of {len(steps)}")
        if place < len(steps):
            self._store.do("shift_steps", {"session": event["session"], "place": place, "by": 1})

    def _put_back(self, event: Row, steps: array[int]) -> None:
        if event["record"] is not None or event["place"] is None or event["step"] in steps or not event["step"]:
            raise Wrong("a step that is there already is put on the list")
        self._make_room(event, steps)
        steps.insert(event["place"], event["step"])
        self._store.do("place_step", {"id": event["step"], "session": event["session"], "place": event["place"]})

    def _remove(self, event: Row, steps: array[int]) -> None:
        place = event["place"]
        if event["record"] is not None or place is None or not 0 <= place < len(steps) or steps[place] != event["step"]:
            raise Wrong("a step is taken off the list that does not stand there")
        del steps[place]
        self._store.do("place_step", {"id": event["step"], "session": event["session"], "place": None})
        self._store.do("shift_steps", {"session": event["session"], "place": place, "by": -1})

    def _revise(self, event: Row, steps: array[int]) -> None:
        if event["record"] is None or not event["step"]:
            raise Wrong("a revision without a record")
        before = self._store.rows("step_row", {"id": event["step"]})[0]
        facts = self._facts(event["record"])
        if before["session"] == event["session"]:
            row = before | {**facts, "record": event["record"], "prompt": event["prompt"]}
            row["revision"] += 1
            self._store.do("revise_step", row | {"hash": seal("step", row)})
        elif event["step"] not in steps:
            raise Wrong("a revision of a step of another list")

    def _facts(self, record: int) -> Row:
        """What of a step is kept in columns, read without unpacking a picture."""
        try:
            light = wire.dumps(_light(wire.loads(self._records.content(record))))
            return {**codec.facts(codec.decode(light, self._records.blob))}
        except Exception as error:  # the record can be anything
            raise Wrong(f"a record that is not a step's ({error})") from error


def _light(value: Any) -> Any:
    """A record whose pictures and arrays are stood in for; it has as many containers as before, which are counted."""
    if isinstance(value, list):
        return [_light(item) for item in value]
    if not isinstance(value, dict):
        return value
    inner = _HEAVY.get(str(value.get("$")))
    if inner is None:
        return {name: _light(item) for name, item in value.items()}
    kept = [(name, value[name]) for name in inner if name in value]
    if value["$"] == "array":
        items = kept[0][1] if kept else []
        return {"$": "dict", "v": [[number, _light(item)] for number, item in enumerate(items)]}
    return {"$": "dict", "v": [[name, _light(item)] for name, item in kept]}
