"""The sections of documents, split into terms.

The texts of the best sections are looked at for each question. Reading, unpacking and splitting them would take most of
the time of a recall, so a section is kept as the places of its terms. The hashes of its passages are read each time: a
section that was dropped or indexed anew is never taken from the cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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


@dataclass(frozen=True)
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
        self._known: Recent[tuple[int, bytes], Section] = Recent(CACHED, lambda section: len(section.places))

    def read(self, ids: Sequence[int]) -> list[Section]:
        """The first of some sections, as many as can be looked at in time; those that are gone are left out."""
        hashes = self._hashes(ids[:READ])
        if self._store.is_remote:
            self._sections(hashes, ids[:READ])  # all texts with one message
        first = self._sections(hashes, ids[:PAGE])
        enough = sum(section.length for section in first) > MAX_CHARACTERS
        return first if enough else first + self._sections(hashes, ids[PAGE:READ])

    def _hashes(self, ids: Sequence[int]) -> dict[int, bytes]:
        """The hashes of the passages of each section that still exists."""
        hashes: dict[int, bytes] = defaultdict(bytes)
        for section, hash in zip(*self._store.columns("section_hashes", _asked(ids)), strict=True):
            hashes[section] += hash
        return hashes

    def _sections(self, hashes: Mapping[int, bytes], ids: Sequence[int]) -> list[Section]:
        known = {id: self._known.get((id, hashes[id])) for id in ids if id in hashes}
        missing = [id for id, section in known.items() if section is None]
        if missing:
            for section in _split(self._store.rows("section_passages", _asked(missing))):
                known[section.id] = section
                self._known.put((section.id, hashes[section.id]), section)
        return [section for section in known.values() if section is not None]


def _asked(ids: Iterable[int]) -> Row:
    return {"ids": json_list(ids), "most": IN_SECTION}


def _split(rows: Iterable[Row]) -> Iterable[Section]:
    """The sections of passages; a passage that begins the next section is left out."""
    documents: dict[int, int] = {}
    texts: dict[int, list[str]] = defaultdict(list)
    for row in rows:
        known = texts[row["section"]]
        if not known or sum(map(len, known)) + len(row["text"]) <= SECTION:
            known.append(row["text"])
            documents[row["section"]] = row["document"]
    for id, document in documents.items():
        places: dict[str, list[int]] = defaultdict(list)
        for place, term in enumerate(terms_of(with_identifiers("\n".join(texts[id])))):
            places[term].append(place)
        yield Section(id, document, sum(map(len, texts[id])), dict(places))
