"""After a run the server's folder is a run like any other, and a site's folder all that its predictor needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from feddrm.cli.app import app
from feddrm.deploy.wire.public_files import keep_files
from feddrm.runs import Run
from feddrm.serve.predictor.predictor import Predictor
from refusal import refused

from .conftest import NAMES, Deployed, HandCourier, private_leaves
from .test_server import _samples, site_of

Make = Callable[..., Deployed]
ROUTING = {"features": "raw", "path_rounds": 1, "rounds": 2}


def feddrm(*words: object) -> str:
    """What a command prints; it must not fail."""
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def right(deployment: Deployed, answer: str = "trained") -> float:
    """The share of right answers of sites' predictors on their own test samples, each from its own folder alone."""
    good = tested = 0
    for name in NAMES:
        site = site_of(deployment, name)
        own = site.holdings.client(site.holdings.classes).test
        predictor = Predictor.load(site.folder / "clients" / name, answer=answer)
        assert predictor.classes == site.holdings.classes
        (found,) = predictor([("inputs", own.x.numpy())])
        good, tested = good + int((found.argmax(1) == own.y.numpy()).sum()), tested + len(own)
    return good / tested


@pytest.mark.parametrize("method", ["feddrm", "ditto", "fedpac"])
def test_sites_answer_from_their_own_folders_as_they_measured(method: str, deployed: Make) -> None:
    heads = method == "feddrm"
    deployment = deployed(training={"method": method, "rounds": 4}, routing={**ROUTING, "heads": heads})
    deployment.server().go()
    assert not deployment.complaints
    run = Run.open(deployment.folder / "server" / "runs" / "first")
    assert run.summary is not None
    assert right(deployment) == run.summary["average_accuracy"]
    if heads:
        assert right(deployment, "refit") > 0.5
        assert not private_leaves(deployment.folder / "server")


def test_the_servers_folder_is_a_run(deployed: Make, tmp_path: Path) -> None:
    deployment = deployed(routing=ROUTING)
    deployment.server().go()
    run = deployment.folder / "server" / "runs" / "first"
    told = json.loads(feddrm("evaluate", run, "--json"))
    assert f"{100 * told['average_accuracy']:.2f}" in feddrm("evaluate", run)
    feddrm("report", run)
    page = (run / "report.html").read_text()
    assert "only that site knows" in page
    picture = tmp_path / "query.png"
    Image.fromarray(_samples(deployment)[0][0].permute(1, 2, 0).squeeze(-1).numpy()).save(picture)
    assert json.loads(feddrm("route", run, picture, "--json"))[0]["client"] in NAMES
    data = json.loads((run / "data.json").read_text())
    assert data["classes"] == [str(i) for i in range(10)]
    assert [client["name"] for client in data["clients"]] == list(NAMES)
    assert not (run / "data.safetensors").exists()
    with refused("lie on its sites", "feddrm deploy run"):
        Run.open(run).fit_router()
    shown = CliRunner().invoke(app, ["serve", str(run), "--demo", "--port", "0"])
    assert "feddrm serve-client" in str(shown.exception)


def test_an_unfinished_or_private_run_is_a_run_too(deployed: Make) -> None:
    deployment = deployed(privacy={"clip": 1.0, "noise": 3.0})
    deployment.server().go()
    run = deployment.folder / "server" / "runs" / "first"
    feddrm("evaluate", run)
    feddrm("report", run)
    with refused("holds no router", "privacy"):
        Predictor.load(deployment.folder / "sites" / "oslo" / "clients" / "oslo")
    (run / "summary.json").unlink()
    assert "unfinished" in feddrm("evaluate", run)


def test_a_run_without_a_router_leaves_no_old_one(deployed: Make) -> None:
    deployment = deployed(routing=ROUTING)
    deployment.server().go()
    other = replace(deployment, settings=replace(deployment.settings, run="second", router=False))
    assert right(deployment) > 0
    other.server().go()
    with refused("holds no router"):
        right(deployment)


def test_a_server_that_ended_after_the_fit_does_not_fit_again(deployed: Make) -> None:
    deployment = deployed(routing=ROUTING)
    deployment.server().go()
    first = deployment.server().run.summary()
    (deployment.folder / "server" / "runs" / "first" / "summary.json").unlink()
    courier = HandCourier(deployment.folder)
    deployment.server(courier).go()
    assert courier.asked == 2  # hello, and the last letter
    assert deployment.server().run.summary() == first


def test_a_site_writes_no_other_file(tmp_path: Path) -> None:
    for name in ("../site.yaml", "site.yaml", "router/../node.key"):
        with refused("the server sent a file", name):
            keep_files(tmp_path, {f"public/{name}": torch.zeros(1, dtype=torch.uint8)})
    assert not list(tmp_path.rglob("*.yaml"))
