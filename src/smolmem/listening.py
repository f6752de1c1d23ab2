"""What the servers of smolmem share: where they listen, their host names, and how a request is checked first."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.datastructures import MutableHeaders
from starlette.responses import Response

from smolmem.core.errors import InvalidArgument

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANYWHERE = ("0.0.0.0", "::")  # noqa: S104  only if the user asks for it


def listen(host: str, port: int, *, strict: bool, option: str = "--host or --port") -> socket.socket:
    """A listening socket at the port; if the port is in use and `strict` is False, at any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(
        family, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # with the protocol, asyncio sets TCP_NODELAY
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            listening.bind((host, port))
        except OSError:
            if strict:
                raise
            listening.bind((host, 0))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise InvalidArgument(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another address or port with {option}."
        ) from None
    return listening


def hosts_of(host: str, port: int) -> frozenset[str]:
    """The host names, with the port, that a browser may use for this server."""
    own = (
        {host, *LOOPBACK} if host in LOOPBACK else {host, *LOOPBACK, *_machine_names()} if host in ANYWHERE else {host}
    )
    names = set(map(in_url, own))
    return frozenset({f"{name}:{port}".lower() for name in names} | (names if port == 80 else set()))


def in_url(host: str) -> str:
    """A host name as a URL holds it."""
    return f"[{host}]" if ":" in host else host


def serve_app(app: Any, listening: socket.socket) -> None:
    """Serves an ASGI app until it is stopped."""
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[listening])


def guarded(app: Any, check: Callable[[Any], Response | None], headers: Mapping[str, str]) -> Any:
    """An ASGI app that passes on the requests that `check` answers with None; every response gets `headers`."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                given = MutableHeaders(scope=message)
                for name, value in headers.items():
                    given.setdefault(name, value)
            await send(message)

        if scope["type"] == "lifespan":
            await app(scope, receive, send)
        elif scope["type"] == "http":
            await (check(scope) or app)(scope, receive, send_with_headers)
        else:
            await send({"type": "websocket.close", "code": 1008})

    return answer


def read_headers(scope: Any) -> dict[str, str]:
    """The headers of a request. Of a header that is sent twice, no value is trusted; browsers may split cookies."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        twice = f"{headers.get(key)};{text}" if key == "cookie" else "\0"
        headers[key] = twice if key in headers else text
    return headers


def _machine_names() -> set[str]:
    """The names and addresses of this machine, for a server that listens on all of them."""
    names = {socket.gethostname(), socket.getfqdn()}
    with suppress(OSError):
        names |= {str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)}
    return names
