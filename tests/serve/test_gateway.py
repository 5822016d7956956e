"""The gateway's interface, asked over HTTP: a real process with real clients."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import shutil
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

import feddrm
from feddrm.data import load
from feddrm.errors import FeddrmError
from feddrm.models import Mlp
from feddrm.router import load_router
from feddrm.runs import train
from feddrm.serve.oip.codec import write_infer
from feddrm.serve.predictor.predictor import Predictor
from feddrm.serve.telemetry.audit import Record
from refusal import refused
from serving import NAMES, Launch


@pytest.fixture(scope="module")
def http(demo: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.cat([client.test.x[:6] for client in load("digits", clients=3, seed=3).clients])


def png(image: torch.Tensor) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image[0].numpy()).save(out, "PNG")
    return out.getvalue()


def test_every_way_to_ask_gives_the_routers_own_decision(run: Path, http: httpx.Client, images: torch.Tensor) -> None:
    router = load_router(run / "router")
    decision, features = router.route(images), router.features(images)
    ways: list[dict[str, Any]] = [
        {"json": {"inputs": images.tolist()}},
        {"json": {"inputs": router.inputs(images).tolist(), "datatype": "float32"}},
        {"json": {"features": features.tolist()}},
        {"content": features.numpy().tobytes(), "headers": {"Content-Type": "application/octet-stream"}},
        {"content": images.numpy().tobytes(), "params": {"kind": "inputs", "datatype": "uint8"},
         "headers": {"Content-Type": "application/octet-stream"}},
    ]  # fmt: skip
    for way in ways:
        answer = http.post("/v1/route", **way).json()
        assert len(answer["artifact"]) == 12
        assert len(answer["decisions"]) == len(images)
        for i, found in enumerate(answer["decisions"]):
            assert found["client"] == NAMES[int(decision.client[i])]
            assert found["margin"] == pytest.approx(float(decision.margin[i]), abs=1e-5)
            assert found["abstain"] == bool(decision.abstain[i])
            ranked = {one["client"]: one for one in found["ranked"]}
            for number, name in enumerate(NAMES):
                p, r = decision.probabilities[i, number], decision.log_density_ratio[i, number]
                assert ranked[name]["probability"] == pytest.approx(float(p), abs=1e-5)
                assert ranked[name]["log_density_ratio"] == pytest.approx(float(r), abs=1e-3)
            order = [one["probability"] for one in found["ranked"]]
            assert order == sorted(order, reverse=True)


def test_pictures_as_files_and_as_text(http: httpx.Client, images: torch.Tensor) -> None:
    expected = http.post("/v1/route", json={"inputs": images[:1].tolist()}).json()["decisions"]
    body = png(images[0])
    by_file = http.post("/v1/route", content=body, headers={"Content-Type": "image/png"}).json()["decisions"]
    by_text = http.post("/v1/route", json={"image": base64.b64encode(body).decode()}).json()["decisions"]
    for found in (by_file, by_text):
        assert found[0]["client"] == expected[0]["client"]
        assert found[0]["probability"] == pytest.approx(expected[0]["probability"], abs=1e-6)


def test_options_change_the_decision(run: Path, http: httpx.Client, images: torch.Tensor) -> None:
    router = load_router(run / "router")
    names = [c for c in NAMES if c != "fax"]
    expected = router.route(images, rule="posterior", coverage=0.5, available=names)
    body = {"inputs": images.tolist(), "rule": "posterior", "coverage": 0.5, "without": ["fax"]}
    found = http.post("/v1/route", json=body).json()["decisions"]
    assert [d["client"] for d in found] == [NAMES[i] for i in expected.client.tolist()]
    assert [d["abstain"] for d in found] == expected.abstain.tolist()
    assert [d["reason"] for d in found] == list(expected.reason)
    assert any(d["abstain"] for d in found)
    nobody = http.post("/v1/route", json={**body, "without": list(NAMES)}).json()["decisions"][0]
    assert (nobody["client"], nobody["reason"]) == (None, "no client is available")


def test_predictions_are_the_clients_own_and_mixtures_are_exact(
    run: Path, http: httpx.Client, images: torch.Tensor
) -> None:
    decision = load_router(run / "router").route(images)
    own = torch.stack(
        [torch.from_numpy(Predictor.load(run / "clients" / name)([("inputs", images.numpy())])[0]) for name in NAMES]
    )
    answers = http.post("/v1/predict", json={"inputs": images.tolist()}).json()["answers"]
    for i, found in enumerate(answers):
        best = int(decision.client[i])
        assert [a["client"] for a in found["answered"]] == [NAMES[best]] == [found["client"]]
        assert list(found["probabilities"].values()) == pytest.approx(own[best, i].tolist(), abs=1e-5)
        assert found["label"] == str(int(own[best, i].argmax()))
    body = {"inputs": images.tolist(), "consult": 2}
    for i, found in enumerate(http.post("/v1/predict", json=body).json()["answers"]):
        top = decision.probabilities[i].topk(2)
        weights = top.values / top.values.sum()
        mixed = (weights[:, None] * own[top.indices, i]).sum(0)
        assert list(found["probabilities"].values()) == pytest.approx(mixed.tolist(), abs=1e-4)
        assert math.fsum(a["weight"] for a in found["answered"]) == pytest.approx(1)


def test_names_that_mean_something_in_an_address(run: Path, launch: Launch, tmp_path: Path) -> None:
    """Every client is asked under its own name, whatever it is, and answers for itself."""
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
        body = {"inputs": [[0.0] * 4], "without": [other for other in names if other != name]}
        (found,) = httpx.post(f"{url}/v1/predict", json=body).json()["answers"]
        assert (found["client"], found["failed"]) == (name, [])
    # Another federation's artifact is refused like a broken one.
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


def test_embeddings_alone_can_be_answered(run: Path, http: httpx.Client, images: torch.Tensor) -> None:
    features = load_router(run / "router").features(images)
    by_features = http.post("/v1/predict", json={"features": features.tolist()}).json()["answers"]
    by_sample = http.post("/v1/predict", json={"inputs": images.tolist()}).json()["answers"]
    for a, b in zip(by_features, by_sample, strict=True):
        assert list(a["probabilities"].values()) == pytest.approx(list(b["probabilities"].values()), abs=1e-4)


def test_abstaining_can_mean_that_nobody_is_asked(http: httpx.Client, images: torch.Tensor) -> None:
    body = {"inputs": images.tolist(), "coverage": 0.5, "abstain": "refuse"}
    answers = http.post("/v1/predict", json=body).json()["answers"]
    for found in answers:
        assert (found["label"] is None) == found["route"]["abstain"]
        assert bool(found["answered"]) != found["route"]["abstain"]
    assert 0 < sum(a["label"] is None for a in answers) < len(answers)


def test_the_open_inference_protocol(http: httpx.Client, images: torch.Tensor) -> None:
    plain = http.post("/v1/predict", json={"inputs": images.tolist()}).json()["answers"]
    tensor = {"name": "input", "datatype": "UINT8", "shape": list(images.shape), "data": images.flatten().tolist()}
    for model, outputs in (("router", {"probabilities", "log_density_ratio", "client", "margin", "abstain"}),
                           ("federation", {"probabilities", "label", "client"})):  # fmt: skip
        about = http.get(f"/v2/models/{model}").json()
        assert {out["name"] for out in about["outputs"]} == outputs
        answer = http.post(f"/v2/models/{model}/infer", json={"id": "7", "inputs": [tensor]}).json()
        assert (answer["id"], answer["model_name"]) == ("7", model)
        found = {out["name"]: out for out in answer["outputs"]}
        assert set(found) == outputs
        assert found["client"]["data"] == [a["client"] for a in plain]
        assert len(found["probabilities"]["data"]) == math.prod(found["probabilities"]["shape"])
        body, headers = write_infer("input", images.numpy())
        again = http.post(f"/v2/models/{model}/infer", content=body, headers=headers).json()
        assert again["outputs"][0]["data"] == pytest.approx(found["probabilities"]["data"], abs=1e-5)
        assert http.get(f"/v2/models/{model}/ready").status_code == 200
    whole = {
        out["name"]: out for out in http.post("/v2/models/router/infer", json={"inputs": [tensor]}).json()["outputs"]
    }
    wanted = [{"name": "margin", "parameters": {"binary_data": True}}, {"name": "client"}]
    answer = http.post("/v2/models/router/infer", json={"inputs": [tensor], "outputs": wanted})
    length = int(answer.headers["inference-header-content-length"])
    margin, client = json.loads(answer.content[:length])["outputs"]
    assert client == whole["client"]
    assert margin == {"name": "margin", "datatype": "FP32", "shape": [len(images)],
                      "parameters": {"binary_data_size": 4 * len(images)}}  # fmt: skip
    assert np.frombuffer(answer.content[length:], "<f4") == pytest.approx(whole["margin"]["data"])
    refusal = http.post("/v2/models/router/infer", json={"inputs": [tensor], "outputs": [{"name": "x"}]})
    assert (refusal.status_code, "no output 'x'" in refusal.json()["error"]) == (422, True)
    assert http.get("/v2/models/other").status_code == 404
    assert http.post("/v2/models/other/infer", json={"inputs": [tensor]}).status_code == 404


@pytest.mark.parametrize(
    ("path", "given", "status", "part"),
    [
        ("/v1/route", {"json": {"inputs": [[1]]}}, 422, "[n, 1, 8, 8]"),
        ("/v1/route", {"json": {"features": [[1e30] * 16]}}, 200, ""),
        ("/v1/route", {"json": {"features": [[3e38] * 16]}}, 422, "too large"),
        ("/v1/route", {"content": b"{", "headers": {"Content-Type": "application/json"}}, 422, "JSON"),
        ("/v1/route", {"content": b"x", "headers": {"Content-Type": "text/plain"}}, 415, "text/plain"),
        ("/v1/route", {"content": bytes(9 * 2**20), "headers": {"Content-Type": "image/png"}}, 413, "bytes"),
        ("/v1/route", {"content": b"GIF89a", "headers": {"Content-Type": "image/gif"}}, 422, "cannot be read"),
        ("/v1/predict", {"json": {"inputs": [], "consult": 0}}, 422, "consult"),
        ("/v1/predict", {"json": {"features": [[0] * 16], "without": ["rio"]}}, 422, "unknown client 'rio'"),
        ("/v2/models/router/infer", {"json": {"inputs": []}}, 422, "inputs"),
        ("/nowhere", {}, 404, "Not Found"),
        ("/metrics", {}, 405, "Method Not Allowed"),
    ],
)
def test_refusals_are_one_line(http: httpx.Client, path: str, given: dict[str, Any], status: int, part: str) -> None:
    answer = http.post(path, **given)
    assert answer.status_code == status, answer.text
    if status != 200:
        found = answer.json()
        assert part in found["error"]
        assert "\n" not in found["error"]
        assert found["request_id"] == answer.headers["x-request-id"]


def test_request_ids_and_headers(http: httpx.Client) -> None:
    assert http.get("/v2", headers={"X-Request-ID": "mine-1"}).headers["x-request-id"] == "mine-1"
    odd = http.get("/v2", headers={"X-Request-ID": "bad id\twith spaces"}).headers["x-request-id"]
    assert len(odd) == 32
    page = http.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    cross = http.options("/v1/route", headers={"Origin": "http://x", "Access-Control-Request-Method": "POST"})
    assert "access-control-allow-origin" not in cross.headers


def test_other_sites_pages_are_refused(http: httpx.Client, run: Path, launch: Launch, tmp_path: Path) -> None:
    """Without keys: under a name of theirs that leads here, or by posting across origins."""
    body, own = {"features": [[0.0] * 16]}, http.base_url
    for host in ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "8.8.8.8"):
        for answer in (http.get("/v1/samples/fax/0", headers={"Host": host}),
                       http.post("/v1/route", json=body, headers={"Host": host})):  # fmt: skip
            assert (answer.status_code, "not served" in answer.json()["error"]) == (403, True)
    for host in ("localhost", "LOCALHOST:81", "127.0.0.1", "127.0.0.9:8080", "[::1]:8080"):
        assert http.get("/v1/samples/fax/0", headers={"Host": host}).status_code == 200
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{own.port + 1}"):
        for path in ("/v1/admin/reload", "/v1/route"):
            answer = http.post(path, json=body, headers={"Origin": origin})
            assert (answer.status_code, "FEDDRM_SERVE_CORS" in answer.json()["error"]) == (403, True)
    assert http.post("/v1/route", json=body, headers={"Origin": f"http://127.0.0.1:{own.port}"}).status_code == 200
    process = launch("serve", run, "--port", 0, "--open", "--audit", tmp_path / "a.sqlite",
                     FEDDRM_SERVE_CORS='["https://lab.example"]')  # fmt: skip
    headers = {"Host": "gateway.example", "Origin": "https://lab.example"}
    answer = httpx.post(f"{process.wait_ready()}/v1/route", json=body, headers=headers)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://lab.example")
    headers["Origin"] = "https://evil.example"
    assert httpx.post(f"{process.url}/v1/route", json=body, headers=headers).status_code == 403


def test_the_audit_log_has_decisions_and_no_payloads(demo: str, run: Path, images: torch.Tensor, launch: Launch,
                                                     tmp_path: Path) -> None:  # fmt: skip
    process = launch("serve", run, "--port", 0, "--audit", tmp_path / "audit.sqlite", "--retention-days", 1)
    url = process.wait_ready()
    features = load_router(run / "router").features(images)
    answer = httpx.post(f"{url}/v1/route", json={"features": features.tolist()}, headers={"X-Request-ID": "audited"})
    assert httpx.post(f"{url}/v1/predict", json={"features": features.tolist()}).status_code == 503
    assert process.stop() == 0  # what was waiting is written at the end
    with sqlite3.connect(tmp_path / "audit.sqlite") as base:
        base.row_factory = sqlite3.Row
        rows = [dict(row) for row in base.execute("SELECT * FROM decisions")]
    base.close()
    decisions = answer.json()["decisions"]
    audited = {int(place): row for row in rows for place in row["places"].split(",")}
    assert [audited[i]["client"] for i in range(len(images))] == [d["client"] for d in decisions]
    assert sum(row["samples"] for row in rows) == len(images)
    assert len(rows) == len({(d["client"], d["reason"]) for d in decisions})  # those that are alike are one record
    for row in rows:
        alike = [decisions[int(place)] for place in row["places"].split(",")]
        assert row["probability"] == min(d["probability"] for d in alike)
        assert row["margin"] == min(d["margin"] for d in alike)
        assert {bool(row["abstain"])} == {d["abstain"] for d in alike}
    assert {row["request_id"] for row in rows} == {"audited"}
    assert {row["action"] for row in rows} == {"route"}
    assert tuple(rows[0]) == Record._fields
    lines = [json.loads(line) for line in process.log.read_text().splitlines()]
    assert {"ready", "request", "stopped"} <= {line["message"] for line in lines}


def test_metrics(http: httpx.Client, images: torch.Tensor) -> None:
    def value(name: str) -> float:
        page = http.get("/metrics").text
        return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name + "{"))

    before = value("feddrm_decisions_total")
    http.post("/v1/route", json={"inputs": images.tolist()})
    assert value("feddrm_decisions_total") == before + len(images)
    assert value("feddrm_client_available") == 3
    assert "feddrm_audit_ok 1.0" in http.get("/metrics").text


def test_python_and_shell_ask_alike(demo: str, run: Path, images: torch.Tensor, tmp_path: Path) -> None:
    path = tmp_path / "scan.png"
    path.write_bytes(png(images[0]))
    with feddrm.Client(demo) as gateway:
        found = gateway.route(path)[0]
        assert gateway.route(images[:1])[0]["client"] == found["client"]
        assert gateway.route(np.asarray(load_router(run / "router").inputs(images[:1])))[0]["client"] == found["client"]
        features = load_router(run / "router").features(images[:1])
        assert gateway.predict(features=features, consult=2)[0]["route"]["client"] == found["client"]
        assert {c["client"] for c in gateway.clients()} == set(NAMES)
        pixels = np.asarray(load_router(run / "router").inputs(images[:2]))
        assert gateway.route(list(pixels)) == gateway.route(pixels)
        assert gateway.route(list(images[:2]))[0]["client"] == found["client"]
        zeros = gateway.route(features=[[0.0] * 16])
        assert gateway.route(features=[[np.float32(0), np.int64(0), *[0.0] * 14]]) == zeros
        for way in ({"x": path}, {"features": features}):
            assert gateway.route(**way, without="fax") == gateway.route(**way, without=["fax"])
        for bad in ([[math.nan] * 16], [[np.float32("inf")] * 16], [[object()] * 16], np.full((1, 16), np.nan)):
            with refused("cannot be sent", "finite numbers"):
                gateway.route(features=bad)
        with refused("says", "no column names"):
            gateway.route([{"age": np.float32(3)}])
        with refused("says", "unknown client"):
            gateway.route(path, without=["rio"])
        with refused("one of them"):
            gateway.route()
    words = [sys.executable, "-m", "feddrm", "query", demo, str(path), "--predict", "--json"]
    shell = json.loads(subprocess.run(words, capture_output=True, check=True, text=True).stdout)
    assert shell[0]["client"] == found["client"]
    with pytest.raises(FeddrmError, match="is it running"):
        feddrm.Client("http://127.0.0.1:9").route(path)


ROOT = Path(__file__).parents[2]
SHELL = re.findall(r"```shell\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0].splitlines()


@pytest.mark.parametrize("example", SHELL)
def test_the_readmes_examples(demo: str, images: torch.Tensor, tmp_path: Path, example: str) -> None:
    """Word for word but for the address."""
    if example.startswith("curl") and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (tmp_path / "scan.png").write_bytes(png(images[0]))
    command = example.replace("http://127.0.0.1:8080", demo).replace("feddrm ", f"{sys.executable} -m feddrm ")
    assert demo in command
    out = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, check=True, text=True).stdout
    assert any(name in out for name in NAMES)
    if example.startswith("curl"):
        assert json.loads(out)["answers"][0]["client"] in NAMES


def test_the_pages_python(demo: str, images: torch.Tensor, tmp_path: Path) -> None:
    (tmp_path / "scan.png").write_bytes(png(images[0]))
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "serve.md").read_text(), flags=re.DOTALL)
    script = script.replace("http://127.0.0.1:8080", demo)
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, check=True, text=True)
    client, label = run.stdout.split()
    assert client in NAMES
    assert label.isdigit()


def test_keys_and_limits(run: Path, launch: Launch, tmp_path: Path) -> None:
    from feddrm.serve.auth import add_key, digest

    keys = tmp_path / "keys.yaml"
    lab, boss = add_key(keys, "lab", ["route"]), add_key(keys, "boss", ["admin"])
    process = launch("serve", run, "--port", 0, "--keys", keys, "--audit", tmp_path / "a.sqlite", "--rate", 20,
                     FEDDRM_SERVE_MAX_IN_FLIGHT="1000")  # fmt: skip
    url = process.wait_ready()
    body = {"features": [[0.0] * 16]}

    def post(path: str, **headers: str) -> int:
        while (answer := httpx.post(url + path, json=body, headers=headers)).status_code == 429:
            time.sleep(float(answer.headers["Retry-After"]) / 4)
        return answer.status_code

    assert post("/v1/route") == 401
    assert post("/v1/route", Authorization="Bearer nonsense") == 401
    assert post("/v1/route", Authorization=f"Bearer {lab}") == 200
    assert post("/v1/route", **{"X-API-Key": lab, "Host": "gateway.example", "Origin": "https://lab.example"}) == 200
    assert post("/v1/route", **{"X-API-Key": boss}) == 403
    assert post("/v1/predict", **{"X-API-Key": lab}) == 403
    assert post("/v1/admin/reload", **{"X-API-Key": lab}) == 403
    assert post("/v1/admin/reload", **{"X-API-Key": boss}) == 200
    for path in ("/metrics", "/v1/clients", "/v1/federation", "/v1/traffic", "/v1/samples/fax/0"):
        assert httpx.get(url + path).status_code == 401, path
        assert httpx.get(url + path, headers={"X-API-Key": boss}).status_code == 200, path
    assert lab not in process.log.read_text()
    later = add_key(keys, "later", ["route"])
    assert post("/v1/route", **{"X-API-Key": later}) == 200
    keys.write_text("\n".join(line for line in keys.read_text().split("\n") if digest(lab) not in line))
    assert post("/v1/route", **{"X-API-Key": lab}) == 200  # half a key: a file that cannot be read changes nothing
    keys.write_text(keys.read_text().replace("lab:\n", f"lab:\n  sha256: {digest('another')}\n"))
    assert post("/v1/route", **{"X-API-Key": lab}) == 401
    assert post("/v1/route", **{"X-API-Key": later}) == 200


def test_the_demos_clients_take_no_keys_but_the_gateways_do(run: Path, launch: Launch, tmp_path: Path) -> None:
    from feddrm.serve.auth import add_key

    headers = {"X-API-Key": add_key(tmp_path / "keys.yaml", "lab", ["predict"])}
    process = launch("serve", run, "--demo", "--port", 0, "--audit", tmp_path / "a.sqlite",
                     FEDDRM_SERVE_KEYS=str(tmp_path / "keys.yaml"), FEDDRM_SERVE_HOST="0.0.0.0")  # fmt: skip
    url, until = process.wait_ready(), time.monotonic() + 60
    body = {"features": [[0.0] * 16], "consult": 3}
    assert httpx.post(f"{url}/v1/predict", json=body).status_code == 401
    while (answer := httpx.post(f"{url}/v1/predict", json=body, headers=headers)).status_code != 200:
        assert "401" not in answer.text
        assert time.monotonic() < until, answer.text
        time.sleep(0.1)


def test_too_many_requests_are_turned_away(run: Path, launch: Launch, tmp_path: Path) -> None:
    """However slow the machine: one request in ten seconds is less than any can make."""
    url = launch("serve", run, "--port", 0, "--audit", tmp_path / "a.sqlite", "--rate", 0.1).wait_ready()
    codes = [httpx.post(f"{url}/v1/route", json={"features": [[0.0] * 16]}) for _ in range(30)]
    turned = [answer for answer in codes if answer.status_code == 429]
    assert turned
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in turned)
    counted = f'feddrm_requests_total{{path="other",status="429"}} {len(turned)}.0'
    assert counted in httpx.get(f"{url}/metrics").text


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_tls(run: Path, launch: Launch, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*words.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    files = ["--tls-cert", cert, "--tls-key", key, "--audit", tmp_path / "a.sqlite"]
    url = launch("serve", run, "--port", 0, *files).url
    assert url.startswith("https://")
    with httpx.Client(base_url=url, verify=ssl.create_default_context(cafile=str(cert)), timeout=20) as http:
        assert http.get("/v2/health/live").json() == {"live": True}
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/v2/health/live")
