"""Pictures that are far rougher or smoother than all training pictures: the measure, the router and its artifact."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from feddrm import Federation
from feddrm.router import Router, RouterSettings, fit_router, load_router, save_router
from feddrm.router.artifact import MANIFEST
from feddrm.router.decisions.decision import AWAY, BROKEN, DOWN, UNLIKE
from feddrm.router.features.roughness import FLAT, RoughnessRange, measurable, roughness, training_roughness
from feddrm.router.fit.calibration import STRANGER
from feddrm.router.membership import join_client, leave
from feddrm.rules.explanation_text import ROUGHER, SMOOTHER

SIDE = 8
QUICK = RouterSettings(features="colour", heads=False)


def test_roughness_of_patterns_in_closed_form() -> None:
    even = torch.arange(SIDE) % 2 * 2.0 - 1
    half = (torch.arange(SIDE) >= SIDE // 2) * 2.0 - 1
    slope = torch.arange(SIDE) * 1.0
    patterns = torch.stack(
        [even[:, None] * even, even.expand(SIDE, SIDE), half.expand(SIDE, SIDE), slope[:, None] + 0 * slope]
    )
    # Of 2 * 8 * 7 pairs, all differ by 2, half do, one in fourteen does, half do by 1; the last variance is 63 / 12.
    expected = torch.tensor([4.0, 2.0, 4 / 14, 0.5 / (63 / 12)])
    torch.testing.assert_close(roughness(patterns[:, None]), expected)


def test_brightness_contrast_rotation_and_layout_do_not_matter_and_the_channels_count_together() -> None:
    x = torch.rand(5, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    plain = roughness(x)
    for same in (0.01 * x + 3, x.rot90(1, (2, 3)), x.flip(3), x.to(memory_format=torch.channels_last), x.double()):
        torch.testing.assert_close(roughness(same), plain, rtol=1e-3, atol=0)
    flat = torch.cat([x, torch.full((5, 1, SIDE, SIDE), 0.3)], dim=1)
    torch.testing.assert_close(roughness(flat), plain)


def test_independent_pixels_are_near_two_whatever_their_values() -> None:
    g = torch.Generator().manual_seed(1)
    for values in (torch.rand(50, 1, 32, 32, generator=g), (torch.rand(50, 1, 32, 32, generator=g) < 0.1).float()):
        assert float(roughness(values).mean()) == pytest.approx(2 * 1024 / 1023, rel=0.02)


def test_a_blank_page_is_smooth_and_what_is_no_number_is_not_within_any_range() -> None:
    pages = torch.stack([torch.full((3, SIDE, SIDE), value) for value in (0.0, 0.3, -7.1, torch.nan, torch.inf)])
    measured = roughness(pages)
    assert measured[:3].tolist() == [FLAT] * 3
    assert RoughnessRange(0.1, 1.0).sides(measured).tolist() == [-1, -1, -1, 1, 1]
    assert RoughnessRange(0.1, 1.0).sides(torch.tensor([0.1, 1.0, 0.09, 1.1])).tolist() == [0, 0, -1, 1]
    assert RoughnessRange(0.3, 1.0).widened(1.5) == RoughnessRange(0.3 / 1.5, 1.5)
    assert [measurable(shape) for shape in ((1, 1, 2), (3, 2, 1), (1, 1, 1), (9,))] == [True, True, False, False]
    assert roughness(torch.tensor([[[[0.0, 1.0]]]])).tolist() == [4.0]
    assert roughness(pages[:0]).shape == (0,)


def drawn(seed: int, shade: int, count: int = 80) -> tuple[Tensor, Tensor]:
    """Smooth pictures, darker or lighter: slopes in random directions with a little noise."""
    g = torch.Generator().manual_seed(seed)
    directions = torch.nn.functional.normalize(torch.randn(count, 2, generator=g))[:, :, None, None]
    steps = torch.linspace(-1, 1, SIDE)
    slopes = directions[:, 0] * steps[:, None] + directions[:, 1] * steps
    slopes = slopes + 0.1 * torch.randn(count, SIDE, SIDE, generator=g)
    pixels = shade + 40 * slopes / slopes.abs().amax((1, 2), keepdim=True)
    return pixels.to(torch.uint8)[:, None].expand(count, 3, SIDE, SIDE).contiguous(), torch.arange(count) % 2


@pytest.fixture(scope="module")
def pictures() -> Federation:
    return Federation.from_arrays(
        {"oslo": drawn(0, 110), "lima": drawn(1, 140)}, test={"oslo": drawn(2, 110), "lima": drawn(3, 140)}
    )


@pytest.fixture(scope="module")
def fitted(pictures: Federation) -> Router:
    return fit_router(None, {}, pictures, QUICK).router


@pytest.fixture(scope="module")
def shuffled() -> Tensor:
    """Pictures whose pixels are shuffled, the same in all channels: every value is usual."""
    x, g = drawn(4, 125)[0], torch.Generator().manual_seed(5)
    order = torch.rand(len(x), 1, SIDE * SIDE, generator=g).argsort(2).expand(-1, 3, -1)
    return x.flatten(2).gather(2, order).view_as(x)


def test_the_range_is_that_of_all_training_pictures(pictures: Federation, fitted: Router) -> None:
    measured = torch.cat([training_roughness(client) for client in pictures.clients]).double()
    assert len(measured) == 160
    known = fitted.calibration.roughness
    assert known is not None
    assert known.most == pytest.approx(STRANGER * float(measured.max()), rel=1e-12)
    assert known.least == pytest.approx(float(measured.min()) / STRANGER, rel=1e-12)


def test_shuffled_pixels_and_blank_pages_are_refused_and_test_pictures_are_not(
    pictures: Federation, fitted: Router, shuffled: Tensor
) -> None:
    tested = torch.cat([client.test.x for client in pictures.clients])
    assert UNLIKE not in fitted.route(tested).reason
    assert UNLIKE not in fitted.route(tested.rot90(1, (2, 3))).reason
    decision = fitted.route(shuffled)
    assert UNLIKE not in fitted.route_features(fitted.features(shuffled)).reason, "their features do not tell"
    assert set(decision.reason) == {UNLIKE}
    assert decision.abstain.all()
    pages = torch.full((2, 3, SIDE, SIDE), 125, dtype=torch.uint8)
    assert fitted.route(pages).reason == (UNLIKE, UNLIKE)
    explained = [fitted.explain(x[:1]) for x in (shuffled, pages, tested)]
    sentences = [explanation.sentences()[0] for explanation in explained]
    assert sentences[:2] == [f"{UNLIKE}: {side} (100%)" for side in (ROUGHER, SMOOTHER)]
    assert UNLIKE not in sentences[2]
    (first,) = explained[0].as_dicts()
    assert first is not None
    assert first["unlike"] == [{"name": ROUGHER, "share": 1.0}]
    assert fitted.explain(torch.cat([tested[:1], shuffled[:1]]))[1:].sentences() == sentences[:1]


def test_roughness_comes_before_reasons_that_rest_on_probabilities_and_after_the_others(
    fitted: Router, shuffled: Tensor
) -> None:
    x = fitted.inputs(shuffled[:2])
    assert fitted.route(x, available=[], coverage=0.5).reason == (DOWN, DOWN)
    assert set(fitted.route(x, available=["oslo"], max_away=0, coverage=0.5).reason) == {UNLIKE}
    x[0, 0, 0, 0] = torch.nan
    assert fitted.route(x).reason == (BROKEN, UNLIKE)
    without = dataclasses.replace(fitted, calibration=dataclasses.replace(fitted.calibration, roughness=None))
    assert AWAY in without.route(x, available=["oslo"], max_away=0).reason


def test_the_artifact_has_the_range_and_an_older_one_refuses_as_before(
    fitted: Router, shuffled: Tensor, tmp_path: Path
) -> None:
    save_router(tmp_path / "new", fitted)
    assert load_router(tmp_path / "new").calibration.roughness == fitted.calibration.roughness
    manifest = json.loads((tmp_path / "new" / MANIFEST).read_text())
    assert "roughness" not in manifest["calibration"], "older versions refuse what they do not know there"

    older = dataclasses.replace(fitted, calibration=dataclasses.replace(fitted.calibration, roughness=None))
    save_router(tmp_path / "old", older)
    assert "roughness" not in json.loads((tmp_path / "old" / MANIFEST).read_text())
    opened = load_router(tmp_path / "old")
    assert opened.calibration.roughness is None
    assert UNLIKE not in opened.route(shuffled).reason


def test_a_client_that_joins_widens_the_range_and_one_that_leaves_does_not_change_it(
    pictures: Federation, fitted: Router, shuffled: Tensor
) -> None:
    everyone = {client.name: (client.train.x, client.train.y) for client in pictures.clients}
    newcomer = {"bonn": (shuffled, torch.arange(len(shuffled)) % 2)}
    joined = join_client(fitted, Federation.from_arrays(everyone | newcomer, test=everyone | newcomer), 0.1, QUICK)
    assert UNLIKE not in joined.route(shuffled).reason, "the new client has such pictures"
    assert leave(joined, "bonn").calibration.roughness == joined.calibration.roughness
