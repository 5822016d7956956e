"""Clients with their own scale of raw pixels: predictors use it, and the router takes no raw pixels."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from commands import feddrm_command
from feddrm.data import Federation, load
from feddrm.data.datasets.retina import VIEWS
from feddrm.models import Mlp
from feddrm.predictor.predictor import Predictor
from feddrm.router import load_router
from feddrm.runs import Run, train
from refusal import refused
from serving import Launch

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {"rounds": 3, "local_steps": 6, "batch_size": 16, "model": Mlp(hidden=(16,), branch=8)}


def write_pictures(root: Path) -> None:
    """Pictures with a small or a large disc, in the colours of three cameras."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:96, :96]
    for client, view in VIEWS.items():
        for part, count in (("Training", 12), ("Testing", 8)):
            for radius, label in ((12, "Glaucoma"), (36, "Normal")):
                folder = root / "retina_balanced" / client / part / label
                folder.mkdir(parents=True)
                for i in range(count):
                    pixels = rng.normal(np.array(view.mean) * 255, 18, (96, 96, 3))
                    pixels[(rows - 48) ** 2 + (columns - 48) ** 2 < radius**2] += 30
                    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eyes")
    write_pictures(folder)
    return folder


@pytest.fixture(scope="module")
def eyes(data: Path) -> Federation:
    return load("retina", data_dir=str(data))


@pytest.fixture(scope="module")
def own(data: Path, eyes: Federation) -> Path:
    """A run whose clients have their own scales, as in the paper."""
    run = train(eyes, "feddrm", out=data / "own", **SMALL)
    run.fit_router(data_dir=str(data), features="multiscale+colour", joint=False)
    return run.path


@pytest.mark.parametrize("answer", ["trained", "refit"])
def test_every_client_scales_raw_pixels_as_in_training(own: Path, eyes: Federation, answer: str) -> None:
    for client in eyes.clients:
        predictor = Predictor.load(own / "clients" / client.name, answer=answer)
        raw = client.test.x
        seen = client.view(raw).contiguous()
        (served,), (trained,) = predictor([("inputs", raw.numpy())]), predictor([("inputs", seen.numpy())])
        np.testing.assert_allclose(served, trained, atol=1e-4)
        assert served.std(0).max() > 0.001  # the images differ, so another scale would give other answers


def test_predictions_from_raw_pixels_have_the_accuracy_that_the_run_measured(own: Path, eyes: Federation) -> None:
    right = 0.0
    for client, weight in zip(eyes.clients, eyes.weights.tolist(), strict=True):
        (found,) = Predictor.load(own / "clients" / client.name)([("inputs", client.test.x.numpy())])
        right += weight * float((found.argmax(1) == client.test.y.numpy()).mean())
    assert right == pytest.approx(Run.open(own).metrics()[-1]["average_accuracy"], abs=1e-6)


def test_the_router_takes_no_raw_pixels(own: Path, eyes: Federation) -> None:
    router = load_router(own / "router")
    summary = Run.open(own).summary
    assert summary is not None
    assert router.own_scales
    assert summary["router"]["own_scales"] is True
    for client in eyes.clients:
        with refused("takes no raw pixels", "--set data.normalise=common"):
            router.route(client.test.x)
    home = [router.route(c.view(c.test.x)).client == i for i, c in enumerate(eyes.clients)]
    expected = summary["client_accuracy"]["exact_density"]["mean"]
    rates = torch.stack([here.double().mean() for here in home])
    assert float((rates * eyes.weights).sum()) == pytest.approx(expected, abs=1e-6)


def test_with_one_scale_for_all_clients_raw_pixels_are_routed(data: Path) -> None:
    common = load("retina", data_dir=str(data), normalise="common")
    run = train(common, "feddrm", out=data / "common", **SMALL)
    router = run.fit_router(data_dir=str(data), features="multiscale+colour", heads=False)
    assert run.summary is not None
    assert (router.own_scales, run.summary["router"]["own_scales"]) == (False, False)
    for client in common.clients:
        assert torch.equal(router.route(client.test.x).client, router.route(client.view(client.test.x)).client)


def test_a_missing_or_broken_scale_is_an_error(own: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(own, copy)
    scale = copy / "clients" / "RIM" / "scale.json"
    assert json.loads(scale.read_text()) == {"mean": list(VIEWS["RIM"].mean), "std": list(VIEWS["RIM"].std)}
    for broken in ("[]", '{"mean": 3, "std": [1]}', "{"):
        scale.write_text(broken)
        with refused(str(scale), "copy the run again"):
            Predictor.load(scale.parent)
    scale.unlink()
    with refused("no scale.json", "copy the run again"):
        Predictor.load(scale.parent)


def test_a_client_of_an_older_run_has_the_routers_scale(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    folder = tmp_path / "run" / "clients" / "fax"
    (folder / "scale.json").unlink()
    assert Predictor.load(folder).router.input_mean == load_router(run / "router").input_mean


def test_the_commands_report_own_scales(own: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(own, tmp_path / "run")
    fitted = feddrm_command("fit-router", tmp_path / "run", "--features", "colour", "--no-heads", "--data-dir", data)
    assert fitted.returncode == 0, fitted.stderr
    assert "presume queries that their own client has scaled" in fitted.stdout
    picture = next((data / "retina_balanced").rglob("*.png"))
    routed = feddrm_command("route", tmp_path / "run", picture)
    assert routed.returncode == 1
    assert "--set data.normalise=common" in routed.stderr


def test_the_gateway_takes_scaled_inputs_but_no_raw_pixels(
    own: Path, eyes: Federation, launch: Launch, tmp_path: Path
) -> None:
    gateway = launch("serve", own, "--port", 0, "--audit", tmp_path / "a.sqlite")
    raw = eyes.clients[1].test.x[:1]
    with httpx.Client(base_url=gateway.wait_ready(), timeout=20) as http:
        refusal = http.post("/v1/route", json={"inputs": raw.tolist()})
        assert refusal.status_code == 422
        assert "takes no raw pixels" in refusal.json()["error"]
        seen = eyes.clients[1].view(raw)
        scaled = http.post("/v1/route", json={"inputs": seen.tolist(), "datatype": "float32"})
        assert scaled.status_code == 200, scaled.text
        expected = load_router(own / "router").route(seen.contiguous())
        assert scaled.json()["decisions"][0]["client_probability"] == pytest.approx(
            float(expected.probabilities.max()), abs=1e-4
        )
    assert "raw pixels are refused" in gateway.whole_log()
