"""A fleet of agents on paper: how many writes, bytes and how much RAM, and what is full first.

`Fleet` holds every assumption; change one and call `load`, `waiting` and `limits` again. Nothing here is measured:
`bench/scale.py` puts its measurements into a `Fleet`.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

DAY = 86_400


@dataclass(frozen=True)
class Fleet:
    """Agents and the servers that store what they do."""

    agents: int = 10_000
    busy: float = 0.3
    """The share of the agents that work at a time."""
    seconds_per_step: float = 6.0
    """A model call and its tools."""
    steps: int = 1_000_000_000
    """Steps that are kept."""
    record_bytes: float = 4_000.0
    index_bytes: float = 4_000.0
    """On disk, of a step: its record, and what makes it findable."""
    row_bytes: float = 250.0
    """Of the record, in B-trees that are read at random: they should fit into RAM for the newest partition."""
    commits_per_step: float = 2.0
    commit_ms: float = 2.0
    """What a commit costs one connection of a PostgreSQL server, synced to its disk; an assumption."""
    connections: int = 32
    """Commits that a server works on at a time."""
    servers: int = 1
    disk_bytes: float = 16e12
    ram_bytes: float = 128e9
    """Of each server."""
    partition_days: int = 7
    passages_per_step: float = 3.0
    dimensions: int = 384
    steps_per_scope: int = 100_000
    """A scope is what one recall searches: a customer, a project."""
    scan_ns_per_vector: float = 60.0
    """A vector search in RAM, per vector of the scope."""


def vector_bytes(dimensions: int) -> int:
    """RAM of a vector in the index of a scope: 16-bit numbers, one bit each, its id and facts."""
    return 2 * dimensions + dimensions // 8 + 37


def load(fleet: Fleet) -> dict[str, float]:
    """What the fleet asks of the servers."""
    steps = fleet.agents * fleet.busy / fleet.seconds_per_step
    commits = steps * fleet.commits_per_step
    vectors = fleet.steps_per_scope * fleet.passages_per_step
    return {
        "steps per second": steps,
        "commits per second": commits,
        "bytes written per second": steps * (fleet.record_bytes + fleet.index_bytes),
        "days until all steps are kept": fleet.steps / (steps * DAY) if steps else math.inf,
        "bytes of the record": fleet.steps * fleet.record_bytes,
        "bytes of the index": fleet.steps * fleet.index_bytes,
        "share of a server's commits": commits / (fleet.servers * capacity(fleet)),
        "B-trees of the newest partition": steps * DAY * fleet.partition_days * fleet.row_bytes,
        "partitions": math.ceil(fleet.steps / (steps * DAY * fleet.partition_days)) if steps else 0,
        "vectors of a scope": vectors,
        "RAM of a scope's vectors": vectors * vector_bytes(fleet.dimensions),
        "RAM of all vectors": fleet.steps * fleet.passages_per_step * vector_bytes(fleet.dimensions),
        "vector search in a scope, ms": vectors * fleet.scan_ns_per_vector / 1e6,
    }


def capacity(fleet: Fleet) -> float:
    """Commits per second of a server."""
    return fleet.connections * 1_000 / fleet.commit_ms


def waiting(fleet: Fleet, seconds: float = 20.0, seed: int = 0) -> dict[str, float]:
    """Simulates commits that arrive at random at the connections of all servers; how long they wait, in ms.

    A commit takes its time at the first connection that is free. Times vary exponentially around their mean.
    """
    chance = random.Random(seed)
    rate = load(fleet)["commits per second"]
    free = [0.0] * (fleet.connections * fleet.servers)
    waits, now = list[float](), 0.0
    while rate and (now := now + chance.expovariate(rate)) < seconds:
        start = max(now, heapq.heappop(free))
        waits.append(1_000 * (start - now))
        heapq.heappush(free, start + chance.expovariate(1_000 / fleet.commit_ms))
    waits.sort()
    if not waits:
        return {"commits": 0, "p50": 0.0, "p99": 0.0}
    return {"commits": len(waits), "p50": waits[len(waits) // 2], "p99": waits[int(0.99 * (len(waits) - 1))]}


def limits(fleet: Fleet) -> dict[str, float]:
    """How many times its load the fleet could grow before each resource is full; below 1 it is full already."""
    now = load(fleet)
    disk = now["bytes of the record"] + now["bytes of the index"]
    return {
        "commits of the servers": fleet.servers * capacity(fleet) / now["commits per second"],
        "disk of the servers": fleet.servers * fleet.disk_bytes / disk,
        "RAM for the newest partition": fleet.servers * fleet.ram_bytes / now["B-trees of the newest partition"],
        "vector search in a scope within 100 ms": 100 / now["vector search in a scope, ms"],
        "vectors of a scope in 4 GB of a process": 4e9 / now["RAM of a scope's vectors"],
        "vectors of all scopes in one process of 64 GB": 64e9 / now["RAM of all vectors"],
    }
