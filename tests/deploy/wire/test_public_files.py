"""The public files of a run: the server's folder opens as a run, and a site's folder is all its predictor needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from deployment import NAMES, Deployed, private_leaves
from feddrm.cli.app import app
from feddrm.deploy.wire.public_files import write_public
from feddrm.predictor.predictor import Predictor
from feddrm.router import load_router
from feddrm.router.artifact import MANIFEST, ROUTER, artifact_version
from feddrm.runs import Run
from refusal import refused

Make = Callable[..., Deployed]
ROUTING = {"features": "raw", "path_rounds": 1, "rounds": 2}


def feddrm(*words: object) -> str:
    """What a command prints; it must not fail."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def accuracy(deployment: Deployed, answer: str = "trained") -> float:
    """The accuracy of all sites' predictors on their own test samples, each loaded from its own folder alone."""
    right = tested = 0
    for name in NAMES:
        dataset = deployment.site(name).dataset
        test = dataset.client(dataset.classes).test
        predictor = Predictor.load(deployment.site_folder(name) / "clients" / name, answer=answer)
        assert predictor.classes == dataset.classes
        (outputs,) = predictor([("inputs", test.x.numpy())])
        right, tested = right + int((outputs.argmax(1) == test.y.numpy()).sum()), tested + len(test)
    return right / tested


@pytest.mark.slow
@pytest.mark.parametrize("method", ["feddrm", "ditto", "fedpac"])
def test_predictors_from_the_sites_folders_are_as_accurate_as_the_sites_measured(method: str, deployed: Make) -> None:
    heads = method == "feddrm"
    deployment = deployed(few=True, training={"method": method, "rounds": 4}, routing={**ROUTING, "heads": heads})
    deployment.server().go()
    assert not deployment.complaints
    run = Run.open(deployment.run)
    assert run.summary is not None
    assert accuracy(deployment) == run.summary["average_accuracy"]
    if heads:
        assert accuracy(deployment, "refit") > 0.5
        assert not private_leaves(deployment.folder / "server")


@pytest.mark.slow
def test_the_servers_folder_opens_as_a_run(deployed: Make, tmp_path: Path) -> None:
    deployment = deployed(routing=ROUTING)
    deployment.server().go()
    run = deployment.run
    evaluation = json.loads(feddrm("evaluate", run, "--json"))
    assert f"{100 * evaluation['average_accuracy']:.2f}" in feddrm("evaluate", run)
    feddrm("report", run)
    page = (run / "report.html").read_text()
    assert "Only a site itself knows" in page
    picture = tmp_path / "query.png"
    Image.fromarray(deployment.samples()[0][0].permute(1, 2, 0).squeeze(-1).numpy()).save(picture)
    assert json.loads(feddrm("route", run, picture, "--json"))[0]["client"] in NAMES
    data = json.loads((run / "data.json").read_text())
    assert data["classes"] == [str(i) for i in range(10)]
    assert [client["name"] for client in data["clients"]] == list(NAMES)
    assert not (run / "data.safetensors").exists()
    with refused("lie on its sites", "feddrm deploy run"):
        Run.open(run).fit_router()
    shown = CliRunner().invoke(app, ["serve", str(run), "--demo", "--port", "0"])
    assert "feddrm serve-client" in str(shown.exception)


@pytest.mark.slow
def test_an_unfinished_or_private_run_opens_as_a_run_too(deployed: Make) -> None:
    deployment = deployed(privacy={"clip": 1.0, "noise": 3.0})
    deployment.server().go()
    feddrm("evaluate", deployment.run)
    feddrm("report", deployment.run)
    with refused("holds no router", "privacy"):
        Predictor.load(deployment.site_folder("oslo") / "clients" / "oslo")
    (deployment.run / "summary.json").unlink()
    assert "unfinished" in feddrm("evaluate", deployment.run)


@pytest.mark.slow
def test_a_run_without_a_router_removes_the_old_router_from_the_sites(deployed: Make) -> None:
    deployment = deployed(few=True, routing=ROUTING)
    deployment.server().go()
    other = replace(deployment, settings=replace(deployment.settings, run="second", router=False))
    assert accuracy(deployment) > 0
    other.server().go()
    with refused("holds no router"):
        accuracy(deployment)


@pytest.mark.slow
def test_a_damaged_router_is_put_back_from_another_folder_of_its_federation(deployed: Make) -> None:
    """The error named 'feddrm fit-router' alone, which refuses a deployed run."""
    deployment = deployed(few=True, routing=ROUTING)
    deployment.server().go()
    router, copy = deployment.run / "router", deployment.site_folder("pune") / "router"
    version = artifact_version(router)
    for name in (MANIFEST, ROUTER):
        (router / name).write_bytes((router / name).read_bytes()[:100])
        with refused(str(router), "of a deployed run, put the folder back from the server or a site"):
            load_router(router)
        shutil.rmtree(router)
        shutil.copytree(copy, router)
        assert (load_router(router).names, artifact_version(router)) == (NAMES, version)


def test_a_site_writes_no_other_file(tmp_path: Path) -> None:
    for name in ("../site.yaml", "site.yaml", "router/../node.key"):
        with refused("the server sent a file", name):
            write_public(tmp_path, {f"public/{name}": torch.zeros(1, dtype=torch.uint8)}, {}, {})
    assert not list(tmp_path.rglob("*.yaml"))
