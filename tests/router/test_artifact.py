from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from feddrm.models import is_head
from feddrm.router import Router, leave, load_heads, load_router, save_router
from refusal import refused

MODEL = {"name": "mlp", "hidden": [8, 4], "branch": 4}


@pytest.fixture
def folder(router: Router, tmp_path: Path) -> Path:
    save_router(tmp_path, router, model=MODEL, classes=3, heads={"probe": torch.ones(3, 4)})
    return tmp_path


def test_decisions_survive(router: Router, folder: Path, images: torch.Tensor) -> None:
    again = load_router(folder)
    for rule in ("density", "posterior"):
        before, after = router.route(images, rule=rule), again.route(images, rule=rule)
        assert torch.equal(before.probabilities, after.probabilities)
        assert torch.equal(before.client, after.client)
    assert again.calibration == router.calibration
    assert again.names == router.names
    assert torch.equal(load_heads(folder)["probe"], torch.ones(3, 4))


def test_it_holds_no_private_leaf(router: Router, folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        assert not [leaf for leaf in load_file(path) if is_head(leaf)]
    leaky = dataclasses.replace(router, leaves={**router.leaves, "head.weight": torch.ones(1)})
    save_router(folder, leaky, model=MODEL, classes=3)  # no feature wants it, so it is not written
    assert "head.weight" not in load_file(folder / "trunk.safetensors")


def test_a_router_that_lost_a_client_can_be_saved(router: Router, tmp_path: Path, images: torch.Tensor) -> None:
    smaller = leave(router, "lima")
    save_router(tmp_path, smaller, model=MODEL, classes=3)
    assert torch.equal(load_router(tmp_path).route(images).client, smaller.route(images).client)


def test_nothing_there(tmp_path: Path) -> None:
    with refused("holds no router", "feddrm fit-router"):
        load_router(tmp_path)


def test_another_version(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": "feddrm-router-9"}))
    with refused("feddrm-router-9", "feddrm-router-1", "fit it again"):
        load_router(folder)


def test_a_missing_file(folder: Path) -> None:
    (folder / "trunk.safetensors").unlink()
    with refused("cannot read", "trunk.safetensors", "copy it again"):
        load_router(folder)


def test_an_altered_file(folder: Path) -> None:
    path = folder / "router.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with refused("checksum differs", "router.safetensors"):
        load_router(folder)


def test_a_number_that_is_none(folder: Path) -> None:
    path = folder / "router.safetensors"
    tensors = load_file(path)
    tensors["weight"][0, 0] = torch.nan
    save_file(tensors, path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][path.name]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with refused("'weight'", "not finite"):
        load_router(folder)


@pytest.mark.parametrize("content", ["{", "[]", "null"])
def test_a_manifest_that_is_none(folder: Path, content: str) -> None:
    (folder / "manifest.json").write_text(content)
    with refused("fit it again"):
        load_router(folder)


def test_an_incomplete_manifest(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["input"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with refused("incomplete", "input"):
        load_router(folder)


@pytest.mark.parametrize("features_only", [False, True])
def test_onnx_decides_the_same(router: Router, images: torch.Tensor, tmp_path: Path, features_only: bool) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from feddrm.router.export import export_onnx

    path = tmp_path / "router.onnx"
    export_onnx(router, path, features_only=features_only)
    session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    given = router.features(images) if features_only else router.inputs(images)
    (found,) = session.run(None, {session.get_inputs()[0].name: given.numpy()})
    decision = router.route(images)
    assert torch.allclose(torch.from_numpy(found), decision.probabilities, atol=1e-4)
    assert torch.equal(torch.from_numpy(found).argmax(1), decision.client)
