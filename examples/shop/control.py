"""Starts, stops, repairs and breaks a shop, from any process that knows its folder.

The shop keeps running when the process that started it ends, and other processes find it through its folder.
`state.json` there holds process id, port and release. The shop holds a lock while it runs, so that a stale `state.json`
is never taken for a running shop. `releases.json` lists the deployed releases, the newest last.

On the command line: `python examples/shop/control.py start --folder DIR`, then `status`, `fault errors`, `rollback` …
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import http.client
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

HOST = "127.0.0.1"
FAULTS = {
    "crash": "the process is killed; a restart fixes it",
    "errors": "release 41 is deployed, and its checkout fails; a rollback fixes it",
    "leak": "memory and latency grow with each request; a restart fixes it",
    "disk": "the data folder is full; a person must fix it (clear)",
    "flapping": "every other pair of checkouts fails; a restart fixes it",
}
FIRST_RELEASES = [39, 40]
BAD_RELEASE = 41
VISITS = 10
"""Requests that are made after a leak begins."""
PATIENCE = 10.0
RESTARTS = 3

_children: set[int] = set()
"""Processes started by this process; they are reaped, so that none stays a zombie."""


class ShopError(Exception):
    """An operation on the shop that failed."""


@dataclass(frozen=True)
class Health:
    """The result of a health check; `status` is None if the shop did not answer."""

    status: int | None
    problem: str
    release: int

    @property
    def ok(self) -> bool:
        """Whether the shop is healthy."""
        return self.status == HTTPStatus.OK

    def __str__(self) -> str:
        said = f"{self.status} {HTTPStatus(self.status).phrase}" if self.status else "no answer"
        return f"health check: {said}{f', {self.problem}' * bool(self.problem)} (release {self.release})"


class Shop:
    """A shop in a folder, running or not. As a context manager, it starts the shop and stops it at the end."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()

    def __enter__(self) -> Shop:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- state -----------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The address of the shop, also after it has stopped."""
        return f"http://{HOST}:{self._state()['port']}"

    @property
    def pid(self) -> int | None:
        """The process id of the shop, if it is running."""
        return int(self._state()["pid"]) if self.running() else None

    @property
    def release(self) -> int:
        """The deployed release."""
        return self._releases()[-1]

    def running(self) -> bool:
        """Whether a process holds the lock of the folder."""
        _reap()
        try:
            file = (self.folder / "lock").open("rb")
        except FileNotFoundError:
            return False
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _state(self) -> dict[str, Any]:
        file = self.folder / "state.json"
        _until(lambda: file.exists() or not self.running())  # a starting shop has no state file yet
        try:
            state: dict[str, Any] = json.loads(file.read_text())
        except FileNotFoundError:
            raise ShopError(f"no shop is running in {self.folder}") from None
        return state

    def _releases(self) -> list[int]:
        try:
            releases: list[int] = json.loads((self.folder / "releases.json").read_text())
        except FileNotFoundError:
            return FIRST_RELEASES
        return releases

    # --- running ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the shop on its last port and waits until it answers; does nothing if it is running.

        Raises:
            ShopError: if it did not start; the message contains the last line of its log.
        """
        if self.running():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        pid = self._spawn(self._last_port())
        try:
            started = _until(lambda: self._answers(pid) or _ended(pid))
        except BaseException:  # Ctrl-C: a shop that does not hold the lock yet could not be found and stopped later
            os.kill(pid, signal.SIGKILL)
            raise
        if not started or not self.running():
            raise ShopError(f"the shop did not start: {self.log(1) or 'its log is empty'}")

    def _last_port(self) -> int:
        with contextlib.suppress(ShopError):
            return int(self._state()["port"])
        return 0

    def _spawn(self, port: int) -> int:
        app, log = Path(__file__).with_name("app.py"), self.folder / "shop.log"
        options = {"--folder": self.folder, "--port": port, "--release": self.release}
        command = [sys.executable, "-IS", str(app), *(str(word) for pair in options.items() for word in pair)]
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        # Not subprocess.Popen, which must be waited for: the shop keeps running when this process ends.
        pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=files, setsid=True)
        _children.add(pid)
        return pid

    def _answers(self, pid: int) -> bool:
        try:
            return bool(self._state()["pid"] == pid and self._ask("GET", "/"))
        except ShopError:
            return False

    def stop(self) -> None:
        """Stops the shop with SIGTERM, then SIGKILL; does nothing if it is not running."""
        for kind in (signal.SIGTERM, signal.SIGKILL):
            if pid := self.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, kind)
                self._until_gone(pid)

    def _until_gone(self, pid: int | None) -> None:
        _until(lambda: not self.running() and _ended(pid), PATIENCE / 2)

    def restart(self) -> None:
        """Restarts the shop with its current release.

        A process that was killed in a restart leaves a shop that is just starting, perhaps with another release.

        Raises:
            ShopError: if another release is started each time.
        """
        for _ in range(RESTARTS):
            self.stop()
            self.start()
            if self._state()["release"] == self.release:
                return
        raise ShopError("another process keeps starting the shop with another release")

    def deploy(self, release: int) -> None:
        """Deploys a release and restarts the shop."""
        self._release([*self._releases(), release])

    def rollback(self) -> None:
        """Rolls back to the previous release.

        Raises:
            ShopError: if there is none.
        """
        if len(self._releases()) == 1:
            raise ShopError(f"there is no release before {self.release} to roll back to")
        self._release(self._releases()[:-1])

    def _release(self, releases: list[int]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.folder / "releases.json.new"
        new.write_text(json.dumps(releases))
        new.replace(self.folder / "releases.json")
        self.restart()

    # --- faults --------------------------------------------------------------------------------------------------

    def fault(self, name: str) -> None:
        """Injects one of `FAULTS`.

        Raises:
            ShopError: if there is no such fault, or the shop is not running.
        """
        if name not in FAULTS:
            raise ShopError(f"there is no fault {name!r}: choose one of {', '.join(FAULTS)}")
        figures = self.metrics()  # fails if the shop does not answer
        if name == "errors":
            self.deploy(BAD_RELEASE)
        elif name == "disk":
            room = figures["disk_quota_bytes"] - figures["disk_used_bytes"]
            self._uploads.write_bytes(b"\0" * max(room, 0))
        elif name == "crash":
            pid = self.pid
            with contextlib.suppress(ShopError):  # the process ends before it can answer
                self._ask("POST", "/faults?name=crash")
            self._until_gone(pid)
        else:
            self._ask("POST", f"/faults?name={name}")
            for _ in range(VISITS if name == "leak" else 0):
                self._ask("GET", "/")

    def clear(self) -> None:
        """Removes every fault: frees the disk, deploys a good release, starts a new process."""
        self._uploads.unlink(missing_ok=True)
        self._release(FIRST_RELEASES)

    @property
    def _uploads(self) -> Path:
        """The file that fills the data folder."""
        return self.folder / "data" / "uploads.bin"

    # --- requests ---------------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """Checks the health; a shop that does not answer gives a `Health`, too."""
        try:
            status, body = self._ask("GET", "/health")
        except ShopError as error:
            return Health(None, str(error), self.release)
        problem = body.get("problem", "")
        fails = "checkout fails: " if status == HTTPStatus.INTERNAL_SERVER_ERROR else ""
        return Health(status, f"{fails}{problem}" if problem else "", body["release"])

    def checkout(self, item: str = "mug") -> dict[str, Any]:
        """Buys an item.

        Raises:
            ShopError: if the shop does not answer, or the checkout fails.
        """
        status, body = self._ask("POST", f"/checkout?item={item}")
        if status != HTTPStatus.OK:
            raise ShopError(f"checkout answered {status}: {body.get('problem')}")
        return body

    def metrics(self) -> dict[str, Any]:
        """The metrics of the shop.

        Raises:
            ShopError: if the shop does not answer.
        """
        return self._ask("GET", "/metrics")[1]

    def log(self, lines: int = 20) -> str:
        """The last lines of the log."""
        try:
            with (self.folder / "shop.log").open(encoding="utf-8", errors="replace") as file:
                return "\n".join(file.read().splitlines()[-max(lines, 1) :])
        except FileNotFoundError:
            return ""

    def _ask(self, method: str, path: str) -> tuple[int, dict[str, Any]]:
        port = self._state()["port"]
        connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE)
        try:
            connection.request(method, path, headers={"X-Shop": "control"})
            answer = connection.getresponse()
            body, ours = (
                answer.read().decode(errors="replace"),
                answer.getheader("Server") == f"shop/{self._state()['pid']}",
            )
        except (OSError, http.client.HTTPException) as error:
            why = "connection refused" if isinstance(error, ConnectionRefusedError) else str(error).lower()
            raise ShopError(f"the shop does not answer at {self.url}: {why}") from None
        finally:
            connection.close()
        if not ours:
            raise ShopError(f"the shop does not answer at {self.url}: another program uses its port")
        return answer.status, json.loads(body) if body.startswith("{") else {}


def _reap() -> set[int]:
    """Reaps child processes that have ended; returns the others."""
    for pid in tuple(_children):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        _children.discard(pid)
    return _children


def _ended(pid: int | None) -> bool:
    return pid not in _reap()


def _until(true: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Waits for a condition; returns whether it became true in time."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


# --- the command line ----------------------------------------------------------------------------------------------


def show(shop: Shop, console: Console) -> None:
    """Prints the health, the metrics and the log of the shop."""
    health = shop.health()
    console.print(Text(f"{'●' if health.ok else '○'} {health}", style="bold green" if health.ok else "bold red"))
    if shop.running():
        figures = shop.metrics()
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_row("url", shop.url)
        table.add_row("process", f"{shop.pid}, up {figures['uptime_seconds']} s")
        table.add_row("requests", f"{figures['requests']}, {figures['errors']} of them failed")
        table.add_row("latency", f"p50 {figures['latency_p50_ms']} ms, p95 {figures['latency_p95_ms']} ms")
        table.add_row("memory", share(figures["memory_bytes"], figures["memory_allowed_bytes"]))
        table.add_row("disk", share(figures["disk_used_bytes"], figures["disk_quota_bytes"]))
        console.print(table)
    console.print(Text(shop.log(3), style="dim"))


def share(used: int, allowed: int) -> Text:
    """A bar that shows the used share."""
    part = min(used / allowed, 1.0)
    bar = "█" * round(part * 20)
    colour = "red" if part > 0.95 else "yellow" if part > 0.7 else "green"
    return Text.assemble((f"{bar:░<20}", colour), f" {used / 1e6:.1f} of {allowed / 1e6:.1f} MB")


def main() -> int:
    """Parses the command line, runs one command, and prints the status of the shop."""
    acts = ("start", "stop", "status", "fault", "clear", "restart", "rollback")
    faults = "\n".join(f"  {name:10}{about}" for name, about in FAULTS.items())
    parser = argparse.ArgumentParser(
        description="Runs, repairs and breaks a small web shop.",
        epilog=f"faults:\n{faults}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("act", choices=acts)
    parser.add_argument("name", nargs="?", default="", help="the name of a fault")
    parser.add_argument("--folder", type=Path, required=True, help="the folder of the shop")
    options = parser.parse_args()
    shop, console = Shop(options.folder), Console()
    try:
        if options.act == "fault":
            shop.fault(options.name)
        elif options.act != "status":
            getattr(shop, options.act)()
        if options.act == "stop":
            console.print("The shop is stopped.")
        else:
            show(shop, console)
    except ShopError as error:
        console.print(Text(str(error), style="bold red"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
