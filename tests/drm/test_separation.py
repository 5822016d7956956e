"""Tests of the decision whether a fit has a finite optimum."""

from __future__ import annotations

import numpy as np
import pytest

from feddrm.drm import DensityRatioModel
from feddrm.drm.separation import separated_pairs
from populations import score
from refusal import refused


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ({"a": [0.0, 1, 2], "b": [5.0, 6, 7]}, "'a' and 'b'"),  # complete
        ({"a": [0.0, 1, 2], "b": [2.0, 3, 4]}, "'a' and 'b'"),  # touching in one point
        ({"a": [0.0, 1, 2, 3], "b": [0.5, 1.5, 2.5], "far": [9.0, 9.5, 10]}, "'a' and 'far'"),  # one of three
        ({"a": [0.0, 1, 2], "b": [5.0, 6, 7], "c": [9.0, 9.5, 10]}, "all populations"),
    ],
)
def test_separated_data_are_refused_with_the_remedy(samples: dict[str, list[float]], says: str) -> None:
    with refused(says, "no finite optimum", "--ridge 1.0"):
        DensityRatioModel("identity").fit(samples)
    fit = DensityRatioModel("identity", ridge=1.0).fit(samples)
    assert np.isfinite(fit.xi).all()
    np.testing.assert_allclose(fit.weights.sum(0), 1, atol=1e-12)


def test_separation_is_detected_in_data_too_large_for_the_linear_programme(monkeypatch: pytest.MonkeyPatch) -> None:
    """The direction that Newton's method follows shows it within 25 steps, with the same message."""
    monkeypatch.setattr("feddrm.drm.separation.MOST_CELLS", 1)
    rng = np.random.default_rng(0)
    samples = {name: rng.normal(size=(300, 3)) for name in ("a", "b", "far", "c")}
    samples["far"] = samples["far"] + [20, 0, 0]
    with refused("'a' and 'far' (and 2 more pairs)", "no finite optimum", "--ridge 1.0"):
        DensityRatioModel("identity").fit(samples)
    with refused("separates 'a' and 'b' perfectly", "no finite optimum"):
        DensityRatioModel("identity").fit({"a": [0.0, 1, 2], "b": [2.0, 3, 4]})  # touching


@pytest.mark.parametrize("most", [1, 20_000_000])
def test_a_direction_that_harms_one_observation_separates_nothing(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddrm.drm.separation.MOST_CELLS", most)
    z = np.array([-2.0, -1, 0.01, 1, 2, -0.01])
    design, owner = np.column_stack([np.ones(6), z]), np.repeat([0, 1], 3)
    assert separated_pairs(design, owner, np.array([[0.0, 0], [0, 1]])) == []
    z[2], z[5] = -0.01, 0.01
    assert separated_pairs(np.column_stack([np.ones(6), z]), owner, np.array([[0.0, 0], [0, 1]])) == [(0, 1)]


def test_the_linear_programme_needs_no_direction_to_follow() -> None:
    z = np.array([0.0, 1, 2, 0.5, 1.5, 2.5, 9, 10, 11])
    design, owner = np.column_stack([np.ones(9), z]), np.repeat([0, 1, 2], 3)
    assert separated_pairs(design, owner, np.zeros((3, 2))) == [(0, 2), (1, 2)]
    design[6, 1] = 1.0  # the third is among the others
    assert separated_pairs(design, owner, np.zeros((3, 2))) == []


def test_a_large_overlap_is_not_taken_for_separation() -> None:
    """One exchanged observation is enough for a finite optimum, however steep."""
    a, b = np.append(np.arange(200.0), 203), np.append(np.arange(201.0, 400), 199.5)
    fit = DensityRatioModel("identity").fit([a, b])
    assert score(fit) < 1e-8
    assert fit.log_ratio([300.0])[0, 1] > 20
