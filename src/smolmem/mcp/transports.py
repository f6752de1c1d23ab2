"""Runs the MCP server: over standard input and output, or over streamable HTTP behind a token.

Every web page can send requests to a server on loopback, and anyone can point a domain name at 127.0.0.1. So the Host
and Origin headers, which browsers set themselves, are checked before the token: by `check`, a pure function, which
`guard` puts before the server.
"""

from __future__ import annotations

import hmac
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse, Response

from smolmem.core.errors import InvalidArgument
from smolmem.core.text import sanitize
from smolmem.listening import LOOPBACK, guarded, hosts_of, in_url, listen, read_headers, serve_app
from smolmem.mcp.server import MemoryServer, make_server
from smolmem.memory import Memory

PATH = "/mcp"


def serve_stdio(url: str, *, scope: str, write: bool, key: str | bytes | None) -> None:
    """Serves a memory to the program that started this process, until that program closes standard input."""
    with _opened(url, scope, write, key) as memory, _own_streams():
        make_server(memory, write=write).run("stdio")


def serve_http(url: str, *, scope: str, write: bool, host: str, port: int, token: str, key: str | bytes | None) -> None:
    """Serves a memory over HTTP until the server is stopped; prints the address to standard error."""
    with _opened(url, scope, write, key) as memory, listen(host, port, strict=True, option="--http") as listening:
        number = listening.getsockname()[1]
        where = f"{sanitize(url)}, scope {sanitize(scope)}, at http://{in_url(host)}:{number}{PATH}"
        print(f"smolmem serves {where}", file=sys.stderr, flush=True)
        if host not in LOOPBACK:
            print("The token and all answers are sent unencrypted: use a proxy with TLS.", file=sys.stderr, flush=True)
        app = guard(http_app(make_server(memory, write=write)), hosts_of(host, number), token)
        serve_app(app, listening)


def http_app(server: MemoryServer) -> Any:
    """The server as an ASGI app; `guard` checks hosts and origins instead of the SDK."""
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    if hasattr(server.settings, "transport_security"):  # release 1 of the SDK
        server.settings.transport_security = unchecked
        return server.streamable_http_app()
    return server.streamable_http_app(transport_security=unchecked)


@contextmanager
def _own_streams() -> Iterator[None]:
    """Gives the SDK copies of standard input and output: it closes what it is given."""
    streams = sys.stdin, sys.stdout
    sys.stdin, sys.stdout = (os.fdopen(os.dup(number), mode) for number, mode in ((0, "r"), (1, "w")))
    try:
        yield
    finally:
        copies, (sys.stdin, sys.stdout) = (sys.stdin, sys.stdout), streams
        for stream in copies:
            stream.close()


@contextmanager
def _opened(url: str, scope: str, write: bool, key: str | bytes | None) -> Iterator[Memory]:
    if write and "*" in scope:
        raise InvalidArgument(f"{scope!r} covers several scopes: --write needs one scope to write to, --scope NAME.")
    with Memory(url, scope=scope, key=key) as memory:
        yield memory


def check(headers: dict[str, str], hosts: Collection[str], token: str) -> tuple[int, str]:
    """Status 200, or the status and the sentence of a refusal."""
    host = headers.get("host", "").lower()
    if host not in hosts:
        return 421, "This server does not have that host name: use the address that `smolmem mcp` printed."
    if headers.get("origin", f"http://{host}").lower() != f"http://{host}":
        return 403, "The request came from another site: MCP clients send no Origin header, or the server's own."
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        return 401, "The token is missing or wrong: send the header `Authorization: Bearer TOKEN`."
    return 200, ""


def guard(app: Any, hosts: Collection[str], token: str) -> Any:
    """The app for requests that `check` allows."""

    def refusal(scope: Any) -> Response | None:
        status, reason = check(read_headers(scope), hosts, token)
        headers = {"www-authenticate": "Bearer"} if status == 401 else {}
        return None if status == 200 else PlainTextResponse(f"{reason}\n", status, headers)

    return guarded(app, refusal, {"cache-control": "no-store"})
