"""Colour statistics: hue, levels, smooth histograms, and the shifts they detect."""

from __future__ import annotations

import colorsys

import torch
from hypothesis import given
from hypothesis import strategies as st

from feddrm.router.features.colour import LEVELS, _counts, _levels, colour_parts, hue_saturation_value
from feddrm.router.solver.client_statistics import Sample, client_scores
from feddrm.router.solver.problem import Problem, add
from feddrm.router.solver.solve import moments_of, scaler_of, solve


def colour_statistics(pixels: torch.Tensor) -> torch.Tensor:
    return torch.cat(list(colour_parts(pixels).values()), dim=1)


def smooth_images(count: int, seed: int) -> torch.Tensor:
    """Made-up photographs: smooth colour fields of all brightnesses, as 8-bit values in floats."""
    g = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 4, 4, generator=g)
    return torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bilinear").mul(255).round()


@given(*(st.floats(0, 1, width=32) for _ in range(3)))
def test_hue_saturation_value_are_the_standard_librarys(red: float, green: float, blue: float) -> None:
    pixel = torch.tensor([red, green, blue]).view(1, 3, 1, 1)
    h, s, v, _ = (float(t) for t in hue_saturation_value(pixel))
    h0, s0, v0 = colorsys.rgb_to_hsv(red, green, blue)
    assert abs(v - v0) < 1e-6
    if v0 - min(red, green, blue) > 1e-3:
        assert abs(s - s0) < 1e-4
        assert min(abs(h - h0), 1 - abs(h - h0)) < 1e-3


def test_sizes() -> None:
    assert colour_statistics(torch.rand(3, 3, 32, 32)).shape == (3, 561)
    assert colour_statistics(torch.rand(3, 1, 8, 8)).shape == (3, 56)  # grey: no hue, no saturation


def test_every_number_is_finite_on_flat_images() -> None:
    for value in (0.0, 1.0):
        assert colour_statistics(torch.full((2, 3, 8, 8), value)).isfinite().all()


def test_counts_do_not_depend_on_the_order_of_pixels() -> None:
    x = torch.rand(2, 3, 16, 16)
    shuffled = x.flatten(2)[:, :, torch.randperm(256, generator=torch.Generator().manual_seed(0))].view_as(x)
    assert torch.equal(_counts(_levels(x, LEVELS), LEVELS), _counts(_levels(shuffled, LEVELS), LEVELS))


def gamma(pixels: torch.Tensor, exponent: float) -> torch.Tensor:
    """The shift as benchmarks make it: on whole numbers, floored to whole numbers."""
    return (255.999 * (pixels / 255) ** exponent).floor().clamp(0, 255)


def separable(some: torch.Tensor, others: torch.Tensor) -> float:
    """Accuracy, on samples held out, of telling the two apart."""
    half = len(some) // 2
    scaler = scaler_of([some[:half], others[:half]])

    def samples(a: torch.Tensor, b: torch.Tensor) -> list[Sample]:
        return [Sample(scaler(x), torch.full((len(x),), i)) for i, x in enumerate((a, b))]

    train = samples(some[:half], others[:half])
    fit = solve(Problem(2, some.shape[1], 1e-2), train, moments_of([s.x for s in train]), rounds=30)
    total = add([client_scores(s, fit.point) for s in samples(some[half:], others[half:])])
    return float(total["correct"] / total["count"])


def test_gaps_between_values_do_not_reveal_the_shift() -> None:
    """Rounding after a shift leaves values that never occur; which ones tells the shift, and no camera does that.

    Two sets of one gamma and one distribution, one with the gaps, one whose values were spread
    before the shift: the list of values present tells them apart, our statistics hardly do.
    """
    images, others = smooth_images(400, 0), smooth_images(400, 1)
    inside = (others > 0) & (others < 255)
    noise = torch.rand(400, 1, 32, 32, generator=torch.Generator().manual_seed(2)) - 0.5
    gaps, filled = gamma(images, 0.6), gamma(others + torch.where(inside, noise, 0.0), 0.6)

    def present(x: torch.Tensor) -> torch.Tensor:
        return (_counts(x.long(), LEVELS) > 0).flatten(1).float()

    assert separable(present(gaps), present(filled)) > 0.95
    assert separable(colour_statistics(gaps / 255), colour_statistics(filled / 255)) < 0.65


def test_a_step_of_one_level_hardly_moves_it_and_a_shift_of_colour_does() -> None:
    images = smooth_images(200, 3)
    g = torch.Generator().manual_seed(4)
    plain = colour_statistics(images / 255)
    scale = plain.std(0).clamp(min=1e-3)

    def distance(x: torch.Tensor) -> float:
        return float(((colour_statistics(x.clamp(0, 255) / 255) - plain) / scale).square().mean().sqrt())

    jittered = distance(images + torch.randint(-1, 2, (200, 1, 32, 32), generator=g))
    assert jittered < 0.1 * distance(gamma(images, 0.6))
