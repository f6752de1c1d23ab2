"""Access control: only the browser that opened the printed link, and only on this machine, reaches the inspector.

Every page that the user has open can send requests to a server on loopback, and anyone can point a domain name at
127.0.0.1. So each request is checked by the headers that browsers set themselves: Host, Origin and Sec-Fetch-Site.
Beyond these, a request needs a cookie, which is given in exchange for the token of the link in the terminal. A random
token works once, because programs that open links show them to other users of the machine; then `Access.renew` makes
the next link. A token that the user chose works any number of times.

`check_request` is a pure function; `guard` puts it before the application, and adds the security headers to every
response.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode

from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, Response

from smolmem.core.errors import InvalidArgument
from smolmem.listening import guarded, read_headers

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
    """The parts of a request that decide whether the request is allowed."""

    method: str
    host: str | None
    origin: str | None
    site: str | None
    cookie: str | None
    token: str | None


@dataclass(frozen=True)
class Decision:
    """Allowed (200), allowed with a redirect that sets the cookie (303), or refused with a reason."""

    status: int
    reason: str = ""


@dataclass
class Access:
    """Who may use the inspector: host names of the server, the session cookie, and the token to get the cookie."""

    hosts: frozenset[str]
    session: str
    token: str | None
    read_only: bool = False
    reusable: bool = False
    """Whether the token works more than once."""
    renew: Callable[[], None] | None = None
    """Called when a token that works once was used."""

    @property
    def cookie(self) -> str:
        """The name of the cookie. It contains the port, because browsers share cookies between all ports of a host."""
        return f"smolmem-{min(self.hosts, default='').rpartition(':')[2]}"


MIN_TOKEN = 16


def new_access(hosts: frozenset[str], *, read_only: bool, token: str | None = None) -> Access:
    """A new session and a token that works once; or the given token, whose cookie stays valid after a restart."""
    if token is None:
        return Access(hosts, secrets.token_urlsafe(32), new_token(), read_only)
    if not re.fullmatch(rf"[A-Za-z0-9_-]{{{MIN_TOKEN},200}}", token):
        raise InvalidArgument(
            f"a token has at least {MIN_TOKEN} letters, digits, - or _: leave --token out for a new one."
        )
    session = hmac.new(token.encode(), b"smolmem inspector session", "sha256").hexdigest()
    return Access(hosts, session, token, read_only, reusable=True)


def new_token() -> str:
    """A random token."""
    return secrets.token_urlsafe(24)


def check_request(request: Request, access: Access) -> Decision:
    """Decides whether a request is allowed; a valid token is used up."""
    if request.host is None or request.host.lower() not in access.hosts:
        return Decision(421, "This server does not have that host name. Use the address that `smolmem ui` printed.")
    own_origin = f"http://{request.host.lower()}"
    from_other_site = request.site not in (None, "same-origin", "none")
    if from_other_site or (request.origin is not None and request.origin.lower() != own_origin):
        return Decision(403, "The request came from another site. Open the address that `smolmem ui` printed.")
    has_cookie = request.cookie is not None and _equal(request.cookie, access.session)
    if request.method not in SAFE:
        return _check_action(request, access, has_cookie=has_cookie)
    if request.token is not None and not has_cookie and request.method == "GET":  # a preview asks with HEAD
        return _use_token(request.token, access)
    if not has_cookie:
        return Decision(403, "Open the newest link in the terminal where `smolmem ui` runs.")
    return Decision(303) if request.token is not None else Decision(200)


def _equal(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), secret.encode())


def _check_action(request: Request, access: Access, *, has_cookie: bool) -> Decision:
    if request.method != "POST":
        return Decision(405, "The inspector does not support that method.")
    if not has_cookie or request.origin is None or request.site not in (None, "same-origin"):
        return Decision(403, "Only the inspector's own pages can do that. Reload the page and try again.")
    return Decision(403, "This inspector was started with --read-only.") if access.read_only else Decision(200)


def _use_token(token: str, access: Access) -> Decision:
    if access.token is None or not _equal(token, access.token):
        return Decision(
            403,
            "This link was already used in another browser, or `smolmem ui` was started again. "
            "Open the newest link in the terminal where `smolmem ui` runs.",
        )
    if not access.reusable:
        access.token = None
        if access.renew is not None:
            access.renew()
    return Decision(303)


_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>smolmem</title><h1>smolmem</h1><p>{reason}</p></html>'
)


def guard(app: Any, access: Access) -> Any:
    """The application for requests that `check_request` allows; others are refused or redirected."""

    def check(scope: Any) -> Response | None:
        decision = check_request(_request(scope, access.cookie), access)
        if decision.status == 200:
            return None
        headers = {}
        if decision.status == 303:
            cookie = f"{access.cookie}={access.session}; HttpOnly; SameSite=Strict; Path=/"
            headers = {"location": _without_token(scope), "set-cookie": cookie}
        shown = decision.reason and scope["method"] != "HEAD"
        return HTMLResponse(_PAGE.format(reason=decision.reason) if shown else "", decision.status, headers)

    return guarded(app, check, HEADERS)


def _request(scope: Any, cookie: str) -> Request:
    headers = read_headers(scope)
    token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [None])[0]
    host, origin, site = (headers.get(name) for name in ("host", "origin", "sec-fetch-site"))
    return Request(scope["method"], host, origin, site, cookie_parser(headers.get("cookie", "")).get(cookie), token)


def _without_token(scope: Any) -> str:
    query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query.pop("token", None)
    path = "/" + scope["path"].lstrip("/\\").replace("\\", "/")
    safe = "".join(letter if letter.isalnum() or letter in "/-_." else "_" for letter in path)
    return safe + (f"?{urlencode(query, doseq=True)}" if query else "")
