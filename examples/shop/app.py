"""A small web shop: pages, a checkout, a health check, metrics and a log. Standard library only.

Its faults are real: release 41 selects a column that does not exist, the leak allocates memory and slows every request,
the flapping shop has closed half of its database connections, and a full data folder rejects orders. The health check
makes a complete checkout and rolls it back, so it fails whenever a customer would fail.

`control.py` starts the shop. By hand: `python -m shop.app --folder DIR`, or `python app.py --folder DIR`.
Where `SHOP_LIFELINE` names an inherited pipe, the shop ends when the other end of the pipe is closed.
The shop runs on Linux and macOS and listens on loopback only.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

HOST = "127.0.0.1"
LIFELINE = "SHOP_LIFELINE"
"""The environment variable with the file descriptor of a pipe that ends the process when it is closed."""
PRODUCTS = {
    "mug": ("☕ Mug", 12.0),
    "lamp": ("💡 Lamp", 45.0),
    "plant": ("🌱 Plant", 19.5),
    "chair": ("🪑 Chair", 89.0),
}
RECEIPTS = {
    39: "SELECT id, item, price FROM orders WHERE id = ?",
    40: "SELECT id, item, price FROM orders WHERE id = ?",
    41: "SELECT id, item, price, currency FROM orders WHERE id = ?",
}
"""How each release reads an order. Release 41 was deployed before the migration it needs."""
CONNECTIONS = 4
MEMORY_ALLOWED = 96_000_000
DISK_QUOTA = 4_000_000
ORDER_ROOM = 4_096
LEAK = 8_000_000
LEAK_MOST = 192_000_000
"""Bytes that a leak takes per request, and its limit, so that it cannot exhaust the machine."""
PAGE = """<!doctype html><meta charset="utf-8"><title>The little shop</title>
<style>body{{font:17px/1.5 system-ui;max-width:36rem;margin:3rem auto;padding:0 1rem;color:#234;background:#fbfaf6}}
form{{display:flex;justify-content:space-between;padding:.7rem 0;border-bottom:1px solid #ddd}}
button{{border:0;border-radius:6px;padding:.3rem .9rem;background:#2a7;color:#fff}}small{{color:#789}}</style>
<h1>The little shop</h1>{products}<p><small>release {release} · <a href="/health">health</a> ·
<a href="/metrics">metrics</a></small></p>"""


class App:
    """The shop without HTTP."""

    def __init__(self, folder: Path, release: int) -> None:
        self.folder, self.data, self.release = folder, folder / "data", release
        self.data.mkdir(parents=True, exist_ok=True)
        self.began = time.monotonic()
        self.requests = self.errors = self.turn = 0
        self.took: deque[float] = deque(maxlen=200)
        self.leaking = False
        self.kept: list[bytes] = []
        self.lock = threading.Lock()
        self.pool = [self._connect() for _ in range(CONNECTIONS)]

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.data / "orders.db", check_same_thread=False, isolation_level=None)
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, at TEXT, item TEXT, price REAL)")
        return connection

    def close(self) -> None:
        """Waits for the current request and closes the connections."""
        with self.lock:
            for connection in self.pool:
                connection.close()
        self.log("stopped")

    # --- requests -------------------------------------------------------------------------------------

    def page(self) -> str:
        """The page of the shop."""
        rows = (
            f'<form method="post" action="/checkout?item={key}"><span>{name}</span>'
            f"<span>{price:.2f} <button>Buy</button></span></form>"
            for key, (name, price) in PRODUCTS.items()
        )
        return PAGE.format(products="".join(rows), release=self.release)

    def checkout(self, item: str, *, keep: bool = True) -> dict[str, Any]:
        """Stores an order and reads it for the receipt; with `keep=False` the order is rolled back."""
        if item not in PRODUCTS:
            raise LookupError(f"there is no product {item[:20]!r}")
        with self.lock:
            connection = self.pool[self.turn % CONNECTIONS]
            self.turn += 1
            connection.execute("BEGIN IMMEDIATE")
            try:
                receipt = self._order(connection, item)
                if keep:
                    connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        return receipt

    def _order(self, connection: sqlite3.Connection, item: str) -> dict[str, Any]:
        used = self.disk_used()
        if used + ORDER_ROOM > DISK_QUOTA:
            problem = f"disk quota exceeded: {used // 1000} kB of {DISK_QUOTA // 1000} kB used"
            raise OSError(errno.EDQUOT, problem)
        new = (time.strftime("%Y-%m-%d %H:%M:%S"), item, PRODUCTS[item][1])
        number = connection.execute("INSERT INTO orders (at, item, price) VALUES (?, ?, ?)", new).lastrowid
        row = connection.execute(RECEIPTS[self.release], (number,)).fetchone()
        return {"order": row[0], "item": row[1], "price": row[2]}

    def health(self) -> dict[str, Any]:
        """Raises what a customer's checkout would raise, or MemoryError if the process uses too much memory."""
        used = memory_used()
        if used > MEMORY_ALLOWED:
            raise MemoryError(f"memory {used // 1_000_000} MB of {MEMORY_ALLOWED // 1_000_000} MB allowed")
        self.checkout("mug", keep=False)
        return {"status": "ok", "release": self.release}

    def metrics(self) -> dict[str, Any]:
        """The metrics of this process since its start."""
        took = sorted(self.took) or [0.0]
        return {
            "release": self.release,
            "uptime_seconds": round(time.monotonic() - self.began, 1),
            "requests": self.requests,
            "errors": self.errors,
            "latency_p50_ms": round(took[len(took) // 2], 1),
            "latency_p95_ms": round(took[int(len(took) * 0.95)], 1),
            "memory_bytes": memory_used(),
            "memory_allowed_bytes": MEMORY_ALLOWED,
            "disk_used_bytes": self.disk_used(),
            "disk_quota_bytes": DISK_QUOTA,
        }

    def disk_used(self) -> int:
        """Bytes in the data folder."""
        with os.scandir(self.data) as entries:
            return sum(size_of(entry) for entry in entries)

    # --- faults -------------------------------------------------------------------------------------------

    def fault(self, name: str) -> None:
        """Breaks this process; `control.py` makes the bad release and the full folder."""
        if name == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        elif name == "leak":
            self.leaking = True
        elif name == "flapping":
            with self.lock:
                self.turn = 0
                for connection in self.pool[CONNECTIONS // 2 :]:
                    connection.close()
        else:
            raise LookupError(f"there is no fault {name[:20]!r}")

    def leak(self) -> None:
        """Keeps one more copy per request and searches all copies."""
        if len(self.kept) * LEAK < LEAK_MOST:
            self.kept.append(b"x" * LEAK)
        for copy in tuple(self.kept):
            copy.find(b"yx")

    # --- metrics and log --------------------------------------------------------------------------------------

    def count(self, ms: float, *, failed: bool) -> None:
        """Counts a request."""
        with self.lock:
            self.requests += 1
            self.errors += failed
            self.took.append(ms)

    def log(self, text: str) -> None:
        """Adds a line to the log."""
        with (self.folder / "shop.log").open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


class Handler(BaseHTTPRequestHandler):
    """Answers and logs every request, also when it fails."""

    server: Server
    timeout = 10

    def version_string(self) -> str:
        """Identifies this process, in case another server gets its port later."""
        return f"shop/{os.getpid()}"

    def log_message(self, *_: Any) -> None:
        """Does nothing: the app has its own log."""

    def do_GET(self) -> None:
        """Answers a GET or a POST."""
        began, app = time.perf_counter(), self.server.app
        url = urlsplit(self.path)
        asked = self._asked(url.query)
        if url.path == "/faults":  # fault injection is not logged: the agent must not see it
            self._send(*self._fault(app, asked))
            return
        status, body, problem = HTTPStatus.OK, "", ""
        try:
            if app.leaking:
                app.leak()
            body = self._body(app, url.path, asked)
        except Exception as error:
            status, problem = status_of(error), message_of(error)
            body = json.dumps({"status": "failing", "problem": problem, "release": app.release})
        ms = (time.perf_counter() - began) * 1000
        if url.path != "/metrics":
            app.count(ms, failed=status >= 500)
        shown = "".join(letter if letter.isalnum() or letter in "/-_." else "?" for letter in url.path[:60])
        app.log(f"{self.command} {shown} {int(status)} {ms:.1f} ms{f' {problem}' * bool(problem)}")
        self._send(status, body)

    do_POST = do_GET

    def _asked(self, query: str) -> dict[str, list[str]]:
        length = self.headers.get("Content-Length", "")
        body = self.rfile.read(min(int(length), 10_000)) if length.isdecimal() else b""
        return parse_qs(query or body.decode("utf-8", "replace"))

    def _body(self, app: App, path: str, asked: dict[str, list[str]]) -> str:
        pages: dict[str, Callable[[], str]] = {
            "/": app.page,
            "/health": lambda: json.dumps(app.health()),
            "/metrics": lambda: json.dumps(app.metrics()),
            "/checkout": lambda: json.dumps(app.checkout(asked.get("item", ["mug"])[0])),
        }
        if path not in pages:
            raise LookupError("there is no such page")
        return pages[path]()

    def _fault(self, app: App, asked: dict[str, list[str]]) -> tuple[HTTPStatus, str]:
        """Injects a fault. Only `control.py` may: a web page in a local browser cannot send this header."""
        if self.command != "POST" or self.client_address[0] != HOST or self.headers["X-Shop"] != "control":
            return HTTPStatus.FORBIDDEN, json.dumps({"problem": "faults are for control.py on this machine"})
        try:
            app.fault(asked.get("name", [""])[0])
        except LookupError as error:
            return HTTPStatus.NOT_FOUND, json.dumps({"problem": message_of(error)})
        return HTTPStatus.OK, "{}"

    def _send(self, status: HTTPStatus, body: str) -> None:
        sent = body.encode()
        try:
            self.send_response(status)
            kind = "text/html" if body.startswith("<") else "application/json"
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)
        except ConnectionError:  # the client has disconnected
            self.close_connection = True


class Server(ThreadingHTTPServer):
    """The HTTP server of the shop."""

    daemon_threads = True

    def __init__(self, app: App, port: int) -> None:
        self.app = app
        super().__init__((HOST, port), Handler)


def status_of(error: Exception) -> HTTPStatus:
    """The HTTP status for an error."""
    if isinstance(error, LookupError):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, OSError | MemoryError):
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.INTERNAL_SERVER_ERROR


def message_of(error: Exception) -> str:
    """The message of an error in one line."""
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(message.split()).rstrip(".") or type(error).__name__


def memory_used() -> int:
    """The resident memory of this process in bytes."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # macOS has only the peak, which is enough to see a leak
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def size_of(entry: os.DirEntry[str]) -> int:
    """The size of a file; 0 if it was deleted meanwhile, as SQLite's journal may be."""
    try:
        return entry.stat().st_size
    except FileNotFoundError:
        return 0


def own(folder: Path) -> int:
    """Locks the folder for the lifetime of this process."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(100):  # `Shop.running` holds the lock for a moment
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return lock
    raise SystemExit(f"another shop is running in {folder}")


def listen(app: App, port: int) -> Server:
    """Listens on the given port, or on a free port if that is in use."""
    try:
        return Server(app, port)
    except OSError:
        return Server(app, 0)


def follow_lifeline() -> None:
    """Ends this process when the process that holds the pipe in `SHOP_LIFELINE` has ended, even by `kill -9`."""
    if pipe := os.environ.get(LIFELINE):
        threading.Thread(target=_end_at_eof, args=[int(pipe)], daemon=True).start()


def _end_at_eof(pipe: int) -> None:
    os.read(pipe, 1)  # nothing is ever written: this returns when the last writer is gone
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Parses the command line and serves until the process is stopped."""
    parser = argparse.ArgumentParser(description="A small web shop.")
    parser.add_argument("--folder", type=Path, required=True, help="the folder for orders, log and state")
    parser.add_argument("--port", type=int, default=0, help="default: any free port")
    parser.add_argument("--release", type=int, default=40, choices=sorted(RECEIPTS), help="default: %(default)s")
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    follow_lifeline()
    own(folder)
    (folder / "state.json").unlink(missing_ok=True)  # the process id in it may belong to another process by now
    app = App(folder, options.release)
    with listen(app, options.port) as server:
        port = server.server_address[1]
        state = folder / "state.json.new"
        state.write_text(json.dumps({"pid": os.getpid(), "port": port, "release": options.release}))
        state.replace(folder / "state.json")
        app.log(f"started release {options.release} at http://{HOST}:{port}, process {os.getpid()}")
        try:
            server.serve_forever(poll_interval=0.1)
        finally:
            app.close()


if __name__ == "__main__":
    main()
