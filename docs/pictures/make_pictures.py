"""Makes the pictures of the inspector in this folder: `python docs/pictures/make_pictures.py`.

Needs Chromium with its driver, and the local model for semantic recall. The pictures show the memory of `smolmem demo`,
with one run more: its process is killed, and the run is resumed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait
from smolagents import ToolCallingAgent, tool
from smolagents.monitoring import LogLevel

from smolmem import Memory
from smolmem.cli import sample
from smolmem.inspector.app import make_app
from smolmem.inspector.guard import new_access
from smolmem.inspector.serve import link_of
from smolmem.listening import hosts_of, listen

HERE = Path(__file__).parent
SHOW_STEP = "document.querySelector('#step-list a[aria-current]').scrollIntoView({block: 'end'}); window.scrollTo(0, 0)"
RULE = "rule=pattern&pattern=health+check%3A+5&threshold=2&window=5"
PACE = 0.12
"""Seconds that each model and tool takes."""
PRICES = {"scripted": [2.5, 10.0]}
KILLED = """
import os, signal, sys
from smolmem import Memory
sys.path.insert(0, sys.argv[2])
from make_pictures import importer
with Memory(sys.argv[1], embedder="off") as memory:
    for number, _ in enumerate(memory.stepwise(importer(0), "Import the orders of last week.")):
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
"""
IS_READY = "return [...document.images].every((image) => image.complete)"


@contextmanager
def served(memory: Memory) -> Iterator[str]:
    """Serves the inspector, and yields its link."""
    with listen("127.0.0.1", 0, strict=True) as listening:
        port = listening.getsockname()[1]
        access = new_access(hosts_of("127.0.0.1", port), read_only=False)
        server = uvicorn.Server(uvicorn.Config(make_app(memory, access), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield link_of("127.0.0.1", port, access)
        finally:
            server.should_exit = True
            thread.join()


@tool  # type: ignore[untyped-decorator]
def import_orders(day: int) -> str:
    """Imports the orders of one day.

    Args:
        day: the number of the day.
    """
    time.sleep(PACE * (1 + day % 3))
    return f"day {day}: {120 + 17 * day} orders imported"


def importer(done: int) -> Any:
    """An agent that imports the orders of a week; some days are done."""
    days = [("import_orders", {"day": day}, f"Day {day} is next.") for day in range(done + 1, 8)]
    answer = ("final_answer", {"answer": "The orders of 7 days are imported."}, "All days are imported.")
    sample.Script.pace = PACE
    return ToolCallingAgent(
        tools=[import_orders],
        model=sample.Script(*days, answer),
        name="importer",
        description="imports",
        verbosity_level=LogLevel.OFF,
        max_steps=12,
    )


def kill_and_resume(file: Path) -> None:
    """Adds a run whose process is killed, and that another process resumes."""
    subprocess.run([sys.executable, "-c", KILLED, str(file), str(HERE)], check=False)  # noqa: S603  this program
    with Memory(file, embedder="off") as memory:
        run = memory.runs(agent="importer")[0]
        done = len([step for step in run.steps if step.kind == "action"])
        memory.resume(importer(done))


def take(chrome: Any, url: str, path: Path, *, width: int = 1360, dark: bool = False, script: str = "") -> None:
    """Takes a picture of a page."""
    size = {"width": width, "height": 860, "deviceScaleFactor": 1, "mobile": False}
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    chrome.get(url)
    chrome.execute_script(script)
    WebDriverWait(chrome, 20).until(lambda _: chrome.execute_script(IS_READY))
    chrome.save_screenshot(str(path))


def main(folder: Path) -> None:
    """Makes all pictures."""
    options = Options()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    chrome = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    file = Path(tempfile.mkdtemp()) / "sample.db"
    sample.fill(file, pace=PACE)
    kill_and_resume(file)
    prices = file.with_name("prices.json")
    prices.write_text(json.dumps(PRICES), encoding="utf-8")
    os.environ["SMOLMEM_PRICES"] = str(prices)
    try:
        with Memory(file) as memory, served(memory) as link:
            base = link.partition("/?")[0]
            chrome.get(link)
            names = ("browser", "importer", "researcher")
            browser, killed, team = (memory.runs(scope="*", agent=name)[-1] for name in names)
            fork = next(run for run in memory.runs(scope="*") if run.fork_of)
            step = next(step for step in browser.steps if step.number == 12)
            take(chrome, f"{base}/runs/{killed.id}", folder / "run.png")
            take(chrome, f"{base}/runs/{browser.id}?step={step.id}", folder / "screenshots.png", script=SHOW_STEP)
            take(chrome, f"{base}/runs/{team.id}", folder / "team.png")
            take(chrome, f"{base}/", folder / "runs-dark.png", dark=True)
            take(chrome, f"{base}/dashboard?period=24h", folder / "dashboard.png")
            take(chrome, f"{base}/memory?q=no+such+column", folder / "memory.png")
            take(chrome, f"{base}/compare?left={fork.fork_of}&right={fork.id}", folder / "compare.png")
            take(chrome, f"{base}/alerts?{RULE}", folder / "alerts.png")
            take(chrome, f"{base}/runs/{killed.id}", folder / "narrow.png", width=390, dark=True)
    finally:
        chrome.quit()
        shutil.rmtree(file.parent)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
