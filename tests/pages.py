"""Runs the Python blocks of documentation pages, in order: `pages.py PAGE…`, in an empty folder.

Also by itself, so that the pages can be run on another smolagents than the one that the tests run on.
"""

from __future__ import annotations

import re
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from scripted import Scripted, code, code_agent
from smolagents.models import MessageRole


def blocks(page: Path) -> list[str]:
    """The Python of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def names(page: Path) -> dict[str, Any]:
    """What a page takes for granted."""
    if page.name == "README.md":
        thoughts = ["print(6 * 7)", "final_answer(42)", "x = 7\nprint(x)", "final_answer(x * x)"]
        return {"model": Scripted(*map(code, thoughts))}
    return {"make_agent": make_agent, "make_watcher": make_watcher, "take_screenshot": take_screenshot}


def run(page: Path) -> dict[str, Any]:
    """Runs a page; what it has defined is returned."""
    defined = names(page)
    for block in blocks(page):
        exec(block, defined)
    return defined


def seen(messages: list[Any]) -> int:
    """How often something came back since the last task."""
    last = max((i for i, message in enumerate(messages) if "New task:" in str(message.content)), default=0)
    return sum(message.role == MessageRole.TOOL_RESPONSE for message in messages[last:])


def make_agent(**options: Any) -> Any:
    """Counts to three, in code, one number a step."""

    def think(messages: list[Any]) -> str:
        steps = [code("n = 1\nprint(n)"), code("n += 1\nprint(n)"), code("n += 1\nprint(n)"), code("final_answer(n)")]
        return steps[seen(messages)]

    return code_agent(*[think] * 50, **options)


def make_watcher(**options: Any) -> Any:
    """Checks the health of a sick server four times."""

    def think(messages: list[Any]) -> str:
        return code("print('health check: 500')") if seen(messages) < 4 else code("final_answer('sick')")

    return code_agent(*[think] * 50, **options)


def take_screenshot() -> bytes:
    """A picture of nothing."""
    written = BytesIO()
    Image.new("RGB", (40, 30), "navy").save(written, "PNG")
    return written.getvalue()


if __name__ == "__main__":
    for given in sys.argv[1:]:
        made = run(Path(given))
        made["memory"].close()
