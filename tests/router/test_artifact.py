"""A router as files: it decides the same after reading, survives interrupted fits, and refuses broken files."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from feddrm.data import QueryViews
from feddrm.models import is_head
from feddrm.router import Router, leave, load_heads, load_router, save_router
from refusal import refused

MODEL = {"name": "mlp", "hidden": [8, 4], "branch": 4}


@pytest.fixture
def folder(router: Router, tmp_path: Path) -> Path:
    save_router(tmp_path, router, model=MODEL, classes=3, heads={"probe": torch.ones(3, 4)})
    return tmp_path


def test_a_router_decides_the_same_after_reading(router: Router, folder: Path, images: torch.Tensor) -> None:
    again = load_router(folder)
    for rule in ("density", "posterior", "competence"):
        before, after = router.route(images, rule=rule), again.route(images, rule=rule)
        assert torch.equal(before.probabilities, after.probabilities)
        assert torch.equal(before.client, after.client)
    assert again.calibration == router.calibration
    assert again.names == router.names
    assert torch.equal(load_heads(folder)["probe"], torch.ones(3, 4))


def test_a_router_without_competence_opens_as_older_ones_do(router: Router, tmp_path: Path) -> None:
    save_router(tmp_path, dataclasses.replace(router, competence=None, means=None), model=MODEL, classes=3)
    assert not {"competence", "client_means"} & set(load_file(tmp_path / "router.safetensors"))
    again = load_router(tmp_path)
    assert again.competence is None
    assert again.means is None


@pytest.mark.parametrize("name", ["competence", "client_means"])
def test_competence_of_another_shape_is_refused(router: Router, tmp_path: Path, name: str) -> None:
    other = {"competence": {"competence": router.competence[:2]}, "client_means": {"means": router.means[:, 1:]}}
    save_router(tmp_path, dataclasses.replace(router, **other[name]), model=MODEL, classes=3)
    with refused(f"tensor '{name}' has shape"):
        load_router(tmp_path)


def test_the_files_hold_no_private_leaf(router: Router, folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        assert not [leaf for leaf in load_file(path) if is_head(leaf)]
    leaky = dataclasses.replace(router, leaves={**router.leaves, "head.weight": torch.ones(1)})
    save_router(folder, leaky, model=MODEL, classes=3)  # no feature wants it, so it is not written
    assert "head.weight" not in load_file(folder / "trunk.safetensors")


def test_a_router_that_lost_a_client_can_be_saved(router: Router, tmp_path: Path, images: torch.Tensor) -> None:
    smaller = leave(router, "lima")
    save_router(tmp_path, smaller, model=MODEL, classes=3)
    assert torch.equal(load_router(tmp_path).route(images).client, smaller.route(images).client)


def test_a_refit_cut_short_anywhere_leaves_the_old_router_or_the_new(
    router: Router, folder: Path, images: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller, really, left = leave(router, "lima"), Path.replace, 0

    def cut(self: Path, target: Path) -> Path:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return really(self, target)

    monkeypatch.setattr(Path, "replace", cut)
    heads = {"probe": torch.zeros(3, 4)}
    # Renames until the cut of a refit and of the next: five make files, manifest and commit, four move the files.
    for first, second in [*((first, 9) for first in range(10)), *itertools.product((5, 8), range(9))]:
        copy = tmp_path / f"copy-{first}-{second}"
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("copy-*"))
        names = {router.names}
        for fitted, allowed in ((smaller, first), (router, second)):
            left = allowed
            with contextlib.suppress(KeyboardInterrupt):
                save_router(copy, fitted, model=MODEL, classes=3, heads=heads)
                names = {fitted.names}
                assert not list(copy.glob(".*.new"))
            names.add(fitted.names)
            now = load_router(copy)
            assert now.names in names
            want = router if now.names == router.names else smaller
            assert torch.equal(now.route(images).probabilities, want.route(images).probabilities)
            assert load_heads(copy)["probe"].shape == (3, 4)
    left = 9
    save_router(folder, smaller, model=MODEL, classes=3, heads=heads)  # not cut: all cuts were tried


def test_a_refit_that_failed_leaves_the_old_router(router: Router, folder: Path, images: torch.Tensor) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    broken = dataclasses.replace(router, weight=router.weight * torch.nan)
    with refused("'weight'", "not finite", "lower --lr"):
        save_router(folder, broken, model=MODEL, classes=3)
    with refused("manifest", "not finite", "lower --lr"):
        save_router(folder, router, model=MODEL, classes=3, notes={"ridge": float("nan")})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_without_a_router_is_refused(tmp_path: Path) -> None:
    with refused("holds no router", "feddrm fit-router"):
        load_router(tmp_path)


def test_another_format_is_refused(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": "feddrm-router-9"}))
    with refused("feddrm-router-9", "feddrm-router-1", "fit it again"):
        load_router(folder)


def test_a_missing_file_is_refused(folder: Path) -> None:
    (folder / "trunk.safetensors").unlink()
    with refused("cannot read", "trunk.safetensors", "copy it again"):
        load_router(folder)


def test_an_altered_file_is_refused(folder: Path) -> None:
    path = folder / "router.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with refused("checksum differs", "router.safetensors"):
        load_router(folder)


def test_a_number_that_is_not_finite_is_refused(folder: Path) -> None:
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
def test_a_manifest_that_is_no_object_is_refused(folder: Path, content: str) -> None:
    (folder / "manifest.json").write_text(content)
    with refused("fit it again"):
        load_router(folder)


def test_an_incomplete_manifest_is_refused(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["input"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with refused("incomplete", "input"):
        load_router(folder)


def test_views_that_the_data_allow_are_kept(router: Router, tmp_path: Path, images: torch.Tensor) -> None:
    allowed = dataclasses.replace(router, query_views=QueryViews(crops=True))
    save_router(tmp_path, allowed, model=MODEL, classes=3)
    again = load_router(tmp_path)
    assert again.query_views == QueryViews(crops=True)
    assert torch.equal(again.features(images, views=5), allowed.features(images, views=5))


def test_a_manifest_of_an_older_version_has_one_view(folder: Path, images: torch.Tensor) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["input"]["views"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    router = load_router(folder)
    assert len(router.route(images, views=1)) == len(images)
    with refused("views=2: this router is older and does not know which views its data allow: fit it again"):
        router.route(images, views=2)
