"""What was done around the steps: what views left out of prompts, and what rules saw."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from smolmem.record import codec
from smolmem.record.prompt import Cut
from smolmem.record.values import Alert, when
from smolmem.store.records import Records, seal

_OPEN: dict[str, Any] = dict.fromkeys(("scope", "below", "run", "rule"))


class Traces:
    """The `cut` and `alert` tables of a store."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def cuts(self, session: str) -> list[Cut]:
        """What views cut of a session's list, in order."""
        rows = self._records.store.rows("session_cuts", {"session": session})
        names = ("view", "last", "parts", "before", "after", "text", "at")
        return [Cut(**{name: row[name] for name in names}) for row in map(self._cut, rows)]

    def _cut(self, row: dict[str, Any]) -> dict[str, Any]:
        return self._records.sealed("cut", row)

    def add_cut(self, session: str, cut: Cut) -> None:
        """Writes down a cut."""
        with self._records.store.write(sync=False):
            row = {"session": session, **vars(cut), "text": codec.plain(cut.text)}
            self._records.store.do("add_cut", row | {"hash": seal("cut", row)})

    def add_alert(self, alert: Alert, scope: str) -> None:
        """Writes down that a rule fired."""
        with self._records.store.write(sync=False):
            words = {name: codec.plain(getattr(alert, name)) for name in ("rule", "reason", "agent")}
            row = {**vars(alert), **words, "scope": scope, "at": alert.at.timestamp(), "acts": json.dumps(alert.acts)}
            self._records.store.do("add_alert", row | {"hash": seal("alert", row)})

    def alerts(self, **wanted: Any) -> list[Alert]:
        """When rules fired, the newest first; every filter is one of `find_alerts`, open if not given."""
        names = ("rule", "reason", "agent", "run", "number")
        return [
            Alert(**{name: row[name] for name in names}, at=when(row["at"]), acts=_words(row["acts"]))
            for row in self._records.store.rows("find_alerts", _OPEN | wanted)
            if self._records.sealed("alert", row)
        ]


def _words(stored: str) -> Sequence[str]:
    return tuple(json.loads(stored))
