"""A real browser for tests of the page, and what it tells about a page."""

import base64
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.remote.webelement import WebElement

from processes import PATIENCE_S

GIVEN_FOLDER = os.environ.get("RAMPCLI_SCREENSHOTS")
SCREENSHOTS = Path(GIVEN_FOLDER).absolute() if GIVEN_FOLDER else None
"""Folder for screenshots, None for a temporary one.

It is relative to the folder that pytest is started in, which tests leave before they run.
"""
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--disable-dev-shm-usage"),
)
OWN = ("data:", "blob:", "chrome:", "chrome-untrusted:", "about:", "file:")
WIDTH, HEIGHT = 1400, 900


class Browser:
    """A window of Chromium.

    Args:
        driver: drives it.
        screenshots: folder for pictures.
    """

    def __init__(self, driver: webdriver.Chrome, screenshots: Path) -> None:
        self.driver = driver
        self.screenshots = screenshots

    def open(self, url: str, *, dark: bool = False, width: int = WIDTH) -> None:
        """Opens an address in a page of its own."""
        self._command(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False},
        )
        self.prefer(dark=dark)
        self.driver.get("about:blank")
        self.driver.get(url)

    def prefer(self, *, dark: bool) -> None:
        """Sets the colours that the system prefers."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._command("Emulation.setEmulatedMedia", {"features": [scheme]})

    def find(self, selector: str) -> WebElement:
        """Returns the first element of a CSS selector, once there is one."""
        return wait_for(lambda: self.all(selector), selector)[0]

    def all(self, selector: str) -> list[WebElement]:
        """Returns the elements of a CSS selector."""
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        """Returns the texts of elements, as one state of the page."""
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
        found: list[str] = self.driver.execute_script(script, selector)
        return found

    def fact(self, name: str) -> str | None:
        """Returns a value of the summary, such as the step."""
        names, values = self.texts(".tile dt"), self.texts(".tile dd")
        return dict(zip(names, values, strict=False)).get(name)

    def charts(self) -> dict[str, str]:
        """Returns what the charts show, in words."""
        script = """
            const shown = [...document.querySelectorAll(".card[data-chart]:not([hidden])")];
            return Object.fromEntries(shown.map((card) =>
                [card.dataset.chart, card.querySelector(".plot").getAttribute("aria-label")]));
        """
        found: dict[str, str] = self.driver.execute_script(script)
        return found

    def drag(self, selector: str, first: float, last: float) -> None:
        """Drags the pointer over an element, between two shares of its width."""
        target = self.find(selector)
        script = "arguments[0].scrollIntoView({block: 'center'})"
        self.driver.execute_script(script, target)
        width = target.size["width"]
        actions = ActionChains(self.driver, duration=20)
        actions.move_to_element_with_offset(target, int((first - 0.5) * width), 0).click_and_hold()
        actions.move_by_offset(int((last - first) * width), 0).release().perform()

    def point(self, selector: str, share: float) -> None:
        """Moves the pointer to an element, at a share of its width."""
        target = self.find(selector)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", target)
        actions = ActionChains(self.driver, duration=20)
        offset = int((share - 0.5) * target.size["width"])
        actions.move_to_element_with_offset(target, offset, 0).perform()

    def picture(self, name: str, *, height: int | None = None) -> None:
        """Writes a screenshot of the page from its top, whole or `height` pixels of it."""
        self.driver.execute_script("scrollTo(0, 0)")
        size = self._command("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {
            "x": 0,
            "y": 0,
            "width": size["width"],
            "height": height or size["height"],
            "scale": 1,
        }
        options = {"captureBeyondViewport": True, "clip": clip}
        found = self._command("Page.captureScreenshot", options)["data"]
        self.screenshots.mkdir(parents=True, exist_ok=True)
        (self.screenshots / f"{name}.png").write_bytes(base64.b64decode(found))

    def pdf(self) -> bytes:
        """Returns the page as it is printed on A4 paper."""
        options = {"printBackground": True, "paperWidth": 8.27, "paperHeight": 11.69}
        return base64.b64decode(self._command("Page.printToPDF", options)["data"])

    def complaints(self) -> list[str]:
        """Returns errors and warnings of the console since the last call."""
        entries = self.driver.get_log("browser")
        return [one["message"] for one in entries if one["level"] != "INFO"]

    def hosts(self) -> set[str]:
        """Returns the hosts that were asked for something since the last call."""
        messages = [json.loads(one["message"]) for one in self.driver.get_log("performance")]
        urls = [
            one["message"]["params"]["request"]["url"]
            for one in messages
            if one["message"]["method"] == "Network.requestWillBeSent"
        ]
        return {urlsplit(url).hostname or url for url in urls if not url.startswith(OWN)}

    def _command(self, name: str, options: dict[str, object]) -> dict[str, str]:
        found: dict[str, str] = self.driver.execute_cdp_cmd(name, options)
        return found


def wait_for(condition: Callable[[], object], what: str) -> object:
    """Returns the first true value of a condition, or fails after `PATIENCE_S` seconds."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)
    return found


@contextmanager
def running_browser(folder: Path) -> Iterator[Browser]:
    """Starts Chromium, or skips the test where it is not installed."""
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip("Chromium is not installed: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for option in (*OPTIONS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # The path of the driver is given, so that selenium looks for none on the network.
    driver = webdriver.Chrome(options=options, service=Service(programs[1]))
    try:
        yield Browser(driver, SCREENSHOTS or folder / "screenshots")
    finally:
        driver.quit()
