"""Tests of the figures of fitted densities."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import trapezoid

from feddrm.drm import DensityRatioModel
from feddrm.drm.density_figures import density_figure, weighted_density


def test_the_fitted_density_is_one_and_near_the_truth() -> None:
    rng = np.random.default_rng(0)
    fit = DensityRatioModel("gamma").fit([rng.gamma(2, 1, 2000), rng.gamma(3, 1, 3000)])
    at = np.linspace(0, 25, 4001)
    for i, shape in enumerate((2, 3)):
        density = weighted_density(fit.values[:, 0], fit.weights[:, i], at, positive=True)
        assert trapezoid(density, at) == pytest.approx(1, abs=0.01)
        assert density[0] == 0
        truth = at ** (shape - 1) * np.exp(-at) / (1, 1, 2)[shape - 1]
        assert trapezoid(np.abs(density - truth), at) < 0.1
    plain = weighted_density(fit.values[:, 0], fit.weights[:, 0], np.linspace(-5, 25, 4001))
    assert trapezoid(plain, np.linspace(-5, 25, 4001)) == pytest.approx(1, abs=0.01)


def test_density_panels_are_columns_by_populations() -> None:
    rng = np.random.default_rng(1)
    samples = {name: rng.normal(i / 3, 1, (60, 2)) for i, name in enumerate(("$a_", "b", "c" * 50))}
    figure = density_figure(DensityRatioModel("identity").fit(samples, ["first", "second"]))
    assert len(figure.axes) == 6
    assert figure.axes[0].get_title() == "$a_ (n = 60)"
    assert [axes.get_ylabel() for axes in figure.axes[::3]] == ["first", "second"]
    curve = figure.axes[1].lines[0].get_xydata()
    assert trapezoid(curve[:, 1], curve[:, 0]) == pytest.approx(1, abs=0.1)
    figure.canvas.draw()
