"""Scores of documents and passages: what signals give, made comparable and added up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smolmem.recall.semantic import Hit

Scores = dict[int, float]
WHOLE = 0.8
"""The share of the vector of the whole document in how near the document is, beside that of its best passage."""


def summed(signals: Mapping[str, Scores]) -> Scores:
    """The sum of all signals for each document or passage."""
    total: Scores = defaultdict(float)
    for scores in signals.values():
        for id, score in scores.items():
            total[id] += score
    return total


def above_last(found: Sequence[tuple[int, float]], listed: int) -> Scores:
    """How much better the first `listed` are than what comes after them, and 1 each if all are equally good."""
    low = found[listed][1] if len(found) > listed else 0.0
    return {id: score - low if found[0][1] > low else 1.0 for id, score in found[:listed]}


def scaled(scores: Scores) -> Scores:
    """Scores from 0 to 1: the best gets 1."""
    high = max(scores.values(), default=0.0)
    return {id: score / high for id, score in scores.items()} if high > 0 else {}


def nearness(near: Iterable[Hit], listed: int, least: float) -> Scores:
    """How much nearer the nearest documents are than what comes after them; than `least`, if nothing farther does."""
    scores: Scores = {}
    for hit in near:  # the best passages come first
        scores.setdefault(hit.document, (1 - WHOLE) * hit.cosine + WHOLE * hit.whole)
    ranked = sorted(scores.items(), key=lambda one: -one[1])
    low = ranked[listed][1] if len(ranked) > listed and ranked[listed][1] < ranked[0][1] else least
    return {document: max(0.0, score - low) for document, score in ranked[:listed]}
