"""docs/stories/analyst.md: the commands run, and a browser fills in the console's form as the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import httpx
import pytest

from browsing import browser, needs_browser, text, wait, webdriver
from documentation import ROOT, assert_shown, blocks, command_words, run_command, run_script, scripts
from serving import Launch, until

assert browser, "the fixture of this module"
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

pytestmark = [needs_browser, pytest.mark.slow, pytest.mark.documented]
PAGE = (ROOT / "docs" / "stories" / "analyst.md").read_text()
ROW = r"^\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (.*) \|$"
POINTS = 3  # by which figures of a trained network may differ on another processor


def ask(browser: webdriver.Chrome, row: tuple[str, ...]) -> str:
    """Fill in a row, press Ask, and return what the console says."""
    browser.execute_script("document.getElementById('headline').textContent = ''")
    for place, value in enumerate(row):
        field = browser.find_element(By.ID, f"field-{place}")
        field.clear()
        field.send_keys(value)
    browser.find_element(By.ID, "send").click()
    wait(browser, lambda: text(browser, "headline"))
    return f"{text(browser, 'headline')}\n{text(browser, 'label-set')}"


def choose(browser: webdriver.Chrome, clients: str, labels: bool) -> None:
    """How many clients are asked, and whether the labels that may be right are named."""
    field = browser.find_element(By.ID, "consult")
    field.clear()
    field.send_keys(clients)
    certainty = Select(browser.find_element(By.ID, "label-miss"))
    certainty.select_by_visible_text("with 95 % certainty" if labels else "do not name them")


def best_clients(browser: webdriver.Chrome) -> list[str]:
    return [row.text.split()[0] for row in browser.find_elements(By.CSS_SELECTOR, "#ranked tr")]


def test_the_story(launch: Launch, browser: webdriver.Chrome, tmp_path: Path) -> None:
    train, fit, serve, query = command_words("docs/stories/analyst.md")
    run_script(scripts("docs/stories/researcher.md")[0], tmp_path)
    (tmp_path / "clinics.yaml").write_text(blocks("docs/stories/researcher.md", "yaml")[0][1])
    for words in (train, fit):
        run_command(words, tmp_path)
    assert shlex.join(serve) == "feddrm serve runs/clinics --demo"
    url = launch("serve", tmp_path / "runs" / "clinics", "--demo", "--port", 0).wait_ready()
    until(lambda: all(client["healthy"] for client in httpx.get(f"{url}/v1/clients").json()["clients"]))
    browser.get(url)
    wait(browser, lambda: browser.find_element(By.ID, "field-2"))
    browser.execute_script("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")

    asked = []
    for title, table in re.findall(r"^\| age .* \| (.*) \|\n\|[-|]+\n((?:\|.*\n)+)", PAGE, flags=re.MULTILINE):
        for *row, said in re.findall(ROW, table, flags=re.MULTILINE):
            choose(browser, "2" if "two clients" in title else "1", "certainty" in said)
            assert_shown(said, ask(browser, tuple(row)), POINTS)
            asked.append(best_clients(browser)[: 2 if "two clients" in title else 1])
    assert asked[:6] == [["oslo"], ["lima"], ["pune"], ["pune"], ["oslo"], ["oslo", "pune"]], "as the page says"
    assert len(asked) == 10

    (_, table), (_, shown) = blocks("docs/stories/analyst.md", "csv", "text")
    (tmp_path / "patients.csv").write_text(table)
    assert_shown(shown, run_command([url if word.startswith("http") else word for word in query], tmp_path), POINTS)
