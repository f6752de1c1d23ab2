"""The command that serves a memory over MCP."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

import click

from smolmem.cli.commands import command
from smolmem.cli.environment import Environment
from smolmem.cli.options import flag, option
from smolmem.core.errors import InvalidArgument, SmolmemError

TOKEN_VARIABLE = "SMOLMEM_MCP_TOKEN"  # noqa: S105  the name of the variable
LEAST = 16
"""Characters of a token."""


def address(value: str) -> tuple[str, int]:
    """An address such as `127.0.0.1:8266` or `[::1]:8266`."""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):(\d{1,5})", value, re.ASCII)
    if found is None or int(found[2]) > 65_535:
        raise click.BadParameter(f"{value!r} is not an address such as 127.0.0.1:8266")
    return found[1].strip("[]"), int(found[2])


@command(
    "Recall and notes",
    "smolmem mcp agent.db",
    "smolmem mcp agent.db --scope acme/alice --write",
    "smolmem mcp agent.db --http 127.0.0.1:8266",
)
@flag("--write", "Also offer the tools remember and forget. Nothing is ever erased.")
@option("--http", "HOST:PORT", "Serve over streamable HTTP instead of standard input and output.", type=address)
@option("--token-file", "PATH", f"A file with the token for --http (default: {TOKEN_VARIABLE}, else a new token).")
def mcp(env: Environment, write: bool, http: tuple[str, int] | None, token_file: str | None) -> None:
    """Serve the memory to MCP clients: Claude, Cursor, VS Code, smolagents.

    The scope is `default` unless --scope names another scope; clients cannot choose it. Without --http, the client
    starts this command and talks to it over standard input and output. A read-only file is served from a copy.
    """
    env.require_file()
    try:
        from smolmem.mcp.transports import serve_http, serve_stdio
    except ImportError as error:
        raise SmolmemError(f"`smolmem mcp` needs {error.name}: pip install 'smolmem[mcp]'.") from error
    scope = env.scope or "default"
    url = env.writable if write else env.readable
    if http is None:
        serve_stdio(url, scope=scope, write=write, key=env.key)
    else:
        host, port = http
        token = _token(env, token_file)
        serve_http(url, scope=scope, write=write, host=host, port=port, token=token, key=env.key)


def _token(env: Environment, path: str | None) -> str:
    """The token from a file, else from the environment, else a new one, which is printed."""
    given = os.environ.get(TOKEN_VARIABLE) if path is None else _read(path)
    if given is None:
        given = secrets.token_urlsafe(32)
        env.output.hint(f"Authorization: Bearer {given}")
    if len(given) < LEAST or not given.isascii() or not given.isprintable() or " " in given:
        raise InvalidArgument(f"a token is at least {LEAST} characters of ASCII without spaces.")
    return given


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidArgument(f"the token file {path} cannot be read: {reason}.") from None
