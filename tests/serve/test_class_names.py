"""Class names across gateway, router and clients: names must agree, or answers are not used."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import yaml

from feddrm.data import load
from feddrm.predictor.predictor import Predictor, known_classes
from feddrm.router import load_router
from serving import NAMES, Launch


def renamed(run: Path, to: Path, classes: list[str]) -> Path:
    """A copy of the run with other class names, in its dataset summary and its router's manifest."""
    shutil.copytree(run, to)
    for path, part in ((to / "data.json", None), (to / "router" / "manifest.json", "notes")):
        content = json.loads(path.read_text())
        (content if part is None else content[part])["classes"] = classes
        path.write_text(json.dumps(content))
    return to


def test_names_come_from_the_manifest_and_without_names_classes_have_numbers(run: Path, tmp_path: Path) -> None:
    digits = tuple("0123456789")
    other = renamed(run, tmp_path / "other", list("abcdefghij"))
    (other / "data.json").unlink()
    assert known_classes(other, 10) == tuple("abcdefghij")
    assert Predictor.load(other / "clients" / "fax").named
    manifest = other / "router" / "manifest.json"
    content = json.loads(manifest.read_text())
    del content["notes"]["classes"]
    manifest.write_text(json.dumps(content))
    assert known_classes(other, 10) is None
    nameless = Predictor.load(other / "clients" / "fax")
    assert (nameless.classes, nameless.named) == (digits, False)


@pytest.mark.slow
def test_clients_of_another_run_are_not_asked(run: Path, launch: Launch, tmp_path: Path) -> None:
    """They have the same classes in another order."""
    other = renamed(run, tmp_path / "other", list("1234567890"))
    home = {"flatbed": run, "negative": run, "fax": other}
    clients = {name: launch("serve-client", home[name] / "clients" / name, "--port", 0) for name in NAMES}
    stated = httpx.get(f"{clients['fax'].wait_ready()}/v2/health/ready").json()["classes"]
    assert stated == list("1234567890")
    entries = {name: {"url": process.wait_ready()} for name, process in clients.items()}
    (tmp_path / "clients.yaml").write_text(yaml.safe_dump(entries))
    words = ["--clients", tmp_path / "clients.yaml", "--audit", tmp_path / "a.sqlite", "--port", 0]
    gateway = launch("serve", run, *words)
    fax = load("digits", clients=3, seed=3).clients[2].test.x
    own = fax[load_router(run / "router").route(fax).client == 2][:8]
    with httpx.Client(base_url=gateway.wait_ready(), timeout=20) as http:
        answers = http.post("/v1/predict", json={"inputs": own.tolist(), "max_away": 1}).json()["answers"]
        assert {answer["client"] for answer in answers} <= {"flatbed", "negative"}

        def about_fax() -> Any:
            return next(c for c in http.get("/v1/clients").json()["clients"] if c["client"] == "fax")

        until = time.monotonic() + 30
        while (upstream := about_fax())["healthy"] is not False:
            assert time.monotonic() < until
            time.sleep(0.1)
        assert not upstream["available"]
        assert upstream["reason"].startswith("has other classes than the gateway")
        assert http.get("/v1/federation").json()["clients"][2]["peer"]["reason"] == upstream["reason"]
        assert 'feddrm_client_available{client="fax"} 0.0' in http.get("/metrics").text
        (answer,) = http.post("/v1/predict", json={"inputs": own[:1].tolist()}).json()["answers"]
        assert (answer["label"], answer["failed"], answer["route"]["reason"]) == (None, [], "best client away")
        assert [(c["client"], c["reason"]) for c in answer["route"]["away"]] == [("fax", "has other classes")]
    lines = [json.loads(line) for line in gateway.whole_log().splitlines()]
    (away,) = [line for line in lines if line["message"] == "a client is away"]
    assert (away["level"], away["client"], away["reason"]) == ("warning", "fax", upstream["reason"])


@pytest.mark.slow
def test_a_router_with_other_classes_is_not_loaded(run: Path, launch: Launch, tmp_path: Path) -> None:
    served = tmp_path / "run"
    shutil.copytree(run, served)
    gateway = launch("serve", served, "--port", 0)
    with httpx.Client(base_url=gateway.wait_ready()) as http:
        other = renamed(run, tmp_path / "other", list("1234567890"))
        shutil.copy(other / "router" / "manifest.json", served / "router" / "manifest.json")
        answer = http.post("/v1/admin/reload")
        assert answer.status_code == 422
        assert "has other classes (1, 2, 3" in answer.json()["error"]
        assert (
            http.post("/v1/route", json={"inputs": torch.zeros(1, 1, 8, 8, dtype=torch.uint8).tolist()}).status_code
            == 200
        )
