"""The console in Chromium, for its tests: the page, its folds, and asking about a sample."""

from __future__ import annotations

import pytest

from browsing import By, Select, text, wait, webdriver


@pytest.fixture
def page(browser: webdriver.Chrome, demo: str) -> webdriver.Chrome:
    browser.get(demo)
    wait(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#sample-list button")) == 8)
    wait(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, ".term")) > 10)
    return browser


def open_fold(browser: webdriver.Chrome, fold: str) -> None:
    browser.execute_script("document.getElementById(arguments[0]).open = true", fold)


def hidden_text(browser: webdriver.Chrome, place: str) -> str:
    """The text of an element, in a closed fold too."""
    return str(browser.execute_script("return document.getElementById(arguments[0]).textContent", place))


def ask_about(browser: webdriver.Chrome, client: str, number: int) -> None:
    """Ask about a client's sample and wait for the answer."""
    Select(browser.find_element(By.ID, "sample-client")).select_by_visible_text(client)
    wait(browser, lambda: client in browser.find_element(By.CSS_SELECTOR, "#sample-list img").get_attribute("alt"))
    browser.find_elements(By.CSS_SELECTOR, "#sample-list button")[number].click()
    browser.find_element(By.ID, "send").click()
    wait(browser, lambda: text(browser, "headline") != "")
