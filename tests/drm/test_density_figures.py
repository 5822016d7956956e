"""Tests of the figures of fitted densities, distribution functions and quantiles."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import trapezoid

from feddrm.drm import DensityRatioModel, inference
from feddrm.drm.density_figures import density_figure, distribution_figure, quantile_figure
from populations import three


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


def test_density_panels_have_the_band_of_the_estimate() -> None:
    fit = DensityRatioModel().fit(three())
    axes = density_figure(fit, 0.9).axes[1]
    low, high = inference.density_estimate(fit, 1, axes.lines[0].get_xdata()).interval(0.9)
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == pytest.approx(high.max())
    assert band.min() == max(low.min(), 0)


def test_distribution_panels_have_the_estimate_and_its_band() -> None:
    fit = DensityRatioModel().fit(three())
    figure = distribution_figure(fit, 0.9)
    assert [axes.get_title() for axes in figure.axes] == ["a (n = 80)", "b (n = 50)", "c (n = 120)"]
    own, fitted = figure.axes[1].lines
    assert own.get_ydata()[-1] == 1
    estimate = inference.distribution(fit, fitted.get_xdata())
    np.testing.assert_allclose(fitted.get_ydata(), estimate.value[1])
    low, high = estimate.interval(0.9)
    band = figure.axes[1].collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == pytest.approx(high[1].max())
    assert band.min() == pytest.approx(low[1].min())
    figure.canvas.draw()


def test_quantile_panels_compare_with_the_sample() -> None:
    samples = three()
    fit = DensityRatioModel().fit(samples)
    line, points = quantile_figure(fit).axes[2].lines
    np.testing.assert_array_equal(points.get_xdata(), np.sort(samples["c"]))
    np.testing.assert_array_equal(points.get_ydata(), inference.quantile(fit, (np.arange(120) + 0.5) / 120)[2])
    assert list(line.get_xdata()) == list(line.get_ydata()) == [samples["c"].min(), samples["c"].max()]


def test_bars_of_whole_numbers_hold_equally_many() -> None:
    ages = {"a": np.arange(30, 78), "b": np.arange(28, 70)}
    axes = density_figure(DensityRatioModel("identity").fit(ages)).axes[0]
    (width,) = {bar.get_width() for bar in axes.patches}
    first = axes.patches[0].get_x()
    assert (width, first) == (4, 27.5)
    assert axes.patches[-1].get_x() + width >= 77.5
