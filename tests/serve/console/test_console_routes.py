"""The console in Chromium, with a gateway and clients in processes of their own."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from browsing import (
    browser,
    needs_browser,
    save_screenshot,
    severe_messages,
    text,
    wait,
    webdriver,
    window,
)
from console_page import ask_about, hidden_text, open_fold, page
from feddrm.serve.auth import add_key
from serving import NAMES, Hospitals, Launch, until

assert browser, "the fixture of this module"
assert page, "the same"
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

pytestmark = [needs_browser, pytest.mark.slow]


def test_a_sample_is_answered_and_shown_in_all_tables(page: webdriver.Chrome) -> None:
    ask_about(page, "negative", 2)
    assert re.fullmatch(r"Answer: [0-9], [0-9.]+ % sure", text(page, "headline"))
    assert re.fullmatch(
        r"negative was asked\. With a probability of [0-9.]+ % the query comes from the data of negative; "
        r"the next is \w+ with [0-9.]+ %\.",
        text(page, "detail"),
    )
    rows = page.find_elements(By.CSS_SELECTOR, "#ranked tr")
    assert len(rows) == 3
    assert rows[0].text.startswith("negative")
    assert "away" not in text(page, "ranked")
    assert rows[0].find_element(By.TAG_NAME, "meter").get_attribute("aria-label") == "client probability of negative"
    assert len(page.find_elements(By.CSS_SELECTOR, "#classes tr")) == 10
    wait(page, lambda: "negative" in text(page, "traffic"))
    federation = page.find_element(By.ID, "clients")
    assert len(federation.find_elements(By.TAG_NAME, "tr")) == 3
    assert len(federation.find_elements(By.CSS_SELECTOR, "svg rect")) == 30
    wait(page, lambda: "well" in text(page, "clients"))
    wait(page, lambda: len(page.find_elements(By.CSS_SELECTOR, "#clients .shift img")) == 3 * 3)
    script = "return [...document.querySelectorAll('#clients .shift img')].map((i) => [i.alt, i.naturalWidth])"
    shown = page.execute_script(script)
    assert shown[0] == ["sample 1 as flatbed sees it", 8]
    assert all(width == 8 for _, width in shown)


MANY_CLIENTS = """
const peer = { available: true, circuit: "closed", milliseconds: 1, reason: "" }, real = federation;
federation = { ...real, clients: [...Array(1000).keys()].map((i) => ({
  client: `site-${i}`, share: i / 1000, samples: 0, shift: "", peer: { ...peer, available: i !== 7 } })) };
$("client-search").value = arguments[0];
$("client-search").dispatchEvent(new Event("input"));
const rows = [...$("clients").rows].map((row) => row.cells[0].textContent);
const said = [rows, $("clients-shown").textContent, $("client-find").hidden];
federation = real;
$("client-search").value = "";
showClients();
return said;
"""  # in one go, because the page asks the gateway again and again


def test_of_many_clients_those_that_are_down_or_busy_are_shown_and_others_found(page: webdriver.Chrome) -> None:
    rows, said, hidden = page.execute_script(MANY_CLIENTS, "")
    assert rows[:3] == ["site-7", "site-999", "site-998"]
    assert (len(rows), said, hidden) == (30, "30 of 1000 clients", False)
    rows, said, _ = page.execute_script(MANY_CLIENTS, " Site-12")
    assert rows == ["site-12", *(f"site-12{i}" for i in range(10))]
    assert said == "11 of 1000 clients"
    assert not page.find_element(By.ID, "client-find").is_displayed(), "three clients need no search"


def test_consulting_three_clients_and_routing_only(page: webdriver.Chrome) -> None:
    page.find_elements(By.CSS_SELECTOR, "#sample-list button")[0].click()
    open_fold(page, "options")
    field = page.find_element(By.ID, "consult")
    field.clear()
    field.send_keys("3")
    page.find_element(By.ID, "send").click()
    wait(page, lambda: hidden_text(page, "figures").count(" ms)") == 3)
    weights, _, rest = text(page, "detail").partition(" were asked; ")
    assert rest
    asked = re.findall(r"(\w+) \((?:< )?([0-9.]+) %\)", weights)
    assert sorted(name for name, _ in asked) == sorted(NAMES)
    assert sum(float(weight) for _, weight in asked) == pytest.approx(100, abs=0.2)
    Select(page.find_element(By.ID, "action")).select_by_value("route")
    page.find_element(By.ID, "send").click()
    wait(page, lambda: text(page, "headline").startswith("Belongs to "))
    assert not page.find_element(By.ID, "classes-table").is_displayed()


def test_labels_that_may_be_right_are_named_in_plain_words(page: webdriver.Chrome) -> None:
    page.find_elements(By.CSS_SELECTOR, "#sample-list button")[0].click()
    open_fold(page, "options")
    certainty = Select(page.find_element(By.ID, "label-miss"))
    shown = {}
    for miss, words in (("0.05", "95 %"), ("0.2", "80 %")):
        certainty.select_by_value(miss)
        page.find_element(By.ID, "send").click()
        wait(page, lambda words=words: words in text(page, "label-set"))
        shown[miss] = text(page, "label-set")
    assert re.fullmatch(r"With 95 % certainty( one of)?: [0-9](, [0-9])*", shown["0.05"])
    assert re.match(r"With 80 % certainty( one of)?: [0-9]|The set for 80 % certainty is empty: ", shown["0.2"])
    assert len(re.findall(r"[0-9](?=,|$)", shown["0.05"])) >= len(re.findall(r"[0-9](?=,|$)", shown["0.2"]))
    sentence = "return labelSetSentence(arguments[0], 0.1)"
    assert page.execute_script(sentence, {"label_set": [], "route": {}}).startswith(
        "The set for 90 % certainty is empty"
    )
    assert page.execute_script(sentence, {"label_set": ["3", "5"], "route": {}}) == "With 90 % certainty one of: 3, 5"
    for abstains, why in (
        (True, "the router abstains."),
        (False, "clients that the query may come from did not answer."),
    ):
        withheld = {"label_set": None, "route": {"abstain": abstains}}
        assert page.execute_script(sentence, withheld) == f"No set of labels: {why}"
    certainty.select_by_value("")
    page.find_element(By.ID, "send").click()
    wait(page, lambda: text(page, "label-set") == "")


def test_a_file_that_is_no_picture_shows_an_error(page: webdriver.Chrome, tmp_path: Path) -> None:
    (tmp_path / "scan.png").write_bytes(b"not a picture")
    page.find_element(By.ID, "file").send_keys(str(tmp_path / "scan.png"))
    page.find_element(By.ID, "send").click()
    wait(page, lambda: "cannot be read as an image" in text(page, "error"))
    assert page.find_element(By.ID, "error").get_attribute("role") == "alert"


def test_the_console_works_with_the_keyboard_alone(page: webdriver.Chrome) -> None:
    """From the top of the page to a sample, to the button, to the answer."""
    page.find_element(By.TAG_NAME, "body").click()
    page.execute_script("document.activeElement.blur(); window.scrollTo(0, 0)")
    seen: list[str] = []

    def press(key: str) -> None:
        webdriver.ActionChains(page).send_keys(key).perform()

    for _ in range(40):
        press(Keys.TAB)
        here = page.switch_to.active_element
        seen.append(here.get_attribute("id") or here.get_attribute("class") or here.tag_name)
        if here.get_attribute("aria-pressed") == "false" and "pressed" not in seen:
            press(Keys.SPACE)
            seen.append("pressed")
        if seen[-1] == "send":
            press(Keys.ENTER)
            break
    assert "pressed" in seen
    wait(page, lambda: text(page, "headline") != "")


def test_all_fields_have_names_and_nothing_is_loaded_from_other_hosts(page: webdriver.Chrome, demo: str) -> None:
    assert page.find_element(By.TAG_NAME, "html").get_attribute("lang") == "en"
    for field in page.find_elements(By.CSS_SELECTOR, "input, select, textarea, button"):
        name = field.accessible_name
        assert name or not field.is_displayed(), field.get_attribute("outerHTML")
    alts = page.execute_script(
        "return [...document.images].map((i) => i.alt)"
    )  # in one call: the page redraws every second
    assert len(alts) >= 8
    assert all(alts)
    loaded = page.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert loaded
    assert all(name.startswith((demo, "blob:" + demo)) for name in loaded)
    assert [line for line in severe_messages(page) if "422" not in line] == []


def test_traffic_is_shown_after_a_restart_of_the_gateway(
    browser: webdriver.Chrome, run: Path, launch: Launch, tmp_path: Path
) -> None:
    """The numbers of its decisions start at one again."""
    words = ["serve", run, "--audit", tmp_path / "a.sqlite", "--port"]

    def decided(url: str, times: int) -> None:
        for _ in range(times):
            httpx.post(f"{url}/v1/route", json={"inputs": [[[[0] * 8] * 8]]}).raise_for_status()

    def shown() -> int:
        return len(browser.find_elements(By.CSS_SELECTOR, "#traffic tr"))

    first = launch(*words, 0)
    url = first.wait_ready()
    browser.get(url)
    decided(url, 3)
    wait(browser, lambda: shown() == 3)
    first.stop()
    launch(*words, url.rpartition(":")[2]).wait_ready()
    decided(url, 1)
    wait(browser, lambda: shown() == 4)
    decided(url, 1)
    wait(browser, lambda: shown() == 5)


def test_a_key_without_the_scope_admin_can_ask(
    browser: webdriver.Chrome, run: Path, launch: Launch, png_file: bytes, tmp_path: Path
) -> None:
    """The page shows an error in place of the federation's figures."""
    key = add_key(tmp_path / "keys.yaml", "lab", ["route", "predict"])
    words = ["--keys", tmp_path / "keys.yaml", "--audit", tmp_path / "a.sqlite"]
    browser.get(launch("serve", run, "--demo", "--port", 0, *words).wait_ready())
    wait(browser, lambda: browser.find_element(By.ID, "key-form").is_displayed())
    browser.find_element(By.ID, "key").send_keys(key, Keys.ENTER)
    wait(browser, lambda: "no scope 'admin'" in text(browser, "trouble"))
    (tmp_path / "scan.png").write_bytes(png_file)
    browser.find_element(By.ID, "file").send_keys(str(tmp_path / "scan.png"))
    open_fold(browser, "options")
    for action, headline in (("route", "Belongs to "), ("predict", "Answer: ")):
        Select(browser.find_element(By.ID, "action")).select_by_value(action)
        browser.find_element(By.ID, "send").click()
        wait(browser, lambda start=headline: text(browser, "headline").startswith(start))
        assert text(browser, "error") == ""


def test_a_row_is_filled_in_by_name_and_its_errors_stand_beside_the_fields(
    browser: webdriver.Chrome, table_run: Path, launch: Launch, tmp_path: Path
) -> None:
    url = launch("serve", table_run, "--demo", "--port", 0, "--audit", tmp_path / "a.sqlite").wait_ready()
    browser.get(url)
    wait(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#fields .field")) == 4)
    wait(browser, lambda: "well" in text(browser, "clients"))
    assert not browser.find_element(By.ID, "numbers-input").is_displayed()
    age, sex, pain, chol = (browser.find_element(By.ID, f"field-{place}") for place in range(4))
    assert [field.accessible_name for field in (age, sex, pain, chol)] == [
        "Age (years)", "Sex", "Chest pain", "chol (mg/dl)",
    ]  # fmt: skip
    assert [option.text for option in Select(sex).options] == ["choose", "female", "male"]
    assert [option.text for option in Select(pain).options] == ["choose", "typical", "atypical", "none", "unknown"]

    browser.find_element(By.ID, "send").click()  # everything is empty
    wait(browser, lambda: text(browser, "field-3-problem") == "give a value, or choose unknown")
    assert text(browser, "field-0-problem") == "give a value"

    browser.find_elements(By.CSS_SELECTOR, "#examples button")[2].click()  # unknown, where it may be
    assert (Select(pain).first_selected_option.text, chol.is_enabled()) == ("unknown", False)
    browser.find_elements(By.CSS_SELECTOR, "#examples button")[0].click()
    assert (age.get_attribute("value"), chol.is_enabled()) == ("50", True)
    age.clear()
    age.send_keys("old")
    browser.find_element(By.ID, "send").click()
    wait(browser, lambda: text(browser, "field-0-problem") == "give a number (0..120 years)")
    assert age.get_attribute("aria-invalid") == "true"
    assert browser.switch_to.active_element == age
    assert "column 'age' is 'old'" in text(browser, "error")

    age.clear()
    age.send_keys("300")
    browser.find_element(By.ID, "send").click()
    wait(browser, lambda: text(browser, "field-0-problem") == "outside 0..120 years")
    assert text(browser, "headline") == "No answer: a value cannot be"
    save_screenshot(browser, "console_table", tmp_path, "#query")

    age.clear()
    age.send_keys("68")
    browser.find_element(By.ID, "send").click()
    wait(browser, lambda: re.fullmatch(r"Answer: .*, [0-9.]+ % sure", text(browser, "headline")) is not None)
    assert text(browser, "detail").startswith("oslo was asked. With a probability of ")
    assert not browser.find_element(By.ID, "asked").is_displayed(), "a row is no picture"
    assert text(browser, "field-0-problem") == text(browser, "error") == ""
    browser.find_element(By.ID, "field-3-unknown").click()
    browser.find_element(By.ID, "send").click()
    wait(browser, lambda: "predict" in text(browser, "traffic"))


@pytest.mark.data
def test_four_situations_of_one_patient(browser: webdriver.Chrome, hospitals: Hospitals, tmp_path: Path) -> None:
    """All up; the best client away; a fallback that was asked for; a value that cannot be."""
    until(lambda: not hospitals.away())
    browser.get(str(hospitals.http.base_url))
    wait(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#fields .field")) == 13)

    def ask(row: dict[str, Any], start: str, screenshot: str | None = None) -> str:
        browser.execute_script("fillRow(arguments[0])", row)
        browser.find_element(By.ID, "send").click()
        wait(browser, lambda: text(browser, "headline").startswith(start))
        if screenshot is not None:
            browser.execute_script("$('options').open = false; $('tip').hidden = true")
            with window(browser, 1000, 1400):
                save_screenshot(browser, screenshot, tmp_path, "#query")
        return text(browser, "detail")

    def labels_shown() -> bool:
        return bool(browser.find_element(By.ID, "classes-table").is_displayed())

    patient = hospitals.raw_patient
    detail = ask(patient, "Answer: ", "answer-all-up")
    origin = r"With a probability of 9[0-9.]+ % the query comes from the data of cleveland; the next is "
    assert re.match(rf"cleveland was asked\. {origin}", detail)
    assert re.fullmatch(r"Answer: (healthy|disease), [0-9.]+ % sure", text(browser, "headline"))
    assert labels_shown()

    hospitals.predictors["cleveland"].send(signal.SIGKILL)
    until(hospitals.away)
    detail = ask(patient, "No answer: best client away", "answer-away")
    assert re.match(
        r"cleveland knows such data best and is away: unhealthy\. The options let you ask the next client\. "
        rf"Nobody was asked\. {origin}",
        detail,
    )
    assert not labels_shown()
    assert browser.find_element(By.CSS_SELECTOR, "#ranked tr").text.endswith("away")

    open_fold(browser, "options")
    Select(browser.find_element(By.ID, "away")).select_by_value("1")
    detail = ask(patient, "Answer: ", "answer-fallback")
    assert re.match(
        rf"(?!cleveland)\w+ \([0-9.]+ %\) was asked in place of cleveland, which is away\. {origin}", detail
    )

    open_fold(browser, "options")
    Select(browser.find_element(By.ID, "action")).select_by_value("route")
    ask(patient, "Falls back to ")
    Select(browser.find_element(By.ID, "action")).select_by_value("predict")

    strange = patient | {"chol": 9000}
    detail = ask(strange, "No answer: a value cannot be", "answer-impossible")
    assert detail == "A value cannot be: it is marked in the form. Nobody was asked.", "probabilities mean nothing here"
    assert not labels_shown()
    open_fold(browser, "options")
    Select(browser.find_element(By.ID, "abstain")).select_by_value("answer")
    assert ask(strange, "Answer: ").startswith("The router abstains. A value cannot be: ")
    assert labels_shown()


def test_outcomes_challenger_and_drift_are_shown(
    browser: webdriver.Chrome, run: Path, launch: Launch, images: torch.Tensor, tmp_path: Path
) -> None:
    challenger = Path(shutil.copytree(run / "router", tmp_path / "challenger"))
    manifest = json.loads((challenger / "manifest.json").read_text())
    manifest["notes"]["remark"] = "another version"
    (challenger / "manifest.json").write_text(json.dumps(manifest))
    words = [
        "--audit",
        tmp_path / "audit.sqlite",
        "--use-log",
        tmp_path / "uses",
        "--drift",
        "--challenger",
        challenger,
    ]
    url = launch("serve", run, "--demo", "--port", 0, *words).wait_ready()
    browser.get(url)
    wait(browser, lambda: "well" in text(browser, "clients"))
    wait(browser, lambda: text(browser, "drift") == "Drift: waiting for 100 queries.")
    assert text(browser, "challenger").endswith("decides beside (shadow)")
    body = {"inputs": images.tolist() * 6, "abstain": "answer"}  # 108 samples, all of them shared evenly
    found = httpx.post(f"{url}/v1/predict", json=body, timeout=30).json()
    reports = [
        {"request_id": found["request_id"], "label": answer["label"] if place % 2 else "0", "place": place}
        for place, answer in enumerate(found["answers"][:10])
    ]
    assert httpx.post(f"{url}/v1/outcomes", json={"outcomes": reports}).json()["stored"] == 10
    wait(browser, lambda: "queries tested" in text(browser, "drift"))
    wait(browser, lambda: found["artifact"] in text(browser, "outcome-artifacts"))
    cells = text(browser, "outcome-artifacts").split()
    assert cells[1:2] + cells[3:4] == ["108", "10"]
    (chart,) = browser.find_elements(By.CSS_SELECTOR, "#outcome-chart svg")
    assert "Accuracy: " in str(chart.get_attribute("aria-label"))
