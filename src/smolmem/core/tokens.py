"""Estimates the tokens of a prompt from the usage that the model reports.

No tokenizer fits every model, but models report the tokens of each prompt. Three rates are fitted to the last reports:
for text, for images, and for what is added to every prompt (templates, descriptions of tools). Default rates apply
until there are plausible reports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from smolmem.core.text import message_content

CHARACTERS = 3.6
"""Characters per token, by default."""
REPORTS = 8
"""How many of the last reports count; another process can read that many from the record."""
_STIFF = 150.0**2
"""The penalty for leaving the default rates: the square of an error of 150 tokens."""
_BASE = 500.0
_RANGE = ((0.4, 3.0), (0.1, 6.0), (0.0, 60.0))
"""The bounds of the rates, as multiples of the default rates; for the last one, multiples of `_BASE`."""

Size = tuple[float, float]
"""The text and images of a prompt, in tokens at the default rates."""


def size(messages: Iterable[Any]) -> Size:
    """The size of messages."""
    text, images = 0.0, 0.0
    for message in messages:
        content = message_content(message)
        for part in content if isinstance(content, list) else [{"type": "text", "text": content or ""}]:
            if part.get("type") == "image":
                images += _image(part.get("image"))
            else:
                text += len(str(part.get("text", ""))) / CHARACTERS
        text += 4.0
    return text, images


def _image(image: Any) -> float:
    width, height = getattr(image, "size", None) or (512, 512)
    return min(1600.0, max(64.0, width * height / 750.0))


class Tokens:
    """Counts the tokens of one agent's prompts."""

    def __init__(self) -> None:
        self._reports: deque[tuple[tuple[float, float, float], float]] = deque(maxlen=REPORTS)
        self._rates = (1.0, 1.0, 0.0)

    def copy(self) -> Tokens:
        """A copy with the same reports."""
        other = Tokens()
        other._reports, other._rates = self._reports.copy(), self._rates
        return other

    def learn(self, of: Size, reported: int) -> None:
        """Adds the token count that a model reported for a prompt."""
        if reported > 0:
            self._reports.append(((*of, _BASE), float(reported)))
            self._rates = _fit(self._reports)

    def count(self, *of: Size) -> int:
        """The estimated tokens of a prompt of these sizes, including what is added to every prompt."""
        text, images, base = self._rates
        return round(sum(size[0] for size in of) * text + sum(size[1] for size in of) * images + base * _BASE)


def _fit(reports: Sequence[tuple[tuple[float, float, float], float]]) -> tuple[float, float, float]:
    """Ridge regression towards the default rates."""
    usual = (1.0, 1.0, 0.0)
    matrix = [[_STIFF * (row == column) for column in range(3)] for row in range(3)]
    right = [_STIFF * rate for rate in usual]
    for features, reported in reports:
        for row in range(3):
            right[row] += features[row] * reported
            for column in range(3):
                matrix[row][column] += features[row] * features[column]
    text, images, base = (
        min(most, max(least, rate)) for rate, (least, most) in zip(_solve(matrix, right), _RANGE, strict=True)
    )
    return text, images, base


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Three equations with three unknowns; the matrix is positive definite."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for place, pivot in enumerate(rows):
        for other in rows[place + 1 :]:
            share = other[place] / pivot[place]
            other[:] = [mine - share * theirs for mine, theirs in zip(other, pivot, strict=True)]
    found = [0.0, 0.0, 0.0]
    for place in (2, 1, 0):
        known = sum(rows[place][later] * found[later] for later in range(place + 1, 3))
        found[place] = (rows[place][3] - known) / rows[place][place]
    return found
