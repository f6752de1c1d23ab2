"""Starts the inspector: on loopback, behind a link that opens once."""

from __future__ import annotations

import logging
import socket
import webbrowser
from contextlib import suppress

import uvicorn

from smolmem.core.errors import InvalidArgument
from smolmem.core.text import sanitize
from smolmem.inspector.app import make_app
from smolmem.inspector.guard import Keys, keys
from smolmem.memory import Memory

PORT = 8265
LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANYWHERE = ("0.0.0.0", "::")  # noqa: S104  only if asked for

log = logging.getLogger("smolmem")


def serve(
    url: str,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    read_only: bool = False,
    open_browser: bool = True,
    scope: str = "default",
) -> None:
    """Shows a memory in the browser until it is stopped.

    Args:
        url: the memory's file.
        host: another address than loopback only if you know who can reach it.
        port: by default 8265, or any that is free.
        read_only: nothing can be changed.
        open_browser: opens the link, too.
        scope: where new notes are written.

    Raises:
        InvalidArgument: the port is in use.
    """
    with (
        Memory(url, scope=scope) as memory,
        listen(host, PORT if port is None else port, strict=bool(port)) as listening,
    ):
        number = listening.getsockname()[1]
        known = keys(hosts_of(host, number), read_only=read_only)
        link, where = link_of(host, number, known), sanitize(memory._store.url)
        print(f"smolmem shows {where} at\n\n    {link}\n\nThe link opens once. Ctrl-C ends.", flush=True)
        if open_browser:
            webbrowser.open(link)
        config = uvicorn.Config(make_app(memory, known), log_level="warning", access_log=False, server_header=False)
        uvicorn.Server(config).run(sockets=[listening])


def listen(host: str, port: int, *, strict: bool) -> socket.socket:
    """A socket that listens: at the port, or, if that one need not be, at any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, so that answers are not held back
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
            f"{host}:{port} cannot be listened at ({error.strerror}): choose another with --port."
        ) from None
    return made


def hosts_of(host: str, port: int) -> frozenset[str]:
    """What a browser may call this server."""
    own = {host, *LOOPBACK} if host in LOOPBACK else {host, *LOOPBACK, *_own()} if host in ANYWHERE else {host}
    names = {f"[{name}]" if ":" in name else name for name in own}
    return frozenset({f"{name}:{port}".lower() for name in names} | (names if port == 80 else set()))


def _own() -> set[str]:
    """Names and addresses of this machine, for whoever wants to be reached at all of them."""
    names = {socket.gethostname(), socket.getfqdn()}
    with suppress(OSError):
        names |= {str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)}
    return names


def link_of(host: str, port: int, known: Keys) -> str:
    """The link that opens the inspector, once."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/?token={known.token}"
