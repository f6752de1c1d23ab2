"""Ranks steps and notes, and picks the passages that show why.

A step or note is a document. Five signals are added up for each document:

- lexical: how well the whole document matches the words of the question, all of its parts together, and the pairs of
  words that stand side by side in the question;
- semantic: how near the vector of the whole document, and that of its best passage, are to that of the question;
- neighbours: a share of the scores of the two documents on either side, because an answer often stands beside the step
  that sounds like the question; the less the words of the question tell, the less it is;
- session: a share of the best score in the same session, because a question is about one run more often than about one
  step of each;
- time and recency: a little, for a time that the question mentions and for what is new.

The weights were chosen on chats and on agents' runs alike; `bench/quality.py` compares them with plain full text. The
score of a recollection is the share of the best sum, times the confidence that the memory knows anything about the
question at all (see `calibration.py`), so that a score means the same for each question.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal

from smolmem.core.errors import Damaged
from smolmem.core.values import Excerpt, Recollection, when
from smolmem.recall import query
from smolmem.recall.calibration import FLOOR, UNRELATED, Evidence, Noise, confidence_in, noise_of
from smolmem.recall.excerpts import best_first, shown_text
from smolmem.recall.filters import Filter
from smolmem.recall.highlight import Highlighter
from smolmem.recall.lexical import LexicalSearch, Matches
from smolmem.recall.query import Anchor, Span
from smolmem.recall.scores import Scores, above_last, nearness, scaled, summed
from smolmem.recall.sections import IN_SECTION
from smolmem.store.base import Row
from smolmem.store.contents import Contents
from smolmem.store.passage_rows import documents_of, json_list

if TYPE_CHECKING:
    from smolmem.recall.embedding.embedders import Reranker
    from smolmem.recall.semantic import SemanticSearch

log = logging.getLogger("smolmem")

LISTED = 100
"""Documents that each signal lists."""
PASSAGES = 3
"""Vectors that are searched for each listed document."""
FEW_PASSAGES = 4
"""Passages that are read of a document in any case."""
SEMANTIC, QUOTED = 0.9, 0.1
"""The weight of vectors, and how much less it is for a question whose words stand side by side in a document."""
NEAR, FAR = 0.3, 0.15
"""Shares of the scores of the next document on either side, and of the one after that."""
FOLLOWING = 0.2
"""What the two documents after one with pairs of words of the question get for them: often they continue it."""
SESSION = 0.3
ALONE = 0.65
"""What a note gets of its own score, because it has no neighbours: about as much as a step in a run that fits."""
LONG_TASK = 0.5
"""What a task of several passages gets of its score: instructions have words for everything, and the steps that follow
them say more. Its neighbours get nothing of it: the whole run follows the instructions, not just the next steps."""
TIME_BONUS = 0.3
RECENCY_BONUS = 0.05
HALF_LIFE = 7 * 86400.0
RERANKED = 30
EXCERPTS = 3
"""Passages that a recollection shows at most."""
TRIES = 4
"""How often a search begins again because steps that it found were indexed again meanwhile."""
BEST = 3
"""The best documents by words: they must have vectors before vectors tell against an answer."""
LONG_QUESTION, MAX_SENTENCES = 15, 8
"""Words of a question that is looked at sentence by sentence, and how many sentences are."""

EQUAL = 0.9
"""The share of common words from which two documents say the same."""

Group = Literal["step", "run"]


@dataclass(frozen=True)
class Found:
    """What the signals found for a question: scores of documents, scores of passages, and the nearest cosine."""

    words: list[str]
    matches: Matches
    signals: dict[str, Scores]
    pairs: Scores
    passages: Scores
    cosine: float | None
    is_name: bool = False
    """Whether the question only names what is searched for: with a floor, results have a word or a near vector."""
    evidence: Evidence = field(default_factory=Evidence)
    """How well the best match fits the whole question, by words."""
    lacks_vectors: bool = False
    """Whether the best matches by words have no vectors yet: then those of others tell nothing against them."""

    @cached_property
    def highlighter(self) -> Highlighter:
        """Finds the words of the question in texts."""
        return Highlighter(self.words)

    @property
    def named(self) -> Collection[int] | None:
        """The documents that match a name themselves; None for a question.

        The steps behind and beside them may answer a question, and have nothing to do with a name.
        """
        if not self.is_name:
            return None
        near = {id for id, score in scaled(self.signals.get("semantic", {})).items() if score > 0.5}
        return near | (self.signals["lexical"].keys() - self.matches.documents_without(self.words))

    @property
    def best_by_words(self) -> list[int]:
        """The documents that match best by words."""
        return [*self.signals["lexical"]][:BEST]

    def fit(self, passage: Row) -> float:
        """How well a passage shows why its document was found: by the words of the question, and by its vector."""
        here = self.highlighter.words_in(passage["text"])
        weights = self.matches.weights
        told = sum(weight for word, weight in weights.items() if word in here)
        return told / (sum(weights.values()) or 1.0) + self.passages.get(passage["id"], 0.0)


class _IndexedAgain(Exception):
    """The index has changed since a search began."""


class Search:
    """Finds steps and notes of a store: by their words, and by vectors where there is an embedder."""

    def __init__(self, contents: Contents, semantic: SemanticSearch | None) -> None:
        self._contents = contents
        self._store = contents.store
        self._lexical = LexicalSearch(contents.store)
        self.semantic = semantic
        self._noise: dict[tuple[str | None, str | None, int], Noise] = {}

    def find(
        self,
        question: str,
        limit: int,
        filters: Filter,
        *,
        floor: float = FLOOR,
        group: Group = "step",
        reranker: Reranker | None = None,
    ) -> list[Recollection]:
        """The steps and notes that answer a question, the best first.

        The floor is the least confidence, below which nothing is returned, and the least share of the best sum.
        """
        find = partial(self._find, question, limit, filters, floor, group, reranker)
        for _ in range(TRIES):
            with suppress(_IndexedAgain):
                return find()
            self._store.read_ahead(())
        return find(notices_new_ids=False)

    def _find(
        self,
        question: str,
        limit: int,
        filters: Filter,
        floor: float,
        group: Group,
        reranker: Reranker | None,
        *,
        notices_new_ids: bool = True,
    ) -> list[Recollection]:
        moment = time.time()
        found = self._search(question, filters, max(LISTED, limit))
        confidence = self._confidence(question, found, filters)
        if not any(found.signals.values()) or confidence < floor:
            return []
        signals = dict(found.signals)
        if reranker is not None:
            signals["reranker"] = self._rerank(question, found, filters, reranker)
        self._add_context(signals, found)
        total, named = summed(signals), found.named
        if floor and named is not None and not query.times(question, datetime.fromtimestamp(moment)):
            total = {document: score for document, score in total.items() if document in named}
        documents = self._best(total, found, filters, limit)
        if notices_new_ids:
            self._notice_new_ids(found.best_by_words, documents)
        signals["time"] = self._time_scores(question, documents, filters, datetime.fromtimestamp(moment))
        signals["recency"] = {document: _recency(moment - rows[0]["at"]) for document, rows in documents.items()}
        total = {
            document: score + signals["time"].get(document, 0.0) + signals["recency"][document]
            for document, score in total.items()
            if document in documents
        }
        best = max(total.values(), default=0.0)
        scale = confidence / best if best else 0.0
        ranked = sorted(total, key=lambda document: (-total[document], -document))
        ranked = [document for document in ranked if total[document] >= floor * best]
        if group == "run":
            ranked = _once_per_run(ranked, documents)
        copies = without_copies(ranked, {id: _words_of(rows) for id, rows in documents.items()}, limit)
        shown = self._read(list(copies), found, filters, closely=True)
        if notices_new_ids:
            self._notice_new_ids(copies, shown)
        return [
            replace(
                self._recollection(rows, _of(signals, document), scale * total[document], found.highlighter),
                copies=copies[document],
            )
            for document, rows in shown.items()
        ]

    # --- signals ---------------------------------------------------------------------------------------------------

    def _search(self, question: str, filters: Filter, listed: int) -> Found:
        words, phrases = query.words(question), query.phrases(question)
        near = [] if self.semantic is None else self.semantic.nearest(question, PASSAGES * listed, filters)
        matches = self._lexical.best(words, filters, listed + 1, phrases)
        if not matches.found:
            words = self._lexical.similar(words, filters)
            matches = self._lexical.best(words, filters, listed + 1)
        lexical = above_last(matches.found, listed)
        high = max(lexical.values(), default=0.0) or 1.0
        evidence = matches.evidence(words, phrases, query.names(question))
        lacks_vectors = self.semantic is not None and bool(near) and self.semantic.lacks_vectors([*lexical][:BEST])
        share = (1.0 if lacks_vectors or not near else evidence.share_told) / high
        signals = {"lexical": {id: share * score for id, score in lexical.items()}}
        pairs = {id: share * score for id, score in matches.pair_scores.items()}
        passages: Scores = {}
        if near:
            farther = len(near) == PASSAGES * listed and near[-1].cosine < near[0].cosine
            least = near[-1].cosine if farther else self._noise_in(filters).cosine
            weight = SEMANTIC / (1 + QUOTED * evidence.quoted)
            scores = scaled(nearness(near, listed, least))
            signals["semantic"] = {id: weight * score for id, score in scores.items()}
            passages = scaled({hit.passage: max(0.0, hit.cosine - least) for hit in near})
        cosine, is_name = near[0].cosine if near else None, query.is_name(question)
        return Found(words, matches, signals, pairs, passages, cosine, is_name, evidence, lacks_vectors)

    def _add_context(self, signals: dict[str, Scores], found: Found) -> None:
        """Adds what documents get from their neighbours and their session; a note has neither, and gets a share."""
        beside = self._store.rows("beside", {"ids": json_list(summed(signals))})
        tasks = _long_tasks(beside)
        signals |= {name: _with_less_for(tasks, scores) for name, scores in signals.items()}
        own, told = summed(signals), found.evidence.share_told
        neighbours: Scores = defaultdict(float)
        sessions: dict[int, str] = {}
        for row in beside:
            sessions[row["id"]] = row["session"]
            if row["id"] in tasks:
                continue
            for side, share in (("before", NEAR), ("after", NEAR), ("long_before", FAR), ("long_after", FAR)):
                if row[side] is not None:
                    neighbours[row[side]] += share * told * own[row["id"]]
                    sessions[row[side]] = row["session"]
            for side in ("after", "long_after"):
                if row[side] is not None:
                    neighbours[row[side]] += FOLLOWING * found.pairs.get(row["id"], 0.0)
        signals["alone"] = {id: ALONE * own[id] for id in own.keys() - sessions.keys()}
        signals["neighbours"] = _with_less_for(tasks, neighbours)
        total = summed(signals)
        best: dict[str, float] = defaultdict(float)
        for document, session in sessions.items():
            best[session] = max(best[session], total[document])
        shares = {document: SESSION * best[session] for document, session in sessions.items()}
        signals["session"] = _with_less_for(tasks, shares)

    def _time_scores(self, question: str, documents: dict[int, list[Row]], filters: Filter, now: datetime) -> Scores:
        """The bonus of documents from a time that the question mentions."""
        spans = [self._span(time, filters) for time in query.times(question, now)]
        return {
            document: TIME_BONUS
            for document, rows in documents.items()
            if any(span is not None and span.since <= rows[0]["at"] < span.until for span in spans)
        }

    def _span(self, mentioned: Span | Anchor, filters: Filter) -> Span | None:
        if isinstance(mentioned, Span):
            return mentioned
        found = self._lexical.best(query.words(mentioned.event), filters, 1).found
        for row in self._store.rows("passages", {"ids": json_list(id for id, _ in found)}):
            at = row["at"]
            return Span(float("-inf"), at) if mentioned.side == "before" else Span(at, float("inf"))
        return None

    def _rerank(self, question: str, found: Found, filters: Filter, reranker: Reranker) -> Scores:
        own = summed(found.signals)
        best = sorted(own, key=lambda document: -own[document])[:RERANKED]
        read = self._read(best, found, filters, closely=True)
        scores = {document: reranker.score(question, rows[0]["text"]) for document, rows in read.items()}
        worst = min(scores.values(), default=0.0)
        return scaled({document: score - worst for document, score in scores.items()})

    # --- confidence ------------------------------------------------------------------------------------------------

    def _confidence(self, question: str, found: Found, filters: Filter) -> float:
        """How likely the memory knows what is asked for. A long text may ask for it in one of its sentences."""
        noise = None if found.cosine is None else self._noise_in(filters)
        parts = [] if len(found.words) <= LONG_QUESTION else query.sentences(question)[:MAX_SENTENCES]
        asked = [(found.evidence._replace(cosine=found.cosine), 1)]
        asked += [(_evidence(query.words(part), part, found), len(parts)) for part in parts]
        best = max(confidence_in(evidence, noise, among) for evidence, among in asked)
        if found.lacks_vectors and found.cosine is not None:
            best = max(best, self._confidence(question, replace(found, cosine=None), filters))
        return best

    def _noise_in(self, filters: Filter) -> Noise:
        """What unrelated questions get in the same scope; measured again when the store has doubled."""
        size = int(self._store.do("last_passage", {})).bit_length()
        key = filters.scope, filters.below, size
        if key not in self._noise and self.semantic is not None:
            self.semantic.keep(UNRELATED)
            scope = Filter(scope=filters.scope, below=filters.below)
            nearest = (self.semantic.nearest(question, 1, scope) for question in UNRELATED)
            self._noise[key] = noise_of(hits[0].cosine for hits in nearest if hits)
        return self._noise[key]

    # --- reading ---------------------------------------------------------------------------------------------------

    def _best(self, total: Scores, found: Found, filters: Filter, limit: int) -> dict[int, list[Row]]:
        """The best documents that may be returned, and some more: time and copies still change the order."""
        ranked = sorted(total, key=lambda document: -total[document])
        documents: dict[int, list[Row]] = {}
        page = 3 * limit + 10
        for start in range(0, len(ranked), page):
            documents |= self._read(ranked[start : start + page], found, filters, is_checked=False)
            if len(documents) >= page:
                break
        return documents

    def _notice_new_ids(self, found: Iterable[int], read: Collection[int]) -> None:
        """Notices documents that were indexed again since they were found: they have other ids.

        Raises:
            _IndexedAgain: one of them was.
        """
        unread = [document for document in found if document not in read]
        if unread and len(documents_of(self._store, unread)) < len(unread):
            raise _IndexedAgain

    def _read(
        self,
        documents: Sequence[int],
        found: Found,
        filters: Filter,
        *,
        closely: bool = False,
        is_checked: bool = True,
    ) -> dict[int, list[Row]]:
        """The passages of documents that may be returned: the first few, and those with a near vector.

        If read closely, also those of the section that fits best, in the order to show them. Damaged ones are left
        out, unless they are read again before they are shown.
        """
        known = {*found.passages}
        if closely:
            sections = found.matches.sections
            starts = (sections[document] for document in documents if document in sections)
            known.update(passage for start in starts for passage in range(start, start + IN_SECTION))
        wanted: Row = {"ids": json_list(documents), "known": json_list(known), "most": FEW_PASSAGES}
        wanted |= {"roles": json_list(filters.kinds or ()), "trusts": json_list(filters.trusts or ())}
        read: dict[int, list[Row]] = defaultdict(list)
        for row in self._store.rows("fitting_passages", wanted):
            if filters.admits(row) and (not is_checked or self._is_sound(row)):
                read[row["document"]].append(row)
        if closely:
            fit = {row["id"]: found.fit(row) for several in read.values() for row in several}
            return {document: best_first(read[document], fit) for document in documents if document in read}
        return {document: read[document] for document in documents if document in read}

    def _is_sound(self, row: Row) -> bool:
        try:
            return bool(self._contents.sealed("passage", row))
        except Damaged as error:
            log.warning("smolmem recalls without a step or note that cannot be read. %s", error)
            return False

    def _recollection(
        self, rows: list[Row], signals: dict[str, float], score: float, highlighter: Highlighter
    ) -> Recollection:
        best = rows[0]
        names = ("origin", "trust", "scope", "agent", "run", "step", "note", "tool")
        excerpts = tuple(_excerpt(row, highlighter) for row in rows[:EXCERPTS])
        matched = {word for excerpt in excerpts for word in highlighter.words_in(excerpt.text)}
        return Recollection(
            **{name: best[name] for name in names},
            kind=best["role"],
            text=excerpts[0].text,
            at=when(best["at"]),
            passage=best["id"],
            score=score,
            signals=signals,
            document=best["document"],
            excerpts=excerpts,
            matched=tuple(word for word in highlighter.words if word in matched),
            _neighbours=partial(self._neighbours, best["document"]),
        )

    def _neighbours(self, document: int, count: int) -> list[Recollection]:
        asked = {"id": document, "limit": count}
        before, after = ([row["id"] for row in self._store.rows(side, asked)] for side in ("before", "after"))
        nothing = Found([], Matches(), {}, {}, {}, None)
        read = self._read([*reversed(before), *after], nothing, Filter())
        return [self._recollection(rows, {}, 0.0, nothing.highlighter) for rows in read.values()]


def _excerpt(row: Row, highlighter: Highlighter) -> Excerpt:
    text = shown_text(row)
    return Excerpt(row["role"], text, row["origin"], row["trust"], row["tool"], highlighter.marks(text))


def _evidence(words: Iterable[str], question: str, found: Found) -> Evidence:
    """How well the best match fits a sentence of a question."""
    told = found.matches.evidence(words, query.phrases(question), query.names(question))
    return told._replace(cosine=found.cosine)


def _long_tasks(steps: Sequence[Row]) -> set[int]:
    """The tasks of several passages, among other steps: a chat has nothing but tasks."""
    tasks = [row for row in steps if row["role"] == "task"]
    return {row["id"] for row in tasks if row["has_more"]} if len(tasks) < len(steps) else set()


def _with_less_for(tasks: Collection[int], scores: Scores) -> Scores:
    return {id: LONG_TASK * score if id in tasks else score for id, score in scores.items()}


def _of(signals: Mapping[str, Scores], document: int) -> dict[str, float]:
    """The signals of one document."""
    return {name: scores[document] for name, scores in signals.items() if scores.get(document)}


def _once_per_run(ranked: Iterable[int], documents: Mapping[int, list[Row]]) -> list[int]:
    """The best document of each run; notes stand for themselves."""
    best: dict[str, int] = {}
    for document in ranked:
        row = documents[document][0]
        best.setdefault(
            row["run"] if row["note"] is None and row["run"] is not None else f"note {row['note']}", document
        )
    return list(best.values())


def _recency(age: float) -> float:
    return float(RECENCY_BONUS * 0.5 ** (max(0.0, age) / HALF_LIFE))


def without_copies(ranked: Iterable[int], words: Mapping[int, frozenset[str]], limit: int) -> dict[int, int]:
    """The best of the documents that say the same, with the number of copies; `words` are those of each document."""
    kept: dict[frozenset[str], int] = {}
    copies: dict[int, int] = {}
    for document in ranked:
        said = words[document]
        similar = (other for other in kept if len(said) * EQUAL <= len(other) and len(other) * EQUAL <= len(said))
        known = said if said in kept else next((other for other in similar if _nearly_equal(said, other)), None)
        if known is not None:
            copies[kept[known]] += 1
        elif len(kept) < limit:
            kept[said], copies[document] = document, 1
    return copies


def _words_of(rows: list[Row]) -> frozenset[str]:
    return frozenset("\n".join(row["text"] for row in rows).lower().split())


def _nearly_equal(one: frozenset[str], other: frozenset[str]) -> bool:
    common = len(one & other)
    return common >= EQUAL * (len(one) + len(other) - common)
