"""Where the servers of smolmem listen, and the host names by which they may be called."""

from __future__ import annotations

import socket
from contextlib import suppress

from smolmem.core.errors import InvalidArgument

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANYWHERE = ("0.0.0.0", "::")  # noqa: S104  only if the user asks for it


def listen(host: str, port: int, *, strict: bool, option: str = "--port") -> socket.socket:
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
            f"cannot listen on {host}:{port} ({error.strerror}): choose another port with {option}."
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
