"""Query views: a fixed list of crops and mirror images, their mean, and counts that the data do not allow."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from feddrm.data import QueryViews, load
from feddrm.data.query_views import MOVES
from refusal import refused

PHOTOGRAPHS = QueryViews(crops=True, mirrors=True)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_the_first_views_are_the_sample_itself_and_its_mirror_image(x: Tensor) -> None:
    itself, mirrored, *crops = PHOTOGRAPHS.take(4)(x)
    assert itself is x
    assert torch.equal(mirrored, x.flip(3))
    assert len(crops) == 2


def test_fewer_views_are_the_first_of_more(x: Tensor) -> None:
    most = list(PHOTOGRAPHS.take(PHOTOGRAPHS.most)(x))
    for count in range(1, PHOTOGRAPHS.most + 1):
        assert all(torch.equal(a, b) for a, b in zip(PHOTOGRAPHS.take(count)(x), most[:count], strict=True))


@pytest.mark.parametrize("views", [PHOTOGRAPHS, QueryViews(crops=True), QueryViews(mirrors=True)])
def test_no_view_comes_twice_and_mirror_images_are_all_there(views: QueryViews, x: Tensor) -> None:
    made = list(views.take(views.most)(x))
    assert len(made) == views.most == (1 + len(MOVES) * views.crops) * (1 + views.mirrors)
    for i, view in enumerate(made):
        assert view.shape == x.shape
        assert not any(torch.equal(view, other) for other in made[:i])
        assert any(torch.equal(view.flip(3), other) for other in made) == views.mirrors


@pytest.mark.parametrize(("side", "step"), [(8, 1), (32, 1), (96, 3)])
def test_a_crop_is_moved_by_whole_pixels_and_reflected_at_the_border(side: int, step: int) -> None:
    """No pixel is mixed with another: colours tell clients apart."""
    x = torch.arange(2 * side * side, dtype=torch.float32).view(2, 1, side, side)
    up_left, down_right = list(QueryViews(crops=True).take(3)(x))[1:]
    assert torch.equal(down_right[:, :, :-step, :-step], x[:, :, step:, step:])
    assert torch.equal(up_left[:, :, step:, step:], x[:, :, :-step, :-step])
    assert torch.equal(down_right[:, :, :-step, -1], x[:, :, step:, -1 - step])
    assert torch.equal(up_left[:, :, step:, 0], x[:, :, :-step, step])


def test_a_view_does_not_depend_on_the_batch(x: Tensor) -> None:
    whole = list(PHOTOGRAPHS.take(8)(x))
    for i in range(len(x)):
        assert all(torch.equal(a[i : i + 1], b) for a, b in zip(whole, PHOTOGRAPHS.take(8)(x[i : i + 1]), strict=True))


def test_the_mean_of_features_and_logits(x: Tensor) -> None:
    def compute(view: Tensor) -> dict[str, Tensor]:
        return {"squares": view.square().flatten(1), "left": view[:, 0, :, 0]}

    found = PHOTOGRAPHS.take(2).mean(x, compute)
    torch.testing.assert_close(found["left"], (x[:, 0, :, 0] + x[:, 0, :, -1]) / 2)
    torch.testing.assert_close(found["squares"], (x.square() + x.flip(3).square()).flatten(1) / 2)


def test_one_view_computes_once_and_changes_no_bit(x: Tensor) -> None:
    seen: list[Tensor] = []

    def compute(view: Tensor) -> dict[str, Tensor]:
        seen.append(view)
        return {"x": view}

    assert QueryViews().mean(x, compute)["x"] is x
    assert len(seen) == 1


def test_what_the_data_do_not_allow() -> None:
    with refused("views=0: give at least 1"):
        PHOTOGRAPHS.take(0)
    with refused("views=99: these data allow 18 views: give 1 to 18"):
        PHOTOGRAPHS.take(99)
    with refused("views=2: these data allow no crops and no mirror images of a sample: leave views out"):
        load("digits", clients=3).query_views.take(2)
