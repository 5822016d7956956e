"""Chromium for tests of web pages. A test module skips itself where selenium or the browser is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="pip install 'feddrm[dev]' to run this")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

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
