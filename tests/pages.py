"""Runs the Python blocks of documentation pages, in order: `pages.py PAGE…`, of several each in a new folder.

Also a program of its own, so that the pages can be run with another release of smolagents than the tests.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from io import BytesIO
from pathlib import Path
from typing import Any

import fake_ollama
import tutorial_models
from PIL import Image
from scripted import answer, calling_agent, calls, code, code_agent
from smolagents.models import MessageRole


def blocks(page: Path) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def names(page: Path) -> dict[str, Any]:
    """The names that a page uses without defining them."""
    return tutorial_models.models().get(page.name, {}) | {
        "make_agent": make_agent,
        "make_watcher": make_watcher,
        "make_team": make_team,
        "take_screenshot": take_screenshot,
    }


def run(page: Path) -> dict[str, Any]:
    """Runs a page; returns the names it has defined."""
    defined = names(page)
    with fake_ollama.serving() as address:
        for number, block in enumerate(blocks(page), 1):
            source, name = block.replace(fake_ollama.ADDRESS, address), f"<block {number} of {page.name}>"
            linecache.cache[name] = len(source), None, source.splitlines(True), name  # `@tool` reads its source
            exec(compile(source, name, "exec"), defined)
    return defined


def seen(messages: list[Any]) -> int:
    """The number of tool results since the last task."""
    last = max((i for i, message in enumerate(messages) if "New task:" in str(message.content)), default=0)
    return sum(message.role == MessageRole.TOOL_RESPONSE for message in messages[last:])


def make_agent(**options: Any) -> Any:
    """An agent that counts to three in code, one number per step."""

    def think(messages: list[Any]) -> str:
        steps = [code("n = 1\nprint(n)"), code("n += 1\nprint(n)"), code("n += 1\nprint(n)"), code("final_answer(n)")]
        return steps[seen(messages)]

    return code_agent(*[think] * 50, **options)


def make_watcher(**options: Any) -> Any:
    """An agent that checks the health of a failing server four times."""

    def think(messages: list[Any]) -> str:
        return code("print('health check: 500')") if seen(messages) < 4 else code("final_answer('failing')")

    return code_agent(*[think] * 50, **options)


def make_team(*, parallel: bool = False, **options: Any) -> Any:
    """A manager and a researcher: one question twice, one after the other, or two questions in one step."""

    def look_up(messages: list[Any]) -> str:
        crate = re.findall(r"crate (\d)", str(messages))[-1]
        return code(f"final_answer('Crate {crate} weighs {int(crate) * 6} kg')")

    def ask(messages: list[Any]) -> str:
        asked = code("print(researcher('How heavy is crate 7?'))")
        return asked if seen(messages) < 2 else code("final_answer('42 kg')")

    researcher = code_agent(*[look_up] * 50, name="researcher", description="Looks things up.")
    if not parallel:
        return code_agent(*[ask] * 50, managed_agents=[researcher], **options)
    questions = [("researcher", {"task": f"How heavy is crate {crate}?"}) for crate in (7, 8)]
    return calling_agent(calls(*questions), answer("90 kg"), tools=[], managed_agents=[researcher], **options)


def take_screenshot() -> bytes:
    """A plain image as PNG bytes."""
    written = BytesIO()
    Image.new("RGB", (40, 30), "navy").save(written, "PNG")
    return written.getvalue()


def run_alone(page: Path) -> bool:
    """Runs a page in a process and a folder of its own; whether that went well."""
    child = os.fork()
    if child == 0:
        os.mkdir(page.stem)
        os.chdir(page.stem)
        try:
            run(page)["memory"].close()
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    first, *more = map(Path, sys.argv[1:])
    if not more:
        run(first)["memory"].close()
    elif failed := [page.name for page in (first, *more) if not run_alone(page)]:
        sys.exit(f"failed: {failed}")
