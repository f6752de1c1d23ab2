"""D2: a step whose write returned is there after a power cut.

A file system of our own keeps writes apart until they are synced. At a power cut, each sector that was not synced is
written or not, or holds garbage: a disk may write sectors in any order, and tear the one it is writing. What was synced
is there.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from scripted import answer, calling_agent, calls, code, code_agent
from smolagents import ActionStep

from smolmem import Memory
from smolmem.core.encoding import codec
from smolmem.core.errors import StoreError

TORTURE = bool(os.environ.get("SMOLMEM_TORTURE"))
SECTOR = 512
BASE = apsw.vfs_names()[0]


class Disk(apsw.VFS):
    """The real file system, on which databases and logs hold what was synced; the rest is in `unsynced`."""

    def __init__(self, name: str) -> None:
        self.contents: dict[str, bytearray] = {}
        self.synced: dict[str, bytes] = {}
        self.operations = 0
        self.cut_at: int | None = None
        self.cut_on_first_page = False
        self.off = False
        super().__init__(name, BASE, makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> Any:
        return DiskFile(self, name, flags)

    def xDelete(self, name: str, syncdir: bool) -> None:
        self.step()
        self.contents.pop(name, None)
        self.synced.pop(name, None)
        super().xDelete(name, syncdir)

    def step(self) -> None:
        """One operation that changes a file; the power may go before it."""
        if self.off:
            raise apsw.IOError("the power is off")
        if self.operations == self.cut_at:
            self.off = True
            raise apsw.IOError("the power went off")
        self.operations += 1

    def leave(self, chance: random.Random) -> None:
        """Writes what the disk holds after the cut."""
        for name, wanted in self.contents.items():
            if os.path.exists(name):
                Path(name).write_bytes(after_the_cut(self.synced.get(name, b""), bytes(wanted), chance))


def after_the_cut(synced: bytes, wanted: bytes, chance: random.Random) -> bytes:
    """A file of which each changed sector holds the synced bytes, the new ones, parts of both, or garbage."""
    kept, garbled = chance.random(), chance.choice([0.0, 0.02, 0.3, 1.0])
    length = chance.choice([len(synced), len(wanted), chance.randint(*sorted((len(synced), len(wanted))))])
    made = bytearray()
    for start in range(0, length, SECTOR):
        old = synced[start : start + SECTOR].ljust(SECTOR, b"\0")
        new = wanted[start : start + SECTOR].ljust(SECTOR, b"\0")
        tear = chance.randrange(SECTOR)
        if old == new:
            made += old
        elif chance.random() < garbled:
            made += chance.choice([chance.randbytes(SECTOR), bytes(SECTOR), new[:tear] + old[tear:]])
        else:
            made += new if chance.random() < kept else old
    return bytes(made[:length])


class DiskFile(apsw.VFSFile):
    """A file whose writes stay in memory until they are synced."""

    def __init__(self, disk: Disk, name: Any, flags: Any) -> None:
        self.disk = disk
        self.name = name.filename() if isinstance(name, apsw.URIFilename) else name
        super().__init__(BASE, name, flags)
        self.kept_apart = bool(flags[0] & (apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_WAL))
        if self.kept_apart and self.name not in disk.contents:
            there = super().xRead(super().xFileSize(), 0) if super().xFileSize() else b""
            disk.contents[self.name], disk.synced[self.name] = bytearray(there), there

    def xRead(self, amount: int, offset: int) -> bytes:
        if not self.kept_apart:
            return super().xRead(amount, offset)
        return bytes(self.disk.contents[self.name][offset : offset + amount])

    def xFileSize(self) -> int:
        return len(self.disk.contents[self.name]) if self.kept_apart else super().xFileSize()

    def xWrite(self, data: bytes, offset: int) -> None:
        self.disk.step()
        if not self.kept_apart:
            return super().xWrite(data, offset)
        held = self.disk.contents[self.name]
        held.extend(bytes(max(0, offset - len(held))))
        held[offset : offset + len(data)] = data
        self.disk.off |= self.disk.cut_on_first_page and offset == 0 and not self.name.endswith("-wal")
        return None

    def xTruncate(self, size: int) -> None:
        self.disk.step()
        if not self.kept_apart:
            return super().xTruncate(size)
        del self.disk.contents[self.name][size:]
        return None

    def xSync(self, flags: int) -> None:
        self.disk.step()
        if self.kept_apart:
            self.disk.synced[self.name] = bytes(self.disk.contents[self.name])
        return


@pytest.fixture
def disk() -> Iterator[Disk]:
    made, checkpoints = Disk("power"), random.Random(0)

    def checkpoint_soon(connection: apsw.Connection) -> None:
        connection.wal_autocheckpoint(checkpoints.choice([3, 10, 40, 1000]))

    apsw.connection_hooks.append(checkpoint_soon)
    try:
        yield made
    finally:
        apsw.connection_hooks.remove(checkpoint_soon)
        made.unregister()


def agent_of(chance: random.Random, steps: int) -> Any:
    """A code agent or a tool-calling agent with so many steps."""
    if chance.random() < 0.5:
        return code_agent(*(code(f"print({n}, 'x' * {chance.randrange(3000)})") for n in range(steps - 1)), LAST_CODE)
    cities = [
        calls(*[("weather", {"city": f"{n}-{m}"}) for m in range(chance.choice([1, 1, 3]))]) for n in range(steps)
    ]
    return calling_agent(*cities[1:], answer("mild"), max_steps=50)


LAST_CODE = code("final_answer(1)")


def record(disk: Disk, path: Path, chance: random.Random, durability: Any = "full") -> dict[str, list[int]]:
    """Runs agents until the power is cut; returns the steps of each task whose writes had returned before."""
    done: dict[str, list[int]] = {}
    memory = Memory(path, embedder="off", durability=durability)
    try:
        for number in range(chance.randint(1, 3)):
            agent = memory.attach(agent_of(chance, chance.randint(2, 9)))
            task = f"task {number}"
            for event in agent.run(task, stream=True):
                if isinstance(event, ActionStep) and not disk.off:
                    done.setdefault(task, []).append(event.step_number)
        memory.close()
    except (StoreError, apsw.Error):
        assert disk.off
    disk.off = True
    close(memory)
    return done


def close(memory: Memory) -> None:
    """Closes the file of a process that has no power."""
    with contextlib.suppress(StoreError, apsw.Error):
        memory._store.close()


def cut(disk: Disk, path: Path, seed: int, durability: Any = "full") -> tuple[int, int, list[str]]:
    """Records until the power is cut; returns how many steps were acknowledged, how many are lost, and all problems."""
    chance = random.Random(seed)
    disk.contents, disk.synced, disk.operations, disk.off = {}, {}, 0, False
    Memory(path, embedder="off").close()  # a new file is not ours until its first write returned
    disk.cut_at = disk.operations + chance.randrange(1200)
    done = record(disk, path, chance, durability)
    disk.leave(chance)
    Path(f"{path}-shm").unlink(missing_ok=True)
    disk.off, disk.cut_at = False, None
    apsw.set_default_vfs(BASE)
    try:
        with Memory(path, embedder="off") as memory:
            kept = {run.title: [step.number for step in run.steps if step.kind == "action"] for run in memory.runs()}
            lost = sum(len(set(numbers) - set(kept.get(task, ()))) for task, numbers in done.items())
            gaps = [task for task, numbers in kept.items() if numbers != list(range(1, len(numbers) + 1))]
            return sum(map(len, done.values())), lost, [*memory.verify().problems, *gaps]
    finally:
        apsw.set_default_vfs("power")


@pytest.mark.promise("D2")
@pytest.mark.parametrize("part", range(40 if TORTURE else 1))
def test_no_step_whose_write_returned_is_lost_in_a_power_cut(
    tmp_path: Path, disk: Disk, part: int, record_property: Callable[[str, object], None]
) -> None:
    count, promised = 25, 0
    record_property("cases", count)
    record_property("seeds", f"{count * part}–{count * (part + 1) - 1}")
    for seed in range(count * part, count * (part + 1)):
        acknowledged, lost, problems = cut(disk, tmp_path / f"{seed}.db", seed)
        assert (lost, problems) == (0, []), f"seed {seed}"
        promised += acknowledged
    assert promised > count


@pytest.mark.promise("D2")
def test_a_torn_sector_of_a_later_write_takes_no_synced_step_with_it(tmp_path: Path, disk: Disk) -> None:
    """Writes are not aligned to sectors: what is written next begins in the sector where a synced write ends."""
    for seed in range(100 if TORTURE else 5):
        path, chance = tmp_path / f"{seed}.db", random.Random(seed)
        disk.contents, disk.synced, disk.off = {}, {}, False
        memory = Memory(path, embedder="off")
        memory.attach(agent_of(chance, 3)).run("synced")
        encoded = codec.encode(chance.random())
        memory._store.transact(partial(memory._journal.keep, encoded), sync=False)
        disk.off = True
        close(memory)
        for name, wanted in disk.contents.items():
            Path(name).write_bytes(after_the_cut(disk.synced[name], bytes(wanted), GarbleAll(seed)))
        Path(f"{path}-shm").unlink(missing_ok=True)
        apsw.set_default_vfs(BASE)
        with Memory(path, embedder="off") as memory:
            assert [(len(run.steps), run.status) for run in memory.runs()] == [(4, "finished")], seed
            assert memory.verify()
        apsw.set_default_vfs("power")


class GarbleAll(random.Random):
    """Garbles every sector that was not synced."""

    def choice(self, options: Any) -> Any:
        return options[-1] if 1.0 in options else options[0]


@pytest.mark.promise("D2")
def test_the_simulated_disk_loses_what_was_not_synced(tmp_path: Path, disk: Disk) -> None:
    """With `durability="normal"` steps are not synced: were none lost, the simulation would prove nothing."""
    outcomes = [cut(disk, tmp_path / f"{seed}.db", seed, "normal") for seed in range(12)]
    assert sum(lost for _, lost, _ in outcomes) > 0
    assert [problems for *_, problems in outcomes if problems] == []


@pytest.mark.promise("D2")
def test_a_first_page_that_is_garbled_in_a_checkpoint_is_recovered_from_the_log(tmp_path: Path, disk: Disk) -> None:
    for seed in range(100 if TORTURE else 5):
        path, chance = tmp_path / f"{seed}.db", random.Random(seed)
        disk.contents, disk.synced, disk.off, disk.cut_on_first_page = {}, {}, False, False
        with Memory(path, embedder="off") as memory:
            memory.attach(agent_of(chance, 3)).run("before")
        disk.cut_on_first_page = True
        memory = Memory(path, embedder="off")
        memory.attach(agent_of(chance, 12)).run("after")
        with pytest.raises((StoreError, apsw.Error)):
            memory._store.do("empty_log", {})
        close(memory)
        name = str(path)
        disk.synced[f"{name}-wal"] = bytes(disk.contents[f"{name}-wal"])
        disk.contents[name][:SECTOR] = chance.randbytes(SECTOR)
        disk.synced[name] = bytes(disk.contents[name])
        disk.leave(chance)
        Path(f"{path}-shm").unlink(missing_ok=True)
        disk.off = disk.cut_on_first_page = False
        apsw.set_default_vfs(BASE)
        with Memory(path, embedder="off") as memory:
            assert {run.title for run in memory.runs()} == {"before", "after"}, seed
            assert memory.verify(), seed
        apsw.set_default_vfs("power")
