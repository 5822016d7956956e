"""The views of a run's clients: a row each for few, the edges and a searchable table for many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from browsing import By, browser, needs_browser, webdriver
from feddrm.data import Federation
from feddrm.report.client_views.client_section import client_views, routing_views
from feddrm.report.report_page import report_page
from feddrm.report.run_record import RunRecord
from feddrm.report.run_table import report_table

__all__ = ["browser"]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("clients", "many"), [(30, False), (31, True)])
def test_up_to_thirty_clients_have_a_row_each(clients: int, many: bool, make_run: Callable[..., Path]) -> None:
    rng = np.random.default_rng(0)
    made = {f"site-{i}": (rng.normal(size=(8, 3)), np.arange(8) % 2) for i in range(clients)}
    record = RunRecord.read(make_run("some", federation=Federation.from_arrays(made)))
    figures, tables, searchable = client_views(record, "r1")
    assert len(figures) == 1
    routed, groups, _ = routing_views(record, "r1")
    assert len(routed) == 1
    if many:
        assert [len(table.rows) for table in tables] == [10, 10]
        assert searchable is not None
        assert len(searchable.rows) == clients
        assert len(groups) == 1
        assert len(groups[0].rows) == 20
    else:
        assert [len(table.rows) for table in tables] == [clients]
        assert searchable is None
        assert groups == []


@needs_browser
def test_a_reader_searches_and_sorts_the_table_of_all_clients(
    make_run: Callable[..., Path], browser: webdriver.Chrome, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    made = {f"site-{i}": (rng.normal(size=(8 + i, 3)), np.arange(8 + i) % 2) for i in range(31)}
    page = tmp_path / "report.html"
    page.write_text(report_page(report_table([make_run("some", federation=Federation.from_arrays(made))])))
    browser.get(page.as_uri())
    browser.find_element(By.XPATH, "//summary[contains(., 'Clients')]").click()
    browser.find_element(By.XPATH, "//summary[contains(., 'All 31 clients')]").click()
    table = browser.find_element(By.CSS_SELECTOR, "table[id$=all-clients]")

    def shown() -> list[str]:
        rows = table.find_elements(By.CSS_SELECTOR, "tbody tr")
        return [row.find_element(By.CSS_SELECTOR, "th, td").text for row in rows if row.is_displayed()]

    def click(head: str) -> None:
        table.find_element(By.XPATH, f".//thead//button[contains(., '{head}')]").click()

    assert len(shown()) == 31
    browser.find_element(By.CSS_SELECTOR, "input[data-search]").send_keys("Site-3")
    assert shown() == ["site-3", "site-30"]
    assert "2 of 31 clients" in browser.find_element(By.TAG_NAME, "body").text
    click("Train")
    assert shown() == ["site-30", "site-3"], "numbers fall first"
    click("Train")
    assert shown() == ["site-3", "site-30"]
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
