"""Access control of MCP over HTTP: the server's own host name, no other site, and the token.

Every web page can send requests to a server on loopback, and anyone can point a domain name at 127.0.0.1. So the Host
and Origin headers, which browsers set themselves, are checked before the token.

`check` is a pure function. `BearerGuard` is the middleware that calls it.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from typing import Any

from smolmem.listening import read_headers


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


class BearerGuard:
    """Passes on the requests that `check` allows, and refuses the others."""

    def __init__(self, app: Any, hosts: Collection[str], token: str) -> None:
        self._app = app
        self._hosts = hosts
        self._token = token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            status, reason = check(read_headers(scope["headers"]), self._hosts, self._token)
            if status == 200:
                await self._app(scope, receive, send)
            else:
                await _refuse(send, status, reason)
        else:
            await send({"type": "websocket.close", "code": 1008})


async def _refuse(send: Any, status: int, reason: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
    headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{reason}\n".encode()})
