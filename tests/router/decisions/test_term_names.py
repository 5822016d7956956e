"""The terms of an explanation: what every number of a row of features is of."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from feddrm.models import Identity, LeNet, Mlp, Net
from feddrm.router import Recipe, Router
from feddrm.router.decisions.term_names import TermNames
from feddrm.router.features.base import extract
from feddrm.router.solver.problem import Scaler
from feddrm.tables.column_kinds import CategoryColumn, NumberColumn
from feddrm.tables.table_schema import TableSchema
from router.conftest import make_router

SCHEMA = TableSchema(
    (
        CategoryColumn("sex", categories={"0": "female", "1": "male"}, missing=True),
        NumberColumn("age", centre=50, scale=10),
        CategoryColumn("cp", categories={"1": "typical", "2": "atypical", "3": "none"}, missing=True),
        NumberColumn("dose", missing=True),
    )
)
PATIENT = {"sex": "male", "age": 60, "cp": "none", "dose": 1.5}


def blank_router(recipe: str, net: Net | None, shape: tuple[int, ...], **more: object) -> Router:
    leaves = {} if net is None else {leaf: value.detach() for leaf, value in net.named_parameters()}
    width = sum(x.shape[1] for x in extract(Recipe.parse(recipe), net, leaves, torch.zeros(1, *shape)).values())
    return Router(
        ("oslo", "lima"), Recipe.parse(recipe), Scaler(torch.zeros(width), torch.ones(width)), torch.zeros(2, width),
        torch.zeros(2), torch.zeros(2), net=net, leaves=leaves, shape=shape, **more,
    )  # type: ignore[arg-type]  # fmt: skip


def widths(names: TermNames) -> dict[str, int]:
    return dict(zip(names.names, torch.bincount(names.places).tolist(), strict=True))


@pytest.mark.parametrize("changed", [{"sex": None}, {"sex": "female"}, {"age": 20}, {"cp": "typical"}, {"cp": None},
                                     {"dose": 0}, {"dose": None}])  # fmt: skip
def test_a_raw_column_moves_its_own_features_only(changed: dict[str, object]) -> None:
    """With its categories and the indicator of a missing value."""
    names = blank_router("raw", None, (len(SCHEMA.encoded),), schema=SCHEMA).term_names
    before, after = SCHEMA.encode_named([PATIENT, PATIENT | changed])
    (column,) = changed
    assert names.names == SCHEMA.names
    assert {names.names[place] for place in names.places[torch.from_numpy(before != after)].tolist()} == {column}


def test_columns_have_the_values_that_were_given() -> None:
    names = blank_router("raw", None, (len(SCHEMA.encoded),), schema=SCHEMA).term_names
    gaps = {"sex": None, "age": 20, "cp": None, "dose": None}
    rows = torch.from_numpy(SCHEMA.encode_named([PATIENT, gaps, PATIENT | {"sex": "0", "cp": "1", "dose": 1e-3}]))
    assert names.values(rows) == [["male", None, "female"], [60, 20, 60], ["none", None, "typical"], [1.5, None, 0.001]]


def test_a_table_without_a_schema_has_the_columns_of_its_inputs() -> None:
    assert blank_router("raw", None, (2,), columns=("a", "b")).term_names.names == ("a", "b")
    unnamed = blank_router("raw", None, (2,)).term_names
    assert unnamed.names == ("x0", "x1")
    assert unnamed.values(torch.tensor([[0.1, 2.0]])) == [[0.1], [2]]


def test_stages_of_a_network_are_terms_beside_the_columns() -> None:
    net = Mlp(hidden=(5, 4), branch=3).build((2,), 2, 2)
    (first, second) = (name for name, _ in net.trunk.named_children())
    names = blank_router("raw+multiscale+embedding+hidden+client", net, (2,), columns=("a", "b")).term_names
    assert names.names == ("a", "b", f"multiscale {first}", f"multiscale {second}", "embedding", "hidden", "client")
    assert widths(names) == {
        "a": 2, "b": 2, f"multiscale {first}": 5, f"multiscale {second}": 4, "embedding": 4, "hidden": 3, "client": 3
    }  # fmt: skip
    assert names.columns == 2
    only_network = blank_router("embedding", net, (2,), columns=("a", "b")).term_names
    assert (only_network.names, only_network.columns) == (("embedding",), 0)
    assert only_network.values(torch.zeros(1, 2)) == []


def test_the_embedding_of_a_model_that_is_the_identity_has_the_columns() -> None:
    net = Identity().build((2,), 2, 2)
    assert blank_router("embedding", net, (2,), columns=("a", "b")).term_names.names == ("a", "b")
    assert blank_router("embedding", Identity().build((1, 2, 2), 2, 2), (1, 2, 2)).term_names.names == ("embedding",)


def test_an_image_has_stages_and_kinds_of_colours() -> None:
    net = LeNet().build((3, 32, 32), 2, 2)
    names = blank_router("multiscale+colour", net, (3, 32, 32)).term_names
    colours = {"histograms": 5 * 24, "quantiles": 5 * 13, "thumbnail": 5 * 16, "hue and saturation": 48 + 96 + 100,
               "moments": 8 + 8 * 9 // 2 + 8}  # fmt: skip
    found = widths(names)
    assert {name.removeprefix("colour "): n for name, n in found.items() if name.startswith("colour ")} == colours
    assert found["multiscale input"] == 6
    stages = [name for name, stage in net.trunk.named_children() if any(True for _ in stage.parameters())]
    assert [name for name in found if name.startswith("multiscale")] == [f"multiscale {s}" for s in ("input", *stages)]
    assert names.columns == 0
    assert make_router(recipe="raw+multiscale").term_names.names[0] == "raw"


def test_stages_hold_their_own_columns() -> None:
    """A change of the last layer moves the features of its stage, and no others."""
    net = Mlp(hidden=(5, 4), branch=3).build((1, 2, 2), 2, 2)
    router = blank_router("multiscale", net, (1, 2, 2))
    x = torch.rand(3, 1, 2, 2)
    last = next(reversed(dict(net.trunk.named_children())))
    moved = {leaf: v + 0.3 * torch.rand_like(v) if leaf.startswith(f"trunk.{last}.") else v
             for leaf, v in router.leaves.items()}  # fmt: skip
    after = extract(router.recipe, net, moved, x)["multiscale"]
    changed = (router.features(x) != after).any(0)
    names = router.term_names
    assert {names.names[i] for i in names.places[changed].tolist()} == {f"multiscale {last}"}


def test_terms_add_up_the_features_of_their_places() -> None:
    names = TermNames(("a", "b"), torch.tensor([1, 0, 1]))
    assert names.add_up(torch.tensor([[1.0, 2.0, 4.0], [0.0, 1.0, -1.0]])).tolist() == [[2.0, 5.0], [1.0, -1.0]]


def test_a_router_made_by_hand_has_one_term(router: Router) -> None:
    width = router.weight.shape[1]
    alone = Router(("a", "b"), router.recipe, router.scaler, torch.zeros(2, width), torch.zeros(2), torch.zeros(2))
    assert alone.term_names.names == ("raw+multiscale+colour",)
    assert np.array_equal(alone.term_names.places, np.zeros(width))
