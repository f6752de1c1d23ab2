"""The `alert` table: when rules fired, and what they did."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from smolmem.core.text import storable
from smolmem.core.values import Alert, when
from smolmem.store.contents import Contents

_FILTERS: dict[str, Any] = dict.fromkeys(("scope", "below", "run", "rule"))
_COLUMNS = ("rule", "reason", "agent", "run", "number")


class Alerts:
    """The alerts of a store."""

    def __init__(self, contents: Contents, fence: Callable[[Sequence[str | None]], None]) -> None:
        """`fence` raises `TakenOver` for runs that another process has taken over."""
        self._contents = contents
        self._fence = fence

    def add(self, alert: Alert, scope: str) -> None:
        """Writes that a rule fired."""

        def write() -> None:
            self._fence([alert.run])
            self.add_within(alert, scope)

        self._contents.store.transact(write, sync=False)

    def add_within(self, alert: Alert, scope: str) -> None:
        """`add` as part of the caller's transaction."""
        row = {name: getattr(alert, name) for name in _COLUMNS}
        row |= {name: storable(row[name]) for name in ("rule", "reason", "agent")}
        row |= {"scope": scope, "at": alert.at.timestamp(), "acts": json.dumps(list(alert.actions))}
        self._contents.add("alert", row)

    def find(self, **filters: Any) -> list[Alert]:
        """Alerts, the newest first; each filter is a parameter of `find_alerts`, and open if not given."""
        rows = self._contents.store.rows("find_alerts", _FILTERS | filters)
        return [
            Alert(
                **{name: self._contents.sealed("alert", row)[name] for name in _COLUMNS},
                at=when(row["at"]),
                actions=tuple(json.loads(row["acts"])),
            )
            for row in rows
        ]
