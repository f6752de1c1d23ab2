"""A collector of traces: a real HTTP server that decodes OTLP and keeps the spans, or misbehaves as it is told."""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collected:
    """What a collector was sent."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.spans: dict[str, Any] = {}
        self.projects: set[str] = set()
        self.sizes: list[int] = []

    def attributes(self, span: Any) -> dict[str, Any]:
        return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans.values() if span.name == name]

    def tree(self) -> Any:
        """The spans by name, nested and in the order of their beginnings."""
        return self._below(b"")

    def _below(self, parent: bytes) -> list[Any]:
        below = [span for span in self.spans.values() if span.parent_span_id == parent]
        below.sort(key=lambda span: (span.start_time_unix_nano, span.name))
        return [(span.name, self._below(span.span_id)) for span in below]

    def wait(self, condition: Callable[[], Any], seconds: float = 20) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.02)
        return False

    def take(self, body: bytes) -> None:
        self.sizes.append(len(body))
        sent = ExportTraceServiceRequest.FromString(body)
        for resource in sent.resource_spans:
            self.projects.add(self.attributes(resource.resource)["openinference.project.name"])
            for scope in resource.scope_spans:
                self.spans |= {span.span_id.hex(): span for span in scope.spans}


@contextmanager
def collector(status: int = 200, answer: bytes = b"", delay: float = 0.0, port: int = 0) -> Iterator[Collected]:
    """A collector that answers so, after a delay."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collected.requests.append(dict(self.headers))
            collected.paths.append(self.path)
            closing.wait(delay)
            if status == 200:
                collected.take(gzip.decompress(body))
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    closing = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    collected = Collected(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield collected
    finally:
        closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def phoenix(program: Path, folder: Path) -> Iterator[str]:
    """A real Phoenix server, with a database of its own."""
    ports = _free_ports(2)
    settings = {
        "PHOENIX_WORKING_DIR": str(folder / "phoenix"),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(ports[0]),
        "PHOENIX_GRPC_PORT": str(ports[1]),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    (folder / "phoenix").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | settings
    with (folder / "phoenix.log").open("wb") as log:
        process = subprocess.Popen([program, "serve"], env=environment, stdout=log, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{ports[0]}"
    try:
        _wait_for(url, process)
        yield url
    finally:
        process.kill()
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end:
        with suppress(requests.RequestException):
            if requests.get(f"{url}/healthz", timeout=5).ok:
                return
        time.sleep(0.3)
    raise TimeoutError("Phoenix did not start")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
