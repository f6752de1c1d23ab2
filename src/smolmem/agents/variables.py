"""Snapshots of an agent's variables after each step: its `state`, and the variables of its code.

A snapshot serves runs whose code does not give the same values when it is run again. Functions, classes and modules are
not part of it: the recorded code makes them again.

A step touches few of the variables, so only these are encoded: those that its code may have changed (`touched`), and
those that share an object with them. Changes by other code (a callback, a thread) are found because one more variable
is encoded at each step, in turn. Large lists and dicts are stored in chunks (`core.chunks`), so the store grows only by
new items.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from smolagents.memory import ActionStep, TaskStep

from smolmem.agents import compat
from smolmem.agents.touched import CODE, Touched
from smolmem.core.encoding import chunks, wire
from smolmem.core.encoding.chunks import ATOMS, ChunkedText, ChunkedValue, NotChunkable, Piece
from smolmem.core.encoding.codec import Encoded

LARGE = 5_000_000
"""Values of more bytes, or of more items than a hundredth of this, are left out and named."""

_INLINE = 400
"""Bytes of a value that is written into the snapshot itself."""
_DEEPEST, _FEW = 4, 32
"""Dicts of few items, inside each other, are searched for long lists."""
_IN_TURN = 0.0002
"""Seconds that may be spent on a variable that no code named."""

Encode = Callable[[Any], Encoded]


class Name(NamedTuple):
    """A variable of the code, or an entry of the agent's state."""

    group: str
    name: str


@dataclass
class _Kept:
    """A value as it was stored."""

    value: Any
    body: bytes
    ids: Collection[int]
    new: dict[str, bytes]
    is_foreign: bool = False
    is_described: bool = False
    chunked: ChunkedValue | None = None
    text: ChunkedText | None = None
    inside: dict[str, _Kept] = field(default_factory=dict)
    seconds: float = 0.0


class Variables:
    """The variables of one agent, as they were stored last."""

    def __init__(self, agent: Any, encode: Encode) -> None:
        self.touched = Touched()
        self._agent = agent
        self._encode = encode
        self._kept: dict[Name, _Kept] = {}
        self._links: dict[Name, set[Name]] = {}
        self._joint: dict[frozenset[Name], _Kept] = {}
        self._unsaved: dict[str, bytes] = {}
        self._turn = 0

    def after(self, step: Any) -> Encoded | None:
        """The variables after a step, encoded; None if the agent has none, or the step cannot have changed any."""
        return self.snapshot(getattr(step, "code_action", None)) if isinstance(step, (TaskStep, ActionStep)) else None

    def snapshot(self, code: str | None) -> Encoded | None:
        """Encodes the variables after code ran; None if the agent has none. Without code, all are encoded."""
        agent, local = self._agent, compat.interpreter_of(self._agent)
        names = {} if local is None else visible(local.variables)
        if not names and not agent.state:
            self._kept, self._links, self._joint = {}, {}, {}
            return None
        large = sorted(name for name, value in names.items() if _is_large(value))
        values = {Name("variables", name): value for name, value in names.items() if name not in large}
        same = sorted(name for name, value in agent.state.items() if name in names and names[name] is value)
        values |= {Name("state", name): value for name, value in agent.state.items() if name not in same}
        described = {name.name for name, kept in self._kept.items() if kept.is_described}
        touched = None if local is None else self.touched.by(code, local, names.keys() - set(large), described)
        self._update(values, touched)
        return self._record(large, [name for name in same if name not in large])

    def saved(self, keys: Iterable[str]) -> None:
        """These chunks are in the store."""
        for key in list(keys):
            self._unsaved.pop(key, None)

    # --- encoding --------------------------------------------------------------------------------------------------

    def _is_touched(self, name: Name, value: Any, touched: set[str] | None) -> bool:
        kept = self._kept.get(name)
        if kept is None or kept.value is not value:
            return True
        return type(value) not in ATOMS and (touched is None or name.name in touched)

    def _update(self, values: dict[Name, Any], touched: set[str] | None) -> None:
        changed = {name for name, value in values.items() if self._is_touched(name, value, touched)}
        gone = self._kept.keys() - values.keys()
        changed |= {other for name in changed | gone for other in self._links.get(name, ())} - gone
        if any(self._kept[name].is_foreign for name in changed & self._kept.keys()):  # arrays can share their memory
            changed |= {name for name, kept in self._kept.items() if kept.is_foreign and name in values}
        changed |= self._in_turn(values, changed)
        for name in gone:
            self._unlink(name)
            del self._kept[name]
        for name in (name for name in values if name in changed):
            began = time.thread_time()
            kept = self._kept[name] = self._keep(name.name, values[name], self._kept.get(name))
            kept.seconds = time.thread_time() - began
            self._unsaved |= kept.new
        for name in changed:
            self._link(name)
        self._kept = {name: self._kept[name] for name in values}
        self._keep_joint(changed | gone)

    def _in_turn(self, values: dict[Name, Any], changed: set[Name]) -> set[Name]:
        """One more variable, to find changes that nothing else notices."""
        cheap = [
            name
            for name in values
            if name not in changed and self._kept[name].seconds < _IN_TURN and type(values[name]) not in ATOMS
        ]
        self._turn += 1
        return {cheap[self._turn % len(cheap)]} if cheap else set()

    def _unlink(self, name: Name) -> None:
        for other in self._links.pop(name, ()):
            self._links.get(other, set()).discard(name)

    def _link(self, name: Name) -> None:
        """Finds the variables that share an object with one."""
        self._unlink(name)
        ids = self._kept[name].ids
        linked = {other for other, kept in self._kept.items() if other != name and ids and not _disjoint(ids, kept.ids)}
        if linked:
            self._links[name] = linked
            for other in linked:
                self._links.setdefault(other, set()).add(name)

    def _keep_joint(self, changed: set[Name]) -> None:
        """Encodes variables that share objects in one record, so that they share them again when they come back."""
        before, self._joint = self._joint, {}
        for group in _components(self._links):
            known = before.get(group)
            if known is None or group & changed:
                together: dict[str, dict[str, Any]] = {}
                for name in sorted(group):
                    together.setdefault(name.group, {})[name.name] = self._kept[name].value
                known = self._whole("", together)
                self._unsaved |= known.new
            self._joint[group] = known

    def _keep(self, name: str, value: Any, before: _Kept | None, depth: int = 0) -> _Kept:
        items = chunks.items_of(value)
        if type(value) is dict and items and depth < _DEEPEST and _is_compound(items):
            return self._compound(name, value, before, depth)
        if items and chunks.is_long(items):
            try:
                return self._chunked(name, value, items, before)
            except NotChunkable:
                pass
        if type(value) is str and len(value) > chunks.LONG_TEXT:
            return self._text(name, value, before)
        return self._whole(name, value)

    def _whole(self, name: str, value: Any) -> _Kept:
        """A value in one record, under its name: whether a text is a secret may depend on the name."""
        encoded = self._encode({name: value})
        new = dict(encoded.blobs)
        body = b'{"$":"alone","v":' + encoded.record + b"}"
        if len(body) > _INLINE:
            new[encoded.key] = encoded.record
            body = wire.dumps({"$": "stored", "chunk": encoded.key})
        ids = set(list(encoded.inside.ids)[1:])  # without the dict that was made here
        return _Kept(value, body, ids, new, encoded.inside.is_foreign, encoded.inside.is_described)

    def _chunked(self, name: str, value: Any, items: chunks.Items, before: _Kept | None) -> _Kept:
        flags = [False, False]

        def encode(key: str | None, item: Any) -> Piece:
            encoded = self._encode(item if key is None else {key: item})
            flags[0] |= encoded.inside.is_foreign
            flags[1] |= encoded.inside.is_described
            ids = list(encoded.inside.ids)[0 if key is None else 1 :]  # without the dict that was made here
            return chunks.piece(key, item, encoded.record, encoded.blobs, ids)

        chunked = (before.chunked if before is not None and before.value is value else None) or ChunkedValue()
        tree = chunked.tree(chunked.update(items, encode))
        body = wire.dumps({"$": "dict" if type(value) is dict else "list", "chunks": tree})
        old = before if before is not None and before.chunked is chunked else None
        return _Kept(
            value,
            body,
            {id(value)} | chunked.ids(),
            chunked.new,
            flags[0] or (old is not None and old.is_foreign),
            flags[1] or (old is not None and old.is_described),
            chunked,
        )

    def _text(self, name: str, value: str, before: _Kept | None) -> _Kept:
        """A long text in chunks. A secret could lie across two of them, so the text, or its end, is searched first."""
        known = before.text if before is not None else None
        start = 0 if known is None else known.unsearched(value)
        if self._encode({name: value[start:]}).redacted:
            return self._whole(name, value)
        text = ChunkedText(value, known)
        return _Kept(value, wire.dumps({"$": "str", "chunks": text.tree}), (), text.new, text=text)

    def _compound(self, name: str, value: dict[str, Any], before: _Kept | None, depth: int) -> _Kept:
        known = before.inside if before is not None else {}
        inside = {key: self._keep(key, item, known.get(key), depth + 1) for key, item in value.items()}
        ids, new = {id(value)}, dict[str, bytes]()
        for kept in inside.values():
            if not _disjoint(ids, kept.ids):
                return self._whole(name, value)
            ids.update(kept.ids)
            new |= kept.new
        body = b'{"$":"compound","v":' + _object((key, kept.body) for key, kept in inside.items()) + b"}"
        return _Kept(
            value,
            body,
            ids,
            new,
            any(kept.is_foreign for kept in inside.values()),
            any(kept.is_described for kept in inside.values()),
            inside=inside,
        )

    def _record(self, large: list[str], same: list[str]) -> Encoded:
        joint = {name for group in self._joint for name in group}
        groups: dict[str, list[tuple[str, bytes]]] = {"state": [], "variables": []}
        for name, kept in self._kept.items():
            if name not in joint:
                groups[name.group].append((name.name, kept.body))
        together = b",".join(kept.body for kept in self._joint.values())
        fields = [
            ("$", b'"snapshot"'),
            ("large", wire.dumps(large)),
            ("same", wire.dumps(same)),
            ("state", _object(groups["state"])),
            ("together", b"[" + together + b"]"),
            ("variables", _object(groups["variables"])),
        ]
        record = _object(fields)
        return Encoded(record, wire.fingerprint(record), dict(self._unsaved))


def visible(state: dict[str, Any]) -> dict[str, Any]:
    """The variables of an agent's code, without functions, classes and modules."""
    return {
        name: value for name, value in state.items() if not name.startswith("_") and not issubclass(type(value), CODE)
    }


def _object(fields: Iterable[tuple[str, bytes]]) -> bytes:
    return b"{" + b",".join(wire.dumps(name) + b":" + body for name, body in fields) + b"}"


def _disjoint(one: Collection[int], other: Collection[int]) -> bool:
    small, large = (one, other) if len(one) < len(other) else (other, one)
    return not any(number in large for number in small)


def _components(links: dict[Name, set[Name]]) -> list[frozenset[Name]]:
    """Groups of names that are linked, directly or through others."""
    found: list[frozenset[Name]] = []
    left = {name for name, others in links.items() if others}
    while left:
        coming, group = [left.pop()], set[Name]()
        while coming:
            name = coming.pop()
            group.add(name)
            coming += links.get(name, set()) - group
        left -= group
        found.append(frozenset(group))
    return found


def _is_compound(items: chunks.Items, depth: int = 0) -> bool:
    """Whether a dict is short and holds long lists or dicts; a dict can hold itself."""
    if len(items) > _FEW or depth > _DEEPEST:
        return False
    inside = (chunks.items_of(item) for _, item in items)
    return any(held and (chunks.is_long(held) or _is_compound(held, depth + 1)) for held in inside)


def _is_large(value: Any) -> bool:
    try:
        size = getattr(value, "nbytes", None)
        if size is None and hasattr(value, "memory_usage"):
            size = 8 * getattr(value, "size", 0)
        if isinstance(size, int):
            return size > LARGE
        return isinstance(value, (list, dict, set, tuple, str, bytes)) and len(value) > LARGE // 100
    except Exception:  # an object of any class: the codec decides
        return False
