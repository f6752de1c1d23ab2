"""Which process writes a run: host, process id and start time, so that a reused process id is not taken for it.

A run that is marked as running while its writer is gone was killed; nothing had to be written for that to be known.
"""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path

IMPORTED = ""
"""The writer of a run that was loaded from an export, and is not trusted."""
RESTORED = "restored"
"""The writer of a run that was loaded from an export whose origins the user chose to keep."""


def this_process() -> str:
    """This process, as it is written beside its runs."""
    return _describe(os.getpid())


@lru_cache(maxsize=4)
def _describe(pid: int) -> str:
    return f"{socket.gethostname()}:{pid}:{_start_time(pid)}"


def is_dead(writer: str) -> bool:
    """Whether a writer is known to be gone; a writer on another host is assumed to be alive."""
    host, _, rest = writer.rpartition(":")[0].rpartition(":")
    started = writer.rpartition(":")[2]
    if host != socket.gethostname() or not rest.isdigit():
        return False
    pid = int(rest)
    if pid == os.getpid():
        return writer != this_process()
    if not _exists(pid):
        return True
    now = _start_time(pid)
    return bool(started and now and started != now)


def _exists(pid: int) -> bool:
    if os.name == "nt":  # pragma: no cover - there, os.kill would end the process
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return not _is_zombie(pid)


def _start_time(pid: int) -> str:
    """When a process started, in ticks since boot; empty where the system does not tell."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def _is_zombie(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] in ("Z", "X")


def _stat(pid: int) -> list[str]:
    """Linux's description of a process, after its name, which may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
