"""The sections of documents, split into terms.

The texts of the best sections are looked at for each question. Reading, unpacking and splitting them would take most of
the time of a recall, so the terms of a section are kept, as a number and a character each: a question looks for some
terms, and finding a character in a text is quick. The hashes of the passages are compared each time: a section that was
dropped or indexed anew is never taken from the cache.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from smolmem.core.recent import Recent
from smolmem.store.base import Row, Store
from smolmem.store.passage_rows import SECTION, json_list, searchable
from smolmem.store.terms import terms_of

READ, PAGE, MAX_CHARACTERS = 50, 25, 100_000
"""The best sections, whose texts are looked at; how many are read at a time, and how many characters are enough."""
IN_SECTION = 12
"""Passages of a section that are read; long ones are fewer."""
CACHED = 20_000_000
"""Bytes of the sections that are kept, all together."""
OVERHEAD = 500
"""About how many bytes a kept section takes beside its terms."""
WIDTH = 10
"""Bytes of a term: its number has eight, its character two."""
CHARACTERS, FIRST = 50_000, 256
"""How many characters stand for terms, and which is the first: all have two bytes."""


class Terms:
    """Terms in a row, for finding some of them: a character tells where one may be, and its number whether it is."""

    def __init__(self, terms: Iterable[str]) -> None:
        self._numbers = array("q", map(hash, terms))
        self._characters = "".join([chr(number % CHARACTERS + FIRST) for number in self._numbers])

    def __len__(self) -> int:
        return len(self._numbers)

    def places(self, wanted: Terms) -> list[int]:
        """The places where some terms stand side by side."""
        found: list[int] = []
        at = self._characters.find(wanted._characters)
        while at >= 0:
            if self._numbers[at : at + len(wanted)] == wanted._numbers:
                found.append(at)
            at = self._characters.find(wanted._characters, at + 1)
        return found


@dataclass
class Section:
    """A section of a document, known by the id of its first passage."""

    id: int
    document: int
    length: int
    """How many characters the section has."""
    terms: Terms
    places: Mapping[str, list[int]]
    """The words of the question that the section has, as terms, and where each of them stands."""


@dataclass
class _Kept:
    """A section without the places of terms, and the hashes of its passages."""

    hashes: bytes
    document: int
    length: int
    terms: Terms

    @property
    def weight(self) -> int:
        return WIDTH * len(self.terms) + OVERHEAD

    def section(self, id: int, wanted: Mapping[str, Terms]) -> Section:
        """The section with the places of the wanted terms."""
        found = {term: places for term, one in wanted.items() if (places := self.terms.places(one))}
        return Section(id, self.document, self.length, self.terms, found)


class SectionReader:
    """Reads sections of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: Recent[int, _Kept] = Recent(CACHED, lambda kept: kept.weight)

    def read(self, ids: Sequence[int], terms: Iterable[str]) -> list[Section]:
        """The first of some sections, as many as can be looked at in time; those that are gone are left out.

        Args:
            ids: the sections.
            terms: the terms whose places are wanted.
        """
        ids = ids[:READ]
        known = self._unchanged(ids)
        for page in [ids] if self._store.is_remote else [ids[:PAGE], ids[PAGE:]]:
            known |= self._split([id for id in page if id not in known])
            first = [id for id in ids[:PAGE] if id in known]
            if sum(known[id].length for id in first) > MAX_CHARACTERS:
                break
        else:
            first = [id for id in ids if id in known]
        wanted = {term: Terms((term,)) for term in terms}
        return [known[id].section(id, wanted) for id in first]

    def _unchanged(self, ids: Sequence[int]) -> dict[int, _Kept]:
        """The kept sections whose passages are as they were."""
        kept = {id: found for id in ids if (found := self._kept.get(id)) is not None}
        hashes: dict[int, bytes] = defaultdict(bytes)
        if kept:
            for section, hash in zip(*self._store.columns("section_hashes", _asked(kept)), strict=True):
                hashes[section] += hash
        return {id: section for id, section in kept.items() if section.hashes == hashes.get(id)}

    def _split(self, ids: Sequence[int]) -> dict[int, _Kept]:
        """Sections that are read and split; a passage that begins the next section is left out."""
        texts: dict[int, list[str]] = defaultdict(list)
        hashes: dict[int, bytes] = defaultdict(bytes)
        documents: dict[int, int] = {}
        for row in self._store.rows("section_passages", _asked(ids)) if ids else ():
            id, text = row["section"], row["text"]
            hashes[id] += row["hash"]
            documents[id] = row["document"]
            if not texts[id] or sum(map(len, texts[id])) + len(text) <= SECTION:
                texts[id].append(text)
        made = {id: _kept(hashes[id], document, texts[id]) for id, document in documents.items()}
        for id, section in made.items():
            self._kept.put(id, section)
        return made


def _asked(ids: Collection[int]) -> Row:
    return {"ids": json_list(ids), "most": IN_SECTION}


def _kept(hashes: bytes, document: int, texts: list[str]) -> _Kept:
    terms = terms_of(searchable("\n".join(texts)))
    return _Kept(hashes, document, sum(map(len, texts)), Terms(terms))
