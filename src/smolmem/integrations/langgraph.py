"""LangGraph: a `BaseStore` whose namespaces are scopes, with search by words and vectors.

An item is a note: each change supersedes the note before, so that the record keeps what an item was. Its text is JSON
with the value, the key and the time it was made. Deleting an item forgets its note.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import operator
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

try:
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        Item,
        ListNamespacesOp,
        MatchCondition,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
    )
except ImportError as error:
    needs = "smolmem.integrations.langgraph needs langgraph-checkpoint: pip install 'smolmem[langchain]'."
    raise ImportError(needs) from error

from smolmem.core.errors import InvalidArgument
from smolmem.core.values import Note
from smolmem.integrations.recollected import ALL

if TYPE_CHECKING:
    from smolmem.memory import Memory

ITEM = "item"
"""The kind of notes that are items."""
SEARCHED = 200
"""Items that a search with a filter ranks at least."""
Namespace = tuple[str, ...]
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


class MemoryStore(BaseStore):  # type: ignore[misc]
    """A LangGraph store in a memory: the namespace `("users", "ann")` is the scope `<scope>/users/ann`.

    Args:
        memory: the memory.
        scope: where namespaces begin; by default the memory's scope.
    """

    supports_ttl = True

    def __init__(self, memory: Memory, *, scope: str | None = None) -> None:
        self._root = memory._scope_to_write(scope)
        self._memory = memory.scoped(f"{self._root}/*")

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Does operations in order."""
        return [self._do(op) for op in ops]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Does operations in order, in a thread."""
        return await asyncio.to_thread(self.batch, list(ops))

    def _do(self, op: Op) -> Result:
        if isinstance(op, GetOp):
            note = self._note(op.namespace, op.key)
            return None if note is None else Item(**self._fields(note))
        if isinstance(op, PutOp):
            return self._put(op)
        if isinstance(op, SearchOp):
            return self._search(op)
        if isinstance(op, ListNamespacesOp):
            return self._namespaces(op)
        raise InvalidArgument(f"{type(op).__name__} is not an operation that this store knows.")

    # --- namespaces ------------------------------------------------------------------------------------------------

    def _scope(self, namespace: Namespace) -> str:
        return "/".join([self._root, *(quote(label, safe=" @:,;+=~") for label in namespace)])

    def _namespace(self, scope: str) -> Namespace:
        return tuple(unquote(label) for label in scope.removeprefix(self._root).split("/") if label)

    def _namespaces(self, op: ListNamespacesOp) -> list[Namespace]:
        notes = self._memory.notes(scope=f"{self._root}/*", kind=ITEM, limit=ALL)
        found = {self._namespace(scope) for scope in {note.scope for note in notes}}
        fitting = [one for one in found if all(_matches(one, condition) for condition in op.match_conditions or ())]
        cut = sorted({one[: op.max_depth] for one in fitting})
        return cut[op.offset : op.offset + op.limit]

    # --- items -----------------------------------------------------------------------------------------------------

    def _note(self, namespace: Namespace, key: str) -> Note | None:
        found = self._memory.notes(scope=self._scope(namespace), kind=ITEM, tag=_tag(key), limit=1)
        return found[0] if found else None

    def _fields(self, note: Note) -> dict[str, Any]:
        item = json.loads(note.text)
        created = datetime.fromisoformat(item["created"]) if "created" in item else note.at
        return {
            "value": item["value"],
            "key": item["key"],
            "namespace": self._namespace(note.scope),
            "created_at": created,
            "updated_at": note.at,
        }

    def _put(self, op: PutOp) -> None:
        before = self._note(op.namespace, op.key)
        if op.value is None:
            if before is not None:
                self._memory.forget(before)
            return
        item: dict[str, Any] = {"value": dict(op.value), "key": op.key}
        if before is not None:
            item["created"] = self._fields(before)["created_at"].isoformat()
        if op.index is False:
            item["index"] = False
        self._memory.remember(
            _as_json(item, op.key),
            kind=ITEM,
            tags=[_tag(op.key)],
            supersedes=before,
            scope=self._scope(op.namespace),
            origin="agent",
            expires=None if op.ttl is None else timedelta(minutes=op.ttl),
        )

    def _search(self, op: SearchOp) -> list[SearchItem]:
        scope = f"{self._scope(op.namespace_prefix)}/*"
        end = op.offset + op.limit
        if op.query is None or not op.query.strip():
            found = [(note, None) for note in self._memory.notes(scope=scope, kind=ITEM, limit=ALL)]
        else:
            found = self._ranked(op.query, scope, max(SEARCHED, end) if op.filter else end)
        items = [SearchItem(**self._fields(note), score=score) for note, score in found]
        fitting = [item for item in items if _passes(item.value, op.filter or {})]
        return fitting[op.offset : end]

    def _ranked(self, query: str, scope: str, limit: int) -> list[tuple[Note, Any]]:
        if not self._memory.notes(scope=scope, kind=ITEM, limit=1):
            return []
        found = self._memory.recall(query, limit, scope=scope, kind=ITEM, floor=0.0)
        notes = [(self._memory.note(one.note), one.score) for one in found if one.note is not None]
        return [(note, score) for note, score in notes if json.loads(note.text).get("index") is not False]


def _tag(key: str) -> str:
    """The tag of a key, which may be any text."""
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _as_json(said: dict[str, Any], key: str) -> str:
    try:
        return json.dumps(said, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"the value of {key!r} is not JSON: {error}.") from error


def _matches(namespace: Namespace, condition: MatchCondition) -> bool:
    path = tuple(condition.path)
    if len(path) > len(namespace):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))


def _passes(value: Any, filter: dict[str, Any]) -> bool:
    """Whether a value has what a filter asks for: equal fields, or fields that compare so."""
    for key, wanted in filter.items():
        is_comparison = isinstance(wanted, dict) and any(name.startswith("$") for name in wanted)
        for name, than in (wanted if is_comparison else {"$eq": wanted}).items():
            if name not in _COMPARE:
                raise InvalidArgument(f"{name!r} is not one of {', '.join(_COMPARE)}.")
            try:
                if not isinstance(value, dict) or not _COMPARE[name](value.get(key), than):
                    return False
            except TypeError:
                return False
    return True
