"""ONNX export: an exported router decides the same, and exporting does not change the router."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from feddrm.data import QueryViews
from feddrm.router import Recipe, Router
from feddrm.router.features import base as features
from feddrm.router.features import colour
from feddrm.router.features.tensor_cache import cached_tensor
from feddrm.router.solver.problem import Scaler
from refusal import refused
from router.conftest import make_router

runtime = pytest.importorskip("onnxruntime", reason="pip install 'feddrm[export]' to run this")
pytest.importorskip("onnxscript", reason="pip install 'feddrm[export]' to run this")
from feddrm.router.export import export_onnx  # noqa: E402

pytestmark = pytest.mark.slow

MEAN, STD = (0.7, 0.4, 0.1), (0.1, 0.2, 0.3)


@pytest.fixture(params=["cold", "warm"])
def caches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether anything has been computed in this process before."""
    for module, name in ((colour, "_kernel"), (features, "_by_channel")):
        monkeypatch.setattr(module, name, cached_tensor(getattr(module, name).__wrapped__))
    return str(request.param)


def coloured() -> Router:
    """A router of made-up numbers for 8x8 images in colour, without a network."""
    recipe = Recipe.parse("colour", MEAN, STD)
    g = torch.Generator().manual_seed(2)
    width = 561
    scaler = Scaler(torch.rand(width, generator=g), 1 + torch.rand(width, generator=g))
    weight = torch.randn(2, width, generator=g)
    names, log_prior = ("oslo", "lima"), torch.tensor([0.4, 0.6]).log()
    scale = {"input_mean": MEAN, "input_std": STD}
    return Router(names, recipe, scaler, weight, torch.zeros(2), log_prior, shape=(3, 8, 8), **scale)


def test_colours_are_exported_and_routers_work_afterwards(caches: str, tmp_path: Path) -> None:
    router = coloured()
    images = torch.randint(256, (5, 3, 8, 8), generator=torch.Generator().manual_seed(5), dtype=torch.uint8)
    images //= torch.arange(1, 6, dtype=torch.uint8).view(-1, 1, 1, 1)  # from light to dark
    if caches == "warm":
        with torch.inference_mode():  # as the gateway does
            router.route(images)
    export_onnx(router, tmp_path / "router.onnx")
    after = coloured().route(images)
    assert type(after.probabilities) is torch.Tensor
    session = runtime.InferenceSession((tmp_path / "router.onnx").read_bytes(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"input": router.inputs(images).numpy()})
    assert torch.allclose(torch.from_numpy(found), after.probabilities, atol=1e-4)
    assert found.std(0).max() > 0.01  # the images are told apart


def test_the_routers_own_network_stays_as_it_is(tmp_path: Path) -> None:
    router = make_router(recipe="multiscale")
    assert router.net is not None
    router.net.train()
    with torch.no_grad():
        for value in router.net.parameters():
            value.add_(1)  # the leaves are what counts, and the network may be another's
    before = copy.deepcopy(router.net.state_dict())
    export_onnx(router, tmp_path / "router.onnx")
    assert all(torch.equal(before[leaf], value) for leaf, value in router.net.state_dict().items())
    assert router.net.training


@pytest.mark.parametrize(("features_only", "rule"), [(False, "density"), (True, "density"), (True, "competence")])
def test_an_exported_router_decides_the_same(
    router: Router, images: torch.Tensor, tmp_path: Path, features_only: bool, rule: str
) -> None:
    path = tmp_path / "router.onnx"
    export_onnx(router, path, features_only=features_only, rule=rule)
    session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    given = router.features(images) if features_only else router.inputs(images)
    (probabilities,) = session.run(None, {session.get_inputs()[0].name: given.numpy()})
    decision = router.route(images, rule=rule)
    assert torch.allclose(torch.from_numpy(probabilities), decision.probabilities, atol=1e-4)
    assert torch.equal(torch.from_numpy(probabilities).argmax(1), decision.client)


def test_an_unknown_rule_is_refused(router: Router, tmp_path: Path) -> None:
    with refused("unknown rule 'densty'; did you mean 'density'?"):
        export_onnx(router, tmp_path / "router.onnx", rule="densty")
    with refused("this router knows no client's competence"):
        export_onnx(replace(router, competence=None), tmp_path / "router.onnx", rule="competence")
    assert list(tmp_path.iterdir()) == []


def test_an_exported_router_averages_over_views(images: torch.Tensor, tmp_path: Path) -> None:
    router = make_router(query_views=QueryViews(crops=True, mirrors=True))
    export_onnx(router, tmp_path / "router.onnx", views=4)
    session = runtime.InferenceSession((tmp_path / "router.onnx").read_bytes(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"input": router.inputs(images).numpy()})
    assert torch.allclose(torch.from_numpy(found), router.route(images, views=4).probabilities, atol=1e-4)
    assert not torch.allclose(torch.from_numpy(found), router.route(images).probabilities, atol=1e-2)


def test_features_have_no_views(router: Router, tmp_path: Path) -> None:
    allowed = make_router(query_views=QueryViews(mirrors=True))
    with refused("views=2: features have no views: export without features_only, or leave views out"):
        export_onnx(allowed, tmp_path / "router.onnx", features_only=True, views=2)
    with refused("views=2: this router is older"):
        export_onnx(router, tmp_path / "router.onnx", views=2)
    assert list(tmp_path.iterdir()) == []
