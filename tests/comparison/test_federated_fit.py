"""Tests of the fit over clients: it equals the pooled one, and its questions are those of a router's fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from feddrm.comparison import FederatedFit, fit_federation
from feddrm.comparison.federated_fit import basis_feature
from feddrm.data import Federation
from feddrm.drm import DensityRatioModel, inference
from feddrm.drm.basis import Floats
from feddrm.drm.inference import Testing
from feddrm.router.fit.cohort import Facts
from feddrm.router.solver.client_statistics import Sample, client_gradient
from feddrm.router.solver.hessian import client_score_scatter
from feddrm.tables.column_kinds import NumberColumn
from feddrm.tables.table_schema import TableSchema
from populations import three
from refusal import refused


def single(x: Floats) -> Floats:
    """The values that a federation keeps of a sample: in single precision."""
    return x.astype(np.float32).astype(np.float64)


def fitted(samples: Mapping[str, Floats], basis: str) -> FederatedFit:
    pairs = {name: (x[:, None], np.arange(len(x)) % 2) for name, x in samples.items()}
    test = {name: (x[:2], y[:2]) for name, (x, y) in pairs.items()}
    return fit_federation(Federation.from_arrays(pairs, test=test, columns=["x"]), basis)


@pytest.mark.parametrize(
    ("basis", "shift"), [("normal", 0.0), ("normal", 40.0), ("gamma", 6.0), ("identity", 0.0), ("polynomial(3)", 20.0)]
)
def test_the_fit_over_clients_is_the_pooled_fit(basis: str, shift: float) -> None:
    samples = {name: x + shift for name, x in three().items()}
    found = fitted(samples, basis)
    fit = DensityRatioModel(basis).fit({name: single(x) for name, x in samples.items()})
    tilts = inference.tilts(fit)
    scale = np.abs(tilts.value).max()
    np.testing.assert_allclose(found.tilts.value, tilts.value, atol=1e-8 * scale)
    np.testing.assert_allclose(found.tilts.error, tilts.error, atol=1e-7 * scale)
    assert found.log_likelihood == pytest.approx(fit.log_likelihood, abs=1e-8)
    assert found.terms == fit.terms
    test = inference.homogeneity(fit, Testing(correction="none"))
    assert found.homogeneity.statistic == pytest.approx(test.statistic, abs=1e-7)
    assert found.homogeneity.degrees == test.degrees
    assert found.steps <= 12


def test_plain_values_name_populations_and_terms() -> None:
    found = fitted(three(), "normal").as_dict()
    assert found["populations"] == {"a": 80, "b": 50, "c": 120}
    assert found["terms"] == ["intercept", "x", "x^2"]
    assert found["tilts"]["a"] == [0, 0, 0]
    assert set(found["homogeneity"]) == {"statistic", "degrees", "p_value"}


def test_the_scatter_of_scores_is_the_covariance_of_single_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    x, point = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((7, 2), (3, 3)))
    sample = Sample(x, torch.ones(7, dtype=torch.int64))
    scores = [client_gradient(sample.rows(torch.tensor([i])), point)["gradient"][1:].flatten() for i in range(7)]
    expected = 7 * torch.cov(torch.stack(scores).T)
    torch.testing.assert_close(client_score_scatter(sample, point)["scatter"], expected)


SCHEMA = TableSchema((NumberColumn("age", centre=50, scale=10), NumberColumn("chol", missing=True, centre=240)))


def test_columns_are_compared_in_their_own_units() -> None:
    facts = Facts(("a", "b"), (9, 9), ("no", "yes"), (3,), ((), ()), columns=SCHEMA.encoded, schema=SCHEMA)
    feature, names = basis_feature(facts, "identity")
    assert names == ["age"]
    x = torch.tensor([[0.5, 1.0, 0.0], [-1.0, 1.0, 0.0]])
    assert feature(None, {"input": x}).tolist() == [[55.0], [40.0]]
    with refused("column 'chol' misses values, which were filled in: give some of age"):
        basis_feature(facts, "identity", ["chol"])
    with refused("unknown column 'agee'; did you mean 'age'?"):
        basis_feature(facts, "identity", ["agee"])
    assert basis_feature(facts, "identity", "age") == basis_feature(facts, "identity", ["age"])
    with refused("column 'age' is given twice: give every column once"):
        basis_feature(facts, "identity", ["age", "age"])
    with refused("columns=[], so nothing can be compared"):
        basis_feature(facts, "identity", [])
    gaps = TableSchema(SCHEMA.columns[1:])
    with refused("every column misses values, so nothing can be compared"):
        basis_feature(replace(facts, shape=(2,), columns=gaps.encoded, schema=gaps), "identity")


def test_what_cannot_be_fitted_over_clients_is_refused() -> None:
    good = np.random.default_rng(0).normal(size=30)
    with refused("basis 'auto' cannot be agreed on over clients"):
        fitted({"a": good, "b": good}, "auto")
    with refused("unknown basis 'norml'"):
        fitted({"a": good, "b": good}, "norml")
    with refused("client 'b' has 2 observations for the 3 parameters"):
        fitted({"a": good, "b": good[:2]}, "normal")
    with refused("dependent on these samples"):
        fitted({"a": np.ones(9), "b": np.ones(9)}, "normal")
    with refused("no finite optimum"):
        fitted({"a": good, "b": good + 100}, "identity")
    with refused("the gamma basis has no finite value for some samples") as caught:
        fitted({"a": good, "b": good}, "gamma")
    assert not any(f"{x:g}"[:5] in str(caught.value) for x in good), "no observation is named"
    with refused("samples of shape [1, 8, 8] are no rows of a table"):
        basis_feature(Facts(("a", "b"), (9, 9), ("0", "1"), (1, 8, 8), ((0.5,), (0.5,))), "normal")


@pytest.mark.parametrize(("distance", "basis"), [(20, "identity"), (50, "normal"), (200, "normal")])
def test_populations_far_apart_have_no_fit_over_clients(distance: float, basis: str) -> None:
    # Probabilities of 1 have gradients of 0: the method must not take them for an optimum.
    rng = np.random.default_rng(distance)
    with refused("no finite optimum"):
        fitted({"a": rng.normal(0, 1, 20), "b": rng.normal(distance, 1, 20)}, basis)
