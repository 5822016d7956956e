"""The report as a reader sees it in Chromium: the first screen, folds, tooltips, a phone, light and dark."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from browsing import (
    By,
    browser,
    colours,
    contrasts,
    needs_browser,
    page_width,
    save_screenshot,
    severe_messages,
    webdriver,
    window,
)
from feddrm.data import load
from feddrm.io.page_files import TERMS
from feddrm.report.report_page import write_report
from feddrm.report.run_table import report_table
from run_folders import write_run

assert browser, "the fixture of this module"
pytestmark = [needs_browser, pytest.mark.slow]
SKILLS = {"ours": 0.8, "shared": 0.7, "tuned": 0.75, "alone": 0.6}
OPEN_ALL = "for (const fold of document.querySelectorAll('details')) fold.open = true"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs and their report."""
    place, digits = tmp_path_factory.mktemp("look"), load("digits", clients=4, seed=0)
    runs = [write_run(place / name, digits, method=name, skill=skill, metrics=True) for name, skill in SKILLS.items()]
    write_report(report_table(runs), place)
    return place


@pytest.fixture
def page(browser: webdriver.Chrome, folder: Path) -> webdriver.Chrome:
    browser.get((folder / "report.html").as_uri())
    return browser


def test_the_page_begins_with_one_sentence_and_its_figures(page: webdriver.Chrome, folder: Path) -> None:
    summary = json.loads((folder / "ours" / "summary.json").read_text())
    means = [
        summary["system_accuracy"]["head_density"]["mean"],
        summary["global_accuracy"]["mean"],
        summary["oracle_accuracy"]["mean"],
    ]
    guided, shared, own = (f"{100 * mean:.0f} %" for mean in means)
    assert page.find_element(By.TAG_NAME, "h1").text == (
        f"A query of unknown origin: {guided} answered rightly when guided, {shared} by one global model, "
        f"{own} at its own client."
    )
    script = "return [...document.querySelectorAll('.bars i')].map((i) => i.offsetWidth / i.parentElement.offsetWidth)"
    for width in (1200, 375):
        with window(page, width):
            assert page.execute_script(script) == pytest.approx(means, abs=0.01), "bars of one scale from zero"
    shown = [bar.text for bar in page.find_elements(By.CSS_SELECTOR, ".bars strong")]
    assert shown == [f"{100 * mean:.1f} %" for mean in means]


def test_all_but_the_main_measures_is_folded(page: webdriver.Chrome) -> None:
    folds = page.find_elements(By.TAG_NAME, "details")
    assert len(folds) == 6
    assert not any(fold.get_attribute("open") for fold in folds)
    visible = [table for table in page.find_elements(By.TAG_NAME, "table") if table.is_displayed()]
    assert len(visible) == 1
    assert len(visible[0].find_elements(By.CSS_SELECTOR, "thead th")) == 5
    for width, most in ((1200, 1500), (375, 2000)):
        with window(page, width):
            assert page.execute_script("return document.documentElement.scrollHeight") < most
    page.find_element(By.CSS_SELECTOR, "tbody a[href='#run-2']").click()
    assert [bool(fold.get_attribute("open")) for fold in folds] == [False, False, False, True, False, False]


def test_no_row_and_no_column_is_all_dashes(page: webdriver.Chrome) -> None:
    page.execute_script(OPEN_ALL)
    tables = page.execute_script(
        "return [...document.querySelectorAll('table')].map((t) => [...t.tBodies[0].rows].map((r) => "
        "[...r.cells].slice(1).map((c) => c.innerText.trim())))"
    )
    assert len(tables) > 10
    for rows in tables:
        assert not [line for line in rows if set(line) == {"–"}]
        assert not [column for column in zip(*rows, strict=True) if set(column) == {"–"}]


def test_terms_have_tooltips_from_the_glossary(page: webdriver.Chrome) -> None:
    terms = page.find_elements(By.CSS_SELECTOR, "table.main .term")
    assert [term.text for term in terms] == ["Unknown origin", "Global model", "Own client", "Right client"]
    script = "return [getComputedStyle(arguments[0], '::after').content, arguments[0].tabIndex]"
    for term, meaning in zip(
        terms, ("system accuracy", "global model", "oracle accuracy", "client accuracy"), strict=True
    ):
        assert page.execute_script(script, term) == ["none", 0]
        page.execute_script("arguments[0].focus()", term)
        assert page.execute_script(script, term)[0] == json.dumps(TERMS[meaning], ensure_ascii=False)
        for width in (1200, 375):
            with window(page, width):
                assert page_width(page) <= width


def test_a_phone_scrolls_the_page_downwards_only(page: webdriver.Chrome) -> None:
    with window(page, 375):
        assert page_width(page) <= 375
        page.execute_script(OPEN_ALL)
        assert page_width(page) <= 375


def test_light_and_dark_have_enough_contrast(page: webdriver.Chrome) -> None:
    page.execute_script(OPEN_ALL)
    for scheme in ("light", "dark"):
        with colours(page, scheme):
            found = contrasts(page)
            assert len(found) > 200
            assert found[0][0] >= 4.5, (scheme, found[:5])
    assert severe_messages(page) == []


def test_printed_pages_have_no_tooltips(page: webdriver.Chrome) -> None:
    page.execute_script("document.querySelector('.term').focus()")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = page.execute_script("return getComputedStyle(document.querySelector('.term'), '::after').display")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert shown == "none"


def test_the_pictures_of_the_documentation(page: webdriver.Chrome, tmp_path: Path) -> None:
    """Of the runs below FEDDRM_RUNS where it is set."""
    if "FEDDRM_RUNS" in os.environ:
        folders = [Path(os.environ["FEDDRM_RUNS"]) / name for name in ("feddrm", "fedavg", "fedavgft", "local")]
        page.get(write_report(report_table(folders), tmp_path).as_uri())
    page.execute_script("document.body.style.overflow = 'hidden'")  # no scroll bar
    for scheme, name in (("light", "report"), ("dark", "report_dark")):
        with window(page, 1120, 806), colours(page, scheme):
            save_screenshot(page, name, tmp_path)
            assert page.find_element(By.TAG_NAME, "h1").is_displayed()
