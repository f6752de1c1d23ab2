"""Who may come in: the browser that was given the link, on this machine, and no page of anybody else's.

A server on loopback can be reached by every page that the user has open, and by names that somebody points at
127.0.0.1. So each request is judged by what browsers themselves say about it: the Host they were told, the Origin and
site they come from. Beyond that, a cookie, given once for a token that is printed in the terminal.

`judge` is a pure function; `Guard` asks it, and puts headers on every answer that keep a page from being more than it
is.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode

SAFE = ("GET", "HEAD")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Request:
    """What of a request decides whether it is let in."""

    method: str
    host: str | None
    origin: str | None
    site: str | None
    cookie: str | None
    token: str | None


@dataclass(frozen=True)
class Verdict:
    """Let in (200), let in and given the cookie (303), or refused, with a reason."""

    status: int
    why: str = ""


@dataclass
class Keys:
    """Which hosts are ours, the cookie that opens, and the token that can be changed for it, once."""

    hosts: frozenset[str]
    session: str
    token: str | None
    read_only: bool = False

    @property
    def cookie(self) -> str:
        """The cookie's name: browsers keep one jar for all ports of a host."""
        return f"smolmem-{min(self.hosts, default='').rpartition(':')[2]}"


def keys(hosts: frozenset[str], *, read_only: bool) -> Keys:
    """New keys."""
    return Keys(hosts, secrets.token_urlsafe(32), secrets.token_urlsafe(24), read_only)


def judge(request: Request, known: Keys) -> Verdict:
    """Whether a request is let in."""
    if request.host is None or request.host.lower() not in known.hosts:
        return Verdict(421, "This server does not go by that name: use the address that `smolmem ui` printed.")
    if request.site not in (None, "same-origin", "none"):
        return Verdict(403, "Another site sent this request. Open the address that `smolmem ui` printed by yourself.")
    if request.origin is not None and request.origin.lower() != f"http://{request.host.lower()}":
        return Verdict(403, "Another site sent this request. Open the address that `smolmem ui` printed by yourself.")
    inside = request.cookie is not None and hmac.compare_digest(request.cookie.encode(), known.session.encode())
    if request.method not in SAFE:
        return _act(request, known, inside=inside)
    if request.token is not None and not inside:
        return _change(request.token, known)
    if not inside:
        return Verdict(403, "This page opens with the link that `smolmem ui` printed; it can be used once.")
    return Verdict(303) if request.token is not None else Verdict(200)


def _act(request: Request, known: Keys, *, inside: bool) -> Verdict:
    if request.method != "POST":
        return Verdict(405, "That is not something this page can do.")
    if not inside or request.origin is None or request.site not in (None, "same-origin"):
        return Verdict(403, "Only the page itself can do that. Reload it and try again.")
    return Verdict(403, "This inspector was started with --read-only.") if known.read_only else Verdict(200)


def _change(token: str, known: Keys) -> Verdict:
    if known.token is not None and hmac.compare_digest(token.encode(), known.token.encode()):
        known.token = None
        return Verdict(303)
    return Verdict(403, "That link was used already. Start `smolmem ui` again for a new one.")


class Guard:
    """Lets in what `judge` lets in."""

    def __init__(self, app: Any, keys: Keys) -> None:
        self.app = app
        self.keys = keys

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        verdict = judge(_request(scope, self.keys.cookie), self.keys)
        if verdict.status == 200:
            await self.app(scope, receive, _with_headers(send))
        else:
            await self._answer(scope, verdict, _with_headers(send))

    async def _answer(self, scope: Any, verdict: Verdict, send: Any) -> None:
        headers = [(b"content-type", b"text/html; charset=utf-8")]
        if verdict.status == 303:
            headers += [
                (b"location", _without_token(scope).encode()),
                (b"set-cookie", f"{self.keys.cookie}={self.keys.session}; HttpOnly; SameSite=Strict; Path=/".encode()),
            ]
        body = _PAGE.format(why=verdict.why).encode() if verdict.why else b""
        await send({"type": "http.response.start", "status": verdict.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


_PAGE = '<!doctype html><html lang="en"><meta charset="utf-8"><title>smolmem</title><h1>smolmem</h1><p>{why}</p></html>'


def _request(scope: Any, cookie: str) -> Request:
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        word = name.decode("latin-1")
        before = headers.get(word)
        if before is None:
            headers[word] = value.decode("latin-1")
        else:  # a header that is sent twice is believed in neither form; cookies may come in parts
            headers[word] = f"{before};{value.decode('latin-1')}" if word == "cookie" else "\0"
    query = parse_qs(scope["query_string"].decode("latin-1"))
    token = query.get("token", [None])[0]
    return Request(
        scope["method"],
        headers.get("host"),
        headers.get("origin"),
        headers.get("sec-fetch-site"),
        _cookie(headers, cookie),
        token,
    )


def _cookie(headers: Mapping[str, str], wanted: str) -> str | None:
    """Ours among all that programs on this machine have set: whatever the others look like."""
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == wanted:
            return value
    return None


def _without_token(scope: Any) -> str:
    query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query.pop("token", None)
    path = "/" + scope["path"].lstrip("/\\").replace("\\", "/")
    safe = "".join(letter if letter.isalnum() or letter in "/-_." else "_" for letter in path)
    return safe + (f"?{urlencode(query, doseq=True)}" if query else "")


def _with_headers(send: Any) -> Any:
    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            given = {name for name, _ in message["headers"]}
            own = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in given]
            message = {**message, "headers": [*message["headers"], *own]}
        await send(message)

    return sent
