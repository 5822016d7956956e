"""The console as a reader sees it: words first, folds, tooltips, the asked picture, a phone, light and dark."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from browsing import (
    By,
    browser,
    colours,
    contrasts,
    needs_browser,
    page_width,
    save_screenshot,
    text,
    wait,
    webdriver,
    window,
)
from console_page import ask_about, hidden_text, open_fold, page
from feddrm.io.page_files import TERMS
from feddrm.router.decisions.decision import AWAY, BROKEN, DOWN, IMPOSSIBLE, UNLIKE, UNSURE
from serving import Launch

assert browser, "the fixture of this module"
assert page, "the same"
from selenium.webdriver.common.actions.action_builder import ActionBuilder  # noqa: E402

pytestmark = [needs_browser, pytest.mark.slow]


def test_words_come_first_and_figures_are_folded(page: webdriver.Chrome) -> None:
    """What the router calls things is in closed folds, and explained by the glossary."""
    ask_about(page, "flatbed", 1)
    assert not any(fold.get_attribute("open") for fold in page.find_elements(By.TAG_NAME, "details"))
    shown = text(page, "query")
    for word in ("Margin", "Log density ratio", "Routing rule", "Artifact", "Features", "embedding"):
        assert word not in shown
    artifact = hidden_text(page, "artifact")
    assert re.fullmatch("[0-9a-f]{12}", artifact)
    pairs = page.execute_script(
        "return [...document.querySelectorAll('#figures dt')].map((t) => [t.innerText || t.textContent, "
        "t.nextSibling.textContent])"
    )
    figures = dict(pairs)
    assert list(figures) == ["Routing rule", "Margin", "Log density ratio", "Answered", "Artifact", "Request"]
    assert (figures["Routing rule"], figures["Artifact"]) == ("density", artifact)
    assert 0 <= float(figures["Margin"]) <= 1
    assert re.fullmatch(r"(\w+ -?[0-9.]+(, )?){3}", figures["Log density ratio"])


def test_who_was_asked_and_why_in_words(page: webdriver.Chrome) -> None:
    def said(function: str, *words: Any) -> str:
        return str(page.execute_script(f"return {function}(...arguments)", *words))

    best = {"client": "oslo", "probability": 0.9, "available": True}
    nobody: dict[str, Any] = {"answered": [], "failed": [], "fallback": False}
    assert said("askedSentence", nobody, best) == "Nobody was asked."
    failed = nobody | {"failed": [{"client": "oslo", "reason": "timeout"}]}
    assert said("askedSentence", failed, best) == "Nobody answered. oslo failed: timeout."
    instead = failed | {"answered": [{"client": "lima", "weight": 1}], "fallback": True, "client_probability": 0.1}
    assert said("askedSentence", instead, best) == (
        "lima (10.0 %) was asked in place of oslo, which failed. oslo failed: timeout."
    )
    route = {"client": "oslo", "ranked": [best], "right_probability": 0.8, "away": [], "reason": "something new"}
    assert (
        said("originSentence", route, "density")
        == "With a probability of 90.0 % the query comes from the data of oslo."
    )
    assert said("originSentence", route, "competence") == (
        "oslo is the most likely to answer rightly. Its answer is right with a probability of 80.0 %."
    )
    assert said("reasonSentence", route) == "something new."
    for reason in (BROKEN, DOWN, IMPOSSIBLE, UNLIKE, AWAY, UNSURE):
        words = said("reasonSentence", route | {"reason": reason})
        assert words != f"{reason}.", "every reason of the router is told in words"


def test_why_this_client_is_a_list_of_bars_that_add_up(page: webdriver.Chrome) -> None:
    ask_about(page, "flatbed", 1)
    assert re.fullmatch(r"Why \w+ and not \w+", hidden_text(page, "why-title"))
    assert re.match(r"Plus speaks for \w+, minus for \w+; the sum is \+", hidden_text(page, "why-caption"))
    bars = "return [...document.querySelectorAll('#why-terms tr')].map((r) => [r.cells[0].textContent, "
    shown = page.execute_script(bars + "r.querySelector('meter').value, r.cells[1].lastChild.textContent])")
    assert [name for name, _, _ in shown] == ["embedding", "an average query"]
    numbers = [float(text.replace("\N{MINUS SIGN}", "-")) for _, _, text in shown]
    total = float(hidden_text(page, "why-caption").rpartition("+")[2])
    assert sum(numbers) == pytest.approx(total, abs=0.02)
    largest = max(map(abs, numbers))
    assert [size for _, size, _ in shown] == pytest.approx([abs(n) / largest for n in numbers], abs=0.02)
    term = {"name": "chol", "value": None, "log_odds": -2.0}
    age = {"name": "age", "value": 82, "log_odds": 1.0}
    why = {
        "client": "oslo",
        "over": "lima",
        "log_odds": -0.5,
        "terms": [term, age],
        "rest": 0,
        "baseline": 0.5,
        "sizes": 0,
    }
    page.execute_script("showWhy({ why: arguments[0] })", {**why, "unlike": []})
    found = page.execute_script(bars + "r.querySelector('meter').value, r.cells[1].lastChild.textContent])")
    assert found == [
        ["chol missing", 1, "\N{MINUS SIGN}2.00"],
        ["age 82", 0.5, "+1.00"],
        ["an average query", 0.25, "+0.50"],
    ]
    page.execute_script(
        "showWhy({ why: arguments[0] })", {**why, "unlike": [{"name": "age", "value": 150, "share": 0.8}]}
    )
    assert page.execute_script(bars + "r.cells[1].lastChild.textContent])") == [["age 150", "80.0 %"]]
    assert hidden_text(page, "why-title") == "What makes the query strange"
    page.execute_script("showWhy({ why: null })")
    assert not page.find_element(By.ID, "why").is_displayed()


def test_the_asked_picture_and_its_true_label_stand_beside_the_answer(page: webdriver.Chrome, tmp_path: Path) -> None:
    for number in (1, 4):  # sample n of the digits is an n
        ask_about(page, "flatbed", number)
        wait(page, lambda n=number: text(page, "truth").startswith(f"True label {n}: "))
        right = text(page, "headline").startswith(f"Answer: {number},")
        assert text(page, "truth") == f"True label {number}: the answer is {'right' if right else 'wrong'}"
    assert page.execute_script("return document.getElementById('asked-picture').naturalWidth") == 8
    said = page.execute_script(
        "showPicture({ picture: null, label: '3' }, '3'); return [$('truth').textContent, $('truth').className]"
    )
    assert said == ["True label 3: the answer is right", "good"]
    Image.new("L", (8, 8)).save(tmp_path / "scan.png")
    page.find_element(By.ID, "file").send_keys(str(tmp_path / "scan.png"))
    page.find_element(By.ID, "send").click()
    wait(page, lambda: text(page, "truth") == "")
    wait(page, lambda: page.find_element(By.ID, "asked").is_displayed())


def test_terms_are_explained_by_the_glossary(page: webdriver.Chrome) -> None:
    ask_about(page, "flatbed", 1)
    for fold in ("options", "why", "details"):
        open_fold(page, fold)
    pointer = ActionBuilder(page)
    pointer.pointer_action.move_to_location(1, 1)  # where it points at no term
    pointer.perform()
    terms = page.find_elements(By.CSS_SELECTOR, "[data-term]")
    assert len(terms) > 15
    for width in (1200, 375):
        with window(page, width):
            for term in terms:
                if not term.is_displayed():  # outcomes, and what this gateway is
                    continue
                assert "term" in str(term.get_attribute("class")), term.text
                page.execute_script("arguments[0].scrollIntoView({block: 'center'}); arguments[0].focus()", term)
                tip = page.find_element(By.ID, "tip")
                assert tip.text == TERMS[str(term.get_attribute("data-term"))]
                left, right = page.execute_script(
                    "const r = arguments[0].getBoundingClientRect(); return [r.left, r.right]", tip
                )
                assert 0 <= left < right <= width
    page.execute_script("document.activeElement.blur()")
    assert not page.find_element(By.ID, "tip").is_displayed()


def test_a_phone_scrolls_the_page_downwards_only(page: webdriver.Chrome) -> None:
    ask_about(page, "flatbed", 1)
    with window(page, 375):
        assert page_width(page) <= 375
        for fold in ("options", "why", "details"):
            open_fold(page, fold)
        assert page_width(page) <= 375
        wide = page.execute_script(
            "const q = document.getElementById('query'), right = q.getBoundingClientRect().right;"
            "return [...q.querySelectorAll('*')].filter((e) => e.getBoundingClientRect().right > right)"
            ".map((e) => e.outerHTML)"
        )
        assert wide == [], "nor does the answer scroll in its box"


def test_light_and_dark_colours_have_enough_contrast(page: webdriver.Chrome) -> None:
    ask_about(page, "flatbed", 1)
    for fold in ("options", "why", "details"):
        open_fold(page, fold)
    for scheme in ("light", "dark"):
        with colours(page, scheme):
            found = contrasts(page)
            assert len(found) > 60
            assert found[0][0] >= 4.5, (scheme, found[:5])


EDGES = """
const channel = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
const light = (c) => { const [r, g, b] = c.match(/[0-9.]+/g).map(Number).map(channel);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const panel = light(getComputedStyle($('query')).backgroundColor);
return [...document.querySelectorAll('input:not([type=checkbox]), select')].map((e) => {
  const [a, b] = [light(getComputedStyle(e).borderTopColor), panel].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05); });
"""


def test_fields_can_be_told_from_their_ground(page: webdriver.Chrome) -> None:
    """WCAG 1.4.11 requires a contrast of 3 of what shows where a field is."""
    for scheme in ("light", "dark"):
        with colours(page, scheme):
            edges = page.execute_script(EDGES)
            assert len(edges) >= 8
            assert min(edges) >= 3, scheme


def test_the_pictures_of_the_documentation(
    browser: webdriver.Chrome, run: Path, launch: Launch, tmp_path: Path
) -> None:
    """Of the run feddrm below FEDDRM_RUNS where it is set."""
    shown = Path(os.environ["FEDDRM_RUNS"]) / "feddrm" if "FEDDRM_RUNS" in os.environ else run
    browser.get(launch("serve", shown, "--demo", "--port", 0, "--audit", tmp_path / "a.sqlite").wait_ready())
    wait(browser, lambda: "well" in text(browser, "clients"))
    wait(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, ".shift img")) >= 9)
    ask_about(browser, "flatbed", 3)
    wait(browser, lambda: "1 query so far" in text(browser, "totals"))
    browser.execute_script("document.activeElement.blur(); document.body.style.overflow = 'hidden'")
    for scheme, name in (("light", "console"), ("dark", "console_dark")):
        with window(browser, 1120, 1240), colours(browser, scheme):
            save_screenshot(browser, name, tmp_path)
    with window(browser, 375, 1240):
        save_screenshot(browser, "console_phone", tmp_path)
    assert text(browser, "truth").startswith("True label 3")
