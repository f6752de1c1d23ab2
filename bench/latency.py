"""A network with a delay, between a client and a PostgreSQL server on a unix socket; it counts the messages."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import parse_qs, urlsplit


class Network:
    """Passes bytes on after a delay.

    Args:
        server: the URL of a server on a unix socket.
        seconds: how long an answer takes at least: half of the delay is on the way there, half on the way back.
    """

    def __init__(self, server: str, seconds: float) -> None:
        parts = urlsplit(server)
        self._target = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432"
        self._seconds = seconds
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._address = f"postgresql://{parts.username}@127.0.0.1:{self._listener.getsockname()[1]}"
        self.messages = 0
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: Callable[..., None], *given: object) -> None:
        self._threads.append(threading.Thread(target=work, args=given, daemon=True))
        self._threads[-1].start()

    def url(self, database: str = "postgres") -> str:
        """The server, as it is reached through this network."""
        return f"{self._address}/{database}"

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                answered = threading.Event()
                answered.set()
                for source, target, is_client in ((client, server, True), (server, client, False)):
                    self._start(self._pass_on, source, target, answered, is_client)

    def _pass_on(
        self, source: socket.socket, target: socket.socket, answered: threading.Event, is_client: bool
    ) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                if is_client and answered.is_set():  # the first bytes after an answer: another message
                    self.messages += 1
                    answered.clear()
                    time.sleep(self._seconds / 2)
                elif not is_client and not answered.is_set():
                    time.sleep(self._seconds / 2)
                    answered.set()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()

    def close(self) -> None:
        """Takes no more connections, and waits for the end of those that there are."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)
