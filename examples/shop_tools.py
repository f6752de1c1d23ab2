"""What an agent can see and do about a shop: smolagents tools that answer in plain text.

A shop that is down is an answer, not an exception: an operator who asks a dead service learns that it is dead.
Tools that only look carry `safe_to_repeat`, so that a resumed run may call them again without asking.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.panel import Panel
from rich.text import Text
from shop.control import Shop, ShopError
from smolagents import Tool, tool


def get_tools(shop: Shop, console: Console | None = None) -> list[Tool]:
    """Six tools over one shop; `console` is where a person is called."""
    return [*_looking(shop), *_acting(shop, console or Console())]


def _looking(shop: Shop) -> list[Tool]:
    @tool
    def check_health() -> str:
        """Checks whether the shop is healthy, by a whole checkout that is taken back."""
        return str(shop.health())

    @tool
    def read_logs(lines: int = 10) -> str:
        """Reads the end of the shop's log.

        Args:
            lines: how many lines.
        """
        return shop.log(lines) or "the log is empty"

    @tool
    def get_metrics() -> str:
        """Reads the shop's figures: requests, errors, latency, memory, disk, uptime, release."""
        try:
            return "\n".join(f"{name}: {value}" for name, value in shop.metrics().items())
        except ShopError as error:
            return f"no metrics: {error}"

    for each in (check_health, read_logs, get_metrics):
        each.safe_to_repeat = True
    return [check_health, read_logs, get_metrics]


def _acting(shop: Shop, console: Console) -> list[Tool]:
    @tool
    def restart_application() -> str:
        """Restarts the shop with the release it has."""
        return _do("restarted", shop, shop.restart)

    @tool
    def roll_back_release() -> str:
        """Puts the release before the present one back in place."""
        return _do("rolled back", shop, shop.rollback)

    @tool
    def notify_person(message: str) -> str:
        """Calls a person, for what no tool can mend.

        Args:
            message: what that person has to know.
        """
        with (shop.folder / "notifications.txt").open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(message.split())}\n")
        console.print(Panel(Text(message), title="📟 to the person on call", border_style="yellow"))
        return f"a person was notified: {message}"

    return [restart_application, roll_back_release, notify_person]


def _do(done: str, shop: Shop, act: Callable[[], None]) -> str:
    try:
        act()
    except ShopError as error:
        return f"not {done}: {error}"
    return f"{done}: release {shop.release} is up at {shop.url}"
