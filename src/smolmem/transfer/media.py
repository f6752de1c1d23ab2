"""Records without their media, for reading a step's columns from an export that may hold picture bombs."""

from __future__ import annotations

from typing import Any

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
