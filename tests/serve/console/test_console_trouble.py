"""The console when something is wrong: a gateway that is gone, hangs or is replaced; keys, options, names, samples."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from browsing import By, browser, needs_browser, text, wait, webdriver, window
from console_page import ask_about, open_fold, page
from feddrm.serve.auth import add_key
from serving import Launch

assert browser, "the fixture of this module"
assert page, "the same"
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

pytestmark = [needs_browser, pytest.mark.slow]


def said(page: webdriver.Chrome, function: str, *words: Any) -> str:
    return str(page.execute_script(f"return {function}(...arguments)", *words))


def ask(page: webdriver.Chrome, error: str) -> None:
    page.find_element(By.ID, "send").click()
    wait(page, lambda: text(page, "error") == error)


def test_a_gateway_that_is_gone_is_told_and_another_in_its_place_gets_its_own_form(
    browser: webdriver.Chrome, run: Path, table_run: Path, launch: Launch, tmp_path: Path
) -> None:
    words = ["--demo", "--audit", tmp_path / "a.sqlite", "--port"]
    first = launch("serve", run, *words, 0)
    url = first.wait_ready()
    browser.get(url)
    wait(browser, lambda: text(browser, "clients").count("well") == 3)
    assert "0 ms" not in text(browser, "clients"), "no client was asked yet"
    wait(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#sample-list button")) == 8)
    ask_about(browser, "fax", 1)
    first.stop()
    wait(browser, lambda: "The gateway does not answer. The figures below are from " in text(browser, "trouble"))
    assert "well" not in text(browser, "clients")
    assert text(browser, "clients").count("unknown") == 3
    ask(browser, "The gateway does not answer.")
    assert not browser.find_element(By.ID, "result").is_displayed()

    launch("serve", table_run, *words, url.rpartition(":")[2]).wait_ready()
    wait(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#fields .field")) == 4)
    assert not browser.find_element(By.ID, "picture-input").is_displayed()
    wait(browser, lambda: text(browser, "clients").count("well") == 2)
    assert text(browser, "trouble") == ""


def test_a_gateway_that_hangs_is_told(browser: webdriver.Chrome, run: Path, launch: Launch, tmp_path: Path) -> None:
    gateway = launch("serve", run, "--port", 0, "--audit", tmp_path / "a.sqlite")
    browser.get(gateway.wait_ready())
    wait(browser, lambda: "queries so far" in text(browser, "totals"))
    browser.execute_script("TIMEOUT.GET = 1")
    gateway.send(signal.SIGSTOP)
    try:
        wait(browser, lambda: text(browser, "trouble").startswith("The gateway does not answer."))
    finally:
        gateway.send(signal.SIGCONT)
    wait(browser, lambda: text(browser, "trouble") == "")


def test_a_key_that_may_not_see_the_figures_leaves_no_empty_tables_and_is_not_sent_again_and_again(
    browser: webdriver.Chrome, run: Path, launch: Launch, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.yaml"
    lab, admin = (add_key(keys, name, scopes) for name, scopes in (("lab", ["predict"]), ("boss", ["admin"])))
    url = launch("serve", run, "--port", 0, "--keys", keys, "--audit", tmp_path / "a.sqlite").wait_ready()
    browser.get(url)
    wait(browser, lambda: text(browser, "trouble").startswith("The gateway wants an API key: enter it at the top"))

    def tables() -> list[bool]:
        places = ("federation-figures", "traffic-section")
        return [bool(browser.find_element(By.ID, place).is_displayed()) for place in places]

    def give(key: str) -> None:
        browser.find_element(By.ID, "key").clear()
        browser.find_element(By.ID, "key").send_keys(key, Keys.ENTER)

    asked = "return performance.getEntriesByType('resource').filter((e) => e.name.endsWith('federation')).length"
    give(lab)
    wait(browser, lambda: "no scope 'admin'" in text(browser, "trouble"))
    before = browser.execute_script(asked)
    assert tables() == [False, False]
    browser.execute_async_script("setTimeout(arguments[0], 2500)")
    assert browser.execute_script(asked) == before
    give(admin)
    wait(browser, lambda: tables() == [True, True] and text(browser, "trouble") == "")
    keys.write_text("")  # all keys are revoked
    wait(browser, lambda: "unknown here" in text(browser, "trouble"))
    assert tables() == [False, False]
    assert not browser.find_element(By.ID, "samples").is_displayed()


def test_what_is_asked_is_what_is_shown(page: webdriver.Chrome) -> None:
    """A sample of another client than the chosen one is not sent, nor is the answer before shown as the new one."""
    ask_about(page, "flatbed", 1)
    page.execute_script("const real = fetch; window.fetch = (path, options) => options && options.method === 'POST' "
                        "? new Promise((done) => { window.answerNow = () => done(real(path, options)); }) "
                        ": real(path, options);")  # fmt: skip
    page.find_element(By.ID, "send").click()
    wait(page, lambda: page.execute_script("return typeof answerNow") == "function")
    assert text(page, "headline") == "", "the answer before is not visible while the next one is on its way"
    assert not page.find_element(By.ID, "send").is_enabled()
    page.execute_script("answerNow()")
    wait(page, lambda: text(page, "headline").startswith("Answer: "))
    Select(page.find_element(By.ID, "sample-client")).select_by_visible_text("fax")
    ask(page, "Choose a picture or a sample first.")


def test_an_option_that_is_refused_is_shown(page: webdriver.Chrome) -> None:
    """The browser goes to the field, which it cannot while the fold is closed."""
    ask_about(page, "flatbed", 1)
    open_fold(page, "options")
    for value in ("99", ""):
        page.execute_script("$('consult').value = arguments[0]; $('options').open = false", value)
        page.find_element(By.ID, "send").click()
        wait(page, lambda: page.find_element(By.ID, "consult").is_displayed())
    assert page.find_element(By.ID, "ask").get_attribute("autocomplete") == "off", "back brings no hidden choice back"


def test_typed_numbers_are_counted_and_read(page: webdriver.Chrome) -> None:
    typed = (
        "rowLength = 3; $('numbers').value = arguments[0]; try { return typedNumbers(); } "
        "catch (error) { return error.message; }"
    )
    for words, expected in (
        ("1, 2.5;-3e2", [1, 2.5, -300]),
        ("1 two 3", "'two' is no number."),
        ("1 1e999 3", "'1e999' is no number."),
        ("1 2", "Give 3 numbers: these are 2."),
        ("", "Give 3 numbers: these are 0."),
    ):
        assert page.execute_script(typed, words) == expected


def test_numbers_beside_names_from_right_to_left_stay_beside_them(page: webdriver.Chrome) -> None:
    name = "\u05e9\u05d9\u05d1\u05d0"
    ranked = [{"client": name, "probability": 0.9999}, {"client": "oslo", "probability": 0.0001}]
    assert said(page, "originSentence", {"ranked": ranked}, "density") == (
        f"With a probability of 99.990 % the query comes from the data of \u2068{name}\u2069; "
        "the next is oslo with 0.010 %."
    )


def test_only_certainty_is_called_100_per_cent(page: webdriver.Chrome) -> None:
    for value, words in ((1, "100.0 %"), (0.9999999, "> 99.999 %"), (0.99996, "99.996 %"), (0.999, "99.9 %"),
                         (0.5, "50.0 %"), (1e-7, "< 0.001 %"), (0, "0.0 %")):  # fmt: skip
        assert said(page, "percent", value) == words


def test_rows_of_clients_stay_while_nothing_changes_and_missing_pictures_are_fetched(page: webdriver.Chrome) -> None:
    pictures = "return document.querySelectorAll('#clients .shift img').length"
    wait(page, lambda: page.execute_script(pictures) == 9)
    page.execute_script("delete sampleUrls.fax; showClients()")
    wait(page, lambda: page.execute_script(pictures) == 9)
    page.execute_script("window.kept = $('clients').rows[0]")
    page.execute_async_script("setTimeout(arguments[0], 2500)")
    assert page.execute_script("return window.kept === $('clients').rows[0]")


def test_samples_that_failed_at_first_are_shown_later(browser: webdriver.Chrome, demo: str) -> None:
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/v1/samples/*"]})
    try:
        browser.get(demo)
        wait(browser, lambda: text(browser, "trouble").startswith("The gateway does not answer."))
        assert not browser.find_elements(By.CSS_SELECTOR, "#sample-list button")
    finally:
        browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    wait(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#sample-list button")) == 8)


CHART = """
const period = (from, accuracy) => ({ from, accuracy, calibration_error: null, abstention: 0 });
$("outcomes").hidden = false;
const svg = outcomeChart({ seconds: 600, periods: [period(0, 0.5), period(600, 0.6), period(5400, 0.7)] });
$("outcome-chart").replaceChildren(svg);
const right = Math.max(...[...svg.querySelectorAll("text")].map((text) => text.getBBox().x + text.getBBox().width));
const left = [...svg.querySelectorAll("text")].slice(0, 3).map((text) => text.getBBox().width);
return [[...svg.querySelectorAll("circle.line0")].map((dot) => Number(dot.getAttribute("cx"))), right, left,
  svg.getBoundingClientRect().width, Number(svg.querySelector("line").getAttribute("x1"))];
"""


def test_outcomes_stand_at_their_times_and_fit_a_phone(page: webdriver.Chrome) -> None:
    """A pause between two periods is as wide as it was long."""
    with window(page, 360):
        dots, right, labels, width, line = page.execute_script(CHART)
    assert dots[2] - dots[1] == pytest.approx(8 * (dots[1] - dots[0]))
    assert right <= width <= 360
    assert max(labels) <= line, "labels end where lines begin"
