"""Snapshots of an agent's variables after each step: its `state`, and the variables of its code.

A snapshot serves runs whose code does not give the same values when it is run again. Functions, classes and modules are
not part of it: the recorded code makes them again.

A step touches few of the variables, so only these are encoded: those that its code may have changed (`touched`), and
the shared objects that they refer to. An object is shared once it is found in two values: then it gets a number and is
stored by itself. Changes by other code (a callback, a thread) are found because one more value is encoded at each step,
in turn. Large lists and dicts are stored in chunks (`core.chunks`), so the store grows only by new items.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from smolagents.memory import ActionStep, TaskStep

from smolmem.agents import compat
from smolmem.agents.stored_values import Encode, StoredValue, ValueEncoder, object_of
from smolmem.agents.touched import CODE, Touched
from smolmem.core.encoding import chunks, wire
from smolmem.core.encoding.chunks import ATOMS, Chunks
from smolmem.core.encoding.codec import Encoded
from smolmem.core.encoding.wire import Json
from smolmem.core.rows import Change

LARGE = 5_000_000
"""Values of more bytes, or of more items than a hundredth of this, are left out and named."""

_IN_TURN = 0.0002
"""Seconds that may be spent on a value that no code named."""
_LOOKED_AT = 32
"""Values that are looked at to find such a value."""
_NOTHING = b"null"


class Name(NamedTuple):
    """A variable of the code, or an entry of the agent's state."""

    group: str
    name: str


Key = Name | int
"""A variable, or the number of a shared object."""


class Variables:
    """The variables of one agent, as they were stored last."""

    def __init__(self, agent: Any, encode: Encode) -> None:
        self.touched = Touched()
        self._agent = agent
        self._values = ValueEncoder(encode)
        self._stored: dict[Name, StoredValue] = {}
        self._objects: dict[int, StoredValue] = {}
        self._owners: dict[int, Key] = {}  # by id() of an object: the value that it is stored with
        self._opaque: set[int] = set()  # shared objects that hold an object which a record can only describe
        self._free: list[int] = []  # numbers of shared objects that are gone
        self._chunks = Chunks()
        self._table: Json | None = None  # the shared objects as they are stored, unless one has changed since
        self._made: dict[str, bytes] = {}  # the contents that were made for the next snapshot
        self._unsaved: dict[str, bytes] = {}  # the contents that are not in the store yet: those of all snapshots
        self._turn = 0

    def after(self, step: Any) -> Encoded | None:
        """The variables after a step, encoded; None if the agent has none, or the step cannot have changed any."""
        return self.snapshot(getattr(step, "code_action", None)) if isinstance(step, (TaskStep, ActionStep)) else None

    def snapshot(self, code: str | None) -> Encoded | None:
        """Encodes the variables after code ran; None if the agent has none. Without code, all are encoded."""
        agent, local = self._agent, compat.interpreter_of(self._agent)
        names = {} if local is None else visible(local.variables)
        if not names and not agent.state:
            self._update({}, None)
            return None
        large = sorted(name for name, value in names.items() if _is_large(value))
        values = {Name("variables", name): value for name, value in names.items() if name not in large}
        same = sorted(name for name, value in agent.state.items() if name in names and names[name] is value)
        values |= {Name("state", name): value for name, value in agent.state.items() if name not in same}
        touched = None
        if local is not None:
            touched = self.touched.by(code, local, names.keys() - set(large), self._described())
        self._update(values, touched)
        return self._record(large, [name for name in same if name not in large])

    def to_save(self, changes: list[Change]) -> list[Change]:
        """The changes; only the first snapshot carries the contents that are not in the store yet."""
        first = next((change for change in changes if change.variables is not None), None)
        return [
            change
            if change.variables is None or change is first
            else change._replace(variables=change.variables._replace(blobs={}))
            for change in changes
        ]

    def saved(self) -> None:
        """The contents of all snapshots are in the store."""
        self._unsaved.clear()

    def _described(self) -> set[str]:
        """The variables that hold an object which a record can only describe."""
        return {
            name.name
            for name, stored in self._stored.items()
            if stored.is_described or (self._opaque and not self._opaque.isdisjoint(self._reached([name])))
        }

    # --- what is encoded again -------------------------------------------------------------------------------------

    def _is_touched(self, name: Name, value: Any, touched: set[str] | None) -> bool:
        stored = self._stored.get(name)
        if stored is None or stored.value is not value:
            return True
        return type(value) not in ATOMS and (touched is None or name.name in touched)

    def _update(self, values: dict[Name, Any], touched: set[str] | None) -> None:
        changed: set[Key] = {name for name, value in values.items() if self._is_touched(name, value, touched)}
        gone = self._stored.keys() - values.keys()
        changed |= self._reached([*(name for name in changed if name in self._stored), *gone])
        if any(self._is_foreign(key) for key in (*changed, *gone)):  # it can share its memory with others
            keys: tuple[Key, ...] = (*self._stored, *self._objects)
            changed |= {key for key in keys if key not in gone and self._is_foreign(key)}
        changed |= self._in_turn({*changed, *gone})
        drops = any(self._stored[name].shared for name in gone)
        for name in gone:
            self._disown(name, self._stored.pop(name).ids)
        drops |= self._encode(changed, values)
        self._stored = {name: self._stored[name] for name in values}
        if drops:
            self._drop_unreached()

    def _before(self, key: Key) -> StoredValue | None:
        return self._objects.get(key) if isinstance(key, int) else self._stored.get(key)

    def _is_foreign(self, key: Key) -> bool:
        before = self._before(key)
        return before is not None and before.is_foreign

    def _reached(self, names: Iterable[Name]) -> set[int]:
        """The shared objects that variables refer to, directly or through others."""
        found: set[int] = set()
        coming = [self._stored[name] for name in names]
        while coming:
            new = [number for number in coming.pop().shared if number not in found]
            found.update(new)
            coming += [self._objects[number] for number in new]
        return found

    def _in_turn(self, others: set[Key]) -> set[Key]:
        """One more value, to find changes that nothing else notices."""
        keys: list[Key] = [*self._stored, *self._objects]
        for _ in keys[:_LOOKED_AT]:
            self._turn = (self._turn + 1) % len(keys)
            key = keys[self._turn]
            before = self._before(key)
            if before and key not in others and before.seconds < _IN_TURN and type(before.value) not in ATOMS:
                return {key}
        return set()

    # --- encoding --------------------------------------------------------------------------------------------------

    def _encode(self, changed: set[Key], values: dict[Name, Any]) -> bool:
        """Encodes values until no object is part of two; whether one refers to fewer shared objects than before."""
        drops = False
        while changed:
            found: dict[Key, Collection[int]] = {}
            for key in changed:
                before, stored = self._before(key), self._encoded(key, values)
                if stored is before:  # its objects are known to be its own
                    continue
                found[key] = stored.ids
                if before is not None:
                    self._disown(key, set(before.ids).difference(stored.ids))
                    drops |= not set(before.shared).issubset(stored.shared)
            changed = set()
            for key, ids in found.items():
                taken = {number for number in ids if self._owners.setdefault(number, key) != key}
                if taken:
                    changed |= self._share(key, taken)
        return drops

    def _encoded(self, key: Key, values: dict[Name, Any]) -> StoredValue:
        before = self._before(key)
        began = time.perf_counter()
        if isinstance(key, int):
            stored = self._objects[key] = self._values.shared_object(self._objects[key])
            self._table = self._table if stored is before else None
            (self._opaque.add if stored.is_described else self._opaque.discard)(key)
        else:
            stored = self._stored[key] = self._values.value(key.name, values[key], before)
        if stored is not before:
            stored_before = () if before is None else before.new
            self._made.update(item for item in stored.new.items() if item[0] not in stored_before)
        stored.seconds = time.perf_counter() - began
        return stored

    def _disown(self, key: Key, ids: Iterable[int]) -> None:
        for number in ids:
            if self._owners.get(number) == key:
                del self._owners[number]

    def _share(self, key: Key, taken: set[int]) -> set[Key]:
        """Stores objects that belong to two values by themselves; returns the values that are to be encoded again.

        Some of the ids were those of objects that existed for a moment only: their owner cannot show the same object.
        """
        owners = {number: self._owners[number] for number in taken}
        others = {id(value): value for owner in set(owners.values()) for value in self._objects_in(owner, taken)}
        shared, again = self._values.shared, set[Key]()
        for place in taken & shared.keys():
            again |= {key, owners[place]}
            taken.difference_update(map(id, self._values.objects(self._objects[shared[place]].value)))
        for value in self._objects_in(key, taken):
            place = id(value)
            if place in taken and others.get(place) is value:
                number = shared[place] = self._free.pop() if self._free else len(self._objects)
                self._objects[number] = StoredValue(value, _NOTHING)
                again |= {number, key, owners[place]}
                taken.difference_update(map(id, self._values.objects(value)))
        self._owners.update(dict.fromkeys(taken, key))
        return again

    def _objects_in(self, key: Key, ids: set[int]) -> list[Any]:
        stored = self._objects[key] if isinstance(key, int) else self._stored[key]
        return [value for part in stored.parts_with(ids) for value in self._values.objects(part)]

    def _drop_unreached(self) -> None:
        """Forgets shared objects that no variable reaches any more; an object that one variable reaches stays."""
        for number in self._objects.keys() - self._reached(self._stored):
            dropped = self._objects.pop(number)
            del self._values.shared[id(dropped.value)]
            self._disown(number, dropped.ids)
            self._opaque.discard(number)
            self._free.append(number)
            self._table = None

    # --- the record ------------------------------------------------------------------------------------------------

    def _record(self, large: list[str], same: list[str]) -> Encoded:
        groups: dict[str, list[tuple[str, bytes]]] = {"state": [], "variables": []}
        for name, stored in self._stored.items():
            groups[name.group].append((name.name, stored.body))
        if self._table is None:
            size = len(self._objects) + len(self._free)
            bodies = [self._objects[number].body if number in self._objects else _NOTHING for number in range(size)]
            self._table = self._chunks.update(bodies)
            self._made.update(self._chunks.new)
        fields = [
            ("$", b'"snapshot"'),
            ("large", wire.dumps(large)),
            ("same", wire.dumps(same)),
            ("shared", wire.dumps(self._table)),
            ("state", object_of(groups["state"])),
            ("variables", object_of(groups["variables"])),
        ]
        record = object_of(fields)
        self._keep_named(record)
        return Encoded(record, wire.fingerprint(record), self._unsaved)

    def _keep_named(self, record: bytes) -> None:
        """Stores only contents that the snapshot names: an erase finds no others.

        An object that becomes shared is encoded twice.
        """
        if self._made:
            named = chunks.named_below([record], lambda key: self._made.get(key, b""))
            self._unsaved.update(item for item in self._made.items() if item[0] in named)
            self._made = {}


def visible(state: dict[str, Any]) -> dict[str, Any]:
    """The variables of an agent's code, without functions, classes and modules."""
    return {
        name: value for name, value in state.items() if not name.startswith("_") and not issubclass(type(value), CODE)
    }


def _is_large(value: Any) -> bool:
    try:
        size = getattr(value, "nbytes", None)
        if size is None and hasattr(value, "memory_usage"):
            size = 8 * getattr(value, "size", 0)
        if isinstance(size, int):
            return size > LARGE
        if isinstance(value, (str, bytes)):
            return len(value) > LARGE
        return isinstance(value, (list, dict, set, tuple)) and len(value) > LARGE // 100
    except Exception:  # an object of any class: the codec decides
        return False
