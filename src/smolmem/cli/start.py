"""Commands to get started: ui, demo, completion."""

from __future__ import annotations

import os
import shlex
from importlib.util import find_spec
from typing import Any

import click

from smolmem.cli.commands import Function, argument, command
from smolmem.cli.environment import Environment
from smolmem.cli.options import flag, option, port
from smolmem.core.errors import InvalidArgument, SmolmemError, Unwritable

SECTION = "Getting started"
SHELLS = ("bash", "zsh", "fish")
HOST = "127.0.0.1"
SAMPLE = "smolmem-demo.db"
COMPLETION_VARIABLE = "_SMOLMEM_COMPLETE"
"""The environment variable by which the shell asks for completions."""


def _server_options(function: Function) -> Function:
    decorators = (
        option("--host", "HOST", f"The address to listen on (default: {HOST}, only this machine).", default=HOST),
        option("--port", "N", "The port (default: 8265, or any free port).", type=port),
        flag("--read-only", "Do not allow changes from the browser."),
        flag("--no-browser", "Print the link without opening a browser."),
        option("--token", "TOKEN", "The token of the link; the link then works again, also after a restart."),
    )
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


@command(SECTION, "smolmem ui", "smolmem ui agent.db", "smolmem ui --read-only --port 9000 --no-browser")
@_server_options
def ui(env: Environment, **server: Any) -> None:
    """Open the inspector in the browser."""
    env.look().close()  # reports a store that cannot be used here, not in the browser
    if env.copy:
        env.output.hint(f"{env.path} cannot be written: the inspector shows a copy of it, as it is now.")
    _serve(env, env.readable, env.key, **server | {"read_only": server["read_only"] or env.copy is not None})


def _missing_package() -> str | None:
    """The package that the inspector needs and that is not installed."""
    return next((name for name in ("uvicorn", "starlette", "jinja2") if find_spec(name) is None), None)


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
            f"{path} exists already and was not changed: give another path, or look at it with `smolmem runs {path}`."
        )
    key = env.key if env.key_file else None
    env.output.hint("Sample agents are running…")
    fill(path, key, pace=0.02)
    commands = ("runs {}", "replay {}", "search {} why could nobody buy", "sql {} 'select * from runs'", "ui {}")
    tries = [f"smolmem {command.format(shlex.quote(path))}" for command in commands]
    text = "\n".join([f"{path} holds sample runs. Try:", "", *(f"  {line}" for line in tries)])
    env.output.result({"path": path, "try": tries}, lambda: text)
    missing = _missing_package()
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
    """Print a script that completes commands, options and run ids in a shell."""
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
