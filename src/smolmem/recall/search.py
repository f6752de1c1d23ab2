"""From a question to what answers it: words, meaning, neighbours and time, added up so that a person can see why.

Each voice lists its best hundred, scaled so that its best has 1 and what it does not list has 0. The two voices are
added. Then each piece gets a fifth of what each of its neighbours has, two to either side: what answers a question
often stands beside what sounds like it. That is worth more than the reranker; `bench/locomo.py` measures it. A time
the question speaks of, and being recent, weigh a little. The optional reranker is a third voice, over the best thirty.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from smolmem.errors import BadValue, Damaged
from smolmem.recall import question
from smolmem.recall.question import Anchor, Span
from smolmem.recall.values import TRUST, Recollection, Trust, trust_in
from smolmem.record.values import ORIGINS, when
from smolmem.store.base import Row
from smolmem.store.records import Records
from smolmem.store.units import ids, word_of

if TYPE_CHECKING:
    from smolmem.recall.embed import Reranker
    from smolmem.recall.meaning import Meaning

log = logging.getLogger("smolmem")

LISTED = 100
AROUND = 0.2
TIME = 0.3
RECENT = 0.05
HALF_LIFE = 7 * 86400.0
RERANKED = 30
ROWS = 2_000
"""Units that are scored by their words: more would take longer than they are worth."""
SMALL = 5_000
"""Units of a scope that is small enough to weigh each word by itself."""
PATIENCE = 1.0
"""Seconds that the search for words may take."""

Scores = dict[int, float]


@dataclass(frozen=True)
class Wanted:
    """What may be found."""

    scope: str | None = None
    below: str | None = None
    agents: Collection[str] | None = None
    runs: Collection[str] | None = None
    kinds: Collection[str] | None = None
    since: float | None = None
    until: float | None = None
    min_trust: Trust = "low"
    apart: str | None = None
    """A session that already has its own words before its eyes."""
    but: Collection[str] = ()
    """Kinds that are left out."""

    @property
    def origins(self) -> list[str] | None:
        """Who may have said it; None for anyone."""
        if self.min_trust == "low":
            return None
        return [origin for origin in ORIGINS if TRUST[trust_in(origin)] >= TRUST[self.min_trust]]

    @property
    def words(self) -> dict[str, Collection[str] | None]:
        """What a unit's columns may be."""
        return {"agent": self.agents, "run": self.runs, "role": self.kinds, "origin": self.origins}

    @property
    def anything(self) -> bool:
        """Whether all units of the scope may be found."""
        named = any(wanted is not None for wanted in self.words.values())
        return not named and not self.but and (self.since, self.until, self.apart) == (None, None, None)

    def holds(self, scope: str) -> bool:
        """Whether a scope is one of those that are searched."""
        below = self.below is not None and scope.startswith(self.below)
        return self.scope is None or scope == self.scope or below

    def admits(self, unit: Row) -> bool:
        """Whether a unit may be found: the last word, whatever an index says."""
        return (
            self.holds(unit["scope"])
            and all(wanted is None or unit[name] in wanted for name, wanted in self.words.items())
            and (self.since is None or unit["at"] >= self.since)
            and (self.until is None or unit["at"] < self.until)
            and (self.apart is None or unit["session"] != self.apart)
            and unit["role"] not in self.but
        )


class Search:
    """Finds units of a store; by meaning too, where there is a model."""

    def __init__(self, records: Records, meaning: Meaning | None) -> None:
        self._records = records
        self._store = records.store
        self.meaning = meaning
        self._counted = 0
        self._frequency: dict[str, int] = {}

    def find(self, asked: str, limit: int, wanted: Wanted, *, reranker: Reranker | None = None) -> list[Recollection]:
        """What answers a question, the best first."""
        if not asked.strip():
            raise BadValue("recall() needs a question: the text is empty.")
        moment = time.time()
        listed = max(LISTED, limit)
        voices = {"words": scaled(self._words(self._telling(asked, wanted), wanted, listed), listed)}
        if self.meaning is not None:
            voices["meaning"] = scaled(self.meaning.nearest(asked, listed, wanted), None)
        if reranker is not None:
            first = {**voices, "around": self._around(added(voices))}
            voices["reranker"] = self._rerank(asked, added(first), wanted, reranker)
        voices["around"] = self._around(added(voices))
        units = self._best(added(voices), wanted, limit)
        voices["time"] = self._timely(asked, units, wanted, datetime.fromtimestamp(moment))
        voices["recent"] = {unit: _recent(moment - row["at"]) for unit, row in units.items()}
        total = added(voices)
        ranked = sorted(units, key=lambda unit: (-total[unit], -unit))
        found = (
            self._recollection(units[unit], {name: scores.get(unit, 0.0) for name, scores in voices.items()})
            for unit in ranked
        )
        return folded(found, limit)

    # --- the voices ------------------------------------------------------------------------------------------------

    def _telling(self, asked: str, wanted: Wanted) -> list[str]:
        """The words to look for; of many, the rarest: what half of all units say tells little and takes long."""
        words, share = question.words(asked), self._share(wanted)
        if self._counted <= ROWS:
            return words
        often = {word: share * self._count(question.match([word], None)) for word in words}
        telling: list[str] = []
        for word in sorted(words, key=lambda word: often[word]):
            if telling and sum(often[known] for known in telling) + often[word] > ROWS:
                break
            telling.append(word)
        return telling

    def _share(self, wanted: Wanted) -> float:
        """How much of all there is lies in a scope, roughly."""
        last = int(self._store.do("last_unit", {}))
        if not last * 0.9 <= self._counted <= last:
            self._counted = last
            self._frequency.clear()
        return 1.0 if wanted.scope is None else self._count(question.carried(_whose(wanted))) / max(1, last)

    def _count(self, match: str) -> int:
        if match not in self._frequency:
            self._frequency[match] = self._counted_now(match)
        return self._frequency[match]

    def _counted_now(self, match: str) -> int:
        return int(self._store.do("count_words", {"match": match}))

    def _words(self, words: list[str], wanted: Wanted, limit: int) -> list[tuple[int, float]]:
        if not words:
            return []
        if wanted.anything and wanted.scope is not None and self._share(wanted) > 0.5:
            found = self._matching(words, None, wanted, 2 * limit)
            mine = self._inside(found, wanted)
            if len(mine) >= limit or len(found) < 2 * limit:
                return mine[:limit]
        whose = None if wanted.scope is None else _whose(wanted)
        if whose is not None and self._count(question.carried(whose)) <= SMALL:
            return self._weighed(words, whose, wanted)[:limit]
        return self._matching(words, whose, wanted, limit)

    def _weighed(self, words: list[str], whose: str, wanted: Wanted) -> list[tuple[int, float]]:
        """What matches in a small scope, each word weighed by how rare it is there and not in all the store."""
        total: Scores = defaultdict(float)
        size = self._counted_now(question.carried(whose))  # a small scope soon doubles
        for word in words:
            found = self._matching([word], whose, wanted, SMALL)
            here = (
                len(found)
                if wanted.anything
                else self._store.do("count_words", {"match": question.match([word], whose)})
            )
            weight = _rarity(here, size) / _rarity(self._count(question.match([word], None)), self._counted)
            for unit, score in found:
                total[unit] += weight * score
        return sorted(total.items(), key=lambda hit: (-hit[1], hit[0]))

    def _matching(self, words: list[str], whose: str | None, wanted: Wanted, limit: int) -> list[tuple[int, float]]:
        name, values = "find_words", {"match": question.match(words, whose), "limit": limit}
        if not wanted.anything:
            name = "find_words_where"
            lists = {f"{column}s": None if given is None else ids(given) for column, given in wanted.words.items()}
            more = {"since": wanted.since, "until": wanted.until, "apart": wanted.apart, "but": ids(wanted.but)}
            values = {**values, **lists, **more}
        try:
            return [(row["unit"], row["score"]) for row in self._store.rows(name, values, PATIENCE)]
        except TimeoutError as late:
            log.warning("smolmem stopped a search for words: %s. Ask for fewer or rarer words.", late)
            return []

    def _inside(self, found: list[tuple[int, float]], wanted: Wanted) -> list[tuple[int, float]]:
        """What of all that matches lies in the scope: quicker than to look for the scope's word in everything."""
        rows = self._store.rows("there", {"ids": ids(unit for unit, _ in found)})
        inside = {row["id"] for row in rows if wanted.holds(row["scope"])}
        return [hit for hit in found if hit[0] in inside]

    def _around(self, own: Scores) -> Scores:
        """What each unit has from its neighbours, two to either side."""
        gained: Scores = defaultdict(float)
        for row in self._store.rows("beside", {"ids": ids(own)}):
            for side in ("before", "long_before", "after", "long_after"):
                if row[side] is not None:
                    gained[row[side]] += AROUND * own[row["id"]]
        return dict(gained)

    def _timely(self, asked: str, units: dict[int, Row], wanted: Wanted, now: datetime) -> Scores:
        """What units have for lying in a time that the question speaks of."""
        spans = [self._span(time, wanted) for time in question.times(asked, now)]
        return {
            unit: TIME
            for unit, row in units.items()
            if any(span is not None and span.since <= row["at"] < span.until for span in spans)
        }

    def _span(self, told: Span | Anchor, wanted: Wanted) -> Span | None:
        if isinstance(told, Span):
            return told
        for unit, _ in self._words(question.words(told.event), wanted, 1):
            for row in self._store.rows("units", {"ids": ids([unit])}):
                at = row["at"]
                return Span(float("-inf"), at) if told.side == "before" else Span(at, float("inf"))
        return None

    def _rerank(self, asked: str, own: Scores, wanted: Wanted, reranker: Reranker) -> Scores:
        best = sorted(own, key=lambda unit: -own[unit])[:RERANKED]
        rows = self._read(best, wanted)
        return scaled([(unit, reranker.score(asked, row["text"])) for unit, row in rows.items()], None)

    # --- reading ---------------------------------------------------------------------------------------------------

    def _best(self, total: Scores, wanted: Wanted, limit: int) -> dict[int, Row]:
        """The best units that may be found, and some more: time and copies still change the order."""
        ranked = sorted(total, key=lambda unit: -total[unit])
        units: dict[int, Row] = {}
        page = 3 * limit + 10
        for start in range(0, len(ranked), page):
            units |= self._read(ranked[start : start + page], wanted)
            if len(units) >= page:
                break
        return units

    def _read(self, units: Sequence[int], wanted: Wanted) -> dict[int, Row]:
        rows = self._store.rows("units", {"ids": ids(units)})
        return {row["id"]: row for row in rows if wanted.admits(row) and self._is_sound(row)}

    def _is_sound(self, row: Row) -> bool:
        try:
            return bool(self._records.sealed("unit", row))
        except Damaged as error:
            log.warning("smolmem leaves something out of recall. %s", error)
            return False

    def _recollection(self, row: Row, parts: dict[str, float]) -> Recollection:
        origin = row["origin"]
        return Recollection(
            **{name: row[name] for name in ("text", "scope", "agent", "run", "step", "note", "tool")},
            kind=row["role"],
            origin=origin,
            trust=trust_in(origin),
            at=when(row["at"]),
            unit=row["id"],
            score=sum(parts.values()),
            parts={name: value for name, value in parts.items() if value},
            _neighbours=partial(self._neighbours, row["id"]),
        )

    def _neighbours(self, unit: int, count: int) -> list[Recollection]:
        asked = {"id": unit, "limit": count}
        before, after = ([row["id"] for row in self._store.rows(side, asked)] for side in ("before", "after"))
        rows = self._read([*reversed(before), *after], Wanted())
        return [self._recollection(row, {}) for row in rows.values()]


def _whose(wanted: Wanted) -> str:
    return word_of(wanted.scope or "", below=wanted.below is not None)


def _rarity(count: int, of: int) -> float:
    """How much a word tells, as BM25 has it and SQLite computes it."""
    return max(math.log((of - count + 0.5) / (count + 0.5)), 1e-6) if count < of else 1e-6


def _recent(age: float) -> float:
    return float(RECENT * 0.5 ** (max(0.0, age) / HALF_LIFE))


def added(voices: Mapping[str, Scores]) -> Scores:
    """What all voices together give each unit."""
    total: Scores = defaultdict(float)
    for scores in voices.values():
        for unit, score in scores.items():
            total[unit] += score
    return total


def scaled(found: Sequence[tuple[int, float]], floor: int | None) -> Scores:
    """Scores from 0 to 1: the best has 1, and what comes just after the list would have 0.

    A list that is not full has nothing after it: its floor is 0, or its worst where `floor` is None.
    """
    if not found:
        return {}
    scores = [score for _, score in found]
    high, low = max(scores), min(scores)
    if floor is not None and len(found) < floor:
        low = min(low, 0.0)
    if high <= low:
        return {unit: 1.0 for unit, _ in found}
    return {unit: (score - low) / (high - low) for unit, score in found}


def folded(found: Iterable[Recollection], limit: int) -> list[Recollection]:
    """The best of those that say the same, with how many there were."""
    kept: dict[frozenset[str], Recollection] = {}
    for one in found:
        said = frozenset(one.text.lower().split())
        same = said if said in kept else next((known for known in islice(kept, LISTED) if _alike(said, known)), None)
        if same is not None:
            kept[same] = replace(kept[same], copies=kept[same].copies + 1)
        elif len(kept) < limit:
            kept[said] = one
    return list(kept.values())


def _alike(one: frozenset[str], other: frozenset[str]) -> bool:
    longer = max(len(one), len(other))
    return min(len(one), len(other)) >= 0.9 * longer and len(one & other) >= 0.9 * len(one | other)
