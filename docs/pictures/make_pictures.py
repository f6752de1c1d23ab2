"""Makes the pictures of the inspector in this folder: `python docs/pictures/make_pictures.py`.

Needs Chromium with its driver, and the local model for semantic recall. The pictures show the memory of `smolmem demo`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from smolmem import Memory
from smolmem.cli import sample
from smolmem.inspector.app import make_app
from smolmem.inspector.guard import new_access
from smolmem.inspector.serve import hosts_of, link_of, listen

HERE = Path(__file__).parent
SHOW_STEP = (
    "document.querySelector('#step-list a[aria-current]').scrollIntoView({block: 'end'}); window.scrollTo(0, 168)"
)
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


def take(chrome: Any, url: str, path: Path, *, width: int = 1360, dark: bool = False, script: str = "") -> None:
    """Takes a picture of a page."""
    size = {"width": width, "height": 757, "deviceScaleFactor": 1, "mobile": False}
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
    sample.fill(file)
    try:
        with Memory(file) as memory, served(memory) as link:
            base = link.partition("/?")[0]
            chrome.get(link)
            browser, forecaster = (memory.runs(scope="*", agent=name)[-1] for name in ("browser", "forecaster"))
            step = next(step for step in browser.steps if step.number == 12)
            take(chrome, f"{base}/runs/{browser.id}?step={step.id}", folder / "run.png", script=SHOW_STEP)
            take(chrome, f"{base}/", folder / "runs-dark.png", dark=True)
            take(chrome, f"{base}/memory?q=no+such+column", folder / "memory.png")
            take(chrome, f"{base}/runs/{forecaster.id}", folder / "narrow.png", width=420, dark=True)
    finally:
        chrome.quit()
        shutil.rmtree(file.parent)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
