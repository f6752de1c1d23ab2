"""The sections of documents, split into terms.

The texts of the best sections are looked at for each question. Reading, unpacking and splitting them would take most of
the time of a recall, so a section is kept as the places of its terms. The hashes of its passages are compared each
time: a section that was dropped or indexed anew is never taken from the cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from smolmem.core.recent import Recent
from smolmem.store.base import Row, Store
from smolmem.store.passage_rows import SECTION, json_list, with_identifiers
from smolmem.store.terms import terms_of

READ, PAGE, MAX_CHARACTERS = 50, 25, 100_000
"""The best sections, whose texts are looked at; how many are read at a time, and how many characters are enough."""
IN_SECTION = 12
"""Passages of a section that are read; long ones are fewer."""
CACHED = 100_000
"""Terms of the sections that are kept, all together: about 20 MB of RAM."""


@dataclass
class Section:
    """A section of a document, known by the id of its first passage."""

    id: int
    document: int
    length: int
    """How many characters the section has."""
    places: dict[str, list[int]]
    """The terms of the section, and where each of them stands."""


class SectionReader:
    """Reads sections of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: Recent[int, tuple[bytes, Section]] = Recent(CACHED, lambda kept: len(kept[1].places))

    def read(self, ids: Sequence[int]) -> list[Section]:
        """The first of some sections, as many as can be looked at in time; those that are gone are left out."""
        ids = ids[:READ]
        known = self._unchanged(ids)
        for page in [ids] if self._store.is_remote else [ids[:PAGE], ids[PAGE:]]:
            known |= self._split([id for id in page if id not in known])
            first = [known[id] for id in ids[:PAGE] if id in known]
            if sum(section.length for section in first) > MAX_CHARACTERS:
                return first
        return [known[id] for id in ids if id in known]

    def _unchanged(self, ids: Sequence[int]) -> dict[int, Section]:
        """The kept sections whose passages are as they were."""
        kept = {id: found for id in ids if (found := self._kept.get(id)) is not None}
        hashes: dict[int, bytes] = defaultdict(bytes)
        if kept:
            for section, hash in zip(*self._store.columns("section_hashes", _asked(kept)), strict=True):
                hashes[section] += hash
        return {id: section for id, (hash, section) in kept.items() if hash == hashes.get(id)}

    def _split(self, ids: Sequence[int]) -> dict[int, Section]:
        """Sections with the places of their terms; a passage that begins the next section is left out."""
        texts: dict[int, list[str]] = defaultdict(list)
        hashes: dict[int, bytes] = defaultdict(bytes)
        documents: dict[int, int] = {}
        for row in self._store.rows("section_passages", _asked(ids)) if ids else ():
            id, text = row["section"], row["text"]
            hashes[id] += row["hash"]
            documents[id] = row["document"]
            if not texts[id] or sum(map(len, texts[id])) + len(text) <= SECTION:
                texts[id].append(text)
        made = {id: _section(id, document, texts[id]) for id, document in documents.items()}
        for id, section in made.items():
            self._kept.put(id, (hashes[id], section))
        return made


def _asked(ids: Iterable[int]) -> Row:
    return {"ids": json_list(ids), "most": IN_SECTION}


def _section(id: int, document: int, texts: list[str]) -> Section:
    places: dict[str, list[int]] = defaultdict(list)
    for place, term in enumerate(terms_of(with_identifiers("\n".join(texts)))):
        places[term].append(place)
    return Section(id, document, sum(map(len, texts)), dict(places))
