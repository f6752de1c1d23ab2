"""The columns of a step from an export, which may hold picture bombs: media are left out before decoding."""

from __future__ import annotations

from typing import Any

from smolmem.core import codec, wire
from smolmem.store.base import Row
from smolmem.store.contents import Contents
from smolmem.transfer.lines import Wrong

_HEAVY = {"image": ("info",), "AgentImage": ("path", "pixels"), "array": ("items",)}


def without_media(value: Any) -> Any:
    """A record without pictures and arrays. References count containers, so there are as many as before."""
    if isinstance(value, list):
        return [without_media(item) for item in value]
    if not isinstance(value, dict):
        return value
    inner = _HEAVY.get(str(value.get("$")))
    if inner is None:
        return {name: without_media(item) for name, item in value.items()}
    kept = [(name, value[name]) for name in inner if name in value]
    if value["$"] == "array":
        items = kept[0][1] if kept else []
        return {"$": "dict", "v": [[number, without_media(item)] for number, item in enumerate(items)]}
    return {"$": "dict", "v": [[name, without_media(item)] for name, item in kept]}


def step_facts(contents: Contents, record: int) -> Row:
    """The columns of a step, derived without unpacking a picture.

    Raises:
        Wrong: if the record is not a step's.
    """
    try:
        light = wire.dumps(without_media(wire.loads(contents.content(record))))
        return {**codec.facts(codec.decode(light, contents.blob))}
    except Exception as error:  # the record can be anything
        raise Wrong(f"a record that is not a step's ({error})") from error
