"""Which process writes a run, and whether that process is known to be gone.

A process id means something only on the same boot of a machine and in the same PID namespace: a container has ids of
its own, and may have the host name of another. So a writer is named by boot, namespace, process id and start time, and
nothing is concluded about a writer of another boot or namespace: its lease decides (`leases.py`).
"""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

IMPORTED = ""
"""The writer of a run that was loaded from an export, and is not trusted."""
RESTORED = "restored"
"""The writer of a run that was loaded from an export whose origins the user chose to keep."""
COPYING = "copying"
"""The writer of a run that a copy has begun and not completed: it can be neither resumed nor taken over."""

_FORMAT = "2"


class _Process(NamedTuple):
    """A writer, read from its name. `place` is where its process id is valid."""

    place: tuple[str, ...]
    pid: int
    started: str
    host: str


@lru_cache(maxsize=16)
def name_writer(pid: int, token: str) -> str:
    """The name of a writer in this process; the token tells several writers of one process apart."""
    boot, namespace = _boot(), _namespace()
    return ":".join((_FORMAT, boot, namespace, str(pid), _own_start_time(), token, socket.gethostname()))


def is_dead(writer: str) -> bool:
    """Whether a writer is known to be gone; false if its process id is not valid here."""
    process = _process(writer)
    if process is None or process.place not in _places():
        return False
    if process.pid != os.getpid() and not _exists(process.pid):
        return True
    now = _own_start_time() if process.pid == os.getpid() else _start_time(process.pid)
    return bool(process.started and now and process.started != now)


def needs_no_lease(writer: str) -> bool:
    """Whether a writer is a copy, or of an earlier release without leases, on this host, where its process is seen."""
    process = _process(writer)
    return writer == COPYING or (process is not None and process.place == ("host", socket.gethostname()))


def describe(writer: str) -> str:
    """A writer in words."""
    if writer == COPYING:
        return "a copy that was not completed (make it again with `smolmem copy`)"
    process = _process(writer)
    return "another process" if process is None else f"process {process.pid} on {process.host}"


def _process(writer: str) -> _Process | None:
    if writer.startswith(f"{_FORMAT}:") and writer.count(":") >= 6:
        _, boot, namespace, pid, started, _, host = writer.split(":", 6)
        place: tuple[str, ...] = (boot, namespace) if boot and namespace else ("no boot id", host)
    else:  # of an earlier release
        host, pid, started = ([""] * 3 + writer.rsplit(":", 2))[-3:]
        place = ("host", host)
    return _Process(place, int(pid), started, host) if pid.isdigit() else None


def _places() -> tuple[tuple[str, ...], ...]:
    """Where the process ids that this process sees are valid."""
    host, boot, namespace = socket.gethostname(), _boot(), _namespace()
    return (boot, namespace) if boot and namespace else ("no boot id", host), ("host", host)


@lru_cache(maxsize=1)
def _boot() -> str:
    """The id of this boot of the machine; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _namespace() -> str:
    """The PID namespace of this process; empty if there is none. Numbers are reused once all processes have ended."""
    try:
        return os.readlink("/proc/self/ns/pid").partition("[")[2].rstrip("]")
    except OSError:
        return ""


def _exists(pid: int) -> bool:
    if os.name == "nt":  # pragma: no cover - there, os.kill would end the process
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return _stat(pid)[:1] not in (["Z"], ["X"])


def _start_time(pid: int) -> str:
    """When a process started, in ticks since boot; empty where the system does not tell."""
    return "".join(_stat(pid)[19:20])


def _own_start_time() -> str:
    return "".join(_read_stat("self")[19:20])


def _stat(pid: int) -> list[str]:
    """Linux's description of a process; nothing where /proc shows the processes of another namespace."""
    try:
        return _read_stat(str(pid)) if os.readlink("/proc/self") == str(os.getpid()) else []
    except OSError:
        return []


def _read_stat(which: str) -> list[str]:
    """The description of a process after its name, which may hold anything."""
    try:
        return Path(f"/proc/{which}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
