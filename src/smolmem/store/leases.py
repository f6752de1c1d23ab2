"""Leases: work that one process at a time may do, with a time limit.

A lease lasts some seconds after its last renewal, so a holder that dies or stops loses it. A holder must therefore
check, in the transaction of each write, whether it still holds the lease.

All processes of one SQLite file run on one machine (its write-ahead log needs shared memory), so they share its clock.
On a server, times are of the server's clock: there the statements do not use `now`. A lease that was renewed in the
future, because the clock was set back, ends as if it had been renewed so long ago.
"""

from __future__ import annotations

from typing import NamedTuple

from smolmem.core import clock
from smolmem.store.base import Row, Store


class Lease(NamedTuple):
    """A lease that its holder has, until `seconds` after the last renewal."""

    name: str
    holder: str
    seconds: float


class Leases:
    """The leases of a store. A holder's name must be its own: two that share a name share the lease."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def acquire(self, name: str, holder: str, seconds: float) -> Lease | None:
        """Takes a free lease, or renews the holder's own; None while another process holds it."""
        return self._store.transact(lambda: self.acquire_within(name, holder, seconds), sync=False)

    def acquire_within(self, name: str, holder: str, seconds: float) -> Lease | None:
        """`acquire` as part of the caller's transaction; leases that have ended are removed."""
        now = clock.now()
        self._store.do("drop_ended_leases", {"now": now, "name": name})
        taken = self._store.do("take_lease", {"name": name, "holder": holder, "now": now, "seconds": seconds})
        return None if taken is None else Lease(name, holder, seconds)

    def renew(self, lease: Lease) -> bool:
        """Renews a lease; false if another has taken it."""
        return self.acquire(lease.name, lease.holder, lease.seconds) is not None

    def release(self, lease: Lease) -> None:
        """Gives a lease back; nothing happens if another has taken it."""
        dropped = {"name": lease.name, "holder": lease.holder}
        self._store.transact(lambda: self._store.do("drop_lease", dropped), sync=False)

    def end(self, name: str) -> None:
        """Takes a lease from its holder, who notices that with the next renewal."""
        holder = self.holder(name)
        if holder is not None:
            self.release(Lease(name, holder, 0.0))

    def holder(self, name: str) -> str | None:
        """Who holds a lease now."""
        row = self._held(name)
        return None if row is None else str(row["holder"])

    def seconds_left(self, name: str) -> float:
        """How long a lease lasts if it is not renewed; 0 if it is free."""
        row = self._held(name)
        return 0.0 if row is None else float(row["seconds_left"])

    def _held(self, name: str) -> Row | None:
        found = self._store.rows("held_lease", {"name": name, "now": clock.now()})
        return found[0] if found else None
