"""A Chromium without a window, for the tests of the inspector's pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="chromium or chromedriver is not installed")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions"),
    *("--in-process-gpu", "--disable-software-rasterizer", "--renderer-process-limit=1"),  # fewer processes
)


@contextmanager
def browsing(profile: Path, *flags: str, **capabilities: Any) -> Iterator[Any]:
    """The driver of a browser with a profile of its own; the browser ends with the block."""
    options = Options()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, *flags, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    for name, value in capabilities.items():
        options.set_capability(name, value)
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    driver.set_script_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()
