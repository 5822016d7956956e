"""Tests of the fit over sites: it equals the pooled one, and sites send sums alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from feddrm.comparison import PopulationSite, fit_sites
from feddrm.drm import DensityRatioModel, inference
from feddrm.drm.inference import Testing
from feddrm.router.solver.problem import Scaler
from populations import three
from refusal import refused


@pytest.mark.parametrize(
    ("basis", "shift"), [("normal", 0.0), ("normal", 40.0), ("gamma", 6.0), ("identity", 0.0), ("polynomial(3)", 20.0)]
)
def test_the_fit_over_sites_is_the_pooled_fit(basis: str, shift: float) -> None:
    samples = {name: x + shift for name, x in three().items()}
    found = fit_sites([PopulationSite(name, x, basis) for name, x in samples.items()], basis)
    fit = DensityRatioModel(basis).fit(samples)
    tilts = inference.tilts(fit)
    scale = np.abs(tilts.value).max()
    np.testing.assert_allclose(found.tilts.value, tilts.value, atol=1e-8 * scale)
    np.testing.assert_allclose(found.tilts.error, tilts.error, atol=1e-7 * scale)
    assert found.log_likelihood == pytest.approx(fit.log_likelihood, abs=1e-8)
    assert found.terms == fit.terms
    test = inference.homogeneity(fit, Testing(correction="none"))
    assert found.homogeneity.statistic == pytest.approx(test.statistic, abs=1e-7)
    assert found.homogeneity.degrees == test.degrees


def test_no_message_grows_with_the_sample() -> None:
    sizes = []
    for n in (50, 500):
        site = PopulationSite("a", np.random.default_rng(0).normal(size=n), "normal")
        scaler, point = Scaler.of(site.sums()), torch.zeros(3, 3, dtype=torch.float64)
        messages = (
            site.sums(),
            site.moments(scaler),
            site.gradient(scaler, 0, point),
            site.curvature(scaler, 0, point),
        )
        sizes.append([sum(np.asarray(value).size for value in message.values()) for message in messages])
    assert sizes[0] == sizes[1]
    assert max(sizes[0]) <= 36 + 36 + 6


def test_what_cannot_be_fitted_over_sites_is_refused() -> None:
    good = np.random.default_rng(0).normal(size=30)
    with refused("basis 'auto' cannot be agreed on over sites"):
        fit_sites([], "auto")
    with refused("unknown basis 'norml'"):
        fit_sites([], "norml")
    with refused("needs two populations, but there is 1"):
        fit_sites([PopulationSite("a", good, "normal")], "normal")
    with refused("site 'b' has 2 observations for the 3 parameters"):
        fit_sites([PopulationSite("a", good, "normal"), PopulationSite("b", [1.0, 2.0], "normal")], "normal")
    with refused("dependent on these samples"):
        constant = np.ones(9)
        fit_sites([PopulationSite(name, constant, "normal") for name in "ab"], "normal")
    with refused("no finite optimum"):
        far = [PopulationSite("a", good, "identity"), PopulationSite("b", good + 100, "identity")]
        fit_sites(far, "identity")
