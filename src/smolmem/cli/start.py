"""Commands that start a server or set smolmem up: ui, demo, mcp, completion."""

from __future__ import annotations

import os
import re
import shlex
from importlib.util import find_spec
from typing import Any

import click

from smolmem.cli.commands import COMPLETION_VARIABLE, argument, command, flag, option, port, together
from smolmem.cli.environment import Environment, read_text
from smolmem.core.errors import InvalidArgument, SmolmemError, Unwritable

SECTION = "Getting started"
SHELLS = ("bash", "zsh", "fish")
HOST = "127.0.0.1"
SAMPLE = "smolmem-demo.db"
TOKEN_VARIABLE = "SMOLMEM_MCP_TOKEN"  # noqa: S105  the name of the variable
MIN_TOKEN = 16
"""The least number of characters of a token."""


_server_options = together(
    option("--host", "HOST", f"The address to listen on (default: {HOST}, only this machine).", default=HOST),
    option("--port", "N", "The port (default: 8265, or any free port).", type=port),
    flag("--read-only", "Do not allow changes from the browser."),
    flag("--no-browser", "Print the link without opening a browser."),
    option("--token", "TOKEN", "A token of your own: the link then works more than once, also after a restart."),
)


@command(SECTION, "smolmem ui", "smolmem ui agent.db", "smolmem ui --read-only --port 9000 --no-browser")
@_server_options
def ui(env: Environment, **server: Any) -> None:
    """Open the inspector in the browser."""
    env.look().close()  # reports a store that cannot be used here, not in the browser
    if env.copy:
        env.output.hint(f"{env.path} cannot be written: the inspector shows a copy of it, as it is now.")
    _serve(env, env.readable, env.key, **server | {"read_only": server["read_only"] or env.copy is not None})


def _serve(env: Environment, url: str, key: str | None, no_browser: bool, **server: Any) -> None:
    try:
        from smolmem.inspector.serve import serve
    except ImportError as error:
        raise SmolmemError(f"the inspector needs {error.name}: pip install 'smolmem[ui]'.") from error
    try:
        serve(url, open_browser=not no_browser, scope=env.scope or "default", key=key, **server)
    except InvalidArgument as error:  # the port is in use
        raise SmolmemError(str(error)) from error


@command(SECTION, "smolmem demo", "smolmem demo sample.db --no-ui")
@argument("path", "[PATH]", f"The new file (default: {SAMPLE}).", type=click.Path(), required=False)
@flag("--no-ui", "Do not open the inspector.")
@_server_options
def demo(env: Environment, path: str | None, no_ui: bool, **server: Any) -> None:
    """Create a store with sample runs, and open the inspector."""
    from smolmem.cli.sample import fill

    path = path or env.db or SAMPLE
    if os.path.lexists(path):
        raise Unwritable(
            f"{path} exists already and was not changed: give another path, or list its runs: `smolmem runs {path}`."
        )
    key = env.key if env.key_file else None
    env.output.hint("Sample agents are running…")
    fill(path, key, pace=0.02)
    commands = (
        "runs {}",
        "replay {}",
        "search {} why could nobody buy",
        "sql {} 'select agent, status, steps from runs'",
        "ui {}",
    )
    tries = [f"smolmem {command.format(shlex.quote(path))}" for command in commands]
    text = "\n".join([f"{path} holds sample runs. Try:", "", *(f"  {line}" for line in tries)])
    env.output.result({"path": path, "try": tries}, lambda: text)
    missing = next((name for name in ("uvicorn", "starlette", "jinja2") if find_spec(name) is None), None)
    if missing is not None and not no_ui:
        env.output.hint(f"The inspector needs {missing}: pip install 'smolmem[ui]'.")
    elif not no_ui and not env.json:
        _serve(env, path, key, **server)


@command(
    SECTION,
    "smolmem completion bash > ~/.local/share/bash-completion/completions/smolmem",
    "smolmem completion fish > ~/.config/fish/completions/smolmem.fish",
    "smolmem completion zsh > ~/.zfunc/_smolmem",
)
@argument("shell", "SHELL", f"One of {', '.join(SHELLS)}.", type=click.Choice(SHELLS))
def completion(env: Environment, shell: str) -> None:
    """Print a script that completes commands, options, stores and run ids in a shell."""
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    if complete is None:
        raise SmolmemError(f"click has no completion for {shell}.")
    group = click.get_current_context().find_root().command
    script = complete(group, {}, "smolmem", COMPLETION_VARIABLE).source()
    if env.json:
        env.output.result({"shell": shell, "script": script})
    else:
        env.output.text(script)


# --- MCP ----------------------------------------------------------------------------------------------------------


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
    given = os.environ.get(TOKEN_VARIABLE) if path is None else read_text(path, "token").strip()
    if given is None:
        import secrets

        given = secrets.token_urlsafe(32)
        env.output.hint(f"Authorization: Bearer {given}")
    if len(given) < MIN_TOKEN or not given.isascii() or not given.isprintable() or " " in given:
        raise InvalidArgument(f"a token has at least {MIN_TOKEN} characters: ASCII, without spaces.")
    return given
