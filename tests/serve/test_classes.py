"""A client's numbers stand for the gateway's classes, or they are not used."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import yaml

from feddrm.data import load
from feddrm.router import load_router
from feddrm.serve.loaded_router import Row
from feddrm.serve.predictor.predictor import Predictor, known_classes
from feddrm.serve.settings import ClientEntry
from feddrm.serve.upstream.dispatch import ask_clients
from feddrm.serve.upstream.upstreams import Upstream
from serving import NAMES, Launch

CLASSES = ("benign", "malignant", "normal")


class Client:
    """What a client says of its health, and what it answers."""

    def __init__(self, classes: tuple[str, ...] = CLASSES) -> None:
        self.health: Any = {"ready": True}
        self.outputs: dict[str, Any] = {}
        http = httpx.AsyncClient(base_url="http://oslo", transport=httpx.MockTransport(self._reply))
        self.peer = Upstream("oslo", ClientEntry(url="http://oslo"), 100, 0.05, http, classes)

    def _reply(self, request: httpx.Request) -> httpx.Response:
        found = self.health
        if request.method == "POST":
            found = {"outputs": [{"name": name, "data": data} for name, data in self.outputs.items()]}

        async def parts() -> AsyncIterator[bytes]:
            yield json.dumps(found).encode()

        return httpx.Response(200, content=parts())

    def check(self) -> str | None:
        """Why it cannot be asked, after a health check."""
        asyncio.run(self.peer.check())
        return self.peer.why_not

    def ask(self, *rows: list[float], labels: Any = None) -> str | None:
        """Why it failed to answer with these probabilities and labels."""
        self.outputs = {"probabilities": list(rows)} | ({} if labels is None else {"label": labels})
        row, peers, x = Row(0, [1.0], [0.0], 1.0, False, ""), {"oslo": self.peer}, np.zeros((len(rows), 2), np.float32)
        told = ask_clients("inputs", x, [row] * len(rows), ["oslo"], peers, classes=3, deadline=10)
        return asyncio.run(told)[0].failed.get(0)


@pytest.mark.parametrize(
    "stated", [["benign", "healthy", "malignant"], ["malignant", "benign", "normal"], [], "benign"]
)
def test_a_client_that_states_other_classes_is_left_out_until_it_states_ours(stated: Any) -> None:
    client = Client()
    client.health = {"ready": True, "classes": stated}
    assert client.check() == "has other classes"
    about = client.peer.as_dict()
    assert (about["healthy"], about["available"]) == (False, False)
    assert about["reason"] == "has other classes than the gateway: serve it from the gateway's run"
    with client.peer.request():  # one that was under way when it was checked
        pass
    assert client.peer.why_not == "has other classes"
    assert client.ask([1, 0, 0]) == "has other classes"
    client.health = {"ready": True, "classes": list(CLASSES)}
    assert client.check() is None
    assert (client.peer.as_dict()["healthy"], client.peer.reason) == (True, "")
    assert client.ask([1, 0, 0], labels=["benign"]) is None


@pytest.mark.parametrize("health", [{"ready": True}, {"classes": None}, ["classes"], 3])
def test_a_client_that_states_nothing_is_asked(health: Any) -> None:
    client = Client()
    client.health = health
    assert client.check() is None


def test_a_gateway_without_names_compares_nothing() -> None:
    client = Client(())
    client.health = {"classes": ["benign", "healthy", "malignant"]}
    assert client.check() is None
    assert client.ask([1, 0, 0], labels=["anything"]) is None


def test_labels_are_compared_with_the_likeliest_class() -> None:
    client, other = Client(), "answered by other classes"
    assert client.ask([0.1, 0.7, 0.2], labels=["malignant"]) is None
    assert client.ask([0.1, 0.7, 0.2], labels=["healthy"]) == other
    assert client.ask([0.1, 0.7, 0.2], labels=["benign"]) == other
    assert client.ask([0.1, 0.7, 0.2], [0.8, 0.1, 0.1], labels=["malignant", "malignant"]) == other
    assert client.ask([0.1, 0.7, 0.2], labels=["malignant", "malignant"]) == other
    assert client.ask([0.1, 0.7, 0.2], labels="malignant") == other
    assert client.ask([0.1, 0.7, 0.2], labels=[["malignant"]]) == other


def test_doubtful_labels_are_let_pass() -> None:
    """Two classes as likely as each other but for rounding; a client that knows no names; one that says no labels."""
    client = Client()
    for label, reason in (("benign", None), ("malignant", None), ("normal", "answered by other classes")):
        assert client.ask([0.45, 0.45 + 1e-8, 0.1], labels=[label]) == reason
    assert client.ask([0.1, 0.7, 0.2], labels=["1"]) is None
    assert client.ask([0.1, 0.7, 0.2], labels=["0"]) == "answered by other classes"
    assert client.ask([0.1, 0.7, 0.2]) is None


def renamed(run: Path, to: Path, **names: list[str]) -> Path:
    """A copy whose classes have other names, in its portrait and its router's manifest."""
    shutil.copytree(run, to)
    for path, part in ((to / "data.json", None), (to / "router" / "manifest.json", "notes")):
        content = json.loads(path.read_text())
        (content if part is None else content[part])["classes"] = names["classes"]
        path.write_text(json.dumps(content))
    return to


def test_names_come_with_the_router(run: Path, tmp_path: Path) -> None:
    """A client need not have the run's portrait; without either it has numbers, and says so."""
    digits = tuple("0123456789")
    other = renamed(run, tmp_path / "other", classes=list("abcdefghij"))
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


def test_clients_of_another_run_answer_nobody(run: Path, launch: Launch, tmp_path: Path) -> None:
    """The same classes in another order: what one calls 0 the other calls 1."""
    other = renamed(run, tmp_path / "other", classes=list("1234567890"))
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
        answers = http.post("/v1/predict", json={"inputs": own.tolist()}).json()["answers"]
        assert {answer["client"] for answer in answers} <= {"flatbed", "negative"}

        def about_fax() -> Any:
            return next(c for c in http.get("/v1/clients").json()["clients"] if c["client"] == "fax")

        until = time.monotonic() + 30
        while (peer := about_fax())["healthy"] is not False:
            assert time.monotonic() < until
            time.sleep(0.1)
        assert not peer["available"]
        assert peer["reason"].startswith("has other classes than the gateway")
        assert http.get("/v1/federation").json()["clients"][2]["peer"]["reason"] == peer["reason"]
        assert 'feddrm_client_available{client="fax"} 0.0' in http.get("/metrics").text
        (answer,) = http.post("/v1/predict", json={"inputs": own[:1].tolist()}).json()["answers"]
        assert answer["failed"] in ([], [{"client": "fax", "reason": "has other classes"}])
        assert answer["client"] != "fax"
    assert "a client is left out" in gateway.log.read_text()


def test_a_router_with_other_classes_is_not_taken_while_it_runs(run: Path, launch: Launch, tmp_path: Path) -> None:
    served = tmp_path / "run"
    shutil.copytree(run, served)
    gateway = launch("serve", served, "--port", 0)
    with httpx.Client(base_url=gateway.wait_ready()) as http:
        other = renamed(run, tmp_path / "other", classes=list("1234567890"))
        shutil.copy(other / "router" / "manifest.json", served / "router" / "manifest.json")
        answer = http.post("/v1/admin/reload")
        assert answer.status_code == 422
        assert "has other classes (1, 2, 3" in answer.json()["error"]
        assert (
            http.post("/v1/route", json={"inputs": torch.zeros(1, 1, 8, 8, dtype=torch.uint8).tolist()}).status_code
            == 200
        )
