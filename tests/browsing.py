"""Chromium for tests of web pages. A test module skips itself where selenium or the browser is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="pip install 'feddrm[dev]' to run this")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

assert Select, "for tests"
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="needs Debian's chromium and chromium-driver: apt-get install both"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1200,1400",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield made
    made.quit()


def wait(browser: webdriver.Chrome, condition: object, seconds: float = 30) -> None:
    WebDriverWait(browser, seconds, ignored_exceptions=[Exception]).until(lambda _: condition())  # type: ignore[operator]


def text(browser: webdriver.Chrome, place: str) -> str:
    found: str = browser.find_element(By.ID, place).text
    return found


def save_screenshot(browser: webdriver.Chrome, name: str, folder: Path, part: str = "body") -> None:
    """Save a screenshot of a part of the page in the folder, or in the one that FEDDRM_SCREENSHOTS names."""
    place = Path(os.environ.get("FEDDRM_SCREENSHOTS") or folder)
    place.mkdir(parents=True, exist_ok=True)
    if part == "body":
        browser.save_screenshot(str(place / f"{name}.png"))
    else:
        browser.find_element(By.CSS_SELECTOR, part).screenshot(str(place / f"{name}.png"))


@contextmanager
def colours(browser: webdriver.Chrome, scheme: str) -> Iterator[None]:
    """A reader who prefers light or dark pages."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    yield
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@contextmanager
def window(browser: webdriver.Chrome, width: int, height: int = 800) -> Iterator[None]:
    """A window of this size, down to that of a phone."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def page_width(browser: webdriver.Chrome) -> int:
    """How wide the whole page is: more than the window if it can be scrolled sideways."""
    return int(browser.execute_script("return document.documentElement.scrollWidth"))


CONTRAST = """
const channel = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
const light = (c) => { const [r, g, b] = c.match(/[0-9.]+/g).map(Number).map(channel);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
  if (c !== 'rgba(0, 0, 0, 0)') return c; } return 'rgb(255, 255, 255)'; };
return [...document.body.querySelectorAll('*')]
  .filter((e) => e.offsetParent && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())).map((e) => {
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), e.tagName + ' ' + e.innerText.slice(0, 30)]; });
"""


def contrasts(browser: webdriver.Chrome) -> list[tuple[float, str]]:
    """Every visible text's contrast to its background by WCAG, which requires 4.5, and the text; the lowest first."""
    return sorted((float(ratio), str(name)) for ratio, name in browser.execute_script(CONTRAST))


def severe_messages(browser: webdriver.Chrome) -> list[str]:
    """What the browser complains about, but for a missing favicon."""
    lines = [line["message"] for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    return [line for line in lines if "favicon" not in line]
