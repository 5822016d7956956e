from __future__ import annotations

import json
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import yaml

import feddrm
from feddrm.data import load
from feddrm.models import Mlp
from feddrm.router import load_router
from feddrm.runs import Run, train
from feddrm.serve.telemetry.audit import AuditRecord
from serving import Launch, until

pytestmark = pytest.mark.slow


def test_clients_whose_names_have_special_characters_are_asked(run: Path, launch: Launch, tmp_path: Path) -> None:
    names, draw = ("ward#1", "50%", "a?b", "%2e"), np.random.default_rng(0)
    arrays = {name: (draw.normal(9 * i, 1, (30, 4)), draw.integers(0, 2, 30)) for i, name in enumerate(names)}
    own = feddrm.Federation.from_arrays(arrays)
    settings = {"rounds": 1, "local_steps": 1, "batch_size": 8, "model": Mlp(hidden=(8,), branch=8)}
    train(own, "feddrm", out=tmp_path / "run", **settings).fit_router(own, features="embedding", joint=False)
    url = launch("serve", tmp_path / "run", "--demo", "--port", 0).wait_ready()
    until = time.monotonic() + 60
    while not all(c["healthy"] for c in httpx.get(f"{url}/v1/clients").json()["clients"]):
        assert time.monotonic() < until
        time.sleep(0.05)
    for name in names:
        body = {"inputs": [[0.0] * 4], "without": [other for other in names if other != name], "max_away": 1}
        (found,) = httpx.post(f"{url}/v1/predict", json=body).json()["answers"]
        assert (found["client"], found["failed"]) == (name, [])
    # The artifact of another federation is an error, like a broken one.
    folder, before = tmp_path / "run" / "router", httpx.get(f"{url}/v2/health/ready").json()
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "classes": 3}))
    answer = httpx.post(f"{url}/v1/admin/reload")
    assert (answer.status_code, "3 classes, not 2" in answer.json()["error"]) == (422, True)
    shutil.copytree(run / "router", folder, dirs_exist_ok=True)
    answer = httpx.post(f"{url}/v1/admin/reload")
    assert (answer.status_code, "the router knows no client" in answer.json()["error"]) == (422, True)
    assert httpx.get(f"{url}/v2/health/ready").json() == before
    assert httpx.post(f"{url}/v1/predict", json={"inputs": [[0.0] * 4]}).status_code == 200


def test_a_client_with_a_head_of_another_fit_is_passed_over(run: Path, launch: Launch, tmp_path: Path) -> None:
    """Until the gateway has the router of the same fit."""
    digits = load("digits", clients=3, seed=3)
    refit, served = (Path(shutil.copytree(run, tmp_path / name)) for name in ("refit", "served"))
    Run.open(refit).fit_router(digits, features="raw", joint=False)
    client = launch("serve-client", refit / "clients" / "fax", "--answer", "refit", "--port", 0).wait_ready()
    (tmp_path / "clients.yaml").write_text(yaml.safe_dump({"fax": {"url": client}}))
    gateway = launch("serve", served, "--clients", tmp_path / "clients.yaml", "--reload-seconds", 0, "--port", 0)
    with httpx.Client(base_url=gateway.wait_ready(), timeout=20) as http:

        def fax() -> dict[str, Any]:
            return dict(http.get("/v1/clients").json()["clients"][-1])

        until(lambda: bool(fax()["reason"]))
        assert not fax()["available"]
        assert fax()["reason"].startswith("has a head of another fit than the gateway's router")
        body = {"inputs": np.zeros((1, 1, 8, 8), int).tolist(), "max_away": 1, "abstain": "answer"}
        assert "fax: has a head of another fit" in http.post("/v1/predict", json=body).json()["error"]
        Run.open(served).fit_router(digits, features="raw", joint=False)
        assert http.post("/v1/admin/reload").status_code == 200
        until(lambda: fax()["available"] and not fax()["reason"])
        assert http.post("/v1/predict", json=body).status_code == 200


def test_the_audit_log_has_decisions_and_no_payloads(
    run: Path, images: torch.Tensor, launch: Launch, tmp_path: Path
) -> None:
    process = launch("serve", run, "--port", 0, "--audit", tmp_path / "audit.sqlite", "--retention-days", 1)
    url = process.wait_ready()
    features = load_router(run / "router").features(images)
    answer = httpx.post(f"{url}/v1/route", json={"features": features.tolist()}, headers={"X-Request-ID": "audited"})
    assert httpx.post(f"{url}/v1/predict", json={"features": features.tolist()}).status_code == 503
    assert process.stop() == 0  # waiting records are written before it ends
    with sqlite3.connect(tmp_path / "audit.sqlite") as database:
        database.row_factory = sqlite3.Row
        rows = [dict(row) for row in database.execute("SELECT * FROM decisions")]
    database.close()
    decisions = answer.json()["decisions"]
    audited = {int(place): row for row in rows for place in row["places"].split(",")}
    assert [audited[i]["client"] for i in range(len(images))] == [d["client"] for d in decisions]
    assert sum(row["samples"] for row in rows) == len(images)
    assert len(rows) == len({(d["client"], d["reason"]) for d in decisions})  # equal decisions make one record
    for row in rows:
        alike = [decisions[int(place)] for place in row["places"].split(",")]
        assert row["probability"] == min(d["client_probability"] for d in alike)
        assert row["margin"] == min(d["margin"] for d in alike)
        assert {bool(row["abstain"])} == {d["abstain"] for d in alike}
    assert {row["request_id"] for row in rows} == {"audited"}
    assert {row["action"] for row in rows} == {"route"}
    assert tuple(rows[0]) == AuditRecord._fields
    lines = [json.loads(line) for line in process.log.read_text().splitlines()]
    assert {"ready", "request", "stopped"} <= {line["message"] for line in lines}
