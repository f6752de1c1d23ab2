"""Starts the inspector: on loopback, behind a link with a token."""

from __future__ import annotations

import logging
import webbrowser

from smolmem.core.text import sanitize
from smolmem.inspector.app import make_app
from smolmem.inspector.guard import Access, new_access, new_token
from smolmem.listening import hosts_of, in_url, listen, serve_app
from smolmem.memory import Memory

PORT = 8265

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

    The options are those of `smolmem ui`. Without a port, 8265 is used, or any free port if 8265 is in use. A random
    token works once; a given token works more than once. New notes are written to `scope`.

    Raises:
        InvalidArgument: if the given port is in use, or the token can be guessed.
    """
    with (
        Memory(url, scope=scope, key=key) as memory,
        listen(host, PORT if port is None else port, strict=bool(port)) as listening,
    ):
        number = listening.getsockname()[1]
        access = new_access(hosts_of(host, number), read_only=read_only, token=token)
        link, name = link_of(host, number, access), sanitize(memory._store.url)

        def renew() -> None:
            """Prints a new link for another browser, because the last link was used."""
            access.token = new_token()
            another = link_of(host, number, access)
            print(f"A browser has opened the inspector. For another browser:\n\n    {another}\n", flush=True)

        access.renew = renew
        hint = "The link can be opened more than once." if token else "The browser that opens the link keeps access."
        print(f"smolmem shows {name} at\n\n    {link}\n\n{hint} Press Ctrl-C to stop.", flush=True)
        if open_browser:
            webbrowser.open(link)
        serve_app(make_app(memory, access), listening)


def link_of(host: str, port: int, access: Access) -> str:
    """The link that opens the inspector."""
    return f"http://{in_url(host)}:{port}/?token={access.token}"
