"""Tests of bases written as formulas. They need the package formulaic."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from feddrm.drm import DensityRatioModel
from populations import three
from refusal import refused


def test_a_formula_equals_the_named_basis() -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("formulaic")
    samples = {name: np.exp(x) for name, x in three().items()}
    named = DensityRatioModel("gamma").fit(samples)
    fit = DensityRatioModel("~ x + log(x)").fit(samples)
    assert fit.terms == ("x", "log(x)")
    np.testing.assert_allclose(fit.xi, named.xi, atol=1e-10)
    np.testing.assert_allclose(fit.log_ratio([0.5, 2.0]), named.log_ratio([0.5, 2.0]), atol=1e-10)
    labels = np.repeat(list(samples), [len(x) for x in samples.values()])
    frame = pandas.DataFrame({"site": labels, "note": "text", "x": np.concatenate(list(samples.values()))})
    by_table = DensityRatioModel("~ x + log(x)").fit_table(frame, "site")
    np.testing.assert_allclose(by_table.xi, named.xi, atol=1e-10)


def test_a_transformation_is_that_of_the_pooled_sample() -> None:
    pytest.importorskip("formulaic")
    samples = three()
    fit = DensityRatioModel("~ poly(x, 2)").fit(samples)
    plain = DensityRatioModel("normal").fit(samples)
    assert fit.log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-9)
    np.testing.assert_allclose(fit.log_ratio([0.3]), plain.log_ratio([0.3]), atol=1e-8)


@pytest.mark.parametrize(
    ("formula", "says"),
    [
        ("~ y", "names column 'y', but the columns are x: correct the formula"),
        ("~ x + (", "the formula '~ x + (' cannot be computed"),
        ("~ log(x)", "population 'a': the basis is not finite"),
        ("~ 1", "the basis has no functions"),
    ],
)
def test_bad_formulas_are_refused_in_one_line(formula: str, says: str) -> None:
    pytest.importorskip("formulaic")
    with refused(says):
        DensityRatioModel(formula).fit(three())


def test_without_formulaic_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "formulaic", None)
    with refused("pip install 'feddrm[formula]'"):
        DensityRatioModel("~ x").fit(three())
