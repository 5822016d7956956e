"""Features and recipes: their columns, the leaves they need, and what they refuse."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from feddrm.models import LeNet, Mlp, Net, ResNet18
from feddrm.router.features.base import Feature, Recipe, extract, possible_features
from refusal import refused


def leaves(net: Net) -> dict[str, torch.Tensor]:
    return {leaf: value.detach() for leaf, value in net.named_parameters()}


def test_resnet_gives_2054_numbers_with_the_embedding_among_them() -> None:
    net = ResNet18().build((3, 32, 32), 10, 8)
    x = torch.randn(2, 3, 32, 32)
    found = extract(Recipe.parse("multiscale+embedding"), net, leaves(net), x)
    assert found["multiscale"].shape == (2, 2054)
    means = found["multiscale"][:, -1024:-512]
    assert torch.allclose(means, found["embedding"], atol=1e-5)


def test_multiscale_is_mean_and_deviation_per_channel() -> None:
    net = LeNet().build((3, 32, 32), 10)
    x = torch.randn(3, 3, 32, 32)
    found = extract(Recipe.parse("multiscale"), net, leaves(net), x)["multiscale"]
    with torch.no_grad():
        stages = net(x).stages
    assert torch.allclose(found[:, :3], x.mean((2, 3)), atol=1e-6)
    assert torch.allclose(found[:, 3:6], x.std((2, 3), correction=0), atol=1e-6)
    assert torch.allclose(found[:, 6:38], stages["stage1"].mean((2, 3)), atol=1e-6)
    assert torch.allclose(found[:, -256:], stages["embedding"], atol=1e-6)


class Tokens(torch.nn.Module):
    """One token of three channels per column of a table, as a transformer reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(6, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[..., None] * self.scale


def test_the_channels_of_a_transformers_stage_are_its_last_dimension() -> None:
    stages = OrderedDict(tokens=Tokens(), embedding=torch.nn.Flatten())
    net = Net(torch.nn.Sequential(stages), (torch.nn.Identity(), torch.nn.Linear(18, 2)))
    x = torch.randn(4, 6)
    found = extract(Recipe.parse("multiscale"), net, leaves(net), x)["multiscale"]
    tokens = net(x).stages["tokens"].detach()
    assert torch.allclose(found, torch.cat([x, tokens.mean(1), tokens.std(1, correction=0)], 1), atol=1e-6)


BOTH_INSIDE = threading.Barrier(2)


class Meeting(torch.nn.Identity):
    """A layer in which two threads wait for each other, so that both are inside the network at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        BOTH_INSIDE.wait(60)
        return x


def test_two_threads_compute_with_their_own_leaves() -> None:
    stages = OrderedDict(meeting=Meeting(), embedding=torch.nn.Linear(6, 3))
    net = Net(torch.nn.Sequential(stages), (torch.nn.Identity(), torch.nn.Linear(3, 2)))
    x, recipe = torch.randn(4, 6), Recipe.parse("embedding")
    both = [{leaf: torch.full_like(value, number) for leaf, value in leaves(net).items()} for number in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda own: extract(recipe, net, own, x)["embedding"], both))
    for own, rows in zip(both, found, strict=True):
        assert torch.allclose(rows, x @ own["trunk.embedding.weight"].T + own["trunk.embedding.bias"])


def test_tables_have_their_columns_and_hidden_layers() -> None:
    net = Mlp(hidden=(8, 4), branch=5).build((6,), 2, 3)
    found = extract(Recipe.parse("raw+multiscale+hidden+client"), net, leaves(net), torch.randn(7, 6))
    assert {name: rows.shape[1] for name, rows in found.items()} == {
        "raw": 6,
        "multiscale": 18,
        "hidden": 5,
        "client": 5,
    }
    with refused("'colour' cannot be used", "no images", "multiscale"):
        extract(Recipe.parse("colour"), net, leaves(net), torch.randn(7, 6))


def test_features_do_not_depend_on_the_batch_size() -> None:
    net = LeNet().build((3, 32, 32), 10)
    x = torch.rand(7, 3, 32, 32) * 2 - 1
    recipe = Recipe.parse("multiscale+colour")
    whole, parts = extract(recipe, net, leaves(net), x), extract(recipe, net, leaves(net), x, batch_size=2)
    for name in whole:
        assert torch.allclose(whole[name], parts[name], atol=1e-5)


def test_given_leaves_are_used_and_the_network_stays_as_it_is() -> None:
    net = Mlp(hidden=(8,), branch=4).build((5,), 2, None, seed=1)
    other = Mlp(hidden=(8,), branch=4).build((5,), 2, None, seed=2)
    x = torch.randn(3, 5)
    recipe = Recipe.parse("embedding")
    assert torch.equal(
        extract(recipe, net, leaves(other), x)["embedding"], extract(recipe, other, leaves(other), x)["embedding"]
    )
    assert not torch.equal(
        extract(recipe, net, leaves(net), x)["embedding"], extract(recipe, net, leaves(other), x)["embedding"]
    )


def test_colour_undoes_the_networks_scale() -> None:
    pixels = torch.rand(4, 3, 8, 8)
    plain = extract(Recipe.parse("colour", (0.0,), (1.0,)), None, {}, pixels)["colour"]
    scaled = extract(Recipe.parse("colour", (0.2, 0.4, 0.6), (0.5, 1.0, 2.0)), None, {}, _scaled(pixels))["colour"]
    assert (plain - scaled).abs().max() < 0.05  # a pixel may round to the next level


def _scaled(pixels: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.2, 0.4, 0.6), (0.5, 1.0, 2.0)))
    return (pixels - mean) / std


def test_recipes_survive_a_manifest() -> None:
    recipe = Recipe.parse("multiscale+colour", (0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    assert Recipe.of(recipe.as_list()) == recipe
    assert recipe.name == "multiscale+colour"


@pytest.mark.parametrize(
    ("text", "parts"), [("multi", ["unknown feature 'multi'", "multiscale"]), ("", ["unknown feature ''"])]
)
def test_unknown_features_are_refused(text: str, parts: list[str]) -> None:
    with refused(*parts):
        Recipe.parse(text)


def test_possible_features_depend_on_the_shared_leaves() -> None:
    net = Mlp(hidden=(8,), branch=4).build((1, 8, 8), 3, 2)
    everything = leaves(net)
    assert set(possible_features((1, 8, 8), net, everything)) == set(Feature.family) - {"basis"}
    trunk_only = {leaf: value for leaf, value in everything.items() if leaf.startswith("trunk")}
    assert set(possible_features((1, 8, 8), net, trunk_only)) == {"raw", "colour", "multiscale", "embedding"}
    assert set(possible_features((1, 8, 8), None, {})) == {"raw", "colour"}
    assert "raw" not in possible_features((3, 32, 32), None, {})
