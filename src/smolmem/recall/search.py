"""Ranks passages: lexical and semantic signals, neighbours and time, added up so that a person can see why.

The lexical and the semantic signal each list their best hundred passages, scaled from 1 for the best to 0 for what is
not listed. Both are added. Then each passage gets a fifth of the score of each neighbour, two on either side: an answer
often stands beside the passage that sounds like the question. `bench/locomo.py` measures that. A time that the question
mentions, and recency, weigh a little. The optional reranker adds a third signal for the best thirty.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from smolmem.core.errors import Damaged, InvalidArgument
from smolmem.core.values import Recollection, trust_in, when
from smolmem.recall import query
from smolmem.recall.filters import Filter
from smolmem.recall.query import Anchor, Span
from smolmem.store.base import Row
from smolmem.store.contents import Contents
from smolmem.store.passage_rows import json_list, scope_term

if TYPE_CHECKING:
    from smolmem.recall.embedders import Reranker
    from smolmem.recall.semantic import SemanticSearch

log = logging.getLogger("smolmem")

LISTED = 100
NEIGHBOUR_SHARE = 0.2
TIME_BONUS = 0.3
RECENCY_BONUS = 0.05
HALF_LIFE = 7 * 86400.0
RERANKED = 30
MAX_MATCHES = 2_000
"""Passages that are scored by their words."""
SMALL_SCOPE = 5_000
"""Passages of a scope that is small enough to weigh each word by itself."""
MAX_SECONDS = 1.0
"""Seconds that the lexical search may take."""

Scores = dict[int, float]


class Search:
    """Finds passages of a store: by their words, and by vectors where there is an embedder."""

    def __init__(self, contents: Contents, semantic: SemanticSearch | None) -> None:
        self._contents = contents
        self._store = contents.store
        self.semantic = semantic
        self._counted = 0
        self._frequency: dict[str, int] = {}

    def find(
        self, question: str, limit: int, filters: Filter, *, reranker: Reranker | None = None
    ) -> list[Recollection]:
        """The passages that answer a question, the best first."""
        if not question.strip():
            raise InvalidArgument("recall() needs a question: the text is empty.")
        moment = time.time()
        listed = max(LISTED, limit)
        signals = {"lexical": scaled(self._lexical(self._rarest_terms(question, filters), filters, listed), listed)}
        if self.semantic is not None:
            signals["semantic"] = scaled(self.semantic.nearest(question, listed, filters), None)
        if reranker is not None:
            first = {**signals, "neighbours": self._neighbour_scores(summed(signals))}
            signals["reranker"] = self._rerank(question, summed(first), filters, reranker)
        signals["neighbours"] = self._neighbour_scores(summed(signals))
        passages = self._best(summed(signals), filters, limit)
        signals["time"] = self._time_scores(question, passages, filters, datetime.fromtimestamp(moment))
        signals["recency"] = {passage: _recency(moment - row["at"]) for passage, row in passages.items()}
        total = summed(signals)
        ranked = sorted(passages, key=lambda passage: (-total[passage], -passage))
        found = (
            self._recollection(passages[passage], {name: scores.get(passage, 0.0) for name, scores in signals.items()})
            for passage in ranked
        )
        return without_copies(found, limit)

    # --- signals ---------------------------------------------------------------------------------------------------

    def _rarest_terms(self, question: str, filters: Filter) -> list[str]:
        """The words to search for; of many, the rarest: a word of half of all passages says little and takes long."""
        words, share = query.words(question), self._share(filters)
        if self._counted <= MAX_MATCHES:
            return words
        often = {word: share * self._count(query.match([word], None)) for word in words}
        rarest: list[str] = []
        for word in sorted(words, key=lambda word: often[word]):
            if rarest and sum(often[known] for known in rarest) + often[word] > MAX_MATCHES:
                break
            rarest.append(word)
        return rarest

    def _share(self, filters: Filter) -> float:
        """The share of all passages that lies in a scope, roughly."""
        last = int(self._store.do("last_unit", {}))
        if not last * 0.9 <= self._counted <= last:
            self._counted = last
            self._frequency.clear()
        return 1.0 if filters.scope is None else self._count(query.scope_match(_scope_term(filters))) / max(1, last)

    def _count(self, match: str) -> int:
        if match not in self._frequency:
            self._frequency[match] = self._counted_now(match)
        return self._frequency[match]

    def _counted_now(self, match: str) -> int:
        return int(self._store.do("count_words", {"match": match}))

    def _lexical(self, words: list[str], filters: Filter, limit: int) -> list[tuple[int, float]]:
        if not words:
            return []
        if filters.is_open and filters.scope is not None and self._share(filters) > 0.5:
            found = self._matches(words, None, filters, 2 * limit)
            mine = self._in_scope(found, filters)
            if len(mine) >= limit or len(found) < 2 * limit:
                return mine[:limit]
        term = None if filters.scope is None else _scope_term(filters)
        if term is not None and self._count(query.scope_match(term)) <= SMALL_SCOPE:
            return self._weighed_in_scope(words, term, filters)[:limit]
        return self._matches(words, term, filters, limit)

    def _weighed_in_scope(self, words: list[str], term: str, filters: Filter) -> list[tuple[int, float]]:
        """The matches in a small scope, each word weighed by its rarity in that scope."""
        total: Scores = defaultdict(float)
        size = self._counted_now(query.scope_match(term))  # a small scope soon doubles
        for word in words:
            found = self._matches([word], term, filters, SMALL_SCOPE)
            here = (
                len(found) if filters.is_open else self._store.do("count_words", {"match": query.match([word], term)})
            )
            weight = _rarity(here, size) / _rarity(self._count(query.match([word], None)), self._counted)
            for passage, score in found:
                total[passage] += weight * score
        return sorted(total.items(), key=lambda hit: (-hit[1], hit[0]))

    def _matches(self, words: list[str], term: str | None, filters: Filter, limit: int) -> list[tuple[int, float]]:
        name, values = "find_words", {"match": query.match(words, term), "limit": limit}
        if not filters.is_open:
            name = "find_words_where"
            lists = {
                f"{column}s": None if given is None else json_list(given) for column, given in filters.columns.items()
            }
            values = {**values, **lists, "since": filters.since, "until": filters.until}
            values |= {"apart": filters.excluded_session, "but": json_list(filters.excluded_kinds)}
        try:
            return [(row["unit"], row["score"]) for row in self._store.rows(name, values, MAX_SECONDS)]
        except TimeoutError as late:
            log.warning("smolmem stopped a lexical search: %s. Ask for fewer or rarer words.", late)
            return []

    def _in_scope(self, found: list[tuple[int, float]], filters: Filter) -> list[tuple[int, float]]:
        """The matches that lie in the scope: quicker than searching for the scope's term."""
        rows = self._store.rows("there", {"ids": json_list(passage for passage, _ in found)})
        inside = {row["id"] for row in rows if filters.includes(row["scope"])}
        return [hit for hit in found if hit[0] in inside]

    def _neighbour_scores(self, own: Scores) -> Scores:
        """What each passage gets from its neighbours, two on either side."""
        gained: Scores = defaultdict(float)
        for row in self._store.rows("beside", {"ids": json_list(own)}):
            for side in ("before", "long_before", "after", "long_after"):
                if row[side] is not None:
                    gained[row[side]] += NEIGHBOUR_SHARE * own[row["id"]]
        return dict(gained)

    def _time_scores(self, question: str, passages: dict[int, Row], filters: Filter, now: datetime) -> Scores:
        """The bonus of passages from a time that the question mentions."""
        spans = [self._span(time, filters) for time in query.times(question, now)]
        return {
            passage: TIME_BONUS
            for passage, row in passages.items()
            if any(span is not None and span.since <= row["at"] < span.until for span in spans)
        }

    def _span(self, mentioned: Span | Anchor, filters: Filter) -> Span | None:
        if isinstance(mentioned, Span):
            return mentioned
        for passage, _ in self._lexical(query.words(mentioned.event), filters, 1):
            for row in self._store.rows("units", {"ids": json_list([passage])}):
                at = row["at"]
                return Span(float("-inf"), at) if mentioned.side == "before" else Span(at, float("inf"))
        return None

    def _rerank(self, question: str, own: Scores, filters: Filter, reranker: Reranker) -> Scores:
        best = sorted(own, key=lambda passage: -own[passage])[:RERANKED]
        rows = self._read(best, filters)
        return scaled([(passage, reranker.score(question, row["text"])) for passage, row in rows.items()], None)

    # --- reading ---------------------------------------------------------------------------------------------------

    def _best(self, total: Scores, filters: Filter, limit: int) -> dict[int, Row]:
        """The best passages that may be returned, and some more: time and copies still change the order."""
        ranked = sorted(total, key=lambda passage: -total[passage])
        passages: dict[int, Row] = {}
        page = 3 * limit + 10
        for start in range(0, len(ranked), page):
            passages |= self._read(ranked[start : start + page], filters)
            if len(passages) >= page:
                break
        return passages

    def _read(self, passages: Sequence[int], filters: Filter) -> dict[int, Row]:
        rows = self._store.rows("units", {"ids": json_list(passages)})
        return {row["id"]: row for row in rows if filters.admits(row) and self._is_sound(row)}

    def _is_sound(self, row: Row) -> bool:
        try:
            return bool(self._contents.sealed("unit", row))
        except Damaged as error:
            log.warning("smolmem leaves something out of recall. %s", error)
            return False

    def _recollection(self, row: Row, signals: dict[str, float]) -> Recollection:
        origin = row["origin"]
        return Recollection(
            **{name: row[name] for name in ("text", "scope", "agent", "run", "step", "note", "tool")},
            kind=row["role"],
            origin=origin,
            trust=trust_in(origin),
            at=when(row["at"]),
            passage=row["id"],
            score=sum(signals.values()),
            signals={name: value for name, value in signals.items() if value},
            _neighbours=partial(self._neighbours, row["id"]),
        )

    def _neighbours(self, passage: int, count: int) -> list[Recollection]:
        asked = {"id": passage, "limit": count}
        before, after = ([row["id"] for row in self._store.rows(side, asked)] for side in ("before", "after"))
        rows = self._read([*reversed(before), *after], Filter())
        return [self._recollection(row, {}) for row in rows.values()]


def _scope_term(filters: Filter) -> str:
    return scope_term(filters.scope or "", below=filters.below is not None)


def _rarity(count: int, of: int) -> float:
    """The inverse document frequency of a word, as SQLite's BM25 computes it."""
    return max(math.log((of - count + 0.5) / (count + 0.5)), 1e-6) if count < of else 1e-6


def _recency(age: float) -> float:
    return float(RECENCY_BONUS * 0.5 ** (max(0.0, age) / HALF_LIFE))


def summed(signals: Mapping[str, Scores]) -> Scores:
    """The sum of all signals for each passage."""
    total: Scores = defaultdict(float)
    for scores in signals.values():
        for passage, score in scores.items():
            total[passage] += score
    return total


def scaled(found: Sequence[tuple[int, float]], floor: int | None) -> Scores:
    """Scales scores to 0..1: the best gets 1, and what comes just after the list would get 0.

    A list that is not full has nothing after it: its lowest score is 0, or its worst where `floor` is None.
    """
    if not found:
        return {}
    scores = [score for _, score in found]
    high, low = max(scores), min(scores)
    if floor is not None and len(found) < floor:
        low = min(low, 0.0)
    if high <= low:
        return {passage: 1.0 for passage, _ in found}
    return {passage: (score - low) / (high - low) for passage, score in found}


def without_copies(found: Iterable[Recollection], limit: int) -> list[Recollection]:
    """The best of those that say the same, with the number of copies."""
    kept: dict[frozenset[str], Recollection] = {}
    for one in found:
        said = frozenset(one.text.lower().split())
        same = (
            said
            if said in kept
            else next((known for known in islice(kept, LISTED) if _nearly_equal(said, known)), None)
        )
        if same is not None:
            kept[same] = replace(kept[same], copies=kept[same].copies + 1)
        elif len(kept) < limit:
            kept[said] = one
    return list(kept.values())


def _nearly_equal(one: frozenset[str], other: frozenset[str]) -> bool:
    longer = max(len(one), len(other))
    return min(len(one), len(other)) >= 0.9 * longer and len(one & other) >= 0.9 * len(one | other)
