"""Reads the documents in a pickle, such as `index.pkl` of LangChain's FAISS folder, without loading the pickle.

A pickle is a program: loading it calls whatever it names. Here its instructions are read as data. Texts, numbers, lists
and dicts are made; a class is a placeholder that is never imported, and calling it only gives another placeholder. An
object whose attributes have a `page_content` is a document.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from smolmem.core.errors import InvalidArgument
from smolmem.recall.documents import Document

_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": list,
    "GLOBAL": object,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_CALLS = {"STACK_GLOBAL": 2, "REDUCE": 2, "NEWOBJ": 2, "NEWOBJ_EX": 3}
"""Instructions that replace some values by a placeholder, and how many."""
_IGNORED = ("PROTO", "FRAME", "STOP")


def pickled_documents(data: bytes) -> Iterator[Document]:
    """The documents in a pickle, in its order.

    Raises:
        InvalidArgument: if it cannot be read.
    """
    reader = _Reader()
    try:
        for instruction, argument, _ in pickletools.genops(data):
            state = reader.step(instruction.name, argument)
            inner = state.get("__dict__", state) if isinstance(state, dict) else None
            if isinstance(inner, dict) and isinstance(text := inner.get("page_content"), str):
                metadata = inner.get("metadata")
                yield text, metadata if isinstance(metadata, Mapping) else {}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise InvalidArgument(f"its pickle cannot be read ({type(error).__name__}).") from error


class _Reader:
    """The stack of values that the instructions work on."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> Any:
        """Follows one instruction; returns the attributes that it gives to an object, if that is what it does."""
        if name == "BUILD":
            return self._stack.pop()
        if name in _EMPTY:
            self._stack.append(_EMPTY[name]())
        elif name in _CALLS:
            self._pop(_CALLS[name])
            self._stack.append(object())
        elif name in _TUPLES:
            self._stack.append(tuple(self._pop(_TUPLES[name])))
        elif name in _CONSTANTS or (argument is not None and name not in _IGNORED and "PUT" not in name):
            self._constant(name, argument)
        elif name not in _IGNORED:
            self._change(name, argument)
        return None

    def _constant(self, name: str, argument: Any) -> None:
        if name in ("GET", "BINGET", "LONG_BINGET"):
            self._stack.append(self._memo[argument])
        elif name in _CONSTANTS or isinstance(argument, (str, bytes, bytearray, int, float)):
            self._stack.append(_CONSTANTS.get(name, argument))
        else:
            raise ValueError(name)

    def _change(self, name: str, argument: Any) -> None:
        if name == "MARK":
            self._stack.append(_MARK)
        elif name == "MEMOIZE" or "PUT" in name:
            self._memo[len(self._memo) if argument is None else argument] = self._stack[-1]
        elif name in ("APPEND", "SETITEM"):
            self._fill(self._pop(1 if name == "APPEND" else 2))
        elif name in ("APPENDS", "ADDITEMS", "SETITEMS"):
            self._fill(self._to_mark())
        elif name == "TUPLE":
            self._stack.append(tuple(self._to_mark()))
        else:
            raise ValueError(name)

    def _fill(self, items: list[Any]) -> None:
        """Adds items to the list or dict on top; what is added to a placeholder is left out."""
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, dict):
            target.update(zip(items[::2], items[1::2], strict=True))

    def _pop(self, count: int) -> list[Any]:
        found = self._stack[-count:]
        if len(found) < count:
            raise IndexError(count)
        del self._stack[-count:]
        return found

    def _to_mark(self) -> list[Any]:
        for place in range(len(self._stack) - 1, -1, -1):
            if self._stack[place] is _MARK:
                found = self._stack[place + 1 :]
                del self._stack[place:]
                return found
        raise ValueError("no mark")
