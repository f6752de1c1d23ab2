"""Starts the inspector: on loopback, behind a link with a token."""

from __future__ import annotations

import logging
import socket
import webbrowser
from contextlib import suppress
from functools import partial

import uvicorn

from smolmem.core.errors import InvalidArgument
from smolmem.core.text import sanitize
from smolmem.inspector.app import make_app
from smolmem.inspector.guard import Access, new_access, new_token
from smolmem.inspector.page_data import database_url
from smolmem.memory import Memory

PORT = 8265
LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANYWHERE = ("0.0.0.0", "::")  # noqa: S104  only if the user asks for it

log = logging.getLogger("smolmem")


def serve(
    url: str,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    read_only: bool = False,
    open_browser: bool = True,
    scope: str = "default",
    key: str | bytes | None = None,
    token: str | None = None,
) -> None:
    """Serves the inspector until it is stopped.

    Args:
        url: the file of the memory.
        host: the address to listen on; use another address than loopback only if you know who can reach it.
        port: the port to listen on; by default 8265, or any free port if 8265 is in use.
        read_only: allow no changes.
        open_browser: open the link in the default browser.
        scope: the scope of new notes.
        key: the key of an encrypted file; by default the environment variable `SMOLMEM_KEY`.
        token: the token of the link, which then works more than once; by default a random token that works once.

    Raises:
        InvalidArgument: if the given port is in use, or the token can be guessed.
    """
    with (
        Memory(url, scope=scope, key=key) as memory,
        listen(host, PORT if port is None else port, strict=bool(port)) as listening,
    ):
        number = listening.getsockname()[1]
        access = new_access(hosts_of(host, number), read_only=read_only, token=token)
        link, name = link_of(host, number, access), sanitize(database_url(memory))
        access.renew = partial(_print_next_link, host, number, access)
        hint = "The link works again." if token else "The browser that opens the link keeps access."
        print(f"smolmem shows {name} at\n\n    {link}\n\n{hint} Press Ctrl-C to stop.", flush=True)
        if open_browser:
            webbrowser.open(link)
        config = uvicorn.Config(make_app(memory, access), log_level="warning", access_log=False, server_header=False)
        uvicorn.Server(config).run(sockets=[listening])


def _print_next_link(host: str, port: int, access: Access) -> None:
    """Prints a new link for another browser, because the last link was used."""
    access.token = new_token()
    print(
        f"A browser has opened the inspector. For another browser:\n\n    {link_of(host, port, access)}\n", flush=True
    )


def listen(host: str, port: int, *, strict: bool) -> socket.socket:
    """A listening socket at the port or, unless `strict`, at any free port if that one is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # with the protocol, asyncio sets TCP_NODELAY
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            made.bind((host, port))
        except OSError:
            if strict:
                raise
            made.bind((host, 0))
        made.listen(128)
    except OSError as error:
        made.close()
        raise InvalidArgument(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another port with --port."
        ) from None
    return made


def hosts_of(host: str, port: int) -> frozenset[str]:
    """The host names, with the port, that a browser may use for this server."""
    own = (
        {host, *LOOPBACK} if host in LOOPBACK else {host, *LOOPBACK, *_machine_names()} if host in ANYWHERE else {host}
    )
    names = {f"[{name}]" if ":" in name else name for name in own}
    return frozenset({f"{name}:{port}".lower() for name in names} | (names if port == 80 else set()))


def _machine_names() -> set[str]:
    """The names and addresses of this machine, for a server that listens on all of them."""
    names = {socket.gethostname(), socket.getfqdn()}
    with suppress(OSError):
        names |= {str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)}
    return names


def link_of(host: str, port: int, access: Access) -> str:
    """The link that opens the inspector."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/?token={access.token}"
