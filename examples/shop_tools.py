"""smolagents tools to monitor and operate a shop; they return plain text.

A tool reports that the shop is down as a result, not as an exception.
Tools that only read have `safe_to_repeat`, so that a resumed run may call them again.
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
    """Six tools for one shop; notifications are printed to `console`."""
    return [*_read_tools(shop), *_action_tools(shop, console or Console())]


def _read_tools(shop: Shop) -> list[Tool]:
    @tool
    def check_health() -> str:
        """Checks whether the shop is healthy, with a complete checkout that is rolled back."""
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
        """Reads the metrics of the shop: requests, errors, latency, memory, disk, uptime, release."""
        try:
            return "\n".join(f"{name}: {value}" for name, value in shop.metrics().items())
        except ShopError as error:
            return f"no metrics: {error}"

    for each in (check_health, read_logs, get_metrics):
        each.safe_to_repeat = True
    return [check_health, read_logs, get_metrics]


def _action_tools(shop: Shop, console: Console) -> list[Tool]:
    @tool
    def restart_application() -> str:
        """Restarts the shop with its current release."""
        return _do("restarted", shop, shop.restart)

    @tool
    def roll_back_release() -> str:
        """Rolls back to the previous release."""
        return _do("rolled back", shop, shop.rollback)

    @tool
    def notify_person(message: str) -> str:
        """Notifies a person about a problem that no tool can fix.

        Args:
            message: what the person must know.
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
