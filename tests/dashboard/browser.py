"""A real browser: Debian's Chromium without a window, with a fresh profile, told to leave the network alone.

Invariant: it is gone, with its profile, when the block ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By

from onceward.dashboard import Credential
from tests.servers import install
from tests.waiting import wait_until

if TYPE_CHECKING:
    from selenium.webdriver.remote.webelement import WebElement

FLAGS = (
    "--headless",
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
WIDE, PHONE = (1440, 950), (390, 844)
PICTURES = "ONCEWARD_SCREENSHOTS"
"""Names the folder for pictures of the documentation; without it none are kept."""


class Browser:
    """One browser, looking at one site."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.address = ""

    def sign_in(self, address: str, who: Credential) -> None:
        """Go to a site and sign in, with mouse and keys."""
        self.address = address
        self.driver.delete_all_cookies()
        self.go("/login")
        self.one("input[name=name]").send_keys(who.name)
        self.one("input[name=secret]").send_keys(who.secret)
        self.one("main button").click()
        wait_until(lambda: self.all(".side"), message="the page after signing in")

    def go(self, path: str) -> None:
        """Look at a page."""
        self.driver.get(self.address + path)

    def one(self, selector: str) -> WebElement:
        """The element that a selector finds, as soon as the page has it."""
        found = wait_until(lambda: self.all(selector), message=f"{selector!r} on the page")
        return found[0]

    def text(self, selector: str) -> str:
        """What an element says; nothing while another page takes its place."""
        with suppress(StaleElementReferenceException):
            return self.one(selector).text
        return ""

    def all(self, selector: str) -> list[WebElement]:
        """All that a selector finds."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        return self.driver.execute_script(f"return {script}")

    def resize(self, size: tuple[int, int], *, dark: bool = False) -> None:
        """Look as on a screen of this size."""
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size is PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def barriers(self) -> list[str]:
        """What axe finds that keeps people out (WCAG 2.2 A and AA): the rule, and where it is broken."""
        self.driver.execute_script(_axe())
        found = self.driver.execute_async_script(
            "var done = arguments[arguments.length - 1];"
            "axe.run(document, {preload: false, resultTypes: ['violations'],"
            " runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']}).then("
            "function (one) { done(one.violations); }, function (error) { done([{id: String(error), nodes: []}]); });"
        )
        return [f"{one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"] or [{"html": ""}]]

    def complaints(self) -> list[str]:
        """What the browser logged since it was last asked: refused scripts, failed requests, errors."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    @property
    def keeps_pictures(self) -> bool:
        """Whether pictures are wanted."""
        return bool(os.environ.get(PICTURES))

    def picture(self, name: str) -> None:
        """Keep a picture for the documentation, where one is wanted."""
        if self.keeps_pictures:
            folder = Path(os.environ[PICTURES])
            folder.mkdir(parents=True, exist_ok=True)
            assert self.driver.save_screenshot(str(folder / f"{name}.png"))


@cache
def _axe() -> str:
    """Deque's axe, as a script."""
    return (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser of its own."""
    with tempfile.TemporaryDirectory(prefix="onceward-browser-", ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = str(install.chromium_program())
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        service = webdriver.ChromeService(str(install.chromedriver_program()))
        driver = webdriver.Chrome(options=options, service=service)
        driver.set_script_timeout(180)  # axe reads every element of a page, on a machine that may have much to do
        try:
            yield Browser(driver)
        finally:
            driver.quit()
