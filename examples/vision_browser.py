"""A web agent that looks at screenshots: each step sees the newest ones, and the record keeps all of them.

    python vision_browser.py
    python vision_browser.py --llm_url http://localhost:11434/v1 --model qwen2.5vl

A real headless Chromium shows a small site on this machine. After each step, a callback takes a screenshot and removes
those of earlier steps, because each image costs tokens. In RAM they are gone; in the memory file each step keeps its
own. Needs Chromium, its driver and `pip install selenium`. Without --llm_url, a script replaces the model.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from time import sleep
from typing import Any

from llm import model_options, server_model
from PIL import Image
from scripted_operator import text_of
from smolagents import ActionStep, CodeAgent, Model, Tool, tool
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import TokenUsage
from terminal import ExampleError, chapter, run_program, say

from smolmem import Memory

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    webdriver = None

PAGES = {
    "index.html": ("Little shop", "#e7f0e4", "<p>Welcome.</p><p><a href='mugs.html'>Mugs</a></p>"),
    "mugs.html": ("Mugs", "#e4ecf0", "<p>Blue mug, 12 euros</p><p>Red mug, 9 euros</p><dialog open>Cookies?</dialog>"),
}
TASK = "Open {url}, go to the mugs, and tell me which mug is the cheapest."
LEVEL = 2
PAUSE = 1.0
"""Seconds for animations to end before a screenshot is taken."""

driver: Any = None
"""The browser; `helium.get_driver()` would return it, too."""


# --- tools --------------------------------------------------------------------------------------------------------


@tool
def go_to(url: str) -> str:
    """Opens a page.

    Args:
        url: the address of the page.
    """
    driver.get(url)
    return f"{driver.title}: {driver.find_element(By.TAG_NAME, 'body').text}"


@tool
def click(text: str) -> str:
    """Follows a link of the page.

    Args:
        text: the text of the link.
    """
    driver.find_element(By.LINK_TEXT, text).click()
    return f"{driver.title}: {driver.find_element(By.TAG_NAME, 'body').text}"


@tool
def go_back() -> str:
    """Goes back to the previous page."""
    driver.back()
    return str(driver.title)


@tool
def close_popups() -> str:
    """Closes dialogs that cover the page."""
    driver.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
    closed = driver.execute_script(
        "const open = document.querySelectorAll('dialog[open]'); open.forEach(each => each.close()); return open.length"
    )
    return f"closed: {closed}"


@tool
def search_item_ctrl_f(text: str) -> str:
    """Finds the lines of the page that contain a text.

    Args:
        text: the text.
    """
    lines = driver.find_element(By.TAG_NAME, "body").text.splitlines()
    found = [line for line in lines if text.lower() in line.lower()]
    return "\n".join(found) or f"no line contains {text!r}"


TOOLS: list[Tool] = [go_to, click, go_back, close_popups, search_item_ctrl_f]


# --- the callback -------------------------------------------------------------------------------------------------


def update_screenshot(memory_step: ActionStep, agent: CodeAgent) -> None:
    """Adds a screenshot to a step, and removes the screenshots of all steps but the previous one."""
    sleep(PAUSE)
    for earlier in agent.memory.steps:
        if isinstance(earlier, ActionStep) and earlier.step_number <= memory_step.step_number - 2:
            earlier.observations_images = None
    image = Image.open(BytesIO(driver.get_screenshot_as_png()))
    memory_step.observations_images = [image.copy()]  # a copy: the file that it was read from is closed
    memory_step.observations = f"{memory_step.observations or ''}\nThe address is {driver.current_url}"


# --- a model without an LLM -----------------------------------------------------------------------------------------


class ScriptedBrowser(Model):
    """Decides from the messages alone; it counts the screenshots that it is sent."""

    def __init__(self) -> None:
        super().__init__(model_id="scripted browser (no LLM)")
        self.seen: list[int] = []
        """How many screenshots each prompt had."""

    def generate(self, messages: list[ChatMessage], **_: Any) -> ChatMessage:
        """The next thought and code."""
        parts = [part for message in messages for part in message.content or () if isinstance(part, dict)]
        self.seen.append(sum(part.get("type") == "image" for part in parts))
        task = next(text for text in map(text_of, messages) if text.startswith("New task:"))
        done = sum(message.role == MessageRole.TOOL_RESPONSE for message in messages)
        url = task.split("Open ")[1].split(", go")[0]
        said = "Thought: {}\n<code>\n{}\n</code>".format(*self.plan(url)[min(done, 4)])
        usage = TokenUsage(sum(len(text_of(message)) for message in messages) // 4 + 1000 * self.seen[-1], 40)
        return ChatMessage(MessageRole.ASSISTANT, said, token_usage=usage)

    def plan(self, url: str) -> list[tuple[str, str]]:
        """Thoughts and code, in order."""
        return [
            ("I open the page.", f"print(go_to({url!r}))"),
            ("I follow the link.", "print(click('Mugs'))"),
            ("A dialog covers the page.", "print(close_popups())"),
            ("I read the prices.", "print(search_item_ctrl_f('euros'))"),
            ("The red mug costs less.", "final_answer('The red mug, 9 euros')"),
        ]


# --- the program ----------------------------------------------------------------------------------------------------


@contextmanager
def site() -> Iterator[str]:
    """A small web site on this machine; its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with tempfile.TemporaryDirectory(prefix="smolmem-") as folder:
        for name, (title, colour, body) in PAGES.items():
            page = (
                f"<title>{title}</title><body style='background:{colour};font:24px sans-serif'><h1>{title}</h1>{body}"
            )
            Path(folder, name).write_text(page, encoding="utf-8")
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            server.server_close()


@contextmanager
def browser() -> Iterator[None]:
    """A headless Chromium.

    Raises:
        ExampleError: if selenium, Chromium or its driver is not installed.
    """
    global driver
    chromium, service = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    missing = "selenium" if webdriver is None else "Chromium" if not chromium else "chromedriver" if not service else ""
    if missing:
        raise ExampleError(
            f"{missing} is not installed: pip install selenium, and apt install chromium chromium-driver."
        )
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=800,600"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(service))
    try:
        yield
    finally:
        driver.quit()


def browse(options: argparse.Namespace) -> None:
    """Lets the agent browse, then compares the screenshots in RAM with those in the record."""
    given = options.llm_url
    model = server_model(given, options.model, options.api_key) if given else ScriptedBrowser()
    file = options.db or Path(tempfile.mkdtemp(prefix="smolmem-")) / "agent.db"
    with browser(), site() as url, Memory(file) as memory:
        chapter("A web agent with screenshots", f"Model: {model.model_id}. Memory: {file}")
        agent = CodeAgent(
            tools=TOOLS,
            model=model,
            step_callbacks=[update_screenshot],
            max_steps=20,
            verbosity_level=options.verbosity_level,
        )
        say(f"Answer: {memory.attach(agent).run(TASK.format(url=url))}", "bold green")
        compare(memory, agent, model)
    say(f"\nLook at all screenshots: smolmem ui {file}")


def compare(memory: Memory, agent: CodeAgent, model: Model) -> None:
    """How many screenshots each step has: in RAM, and in the record before the callback removed them."""
    chapter("Screenshots", "In RAM only the newest are left. The record keeps each step as it was at first.")
    for step in memory.steps(run=memory.runs()[0], kind="action")[::-1]:
        left = len(step.to_smolagents().observations_images or [])
        first = step.history()[0].to_smolagents().observations_images or []
        size = f"{first[0].width} × {first[0].height} pixels"
        say(f"step {step.number}: {left} in RAM, {len(first)} in the record, {size}")
    if isinstance(model, ScriptedBrowser):
        say(f"Screenshots in each prompt: {', '.join(map(str, model.seen))}")


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_options(parser, verbosity_level=LEVEL)
    parser.add_argument("--db", type=Path, help="the memory file (default: a new temporary file)")
    options = parser.parse_args()
    run_program(lambda: browse(options))


if __name__ == "__main__":
    main()
