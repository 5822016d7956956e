"""The page of a training: what it answers, and what a browser shows."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from browsing import browser, needs_browser, text, wait, webdriver
from feddrm.deploy.server.status import JOB, ServerStatus
from feddrm.deploy.watch import watch_page
from feddrm.deploy.watch.watch_page import WatchPage
from refusal import refused
from training_folder import NAMES, REASON, running_server, training_folder

assert browser, "the fixture of this module"

Shown = tuple[str, Path, ServerStatus]


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    """The page's address, the server's folder and its status, while the server runs."""
    server, status = training_folder(tmp_path)
    with running_server(server):
        page = WatchPage(server, 0)
        yield f"http://127.0.0.1:{page.server_port}", server, status
        page.shutdown()
        page.server_close()


def test_page_state_and_metrics_are_answered(shown: Shown) -> None:
    address, server, _ = shown
    page = httpx.get(address)
    assert page.status_code == 200
    assert page.headers["Content-Type"] == "text/html"
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    for name in ("console.css", "parts.js", "watch.js"):
        assert httpx.get(f"{address}/{name}").status_code == 200
    assert httpx.get(f"{address}/state").json()["waiting"][0]["site"] == NAMES[1]
    assert "feddrm_training_rounds_total" in httpx.get(f"{address}/metrics").text
    for path in ("nothing", "../federation.yaml", "secret", "%2e%2e/federation.yaml"):
        assert httpx.get(f"{address}/{path}").status_code == 404
    assert httpx.post(address).status_code == 501
    (server / "federation.yaml").write_text("nonsense")
    answer = httpx.get(f"{address}/state")
    assert answer.status_code == 500
    assert "federation.yaml" in answer.json()["error"]


def test_another_host_name_is_refused(shown: Shown) -> None:
    """So that no web page elsewhere can read the state through a name that it points to this machine."""
    for host, status in (("evil.example", 403), ("evil.example:80", 403), ("localhost:1", 200), ("[::1]:1", 200)):
        assert httpx.get(f"{shown[0]}/state", headers={"Host": host}).status_code == status


def test_a_caller_who_sends_nothing_is_disconnected(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_page._Handler, "timeout", 0.05)
    with socket.create_connection(("127.0.0.1", int(shown[0].rpartition(":")[2])), 60) as idle:
        assert idle.recv(1) == b""


def test_a_port_that_is_taken_is_refused(shown: Shown) -> None:
    port = int(shown[0].rpartition(":")[2])
    with refused(f"watch: port {port} cannot be used", "choose another in federation.yaml"):
        WatchPage(shown[1], port)


def rows(browser: webdriver.Chrome, table: str) -> list[str]:
    """The rows of a table, read at once: the page replaces them every second."""
    script = "return [...document.querySelectorAll('#' + arguments[0] + ' tr')].map((row) => row.innerText)"
    found: list[str] = browser.execute_script(script, table)
    return found


@needs_browser
@pytest.mark.slow
def test_rounds_appear_as_they_happen_and_the_reason_stands_in_words(
    browser: webdriver.Chrome, shown: Shown, tmp_path: Path
) -> None:
    address, server, status = shown
    browser.get(address)
    wait(browser, lambda: "run 'first', round 3 of 9" in text(browser, "run"))
    waiting = text(browser, "waiting")
    assert waiting.startswith(f"waiting for {NAMES[1]} for ")
    assert waiting.endswith(f" s: {REASON}"), "markup in a site's words is text"
    assert [row.split()[0] for row in rows(browser, "sites")] == list(NAMES)
    assert "1 of 3" in rows(browser, "sites")[1]
    assert [row.split()[0] for row in rows(browser, "rounds")] == ["3", "2", "1"]
    path = server / "runs" / "first" / "metrics.jsonl"
    last = json.loads(path.read_text().splitlines()[-1])
    with path.open("a") as file:
        file.write(json.dumps({**last, "round": 4, "answered": list(NAMES), "missing": {}}) + "\n")
    status.record("round finished", {**last, "round": 4})
    wait(browser, lambda: text(browser, "run") == "run 'first', round 4 of 9")
    assert text(browser, "waiting") == ""
    assert "round finished" in text(browser, "events")
    place = Path(os.environ.get("FEDDRM_SCREENSHOTS") or tmp_path)
    browser.save_screenshot(str(place / "watch.png"))
    status.record("failed", {"text": "lima: no"})
    (server / JOB).unlink()
    wait(browser, lambda: text(browser, "what") == "failed: lima: no")
    (server / "federation.yaml").rename(server / "away.yaml")
    wait(browser, lambda: "does not answer" in text(browser, "error"))
    (server / "away.yaml").rename(server / "federation.yaml")
    wait(browser, lambda: text(browser, "error") == "")
    problems = [entry for entry in browser.get_log("browser") if "state" not in entry["message"]]
    assert [entry for entry in problems if "favicon" not in entry["message"]] == []
