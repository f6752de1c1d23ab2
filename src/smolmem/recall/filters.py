"""What a search may return."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from smolmem.core.rows import TRUST, Trust
from smolmem.store.base import Row
from smolmem.store.passage_rows import json_list

PASSAGE_KINDS = ("task", "plan", "thought", "code", "call", "observation", "error", "answer", "other")
"""The kinds of passages that steps have; notes have kinds of their own."""


class Filter(NamedTuple):
    """The passages that a search may return; None and empty for no restriction."""

    scope: str | None = None
    below: str | None = None
    """The beginning of the scopes that lie in `scope`, where those are searched, too."""
    agents: Collection[str] | None = None
    runs: Collection[str] | None = None
    kinds: Collection[str] | None = None
    since: float | None = None
    until: float | None = None
    min_trust: Trust = "low"
    excluded_session: str | None = None
    excluded_kinds: Collection[str] = ()

    @property
    def trusts(self) -> list[str] | None:
        """The degrees of trust that are enough; None for all."""
        if self.min_trust == "low":
            return None
        return [trust for trust, degree in TRUST.items() if degree >= TRUST[self.min_trust]]

    @property
    def columns(self) -> dict[str, Collection[str] | None]:
        """The allowed values of a passage's columns."""
        return {"agent": self.agents, "run": self.runs, "role": self.kinds, "trust": self.trusts}

    @property
    def values(self) -> Row:
        """What a full-text query of documents takes: a document needs one passage that may be returned."""
        allowed = {f"{name}s": None if given is None else json_list(given) for name, given in self.columns.items()}
        times = {"since": self.since, "until": self.until, "apart": self.excluded_session}
        return {**allowed, **times, "but": json_list(self.excluded_kinds)}

    @property
    def is_open(self) -> bool:
        """Whether all passages of the scope may be returned."""
        restricted = any(allowed is not None for allowed in self.columns.values())
        rest = (self.since, self.until, self.excluded_session)
        return not restricted and not self.excluded_kinds and rest == (None, None, None)

    def includes(self, scope: str) -> bool:
        """Whether a scope is searched."""
        below = self.below is not None and scope.startswith(self.below)
        return self.scope is None or scope == self.scope or below

    def admits(self, passage: Row) -> bool:
        """Whether a passage may be returned; decides, whatever an index says."""
        return (
            self.includes(passage["scope"])
            and all(allowed is None or passage[name] in allowed for name, allowed in self.columns.items())
            and (self.since is None or passage["at"] >= self.since)
            and (self.until is None or passage["at"] < self.until)
            and (self.excluded_session is None or passage["session"] != self.excluded_session)
            and passage["role"] not in self.excluded_kinds
        )
