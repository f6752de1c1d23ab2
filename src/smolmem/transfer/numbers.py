"""Numbers in an export → numbers in this store."""

from __future__ import annotations

from array import array
from bisect import bisect_left

from smolmem.transfer.lines import Wrong


class Numbers:
    """Numbers in the export → numbers here, 0 for what is left out. They ascend, so two arrays are enough."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._there, self._here = array("q"), array("q")

    def put(self, there: int, here: int) -> None:
        """Adds the next number of the export, and the number it has here."""
        if there < 1 or (self._there and there <= self._there[-1]):
            raise Wrong(f"{self._what} {there} comes twice, or out of order")
        self._there.append(there)
        self._here.append(here)

    def find(self, there: int) -> int | None:
        """The number here; None if the export did not mention it yet."""
        place = bisect_left(self._there, there)
        return self._here[place] if place < len(self._there) and self._there[place] == there else None

    def get(self, there: int) -> int:
        """The number here of what a line refers to."""
        found = self.find(there)
        if found is None:
            raise Wrong(f"it refers to {self._what} {there}, which did not come before")
        return found
