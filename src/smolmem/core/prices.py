"""What a model's tokens cost, in dollars.

A price belongs to all models whose name begins with a prefix; the longest prefix wins. The part of a name before the
last slash, which names a provider, is ignored unless a prefix has it too. Models without a price, such as local ones,
have no cost: None, never 0. The built-in table is a list of public list prices and grows old; the JSON file named by
the environment variable `SMOLMEM_PRICES` comes first:

    {"my-model": [0.5, 1.5], "gpt-4o-mini": [0.15, 0.6]}
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from smolmem.core.errors import InvalidArgument

Price = tuple[float, float]
"""Dollars for a million input tokens, and for a million output tokens."""
VARIABLE = "SMOLMEM_PRICES"

BUILT_IN: Mapping[str, Price] = {
    "gpt-4o": (2.5, 10.0),
    "gpt-4o-mini": (0.15, 0.6),
    "gpt-4.1": (2.0, 8.0),
    "gpt-4.1-mini": (0.4, 1.6),
    "gpt-4.1-nano": (0.1, 0.4),
    "gpt-5": (1.25, 10.0),
    "gpt-5-mini": (0.25, 2.0),
    "o3": (2.0, 8.0),
    "o4-mini": (1.1, 4.4),
    "claude-3-5-haiku": (0.8, 4.0),
    "claude-sonnet-4": (3.0, 15.0),
    "claude-opus-4": (15.0, 75.0),
    "gemini-2.5-flash": (0.3, 2.5),
    "gemini-2.5-pro": (1.25, 10.0),
}


def prices() -> Mapping[str, Price]:
    """The prices by prefix: the built-in table, and those of the user's file.

    Raises:
        InvalidArgument: the file cannot be read, or is not a mapping of prefixes to pairs of numbers.
    """
    return _table(*_source())


def cost(model: str, input_tokens: int, output_tokens: int) -> float | None:
    """What tokens of a model cost, in dollars; None if the model has no known price."""
    price = price_of(model)
    return None if price is None else (input_tokens * price[0] + output_tokens * price[1]) / 1e6


def price_of(model: str) -> Price | None:
    """The price of a model; None if it is not known."""
    return _price(model, *_source())


def _source() -> tuple[str, int]:
    """The user's file and when it was changed: prices are read again once it has changed."""
    path = os.environ.get(VARIABLE, "")
    try:
        return path, Path(path).stat().st_mtime_ns if path else 0
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{VARIABLE} names {path!r}, which cannot be read: {error}.") from None


@lru_cache(maxsize=1_000)
def _price(model: str, path: str, changed: int) -> Price | None:
    table = _table(path, changed)
    names = (model.lower(), model.lower().rpartition("/")[2])
    fitting = [prefix for prefix in table if any(name.startswith(prefix.lower()) for name in names)]
    return table[max(fitting, key=len)] if fitting else None


@lru_cache(maxsize=4)
def _table(path: str, changed: int) -> Mapping[str, Price]:
    if not path:
        return BUILT_IN
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
        return {**BUILT_IN, **{str(prefix): _pair(pair) for prefix, pair in table.items()}}
    except (OSError, ValueError, TypeError, AttributeError):
        raise InvalidArgument(
            f"{VARIABLE} names {path!r}, which is not a JSON file of prices: "
            'write {"model": [dollars per million input tokens, dollars per million output tokens]}.'
        ) from None


def _pair(pair: Any) -> Price:
    given = tuple(float(number) for number in pair)
    if len(given) != 2 or not all(math.isfinite(number) and number >= 0 for number in given):
        raise ValueError(pair)
    return given[0], given[1]
